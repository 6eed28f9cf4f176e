"""Attacks of a tenant with root in a container, on readers on the host."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from hami.agent.containers.state_files import StateFiles
from hami.monitor import hami
from hami.node import state_reading
from hami.wire import file_layout, state_file
from hami.wire.hami_region import V1
from tests.attacks import attack as attacks
from tests.attacks.attack import NO_GAIN, Attacker, Result
from tests.unit.monitor import nodes, regions
from tests.unit.monitor.nodes import CARD, GIB, MIB, OTHER, Series
from tests.unit.monitor.test_audit import Desk, prepared
from tests.unit.monitor.test_hami_feedback import feedback, region

attack = attacks.by(Attacker.TENANT)

SECRET = "root:$6$secret"  # noqa: S105 - what must not be shown
VICTIMS = "numbers of other containers that change, by /metrics"
HANG_S = 30


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a node with an honest container, which the attacks must leave alone."""
    made = Desk(tmp_path, nodes.pods(nodes.pod("victim"), nodes.pod("attacker")))
    prepared(made, "victim")
    return made


def victims(found: Series) -> Series:
    return {key: value for key, value in found.items() if ("pod", "victim") in key[1]}


def cut(path: Path) -> None:
    path.write_bytes(nodes.state([CARD], nodes.entry(1))[:4096])


def grown(path: Path) -> None:
    path.write_bytes(nodes.state([CARD], nodes.entry(1)))
    os.truncate(path, 1 << 40)


def garbage(path: Path) -> None:
    whole = nodes.state([CARD], nodes.entry(1))
    path.write_bytes(whole[:16] + os.urandom(state_file.SIZE - 16))


def counts(path: Path) -> None:
    """Claim more cards and entries than there can be."""
    path.write_bytes(nodes.state([CARD], nodes.entry(1), device_count=2**32 - 1))
    with path.open("r+b") as file:
        file.seek(file_layout.STATE.places["slots_used"][0])
        file.write(b"\xff" * 4)


def link(path: Path) -> None:
    secret = path.parent / "shadow"
    secret.write_text(SECRET)
    path.unlink()
    path.symlink_to(secret)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


TRICKS: tuple[Callable[[Path], None], ...] = (
    cut,
    grown,
    garbage,
    counts,
    link,
    pipe,
    folder,
)


@attack(
    "state-odd",
    "makes its state file a terabyte, a pipe, a symlink to another file, a folder, or garbage",
    NO_GAIN,
    "it is opened without following or waiting, read by offset, and costs only its own numbers",
)
@pytest.mark.parametrize("trick", TRICKS)
async def test_odd_state_files(desk: Desk, trick: Callable[[Path], None]) -> Result:
    await desk.audit.audit()
    before = victims(await desk.shown())
    assert before
    trick(nodes.prepare(desk.node, "attacker", {CARD: GIB}))
    StateFiles(desk.node).busy(nodes.allocation_of("attacker"))
    await desk.audit.audit()
    found = await desk.shown()
    assert SECRET not in str(found)
    return Result(len(victims(found).items() ^ before.items()), VICTIMS)


@attack(
    "region-odd",
    "plants a file of HAMi's region format with impossible numbers, or a symlink in its place",
    NO_GAIN,
    "HAMi's regions are read as the state file is, and bounded by what a node can have",
)
@pytest.mark.parametrize("trick", ["numbers", "link", "terabyte", "many"])
async def test_odd_regions(desk: Desk, trick: str) -> Result:
    await desk.audit.audit()
    before = victims(await desk.shown())
    place = desk.node.hami_containers / f"{nodes.uid_of('attacker')}_main"
    place.mkdir()
    if trick == "numbers":
        (place / "x.cache").write_bytes(regions.region(V1, [CARD] * 4, proc_num=-1))
    elif trick == "link":
        (place / "shadow").write_text(SECRET)
        (place / "x.cache").symlink_to(place / "shadow")
    elif trick == "terabyte":
        (place / "x.cache").touch()
        os.truncate(place / "x.cache", 1 << 40)
    else:
        for number in range(200):
            (place / f"{number}.cache").write_bytes(b"x")
    await desk.audit.audit()
    found = await desk.shown()
    assert SECRET not in str(found)
    return Result(len(victims(found).items() ^ before.items()), VICTIMS)


