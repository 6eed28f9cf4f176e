"""Copied grants, variables without effect, cards of containers without any."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from hami.admission import checks
from hami.wire import annotation_keys
from tests.builders import NVIDIA, VENDORS
from tests.unit.admission import desk, pods
from tests.unit.admission.desk import Desk
from tests.unit.admission.pods import Document, Door, variable

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NODE_LABEL = {annotation_keys.ASSIGNED_NODE: "gpu-7"}
# Annotations that record a grant, an assumed pod or an explanation.
WRITTEN_BY_US = (
    "hami.io/vgpu-node",
    "hami.io/vgpu-time",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-mig-allocations",
    "hami.io/vgpu-resize",
    "hami.io/vgpu-resize-mac",
    "hami.io/vgpu-resized",
    "hami.io/bind-phase",
    "hami.io/bind-time",
    "hami.io/grant-mac",
    "hami.io/explanation",
    "hami.io/scheduler-wake-up",
    "hami.io/overuse",
    "hami.io/start-refused",
)
WRITTEN_BY_USERS = {
    "example.com/owner": "alice",
    "nvidia.com/use-gputype": "A100",
    "nvidia.com/use-gpuuuid": "GPU-1",
    "nvidia.com/vgpu-mode": "hami-core",
    "hami.io/node-scheduler-policy": "spread",
    "hami.io/gpu-scheduler-policy": "binpack",
    "hami.io/trace": "00-1-2-01",
    "gpu-webhook.k8s.io/fallback": "3g.40gb->gpu",
}
REMOVED = "removed from the pod, because only hami writes this: "


def copied(**spec: Any) -> Document:
    """Return a pod that was placed, as tools write it again: without its UID and status."""
    grant = dict.fromkeys(WRITTEN_BY_US, "x") | NODE_LABEL
    return pods.pod(
        pods.container(gpu=1, memory=1000),
        annotations=WRITTEN_BY_USERS | grant,
        labels={"app": "train"} | NODE_LABEL,
        schedulerName="hami-scheduler",
        **spec,
    )


class TestCopiedGrants:
    @pytest.mark.parametrize("key", WRITTEN_BY_US)
    @pytest.mark.parametrize("asked", [{}, {"gpu": 1}])
    @pytest.mark.parametrize("scheduler", ["default-scheduler", "hami-scheduler", "volcano"])
    def test_are_removed_from_every_pod(self, key: str, asked: Any, scheduler: str) -> None:
        document = pods.pod(
            pods.container(**asked), annotations={"a": "b", key: ""}, schedulerName=scheduler
        )
        answer = Door().send(document)
        assert answer.pod["metadata"]["annotations"] == {"a": "b"}
        assert answer.warnings == (f"{REMOVED}{key}",)

    @pytest.mark.parametrize("label", [None, "gpu-7", ""])
    def test_are_removed_as_a_label_as_well(self, label: str | None) -> None:
        labels: Any = {annotation_keys.ASSIGNED_NODE: label, "app": "train"}
        answer = Door().send(pods.pod(pods.container(), labels=labels))
        assert answer.pod["metadata"]["labels"] == {"app": "train"}
        assert answer.warnings == (f"{REMOVED}label {annotation_keys.ASSIGNED_NODE}",)

    def test_the_list_is_the_one_that_the_chart_protects(self) -> None:
        assert set(checks.protected_annotations([NVIDIA])) == set(WRITTEN_BY_US)

    def test_the_device_lists_of_every_vendor_are_removed(self) -> None:
        others = [vendor for vendor in VENDORS if vendor.section != "nvidia"]
        keys = [v.annotations.to_allocate or v.annotations.allocated for v in others]
        assert len(keys) > 5
        document = pods.pod(pods.container(), annotations=dict.fromkeys(keys, "x"))
        answer = Door(others=tuple(others)).send(document)
        assert not answer.pod["metadata"].get("annotations")
        [warning] = answer.warnings
        assert set(warning.removeprefix(REMOVED).split(", ")) == set(keys)

    def test_lose_nothing_that_their_user_wrote(self) -> None:
        answer = Door().send(copied())
        assert answer.pod["metadata"]["annotations"] == WRITTEN_BY_USERS
        assert answer.pod["metadata"]["labels"] == {"app": "train"}
        assert [each["op"] for each in answer.patch] == ["remove"] * (len(WRITTEN_BY_US) + 1)
        [warning] = answer.warnings
        assert all(key in warning for key in WRITTEN_BY_US)

    @pytest.mark.parametrize("kept", ["annotations", "labels"])
    def test_lose_the_node_that_they_were_placed_on(self, kept: str) -> None:
        document = copied(nodeName="gpu-7")
        other = {"annotations": "labels", "labels": "annotations"}[kept]
        del document["metadata"][other]
        answer = Door().send(document)
        assert "nodeName" not in answer.pod["spec"]
        assert answer.warnings[1].startswith("spec.nodeName gpu-7 was removed: it came with")
        assert "write nodeSelector kubernetes.io/hostname" in answer.warnings[1]
        assert len(answer.warnings[1]) <= 256

    def test_do_not_let_a_pod_name_another_node(self) -> None:
        assert "pod has node assigned" in Door().refuses(copied(nodeName="gpu-8"))

    def test_leave_the_node_of_a_pod_without_cards(self) -> None:
        document = copied(nodeName="gpu-7")
        document["spec"]["containers"] = [pods.container()]
        assert Door().passes(document)["spec"]["nodeName"] == "gpu-7"

    def test_are_refused_for_what_any_pod_is_refused_for(self) -> None:
        document = copied()
        document["spec"]["containers"][0]["securityContext"] = {"privileged": True}
        assert "is privileged" in Door().refuses(document)

    def test_are_none_of_the_business_of_the_webhook_alone(self) -> None:
        assert Door.alone().leaves(copied(nodeName="gpu-7"))

    @pytest.mark.parametrize("version", ["v1", "v1beta1"])
    async def test_are_reported_in_either_version(self, version: str) -> None:
        document = copied(nodeName="gpu-7")
        reply = await Desk().ask(desk.review(document, version=version))
        assert reply["allowed"] is True
        assert desk.patched(document, reply)["metadata"]["annotations"] == WRITTEN_BY_USERS
        assert [warning.split(":")[0] for warning in reply["warnings"]] == [
            "removed from the pod, because only hami writes this",
            "spec.nodeName gpu-7 was removed",
        ]

    async def test_of_a_pod_that_exists_are_left_to_the_policy_of_the_api_server(self) -> None:
        question = desk.review(copied(nodeName="gpu-7"), operation="UPDATE")
        reply = await Desk().ask(question)
        assert reply["allowed"] is True
        assert "patch" not in reply


class TestVariablesWithoutEffect:
    def warnings(self, *env: Document, **asked: Any) -> list[str]:
        container = {**pods.container(**(asked or {"gpu": 1, "memory": 1000})), "env": list(env)}
        answer = Door().send(pods.pod(container))
        assert pods.env(answer.pod) == list(env)
        return list(answer.warnings)

    @pytest.mark.parametrize(
        "name",
        [
            VISIBLE,
            "CUDA_DEVICE_MEMORY_LIMIT",
            "CUDA_DEVICE_MEMORY_LIMIT_0",
            "CUDA_DEVICE_MEMORY_LIMIT_15",
            "CUDA_DEVICE_SM_LIMIT",
            "CUDA_DEVICE_SM_LIMIT_3",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE",
            "CUDA_OVERSUBSCRIBE",
            "GPU_CORE_UTILIZATION_POLICY",
        ],
    )
    @pytest.mark.parametrize("value", ["0", "all", "none", "", None])
    @pytest.mark.parametrize("asked", [{"gpu": 1}, {"gpu": 1, "memory": 1000}, {"cores": 10}])
    def test_are_warned_of(self, name: str, value: str | None, asked: Any) -> None:
        [warning] = self.warnings(variable("A", "a"), variable(name, value), **asked)
        assert warning == (
            f"container main: env {name} has no effect: the node sets GPUs and limits; remove it"
        )

    @pytest.mark.parametrize(
        "name",
        [
            "CUDA_DEVICE_ORDER",
            "CUDA_DEVICE_MAX_CONNECTIONS",
            "CUDA_DEVICE_WAITS_ON_EXCEPTION",
            "CUDA_DEVICE_",
            "CUDA_DEVICE",
            "CUDA_DEVICE_MEMORY_LIMIT_",
            "CUDA_DEVICE_MEMORY_LIMIT_x",
            "CUDA_DEVICE_MEMORY_LIMIT_0_X",
            "X_CUDA_DEVICE_SM_LIMIT_0",
            "cuda_device_sm_limit",
            "CUDA_VISIBLE_DEVICES",
            "CUDA_DISABLE_CONTROL",
            "LIBCUDA_LOG_LEVEL",
            "LD_PRELOAD",
            "LD_LIBRARY_PATH",
            "NVIDIA_DRIVER_CAPABILITIES",
            "NVIDIA_REQUIRE_CUDA",
        ],
    )
    def test_are_no_others(self, name: str) -> None:
        assert self.warnings(variable(name, "1"), variable("NVIDIA", None)) == []

    def test_are_named_together_and_once(self) -> None:
        names = [VISIBLE, "CUDA_DEVICE_SM_LIMIT", VISIBLE]
        [warning] = self.warnings(*(variable(name, "0") for name in names))
        assert f"env {VISIBLE}, CUDA_DEVICE_SM_LIMIT has no effect" in warning

    def test_are_named_for_each_container_with_cards(self) -> None:
        env: dict[str, str | None] = {"CUDA_DEVICE_SM_LIMIT": "0"}
        document = pods.pod(
            pods.container("whole", gpu=1, env=env),
            pods.container("none", env=env),
            init=[pods.container("init", gpu=1, memory=1000, env=env)],
        )
        found = [warning.split(":")[0] for warning in Door().send(document).warnings]
        assert found == ["container init", "container whole"]

    def test_are_not_those_that_the_administrator_sets(self) -> None:
        name = "GPU_CORE_UTILIZATION_POLICY"
        document = pods.pod(pods.container(gpu=1, cores=10, env={name: "disable"}))
        answer = Door(nvidia={"gpu_core_policy": "force"}).send(document)
        assert pods.env(answer.pod) == [variable(name, "force")]
        assert answer.warnings == ()

    def test_are_warned_of_after_a_fall_back_to_a_share(self) -> None:
        document = pods.pod(pods.container(mig={"3g.40gb": 1}, env={VISIBLE: "all"}))
        effect, fallback = Door().send(document).warnings
        assert f"env {VISIBLE} has no effect" in effect
        assert "nvidia.com/mig-3g.40gb" in fallback

    @pytest.mark.parametrize("source", ["configMapRef", "secretRef"])
    def test_from_elsewhere_are_left_to_the_node(self, source: str) -> None:
        container = {**pods.container(gpu=1, memory=1000), "envFrom": [{source: {"name": "s"}}]}
        answer = Door().send(pods.pod(container))
        assert (answer.paths, answer.warnings) == (["/spec/schedulerName"], ())


class TestContainersWithoutCards:
    def beside(self, container: Document, **asked: Any) -> Document:
        return pods.pod(pods.container(**(asked or {"gpu": 1, "memory": 1000})), container)

    @pytest.mark.parametrize("value", ["all", "0", "GPU-1", "$(X)", " ", None])
    @pytest.mark.parametrize("asked", [{"gpu": 1}, {"gpu": 1, "memory": 1000}])
    def test_see_none_if_they_name_some(self, value: str | None, asked: Any) -> None:
        cpu = pods.container("cpu", env={"A": "a", VISIBLE: value})
        answer = Door().send(self.beside(cpu, **asked))
        assert pods.env(answer.pod, 1) == [variable("A", "a"), variable(VISIBLE, "none")]
        [warning] = answer.warnings
        assert warning.startswith(f"container cpu: env {VISIBLE} was set to none, because it asks")
        assert warning.endswith("write nvidia.com/gpu into its limits if it needs one")

    @pytest.mark.parametrize("key", ["containers", "initContainers"])
    def test_are_found_wherever_they_are(self, key: str) -> None:
        document = pods.pod(pods.container(gpu=1), init=[pods.container("init")])
        document["spec"][key].append(pods.container("sly", env={VISIBLE: "all"}))
        assert pods.env(Door().passes(document), 1, key=key) == [variable(VISIBLE, "none")]

    @pytest.mark.parametrize("value", ["none", "void", "", ...])
    def test_may_hide_all_cards_from_themselves(self, value: Any) -> None:
        """An empty value is left out of the API server's JSON: only the name comes."""
        env = [{"name": VISIBLE} if value is ... else variable(VISIBLE, value)]
        answer = Door().send(self.beside({**pods.container("cpu"), "env": env}))
        assert pods.env(answer.pod, 1) == env
        assert answer.warnings == ()

    def test_see_none_by_the_last_of_several(self) -> None:
        env = [variable(VISIBLE, "none"), variable(VISIBLE, None)]
        answer = Door().send(self.beside({**pods.container("cpu"), "env": env}))
        assert pods.env(answer.pod, 1) == [variable(VISIBLE, "none"), variable(VISIBLE, "none")]

    @pytest.mark.parametrize(
        ("resources", "spared"),
        [
            ({"limits": {"nvidia.com/mig-1g.10gb": "1"}}, True),
            ({"requests": {"nvidia.com/gpu.shared": "1"}}, True),
            ({"limits": {"nvidia.com/mig-1g.10gb": "0"}}, False),
            ({"limits": {"nvidia.com/gpu": "0"}}, False),
            ({"limits": {"nvidia.com/priority": "1"}}, False),
            ({"limits": {"nvidia.comx/gpu": "1"}}, False),
        ],
    )
    def test_keep_what_another_device_plugin_gives_them(
        self, resources: Document, spared: bool
    ) -> None:
        cpu = {**pods.container("cpu", env={VISIBLE: "all"}), "resources": resources}
        answer = Door(nodes={"a": {"nvidia.com/mig-1g.10gb": "7"}}).send(self.beside(cpu))
        assert pods.env(answer.pod, 1) == [variable(VISIBLE, "all" if spared else "none")]
        assert len(answer.warnings) == (not spared)

    def test_in_a_pod_without_cards_are_left_alone(self) -> None:
        assert Door().leaves(pods.pod(pods.container(env={VISIBLE: "all"})))

    @pytest.mark.parametrize("restart", ["", "Always"])
    def test_may_be_privileged_with_a_warning(self, restart: str) -> None:
        """A user who may create one sees all cards of a node without any in the same pod."""
        set_up = pods.container("set-up", privileged=True, restart=restart)
        document = pods.pod(pods.container(gpu=1, memory=1000), init=[set_up])
        before = copy.deepcopy(document)
        answer = Door().send(document)
        assert answer.pod == before | {"spec": before["spec"] | {"schedulerName": "hami-scheduler"}}
        [warning] = answer.warnings
        assert warning.startswith("container set-up is privileged and asks for no GPU: it sees")
