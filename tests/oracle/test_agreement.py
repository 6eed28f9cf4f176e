"""The product's filter against the slow reference, on random clusters and pods.

Everything a caller can see is compared: the winner, its score to the last bit, the cards of every
container, and the text for every refused node. The last test proves that the scenarios were worth
it: enough placed, enough refused, every reason and every policy often enough.

HAMI_ORACLE_CASES says how many are compared: 500 by default, 8,000 in `make soak`.

On a failure hypothesis prints the smallest scenario it found; its `answer()` is the reference's.
"""

from __future__ import annotations

import collections
import os
import re
import zlib
from typing import TYPE_CHECKING

import hypothesis
import pytest

from hami.vendors import table
from hami.wire import annotation_keys
from tests.oracle import reference, scenarios
from tests.oracle.product import product_answer, product_vendor
from tests.oracle.reference_request import Kind, Request, Weights, numa_bound, read_request
from tests.oracle.sample_vendors import NVIDIA
from tests.oracle.scenario_flavours import FLAVOURS

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = int(os.environ.get("HAMI_ORACLE_CASES", "500"))
EXAMPLES_PER_FLAVOUR = -(-CASES // len(FLAVOURS))
#: Hypothesis may draw the same scenario twice; it counts once.
AT_LEAST = CASES * 5 // 8
SHARE = 0.25
#: Every reason, policy and trait must have been seen so often.
TIMES = max(1, CASES // 160)

REASONS = (
    "CardTypeMismatch", "CardUuidMismatch", "CardTimeSlicingExhausted",
    "CardComputeUnitsExhausted", "CardInsufficientMemory", "CardInsufficientCore",
    "CardNotHealth", "CardCordoned", "NumaNotFit", "ExclusiveDeviceAllocateConflict",
    "CardNotFoundCustomFilterRule", "CardMigTopologyInfeasible",
    "AllocatedCardsInsufficientRequest", "ResourceQuotaNotFit", "ModeNotFit",
    "NodeInsufficientDevice", "Device type not found", "node unregistered",
)  # fmt: skip
POLICIES = (
    "node policy binpack", "node policy spread",
    "gpu policy binpack", "gpu policy spread", "gpu policy mutex", "gpu policy numa",
    "gpu policy topology-aware", "gpu policy chain",
    "numa-bind with binpack", "numa-bind with spread", "numa-bind with chain",
)  # fmt: skip
TRAITS = (
    "several containers", "init container", "sidecar", "two vendors", "weights", "second try",
    "percentage of mixed memory", "nodes tied", "cards tied", "request refused",
    "node policy with blanks", "gpu policy of commas", "fractional quota", "unreadable quota",
    "pod without a valid grant",
)  # fmt: skip


class Tally:
    """What the compared scenarios contained."""

    def __init__(self) -> None:
        self.seen: set[tuple[str, bytes]] = set()
        self.counts: collections.Counter[str] = collections.Counter()

    def add(self, flavour: str, scenario: scenarios.Scenario, answer: reference.Answer) -> None:
        """Count a scenario, unless the same one was compared before."""
        if (flavour, scenario.key) in self.seen:
            return
        self.seen.add((flavour, scenario.key))
        self.counts.update({"compared"} | set(features(scenario, answer)))


def features(scenario: scenarios.Scenario, answer: reference.Answer) -> Iterator[str]:
    """Name what the scenario exercised; policies count only where cards were judged by them."""
    if answer.error is not None:
        yield "request refused"
        return
    if answer.passed_through:
        yield "passed through"
        return
    yield "placed" if answer.winner else "refused"
    for text in answer.failed.values():
        for item in text.split(", "):
            yield re.sub(r"^\d+/\d+ ", "", item)
    if "cards judged" not in answer.traits:
        return
    yield from answer.traits
    wanted = read_request(scenario.pod, scenario.vendors, scenario.node_policy, scenario.gpu_policy)
    assert wanted is not None
    gpu_policy = wanted.gpu_words[0] if len(wanted.gpu_words) == 1 else "chain"
    yield f"node policy {wanted.node_policy}"
    yield f"gpu policy {gpu_policy}"
    if numa_bound(scenario.pod, NVIDIA):
        yield f"numa-bind with {gpu_policy}"
    if wanted.weights != Weights():
        yield "weights"
    yield from container_features(wanted)
    yield from spelling_features(scenario)


def container_features(wanted: Request) -> Iterator[str]:
    asking = [kind for kind, asks in zip(wanted.kinds, wanted.asks, strict=True) if asks]
    if len(asking) > 1:
        yield "several containers"
    if Kind.INIT in asking:
        yield "init container"
    if Kind.SIDECAR in asking:
        yield "sidecar"
    if len({vendor for asks in wanted.asks for vendor in asks}) > 1:
        yield "two vendors"


def spelling_features(scenario: scenarios.Scenario) -> Iterator[str]:
    """Name the ways of writing that are easily read wrongly."""
    policy = scenario.pod.annotation(annotation_keys.NODE_POLICY)
    if policy.strip() and policy != policy.strip():
        yield "node policy with blanks"
    policy = scenario.pod.annotation(annotation_keys.GPU_POLICY)
    if policy and not policy.strip(", "):
        yield "gpu policy of commas" if "," in policy else "blank gpu policy"
    for quota in scenario.quotas:
        if quota.namespace == scenario.pod.namespace:
            for key in (f"limits.{NVIDIA.memory}", f"limits.{NVIDIA.cores}"):
                limit = str(quota.hard.get(key, 0))
                if re.fullmatch(r"[0-9.]+m|[0-9]+\.[0-9]+", limit):
                    yield "fractional quota"
                elif not limit.isdigit():
                    yield "unreadable quota"


@pytest.fixture(scope="module")
def tally() -> Tally:
    return Tally()


def test_the_scenarios_use_the_shipped_row_of_nvidia() -> None:
    ours, shipped = NVIDIA, product_vendor(NVIDIA)
    assert shipped in table.built_in()
    names = shipped.resources
    assert (ours.count, ours.memory) == (names.count, names.memory)
    assert (ours.percentage, ours.cores) == (names.memory_percentage, names.cores)
    for key in (
        "register", "cordon", "allocated", "use_type", "nouse_type", "use_uuid", "nouse_uuid",
        "mode", "numa_bind",
    ):  # fmt: skip
        assert getattr(ours, key) == getattr(shipped.annotations, key)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_product_and_reference_agree(flavour: str, tally: Tally) -> None:
    @hypothesis.seed(zlib.crc32(flavour.encode()))
    @hypothesis.settings(
        max_examples=EXAMPLES_PER_FLAVOUR,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    @hypothesis.given(scenario=scenarios.scenarios(flavour))
    def compare(scenario: scenarios.Scenario) -> None:
        want = scenario.answer()
        got = product_answer(scenario)
        if want.error is not None:  # the words are the product's own
            assert got.error, want.error
        else:
            assert got == want
            assert (got.score or 0.0).hex() == (want.score or 0.0).hex()
        tally.add(flavour, scenario, want)

    compare()


def test_the_scenarios_were_rich_enough(tally: Tally, capsys: pytest.CaptureFixture[str]) -> None:
    counts = tally.counts
    compared = counts["compared"]
    with capsys.disabled():
        print(f"\n{compared} scenarios compared")  # noqa: T201  the counts are the result
        for name, count in counts.most_common():
            print(f"{count:6} {count / compared:6.1%}  {name}")  # noqa: T201  likewise
    assert compared >= AT_LEAST, "run the whole module: the counts come from its other tests"
    assert counts["placed"] >= SHARE * compared
    assert counts["refused"] >= SHARE * compared
    rare = {name: counts[name] for name in (*REASONS, *POLICIES, *TRAITS) if counts[name] < TIMES}
    assert not rare
