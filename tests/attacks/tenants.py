"""A container under attack from within, with the driver and the monitor as judges.

The programs are native probes on the stand-in driver. What they ever had of a card is read from the
driver's own record, and a whole monitor watches the node in virtual time.
"""

from __future__ import annotations

import asyncio
import functools
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from hami.kube.client import Client
from hami.monitor import audit
from hami.monitor import main as monitor_main
from hami.monitor.driver import Sampler
from hami.monitor.main import Monitor
from hami.monitor.settings import Settings
from hami.node.nvml import GpuProcess
from hami.node.nvml_cards import Card
from hami.serving import lifetime
from hami.wire import annotation_keys, policy_file
from hami.wire.file_layout import Layout
from hami.wire.shares import Share
from tests import virtual_time
from tests.attacks.attack import REPORTED_WITHIN_S, Report, Result
from tests.integration.monitor.monitors import NODE, Machine
from tests.native.container import CONTEXT, Container, Node, cards
from tests.native.probing import GIB, MIB, Probe
from tests.scripted_api.server import ScriptedApi
from tests.unit.monitor import nodes

T = TypeVar("T")

LIMIT = GIB
POD = "attacker"
OF_THE_DRIVER = "bytes of a card beyond the share, by the driver's own record"
_PIECE = 64 * MIB
#: Pieces until an attacker that nothing holds stops by itself.
_MOST = 40
MOUNTS = ("unshare", "--map-root-user", "--mount")


