"""Every plant is found and leaves nothing; here in a dict and a folder."""

from __future__ import annotations

import pathlib
from typing import cast

import pytest

from tests.e2e.auditor import auditing, pod_annotations, settling
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.gathering import Sources
from tests.e2e.auditor.plant import PLANTS, Context, Plant
from tests.e2e.auditor.recording import Recorder
from tests.e2e.kubelet_api import pod_resources
from tests.e2e.kubelet_api.pod_resources import PodDevices
from tests.kubeapi.client import Client
from tests.unit.e2e_tools import auditor_world as world
from tests.unit.e2e_tools.test_auditor_gathering import WatchedApi


def _contents(root: pathlib.Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("plant", PLANTS, ids=[plant.name for plant in PLANTS])
def test_a_plant_is_found_and_leaves_nothing(
    plant: Plant, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = WatchedApi()
    api.objects.update(world.api().objects)
    api.version = 2
    root = world.node_root(tmp_path / "root")
    socket = root / str(pod_resources.SOCKET).lstrip("/")
    socket.parent.mkdir(parents=True)
    socket.write_text("")
    row = PodDevices("team", "one", "main", world.RESOURCE, frozenset({"vgpu-000"}))
    monkeypatch.setattr(pod_resources, "list_pod_resources", lambda _: (row,))
    before = _contents(root), dict(api.objects)
    context = Context(
        client=api, roots={world.NODE: root}, namespace="team", pod=world.running_pod()
    )
    with Recorder(cast("Client", api), tmp_path / "t", silence=60.0) as recorder:
        sources = Sources(client=api, roots={world.NODE: root}, recorder=recorder)
        assert auditing.audit(sources.gather()) == []
        undo = plant.plant(context)
        found = settling.settle(sources.gather, patience=0.0, sleep=lambda _: None)
        undo()
        after = settling.settle(sources.gather, patience=0.0, sleep=lambda _: None)
    assert {finding.kind for finding in found} == plant.expected | plant.recorded, found
    assert {finding.kind for finding in after} <= plant.recorded
    assert (_contents(root), api.objects) == before


def test_every_kind_is_planted() -> None:
    planted = {kind for plant in PLANTS for kind in plant.expected | plant.recorded}
    assert planted == set(Kind)
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)


def test_a_plant_that_fails_half_way_takes_back_what_it_did(tmp_path: pathlib.Path) -> None:
    class Refusing(world.FakeApi):
        def create(self, path: str, body: object, **query: str | float) -> dict[str, object]:
            if "/pods" in path:
                raise OSError("no")
            return super().create(path, body, **query)

    api = Refusing()
    context = Context(client=api, roots={}, namespace="team", pod=world.running_pod())
    first = next(plant for plant in PLANTS if Kind.CARD_COUNT in plant.expected)
    with pytest.raises(OSError, match="no"):
        first.plant(context)
    assert api.objects == {}


def test_the_planted_code_has_the_right_shape() -> None:
    """Otherwise the plant of an unbound grant would be found for another reason."""
    (plant,) = (plant for plant in PLANTS if Kind.GRANT_UNBOUND in plant.expected)
    api = world.api()
    context = Context(client=api, roots={}, namespace="team", pod=world.running_pod())
    undo = plant.plant(context)
    codes = [
        thing["metadata"]["annotations"][pod_annotations.MAC]
        for thing in api.objects.values()
        if pod_annotations.MAC in (thing["metadata"].get("annotations") or {})
    ]
    undo()
    assert [pod_annotations.mac_key_id(code) for code in codes] == ["00000000"]
