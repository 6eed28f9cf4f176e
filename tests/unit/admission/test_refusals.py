"""Forbidden fields of a pod; each refusal has value, rule and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from hami.admission import checks
from hami.wire import annotation_keys
from tests.builders import CORES, GPU, MEMORY, PERCENT, VENDORS
from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
# Annotations that record a grant, an assumed pod or an explanation.
WRITTEN_BY_US = (
    "hami.io/vgpu-node",
    "hami.io/vgpu-time",
    "hami.io/vgpu-devices-to-allocate",
    "hami.io/vgpu-devices-allocated",
    "hami.io/vgpu-mig-allocations",
    "hami.io/vgpu-resize",
    "hami.io/vgpu-resize-mac",
    "hami.io/bind-phase",
    "hami.io/bind-time",
    "hami.io/grant-mac",
    "hami.io/explanation",
    "hami.io/scheduler-wake-up",
    "hami.io/overuse",
    "hami.io/start-refused",
)


class TestForgedGrants:
    @pytest.mark.parametrize("key", WRITTEN_BY_US)
    @pytest.mark.parametrize("asked", [{}, {"gpu": 1}])
    @pytest.mark.parametrize("scheduler", ["default-scheduler", "hami-scheduler", "volcano"])
    def test_are_refused_on_every_pod(self, key: str, asked: Any, scheduler: str) -> None:
        document = pods.pod(
            pods.container(**asked), annotations={"a": "b", key: ""}, schedulerName=scheduler
        )
        message = Door().refuses(document)
        assert message.startswith(f"annotation {key}: only the scheduler writes this")
        assert "remove it from the pod (or from the template that makes it)" in message

    def test_are_all_named(self) -> None:
        document = pods.pod(pods.container(), annotations=dict.fromkeys(WRITTEN_BY_US, "x"))
        message = Door().refuses(document)
        assert all(key in message for key in WRITTEN_BY_US)

    def test_are_found_where_only_the_review_names_the_namespace(self) -> None:
        document = pods.pod(pods.container(), annotations={annotation_keys.GRANT_MAC: "v1:x"})
        del document["metadata"]["namespace"]
        assert "hami.io/grant-mac" in Door().send(document, namespace="team-a").message

    def test_the_list_is_the_one_that_the_chart_protects(self) -> None:
        assert set(checks.protected_annotations(VENDORS)) == set(WRITTEN_BY_US)

    def test_are_refused_as_a_label_as_well(self) -> None:
        document = pods.pod(pods.container(), labels={annotation_keys.ASSIGNED_NODE: "a"})
        message = Door().refuses(document)
        assert message.startswith(f"label {annotation_keys.ASSIGNED_NODE}: only the node agent")
        assert message.endswith("remove it")

    def test_what_users_may_write_is_none(self) -> None:
        document = pods.pod(
            pods.container(gpu=1),
            annotations={
                "nvidia.com/use-gputype": "A100",
                "hami.io/gpu-scheduler-policy": "binpack",
                "hami.io/trace": "00-1-2-01",
                "gpu-webhook.k8s.io/fallback": "3g.40gb->gpu",
            },
        )
        assert Door().passes(document)["metadata"] == document["metadata"]


class TestPrivilegedPods:
    @pytest.mark.parametrize("asked", [{"gpu": 1}, {"gpu": 1, "memory": 1000}, {"cores": 10}])
    def test_with_cards_are_refused(self, asked: Any) -> None:
        message = Door().refuses(pods.pod(pods.container(privileged=True, **asked)))
        assert message.startswith("container main is privileged: it would see every GPU")
        assert "remove securityContext.privileged from it, or the GPU from the pod" in message

    @pytest.mark.parametrize("restart", ["", "Always"])
    def test_are_found_in_every_container(self, restart: str) -> None:
        document = pods.pod(
            pods.container(gpu=1), init=[pods.container("set-up", privileged=True, restart=restart)]
        )
        assert "container set-up is privileged" in Door().refuses(document)

    @pytest.mark.parametrize("context", [None, {}, {"privileged": None}, {"privileged": False}])
    def test_are_only_those_that_say_so(self, context: Document | None) -> None:
        container = {**pods.container(gpu=1), "securityContext": context}
        assert Door().send(pods.pod(container)).allowed

    def test_with_a_mig_instance_are_not_ours_to_refuse(self) -> None:
        door = Door(nodes={"a": {f"{pods.MIG}1g.10gb": "1"}})
        document = pods.pod(pods.container(mig={"1g.10gb": 1}, privileged=True))
        assert door.leaves(document)

    def test_that_fall_back_to_a_card_are_refused(self) -> None:
        document = pods.pod(pods.container(mig={"1g.10gb": 1}, privileged=True))
        assert "is privileged" in Door().refuses(document)


def test_a_pod_with_cards_that_names_its_node_is_refused() -> None:
    message = Door().refuses(pods.pod(pods.container(gpu=1), nodeName="gpu-7"))
    assert message.startswith("pod has node assigned: spec.nodeName gpu-7 would keep")
    assert "write nodeSelector kubernetes.io/hostname instead" in message


@pytest.mark.parametrize(
    ("resource", "value", "rule"),
    [
        (GPU, "1.5", "is not a whole number; ask for a whole number of cards"),
        (GPU, "500m", "is not a whole number"),
        (GPU, "-1", "is less than the smallest value 0"),
        (GPU, "many", "is not a quantity; write a Kubernetes quantity"),
        (GPU, "4294967296", "is more than the largest value 2147483647"),
        (MEMORY, "0.5", "is not a whole number; write it in units of 1 MiB"),
        (MEMORY, "16Gi", "is more than the largest value 2147483647; write it in units of 1 MiB"),
        (MEMORY, "", "is not a quantity"),
        (PERCENT, "101", "is more than the largest value 100; write a whole number from 1 to 100"),
        (PERCENT, "-1", "is less than the smallest value 0; write a whole number from 1 to 100"),
        (PERCENT, "50.5", "is not a whole number"),
        (CORES, "-10", "is less than the smallest value 0"),
        (CORES, "a half", "is not a quantity"),
        (pods.PRIORITY, "-1", "is less than the smallest value 0"),
        (pods.PRIORITY, "0.5", "is not a whole number; write a whole number; 0 is the highest"),
    ],
)
def test_an_amount_that_cannot_be_is_refused(resource: str, value: str, rule: str) -> None:
    container = pods.container(gpu=1)
    container["resources"]["limits"] |= {resource: value}
    message = Door().refuses(pods.pod(container), code=422)
    assert message.startswith(f"container main, {resource}: {value!r} {rule}")
    assert ";" in message


def test_an_amount_that_cannot_be_is_refused_without_a_number_of_cards_too() -> None:
    message = Door().refuses(pods.pod(pods.container(percent=200)), code=422)
    assert message.startswith(f"container main, {PERCENT}: '200' is more than")


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        ("hami.io/device-scoring-weights", "slot=1,core=x,memory=1"),
        ("nvidia.com/use-gpuuuid", ","),
    ],
)
def test_an_impossible_request_is_refused_at_once(annotation: str, value: str) -> None:
    document = pods.pod(pods.container(gpu=1), annotations={annotation: value})
    message = Door().refuses(document, code=422)
    assert annotation in message
    without_cards = pods.pod(pods.container(), annotations={annotation: value})
    assert Door().leaves(without_cards)


def test_too_many_containers_with_cards_are_refused() -> None:
    many = [pods.container(f"c{place}", gpu=1) for place in range(101)]
    message = Door().refuses(pods.pod(*many), code=422)
    assert "'101 containers with cards' is more than the 100 a pod may have; split" in message
    assert Door().send(pods.pod(*many[1:])).allowed


class TestVariablesOfSharePods:
    @pytest.mark.parametrize("value", ["all", "none", "void", "GPU-1", "", None])
    def test_must_not_choose_other_cards(self, value: str | None) -> None:
        document = pods.pod(pods.container(gpu=1, memory=1000, env={VISIBLE: value}))
        message = Door().refuses(document)
        assert message.startswith(f"container main: env {VISIBLE} would choose other GPUs")
        assert message.endswith("remove it, the node agent sets what the container needs")

    @pytest.mark.parametrize(
        "name",
        [
            "CUDA_DEVICE_MEMORY_LIMIT",
            "CUDA_DEVICE_MEMORY_LIMIT_0",
            "CUDA_DEVICE_SM_LIMIT",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE",
            "CUDA_DEVICE_",
        ],
    )
    @pytest.mark.parametrize("value", ["0", None])
    def test_must_not_replace_the_limits(self, name: str, value: str | None) -> None:
        document = pods.pod(pods.container(gpu=1, cores=10, env={"A": "a", name: value}))
        message = Door().refuses(document)
        assert message.startswith(f"container main: env {name} would replace the limits")

    @pytest.mark.parametrize("key", ["containers", "initContainers"])
    def test_are_judged_in_containers_without_cards_too(self, key: str) -> None:
        for name, value in ((VISIBLE, "all"), ("CUDA_DEVICE_SM_LIMIT", "0")):
            sly = pods.container("sly", env={name: value})
            document = pods.pod(pods.container(gpu=1, memory=1000), init=[pods.container("init")])
            document["spec"][key].append(sly)
            assert Door().refuses(document).startswith(f"container sly: env {name} ")

    @pytest.mark.parametrize("value", ["none", "void", ""])
    def test_may_hide_all_cards_from_a_container_without_any(self, value: str) -> None:
        document = pods.pod(
            pods.container(gpu=1, memory=1000), pods.container("cpu", env={VISIBLE: value})
        )
        assert Door().send(document).allowed

    @pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE", "cuda_device_x"])
    def test_may_be_called_otherwise(self, name: str) -> None:
        document = pods.pod(pods.container(gpu=1, memory=1000, env={name: "0"}))
        assert Door().send(document).allowed

    def test_are_free_where_nothing_is_shared(self) -> None:
        env: dict[str, str | None] = {VISIBLE: "all", "CUDA_DEVICE_SM_LIMIT": "0"}
        whole: tuple[Any, ...] = ({"gpu": 1}, {"gpu": 2, "percent": 100}, {"gpu": 1, "cores": 100})
        for asked in whole:
            document = pods.pod(pods.container(env=env, **asked))
            assert Door().send(document).allowed, asked

    def test_are_judged_as_soon_as_one_container_shares(self) -> None:
        document = pods.pod(
            pods.container("whole", gpu=1, env={"CUDA_DEVICE_SM_LIMIT": "0"}),
            pods.container("share", gpu=1, percent=50),
        )
        assert "container whole: env CUDA_DEVICE_SM_LIMIT" in Door().refuses(document)

    def test_are_judged_after_a_fall_back_to_a_share(self) -> None:
        document = pods.pod(pods.container(mig={"3g.40gb": 1}, env={VISIBLE: "all"}))
        assert f"env {VISIBLE}" in Door().refuses(document)


@pytest.mark.parametrize("odd", [None, {}, {"name": None, "value": "x"}, {"value": None}])
def test_a_variable_without_a_name_is_left_to_the_api_server(odd: Document | None) -> None:
    for asked in ({"gpu": 1}, {"gpu": 1, "memory": 1000}):
        container = pods.container(priority=1, **asked)  # type: ignore[arg-type]  # amounts only
        container["env"] = [odd, {"name": "A", "value": "a"}]
        assert pods.env(Door().passes(pods.pod(container)))[:2] == container["env"]


def test_an_empty_variable_as_the_api_server_sends_it_hides_all_cards() -> None:
    """An empty value is left out of the API server's JSON: only the name comes."""
    cpu = {**pods.container("cpu"), "env": [{"name": VISIBLE}]}
    assert Door().send(pods.pod(pods.container(gpu=1, memory=1000), cpu)).allowed


