"""What a tenant can do to the files that he shares with us, and processes that go around us."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.e2e import pods
from tests.e2e.agent import workloads
from tests.e2e.agent.fixtures import _audited, _told  # noqa: F401 (for every test)
from tests.e2e.agent.installation import AGENT, LATE, LOCK, MONITOR, Agents
from tests.e2e.agent.workloads import CONTEXT, MIB
from tests.e2e.auditor import layouts, tokens
from tests.e2e.auditor.evidence import Held
from tests.e2e.auditor.layouts import HAMI
from tests.e2e.auditor.reading import NodeReader
from tests.e2e.fakegpu import image
from tests.e2e.install import installing
from tests.kubeapi.client import Client, Object, wait_for

STATE = "/usr/local/vgpu/state"
USED = "hami_vgpu_memory_used_bytes"
UNMANAGED = "hami_gpu_unmanaged_memory_bytes"
TAKEN = 300
SOON_S = 60
AIM_S = 10
SCRAPES = 5
"""At least so many with each trick."""
MOST = 120 * MIB
"""What agent and monitor may have in memory together."""

INSIDE = {
    "cut off": f": > {STATE}",
    "grown to 1 TiB": f"busybox dd if=/dev/null of={STATE} bs=1048576 seek=1048576",
    "garbage": f"busybox dd if=/dev/urandom of={STATE} bs=4096 count=64 conv=notrunc",
    "garbage behind the head": (
        f"busybox dd if=/dev/urandom of={STATE} bs=256 seek=1 count=1000 conv=notrunc"
    ),
    "filled up": f"busybox dd if=/dev/urandom of={STATE} bs=65536 count=64; true",
    "read-only": f"busybox chmod 000 {STATE}",
}


class Scraper:
    """Asks agent and monitor all the time, and looks for what must always be there."""

    def __init__(self, agents: Agents, node: str, check: Callable[[str], None]) -> None:
        self._agents, self._node = agents, node
        self._check = check
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self.took: list[float] = []

    def await_more(self) -> None:
        wanted = len(self.took) + SCRAPES
        wait_for(
            "more scrapes", lambda: len(self.took) >= wanted or self._failure is not None, SOON_S
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            while not self._ended.wait(0.05):
                begin = time.monotonic()
                self._check(self._agents.metrics(self._node, MONITOR))
                self.took.append(time.monotonic() - begin)
                self._agents.metrics(self._node, AGENT)
        except BaseException as error:  # noqa: BLE001 (the root of a thread: raised at the end)
            self._failure = error


def held(agents: Agents, node: str, pod: Object) -> Held:
    root = agents.nodes[node].machine.root
    found = NodeReader(root, layouts.ALL, ask_kubelet=False).read().checkpoint
    (entry,) = (entry for entry in found if entry.pod_uid == pod["metadata"]["uid"])
    return entry


def taking(agents: Agents, where: str, name: str, **more: object) -> Object:
    node = agents.nodes[where]
    commands = ("init", "device 0", f"take alloc a {TAKEN}m")
    main = workloads.container("main", *commands, node=node, memory=1024)
    return workloads.pod(name, main | more, node=node)


def shell(agents: Agents, pod: Object, script: str) -> None:
    meta = pod["metadata"]
    agents.cluster.kubectl(
        "-n", meta["namespace"], "exec", meta["name"], "--", "sh", "-c", f"({script}) 2>&1"
    )


@contextlib.contextmanager
def replaced(path: Path, make: Callable[[Path], None]) -> Iterator[None]:
    """Put something else in a file's place, as whoever owns the folder can."""
    aside = path.with_name("aside")
    path.rename(aside)
    try:
        make(path)
        yield
    finally:
        path.unlink()
        aside.rename(path)


def symlink(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_tricks_with_shared_files_harm_nobody_else(
    agents: Agents,
    client: Client,
    namespace: str,
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pods.create(client, namespace, *(taking(agents, where, each) for each in ("sly", "honest")))
    pod = {each: pods.await_phase(client, namespace, each) for each in ("sly", "honest")}
    for each in pod.values():
        assert workloads.answers(client, each, "main", 3)[2].startswith("ok ")
    before = agents.restarts(where)
    honest = {"namespace": namespace, "pod": "honest"}

    def check(text: str) -> None:
        assert installing._sum(text, USED, honest) == CONTEXT + TAKEN * MIB

    wait_for("its use to be known", lambda: agents.metric(where, USED, **honest), SOON_S)
    (token,) = tokens.of_entry(held(agents, where, pod["sly"]), HAMI)
    node = agents.nodes[where]
    state = node.path(f"{HAMI.states}/{token}/state")
    hamis = node.path(f"/usr/local/vgpu/containers/{pod['sly']['metadata']['uid']}_main")
    with Scraper(agents, where, check) as scraper:
        for script in INSIDE.values():
            shell(agents, pod["sly"], script)
            scraper.await_more()
        for make in (symlink, endless, os.mkfifo):
            with replaced(state, make):
                scraper.await_more()
        # HAMi gives whole folders to containers; where it was before us, they are read as well.
        hamis.mkdir(parents=True)
        try:
            for plant in (symlink, endless, os.mkfifo, garbage, huge):
                plant(hamis / "region.cache")
                scraper.await_more()
                (hamis / "region.cache").unlink()
        finally:
            shutil.rmtree(hamis)
    assert agents.restarts(where) == before
    assert sum(_resident(agents, where, capsys, scraper).values()) <= MOST


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(1 << 20))


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def _resident(
    agents: Agents, where: str, capsys: pytest.CaptureFixture[str], scraper: Scraper
) -> dict[str, int]:
    sizes = {name: agents.memory(where, name) for name in (AGENT, MONITOR)}
    shown = ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in sizes.items())
    with capsys.disabled():
        print(  # noqa: T201 (for the reader)
            f"\n{where}: {len(scraper.took)} scrapes, the longest {max(scraper.took) * 1000:.0f} "
            f"ms; resident: {shown}, together {sum(sizes.values()) / MIB:.1f} MiB (<= 120)"
        )
    return sizes


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_a_process_that_goes_around_the_preload_is_reported(
    agents: Agents,
    client: Client,
    namespace: str,
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has a linker that does not look into /etc/ld.so.preload."""
    script = (
        f"{{ printf '%s\\n' init 'device 0' 'take alloc a {TAKEN}m'; exec sleep 100000; }} | "
        f"{image.UNWATCHED} {image.PROBE}"
    )
    described = taking(agents, where, "around", command=["sh", "-c", script])
    pods.create(client, namespace, described)
    pod = pods.await_phase(client, namespace, "around")
    said = workloads.answers(client, pod, "main", 3)
    begin = time.monotonic()
    assert said[2].startswith("ok ")
    labels = {"namespace": namespace, "pod": "around", "container": "main"}
    wait_for(
        "the metric to show it",
        lambda: agents.metric(where, UNMANAGED, **labels) == CONTEXT + TAKEN * MIB,
        SOON_S,
    )
    shown = time.monotonic() - begin

    def told() -> bool:
        found = workloads.events(client, namespace, "around")
        return any(event["reason"] == "UnmanagedGPUProcess" for event in found)

    wait_for("an event", told, SOON_S)
    with capsys.disabled():
        print(  # noqa: T201 (for the reader; it decides nothing)
            f"\n{where}: a process without the preload is in the metrics after {shown:.1f} s, "
            f"in an event after {time.monotonic() - begin:.1f} s (aim {AIM_S})"
        )