@attack(
    "state-other-card",
    "writes other cards, quotes and line breaks into its state file, to forge metrics",
    NO_GAIN,
    "a container is shown with the cards of its policy; labels are escaped",
)
async def test_cards_in_the_state_file(desk: Desk) -> Result:
    path = nodes.prepare(desk.node, "attacker", {CARD: GIB})
    names = [OTHER, '"} 1\nhami_forged{x="', CARD]
    path.write_bytes(nodes.state(names, nodes.entry(1, *[nodes.usage(linear=MIB)] * 3)))
    with nodes.held(path, 0):
        found = await desk.shown()
    own = [dict(labels) for (_, labels) in found if ("pod", "attacker") in labels]
    assert own
    foreign = [each for each in own if each.get("device_uuid", CARD) != CARD]
    forged = [name for name, _ in found if "forged" in name]
    return Result(len(foreign) + len(forged), "series of cards that it was not given")


@attack(
    "locks-held",
    "holds every lock of its state file, so that a reader on the host waits for ever",
    NO_GAIN,
    "agent and monitor ask for locks, and take none",
)
def test_locks_that_are_held(desk: Desk) -> Result:
    path = prepared(desk, "attacker")
    answers: list[object] = []

    def read() -> None:
        answers.append(state_reading.read_state(path))
        answers.append(StateFiles(desk.node).busy(nodes.allocation_of("attacker")))

    with path.open("r+b") as file, nodes.held(path, *range(file_layout.MAX_PROCESSES)):
        fcntl.flock(file, fcntl.LOCK_EX)
        fcntl.lockf(file, fcntl.LOCK_EX, state_file.SIZE)
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(HANG_S)
    return Result(2 - len(answers), "readers that hang")


@attack(
    "named-as-another",
    "mounts a folder named as another container's, and nests control groups named as its pod",
    NO_GAIN,
    "the outermost control group decides about the pod, and no process can leave it",
)
async def test_a_process_that_is_named_as_another(desk: Desk) -> Result:
    path = prepared(desk, "attacker")
    victim = nodes.allocation_of("victim")
    desk.process(100, pod="attacker", allocation_id=victim)
    group = desk.proc / "100" / "cgroup"
    inner = f"/kubepods/pod{nodes.uid_of('victim')}/{'5f2c' * 16}"
    group.write_text(group.read_text().rstrip("\n") + f"{inner}\n")
    desk.sampler.on_card = {100: 2 * GIB}
    with nodes.held(path, 0):
        await desk.audit.audit()
    assert desk.events.recorded
    blamed = [event["name"] for event in desk.events.recorded if event["name"] != "attacker"]
    return Result(len(blamed), "events about another pod")


@attack(
    "region-priority",
    "claims the highest priority, or other cards, in its HAMi region, so that others wait",
    NO_GAIN,
    "a region counts with no more than its pod's spec and grant say",
)
@pytest.mark.parametrize(("granted", "allowed"), [(CARD, "1"), (CARD, ""), (OTHER, "0")])
def test_a_priority_that_a_region_claims(tmp_path: Path, granted: str, allowed: str) -> Result:
    node = nodes.layout(tmp_path)
    pods = [
        nodes.hami_pod("attacker", granted, priority=allowed),
        nodes.hami_pod("victim", CARD, priority="1"),
    ]
    region(node, "attacker", priority=0, recent_kernel=2**31 - 1)
    path = region(node, "victim", priority=1, recent_kernel=2)
    feedback(node, nodes.pods(*pods)).update()
    waits = hami.read_region(path).recent_kernel < 0
    return Result(int(waits), "containers of others that wait, by their regions")