class TestMountsOfSharePods:
    def mounting(self, path: str, **asked: Any) -> Document:
        return pods.pod(pods.container(mounts=["/data", path], **asked))

    @pytest.mark.parametrize(
        "path",
        [
            "/etc/ld.so.preload",
            "/etc/ld.so.preload/",
            "/etc//ld.so.preload",
            "//etc/ld.so.preload",
            "///etc/ld.so.preload",
            "////etc/ld.so.preload",
            "etc/ld.so.preload",
            "./etc/ld.so.preload",
            "/../etc/ld.so.preload",
            "/etc/./x/../ld.so.preload",
            "/etc/ld.so.preload/below",
        ],
    )
    def test_must_not_lie_over_the_preload_file(self, path: str) -> None:
        message = Door().refuses(self.mounting(path, gpu=1, memory=1000))
        assert message.startswith("container main: volumeMount /etc/ld.so.preload")
        assert message.endswith("is mounted (/etc/ld.so.preload); choose another mountPath")

    @pytest.mark.parametrize(
        "path",
        [
            "/usr/local/vgpu",
            "/usr/local/vgpu/",
            "/usr/local/../local/vgpu",
            "//usr/local/vgpu",
            "/usr/local/vgpu/libvgpu.so",
            "/usr/local/vgpu/../vgpu/x",
        ],
    )
    def test_must_not_lie_over_the_library(self, path: str) -> None:
        message = Door().refuses(self.mounting(path, gpu=1, cores=10))
        assert "(/usr/local/vgpu); choose another mountPath" in message

    @pytest.mark.parametrize("path", ["", "/", "/all", "/../nvidia-container-devices/GPU-1"])
    @pytest.mark.parametrize("asked", [{"gpu": 1, "cores": 10}, {"gpu": 1}])
    def test_the_list_of_cards_for_nvidias_runtime_is_refused(
        self, path: str, asked: dict[str, int]
    ) -> None:
        place = f"/var/run/nvidia-container-devices{path}"
        message = Door().refuses(self.mounting(place, **asked))
        assert "would choose other GPUs than the pod was given" in message

    @pytest.mark.parametrize(
        "path",
        [
            *("/", "/etc", "/usr", "/usr/local", "/usr/local/", "/usr/local/vgpu/.."),
            *(
                "/etc/ld.so.preload.d",
                "/usr/local/vgpu2",
                "/usr/local/vgpu-x/y",
                "/x/usr/local/vgpu",
            ),
        ],
    )
    def test_may_lie_above_and_beside(self, path: str) -> None:
        assert Door().send(self.mounting(path, gpu=1, memory=1000)).allowed

    @pytest.mark.parametrize("hook", ["/opt/hami", "/opt/hami/", "//opt//hami"])
    def test_are_judged_by_the_configured_path(self, hook: str) -> None:
        door = Door(hook_path=hook)
        message = door.refuses(self.mounting("/opt/hami/vgpu/x", gpu=1, memory=1000))
        assert "/opt/hami/vgpu/x lies where" in message
        assert door.send(self.mounting("/usr/local/vgpu", gpu=1, memory=1000)).allowed

    def test_are_judged_in_every_container(self) -> None:
        document = pods.pod(
            pods.container(gpu=1, memory=1000),
            init=[pods.container("init", mounts=["/etc/ld.so.preload"])],
        )
        assert Door().refuses(document).startswith("container init: volumeMount")

    def test_are_free_where_nothing_is_shared(self) -> None:
        assert Door().send(self.mounting("/etc/ld.so.preload", gpu=1)).allowed

    def test_without_a_path_are_left_to_the_api_server(self) -> None:
        container = pods.container(gpu=1, memory=1000)
        container["volumeMounts"] = [None, {"name": "v"}, {"name": "v", "mountPath": None}]
        assert Door().send(pods.pod(container)).allowed
