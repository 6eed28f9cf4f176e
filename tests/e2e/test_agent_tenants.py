"""Tricks of a tenant: corrupt accounts, and work past the limiter."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from hami.wire import annotation_keys, file_layout, pod_marks
from hami.wire.pod_marks import Overuse
from tests.e2e import pods
from tests.e2e.agent import node_side, scraping, workloads
from tests.e2e.agent.fixtures import _diagnosed  # noqa: F401 (for every test)
from tests.e2e.agent.installation import AGENT, LATE, LOCK, MONITOR, Agents
from tests.e2e.agent.scraping import Scraper
from tests.e2e.agent.tolerating import _audited, tolerated  # noqa: F401 (for every test)
from tests.e2e.agent.workloads import CONTEXT, MIB
from tests.e2e.auditor.findings import Kind
from tests.e2e.fakegpu import image
from tests.e2e.fakegpu import pods as gpu_pods
from tests.e2e.fakegpu.nodes import GpuNode
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

LIMIT = 1024
TAKEN = 256
MOST_MEMORY = 128 * MIB
"""Of agent and monitor together; 8 MiB are cryptography, with which the agent verifies grants."""
SOON_S = 60
PAGES = 5
TERABYTE = 2**40
STATE = "/run/hami/share/state"
USED, ALLOWED = "hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes"
OVER, UNMANAGED = "hami_vgpu_over_limit_bytes", "hami_gpu_unmanaged_memory_bytes"
REASONS = ("UnmanagedGPUProcess", "VGPUOverLimit")
UNREADABLE = "hami_monitor_unreadable_regions_total"

#: What a container does with its own accounts.
TRICKS = {
    "cut off": f"busybox truncate -s 0 {STATE}",
    "cut in the middle": f"busybox truncate -s 1000 {STATE}",
    "a terabyte": f"busybox truncate -s {TERABYTE} {STATE}",
    "back and forth": f"for i in $(busybox seq 60); do busybox truncate -s 100 {STATE}; "
    f"busybox truncate -s {TERABYTE} {STATE}; done",
    "noise": f"busybox truncate -s 0 {STATE}; "
    f"busybox dd if=/dev/urandom of={STATE} bs=1k count=1800",
    "filled up": f"busybox dd if=/dev/urandom of={STATE} bs=64k count=64; true",
    "forbidden": f"busybox chmod 000 {STATE}",
}


def _tenant(name: str, node: GpuNode) -> Object:
    commands = ("init", "device 0", f"take alloc a {TAKEN}m")
    described = workloads.container("main", *commands, node=node, memory=LIMIT)
    return workloads.pod(name, described, node=node)


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_spoiled_accounts_harm_nobody_else(
    agents: Agents,
    client: Client,
    namespace: str,
    where: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    node = agents.nodes[where]
    pods.create(client, namespace, _tenant("honest", node), _tenant("sly", node))
    honest, sly = (pods.await_phase(client, namespace, name) for name in ("honest", "sly"))
    right = {USED: CONTEXT + TAKEN * MIB, ALLOWED: LIMIT * MIB}
    labels = {"namespace": namespace, "container": "main"}
    wait_for(
        "the metrics to show both",
        lambda: all(_shown(agents, where, pod=pod, **labels) == right for pod in ("honest", "sly")),
        SOON_S,
    )
    before = agents.restarts(where)

    with Scraper(agents, where) as scraper:
        for trick in TRICKS.values():
            node_side.within(agents, sly, trick)
            scraper.more(PAGES)
        state = node_side.state_file(node, sly)
        with _living_garbage(state):
            scraper.more(PAGES)
        for replace in _replacements(node, honest).values():
            _remove(state)
            replace(state)
            scraper.more(PAGES)
            # What is not known is left out: nobody else's numbers stand there.
            assert scraping.samples(scraper.pages[-1], USED, pod="sly", **labels) == []
        with _hamis_folder(node, sly) as region:
            for plant in _replacements(node, honest).values():
                plant(region)
                scraper.more(PAGES)
                _remove(region)

    assert scraper.errors == []
    assert list(scraper.differing(right, pod="honest", **labels)) == []
    assert agents.restarts(where) == before
    reasons = {one.labels["reason"] for one in scraping.samples(scraper.pages[-1], UNREADABLE)}
    assert {"truncated", "content", "no_file"} <= reasons
    # Who played tricks ends like everybody else, and others start as before.
    gpu_pods.remove(client, sly)
    pods.create(client, namespace, _tenant("next", node))
    pods.await_phase(client, namespace, "next")
    said = workloads.ask(agents, honest, "init", "device 0", "take alloc b 64m")
    assert said[2].startswith("ok")

    memory = {each: agents.memory(where, each) for each in (AGENT, MONITOR)}
    with capsys.disabled():
        print(  # noqa: T201 (for the reader)
            f"\n{where}: {len(scraper.pages)} pages; in memory: "
            + ", ".join(f"{name} {size / MIB:.1f} MiB" for name, size in memory.items())
        )
    assert sum(memory.values()) <= MOST_MEMORY


def _shown(agents: Agents, node: str, **labels: str) -> dict[str, float]:
    found = scraping.values(agents.metrics(node), **labels)
    return {name: found[name] for name in (USED, ALLOWED)}


def _replacements(node: GpuNode, other: Object) -> Mapping[str, Callable[[Path], None]]:
    """Give what may stand in the place of a state file, if somebody got that far."""
    others = "/" + str(node_side.state_file(node, other).relative_to(node.machine.root))
    return {
        "nothing": lambda path: None,
        "a link to another's": lambda path: path.symlink_to(others),
        "a link to nothing": lambda path: path.symlink_to("/nowhere"),
        "a link to what never ends": lambda path: path.symlink_to("/dev/zero"),
        "a pipe": os.mkfifo,
        "a folder": Path.mkdir,
        "noise": _fill,
        "a terabyte": _grow,
    }


def _fill(path: Path) -> None:
    path.write_bytes(os.urandom(MIB // 16))


def _grow(path: Path) -> None:
    path.touch()
    os.truncate(path, TERABYTE)


@contextlib.contextmanager
def _hamis_folder(node: GpuNode, pod: Object) -> Iterator[Path]:
    """Give the place of a region as HAMi's plugin made it, where it was on the node before us.

    Its containers have the whole folder, and may put there what they like.
    """
    folder = node.path(f"/usr/local/vgpu/containers/{pod['metadata']['uid']}_main")
    folder.mkdir()
    try:
        yield folder / "region.cache"
    finally:
        shutil.rmtree(folder)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def _living_garbage(path: Path) -> Iterator[None]:
    """Fill a state with numbers beyond all measure, and hold every slot as a living process does.

    The same file as in the container: any process there could do it.
    """
    head = file_layout.STATE_HEAD.pack(
        magic=file_layout.STATE_MAGIC,
        version=file_layout.STATE_VERSION,
        size=file_layout.STATE.size,
        device_count=2**32 - 1,
        slots_used=2**32 - 1,
    )
    with path.open("r+b") as file:
        file.truncate(file_layout.STATE.size)
        file.write(head + random.Random(8).randbytes(file_layout.STATE.size - len(head)))
        file.flush()
        for slot in range(file_layout.MAX_PROCESSES):
            with contextlib.suppress(BlockingIOError):  # the tenant's own process has it
                place = file_layout.LOCK_BASE + slot
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        yield


# Around the limiter.

#: Ways to start a program without what is preloaded; none takes any rights.
AROUND = {
    # A user namespace of its own lets it mount something over the preload.
    "hides": (
        "exec busybox unshare -Urm sh -c '"
        "busybox mount --bind /dev/null /etc/ld.so.preload && "
        '{ printf "%s\\n" "$@"; exec sleep 100000; } | probe\' sh "$@"'
    ),
    # A linker of its own looks for it elsewhere.
    "relinks": (
        '{ printf "%s\\n" "$@"; exec sleep 100000; } | ' + f"{image.UNWATCHED} {image.PROBE}"
    ),
}


@pytest.mark.parametrize("where", [LATE, LOCK])
def test_a_process_without_the_preload_is_reported(
    agents: Agents,
    namespace: str,
    where: str,
    tolerated: set[Kind],  # noqa: F811 (the fixture)
    capsys: pytest.CaptureFixture[str],
) -> None:
    tolerated.add(Kind.DRIVER_LIMIT)  # that is what it does
    client, node = agents.client, agents.nodes[where]

    def taking(name: str, size: int) -> Object:
        asked = ("init", "device 0", f"take alloc a {size}m")
        return workloads.container(name, *asked, node=node, memory=LIMIT)

    described = [taking(name, 2 * LIMIT) for name in AROUND]
    for each in described:
        each["command"][2] = AROUND[each["name"]]
    body = workloads.pod("three", taking("honest", TAKEN), *described, node=node)
    pods.create(client, namespace, body)
    pod = pods.await_phase(client, namespace, "three")
    for name in AROUND:
        said = workloads.answers(client, pod, name, 3)
        assert said[2].startswith("ok"), said
    begin = time.monotonic()
    taken = CONTEXT + 2 * LIMIT * MIB
    over = dict.fromkeys(AROUND, taken - LIMIT * MIB) | {"honest": 0}
    expected = {UNMANAGED: dict.fromkeys(AROUND, taken), OVER: over}

    def shown() -> dict[str, dict[str, float]]:
        page, labels = agents.metrics(where), {"namespace": namespace, "pod": "three"}
        found = {name: scraping.samples(page, name, **labels) for name in expected}
        return {
            name: {one.labels["container"]: one.value for one in each}
            for name, each in found.items()
        }

    wait_for("the metrics to tell", lambda: shown() == expected, SOON_S)
    metric = time.monotonic() - begin
    wanted = {(reason, name) for reason in REASONS for name in AROUND}
    wait_for("the events to tell", lambda: _events(client, namespace) == wanted, SOON_S)
    event = time.monotonic() - begin
    marked = wait_for("the pod to be marked", lambda: _mark(client, namespace), SOON_S)
    assert (marked.uid, marked.node) == (pod["metadata"]["uid"], where)
    assert (marked.used, marked.limit) == (taken, LIMIT * MIB)
    assert marked.container in AROUND
    mark = time.monotonic() - begin
    with capsys.disabled():
        print(  # noqa: T201 (for the reader; it decides nothing)
            f"\n{where}: processes without the preload were in the metrics after {metric:.1f} s, "
            f"in the events after {event:.1f} s, marked after {mark:.1f} s"
        )


def _mark(client: Client, namespace: str) -> Overuse | None:
    """Read the mark that the monitor wrote with the node's own account."""
    annotations = client.get(pods_path(namespace, "three"))["metadata"]["annotations"]
    text = annotations.get(annotation_keys.OVERUSE)
    return None if text is None else pod_marks.decode_overuse(text)


