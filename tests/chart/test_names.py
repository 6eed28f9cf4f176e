"""Names of objects and images: predictable, short enough, and all in one place."""

from __future__ import annotations

import tomllib

import pytest

from tests.chart import rendering
from tests.chart.rendering import Rendered
from tests.e2e.parts import project

#: Service names and values of labels end there.
LONGEST = 63


def images(rendered: Rendered) -> set[str]:
    return {
        container["image"] for pod in rendered.pods() for container in pod["spec"]["containers"]
    }


@pytest.mark.parametrize(
    ("release", "values", "expected"),
    [
        ("hami", {}, "hami"),
        ("my-hami-1", {}, "my-hami-1"),
        ("gpu", {}, "gpu-hami"),
        ("gpu", {"nameOverride": "share"}, "gpu-share"),
        ("gpu", {"fullnameOverride": "cards"}, "cards"),
    ],
)
def test_names_begin_with_the_release(release: str, values: dict[str, str], expected: str) -> None:
    rendered = rendering.render(values, release=release)
    assert rendered.names("Deployment") == [f"{expected}-scheduler"]
    assert rendered.names("DaemonSet") == [f"{expected}-device-plugin"]
    assert rendered.has("Service", f"{expected}-device-plugin-monitor")
    assert rendered.names("MutatingWebhookConfiguration") == [f"{expected}-webhook"]
    assert rendered.has("Service", f"{expected}-scheduler")
    assert rendered.has("Service", f"{expected}-webhook")


@pytest.mark.parametrize("values", [{}, {"webhookOnly.enabled": True}])
def test_the_longest_release_name_makes_no_name_too_long(values: dict[str, bool]) -> None:
    # Helm itself allows no more.
    rendered = rendering.render(values, release="r" * 53)
    kinds = ("DaemonSet", "Deployment", "Job", "Service")
    names = [name for kind in kinds for name in rendered.names(kind)]
    assert max(map(len, names)) <= LONGEST


def test_two_releases_share_no_name() -> None:
    names = [
        {
            (each["kind"], each["metadata"]["name"])
            for each in rendering.render(release=name).objects
        }
        for name in ("first", "second")
    ]
    assert names[0].isdisjoint(names[1])


def test_everything_is_in_one_namespace() -> None:
    rendered = rendering.render({"namespaceOverride": "elsewhere"})
    found = {
        (each["kind"], each["metadata"]["namespace"])
        for each in rendered.objects
        if "namespace" in each["metadata"]
    }
    elsewhere = {kind for kind, namespace in found if namespace != "elsewhere"}
    # kube-scheduler reads there whom to trust; the Role is Kubernetes' own.
    assert elsewhere == {"RoleBinding"}
    for each in rendered.objects:
        for subject in each.get("subjects", []):
            assert subject["namespace"] == "elsewhere"


def test_labels_and_annotations_for_all_are_on_all() -> None:
    rendered = rendering.render({"global.labels": {"a": "b"}, "global.annotations": {"c": "d"}})
    policies = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    for each in rendered.objects:
        assert each["metadata"]["labels"]["a"] == "b"
        if each["kind"] not in policies:
            assert each["metadata"]["annotations"]["c"] == "d"
    for pod in rendered.pods():
        assert pod["metadata"]["labels"]["a"] == "b"
        assert pod["metadata"]["annotations"]["c"] == "d"


def test_by_default_there_are_two_images() -> None:
    assert images(rendering.render(kube="1.33.4")) == {
        "hami:0.1.0",
        "registry.k8s.io/kube-scheduler:v1.33.4",
    }


@pytest.mark.parametrize("values", [{}, {"webhookOnly.enabled": True}])
def test_one_registry_serves_every_image(values: dict[str, bool]) -> None:
    rendered = rendering.render({**values, "global.imageRegistry": "registry.example:5000/gpu/"})
    assert all(image.startswith("registry.example:5000/gpu/") for image in images(rendered))


def test_an_images_own_tag_counts_before_the_one_for_all() -> None:
    own = {"scheduler.extender.image.tag": "v2", "global.imageTag": "v1"}
    assert "hami:v2" in images(rendering.render(own))
    assert "hami:v1" in images(rendering.render({"global.imageTag": "v1"}))


def test_secrets_to_pull_with_are_named_once_however_they_are_written() -> None:
    rendered = rendering.render(
        {
            "global.imagePullSecrets": ["all", {"name": "also"}],
            "scheduler.extender.image.pullSecrets": ["ours", "all"],
            "scheduler.kubeScheduler.image.pullSecrets": ["theirs"],
        }
    )
    scheduler = rendered.pod("Deployment", "hami-scheduler")["spec"]["imagePullSecrets"]
    assert [each["name"] for each in scheduler] == ["all", "also", "ours", "theirs"]
    for job in rendered.names("Job"):
        found = rendered.pod("Job", job)["spec"]["imagePullSecrets"]
        assert [each["name"] for each in found] == ["all", "also", "ours"]


def test_the_chart_has_the_version_of_the_product() -> None:
    product = tomllib.loads((project.ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = (rendering.CHART / "Chart.yaml").read_text()
    assert f"\nversion: {product}\n" in chart
    assert f'\nappVersion: "{product}"\n' in chart
