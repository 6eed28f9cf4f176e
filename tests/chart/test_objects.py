"""Names and labels of everything that the chart makes, for every Kubernetes."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.chart import rendering
from tests.chart.ways import WAYS

#: Roles that every cluster has.
FROM_THE_CLUSTER = (
    "extension-apiserver-authentication-reader",
    "system:kube-scheduler",
    "system:volume-scheduler",
)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("version", rendering.VERSIONS)
def test_no_name_is_given_twice_and_every_name_that_is_used_exists(way: str, version: str) -> None:
    rendered = rendering.render(WAYS[way], kube=version)
    names = [
        (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"])
        for each in rendered.objects
    ]
    assert len(names) == len(set(names))
    for each in rendered.objects:
        assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == rendering.RELEASE

    for pod in rendered.pods():
        assert rendered.has("ServiceAccount", pod["spec"]["serviceAccountName"])
        for volume in pod["spec"].get("volumes", []):
            if "configMap" in volume:
                assert rendered.has("ConfigMap", volume["configMap"]["name"])
    for each in rendered.objects:
        if each["kind"].endswith("Binding") and each["kind"] != "ValidatingAdmissionPolicyBinding":
            ref, [subject] = each["roleRef"], each["subjects"]
            assert rendered.has("ServiceAccount", subject["name"])
            assert rendered.has(ref["kind"], ref["name"]) or ref["name"] in FROM_THE_CLUSTER


@pytest.mark.parametrize("way", WAYS)
def test_two_renders_are_the_same_bytes(way: str) -> None:
    """Rendered twice by Helm itself: a GitOps tool that renders again finds nothing to apply."""
    command = [str(rendering.helm_4()), "template", "hami", str(rendering.CHART), "--values", "-"]
    values = json.dumps(rendering.nested(WAYS[way])).encode()
    first, second = (
        subprocess.run(command, input=values, capture_output=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second
    assert first
