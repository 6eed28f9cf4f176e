"""The kinds that the server serves: built-in ones and custom resources."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

COLLECTION = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)
READ_WRITE = ("get", "patch", "update")


class Subresource(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an object, or an act upon it, with a path of its own."""

    name: str
    kind: str  # of what is sent and answered there
    group: str = ""
    version: str = "v1"
    verbs: tuple[str, ...] = READ_WRITE

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of objects under one group and version."""

    group: str
    version: str
    resource: str  # plural, as in paths
    kind: str
    singular: str
    short_names: tuple[str, ...] = ()
    namespaced: bool = True
    categories: tuple[str, ...] = ()
    subresources: tuple[Subresource, ...] = ()
    verbs: tuple[str, ...] = COLLECTION
    # Fields that selectors know besides metadata.name and metadata.namespace.
    fields: tuple[str, ...] = ()
    # Whether a replacement may leave out the version that it replaces.
    unconditional: bool = True
    # Whether metadata.generation counts the changes of everything but metadata and status.
    generation: bool = False
    # The kind (group, resource) whose objects this one shows; empty: its own.
    shows: tuple[str, str] = ("", "")
    # Whether its fields are known; those of a custom resource are not.
    custom: bool = False

    @property
    def api_version(self) -> str:
        """Return `v1`, or `group/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def qualified(self) -> str:
        """Return the resource as messages name it: `leases.coordination.k8s.io`."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def stored(self) -> tuple[str, str]:
        """Return under which group and resource the objects are stored."""
        return self.shows if self.shows != ("", "") else (self.group, self.resource)

    @property
    def has_status(self) -> bool:
        """Whether the status is written only through its own path."""
        return any(sub.name == "status" for sub in self.subresources)

    def subresource(self, name: str) -> Subresource | None:
        return next((sub for sub in self.subresources if sub.name == name), None)


__all__ = ["COLLECTION", "KINDS", "READ_WRITE", "Kind", "Subresource", "find", "of"]

_ADMISSION = "admissionregistration.k8s.io"
_AUTHENTICATION = "authentication.k8s.io"
_AUTHORIZATION = "authorization.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_CREATE = ("create",)
_GET = ("get",)


def _status(kind: str, group: str = "") -> Subresource:
    return Subresource(name="status", kind=kind, group=group)


def _scale() -> Subresource:
    return Subresource(name="scale", kind="Scale", group="autoscaling")


def _core(kind: str, resource: str, *short: str, **fields: object) -> Kind:
    return _kind("", kind, resource, *short, **fields)


def _kind(group: str, kind: str, resource: str, *short: str, **fields: object) -> Kind:
    return Kind(
        group=group,
        version="v1",
        resource=resource,
        kind=kind,
        singular=kind.lower(),
        short_names=short,
        **fields,  # type: ignore[arg-type] # the struct's own fields, checked when it is made
    )


_POD_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.podIP",
    "status.nominatedNodeName",
)
_EVENT_FIELDS = (
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
)
_NEW_EVENT_FIELDS = (
    *(field.replace("involvedObject", "regarding") for field in _EVENT_FIELDS),
    "reportingController",
)
_POD = _core(
    "Pod",
    "pods",
    "po",
    categories=("all",),
    generation=True,
    fields=_POD_FIELDS,
    subresources=(
        _status("Pod"),
        Subresource(name="binding", kind="Binding", verbs=_CREATE),
        Subresource(name="eviction", kind="Eviction", group="policy", verbs=_CREATE),
        Subresource(name="log", kind="Pod", verbs=_GET),
    ),
)
_CORE = (
    _core("Binding", "bindings", verbs=_CREATE),
    _core("ConfigMap", "configmaps", "cm"),
    _core("Endpoints", "endpoints", "ep"),
    _core("Event", "events", "ev", fields=_EVENT_FIELDS),
    _core(
        "Namespace",
        "namespaces",
        "ns",
        namespaced=False,
        verbs=tuple(verb for verb in COLLECTION if verb != "deletecollection"),
        fields=("status.phase",),
        subresources=(
            _status("Namespace"),
            Subresource(name="finalize", kind="Namespace", verbs=("update",)),
        ),
    ),
    _core(
        "Node",
        "nodes",
        "no",
        namespaced=False,
        fields=("spec.unschedulable",),
        subresources=(_status("Node"),),
    ),
    _POD,
    _core("ResourceQuota", "resourcequotas", "quota", subresources=(_status("ResourceQuota"),)),
    _core("Secret", "secrets", fields=("type",)),
    _core(
        "ServiceAccount",
        "serviceaccounts",
        "sa",
        subresources=(
            Subresource(name="token", kind="TokenRequest", group=_AUTHENTICATION, verbs=_CREATE),
        ),
    ),
    _core(
        "Service",
        "services",
        "svc",
        categories=("all",),
        fields=("spec.clusterIP", "spec.type"),
        subresources=(_status("Service"),),
    ),
)
_APPS = (
    _kind(
        "apps",
        "DaemonSet",
        "daemonsets",
        "ds",
        categories=("all",),
        generation=True,
        subresources=(_status("DaemonSet", "apps"),),
    ),
    _kind(
        "apps",
        "Deployment",
        "deployments",
        "deploy",
        categories=("all",),
        generation=True,
        subresources=(_status("Deployment", "apps"), _scale()),
    ),
    _kind(
        "apps",
        "ReplicaSet",
        "replicasets",
        "rs",
        categories=("all",),
        generation=True,
        fields=("status.replicas",),
        subresources=(_status("ReplicaSet", "apps"), _scale()),
    ),
)
_OTHERS = (
    _kind(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        "crd",
        "crds",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
        unconditional=False,
        subresources=(_status("CustomResourceDefinition", "apiextensions.k8s.io"),),
    ),
    _kind(
        "batch",
        "Job",
        "jobs",
        categories=("all",),
        generation=True,
        fields=("status.successful",),
        subresources=(_status("Job", "batch"),),
    ),
    _kind("coordination.k8s.io", "Lease", "leases", unconditional=False),
    _kind("events.k8s.io", "Event", "events", "ev", fields=_NEW_EVENT_FIELDS, shows=("", "events")),
    _kind(
        _ADMISSION,
        "MutatingWebhookConfiguration",
        "mutatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
        unconditional=False,
    ),
    _kind(
        _ADMISSION,
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        namespaced=False,
        categories=("api-extensions",),
        generation=True,
        unconditional=False,
    ),
    _kind(_RBAC, "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    _kind(_RBAC, "ClusterRole", "clusterroles", namespaced=False),
    _kind(_RBAC, "RoleBinding", "rolebindings"),
    _kind(_RBAC, "Role", "roles"),
    _kind("scheduling.k8s.io", "PriorityClass", "priorityclasses", "pc", namespaced=False),
    _kind(
        "policy",
        "PodDisruptionBudget",
        "poddisruptionbudgets",
        "pdb",
        generation=True,
        subresources=(_status("PodDisruptionBudget", "policy"),),
    ),
    _kind("node.k8s.io", "RuntimeClass", "runtimeclasses", namespaced=False, unconditional=False),
)
_REVIEWS = tuple(
    _kind(group, kind, f"{kind.lower()}s", namespaced=namespaced, verbs=_CREATE)
    for group, kind, namespaced in (
        (_AUTHENTICATION, "SelfSubjectReview", False),
        (_AUTHENTICATION, "TokenReview", False),
        (_AUTHORIZATION, "LocalSubjectAccessReview", True),
        (_AUTHORIZATION, "SelfSubjectAccessReview", False),
        (_AUTHORIZATION, "SelfSubjectRulesReview", False),
        (_AUTHORIZATION, "SubjectAccessReview", False),
    )
)

KINDS: tuple[Kind, ...] = (*_CORE, *_APPS, *_OTHERS, *_REVIEWS)

_BY_PATH = {(kind.group, kind.version, kind.resource): kind for kind in KINDS}
_BY_NAME = {(kind.api_version, kind.kind): kind for kind in KINDS}


def find(group: str, version: str, resource: str) -> Kind | None:
    """Return the kind behind a path; the core group is empty."""
    return _BY_PATH.get((group, version, resource))


def of(api_version: str, kind: str) -> Kind | None:
    """Return the kind that an object names."""
    return _BY_NAME.get((api_version, kind))


class Catalogue:
    def __init__(self) -> None:
        self._custom: dict[tuple[str, str, str], Kind] = {}
        self._all: tuple[Kind, ...] = KINDS

    @property
    def all(self) -> Sequence[Kind]:
        return self._all

    def find(self, group: str, version: str, resource: str) -> Kind | None:
        """Return the kind behind a path."""
        built_in = find(group, version, resource)
        return built_in or self._custom.get((group, version, resource))

    def define(self, custom: Sequence[Kind]) -> None:
        """Serve these custom kinds, and no others, from now on."""
        self._custom = {(kind.group, kind.version, kind.resource): kind for kind in custom}
        self._all = (*KINDS, *custom)
