"""The keys of grants of form v1: created once, never overwritten, rotated."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from hami.installation import grant_secret
from hami.installation.job import InstallationError
from hami.serving import grant_keys
from hami.wire import signature
from tests.scripted_api.server import Lost
from tests.unit.installation.rig import NAMESPACE, Rig
from tests.unit.kube.following import PATIENCE_S

NAME = "hami-grant-key"
OLD, OLDER = b"o" * 32, b"p" * 32


async def ensure(rig: Rig) -> None:
    await grant_secret.ensure_v1(rig.job, namespace=NAMESPACE, name=NAME)


async def rotate(rig: Rig) -> None:
    await grant_secret.rotate_v1(rig.job, namespace=NAMESPACE, name=NAME, wait=180)


def mounted(folder: Path, entries: dict[str, bytes]) -> signature.GrantKeys:
    """Read the Secret as a process does that has it mounted."""
    for name, content in entries.items():
        (folder / name).write_bytes(content)
    found = grant_keys.KeyFolder(str(folder)).keys().v1
    assert found is not None
    return found


async def test_a_key_is_made_that_the_scheduler_takes(rig: Rig, tmp_path: Path) -> None:
    await ensure(rig)
    made = rig.secret(NAME)
    assert made["type"] == "Opaque"
    assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "hami"}
    keys = mounted(tmp_path, rig.entries(NAME))
    assert (len(keys.current), keys.previous) == (32, None)
    assert rig.printed == [
        f"Secret kube-system/{NAME}: created, key {signature.key_id(keys.current)} signs"
    ]


async def test_every_installation_has_another_key(rig: Rig) -> None:
    await ensure(rig)
    first = rig.entries(NAME)
    rig.api.remove("secrets", NAME, NAMESPACE)
    await ensure(rig)
    assert rig.entries(NAME) != first


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize(
    "entries", [{"current": OLD}, {"current": OLD, "previous": OLDER, "more": b"x"}]
)
async def test_one_that_is_there_is_never_changed(
    rig: Rig, entries: dict[str, bytes], ours: bool
) -> None:
    rig.put_secret(NAME, entries, ours=ours)
    before = rig.secret(NAME)
    await ensure(rig)
    assert rig.secret(NAME) == before
    assert rig.printed == [f"Secret kube-system/{NAME}: kept, key {signature.key_id(OLD)} signs"]


@pytest.mark.parametrize(
    ("entries", "rule"),
    [
        ({}, "has no entry current with a key"),
        ({"previous": OLD}, "has no entry current with a key"),
        ({"current": b"short"}, "entry current is 5 bytes long, must be 32"),
        ({"current": OLD, "previous": b"x"}, "entry previous is 1 bytes long, must be 32"),
    ],
)
async def test_a_damaged_one_is_reported_and_left_for_a_person_to_decide(
    rig: Rig, entries: dict[str, bytes], rule: str
) -> None:
    rig.put_secret(NAME, entries)
    before = rig.secret(NAME)
    with pytest.raises(InstallationError, match=f"{NAME}: {rule}; write 32 random bytes there"):
        await ensure(rig)
    assert rig.secret(NAME) == before


async def test_of_two_jobs_one_makes_it_and_the_other_is_content(rig: Rig) -> None:
    held = asyncio.Event()
    gate = rig.api.fault(method="POST", path="/secrets", gate=held, times=2)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as both:
        for _ in range(2):
            both.create_task(ensure(rig))
        while gate.hits < 2:
            await asyncio.sleep(0)
        held.set()
    key = signature.key_id(rig.entries(NAME)["current"])
    made, kept = [line for line in rig.printed if line.endswith(f"key {key} signs")]
    assert ": created, " in made
    assert ": kept, " in kept


async def test_a_new_key_is_known_everywhere_before_it_signs(rig: Rig, tmp_path: Path) -> None:
    rig.put_secret(NAME, {"current": OLD, "previous": OLDER})
    halfway: list[dict[str, bytes]] = []
    rig.api.fault(method="PUT", on_hit=lambda: halfway.append(rig.entries(NAME)), times=None)
    await rotate(rig)
    before, between = halfway
    after = rig.entries(NAME)
    assert before == {"current": OLD, "previous": OLDER}
    assert between == {"current": OLD, "previous": after["current"]}
    assert after["previous"] == OLD
    assert after["current"] not in (OLD, OLDER)
    assert rig.slept == [180]
    asked = {"uid": "u", "node": "n", "devices": "d"}
    late_agent = mounted(tmp_path, between)
    assert signature.verify(
        late_agent, signature.sign(signature.GrantKeys(after["current"]), **asked), **asked
    )
    assert signature.verify(
        mounted(tmp_path, after), signature.sign(signature.GrantKeys(OLD), **asked), **asked
    )


@pytest.mark.parametrize("lost", list(Lost))
@pytest.mark.parametrize("half", [0, 1])
async def test_a_lost_answer_does_not_spoil_the_exchange(rig: Rig, lost: Lost, half: int) -> None:
    rig.put_secret(NAME, {"current": OLD})
    puts = iter(range(9))
    rig.api.fault(method="PUT", when=lambda _: next(puts) == half, lost=lost)
    await rotate(rig)
    after = rig.entries(NAME)
    assert after["previous"] == OLD
    assert after["current"] != OLD


async def test_two_rotations_at_once_do_not_mix(rig: Rig) -> None:
    rig.put_secret(NAME, {"current": OLD})

    async def another_begins(_: float) -> None:
        rig.put_secret(NAME, {"current": OLD, "previous": OLDER})

    rig.job = dataclasses.replace(rig.job, sleep=another_begins)
    with pytest.raises(InstallationError, match="was changed meanwhile; run the rotation again"):
        await rotate(rig)
    assert rig.entries(NAME) == {"current": OLD, "previous": OLDER}


async def test_without_a_secret_of_ours_nothing_is_exchanged(rig: Rig) -> None:
    with pytest.raises(
        InstallationError, match="does not exist; create it with `hami certs create`"
    ):
        await rotate(rig)
    rig.put_secret(NAME, {"current": OLD}, ours=False)
    with pytest.raises(InstallationError, match="was not created by hami"):
        await rotate(rig)
    assert rig.entries(NAME) == {"current": OLD}
