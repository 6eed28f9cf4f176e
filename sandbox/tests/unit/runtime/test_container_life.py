"""A container's life, and the lives of those who look after it, in both worlds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from hami_sandbox.runtime import isolation, states
from hami_sandbox.runtime.spec import ContainerState, Mount, Phase
from hami_sandbox.runtime.states import ContainerError, StartError, UnknownContainerError, living
from sandbox.tests.unit.runtime.bench import Bench, gone, is_alive
from tests.unit.kube.following import PATIENCE_S

#: Says its pid and a child's, and waits.
FAMILY = "sleep 1000 & echo $$; echo $!; wait"


def shim_of(bench: Bench, container: str) -> int:
    record = bench.folder / "rt/containers" / container / "started.json"
    return int(json.loads(record.read_text())["shim"])


def mounts_of(bench: Bench) -> list[str]:
    """Return what everybody on the machine sees mounted for it."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(bench.folder) in line]


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_what_a_program_says_and_how_it_ends_is_told(bench: Bench) -> None:
    spec = bench.spec(
        "sh", "-c", 'echo "$WORD"; echo bad >&2; printf end; exit 3', env={"WORD": "hi"}
    )
    await bench.runtime.create(spec)
    made = bench.runtime.state(spec.id)
    assert (made.phase, made.pid, made.started_at) == (Phase.CREATED, 0, 0.0)
    await bench.runtime.start(spec.id)
    state = await bench.ended(spec.id)
    assert state.spec == spec
    assert (state.exit_code, state.signal, state.reason, state.message) == (3, 0, "", "")
    assert 0 < state.created_at <= state.started_at <= state.finished_at
    assert bench.lines(spec.id) == ["hi", "end"]
    assert bench.lines(spec.id, "stderr") == ["bad"]


async def test_a_container_knows_its_pod(bench: Bench) -> None:
    state = await bench.run("sh", "-c", 'echo "$HOSTNAME $FAKEGPU_OWNER"')
    assert bench.lines(state) == [f"pod {state.spec.pod_uid}/main"]


async def test_a_container_inherits_nothing_of_its_keepers(bench: Bench) -> None:
    os.set_inheritable(bench.reading_end, True)  # noqa: FBT003 - its only form
    state = await bench.run("sh", "-c", "ls /proc/self/fd; grep Sig[BI] /proc/self/status; env")
    *lines, _ = bench.lines(state)
    assert lines[:4] == ["0", "1", "2", "3"]  # the last is ls's own
    masks = {name: int(mask, 16) for name, mask in map(str.split, lines[4:6])}
    # The C library's own two, 32 and 33, are nobody's business.
    assert {name: mask & ~(3 << 31) for name, mask in masks.items()} == {"SigBlk:": 0, "SigIgn:": 0}
    names = {line.partition("=")[0] for line in bench.lines(state)[6:]}
    assert names <= {"PATH", "PWD", "HOME", "HOSTNAME", "FAKEGPU_OWNER", "HAMI_SANDBOX_CONTAINER"}


async def test_a_killed_container_ends_with_137(bench: Bench) -> None:
    container = await bench.start("sleep", "1000")
    running = bench.runtime.state(container)
    assert running.phase is Phase.RUNNING
    os.kill(running.pid, signal.SIGKILL)
    state = await bench.ended(container)
    assert (state.exit_code, state.signal, state.pid) == (137, 9, 0)


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("nope",), r'exec: "nope": executable file not found in \$PATH: unknown'),
        (("/nope",), r'exec: "/nope": stat /nope: no such file or directory: unknown'),
        (("/usr",), r'exec: "/usr": is a directory: unknown'),
        (("/dev/null",), r'exec: "/dev/null": permission denied: unknown'),
    ],
)
async def test_what_cannot_be_started_says_why_as_containerd_does(
    bench: Bench, argv: tuple[str, ...], why: str
) -> None:
    spec = bench.spec(*argv)
    await bench.runtime.create(spec)
    with pytest.raises(StartError, match=f"^failed to create containerd task: .*{why}$") as caught:
        await bench.runtime.start(spec.id)
    state = bench.runtime.state(spec.id)
    assert (state.phase, state.exit_code, state.reason) == (Phase.EXITED, 128, "StartError")
    assert state.message == str(caught.value)
    assert state.started_at == 0.0


