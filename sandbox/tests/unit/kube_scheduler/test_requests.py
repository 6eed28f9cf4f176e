"""Resources that a pod takes on a node."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hami.wire import codec
from hami_sandbox.kube_scheduler.pods import PodResources
from sandbox.tests.unit.kube_scheduler import makers


def asked(**spec: Any) -> dict[str, int]:
    return codec.decode(codec.encode(spec), PodResources, what="spec").requests()


def container(*, always: bool = False, **requests: str | int) -> dict[str, Any]:
    made: dict[str, Any] = {"resources": {"requests": requests}}
    return made | {"restartPolicy": "Always"} if always else made


def test_units() -> None:
    found = asked(containers=[container(cpu="1500m", memory="1Gi"), container(cpu="0.0001")])
    assert found == {"cpu": 1501, "memory": 2**30}


def test_a_limit_is_a_request_where_there_is_none() -> None:
    resources = {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}, "requests": {"cpu": "1"}}
    assert asked(containers=[{"resources": resources}]) == {"cpu": 1000, "nvidia.com/gpu": 1}


def test_init_containers_run_before_and_sidecars_beside() -> None:
    found = asked(
        initContainers=[
            container(cpu=1),
            container(cpu=2, always=True),
            container(cpu=7),
            container(cpu=1, always=True),
        ],
        containers=[container(cpu=3)],
    )
    assert found == {"cpu": 9000}
    assert asked(initContainers=[container(cpu=1)], containers=[container(cpu=3)]) == {"cpu": 3000}


def test_overhead_and_what_the_pod_asks_as_a_whole() -> None:
    found = asked(
        containers=[container(cpu=3, memory=5)],
        overhead={"cpu": "250m"},
        resources={"requests": {"cpu": "4"}},
    )
    assert found == {"cpu": 4250, "memory": 5}


AMOUNTS = st.lists(st.integers(0, 9), max_size=4)


@given(apps=AMOUNTS, sidecars=AMOUNTS, inits=AMOUNTS)
def test_never_less_than_what_runs_at_any_time(
    apps: list[int], sidecars: list[int], inits: list[int]
) -> None:
    found = asked(
        initContainers=[
            *(container(cpu=amount, always=True) for amount in sidecars),
            *(container(cpu=amount) for amount in inits),
        ],
        containers=[container(cpu=amount) for amount in apps],
    )
    beside = sum(sidecars)
    assert found.get("cpu", 0) == 1000 * (beside + max([sum(apps), *inits]))


def test_what_only_extenders_count_is_left_out_but_named() -> None:
    pod = makers.pod(requests={makers.GPU: "1", "cpu": "1"}, ignored={makers.GPU})
    assert pod.needs == {"cpu": 1000}
    assert pod.names == {makers.GPU, "cpu"}
