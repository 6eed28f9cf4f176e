"""Examples run on a scripted cluster: applied, watched, cleaned up."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.kube import errors
from hami_sandbox.demo import example, main
from hami_sandbox.demo.results import Result, Status
from hami_sandbox.demo.running import Progress, Runner
from sandbox.tests.unit.demo.scripted import ScriptedCluster, ScriptedWorld
from sandbox.tests.unit.demo.worlds import grant, node, pod

_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: c}]}\n"


class Stage:
    """An example on disk, and its run."""

    def __init__(self, folder: Path) -> None:
        self.world = ScriptedWorld(ScriptedCluster())
        self.said: list[str] = []
        self.progress = Progress(total=1)
        self._folder = folder / "01-it"
        self._folder.mkdir()
        for name in "ab":
            (self._folder / f"{name}.yaml").write_text(_POD.replace("NAME", name))

    async def run(self, steps: str, *, insist: bool = False) -> Result:
        head = 'title = "t"\ntext = "x"\npromise = "p"\n'
        (self._folder / "example.toml").write_text(head + steps)
        runner = Runner(
            self.world,
            progress=self.progress,
            say=self.said.append,
            clock=lambda: self.world.now,
        )
        examples = example.load(self._folder.parent)
        [result] = await runner.run(examples, main.plan_fleet([], 0), insist=insist)
        return result

    def bind(self, name: str) -> None:
        self.world.pods.put(pod(name, grant("gpu-a-0", 1000)))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


_RUNS = '[[step]]\ntext = "do"\napply = ["a.yaml"]\n[[step.expect]]\nkind = "pods"\nname = "a"\n'
_REFUSED = (
    '[[step]]\ntext = "do"\napply = ["a.yaml"]\n'
    '[[step.expect]]\nkind = "refused"\nobject = "pod/a"\nsays = ["no"]\n'
)


async def test_an_example_that_ends_as_said_is_cleaned_up(stage: Stage) -> None:
    stage.world.moment = lambda: stage.bind("a")
    result = await stage.run(_RUNS)
    assert result.status is Status.AS_EXPECTED
    assert stage.world.api.calls == ["create a", "delete a"]
    assert not len(stage.world.pods)
    assert "    ✓ pod a Running" in stage.said
    assert (stage.progress.done, stage.progress.example) == (1, None)


async def test_what_does_not_happen_in_time_fails_with_what_was_seen(stage: Stage) -> None:
    result = await stage.run(_RUNS + "within = 5\n")
    assert result.status is Status.OTHERWISE
    assert stage.world.now == 5.0
    assert "after 5 s: 0 of 1 Running, 1 Pending" in result.happened()
    assert stage.world.api.calls[-1] == "delete a"


async def test_what_must_hold_is_looked_at_for_so_long(stage: Stage) -> None:
    waits = _RUNS + 'phase = "Pending"\nholds = 3\n'
    result = await stage.run(waits)
    assert result.status is Status.AS_EXPECTED
    assert result.seconds >= 3


async def test_what_does_not_hold_fails(stage: Stage) -> None:
    stage.world.moment = lambda: stage.bind("a")
    result = await stage.run(_RUNS + 'phase = "Pending"\nholds = 3\nwithin = 4\n')
    assert result.status is Status.OTHERWISE


async def test_an_expected_refusal_is_met_at_once(stage: Stage) -> None:
    stage.world.api.refuse["a"] = errors.Forbidden(403, "Forbidden", "no, not today")
    result = await stage.run(_REFUSED)
    assert (result.status, stage.world.now) == (Status.AS_EXPECTED, 0.0)


async def test_a_refusal_that_nobody_expects_ends_the_example(stage: Stage) -> None:
    stage.world.api.refuse["a"] = errors.Forbidden(403, "Forbidden", "no, not today")
    result = await stage.run(_RUNS)
    assert result.status is Status.OTHERWISE
    assert result.happened() == "pod/a was refused: no, not today"


async def test_an_object_that_is_there_is_applied_over(stage: Stage) -> None:
    stage.world.api.refuse["a"] = errors.Conflict(409, "AlreadyExists", "there")
    stage.world.moment = lambda: stage.bind("a")
    await stage.run(_RUNS)
    assert stage.world.api.calls[:2] == ["create a", "apply a"]


async def test_steps_delete_what_earlier_ones_made(stage: Stage) -> None:
    def bind_all() -> None:
        for each in stage.world.pods:
            stage.bind(each.name)

    stage.world.moment = bind_all
    second = (
        '[[step]]\ntext = "swap"\napply = ["b.yaml"]\ndelete = ["pod/a"]\n'
        '[[step.expect]]\nkind = "pods"\nname = "b"\n'
    )
    result = await stage.run(_RUNS + second)
    assert result.status is Status.AS_EXPECTED
    assert stage.world.api.calls[:3] == ["create a", "delete a", "create b"]


async def test_a_card_that_is_given_out_twice_fails_every_example(stage: Stage) -> None:
    stage.world.nodes.put(node("gpu-a", 1500))
    stage.world.pods.put(pod("other", grant("gpu-a-0", 1000)))
    stage.world.moment = lambda: stage.bind("a")
    result = await stage.run(_RUNS)
    assert result.status is Status.OTHERWISE
    assert "2000 of 1500 MiB are granted" in result.happened()


async def test_pods_that_stay_after_the_cleaning_up_fail_the_example(stage: Stage) -> None:
    stage.world.moment = lambda: stage.bind("a")
    stage.world.api.deleted = lambda _: None
    result = await stage.run(_RUNS)
    assert result.status is Status.OTHERWISE
    assert "still there after 60 s: a" in result.happened()


async def test_an_example_may_keep_what_it_made(stage: Stage) -> None:
    stage.world.moment = lambda: stage.bind("a")
    result = await stage.run("keep = true\n" + _RUNS)
    assert result.status is Status.AS_EXPECTED
    assert stage.world.api.calls == ["create a"]


@pytest.mark.parametrize(("insist", "status"), [(False, "skipped"), (True, "otherwise")])
async def test_what_the_fleet_cannot_run_is_skipped_unless_it_was_asked_for(
    stage: Stage, insist: bool, status: str
) -> None:
    result = await stage.run("[needs]\ncards = 16\n" + _RUNS, insist=insist)
    assert result.status.value == status
    assert "a node with 16 cards" in result.happened()
    assert not stage.world.api.calls


async def test_the_first_placed_pod_is_noted(stage: Stage) -> None:
    stage.world.now = 7.0
    stage.world.pods.put(pod("waits", node="", phase="Pending"))
    assert stage.world.first_placed is None
    stage.world.pods.put(pod("waits"))
    stage.world.now = 9.0
    stage.world.pods.put(pod("later"))
    assert stage.world.first_placed == 7.0
