"""Every Kubernetes accepts the chart's objects whole; Helm 3 makes the same."""

from __future__ import annotations

import pytest

from tests.chart import rendering
from tests.chart.ways import WAYS
from tests.e2e.chart import api_schema
from tests.e2e.parts import api_schemas, catalogue

#: Kinds of operators; Kubernetes itself has no schema of them.
FOREIGN = ("cert-manager.io/v1", rendering.PROMETHEUS)


@pytest.mark.parametrize("minor", api_schemas.RELEASES)
@pytest.mark.parametrize("way", WAYS)
def test_every_object_fits_the_schema_of_its_kubernetes(way: str, minor: str) -> None:
    version, _ = api_schemas.RELEASES[minor]
    rendered = rendering.render(WAYS[way], kube=version)
    schema = api_schema.of_release(minor)
    ours = [each for each in rendered.objects if each["apiVersion"] not in FOREIGN]
    assert [problem for each in ours for problem in schema.problems(each)] == []


@pytest.mark.parametrize("minor", api_schemas.RELEASES)
def test_the_schemas_know_all_fields_and_no_other(minor: str) -> None:
    version, _ = api_schemas.RELEASES[minor]
    schema = api_schema.of_release(minor)
    deployment = rendering.render(kube=version).one("Deployment", "hami-scheduler")
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["comand"] = []
    container["image"] = 5
    del deployment["spec"]["selector"]
    place = "Deployment.spec.template.spec.containers[0]"
    assert set(schema.problems(deployment)) == {
        "Deployment.spec: selector is missing",
        f"{place}.comand: no such field",
        f"{place}.image: 5 is no string",
    }
    nonsense = {"apiVersion": "apps/v1", "kind": "Deploiment"}
    assert schema.problems(nonsense) == ["apps/v1 Deploiment: no such kind"]


def test_what_a_newer_kubernetes_brought_is_no_field_of_an_older_one() -> None:
    hook = rendering.render(kube="v1.28.15").one("MutatingWebhookConfiguration", "hami-webhook")
    assert api_schema.of_release("1.28").problems(hook) == []
    problems = api_schema.of_release("1.25").problems(hook)
    assert problems == ["MutatingWebhookConfiguration.webhooks[0].matchConditions: no such field"]


@pytest.mark.parametrize("way", WAYS)
def test_helm_3_renders_what_helm_4_does(way: str) -> None:
    helm3 = catalogue.provide(catalogue.helm3()) / "helm3"
    # The order of kinds that only operators know differs, and nobody depends on it.
    assert by_name(rendering.render(WAYS[way], helm=helm3)) == by_name(rendering.render(WAYS[way]))


def by_name(rendered: rendering.Rendered) -> dict[tuple[str, str], rendering.Object]:
    return {(each["kind"], each["metadata"]["name"]): each for each in rendered.objects}
