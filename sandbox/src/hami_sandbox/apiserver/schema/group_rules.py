"""Rules of workloads, webhooks, roles and the other kinds of the named groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hami_sandbox.apiserver.auth import cel
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import causes, metadata_rules, names, pod_rules
from hami_sandbox.apiserver.schema.causes import Cause

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
        yield causes.unsupported("spec.strategy.type", strategy.get("type", ""), _STRATEGIES)
    elif strategy["type"] == "Recreate" and "rollingUpdate" in strategy:
        told = "may not be specified when strategy `type` is 'Recreate'"
        yield causes.forbidden("spec.strategy.rollingUpdate", told)


def workload(obj: Object, old: Object | None) -> Iterator[Cause]:
    """Yield what is wrong with a replica set or a daemon set."""
    yield from _workload(obj, old)


def _workload(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    replicas = spec.get("replicas", 0)
    if replicas < 0:
        yield causes.invalid("spec.replicas", replicas, "must be greater than or equal to 0")
    selector = spec.get("selector")
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector:
        yield causes.required("spec.selector")
    if not selector or not _matches(selector, labels):
        told = "`selector` does not match template `labels`"
        yield causes.invalid("spec.template.metadata.labels", labels or None, told)
    if old is not None and selector != old["spec"].get("selector"):
        yield causes.immutable("spec.selector", selector)
    yield from _template(template, ("Always",))


def job(obj: Object, old: Object | None) -> Iterator[Cause]:
    spec = obj["spec"]
    for part in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"):
        if spec.get(part, 0) < 0:
            told = "must be greater than or equal to 0"
            yield causes.invalid(f"spec.{part}", spec[part], told)
    yield from _template(spec.get("template") or {}, ("OnFailure", "Never"))
    if old is None:
        return
    for part in ("completions", "selector", "template", "completionMode"):
        free = part == "template" and old["spec"].get("suspend")
        if spec.get(part) != old["spec"].get(part) and not free:
            yield causes.immutable(f"spec.{part}", spec.get(part))


def _template(template: Object, restarts: tuple[str, ...]) -> Iterator[Cause]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    yield from metadata_rules.labels(labels, "spec.template.metadata.labels")
    pod = template.get("spec") or {}
    yield from pod_rules.spec(pod, "spec.template.spec")
    policy = pod.get("restartPolicy", "")
    if policy == "Always" and policy not in restarts:
        told = 'valid values: "OnFailure", "Never"'
        yield causes.required("spec.template.spec.restartPolicy", told)
    elif policy in pod_rules.RESTARTS and policy not in restarts:
        yield causes.unsupported("spec.template.spec.restartPolicy", policy, restarts)


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
            yield causes.required(f"{field}.name")
        elif names.subdomain(name) or len(name.split(".")) < _SEGMENTS:
            told = "should be a domain with at least three segments separated by dots"
            yield causes.invalid(f"{field}.name", name, told)
        if name in seen:
            yield causes.duplicate(f"{field}.name", name)
        seen.add(name)
        yield from _hook(hook, field)


def _hook(hook: Object, field: str) -> Iterator[Cause]:
    effects = hook.get("sideEffects")
    if not effects:
        told = "must specify one of None, NoneOnDryRun"
        yield causes.required(f"{field}.sideEffects", told)
    elif effects not in _SIDE_EFFECTS:
        yield causes.unsupported(f"{field}.sideEffects", effects, _SIDE_EFFECTS)
    versions = hook.get("admissionReviewVersions") or ()
    where = f"{field}.admissionReviewVersions"
    if not versions:
        yield causes.required(where, "must specify one of v1, v1beta1")
    elif not _REVIEWS & set(versions):
        yield causes.invalid(where, versions, "must include at least one of v1, v1beta1")
    if hook.get("failurePolicy") not in _FAILURE:
        yield causes.unsupported(f"{field}.failurePolicy", hook.get("failurePolicy"), _FAILURE)
    seconds = hook.get("timeoutSeconds", 0)
    if not 1 <= seconds <= _SLOWEST:
        told = "the timeout value must be between 1 and 30 seconds"
        yield causes.invalid(f"{field}.timeoutSeconds", seconds, told)
    yield from _client(hook.get("clientConfig") or {}, f"{field}.clientConfig")
    yield from _conditions(hook.get("matchConditions") or (), f"{field}.matchConditions")
    for place, rule in enumerate(hook.get("rules") or ()):
        for part in ("operations", "apiGroups", "apiVersions", "resources"):
            if not rule.get(part):
                yield causes.required(f"{field}.rules[{place}].{part}")


def _conditions(conditions: Sequence[Object], field: str) -> Iterator[Cause]:
    for place, condition in enumerate(conditions):
        expression = condition.get("expression", "")
        where = f"{field}[{place}].expression"
        if not expression:
            yield causes.required(where)
            continue
        try:
            cel.check(expression, "object", "oldObject", "request")
        except cel.CelError as error:
            yield causes.invalid(where, expression, f"compilation failed: {error}")


def _client(client: Object, field: str) -> Iterator[Cause]:
    if ("url" in client) == ("service" in client):
        told = "exactly one of url or service is required"
        yield causes.required(field, told)
    elif not client.get("url", "https://").startswith("https://"):
        told = "'https' is the only allowed URL scheme"
        yield causes.invalid(f"{field}.url", client["url"], told)


def role(obj: Object, _: Object | None) -> Iterator[Cause]:
    for place, rule in enumerate(obj.get("rules") or ()):
        field = f"rules[{place}]"
        if not rule.get("verbs"):
            yield causes.required(f"{field}.verbs", "verbs must contain at least one value")
        if rule.get("nonResourceURLs"):
            continue
        if not rule.get("apiGroups"):
            told = "resource rules must supply at least one api group"
            yield causes.required(f"{field}.apiGroups", told)
        if not rule.get("resources"):
            told = "resource rules must supply at least one resource"
            yield causes.required(f"{field}.resources", told)


def role_binding(obj: Object, old: Object | None) -> Iterator[Cause]:
    reference = obj.get("roleRef") or {}
    if not reference.get("name"):
        yield causes.required("roleRef.name")
    if reference.get("kind") not in {"Role", "ClusterRole"}:
        kinds = ("Role", "ClusterRole")
        yield causes.unsupported("roleRef.kind", reference.get("kind", ""), kinds)
    for place, subject in enumerate(obj.get("subjects") or ()):
        if not subject.get("name"):
            yield causes.required(f"subjects[{place}].name")
        if subject.get("kind") == "ServiceAccount" and not subject.get("namespace"):
            yield causes.required(f"subjects[{place}].namespace")
    if old is not None and reference != old.get("roleRef"):
        yield causes.invalid("roleRef", reference, "cannot change roleRef")


def priority_class(obj: Object, old: Object | None) -> Iterator[Cause]:
    name, value = obj["metadata"].get("name", ""), obj.get("value", 0)
    if name.startswith("system-"):
        told = (
            "priority class names with 'system-' prefix are reserved for system use only. "
            f"error: {name} is not a known system priority class"
        )
        if name not in {"system-node-critical", "system-cluster-critical"}:
            yield causes.forbidden("metadata.name", told)
    elif value > 10**9:
        told = "maximum allowed value of a user defined priority is 1000000000"
        yield causes.forbidden("value", told)
    if old is not None and value != old.get("value", 0):
        yield causes.forbidden("value", "may not be changed in an update.")


def budget(obj: Object, _: Object | None) -> Iterator[Cause]:
    spec = obj.get("spec") or {}
    if "minAvailable" in spec and "maxUnavailable" in spec:
        told = "minAvailable and maxUnavailable cannot be both set"
        yield causes.invalid("spec", spec, told)


def runtime_class(obj: Object, old: Object | None) -> Iterator[Cause]:
    handler = obj.get("handler", "")
    if not handler:
        yield causes.required("handler")
    for wrong in names.label(handler) if handler else ():
        yield causes.invalid("handler", handler, wrong)
    if old is not None and handler != old.get("handler"):
        yield causes.immutable("handler", handler)
