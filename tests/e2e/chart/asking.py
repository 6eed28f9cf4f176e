"""Pods that request cards as users write them, and their outcome.

A dry run passes admission like any other create and leaves nothing, so most tests only try.
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from typing import Any

from hami.wire import annotation_keys
from tests.e2e import pods
from tests.e2e.cluster import fleet
from tests.e2e.install import nodes, scheduler_config
from tests.kubeapi.client import ApiError, Client, Object, wait_for
from tests.kubeapi.paths import pods as pods_path

DEFAULT_SCHEDULER = "default-scheduler"
WEBHOOK = "vgpu.hami.io"
IN_FORCE_S = 60
SHARE = nodes.limits(1, memory=1000)
SOMEBODY = {"Impersonate-User": "somebody", "Impersonate-Group": "system:masters"}
"""Headers of a user who may do everything, and whom no policy trusts."""


PROFILE: Object = {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}
"""Where no node offers it, a webhook that only falls back gives something else, or refuses."""


def gpu_pod(name: str, asked: Object = SHARE, **spec: Any) -> Object:
    return pods.pod(name, container=asked, **spec)


def for_simulated_nodes(name: str) -> Object:
    """Describe a pod that bears the taint of simulated nodes, and wants one of them."""
    return gpu_pod(name, nodeSelector={fleet.MARK: "true"}, tolerations=[fleet.TOLERATION])


def created(client: Client, namespace: str, body: Object) -> Object:
    return client.create(pods_path(namespace), body)


def tried(
    client: Client, namespace: str, body: Object, headers: Mapping[str, str] | None = None
) -> Object:
    """Give the pod as it would be created; raise ApiError where it would be refused."""
    return client.call(
        "POST", pods_path(namespace), body=body, query={"dryRun": "All"}, headers=headers or {}
    )


def refused(
    client: Client, namespace: str, body: Object, headers: Mapping[str, str] | None = None
) -> ApiError:
    """Give the API server's words; a pod that is admitted is a failure."""
    try:
        made = tried(client, namespace, body, headers)
    except ApiError as error:
        return error
    raise AssertionError(f"admitted: {made}")


def is_ours(pod: Object) -> bool:
    """Whether admission took the pod over."""
    name = pod["spec"]["schedulerName"]
    assert name in {scheduler_config.NAME, DEFAULT_SCHEDULER}, pod
    return bool(name == scheduler_config.NAME)


def could_not_ask(error: ApiError) -> bool:
    """Whether the API server refused because nobody answered it."""
    return (
        error.status == http.client.INTERNAL_SERVER_ERROR
        and "failed calling webhook" in error.message
    )


def answered(client: Client, asked: Object = SHARE) -> bool:
    """Whether admission had its say about a pod; with the policy Ignore its silence is no error."""
    body = gpu_pod("anybody", asked)
    try:
        made = tried(client, "default", body)
    except ApiError as error:
        if could_not_ask(error):
            return False
        if WEBHOOK not in error.message:
            raise
        return True
    return is_ours(made) or annotation_keys.FALLBACK in made["metadata"].get("annotations", {})


def await_admission(client: Client, *, webhook_only: bool) -> None:
    """Wait until pods are seen by admission: API server and kube-proxy hear of it a moment later.

    helm install has ended by then. Whoever creates a pod at once may find that nobody looked at it.
    """
    asked = PROFILE if webhook_only else SHARE
    wait_for("admission to be in force", lambda: answered(client, asked), IN_FORCE_S)