class Tenant:
    """A pod with one container that has 1 GiB of the first of two cards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        node = Node(folder / "node", cards(2))
        self.container = Container(folder / "c", (LIMIT,), node=node)
        self.machine = Machine(folder / "m", self.container.node.folder)
        self._others: list[Probe] = []

    def close(self) -> None:
        for probe in self._others:
            probe.kill()
        self.container.__exit__(None, None, None)

    # Programs.

    def program(self, *arguments: str, **options: Any) -> Probe:
        """Start a program in the container, with the library as the agent preloads it."""
        return self.container.probe(*arguments, **options)

    def hidden(self) -> Probe:
        """Start a program without the library, as a static one is."""
        probe = self.container.outsider()
        self._others.append(probe)
        return probe

    def run(self, *command: str) -> Probe:
        """Start any command in the container."""
        env = self.container.environment()
        probe = Probe(command, env, self.folder / f"stderr-{len(self._others)}")
        self._others.append(probe)
        return probe

    def needed(self) -> list[str]:
        """Return the variables that the stand-in driver cannot do without."""
        names = ("LD_LIBRARY_PATH", "FAKEGPU_DIR", "FAKEGPU_OWNER", "PATH")
        return [f"{name}={self.container.environment()[name]}" for name in names]

    def preloaded(self) -> tuple[str, ...]:
        """Return the command that starts others with /etc/ld.so.preload as the agent mounts it."""
        library = self.container.library
        mount = f'mount -t tmpfs none /etc && echo "{library}" >/etc/ld.so.preload && exec "$@"'
        return (*MOUNTS, "sh", "-c", mount, "sh")

    def take_all(self, probe: Probe, kind: str = "alloc") -> int:
        """Take memory until it is refused, or until it is far above the share."""
        return probe.fill(kind, _PIECE, _MOST).code

    def fill(self, **options: Any) -> None:
        """Take all that one more program of the container gets."""
        probe = self.program(**options)
        if probe.ask("init").ok and probe.ask("device 0").ok:
            self.take_all(probe)

    def attempt(self, probe: Probe, *lines: str) -> str:
        """Let a program do what may fail; return the first failure of CUDA."""
        answers = [probe.ask(line) for line in lines]
        assert not any(answer.text.startswith("bad") for answer in answers), answers
        return next((answer.text for answer in answers if not answer.ok), "")

    # Judges.

    @property
    def gain(self) -> int:
        """Return the most that was ever taken beyond the share, over all programs and cards."""
        node = self.container.node
        granted = [LIMIT] + [0] * (len(node.cards) - 1)
        peaks = [node.peak(card) for card in range(len(node.cards))]
        return max(peak - share for peak, share in zip(peaks, granted, strict=True))

    def result(self, refusal: str = "", reports: Sequence[Report] = ()) -> Result:
        """Judge what was tried; an attack that used no card at all would prove nothing."""
        node = self.container.node
        assert refusal or max(node.peak(card) for card in range(len(node.cards))) > LIMIT // 2
        return Result(max(self.gain, 0), OF_THE_DRIVER, refusal, tuple(reports))

    def reported(self, *probes: Probe, shares: bool = True) -> Result:
        """Let the node's monitor watch from now on; return what it reports in time.

        Without `shares` the agent has given the pod nothing.
        """
        if shares:
            self.machine.contain(self.container, POD, LIMIT)
        for probe in probes:
            self.machine.place(probe, POD)
        with (
            mock.patch.object(asyncio, "to_thread", _inline),
            mock.patch.object(lifetime, "in_thread", _inline),
        ):
            return self.result(reports=virtual_time.run(self._watched()))

    async def _watched(self) -> list[Report]:
        loop = asyncio.get_running_loop()
        driver = _Driver(self.container)

        def sampler(_root: str, **_options: object) -> Sampler:
            return Sampler("", open_driver=lambda *_: driver, clock=loop.time)

        layout = self.machine.layout
        settings = Settings(
            node_name=NODE,
            hook_path=str(layout.hook_path),
            state_dir=str(layout.state_dir),
            run_dir=str(layout.run_dir),
            proc_dir=str(self.machine.proc),
        )
        async with ScriptedApi() as api, Client(api.access(), user_agent="test") as client:
            api.put(nodes.pod(POD, node=NODE))
            with mock.patch.object(monitor_main, "Sampler", sampler):
                monitor = Monitor(settings, client)
            works = (monitor.pods.informer.run(), monitor.events.run(), monitor.marks.run())
            tasks = [asyncio.create_task(work) for work in works]
            await monitor.pods.informer.wait_synced()
            begin, reports = loop.time(), dict[str, Report]()
            # At worst an audit has ended right before the attack begins.
            await asyncio.sleep(audit.INTERVAL)
            tasks.append(asyncio.create_task(monitor.audit.run()))
            while not _complete(reports) and loop.time() <= begin + 2 * REPORTED_WITHIN_S:
                await asyncio.sleep(0.1)
                for reason in _reported(api):
                    reports.setdefault(reason, Report(reason, loop.time() - begin))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert _complete(reports), reports
            return list(reports.values())


def _reported(api: ScriptedApi) -> Iterator[str]:
    """Yield what is reported of the attacker: reasons of Events, and the mark on its pod."""
    uid = nodes.uid_of(POD)
    for event in api.objects("events"):
        if event["involvedObject"]["uid"] == uid:
            yield event["reason"]
    pod = api.find("pods", POD, "team")
    if pod is not None and annotation_keys.OVERUSE in pod["metadata"]["annotations"]:
        yield annotation_keys.OVERUSE


def _complete(reasons: Collection[str]) -> bool:
    """Return whether there is an event, and the mark by which the scheduler may evict."""
    return annotation_keys.OVERUSE in reasons and len(reasons) > 1


class _Driver:
    """NVML of the node, asked by a process outside of all containers."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._cards = [
            Card(
                uuid=card.uuid,
                index=index,
                minor=index,
                name="NVIDIA H200",
                memory=card.memory,
                numa=0,
                bus_id="",
                mig_enabled=False,
            )
            for index, card in enumerate(container.node.cards)
        ]

    def cards(self) -> tuple[tuple[Card, ...], tuple[()]]:
        return tuple(self._cards), ()

    def memory_used(self, uuid: str) -> int:
        return self._container.physical(self._index(uuid))

    def utilization(self, uuid: str) -> tuple[int, int]:
        return 0, 0

    def processes(self, uuid: str) -> tuple[GpuProcess, ...]:
        with self._container.outsider() as judge:
            found = judge.memory(self._index(uuid)).processes
        return tuple(GpuProcess(pid=pid, memory=memory) for pid, memory in found.items())

    def process_utilization(self, uuid: str, since_us: int, now_us: int) -> tuple[()]:
        return ()

    def reopen(self) -> None: ...
    def close(self) -> None: ...

    def _index(self, uuid: str) -> int:
        return [card.uuid for card in self._cards].index(uuid)


async def _inline(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Run what belongs into a thread right here: in virtual time it takes none."""
    return work(*args, **kwargs)


def judged(container: Container, refusal: str = "") -> Result:
    """Judge a container with 1 GiB of its only card, as `Tenant.result` does."""
    peak = container.node.peak()
    assert refusal or peak > LIMIT // 2
    return Result(max(peak - LIMIT, 0), OF_THE_DRIVER, refusal)


@functools.cache
def may_mount() -> bool:
    """Return whether this machine lets us make mount namespaces."""
    return not subprocess.run([*MOUNTS, "true"], check=False, capture_output=True).returncode


def write(path: Path, layout: Layout, at: int = 0, **values: int) -> None:
    """Write fields of a struct that is at an offset of a file; the others stay."""
    with path.open("r+b") as file:
        for name, value in values.items():
            offset, size = layout.places[name]
            file.seek(at + offset)
            file.write(value.to_bytes(size, "little"))


def policy(container: Container, limit: int, *, generation: int) -> bytes:
    """Return a valid policy for the first card."""
    uuid = container.node.cards[0].uuid
    share = Share.from_limits(uuid, memory_bytes=limit, cores=0)
    return policy_file.encode(
        policy_file.Policy(generation=generation, shares=(share,), context_bytes={uuid: CONTEXT})
    )
