"""Quotas of a scenario: near what is used and asked for; one MiB decides."""

from __future__ import annotations

from hami.wire import objects
from tests.oracle.reference_quota import quota_of
from tests.oracle.reference_request import read_ask
from tests.oracle.reference_vendor import plain_take
from tests.oracle.scenario_draft import NAMESPACE, Amounts, Draft
from tests.oracle.scenario_incoming_pod import readable


def quotas(draft: Draft, pod: objects.Pod) -> list[objects.ResourceQuota]:
    tape = draft.tape
    if not tape.chance(draft.flavour.quota):
        return []
    return [
        objects.ResourceQuota(
            metadata=objects.Metadata(name=f"quota-{number}", namespace=namespace),
            spec=objects.QuotaSpec(hard=_hard(draft, pod)),
        )
        for number, namespace in enumerate(
            tape.pick(
                (
                    (NAMESPACE,),
                    (NAMESPACE, NAMESPACE),
                    (NAMESPACE, "other", NAMESPACE),
                    ("other",),
                )
            )
        )
    ]


def _hard(draft: Draft, pod: objects.Pod) -> Amounts:
    """Limit to what is used and asked for, give or take, or to something quite different."""
    tape = draft.tape
    nvidia = draft.nvidia
    others = draft.counting_pods()
    used = quota_of(nvidia, NAMESPACE, others, [])
    memory, cores = used.memory_used, used.cores_used
    if readable(pod):
        asks = [read_ask(c, nvidia) for _, c in pod.containers()]
        whole = draft.some_card("NVIDIA")
        for ask in asks:
            if ask is not None and whole is not None:
                memory += ask.count * plain_take(whole.device, ask).memory
                cores += ask.count * ask.cores
    factor = max(nvidia.memory_factor, 1)
    hard: Amounts = {"cpu": "10", "requests.nvidia.com/gpumem": "0"}
    if tape.chance(75):
        exact = memory // factor + tape.pick((0, -1, 1, 1000))
        limit = max(exact, 0) if tape.chance(80) else tape.pick((10**6, 10000, 0, 2048))
        hard[f"limits.{nvidia.memory}"] = _written(draft, limit)
    if tape.chance(50):
        exact = cores + tape.pick((0, -1, 1, 50))
        limit = max(exact, 0) if tape.chance(80) else tape.pick((1000, 100, 0))
        hard[f"limits.{nvidia.cores}"] = _written(draft, limit)
    if tape.chance(10):  # ACME does not enforce quotas
        hard["limits.acme.test/mem"] = "1"
    return hard


def _written(draft: Draft, limit: int) -> str:
    """Write a limit, sometimes with a fraction that is rounded down, or as no number at all."""
    tape = draft.tape
    how = tape.below(100)
    if how >= 96:
        return tape.pick(("plenty", "", "1.5GB"))
    if how >= 80:
        return tape.pick((f"{limit}.5", f"{limit * 1000 + 500}m", f"{limit}.999"))
    return str(limit)
