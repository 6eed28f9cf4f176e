"""Validation rules of every kind but pods, in Kubernetes' words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from hami_sandbox.apiserver.auth import cel
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import names, pod_rules
from hami_sandbox.apiserver.schema.names import Cause

_SEGMENTS = 3
_SLOWEST = 30
_SIDE_EFFECTS = ("None", "NoneOnDryRun")
_FAILURE = ("Fail", "Ignore")
_REVIEWS = frozenset({"v1", "v1beta1"})
_STRATEGIES = ("Recreate", "RollingUpdate")


def deployment(obj: Object, old: Object | None) -> Iterator[Cause]:
    yield from _workload(obj, old)
    strategy = obj["spec"].get("strategy") or {}
    if strategy.get("type") not in _STRATEGIES:
        yield names.unsupported("spec.strategy.type", strategy.get("type", ""), _STRATEGIES)
    elif strategy["type"] == "Recreate" and "rollingUpdate" in strategy:
        why = "may not be specified when strategy `type` is 'Recreate'"
        yield names.forbidden("spec.strategy.rollingUpdate", why)


def workload(obj: Object, old: Object | None) -> Iterator[Cause]:
    """Yield what is wrong with a replica set or a daemon set."""
    yield from _workload(obj, old)


def _workload(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    replicas = spec.get("replicas", 0)
    if replicas < 0:
        yield names.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
    selector = spec.get("selector")
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector:
        yield names.required("spec.selector")
    if not selector or not _matches(selector, labels):
        why = "`selector` does not match template `labels`"
        yield names.invalid("spec.template.metadata.labels", labels or None, why)
    if old is not None and selector != old["spec"].get("selector"):
        yield names.immutable("spec.selector", selector)
    yield from _template(template, ("Always",))


def job(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    for part in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"):
        if spec.get(part, 0) < 0:
            yield names.invalid(f"spec.{part}", spec[part], "must be greater than or equal to 0")
    yield from _template(spec.get("template") or {}, ("OnFailure", "Never"))
    if old is None:
        return
    for part in ("completions", "selector", "template", "completionMode"):
        free = part == "template" and old["spec"].get("suspend")
        if spec.get(part) != old["spec"].get(part) and not free:
            yield names.immutable(f"spec.{part}", spec.get(part))


def _template(template: Object, restarts: tuple[str, ...]) -> Iterator[Cause]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    yield from names.labels(labels, "spec.template.metadata.labels")
    pod = template.get("spec") or {}
    yield from pod_rules.spec(pod, "spec.template.spec")
    policy = pod.get("restartPolicy", "")
    if policy == "Always" and policy not in restarts:
        why = 'valid values: "OnFailure", "Never"'
        yield names.required("spec.template.spec.restartPolicy", why)
    elif policy in pod_rules.RESTARTS and policy not in restarts:
        yield names.unsupported("spec.template.spec.restartPolicy", policy, restarts)


def _matches(selector: Object, labels: Object) -> bool:
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for rule in selector.get("matchExpressions") or ():
        key, values = rule.get("key", ""), rule.get("values") or ()
        holds = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not holds.get(rule.get("operator", ""), False):
            return False
    return True


def webhooks(obj: Object, _: Object | None) -> Iterator[Cause]:
    seen: set[str] = set()
    for place, hook in enumerate(obj.get("webhooks") or ()):
        field = f"webhooks[{place}]"
        name = hook.get("name", "")
        if not name:
            yield names.required(f"{field}.name")
        elif names.subdomain(name) or len(name.split(".")) < _SEGMENTS:
            why = "should be a domain with at least three segments separated by dots"
            yield names.invalid(f"{field}.name", name, why)
        if name in seen:
            yield names.duplicate(f"{field}.name", name)
        seen.add(name)
        yield from _hook(hook, field)


def _hook(hook: Object, field: str) -> Iterator[Cause]:
    effects = hook.get("sideEffects")
    if not effects:
        yield names.required(f"{field}.sideEffects", "must specify one of None, NoneOnDryRun")
    elif effects not in _SIDE_EFFECTS:
        yield names.unsupported(f"{field}.sideEffects", effects, _SIDE_EFFECTS)
    versions = hook.get("admissionReviewVersions") or ()
    where = f"{field}.admissionReviewVersions"
    if not versions:
        yield names.required(where, "must specify one of v1, v1beta1")
    elif not _REVIEWS & set(versions):
        yield names.invalid(where, versions, "must include at least one of v1, v1beta1")
    if hook.get("failurePolicy") not in _FAILURE:
        yield names.unsupported(f"{field}.failurePolicy", hook.get("failurePolicy"), _FAILURE)
    seconds = hook.get("timeoutSeconds", 0)
    if not 1 <= seconds <= _SLOWEST:
        why = "the timeout value must be between 1 and 30 seconds"
        yield names.invalid(f"{field}.timeoutSeconds", seconds, why)
    yield from _client(hook.get("clientConfig") or {}, f"{field}.clientConfig")
    yield from _conditions(hook.get("matchConditions") or (), f"{field}.matchConditions")
    for place, rule in enumerate(hook.get("rules") or ()):
        for part in ("operations", "apiGroups", "apiVersions", "resources"):
            if not rule.get(part):
                yield names.required(f"{field}.rules[{place}].{part}")


def _conditions(conditions: Sequence[Object], field: str) -> Iterator[Cause]:
    for place, condition in enumerate(conditions):
        expression = condition.get("expression", "")
        where = f"{field}[{place}].expression"
        if not expression:
            yield names.required(where)
            continue
        try:
            cel.check(expression, "object", "oldObject", "request")
        except cel.CelError as error:
            yield names.invalid(where, expression, f"compilation failed: {error}")


def _client(client: Object, field: str) -> Iterator[Cause]:
    if ("url" in client) == ("service" in client):
        yield names.required(field, "exactly one of url or service is required")
    elif not client.get("url", "https://").startswith("https://"):
        yield names.invalid(f"{field}.url", client["url"], "'https' is the only allowed URL scheme")


def role(obj: Object, _: Object | None) -> Iterator[Cause]:
    for place, rule in enumerate(obj.get("rules") or ()):
        field = f"rules[{place}]"
        if not rule.get("verbs"):
            yield names.required(f"{field}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            continue
        if not rule.get("apiGroups"):
            why = "resource rules must supply at least one api group"
            yield names.required(f"{field}.apiGroups", why)
        if not rule.get("resources"):
            why = "resource rules must supply at least one resource"
            yield names.required(f"{field}.resources", why)


def role_binding(obj: Object, old: Object | None) -> Iterator[Cause]:
    reference = obj.get("roleRef") or {}
    if not reference.get("name"):
        yield names.required("roleRef.name")
    if reference.get("kind") not in {"Role", "ClusterRole"}:
        kinds = ("Role", "ClusterRole")
        yield names.unsupported("roleRef.kind", reference.get("kind", ""), kinds)
    for place, subject in enumerate(obj.get("subjects") or ()):
        if not subject.get("name"):
            yield names.required(f"subjects[{place}].name")
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            yield names.required(f"subjects[{place}].namespace")
    if old is not None and reference != old.get("roleRef"):
        yield names.invalid("roleRef", reference, "cannot change roleRef")


def priority_class(obj: Object, old: Object | None) -> Iterator[Cause]:
    name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
    if name.startswith("system-"):
        why = (
            "priority class names with 'system-' prefix are reserved for system use only. "
            f"error: {name} is not a known system priority class"
        )
        if name not in {"system-node-critical", "system-cluster-critical"}:
            yield names.forbidden("metadata.name", why)
    elif value > 10**9:
        why = "maximum allowed value of a user defined priority is 1000000000"
        yield names.forbidden("value", why)
    if old is not None and value != old.get("value", 0):
        yield names.forbidden("value", "may not be changed in an update.")


def budget(obj: Object, _: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        yield names.invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")


def runtime_class(obj: Object, old: Object | None) -> Iterator[Cause]:
    handler = obj.get("handler", "")
    if not handler:
        yield names.required("handler")
    for wrong in names.label(handler) if handler else ():
        yield names.invalid("handler", handler, wrong)
    if old is not None and handler != old.get("handler"):
        yield names.immutable("handler", handler)


_MOST_DATA = 1024 * 1024
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_SERVICES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_TLS = "kubernetes.io/tls"
_LAST_PORT = 65535


def pod(obj: Object, old: Object | None) -> Iterator[Cause]:
    yield from pod_rules.spec(obj.get("spec") or {})
    if old is not None:
        yield from pod_rules.check(obj.get("spec") or {}, old.get("spec") or {})


def node(obj: Object, _: Object | None) -> Iterator[Cause]:
    for part in ("capacity", "allocatable"):
        found = (obj.get("status") or {}).get(part) or {}
        yield from pod_rules.amounts(found, f"status.{part}", dotted=True)
    seen: set[tuple[str, str]] = set()
    for place, taint in enumerate((obj.get("spec") or {}).get("taints") or ()):
        field = f"metadata.taints[{place}]"  # so the API server names it
        key, effect = taint.get("key", ""), taint.get("effect", "")
        for wrong in names.qualified(key):
            yield names.invalid(f"{field}.key", key, wrong)
        if not effect:
            yield names.required(f"{field}.effect")
        elif effect not in _EFFECTS:
            yield names.unsupported(f"{field}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            why = "taints must be unique by key and effect pair"
            repeated = names.duplicate(field, taint)
            yield Cause(field, repeated.reason, f"{repeated.message}: {why}")
        seen.add((key, effect))


def config_map(obj: Object, old: Object | None) -> Iterator[Cause]:
    data, blobs = obj.get("data") or {}, obj.get("binaryData") or {}
    yield from _keys(data, "data")
    yield from _keys(blobs, "binaryData")
    for key in data.keys() & blobs.keys():
        yield names.invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    yield from _size((*data.items(), *blobs.items()))
    if old is not None:
        yield from _immutable(obj, old, "data", "binaryData")


def secret(obj: Object, old: Object | None) -> Iterator[Cause]:
    data = obj.get("data") or {}
    yield from _keys(data, "data")
    yield from _size(data.items())
    if obj.get("type") == _TLS:
        for key in ("tls.crt", "tls.key"):
            if key not in data:
                yield names.required(f"data[{key}]")
    if old is not None:
        if obj.get("type") != old.get("type"):
            yield names.immutable("type", obj.get("type", ""))
        yield from _immutable(obj, old, "data")


def event(obj: Object, _: Object | None) -> Iterator[Cause]:
    field = "regarding" if "regarding" in obj else "involvedObject"
    about = (obj.get(field) or {}).get("namespace") or ""
    own = obj["metadata"].get("namespace") or ""
    fits = own in {"", "default"} if not about else own == about
    if not fits:
        yield names.invalid(f"{field}.namespace", about, "does not match event.namespace")


def lease(obj: Object, _: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    seconds, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    if seconds is not None and seconds <= 0:
        yield names.invalid("spec.leaseDurationSeconds", seconds, "must be greater than 0")
    if transitions is not None and transitions < 0:
        why = "must be greater than or equal to 0"
        yield names.invalid("spec.leaseTransitions", transitions, why)


def quota(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    yield from pod_rules.amounts(spec.get("hard") or {}, "spec.hard")
    for part in ("hard", "used"):
        found = (obj.get("status") or {}).get(part) or {}
        yield from pod_rules.amounts(found, f"status.{part}")
    if old is not None and spec.get("scopes") != (old.get("spec") or {}).get("scopes"):
        yield names.immutable("spec.scopes", spec.get("scopes"))


def service(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    kind = spec.get("type", "")
    if kind not in _SERVICES:
        yield names.unsupported("spec.type", kind, _SERVICES)
    if kind == "ExternalName" and not spec.get("externalName"):
        yield names.required("spec.externalName")
    ports = spec.get("ports") or ()
    if not ports and spec.get("clusterIP") != "None" and kind != "ExternalName":
        yield names.required("spec.ports")
    for place, port in enumerate(ports):
        number = port.get("port", 0)
        if not 0 < number <= _LAST_PORT:
            why = "must be between 1 and 65535, inclusive"
            yield names.invalid(f"spec.ports[{place}].port", number, why)
        if len(ports) > 1 and not port.get("name"):
            yield names.required(f"spec.ports[{place}].name")
    before = (old or {}).get("spec") or {}
    address = before.get("clusterIP")
    if address and kind == before.get("type") and spec.get("clusterIP") != address:
        yield names.invalid("spec.clusterIPs[0]", spec.get("clusterIP"), "may not change once set")


def _keys(data: Object, field: str) -> Iterator[Cause]:
    for key in data:
        for wrong in names.data_key(key):
            yield names.invalid(f"{field}[{key}]", key, wrong)


def _size(items: Iterable[tuple[str, str]]) -> Iterator[Cause]:
    total = sum(len(key) + len(value.encode()) for key, value in items)
    if total > _MOST_DATA:
        yield names.too_long("", _MOST_DATA)


def _immutable(obj: Object, old: Object, *parts: str) -> Iterator[Cause]:
    if not old.get("immutable"):
        return
    why = "field is immutable when `immutable` is set"
    for part in ("immutable", *parts):
        if obj.get(part) != old.get(part):
            yield names.forbidden(part, why)


__all__ = ["Cause", "validate"]

_RBAC = "rbac.authorization.k8s.io"
_ADMISSION = "admissionregistration.k8s.io"
#: A new or changed object, and the one that it replaces.
_Rule = Callable[[Object, Object | None], Iterator[Cause]]
_RULES: dict[tuple[str, str], _Rule] = {
    ("", "Pod"): pod,
    ("", "Node"): node,
    ("", "ConfigMap"): config_map,
    ("", "Secret"): secret,
    ("", "Event"): event,
    ("events.k8s.io", "Event"): event,
    ("", "ResourceQuota"): quota,
    ("", "Service"): service,
    ("coordination.k8s.io", "Lease"): lease,
    ("apps", "Deployment"): deployment,
    ("apps", "ReplicaSet"): workload,
    ("apps", "DaemonSet"): workload,
    ("batch", "Job"): job,
    (_ADMISSION, "MutatingWebhookConfiguration"): webhooks,
    (_ADMISSION, "ValidatingWebhookConfiguration"): webhooks,
    (_RBAC, "Role"): role,
    (_RBAC, "ClusterRole"): role,
    (_RBAC, "RoleBinding"): role_binding,
    (_RBAC, "ClusterRoleBinding"): role_binding,
    ("scheduling.k8s.io", "PriorityClass"): priority_class,
    ("policy", "PodDisruptionBudget"): budget,
    ("node.k8s.io", "RuntimeClass"): runtime_class,
}


def validate(
    kind: Kind, obj: Object, old: Object | None = None, *, subresource: str = ""
) -> list[Cause]:
    """Return all that is wrong with an object; `old` is what it replaces."""
    before = old["metadata"] if old is not None else None
    found = list(names.check(kind, obj["metadata"], before))
    rule = _RULES.get((kind.group, kind.kind))
    # A write to a subresource takes the spec as it was; only a node's status has rules here.
    if rule and (not subresource or kind.kind in {"Node", "ResourceQuota"}):
        found += rule(obj, old)
    return found
