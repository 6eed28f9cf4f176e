"""Annotations of the incoming pod: policies, weights, which cards it accepts.

Most are well-formed, in every spelling that docs/placement.md, section 1, allows; a few are not.
"""

from __future__ import annotations

from hami.wire import annotation_keys as keys
from tests.oracle.sample_vendors import NVIDIA
from tests.oracle.scenario_draft import Draft

_TYPE_LISTS = (
    "A100", "A10", "H20", "h200", "nvidia", "H20,A10", "A10G", "SXM4", "P4", "tesla p4, H100",
    "40GB", "0", "A1", " H200 ,", "RTX 3090", "NVIDIA",
)  # fmt: skip
_MODES = ("mps", "hami-core", "mig", "mps", "hami-core,mps", "mig,hami-core", " ", "hami")
_TRUE_AND_NOT = ("true", "1", "True", "t", "TRUE", "false", "yes", " true", "0")
_NODE_POLICIES = ("binpack", "spread", "spread", "", " binpack", "spread ", " \tspread ")
_SINGLE_POLICIES = ("spread", "binpack", "mutex", "numa", "topology-aware")
_CHAINS = (
    "numa,binpack", "binpack,numa", "spread,numa", "numa,spread", "mutex,binpack", "binpack,mutex",
    "mutex,topology-aware", "topology-aware,numa", " binpack , spread ", "spread,binpack",
    "numa,mutex,binpack", "binpack,binpack,numa", "spread,spread", "numa,numa", "binpack,binpack",
    "binpack,", ",mutex",
)  # fmt: skip
_BAD_POLICIES = ("best", "binpack,best", "Spread", "binpack;numa")
_WEIGHTS = (
    "slot=1,core=1,memory=1", "slot=0,core=0,memory=1", "slot=1,core=0,memory=0",
    "memory=5, core=3 ,slot=2", "slot=2147483647,core=1,memory=1",
    "core=2147483647,slot=0,memory=7",
    "slot=2147483647,core=2147483647,memory=2147483647", "slot=0,core=1,memory=0",
)  # fmt: skip
_BAD_WEIGHTS = (
    "", " ", "slot=1", "slot=0,core=0,memory=0", "slot=1,core=1,memory=-1",
    "slot=1,core=1,memory=1.5",
    "slot=1,core=1,memory=2147483648", "slot=1,core=1,memory=1,slot=1", "slot=1,core=1,mem=1",
    "slot=1,core=1,memory=1,", "slot,core,memory",
)  # fmt: skip


def user_annotations(draft: Draft) -> dict[str, str | None]:
    """Return the annotations the pod's user wrote."""
    tape = draft.tape
    annotations: dict[str, str | None] = {}
    if tape.chance(50):
        annotations[keys.NODE_POLICY] = tape.pick(_NODE_POLICIES)
    how = tape.below(100)
    if how >= 75:
        annotations[keys.GPU_POLICY] = tape.pick(_CHAINS)
    elif how >= 35:
        annotations[keys.GPU_POLICY] = tape.pick(_SINGLE_POLICIES)
    elif how >= 32:
        annotations[keys.GPU_POLICY] = tape.pick((",", " , ", " "))
    if tape.chance(15):
        annotations[keys.SCORING_WEIGHTS] = tape.pick(_WEIGHTS)
    if tape.chance(draft.flavour.numa_bind):
        annotations[NVIDIA.numa_bind] = tape.pick(_TRUE_AND_NOT[: 1 + tape.below(9)])
    if tape.chance(draft.flavour.picky):
        _be_picky(draft, annotations)
    if tape.chance(2):
        key, values = tape.pick(
            (
                (keys.NODE_POLICY, ("best", "mutex", "Binpack")),
                (keys.GPU_POLICY, _BAD_POLICIES),
                (keys.SCORING_WEIGHTS, _BAD_WEIGHTS),
            )
        )
        annotations[key] = tape.pick(values)
    return annotations


def _be_picky(draft: Draft, annotations: dict[str, str | None]) -> None:
    tape = draft.tape
    ids = [card.device.id for cards in draft.cards.values() for card in cards["NVIDIA"]]
    what = tape.pick(("type", "no type", "mode", "ids", "no ids", "mode", "mode", "all"))
    if what in ("type", "all"):
        annotations[NVIDIA.use_type] = tape.pick((*_TYPE_LISTS, " , "))
    if what in ("no type", "all"):
        annotations[NVIDIA.nouse_type] = tape.pick((*_TYPE_LISTS, " , "))
    if what in ("mode", "all"):
        annotations[NVIDIA.mode] = tape.pick(_MODES)
    if what in ("ids", "all"):
        wanted = tape.subset(ids, 1 + tape.below(6))
        annotations[NVIDIA.use_uuid] = ", ".join([*wanted, "GPU-unknown"])
    if what in ("no ids", "all"):
        annotations[NVIDIA.nouse_uuid] = ",".join(tape.subset(ids, 1 + tape.below(3)))
