"""Random work of several processes against a model of the counting rules.

After every step the books (state file), the card (the stand-in driver's account) and the model
must agree, and none of them may be above the limit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.container import CONTEXT, SANITIZER, Container
from tests.native.model import PAGE, Handle, Process, pages
from tests.native.probing import GIB, MIB, OUT_OF_MEMORY, Probe

LIMIT = 3 * GIB
PROCESSES = 3
COVER = 32 * MIB  # what a process may keep ready for its pool; and a page for small allocations

sizes = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.sampled_from([MIB, MIB + 1, 2 * MIB, 2 * MIB + 1]),
    st.integers(1, 700 * MIB),
)
actions = st.sampled_from(
    (
        *("alloc", "alloc", "alloc", "pitch", "managed", "async", "vmm", "map", "array"),
        *("free", "free", "unmap", "release", "sync", "context", "die"),
    )
)
steps = st.tuples(st.integers(0, PROCESSES - 1), actions, sizes, st.integers(0, 1 << 30))


class World:
    """The processes, and what the model thinks of them."""

    def __init__(self, box: Container) -> None:
        self.box = box
        self.probes = [box.started() for _ in range(PROCESSES)]
        self.models = [Process() for _ in range(PROCESSES)]
        self.names: list[dict[str, str]] = [{} for _ in range(PROCESSES)]
        self.made = 0

    def step(self, who: int, action: str, size: int, choice: int) -> None:
        perform: dict[str, Callable[[int, int, int], None]] = {
            "free": self.free,
            "map": self.map,
            "unmap": self.unmap,
            "release": self.release,
            "sync": self.sync,
            "context": self.context,
            "die": self.die,
        }
        if action in perform:
            perform[action](who, size, choice)
        else:
            self.take(who, action, size)

    def take(self, who: int, action: str, size: int) -> None:
        probe, model = self.probes[who], self.models[who]
        self.made += 1
        name = f"thing{self.made}"
        line = f"take {action} {name} {size}"
        if action == "vmm":
            size = pages(size)
            line = f"vmm create {name} {size}"
        elif action == "array":  # of more than 1 MiB: those have pages of their own
            size = 2 * MIB + size
            line = f"take array2d {name} {size}"
        before = self.box.physical()
        answer = probe.ask(line)
        if not answer.ok:
            assert answer.code == OUT_OF_MEMORY, f"{line}: {answer.text}"
            assert self.box.physical() <= before  # pools may have been trimmed
            return
        if action in {"alloc", "pitch"}:
            counted = -(-size // 1000) * 1024 if action == "pitch" else size
            model.linear[name] = (answer.numbers[0], counted)
        elif action == "managed":
            model.managed[name] = size
        elif action == "vmm":
            model.physical[name] = Handle(size)
        elif action == "array":
            model.arrays[name] = self.box.physical() - before
        if action != "vmm":
            self.names[who][name] = action

    def free(self, who: int, _size: int, choice: int) -> None:
        names = sorted(self.names[who])
        if not names:
            return
        name = names[choice % len(names)]
        way = "free" if choice % 3 == 0 and self.names[who][name] != "array" else "give"
        self.probes[who].do(f"{way} {name}")
        del self.names[who][name]
        model = self.models[who]
        for table in (model.linear, model.managed, model.arrays):
            table.pop(name, None)

    def map(self, who: int, _size: int, choice: int) -> None:
        model = self.models[who]
        names = sorted(name for name, memory in model.physical.items() if memory.handles)
        if names:
            name = names[choice % len(names)]
            memory = model.physical[name]
            self.probes[who].do(f"vmm map {name}-{memory.mappings} {name}")
            memory.mappings += 1

    def unmap(self, who: int, _size: int, choice: int) -> None:
        model = self.models[who]
        names = sorted(name for name, memory in model.physical.items() if memory.mappings)
        if names:
            name = names[choice % len(names)]
            memory = model.physical[name]
            memory.mappings -= 1
            self.probes[who].do(f"vmm unmap {name}-{memory.mappings}")
            self.probes[who].do(f"vmm unreserve {name}-{memory.mappings}")

    def release(self, who: int, _size: int, choice: int) -> None:
        model = self.models[who]
        names = sorted(name for name, memory in model.physical.items() if memory.handles)
        if names:
            name = names[choice % len(names)]
            self.probes[who].do(f"vmm release {name}")
            model.physical[name].handles = 0

    def sync(self, who: int, _size: int, _choice: int) -> None:
        probe = self.probes[who]
        probe.do("ctx sync")
        assert self.box.usage(probe).pool == probe.number("pool attribute default 5")

    def context(self, who: int, _size: int, _choice: int) -> None:
        model = self.models[who]
        if model.contexts == 2:
            self.probes[who].do("give second")
            model.contexts = 1
        elif self.probes[who].ask("take context second 0").ok:
            model.contexts = 2

    def die(self, who: int, _size: int, choice: int) -> None:
        if choice % 2:
            self.probes[who].kill()
        else:
            self.probes[who].end()
        self.probes[who] = self.box.probe()
        self.models[who], self.names[who] = Process(), {}
        self.probes[who].do("init")
        for other in range(PROCESSES):
            if self.probes[who].ask("device 0").ok:
                break
            if other != who:  # no room for its context: another one makes it
                self.give_all(other)
        self.probes[who].info()  # whoever is shown numbers clears up after the dead

    def give_all(self, who: int) -> None:
        while self.names[who]:
            self.free(who, 0, 1)
        while any(memory.mappings for memory in self.models[who].physical.values()):
            self.unmap(who, 0, 0)
        while any(memory.handles for memory in self.models[who].physical.values()):
            self.release(who, 0, 0)
        if self.models[who].contexts == 2:
            self.context(who, 0, 0)
        self.sync(who, 0, 0)

    def check(self) -> None:
        """Compare books, card and model."""
        books = {entry.pid: entry.usage[0] for entry in self.box.state().processes}
        physical, used = self.box.physical(), self.box.used()
        for probe, model in zip(self.probes, self.models, strict=True):
            model.pool = probe.number("pool attribute default 5")
            usage = books[probe.pid]
            assert usage.linear == model.linear_bytes
            assert usage.managed == model.managed_bytes
            assert usage.vmm == model.vmm_bytes
            assert usage.array == sum(model.arrays.values())
            assert usage.pool >= model.pool  # a pool may shrink unnoticed until somebody waits
            assert usage.overhead == model.overhead
            assert usage.pending <= COVER + PAGE
        assert physical == sum(model.total for model in self.models)
        assert physical <= used <= LIMIT
        assert used == sum(books[probe.pid].total for probe in self.probes)


@settings(
    max_examples=8 if SANITIZER else 25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(work=st.lists(steps, min_size=10, max_size=50))
def test_books_card_and_model_agree(work: list[tuple[int, str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Container(Path(folder), (LIMIT,)) as box:
        world = World(box)
        world.check()
        for step in work:
            world.step(*step)
            world.check()
        assert box.peak() <= LIMIT
        for probe in world.probes:
            probe.end()
        assert box.physical() == 0
        last = box.started()
        assert last.info()[0] == LIMIT - CONTEXT


def test_sum_of_the_living_is_what_counts(tmp_path: Path) -> None:
    """One that dies while others work leaves their accounts as they are."""
    with Container(tmp_path, (LIMIT,)) as box:
        probes = [box.started() for _ in range(3)]
        for number, probe in enumerate(probes, 1):
            probe.do(f"take alloc a {number * 100 * MIB}")
        probes[1].kill()
        living: list[Probe] = [probes[0], probes[2]]
        assert living[0].info()[0] == LIMIT - 2 * CONTEXT - 400 * MIB
        assert [box.usage(probe).linear for probe in living] == [100 * MIB, 300 * MIB]
        assert box.used() == box.physical()
