"""The chart's webhook configuration on the sandbox: only pods with cards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chart import rendering
from tests.conformance.hooks import CONFIGURATIONS, Hooks, allow, patching
from tests.kubeapi.client import Client, Object
from tests.kubeapi.paths import pods

GPU = {"nvidia.com/gpu": "1"}


@pytest.fixture(scope="module")
def hooks() -> Iterator[Hooks]:
    server = Hooks("127.0.0.1")
    yield server
    server.close()


@pytest.fixture
def configured(api: Client, hooks: Hooks) -> Iterator[Hooks]:
    """Install the configuration as the chart renders it, with an address that is ours."""
    (found,) = [
        each
        for each in rendering.render().objects
        if each["kind"] == "MutatingWebhookConfiguration"
    ]
    for webhook in found["webhooks"]:
        webhook["clientConfig"] = {"url": hooks.url("/webhook"), "caBundle": hooks.ca}
    made = api.create(CONFIGURATIONS, found)
    hooks.reviews.clear()
    yield hooks
    api.delete(f"{CONFIGURATIONS}/{made['metadata']['name']}")


def create(api: Client, namespace: str, name: str, limits: Object, **labels: str) -> Object:
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    metadata = {"name": name, "labels": labels}
    return api.create(pods(namespace), {"metadata": metadata, "spec": {"containers": [container]}})


def test_only_pods_that_ask_for_cards_are_reviewed(
    api: Client, namespace: str, configured: Hooks
) -> None:
    configured.answers["/webhook"] = lambda _: patching(
        {"op": "replace", "path": "/spec/schedulerName", "value": "hami-scheduler"}
    )
    assert create(api, namespace, "gpu", GPU)["spec"]["schedulerName"] == "hami-scheduler"
    mig = create(api, namespace, "mig", {"nvidia.com/mig-1g.10gb": "1"})
    assert mig["spec"]["schedulerName"] == "hami-scheduler"
    plain = create(api, namespace, "plain", {"cpu": "1"})
    assert plain["spec"]["schedulerName"] == "default-scheduler"
    ignored = create(api, namespace, "ignored", GPU, **{"hami.io/webhook": "ignore"})
    assert ignored["spec"]["schedulerName"] == "default-scheduler"
    assert [each["name"] for each in configured.requests("/webhook")] == ["gpu", "mig"]


def test_annotations_of_the_scheduler_are_reviewed_without_any_card(
    api: Client, namespace: str, configured: Hooks
) -> None:
    configured.answers["/webhook"] = lambda _: allow()
    metadata = {"name": "forged", "annotations": {"hami.io/grant-mac": "v1:x:y"}}
    spec = {"containers": [{"name": "c", "image": "i"}]}
    api.create(pods(namespace), {"metadata": metadata, "spec": spec})
    assert [each["name"] for each in configured.requests("/webhook")] == ["forged"]
