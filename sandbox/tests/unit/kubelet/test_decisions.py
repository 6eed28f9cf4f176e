"""Decisions: which containers start, and when a pod has ended."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.kubelet import decisions
from hami_sandbox.kubelet.attempts import Attempt
from hami_sandbox.kubelet.decisions import Plan
from sandbox.tests.unit.kubelet.pods import (
    container,
    created,
    exited,
    histories,
    pod,
    running,
    sidecar,
)

ORDER = pod(
    "p",
    container("a"),
    container("b"),
    init=(container("first"), sidecar("proxy"), container("second")),
    restartPolicy="OnFailure",
)


@pytest.mark.parametrize(
    ("attempts", "wanted"),
    [
        ((), ("first",)),
        ((created("first"),), ("first",)),
        ((running("first"),), ()),
        ((exited("first", 1),), ("first",)),
        ((exited("first"),), ("proxy",)),
        ((exited("first"), running("proxy")), ("second",)),
        ((exited("first"), exited("proxy", 1), running("second")), ("proxy",)),
        ((exited("first"), exited("proxy", 1), exited("second", 1)), ("proxy", "second")),
        ((exited("first"), running("proxy"), exited("second")), ("a", "b")),
        ((exited("first"), running("proxy"), exited("second"), running("a")), ("b",)),
        (
            (exited("first"), exited("proxy"), exited("second"), running("a"), exited("b", 2)),
            ("proxy", "b"),
        ),
        # The runtime forgot an init container of a pod that has long been up.
        ((running("proxy"), running("a"), exited("b")), ()),
    ],
)
def test_the_next_containers(attempts: tuple[Attempt, ...], wanted: tuple[str, ...]) -> None:
    assert decisions.plan(ORDER, histories(*attempts)) == Plan(wanted)


@pytest.mark.parametrize(
    ("policy", "code", "restarts"),
    [
        ("Always", 0, True),
        ("Always", 1, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 0, False),
        ("Never", 1, False),
    ],
)
def test_the_restart_policy_decides(policy: str, code: int, restarts: bool) -> None:
    decided = decisions.plan(pod(restartPolicy=policy), histories(exited(code=code)))
    assert decided == (Plan(("main",)) if restarts else Plan(over=True))


def test_an_init_container_that_failed_for_good_ends_the_pod() -> None:
    never = pod(init=(sidecar("proxy"), container("first")), restartPolicy="Never")
    found = histories(running("proxy"), exited("first", 1))
    assert decisions.plan(never, found) == Plan(over=True)
    assert decisions.stopping(never, found) == ("proxy",)


def test_sidecars_end_after_the_others_the_last_one_first() -> None:
    both = pod(init=(sidecar("one"), sidecar("two")))
    found = histories(running("one"), running("two"), running("main"))
    assert decisions.stopping(both, found) == ("main",)
    found = histories(running("one"), running("two"), exited("main"))
    assert decisions.stopping(both, found) == ("two",)
    found = histories(running("one"), exited("two"), exited("main"))
    assert decisions.stopping(both, found) == ("one",)
    assert decisions.stopping(both, histories(exited("one"), exited("main"))) == ()


@given(data=st.data())
def test_a_pod_of_any_shape_comes_up_in_order_and_to_its_end(data: st.DataObject) -> None:
    policy = data.draw(st.sampled_from(["OnFailure", "Never"]))
    kinds = data.draw(st.lists(st.booleans(), max_size=4))
    init = tuple(
        sidecar(f"init{i}") if side else container(f"init{i}") for i, side in enumerate(kinds)
    )
    mains = tuple(container(f"main{i}") for i in range(data.draw(st.integers(1, 3))))
    made = pod("p", *mains, init=init, restartPolicy=policy)
    sidecars = {each["name"] for each in init if each.get("restartPolicy")}
    latest: dict[str, Attempt] = {}
    failures = 0
    for _ in range(200):
        plan = decisions.plan(made, histories(*latest.values()))
        if plan.over:
            break
        for name in plan.start:
            before = latest.get(name)
            assert before is None or before.exited, "started while it runs"
            _check_order(name, init, latest)
            latest[name] = running(name, 0 if before is None else before.attempt + 1)
        ready = [name for name, each in latest.items() if each.running]
        ending = [name for name in ready if name not in sidecars or failures < 5]
        name = data.draw(st.sampled_from(ending)) if ending else ""
        code = data.draw(st.sampled_from([0, 1])) if failures < 5 else 0
        failures += code or name in sidecars
        if name:
            latest[name] = exited(name, code, latest[name].attempt)
    else:
        raise AssertionError("it never ends")
    if policy == "Never":
        assert all(each.attempt == 0 for name, each in latest.items() if name not in sidecars)


def _check_order(name: str, init: tuple[Any, ...], latest: dict[str, Attempt]) -> None:
    """Everything before it in the list is either through or, of sidecars, was up."""
    for each in init:
        if each["name"] == name:
            return
        before = latest[each["name"]]
        assert each.get("restartPolicy") or (before.exited and before.exit_code == 0)
