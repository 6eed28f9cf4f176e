"""`helm install` on the test cluster, for as long as a test needs the release.

Real Helm, 4 or 3, as the administrator and with the chart's own defaults; only the images are the
test cluster's. The administrator also plays the node agents, so the chart is told to trust him.
At the end it is uninstalled, and nothing may be left. Where that or anything before goes wrong, the
pods, their events and their logs are printed.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import enum
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import pods as e2e_pods
from tests.e2e.chart import asking, leftovers, node_images
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.install.installing import COMPONENT, METRICS_PORT, ROLE_LABEL, _sum
from tests.e2e.parts import catalogue, project
from tests.kubeapi.client import Client, Object, wait_for
from tests.kubeapi.paths import core, group, namespaces, pods

CHART = project.ROOT / "charts" / "hami"
ADMISSION = "admissionregistration.k8s.io/v1"
ADMINISTRATOR = "admin"
SCHEDULER = COMPONENT["app.kubernetes.io/component"]
WEBHOOK = "hami-webhook"
WEBHOOK_ONLY = "webhookOnly.enabled=true"
VALUES = {
    "global": {"imageRegistry": node_images.REGISTRY, "imageTag": node_images.TAG},
    "scheduler": {
        "kubeScheduler": {"image": {"pullPolicy": "Never"}},
        "extender": {"image": {"repository": node_images.REPOSITORY, "pullPolicy": "Never"}},
    },
    "admissionPolicy": {"trustedAccounts": [ADMINISTRATOR]},
}
WAIT_S = 120
GONE_S = 60
LOG_LINES = 40


class Helm(enum.StrEnum):
    FOUR = "helm4"
    THREE = "helm3"

    @property
    def program(self) -> Path:
        if self is Helm.FOUR:
            return catalogue.provide(catalogue.client_tools()) / "helm"
        return catalogue.provide(catalogue.helm3()) / "helm3"


class HelmError(AssertionError):
    """Helm refused, with its own words."""


@dataclasses.dataclass(frozen=True)
class Release:
    cluster: Cluster
    client: Client
    helm: Helm
    name: str
    namespace: str
    folder: Path
    """Of the values file, and of all that Helm keeps."""
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Values beside those that every release has here."""

    @property
    def fullname(self) -> str:
        return self.name if "hami" in self.name else f"{self.name}-hami"

    # What it consists of.

    def pods(self, component: str = SCHEDULER) -> list[Object]:
        """List its pods that are to stay; those that are going count no more."""
        selector = f"app.kubernetes.io/component={component}"
        found = self.client.get(pods(self.namespace), labelSelector=selector)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def leader(self) -> Object:
        """Give the pod that says of itself that it leads; there must be exactly one."""
        (one,) = (pod for pod in self.pods() if role(pod) == "leader")
        return one

    def ready(self, component: str = SCHEDULER) -> list[Object]:
        """List those of its pods that are Ready."""
        return [
            pod
            for pod in self.pods(component)
            for condition in pod["status"].get("conditions", [])
            if (condition["type"], condition["status"]) == ("Ready", "True")
        ]

    def metric(self, pod: Object, name: str, **labels: str) -> float:
        """Add up a metric of `hami` in one pod over all samples that have these labels."""
        server = f"http://{pod['status']['podIP']}:{METRICS_PORT}"
        with Client(server) as client:
            answer = client.request("GET", "/metrics", accept="text/plain")
        return _sum(answer.body.decode(), name, labels)

    def logs(self, pod: Object, container: str) -> str:
        path = pods(self.namespace, pod["metadata"]["name"], "log")
        query = {"container": container, "tailLines": str(LOG_LINES)}
        return self.client.request("GET", path, query=query).body.decode(errors="replace")

    def webhook_configuration(self) -> Object:
        path = group(ADMISSION, "mutatingwebhookconfigurations", name=f"{self.fullname}-webhook")
        return self.client.get(path)

    def secret(self, suffix: str) -> dict[str, bytes]:
        found = self.client.get(core("secrets", self.namespace, f"{self.fullname}-{suffix}"))
        return {key: base64.b64decode(value) for key, value in found["data"].items()}

    def grant_keys(self) -> tuple[bytes, ...]:
        """Return the keys that its schedulers sign with."""
        return tuple(filter(None, self.secret("grant-signing-key").values()))

    # What is done with it.

    def upgrade(self, *values: str) -> None:
        """Upgrade it to these values, in place of those that it was installed with."""
        self.run("upgrade", self.name, str(CHART), *self._waiting(), *self._values(values))

    def install(self, *values: str) -> str:
        """Install it; give what Helm tells the user."""
        return self.run(
            *("install", self.name, str(CHART), "--create-namespace"),
            *(*self._waiting(), *self._values(values)),
        )

    def uninstall(self) -> None:
        self.run("uninstall", self.name, *self._waiting())

    def run(self, *words: str) -> str:
        """Run Helm in the cluster's network, as the administrator."""
        homes = {
            f"HELM_{kind}_HOME": str(self.folder / kind.lower())
            for kind in ("CACHE", "CONFIG", "DATA")
        }
        kubeconfig = {"KUBECONFIG": str(self.cluster.layout.kubeconfig)}
        done = subprocess.run(
            [str(self.helm.program), "--namespace", self.namespace, *words],
            env=os.environ | homes | kubeconfig,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise HelmError(f"{self.helm} {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def _waiting(self) -> Sequence[str]:
        return ("--wait", "--timeout", f"{WAIT_S}s")

    def _values(self, values: Sequence[str]) -> list[str]:
        file = self.folder / "values.yaml"
        file.write_text(yaml.safe_dump({**VALUES, **self.more}))
        return ["--values", str(file), *(word for value in values for word in ("--set", value))]


def role(pod: Object) -> str:
    """Read what a pod of the scheduler says it is: leader or follower."""
    said: str = pod["metadata"].get("labels", {}).get(ROLE_LABEL, "")
    return said


@contextlib.contextmanager
def installed(
    cluster: Cluster,
    *values: str,
    helm: Helm = Helm.FOUR,
    release: str = "hami",
    namespace: str = "hami-system",
    more: Mapping[str, Any] | None = None,
) -> Iterator[Release]:
    """Install the chart with values as Helm's `--set` takes them; uninstall it at the end."""
    node_images.load(cluster)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cluster.joined_network())
        client = stack.enter_context(cluster.client)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        made = Release(cluster, client, helm, release, namespace, folder, more or {})
        before = leftovers.everything(client, namespace)
        if client.find(namespaces(namespace)) is None:
            stack.callback(_remove_namespace, client, namespace)
        try:
            made.install(*values)
            asking.await_admission(client, webhook_only=WEBHOOK_ONLY in values)
            yield made
        except BaseException:
            _print(diagnosis(made))
            with contextlib.suppress(HelmError):
                made.uninstall()
            raise
        made.uninstall()
        _require_nothing_left(made, before)


def find(
    cluster: Cluster, namespace: str = "hami-system", more: Mapping[str, Any] | None = None
) -> Release:
    """Give a release that somebody else installed, and will take away."""
    folder = Path(tempfile.mkdtemp(prefix="hami-release-"))
    return Release(cluster, cluster.client, Helm.FOUR, "hami", namespace, folder, more or {})


def _remove_namespace(client: Client, namespace: str) -> None:
    """Take away the namespace that Helm made, and wait: the next release may want its name."""
    if client.find(namespaces(namespace)) is not None:
        client.delete(namespaces(namespace))
        e2e_pods.await_no_namespace(client, namespace)


def _require_nothing_left(release: Release, before: set[str]) -> None:
    """Wait for what goes by itself (pods that end, slices of services); the rest must be gone."""
    # Every namespace gets these two from Kubernetes, and keeps them.
    usual = {
        f"{one} in {release.namespace}"
        for one in ("ServiceAccount default", "ConfigMap kube-root-ca.crt")
    }
    left: set[str] = set()

    def nothing() -> bool:
        left.clear()
        left.update(leftovers.everything(release.client, release.namespace) - before - usual)
        return not left

    try:
        wait_for(f"nothing to be left of {release.name}", nothing, GONE_S, 0.5)
    except TimeoutError:
        _print(diagnosis(release))
        raise AssertionError(
            f"helm uninstall left {len(left)} objects behind: {', '.join(sorted(left))}"
        ) from None


def diagnosis(release: Release) -> str:
    """Tell all that the cluster knows of the release's pods."""
    parts = []
    for pod in release.client.get(pods(release.namespace))["items"]:
        if not pod["metadata"]["name"].startswith(release.fullname):
            continue
        parts.append(f"--- pod {pod['metadata']['name']}: {yaml.safe_dump(pod['status'])}")
        for container in pod["spec"]["containers"]:
            said = release.logs(pod, container["name"])
            parts.append(f"--- log of {container['name']}:\n{said}")
    for event in release.client.get(core("events", release.namespace))["items"]:
        about = event["involvedObject"]
        parts.append(f"{about['kind']} {about['name']}: {event['reason']}: {event['message']}")
    return "\n".join(parts)


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
