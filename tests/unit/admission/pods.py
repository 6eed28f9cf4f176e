"""Pods for admission, admission with a cluster, and pods as it changes them.

Tests see what the API server sees: a document goes in as JSON, the patch comes out as JSON and is
applied to the document, and the result is looked at. Whatever passes is sent through once more,
as the API server would have completed it, and must not change again.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from hami.admission import decide, mig_fallback
from hami.admission import json_patch as admission_patch
from hami.admission.mig_fallback import End, Mode, Plan
from hami.admission.settings import Context, Rules, unlimited
from hami.cluster.quota import Headroom
from hami.vendors.device_config import NvidiaSettings
from hami.vendors.table import Vendor
from hami.wire import codec, objects
from tests.builders import CORES, GPU, MEMORY, NVIDIA, PERCENT
from tests.mig_offers import FilledOffer
from tests.unit.admission import json_patch

Document = dict[str, Any]

PRIORITY = NVIDIA.resources.priority
MIG = "nvidia.com/mig-"
BOTH = ("limits", "requests")
ONE_GPU_NODE: Mapping[str, Mapping[str, objects.Amount]] = {"a": {GPU: "10"}}

_NAMES = {"gpu": GPU, "memory": MEMORY, "percent": PERCENT, "cores": CORES, "priority": PRIORITY}


def amounts(*, mig: Mapping[str, int] | None = None, **asked: objects.Amount) -> dict[str, str]:
    """Write resources by `gpu=1, memory=1000, mig={"3g.40gb": 1}`."""
    shares = {_NAMES[key]: str(value) for key, value in asked.items()}
    return shares | {f"{MIG}{profile}": str(number) for profile, number in (mig or {}).items()}


def container(
    name: str = "main",
    *,
    parts: Sequence[str] = BOTH,
    mig: Mapping[str, int] | None = None,
    env: Mapping[str, str | None] | None = None,
    mounts: Iterable[str] = (),
    privileged: bool = False,
    restart: str = "",
    **asked: objects.Amount,
) -> Document:
    """Make a container that asks for the same in limits and requests, or in one of the `parts`.

    A variable without a value comes from elsewhere.
    """
    made: Document = {"name": name, "image": "cuda", "resources": {}}
    for part in parts:
        if mig or asked:
            made["resources"][part] = amounts(mig=mig, **asked)
    if env:
        made["env"] = [variable(key, value) for key, value in env.items()]
    if mounts:
        made["volumeMounts"] = [{"name": "v", "mountPath": path} for path in mounts]
    if privileged:
        made["securityContext"] = {"privileged": True}
    if restart:
        made["restartPolicy"] = restart
    return made


def variable(name: str, value: str | None) -> Document:
    if value is not None:
        return {"name": name, "value": value}
    return {"name": name, "valueFrom": {"configMapKeyRef": {"name": "settings", "key": "x"}}}


def pod(
    *containers: Document,
    init: Sequence[Document] = (),
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    namespace: str = "default",
    **spec: Any,
) -> Document:
    metadata: Document = {"name": "p", "namespace": namespace}
    if annotations is not None:
        metadata["annotations"] = dict(annotations)
    if labels is not None:
        metadata["labels"] = dict(labels)
    made = {"schedulerName": "default-scheduler", "containers": list(containers), **spec}
    if init:
        made["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": made}


def read(document: Document) -> objects.Pod:
    return codec.decode(json.dumps(document).encode(), objects.Pod, what="pod")


def defaulted(document: Document) -> Document:
    """Return the pod as the API server completes it: what is limited is requested as well."""
    result = copy.deepcopy(document)
    for key in ("containers", "initContainers"):
        for each in result["spec"].get(key) or ():
            resources = (each or {}).get("resources") or {}
            if resources.get("limits"):
                resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    return result


class Answer(msgspec.Struct, frozen=True):
    """The answer to the API server, and the pod that it makes."""

    allowed: bool
    code: int
    reason: str
    message: str
    warnings: tuple[str, ...]
    patch: list[Document]
    pod: Document

    @property
    def paths(self) -> list[str]:
        return [operation["path"] for operation in self.patch]


class Door:
    """Admission with rules, nodes and quotas of a test's choice."""

    def __init__(
        self,
        *,
        nodes: Mapping[str, Mapping[str, objects.Amount]] = ONE_GPU_NODE,
        mode: str = "type",
        end: str = "share",
        profiles: str = "",
        vendor: Vendor = NVIDIA,
        others: tuple[Vendor, ...] = (),
        headroom: Callable[[str, Vendor], Headroom] = unlimited,
        nvidia: Mapping[str, Any] | None = None,
        **rules: Any,
    ) -> None:
        self.mig_offer = FilledOffer(vendor.resources.count)
        for name, allocatable in nodes.items():
            self.mig_offer.set_node(name, allocatable)
        known = (
            mig_fallback.parse(profiles, source="chains.yaml")
            if profiles
            else mig_fallback.built_in()
        )
        self.context = Context(
            rules=Rules(
                vendors=(vendor, *others),
                nvidia=NvidiaSettings(**(nvidia or {})),
                fallback=Plan(Mode(mode), End(end), known, vendor),
                **rules,
            ),
            mig_offer=self.mig_offer,
            headroom=headroom,
        )

    @classmethod
    def alone(cls, **options: Any) -> Door:
        """Make the door of `hami webhook`: no scheduler behind it."""
        return cls(scheduler_name="", end="whole", **options)

    def send(self, document: Document, *, namespace: str = "") -> Answer:
        """Ask about a pod; what passes is asked about once more, and must be left as it is."""
        answer = self._ask(document, namespace)
        if answer.allowed:
            for again in (answer.pod, defaulted(answer.pod)):
                second = self._ask(again, namespace)
                assert (second.allowed, second.patch) == (True, []), second
        return answer

    def passes(self, document: Document) -> Document:
        """Return the pod as it comes through."""
        answer = self.send(document)
        assert answer.allowed, answer.message
        assert (answer.code, answer.reason) == (200, "")
        return answer.pod

    def leaves(self, document: Document) -> bool:
        """Return whether a pod comes through as it is."""
        answer = self.send(document)
        return answer.allowed and not answer.patch

    def refuses(self, document: Document, *, code: int = 403) -> str:
        """Return why a pod does not come through."""
        answer = self.send(document)
        assert not answer.allowed, answer.patch
        assert (answer.code, answer.patch) == (code, [])
        assert answer.reason == {403: "Forbidden", 422: "Invalid"}[code]
        return answer.message

    def _ask(self, document: Document, namespace: str) -> Answer:
        before = decide.namespaced(read(document), namespace)
        result = decide.decide(before, self.context)
        operations = admission_patch.between(before, result.pod or before)
        patch = json.loads(codec.encode(operations))
        return Answer(
            allowed=result.allowed,
            code=result.code,
            reason=result.reason,
            message=result.message,
            warnings=result.warnings,
            patch=patch,
            pod=json_patch.apply(document, patch),
        )


def limits(document: Document, place: int = 0, *, key: str = "containers") -> dict[str, str]:
    """Return the limits of a container."""
    found: dict[str, str] = document["spec"][key][place]["resources"].get("limits", {})
    return found


def asked(document: Document, place: int = 0, *, key: str = "containers") -> dict[str, str]:
    """Return what a container limits and requests, which must be the same."""
    resources = defaulted(document)["spec"][key][place]["resources"]
    assert resources.get("limits", {}) == resources.get("requests", {})
    return limits(document, place, key=key)


def env(document: Document, place: int = 0, *, key: str = "containers") -> list[Document]:
    found: list[Document] = document["spec"][key][place].get("env", [])
    return found


def renamed(**names: str) -> Vendor:
    """Return the vendor with other names for its resources."""
    resources = msgspec.structs.replace(NVIDIA.resources, **names)
    return msgspec.structs.replace(NVIDIA, resources=resources)