def _events(client: Client, namespace: str) -> set[tuple[str, str]]:
    """Give which events named which container."""
    return {
        (event["reason"], name)
        for event in workloads.events(client, namespace, "three")
        for name in (*AROUND, "honest")
        if event["reason"] in REASONS and f"container {name} " in event["message"]
    }


def test_a_process_of_the_node_itself_is_reported(agents: Agents, tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        pids = {}
        for where, node in agents.nodes.items():
            assert _unmanaged(agents, node) == 0
            process = stack.enter_context(node.reader(tmp_path / where))
            process.start()
            process.do(f"take alloc a {TAKEN}m")
            pids[where] = process.number("pid")
        for where, node in agents.nodes.items():
            _await_unmanaged(agents, node, CONTEXT + TAKEN * MIB)
            _await_told(agents.client, node, f"process {pids[where]} of")
    for node in agents.nodes.values():
        _await_unmanaged(agents, node, 0)


def _unmanaged(agents: Agents, node: GpuNode) -> float:
    """Give what processes of no pod have of the first card."""
    labels = {"device_uuid": node.card.uuid, "namespace": "", "pod": "", "container": ""}
    (one,) = scraping.samples(agents.metrics(node.name), UNMANAGED, **labels)
    return one.value


def _await_unmanaged(agents: Agents, node: GpuNode, size: int) -> None:
    wait_for(f"{size} bytes to be shown", lambda: _unmanaged(agents, node) == size, SOON_S)


def _await_told(client: Client, node: GpuNode, words: str) -> None:
    def told() -> bool:
        messages = node_side.event_messages(client, node.name, "UnmanagedGPUProcess")
        return any(words in text and node.card.uuid in text for text in messages)

    wait_for("an event of the node to tell", told, SOON_S)
