"""Variables of containers: priority, core policy, `none` without a GPU."""

from __future__ import annotations

import pytest

from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door, variable

TASK_PRIORITY = "CUDA_TASK_PRIORITY"
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NONE = {"name": VISIBLE, "value": "none"}


def with_env(container: Document, *env: Document) -> Document:
    return {**container, "env": list(env)}


class TestThePriority:
    def test_becomes_a_variable(self) -> None:
        through = Door().passes(pods.pod(pods.container(gpu=1, priority=1)))
        assert pods.env(through) == [{"name": TASK_PRIORITY, "value": "1"}]

    def test_is_written_as_the_number_it_means(self) -> None:
        through = Door().passes(pods.pod(pods.container(gpu=1, priority="2k")))
        assert pods.env(through) == [{"name": TASK_PRIORITY, "value": "2000"}]

    def test_comes_behind_the_variables_there_are(self) -> None:
        other = {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
        document = pods.pod(with_env(pods.container(gpu=1, priority=1), other))
        through = Door().passes(document)
        assert pods.env(through) == [other, {"name": TASK_PRIORITY, "value": "1"}]

    @pytest.mark.parametrize("value", ["5", "0", "much", None])
    def test_as_a_resource_replaces_the_variable(self, value: str | None) -> None:
        env = [variable("A", "a"), variable(TASK_PRIORITY, value), variable("B", "b")]
        document = pods.pod(with_env(pods.container(gpu=1, priority=1), *env))
        through = Door().passes(document)
        env[1] = {"name": TASK_PRIORITY, "value": "1"}
        assert pods.env(through) == env

    def test_replaces_the_one_variable_of_several_that_counts(self) -> None:
        env = [variable(TASK_PRIORITY, "3"), variable(TASK_PRIORITY, "4")]
        document = pods.pod(with_env(pods.container(gpu=1, priority=1), *env))
        through = Door().passes(document)
        assert [each["value"] for each in pods.env(through)] == ["3", "1"]

    def test_as_a_variable_stays_where_no_resource_is_named(self) -> None:
        document = pods.pod(pods.container(gpu=1, env={TASK_PRIORITY: "5"}))
        assert pods.env(Door().passes(document)) == [variable(TASK_PRIORITY, "5")]

    def test_of_a_container_without_cards_is_ignored(self) -> None:
        document = pods.pod(
            pods.container("share", gpu=1, memory=10), pods.container("none", priority=7)
        )
        assert pods.env(Door().passes(document), 1) == []

    def test_without_a_name_for_it_is_not_read(self) -> None:
        document = pods.pod(pods.container(gpu=1, priority=1))
        assert pods.env(Door(vendor=pods.renamed(priority="")).passes(document)) == []


class TestTheCorePolicy:
    @pytest.mark.parametrize("policy", ["force", "disable"])
    def test_is_set_on_containers_with_cards_only(self, policy: str) -> None:
        door = Door(nvidia={"gpu_core_policy": policy})
        document = pods.pod(pods.container("share", gpu=1, cores=10), pods.container("none"))
        through = door.passes(document)
        assert pods.env(through) == [{"name": CORE_POLICY, "value": policy}]
        assert pods.env(through, 1) == []

    def test_replaces_what_the_pod_says(self) -> None:
        door = Door(nvidia={"gpu_core_policy": "force"})
        document = pods.pod(pods.container(gpu=1, cores=10, env={CORE_POLICY: "disable"}))
        assert pods.env(door.passes(document)) == [{"name": CORE_POLICY, "value": "force"}]

    def test_is_not_written_where_it_is_the_default(self) -> None:
        assert pods.env(Door().passes(pods.pod(pods.container(gpu=1, cores=10)))) == []


class TestOverwriteEnv:
    door = Door(nvidia={"overwrite_env": True})

    def test_hides_the_cards_from_containers_that_ask_for_none(self) -> None:
        document = pods.pod(
            pods.container("none"),
            pods.container("share", gpu=1, memory=10),
            init=[pods.container("init"), pods.container("side", restart="Always")],
        )
        through = self.door.passes(document)
        assert pods.env(through) == [NONE]
        assert pods.env(through, 1) == []
        assert pods.env(through, key="initContainers") == [NONE]
        assert pods.env(through, 1, key="initContainers") == [NONE]

    def test_reaches_pods_without_any_card_and_leaves_them_to_their_scheduler(self) -> None:
        answer = self.door.send(pods.pod(pods.container(privileged=True)))
        assert pods.env(answer.pod) == [NONE]
        assert answer.paths == ["/spec/containers/0/env"]

    @pytest.mark.parametrize("value", ["all", "GPU-1", "void", None])
    def test_replaces_what_the_container_says(self, value: str | None) -> None:
        env = [variable("A", "a"), variable(VISIBLE, value)]
        document = pods.pod(with_env(pods.container(), *env))
        assert pods.env(self.door.passes(document)) == [variable("A", "a"), NONE]

    @pytest.mark.parametrize(
        "container",
        [
            pods.container(mig={"1g.10gb": 1}),
            pods.container(mig={"1g.10gb.me": 1}, parts=["requests"]),
            {"name": "main", "resources": {"limits": {"nvidia.com/gpu.shared": "1"}}},
            pods.container(gpu=0),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("count", ["nvidia.com/gpu", "acme.io/vgpu"])
    def test_spares_containers_that_get_cards_in_another_way(
        self, container: Document, count: str
    ) -> None:
        door = Door(
            nodes={"a": {f"{pods.MIG}1g.10gb": "7"}},
            vendor=pods.renamed(count=count),
            nvidia={"overwrite_env": True},
        )
        assert door.leaves(pods.pod(container))

    def test_spares_containers_with_other_resources_of_the_configured_domain(self) -> None:
        vendor = pods.renamed(count="acme.io/vgpu")
        door = Door(vendor=vendor, nvidia={"overwrite_env": True})
        container = {"name": "main", "resources": {"requests": {"acme.io/vgpu.whole": "1"}}}
        assert door.leaves(pods.pod(container))
        container["resources"] = {"requests": {"acme.iox/vgpu": "1"}}
        assert pods.env(door.passes(pods.pod(container))) == [NONE]

    def test_also_holds_in_pods_that_share_cards(self) -> None:
        document = pods.pod(
            pods.container("share", gpu=1, memory=10),
            pods.container("sly", env={VISIBLE: "all"}),
        )
        assert pods.env(self.door.passes(document), 1) == [NONE]

    def test_is_off_by_default(self) -> None:
        assert Door().leaves(pods.pod(pods.container()))