async def test_a_missing_folder_on_the_machine_is_named(bench: Bench, place: Path) -> None:
    missing = str(place / "none")
    with pytest.raises(StartError, match=f"error mounting {missing}: no such file or directory"):
        await bench.start("true", mounts=(Mount(missing, "/data"),))


async def test_stopping_asks_first(bench: Bench) -> None:
    container = await bench.start("sh", "-c", "trap 'exit 7' TERM; echo up; sleep 1000 & wait")
    await bench.said(container)
    await bench.runtime.stop(container, 1000)
    assert bench.runtime.state(container).exit_code == 7


async def test_stopping_does_not_wait_for_ever(bench: Bench) -> None:
    container = await bench.start("sh", "-c", "trap '' TERM; echo up; sleep 1000 & wait; wait")
    await bench.said(container)
    await bench.runtime.stop(container, 0.05)
    state = bench.runtime.state(container)
    assert (state.phase, state.exit_code) == (Phase.EXITED, 137)


async def test_the_whole_family_ends_with_the_first_process(bench: Bench) -> None:
    container = await bench.start("sh", "-c", "setsid sleep 1000 & echo $!; read x < /dev/null")
    state = await bench.ended(container)
    assert state.exit_code == 1
    assert not is_alive(int(bench.lines(container)[0]))


async def test_containers_outlive_their_kubelet(bench: Bench) -> None:
    first = await bench.start("sh", "-c", FAMILY)
    second = await bench.start("false")
    await bench.ended(second)
    before = bench.runtime.list()
    await bench.runtime.close()
    runtime = bench.new_runtime()
    assert runtime.list() == before
    assert [state.phase for state in before] == [Phase.RUNNING, Phase.EXITED]
    changed = asyncio.create_task(runtime.wait_change())
    await asyncio.sleep(0)
    os.kill(before[0].pid, signal.SIGKILL)
    await changed
    assert (await bench.ended(first)).exit_code == 137
    await runtime.remove(first)
    assert [state.spec.id for state in runtime.list()] == [second]


async def half_started(bench: Bench) -> str:
    """Leave a container whose start nobody has waited for."""
    spec = bench.spec("sleep", "1000")
    await bench.runtime.create(spec)
    starting = asyncio.create_task(bench.runtime.start(spec.id))
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    return spec.id


async def test_a_kubelet_may_die_while_it_starts_a_container(bench: Bench) -> None:
    container = await half_started(bench)
    await bench.runtime.close()
    runtime = bench.new_runtime()
    with contextlib.suppress(ContainerError):  # it was quicker than we
        await runtime.start(container)
    assert runtime.state(container).phase is Phase.RUNNING
    await runtime.remove(container)
    assert runtime.list() == ()


async def test_what_is_only_being_started_is_removed_as_well(bench: Bench) -> None:
    container = await half_started(bench)
    await bench.runtime.remove(container)
    assert bench.runtime.list() == ()
    assert living(bench.folder / "rt") == ()


async def test_a_killed_shim_takes_its_container_along(bench: Bench) -> None:
    container = await bench.start("sh", "-c", FAMILY)
    parent, child = map(int, await bench.said(container, 2))
    os.kill(shim_of(bench, container), signal.SIGKILL)
    state = await bench.ended(container)
    assert (state.exit_code, state.signal) == (137, 9)
    assert "shim" in state.message
    await gone(parent)
    await gone(child)
    assert bench.new_runtime().list() == (state,)


