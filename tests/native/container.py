"""A container as libvgpu sees it: library, policy file and state file.

No container runtime is needed: what matters are the files beside the library, the environment, and
which processes there are. The cards belong to the stand-in driver, which keeps its own account of
what was ever allocated: that, read from outside, is the judge of every limit.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from hami.wire import policy_file, state_file
from hami.wire.shares import Share
from tests.e2e.auditor import peaks
from tests.native import building
from tests.native.probing import GIB, MIB, Probe

CONTEXT = 518 * MIB  # what a context costs on the stand-in's card, as on an H200
#: What a full container may leave unused beside its contexts.
SLACK = 32 * MIB
NO_FLAGS = policy_file.Flag(0)

_KINDS: dict[str, building.Kind] = {"asan": "address", "tsan": "thread"}


@dataclass(frozen=True)
class Build:
    """Where the native programs lie, and what starting them takes."""

    folder: Path
    sanitized: building.Sanitized | None = None

    def preload(self, library: Path) -> str:
        return str(library) if self.sanitized is None else self.sanitized.preload(library)


@cache
def build_in_use() -> Build:
    """Give the build that HAMI_NATIVE_BUILD names: asan, tsan, or (unset) the product itself."""
    name = os.environ.get("HAMI_NATIVE_BUILD", "")
    if not name:
        return Build(building.all_current())
    made = building.sanitized(_KINDS[name])
    return Build(made.folder, made)


#: Whether the programs run under a sanitizer: a few things that these cannot stand are left out.
SANITIZER = os.environ.get("HAMI_NATIVE_BUILD", "")


@dataclass(frozen=True)
class Card:
    uuid: str
    memory: int = 140 * GIB
    context: int = CONTEXT

    @property
    def line(self) -> str:
        fields = {
            "uuid": self.uuid,
            "name": "NVIDIA H200",
            "memory": self.memory,
            "sms": 132,
            "threads": 2048,
            "major": 9,
            "minor": 0,
            "context": self.context,
            "bus": f"0000:{int(self.uuid[4:6], 16):02x}:00.0",
            "numa": 0,
        }
        return "\t".join(f"{key}={value}" for key, value in fields.items())


def cards(count: int, memory: int = 140 * GIB) -> list[Card]:
    """Make cards with UUIDs that are the same in each run."""
    names = (uuid.uuid5(uuid.NAMESPACE_OID, f"card {number}") for number in range(count))
    return [Card(f"GPU-{name}", memory) for name in names]


class Node:
    """The stand-in driver's folder: what all containers and the agent of a machine share."""

    def __init__(self, folder: Path, hardware: Sequence[Card]) -> None:
        self.folder = folder
        self.cards = list(hardware)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "devices").write_text("".join(card.line + "\n" for card in hardware))

    def faults(self, *lines: str) -> None:
        (self.folder / "faults").write_text("".join(line + "\n" for line in lines))

    def peak(self, card: int = 0, owner: str = "") -> int:
        """Give the most that was ever on a card: of one container, or of all together."""
        record = self.folder / peaks.FILE
        found, bad = peaks.read(record.read_text() if record.exists() else "")
        assert not bad
        uuid_of = self.cards[card].uuid
        return max(
            (
                peak.bytes
                for peak in found
                if peak.card == uuid_of and peak.owner == owner and peak.pid == 0
            ),
            default=0,
        )


Limits = Sequence[int]
StateFile = Literal["agent", "none"]


