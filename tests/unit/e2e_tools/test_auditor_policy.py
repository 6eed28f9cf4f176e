"""The auditor reads the agent's policy files, and refuses broken ones."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.wire import policy_file
from hami.wire.shares import Share
from tests.e2e.auditor import auditing, policy
from tests.e2e.auditor.claims import Claim
from tests.e2e.auditor.malformed import MalformedError
from tests.unit.e2e_tools import auditor_sample as sample
from tests.unit.e2e_tools.auditor_sample import MIB, grant

CARD = ("GPU-0", 1024 * MIB, 25)
GOOD = sample.policy(CARD)
OWNER = Claim(uid=sample.TRAIN_UID, pod="team/train", container="main")


def test_a_policy_says_whose_it_is_and_what_it_gives() -> None:
    content = sample.policy(CARD, ("GPU-1", 0, 0), ("GPU-2", MIB, 100))
    assert policy.read(content) == dataclasses.replace(
        OWNER,
        cards=("GPU-0", "GPU-1", "GPU-2"),
        memory=(1024, 0, 1),
        card_cores=(25, 0, 0),
    )


def test_of_mig_slices_only_the_owner_is_read() -> None:
    content = sample.policy(CARD, ("MIG-0", 4864 * MIB, 0))
    assert policy.read(content) == OWNER


def test_what_the_product_writes_is_read() -> None:
    written = policy_file.encode(
        policy_file.Policy(
            generation=7,
            flags=policy_file.Flag.OVERSUBSCRIBE,
            priority=1,
            pod_uid="9d0e",
            pod_namespace="team",
            pod_name="train-0",
            container="c" * 63,
            shares=tuple(Share(f"GPU-{index}", "NVIDIA", index, index) for index in range(16)),
            context_bytes={f"GPU-{index}": 5 for index in range(16)},
        )
    )
    assert policy.read(written) == Claim(
        uid="9d0e",
        pod="team/train-0",
        container="c" * 63,
        cards=tuple(f"GPU-{index}" for index in range(16)),
        memory=tuple(range(16)),
        card_cores=tuple(range(16)),
    )


def test_all_cores_and_no_limit_of_cores_are_the_same() -> None:
    for granted, written in ((0, 100), (100, 0), (100, 100)):
        draft = sample.clean()
        cards = [sample.card(name) for name in ("GPU-0", "GPU-1", "GPU-2")]
        draft.nodes[sample.NODE] = sample.node(sample.NODE, *cards)
        draft.see("MODIFIED", draft.nodes[sample.NODE])
        draft.add(
            sample.pod(
                "uid-x",
                sample.container(limits={sample.GPU: "1"}),
                devices=f"{grant('GPU-2', 1024, granted)};",
            )
        )
        draft.checkpoint.append(
            sample.held("uid-x", "main", sample.GPU, "GPU-2-0", "hami.io/vgpu=t2")
        )
        draft.pod_resources.append(sample.listed("x", sample.GPU, "GPU-2-0"))
        draft.specs["t2"] = sample.thing(
            "t2", sample.spec("hami.io/vgpu", "t2", NVIDIA_VISIBLE_DEVICES="GPU-2")
        )
        draft.folders["t2"] = sample.thing(
            "t2", sample.policy(("GPU-2", 1024 * MIB, written), uid="uid-x", pod="team/x")
        )
        draft.states.append(sample.thing("t2", b""))
    assert auditing.audit(draft.evidence()) == []


def _flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "0 bytes"),
        (GOOD[:-1], "3175 bytes"),
        (GOOD + b"\0", "3177 bytes"),
        (sample.policy(CARD, magic=b"AMSTATE1"), "begins with"),
        (sample.policy(CARD, version=2), "version 2"),
        (sample.policy(CARD, size=3175), "size 3175"),
        (_flipped(GOOD, 600), "checksum"),
        (_flipped(GOOD, 3000), "checksum"),
        (_flipped(GOOD, len(GOOD) - 1), "checksum"),
        (sample.policy(CARD, generation=0), "generation"),
        (sample.policy(), "0 cards"),
        (sample.policy(CARD, count=17), "17 cards"),
        (sample.policy(CARD, count=2), "not named"),
        (sample.policy(CARD, CARD), "named twice"),
        (sample.policy(("GPU-0", MIB + 1, 0)), "no whole MiB"),
        (sample.policy(("GPU-0", MIB, 101)), "101 %"),
        (sample.policy(CARD, uid=""), "must be said"),
        (sample.policy(CARD, pod="team/"), "must be said"),
        (sample.policy(CARD, pod="/train"), "must be said"),
        (sample.policy(CARD, container=""), "must be said"),
        (sample.policy(CARD, uid="u" * 64), "NULs"),
        (sample.policy(CARD, uid="a\0b"), "NULs"),
        (sample.policy(("GPU 0", MIB, 0)), "NULs"),
    ],
)
def test_a_broken_policy_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(MalformedError, match=why):
        policy.read(content)


@given(st.binary(max_size=64), st.integers(0, policy.SIZE))
def test_nothing_but_malformed_escapes_the_reader(noise: bytes, place: int) -> None:
    for content in (noise, noise.ljust(policy.SIZE, b"\0"), GOOD[:place] + noise + GOOD[place:]):
        with contextlib.suppress(MalformedError):
            policy.read(content)


@given(st.data())
def test_nothing_but_malformed_escapes_behind_a_right_checksum(data: st.DataObject) -> None:
    numbers = st.integers(0, 2**32 - 1)
    fields: dict[str, Any] = {name: data.draw(numbers) for name in ("flags", "count")}
    card = data.draw(st.text(st.characters(max_codepoint=255), max_size=40))
    with contextlib.suppress(MalformedError):
        policy.read(sample.policy((card, data.draw(numbers) * MIB, data.draw(numbers)), **fields))