async def test_a_shim_that_dies_before_it_starts_anything_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "shim_command", lambda *_: ["/bin/false"])
    with pytest.raises(StartError, match="shim"):
        await bench.start("true")
    (state,) = bench.runtime.list()
    assert (state.phase, state.exit_code) == (Phase.EXITED, 137)


async def test_a_log_that_cannot_be_written_is_told(bench: Bench) -> None:
    with pytest.raises(StartError, match=r"shim .* died.*Error.*Not a directory"):
        await bench.start("true", log="/dev/null/x/log")


async def test_everything_ends_with_the_sandbox(bench: Bench) -> None:
    containers = [await bench.start("sh", "-c", FAMILY) for _ in range(2)]
    pids = [int(line) for each in containers for line in await bench.said(each, 2)]
    assert len(living(bench.folder / "rt")) == 2
    bench.cut_lifeline()
    await bench.all_ended()
    assert not any(map(is_alive, pids))


async def test_nothing_is_left_of_a_removed_container(bench: Bench) -> None:
    container = await bench.start("sh", "-c", FAMILY)
    pids = [int(line) for line in await bench.said(container, 2)]
    pids.append(shim_of(bench, container))
    assert mounts_of(bench) == []
    await bench.runtime.remove(container)
    await bench.runtime.remove(container)
    assert not any(map(is_alive, pids))
    assert left_in(bench.folder / "rt/containers") == []
    assert mounts_of(bench) == []
    assert bench.runtime.list() == ()
    with pytest.raises(UnknownContainerError):
        bench.runtime.state(container)


async def test_what_a_killed_kubelet_left_half_made_is_swept_away(bench: Bench) -> None:
    container = await bench.start("sleep", "1000")
    folder = bench.folder / "rt/containers"
    for left in (".begun", ".removed.gone"):
        (folder / left / "root").mkdir(parents=True)
        (folder / left / "spec.json").touch()
    await bench.runtime.close()
    runtime = bench.new_runtime()
    runtime.remove_leftovers()
    assert left_in(folder) == [folder / container]
    assert runtime.state(container).phase is Phase.RUNNING


async def test_many_are_stopped_without_looking_at_all_for_each(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 12
    containers = [await bench.start("sleep", "1000") for _ in range(number)]
    looks = []

    def read(place: Path, known: ContainerState | None) -> ContainerState:
        looks.append(place.name)
        return original(place, known)

    original = states.read
    monkeypatch.setattr(states, "read", read)
    await asyncio.gather(*(bench.runtime.stop(each, PATIENCE_S) for each in containers))
    assert len(looks) <= 8 * number
    assert {state.phase for state in bench.runtime.list()} == {Phase.EXITED}


async def test_every_waiter_hears_of_every_change(bench: Bench) -> None:
    seen = [0, 0]

    async def follow(number: int) -> None:
        while True:
            seen[number] = await bench.runtime.wait_change(seen[number])

    followers = [asyncio.create_task(follow(number)) for number in (0, 1)]
    container = (await bench.run("true")).spec.id
    await bench.runtime.remove(container)
    number = await bench.runtime.wait_change(0)
    async with asyncio.timeout(PATIENCE_S):
        while seen != [number, number]:
            await asyncio.sleep(0.01)
    for follower in followers:
        follower.cancel()
    assert number >= 4  # made, started, ended, removed


async def test_orders_that_make_no_sense_are_refused(bench: Bench) -> None:
    container = await bench.start("true")
    with pytest.raises(ContainerError, match="already exists"):
        await bench.runtime.create(bench.spec("true", id=container))
    with pytest.raises(ContainerError, match="started before"):
        await bench.runtime.start(container)
    with pytest.raises(ContainerError, match="no command specified"):
        await bench.runtime.create(bench.spec())
    for bad in ("../x", ".x", "", "a/b"):
        with pytest.raises(ContainerError, match="id"):
            await bench.runtime.create(bench.spec("true", id=bad))
