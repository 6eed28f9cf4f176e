"""Forbidden fields of a pod; each refusal has value, rule and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import CORES, GPU, MEMORY, PERCENT
from tests.unit.admission import pods
from tests.unit.admission.pods import Document, Door


class TestPrivilegedPods:
    @pytest.mark.parametrize("asked", [{"gpu": 1}, {"gpu": 1, "memory": 1000}, {"cores": 10}])
    def test_with_cards_are_refused(self, asked: Any) -> None:
        message = Door().refuses(pods.pod(pods.container(privileged=True, **asked)))
        assert message.startswith("container main is privileged: it would see every GPU")
        assert "remove securityContext.privileged from it, or the GPU from its limits" in message

    @pytest.mark.parametrize("restart", ["", "Always"])
    def test_are_found_in_every_container_with_cards(self, restart: str) -> None:
        sly = pods.container("set-up", gpu=1, privileged=True, restart=restart)
        document = pods.pod(pods.container(gpu=1), init=[pods.container("init"), sly])
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


@pytest.mark.parametrize("odd", [None, {}, {"name": None, "value": "x"}, {"value": None}])
def test_a_variable_without_a_name_is_left_to_the_api_server(odd: Document | None) -> None:
    for asked in ({"gpu": 1}, {"gpu": 1, "memory": 1000}):
        container = pods.container(priority=1, **asked)  # type: ignore[arg-type]  # amounts only
        container["env"] = [odd, {"name": "A", "value": "a"}]
        assert pods.env(Door().passes(pods.pod(container)))[:2] == container["env"]


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
        ["/run/hami", "/run/hami/share/policy", "/var/run/hami/share", "//var/run/./hami/share/x"],
    )
    def test_must_not_lie_over_policy_and_state(self, path: str) -> None:
        message = Door().refuses(self.mounting(path, gpu=1, memory=1000))
        assert message.startswith("container main: volumeMount /")
        assert message.endswith("run/hami); choose another mountPath")

    @pytest.mark.parametrize(
        "path",
        [
            *("/", "/etc", "/usr", "/usr/local", "/usr/local/", "/usr/local/vgpu/.."),
            *("/run", "/var/run", "/run/secrets", "/run/hamix", "/var/run/nvidia", "/x/run/hami"),
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

    @pytest.mark.parametrize("asked", [{"gpu": 1}, {"gpu": 1, "memory": 1000}])
    def test_must_name_no_cards_to_the_runtime(self, asked: Any) -> None:
        for path in ("/all", "/", "/GPU-1", "/../nvidia-container-devices/all"):
            sly = pods.container("sly", mounts=[f"/var/run/nvidia-container-devices{path}"])
            message = Door().refuses(pods.pod(pods.container(**asked), sly))
            assert message.startswith("container sly: volumeMount /var/run/nvidia-container-device")
            assert "would choose other GPUs" in message
            assert message.endswith("remove it")

    def test_without_a_path_are_left_to_the_api_server(self) -> None:
        container = pods.container(gpu=1, memory=1000)
        container["volumeMounts"] = [None, {"name": "v"}, {"name": "v", "mountPath": None}]
        assert Door().send(pods.pod(container)).allowed
