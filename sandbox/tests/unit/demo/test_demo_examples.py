"""Examples are read strictly, and those that we ship are sound."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hami_sandbox.demo import example, main
from hami_sandbox.errors import SandboxError
from hami_sandbox.plan import NodePlan, Plan, cards_text

_CHART = Path(__file__).parents[4] / "charts" / "hami"
_POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c}]}\n"
_HEAD = 'title = "t"\ntext = "what\\nhappens"\npromise = "p"\n'
_STEP = '[[step]]\ntext = "do"\napply = ["pod.yaml"]\n'
_EXPECT = '[[step.expect]]\nkind = "pods"\nname = "a"\n'


def write(folder: Path, text: str, pod: str = _POD, name: str = "01-first") -> Path:
    (folder / name).mkdir()
    (folder / name / "example.toml").write_text(text)
    (folder / name / "pod.yaml").write_text(pod)
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(SandboxError) as caught:
        example.load(folder)
    return str(caught.value)


def test_an_example_is_read(tmp_path: Path) -> None:
    [read] = example.load(write(tmp_path, _HEAD + _STEP + _EXPECT))
    assert (read.name, read.title, read.text) == ("01-first", "t", "what happens")
    [manifest] = read.files["pod.yaml"]
    assert manifest.short == "pod/a"
    assert manifest.path == "/api/v1/namespaces/default/pods/a"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_HEAD, ("example.toml", "step")),
        (_HEAD + "colour = 1\n" + _STEP + _EXPECT, ("colour",)),
        (_HEAD + _STEP, ("step[0]", "expect")),
        (_HEAD + _STEP + _EXPECT.replace("pods", "pots"), ("step[0].expect[0]", "pots")),
        (_HEAD + _STEP + _EXPECT + 'phase = "Runs"\n', ("phase", "Runs")),
        (_HEAD + _STEP + _EXPECT + 'memory = "6000"\n', ("memory", "int")),
        (_HEAD + _STEP + _EXPECT + 'labels = {x = "y"}\n', ("name either one pod or labels",)),
        (_HEAD + _STEP + _EXPECT + "within = 100000\n", ("within", "600")),
        (_HEAD + _STEP.replace("pod.yaml", "../pod.yaml") + _EXPECT, ("no file of this folder",)),
        (_HEAD + _STEP.replace("pod.yaml", "gone.yaml") + _EXPECT, ("gone.yaml", "read")),
        (_HEAD + _STEP.replace("apply", "delete") + _EXPECT, ("pod.yaml", "made by no step")),
        (_HEAD + '[[step]]\ntext = "idle"\n' + _EXPECT, ("does nothing",)),
        (_HEAD + 2 * (_STEP + _EXPECT), ("step[1]", "a second time")),
        (
            _HEAD + _STEP + '[[step.expect]]\nkind = "refused"\nobject = "pod/b"\nsays = ["x"]\n',
            ("pod/b", "take pod/a"),
        ),
        (_HEAD + '[needs]\nmodel = "X1"\n' + _STEP + _EXPECT, ("X1", "H100")),
        ("title = ", ("example.toml", "no TOML")),
    ],
)
def test_a_slip_of_the_pen_is_told_with_its_place(
    tmp_path: Path, text: str, told: tuple[str, ...]
) -> None:
    message = refusal(write(tmp_path, text))
    assert all(part in message for part in (*told, "01-first")), message


@pytest.mark.parametrize(
    ("pod", "told"),
    [
        ("", "has no object"),
        ("- a\n", "is no object"),
        ("a: [\n", "is no YAML"),
        ("apiVersion: v1\nkind: Pot\nmetadata: {name: a}\n", "no kind that the demo applies"),
        ("apiVersion: v1\nkind: Pod\nmetadata: {generateName: a}\n", "has no metadata.name"),
    ],
)
def test_objects_that_cannot_be_applied_are_told(tmp_path: Path, pod: str, told: str) -> None:
    message = refusal(write(tmp_path, _HEAD + _STEP + _EXPECT, pod))
    assert told in message
    assert "pod.yaml" in message


def test_an_example_is_found_by_name_word_and_number(tmp_path: Path) -> None:
    for name in ("01-first", "02-second"):
        write(tmp_path, _HEAD + _STEP + _EXPECT, name=name)
    for asked in ("02-second", "second", "02", "2"):
        assert [each.name for each in example.load(tmp_path, [asked])] == ["02-second"]
    with pytest.raises(SandboxError, match=r"third.*take 01-first, 02-second"):
        example.load(tmp_path, ["third"])


def test_a_folder_without_examples_is_told(tmp_path: Path) -> None:
    assert "has no example" in refusal(tmp_path)
    assert "cannot be read" in refusal(tmp_path / "none")


def test_needs_are_held_against_the_fleet() -> None:
    plan = Plan(nodes=(NodePlan(name="a", cards=(("T4", 2), ("H100", 1))),))
    assert not example.Needs(cards=3).unmet(plan)
    assert not example.Needs(cards=2, model="T4").unmet(plan)
    assert "4 cards" in example.Needs(cards=4).unmet(plan)
    assert "2 H100 cards" in example.Needs(cards=2, model="H100").unmet(plan)
    assert "2 cards of 40000 MiB" in example.Needs(cards=2, memory=40000).unmet(plan)
    assert "it needs 4 cards" in example.Needs(all_cards=4).unmet(plan)


def test_our_examples_can_run_on_our_fleet() -> None:
    shipped = example.load(example.default_folder())
    assert len(shipped) >= 8
    for each in shipped:
        assert not each.needs.unmet(main.plan_fleet([], 0)), each.name


def test_our_examples_name_the_image_of_the_chart() -> None:
    values = yaml.safe_load((_CHART / "values.yaml").read_text())
    version = yaml.safe_load((_CHART / "Chart.yaml").read_text())["appVersion"]
    image = f"{values['scheduler']['extender']['image']['repository']}:{version}"
    for each in example.load(example.default_folder()):
        bodies = b"".join(manifest.body for file in each.files.values() for manifest in file)
        assert bodies.count(b'"image": ') == bodies.count(f'"image": "{image}"'.encode()) > 0


def test_a_fleet_is_as_the_user_names_it() -> None:
    made = main.plan_fleet(["gpu-x=8xH100", "gpu-y=2xT4,1xL4"], 5)
    assert [(node.name, cards_text(node.cards)) for node in made.nodes] == [
        ("gpu-x", "8xH100"),
        ("gpu-y", "2xT4,1xL4"),
    ]
    assert made.simulated == 5
    assert main.plan_fleet([], 0).nodes == main.NODES


def test_pods_whose_containers_are_asked_stay_off_simulated_nodes(tmp_path: Path) -> None:
    [placed] = example.load(write(tmp_path, _HEAD + _STEP + _EXPECT))
    assert not placed.asks_containers
    says = '[[step.expect]]\nkind = "log"\npod = "a"\nsays = ["b"]\n'
    [asked] = example.load(write(tmp_path, _HEAD + _STEP + says, name="02-asked"), ["asked"])
    assert asked.asks_containers
    [manifest] = asked.files["pod.yaml"]
    spec = json.loads(manifest.on_real_nodes().body)["spec"]
    assert spec["affinity"]["nodeAffinity"] == {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "hami.io/sandbox", "operator": "DoesNotExist"}]}
            ]
        }
    }
