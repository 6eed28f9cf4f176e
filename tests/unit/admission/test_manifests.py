"""Pods as common projects document them pass admission unharmed.

Each file of manifests/ is one pod with the variables, mounts and rights of its project's guide. It
is tried as it is, with whole cards, and as a share of each card.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builders import CORES, GPU, MEMORY
from tests.unit.admission.pods import MIG, Document, Door

FOLDER = Path(__file__).with_name("manifests")
MANIFESTS = sorted(path.stem for path in FOLDER.glob("*.yaml"))
VISIBLE = "NVIDIA_VISIBLE_DEVICES"

#: Pods that ask for no card of ours, or have another scheduler.
LEFT_ALONE = {
    *("dcgm-exporter", "gpu-operator-validator", "kubeflow-mpi-launcher", "kubevirt-passthrough"),
    *("nvidia-mig", "nvidia-time-slicing", "ray-head", "volcano-job"),
}
#: Variables that have no effect under a limit, by manifest and container.
NO_EFFECT = {
    "comfyui": ("comfyui", VISIBLE),
    "frigate": ("frigate", VISIBLE),
    "hami-share": (
        "ubuntu-container",
        (
            "GPU_CORE_UTILIZATION_POLICY, CUDA_OVERSUBSCRIBE, CUDA_DEVICE_MEMORY_LIMIT, "
            "CUDA_DEVICE_SM_LIMIT_0, CUDA_DEVICE_MEMORY_SHARED_CACHE"
        ),
    ),
    "kserve-istio": ("kserve-container", VISIBLE),
    "kubeflow-notebook": ("test-notebook", VISIBLE),
    "nemo-framework": ("pytorch", VISIBLE),
    "nvidia-nim": ("nim-llm", VISIBLE),
    "ollama": ("ollama", VISIBLE),
    "ollama-open-webui": ("ollama", VISIBLE),
    "rapids-notebook": ("rapids-notebook", VISIBLE),
    "stable-diffusion-webui": ("webui", VISIBLE),
    "triton-server": ("triton", VISIBLE),
}
#: Containers without a card that would see all cards: the variable is set to none.
HIDDEN = {"ollama-open-webui": "webui"}
#: Privileged containers without a card.
PRIVILEGED = {
    "github-actions-runner": "dind",
    "gke-gpudirect-tcpx": "tcpx-daemon",
    "jupyterhub-user": "block-cloud-metadata",
}


def read(name: str) -> Document:
    text = (FOLDER / f"{name}.yaml").read_text("utf-8")
    assert text.startswith("# "), "the first line says what it is"
    document: Document = yaml.safe_load(text)
    document["metadata"].setdefault("namespace", "default")
    return document


def containers(document: Document) -> list[Document]:
    spec = document["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def amounts(container: Document) -> dict[str, Any]:
    resources = container.get("resources", {})
    return {**resources.get("requests", {}), **resources.get("limits", {})}


def shared(document: Document) -> Document:
    """Return the pod with 8,000 MiB of each card in place of all of it."""
    result = copy.deepcopy(document)
    for each in containers(result):
        if GPU in amounts(each):
            each["resources"].setdefault("limits", {}).setdefault(MEMORY, "8000")
    return result


def expected(name: str, document: Document) -> Document:
    """Return the pod as it must come through: placed by us, amounts and one variable filled in."""
    result = copy.deepcopy(document)
    if name in LEFT_ALONE:
        return result
    result["spec"]["schedulerName"] = "hami-scheduler"
    for each in containers(result):
        asked = amounts(each)
        if GPU in asked:
            limits = each["resources"].setdefault("limits", {})
            limits.setdefault(GPU, asked[GPU])
            if not {MEMORY, CORES} & asked.keys():
                limits[CORES] = "100"
        if each["name"] == HIDDEN.get(name):
            [variable] = [each for each in each["env"] if each["name"] == VISIBLE]
            variable["value"] = "none"
    return result


def warned(name: str) -> list[str]:
    """Return how the warnings about a pod begin."""
    found = []
    if name in PRIVILEGED:
        found.append(f"container {PRIVILEGED[name]} is privileged and asks for no GPU")
    if name in NO_EFFECT:
        container, variables = NO_EFFECT[name]
        found.append(f"container {container}: env {variables} has no effect")
    if name in HIDDEN:
        found.append(f"container {HIDDEN[name]}: env {VISIBLE} was set to none")
    return found


def test_there_are_at_least_forty() -> None:
    assert len(MANIFESTS) >= 40
    assert {*LEFT_ALONE, *NO_EFFECT, *HIDDEN, *PRIVILEGED} <= set(MANIFESTS)


@pytest.mark.parametrize("form", ["as written", "as a share"])
@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_passes_and_nothing_but_its_request_is_completed(name: str, form: str) -> None:
    document = read(name)
    if form == "as a share":
        document = shared(document)
    answer = Door(nodes={"a": {GPU: "10", f"{MIG}1g.10gb": "7"}}).send(document)
    assert answer.allowed, answer.message
    assert answer.pod == expected(name, document)
    begins = warned(name)
    assert len(answer.warnings) == len(begins), answer.warnings
    for warning, begin in zip(answer.warnings, begins, strict=True):
        assert warning.startswith(begin)
        assert len(warning) <= 256, "the API server cuts it"


@pytest.mark.parametrize("name", sorted(set(MANIFESTS) - LEFT_ALONE))
def test_a_manifest_passes_with_every_setting_of_the_chart(name: str) -> None:
    everything = {"overwrite_env": True, "gpu_core_policy": "force", "runtime_class_name": "nvidia"}
    answer = Door(nvidia=everything).send(shared(read(name)))
    assert answer.allowed, answer.message
    before, after = shared(read(name)), answer.pod
    assert after["spec"]["runtimeClassName"] == "nvidia"
    ours = {"schedulerName", "runtimeClassName", "containers", "initContainers"}
    assert after["metadata"] == before["metadata"]
    assert {**after["spec"], **dict.fromkeys(ours)} == {**before["spec"], **dict.fromkeys(ours)}
    for old, new in zip(containers(before), containers(after), strict=True):
        assert {**new, "env": 0, "resources": 0} == {**old, "env": 0, "resources": 0}