class Container:
    """Processes under one limit; use it in a `with`, at whose end all of them must have been well.

    `limits` are bytes per card, or None for a container without policy folder. `names` are added to
    every process's environment: HAMi's limits, visible devices.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits | None = (GIB,),
        *,
        node: Node | None = None,
        flags: policy_file.Flag = NO_FLAGS,
        context_bytes: int = CONTEXT,
        state: StateFile = "agent",
        library: str = "libvgpu-beside.so",
        names: Mapping[str, str] | None = None,
        build: Build | None = None,
    ) -> None:
        self.folder = folder / "container"
        self.folder.mkdir(parents=True)
        count = 1 if limits is None else len(limits)
        self.node = node or Node(folder / "node", cards(count))
        self.owner = f"{uuid.uuid5(uuid.NAMESPACE_OID, str(folder))}/main"
        self.names = dict(names or {})
        self._build = build or build_in_use()
        self._outer = folder
        self._flags = flags
        self._context_bytes = context_bytes
        self._generation = 0
        self._probes: list[Probe] = []
        self._judge: Probe | None = None
        self.library = self.folder / "libvgpu.so"
        shutil.copy(self._build.folder / library, self.library)
        if state == "agent":
            (self.folder / "state").touch()
        if limits is not None:
            (self.folder / "policy").mkdir()
            self.resize(*limits)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        noises = [probe.noise for probe in self._probes]
        for probe in [*self._probes, *([self._judge] if self._judge else [])]:
            probe.kill()
        found = building.reports(self._reports)
        assert not found, f"the sanitizer found: {found[0]}"
        if kind is None:
            assert not any(noises), "a process under libvgpu wrote to stderr"

    @property
    def state_path(self) -> Path:
        return self.folder / "state"

    @property
    def policy_path(self) -> Path:
        return self.folder / "policy" / "policy"

    @property
    def _reports(self) -> Path:
        return self._outer / "sanitizer"

    def environment(self, *, preload: bool = True) -> dict[str, str]:
        env = {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self._build.folder / "fakegpu"),
            "FAKEGPU_DIR": str(self.node.folder),
        }
        if self._build.sanitized is not None:
            env |= self._build.sanitized.environment(self._reports)
        if preload:
            env["LD_PRELOAD"] = self._build.preload(self.library)
            env["FAKEGPU_OWNER"] = self.owner
            env |= self.names
        return env

    def probe(
        self,
        *arguments: str,
        program: str = "probe",
        names: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
    ) -> Probe:
        """Start a process in the container; `before` is a command that starts it (unshare)."""
        env = self.environment() | dict(names or {})
        preload = env.pop("LD_PRELOAD")
        # Wrappers are no process of the container: only what they start is watched.
        command = [*self._wrapper(), *before, "env", f"LD_PRELOAD={preload}"]
        command += [str(self._build.folder / program), *arguments]
        probe = Probe(command, env, self._noise_path())
        self._probes.append(probe)
        return probe

    def started(self, *arguments: str, device: int = 0, program: str = "probe") -> Probe:
        """Start a process and its context on a card."""
        return self.probe(*arguments, program=program).start(device)

    def outsider(self) -> Probe:
        """Start a process on the same machine that is in no container."""
        command = [*self._wrapper(), str(self._build.folder / "probe")]
        return Probe(command, self.environment(preload=False), self._noise_path())

    def resize(self, *limits: int) -> None:
        """Let the agent write a newer policy: beside the old one, then renamed over it."""
        self._generation += 1
        policy = policy_file.Policy(
            generation=self._generation,
            flags=self._flags,
            shares=tuple(
                Share.from_limits(card.uuid, memory_bytes=limit, cores=0)
                for card, limit in zip(self.node.cards, limits, strict=False)
            ),
            context_bytes={card.uuid: self._context_bytes for card in self.node.cards},
        )
        fresh = self.folder / "policy" / ".policy"
        fresh.write_bytes(policy_file.encode(policy))
        fresh.replace(self.policy_path)

    def physical(self, card: int = 0) -> int:
        """Ask the driver, from outside, how much of a card is taken now."""
        if self._judge is None:
            self._judge = self.outsider()
        return self._judge.memory(card).used

    def peak(self, card: int = 0) -> int:
        """Give the most that the container ever had of a card, by the driver's own record."""
        return self.node.peak(card, self.owner)

    def state(self) -> state_file.State:
        return state_file.decode(self.state_path.read_bytes())

    def used(self, card: int = 0) -> int:
        """Give what libvgpu counts against the limit."""
        return self.state().cards[card].used

    def usage(self, probe: Probe, card: int = 0) -> state_file.ProcessUsage:
        """Give what a process has in libvgpu's books."""
        [entry] = [entry for entry in self.state().processes if entry.pid == probe.pid]
        return entry.usage[card]

    def _wrapper(self) -> tuple[str, ...]:
        return () if self._build.sanitized is None else self._build.sanitized.wrapper

    def _noise_path(self) -> Path:
        return self._outer / f"stderr-{uuid.uuid4().hex}"
