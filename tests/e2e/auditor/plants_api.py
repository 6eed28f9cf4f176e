"""Faults planted through the API alone, on a node that exists only there."""

from __future__ import annotations

import contextlib

from tests.e2e.auditor import pod_annotations, stage
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.node_annotations import BINDING_MARK, LOCK_PREFIX, NVIDIA_REGISTER
from tests.e2e.auditor.planting import Context, Plant, plant
from tests.e2e.auditor.stage import GPU, Stage

_MAC = f"v1:00000000:{'A' * 43}"


def _stage(
    context: Context, undo: contextlib.ExitStack, annotations: dict[str, str] | None = None
) -> Stage:
    made = context.stage()
    undo.callback(made.take_down)
    made.set_node(annotations)
    return made


def _on_node(annotation: str, value: str, *kinds: Kind, name: str) -> Plant:
    def build(context: Context, undo: contextlib.ExitStack) -> None:
        _stage(context, undo, {annotation: value})

    return plant(name, build, *kinds)


def _two_pods(name: str, kind: Kind, peak: Kind, *grants: str, count: int = 2) -> Plant:
    def build(context: Context, undo: contextlib.ExitStack) -> None:
        made = _stage(context, undo, {NVIDIA_REGISTER: stage.register(count=count)})
        for grant in grants:
            made.add_pod(grant)

    return plant(name, build, kind, recorded=(peak,))


def _double_booked_for_a_moment(context: Context, undo: contextlib.ExitStack) -> None:
    made = _stage(context, undo)
    made.add_pod(stage.grant(5000, 10))
    made.remove(made.add_pod(stage.grant(5000, 10)))


def _rewritten(context: Context, undo: contextlib.ExitStack) -> None:
    made = _stage(context, undo)
    pod = made.add_pod(stage.grant(1000, 10))
    made.annotate(pod, {pod_annotations.ALLOCATED: stage.grant(2000, 10)})


def _on_pod(
    name: str,
    kind: Kind,
    devices: str | None,
    annotations: dict[str, str] | None = None,
    *,
    bound: bool = True,
    asks: dict[str, str] | None = None,
) -> Plant:
    def build(context: Context, undo: contextlib.ExitStack) -> None:
        _stage(context, undo).add_pod(devices, annotations, bound=bound, asks=asks)

    return plant(name, build, kind)


def _stuck(context: Context, undo: contextlib.ExitStack) -> None:
    made = _stage(context, undo)
    made.set_running(made.add_pod(stage.grant(1000, 10), {pod_annotations.PHASE: "allocating"}))


_GRANT = stage.grant(1000, 10)

PLANTS: tuple[Plant, ...] = (
    _two_pods(
        "more pods on a card than it has slots",
        Kind.CARD_COUNT,
        Kind.PEAK_COUNT,
        _GRANT,
        _GRANT,
        count=1,
    ),
    _two_pods(
        "more memory granted than a card has",
        Kind.CARD_MEMORY,
        Kind.PEAK_MEMORY,
        stage.grant(5000, 10),
        stage.grant(3001, 10),
    ),
    _two_pods(
        "more cores granted than a card has",
        Kind.CARD_CORES,
        Kind.PEAK_CORES,
        stage.grant(1000, 60),
        stage.grant(1000, 41),
    ),
    _two_pods(
        "a whole card shared",
        Kind.CARD_EXCLUSIVE,
        Kind.PEAK_EXCLUSIVE,
        stage.grant(1000, 100),
        stage.grant(1000, 0),
    ),
    plant(
        "a card double-booked for a moment",
        _double_booked_for_a_moment,
        recorded=(Kind.PEAK_MEMORY,),
    ),
    plant("a grant changed after binding", _rewritten, recorded=(Kind.GRANT_REWRITTEN,)),
    _on_node(
        NVIDIA_REGISTER, '[{"id":"GPU-0"', Kind.NODE_ANNOTATION, name="a register that is no JSON"
    ),
    _on_node(
        "hami.io/node-dcu-register",
        "DCU-0,4,16384,100,DCU,0:",
        Kind.NODE_ANNOTATION,
        name="a colon register with six fields",
    ),
    _on_node(
        LOCK_PREFIX, "yesterday,default,x", Kind.NODE_ANNOTATION, name="a lock without a time"
    ),
    _on_node(
        BINDING_MARK,
        f"late,{'0' * 16}",
        Kind.BINDING_MARK,
        name="a late-binding mark of another register",
    ),
    _on_node(
        LOCK_PREFIX,
        "2026-01-01T00:00:00Z,default,auditor-plant-gone",
        Kind.LOCK_LEFT,
        name="a lock whose pod is gone",
    ),
    _on_pod("a device list that is cut off", Kind.POD_ANNOTATION, "GPU-plant-0,NVIDIA,1000"),
    _on_pod("a card that its node has not", Kind.GRANT_CARD, stage.grant(1000, 10, "GPU-none")),
    _on_pod(
        "a single grant beyond its card", Kind.GRANT_AMOUNT, stage.grant(8001, 10), bound=False
    ),
    _on_pod("more slots than containers", Kind.GRANT_SLOTS, f"{_GRANT};"),
    _on_pod(
        "a grant that was not asked for",
        Kind.GRANT_ASK,
        _GRANT,
        asks={GPU: "1", "nvidia.com/gpumem": "500"},
    ),
    _on_pod("a grant for another node", Kind.GRANT_NODE, _GRANT, {pod_annotations.NODE: "other"}),
    _on_pod(
        "a rest that was never granted",
        Kind.GRANT_REST,
        _GRANT,
        {pod_annotations.TO_ALLOCATE: stage.grant(999, 10)},
    ),
    _on_pod("a code of another form", Kind.GRANT_MAC, _GRANT, {pod_annotations.MAC: "v2:x:y"}),
    _on_pod(
        "a signed grant without a binding",
        Kind.GRANT_UNBOUND,
        _GRANT,
        {pod_annotations.MAC: _MAC},
        bound=False,
    ),
    plant("a pod that runs and is still binding", _stuck, Kind.PHASE_STUCK),
)
