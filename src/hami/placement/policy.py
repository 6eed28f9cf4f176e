"""Scheduling policies as users write them, turned into an order of cards.

`hami.io/gpu-scheduler-policy` is one word or a comma chain; together with numa-bind it decides by
which keys cards are sorted. The result is data, a series of `Key`, so that the vector code only
follows it. The rules are in docs/placement.md, section 5. No numpy here.
"""

from __future__ import annotations

import enum

import msgspec

from hami.wire import annotation_keys, errors, text_values

BINPACK, SPREAD, MUTEX, NUMA, TOPOLOGY = "binpack", "spread", "mutex", "numa", "topology-aware"
NODE_POLICIES = (BINPACK, SPREAD)
GPU_POLICIES = (BINPACK, SPREAD, MUTEX, NUMA, TOPOLOGY)


class Key(enum.Enum):
    """A quantity by which cards are compared; the better card comes first."""

    SCORE_HIGH = "score, highest first"
    SCORE_LOW = "score, lowest first"
    USED_LOW = "used shares, lowest first"
    NUMA_HIGH = "NUMA node, highest first"
    NUMA_LOW = "NUMA node, lowest first"

    @property
    def quantity(self) -> str:
        return self.value.partition(",")[0]


_CHAIN_KEYS = {BINPACK: Key.SCORE_HIGH, SPREAD: Key.SCORE_LOW, NUMA: Key.NUMA_HIGH}


class Weights(msgspec.Struct, frozen=True):
    """How much shares (`slot`), cores and memory count in the card score."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class GpuPolicy(msgspec.Struct, frozen=True):
    """A GPU policy as a pod or the scheduler's flags name it."""

    #: Without duplicates.
    words: tuple[str, ...]
    #: Whether it was written as a chain, which may be of one word twice.
    chain: bool = False

    @property
    def idle_only(self) -> bool:
        """Whether only idle cards may be taken."""
        return MUTEX in self.words

    @property
    def wants_links(self) -> bool:
        return TOPOLOGY in self.words

    def order(self, *, numa_bind: bool) -> tuple[Key, ...]:
        """Return the keys of the order of cards, the most important first."""
        word = self.words[0]
        if self.chain or word == NUMA:
            return self._chain(numa_bind=numa_bind)
        if numa_bind:
            binpack = word == BINPACK
            return (Key.NUMA_LOW, Key.SCORE_HIGH) if binpack else (Key.NUMA_HIGH, Key.SCORE_LOW)
        first = {BINPACK: Key.SCORE_HIGH, MUTEX: Key.USED_LOW}.get(word, Key.SCORE_LOW)
        return (first, Key.NUMA_HIGH)

    def _chain(self, *, numa_bind: bool) -> tuple[Key, ...]:
        keys = [_CHAIN_KEYS[word] for word in self.words if word in _CHAIN_KEYS]
        if not keys:
            keys = [Key.SCORE_LOW]
        if numa_bind:
            keys.insert(0, Key.NUMA_HIGH)
        # What is equal by score stays equal by score, whichever way it is sorted.
        decided: dict[str, Key] = {}
        for key in keys:
            decided.setdefault(key.quantity, key)
        return tuple(decided.values())


def parse_node_policy(value: str, default: str) -> str:
    """Read `hami.io/node-scheduler-policy`."""
    word = value.strip() or default
    if word not in NODE_POLICIES:
        raise _unknown(annotation_keys.NODE_POLICY, word, NODE_POLICIES)
    return word


def parse_gpu_policy(value: str, default: str) -> GpuPolicy:
    """Read `hami.io/gpu-scheduler-policy`."""
    words = text_values.comma_list(value) or text_values.comma_list(default)
    for word in words:
        if word not in GPU_POLICIES:
            raise _unknown(annotation_keys.GPU_POLICY, word, GPU_POLICIES)
    if not words:
        raise _unknown(annotation_keys.GPU_POLICY, default, GPU_POLICIES)
    return GpuPolicy(tuple(dict.fromkeys(words)), chain=len(words) > 1)


def _unknown(key: str, word: str, known: tuple[str, ...]) -> errors.WireError:
    return errors.WireError(key, word, "is no policy", f"write one of {', '.join(known)}")


def parse_weights(value: str | None) -> Weights:
    """Read `hami.io/device-scoring-weights`; None is an absent annotation."""
    if value is None:
        return Weights()
    key, remedy = annotation_keys.SCORING_WEIGHTS, "write for example slot=1,core=1,memory=2"
    found: dict[str, int] = {}
    for entry in value.split(","):
        name, equals, number = (part.strip() for part in entry.partition("="))
        if not equals or name not in Weights.__struct_fields__ or name in found:
            rule = "must name slot, core and memory once each"
            raise errors.WireError(key, value, rule, remedy)
        found[name] = text_values.parse_int32(number, what=f"{key}, {name}")
        if found[name] < 0:
            raise errors.WireError(key, value, f"has a negative weight for {name}", remedy)
    if len(found) != len(Weights.__struct_fields__):
        raise errors.WireError(key, value, "must name slot, core and memory once each", remedy)
    if not any(found.values()):
        raise errors.WireError(key, value, "must not be all 0", remedy)
    return Weights(**found)
