"""Generated pods, patched by admission, pass the real API server's dry run.

The webhook answers in this process, so that thousands of pods take seconds. The API server is
strict: a field that it does not know is an error. Each pod is reviewed three times: as it was
drawn, as it was patched, and as the API server made of that; only the first may change it.
"""

from __future__ import annotations

import asyncio
import base64
import collections
import concurrent.futures
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from hami.admission import edits
from hami.admission import settings as admission_settings
from hami.admission.serve import Metrics, Reviewer
from hami.admission.settings import ANY, Context, Rules, unlimited
from hami.serving import metrics, tracing
from hami.serving.http_server import Request
from hami.vendors import device_config
from hami.wire import annotation_keys
from tests.e2e import sizes
from tests.kubeapi.client import ApiError, Client, Object
from tests.kubeapi.paths import group, pods
from tests.mig_offers import FilledOffer
from tests.unit.admission import json_patch, pod_documents
from tests.unit.admission.pod_documents import CORES, GPU, MEMORY

PATCHED = sizes.PATCHED_PODS
# About a quarter of what is drawn is refused by admission, as it must be.
DRAWN = PATCHED * 3 // 2
#: Not fewer in `make e2e`: among 120 is none whose missing limit admission can write.
WRITTEN = 600
SAMPLE = PATCHED // 8
SENDERS = 4
TOLD = 3
NAMESPACE = "default"
RUNTIME_CLASS = "nvidia-for-tests"
OFFERED = {GPU: "8", "nvidia.com/mig-2g.20gb": "2", "nvidia.com/mig-1g.18gb": "4"}

_CONFIG = device_config.load_or_built_in("")
_ALL_ON = msgspec.structs.replace(
    _CONFIG.nvidia, overwrite_env=True, gpu_core_policy="force", runtime_class_name=RUNTIME_CLASS
)


def _rules(mode: str, end: str, **others: Any) -> Rules:
    plan = admission_settings.plan(_CONFIG.vendors, mode=mode, end=end, file="")
    return Rules(vendors=_CONFIG.vendors, fallback=plan, **others)


RULES = {
    "as installed": _rules("type", "share"),
    "whole cards at the end": _rules("type", "whole", high_priority_namespaces=frozenset({ANY})),
    "only what is free": _rules("available", "share"),
    "all that can be switched on": _rules("type", "share", nvidia=_ALL_ON),
    "no fallback": _rules("off", "share"),
    "fallback alone": _rules("type", "whole", scheduler_name=""),
}
KINDS = (
    *("scheduler", "runtime class", "priority", "core policy", "no devices"),
    *("default count", "whole card", "copied grant", "nothing"),
    *("fallback to a profile", "fallback to a share", "fallback to a whole card"),
)
#: How many pods must show each of them; on less the test would show nothing.
FEWEST = PATCHED // 75


class Case(msgspec.Struct):
    """A pod, and what admission made of it."""

    rules: str
    review: Object
    answer: Object

    @property
    def pod(self) -> Object:
        drawn: Object = self.review["request"]["object"]
        return {key: value for key, value in drawn.items() if key != "status"}

    @property
    def patched(self) -> Object:
        made: Object = json_patch.apply(self.pod, _patch(self.answer))
        return made

    def again(self, pod: Object) -> Object:
        """Have another pod judged in place of this one."""
        request = self.review["request"] | {"object": pod}
        return _judged(self.rules, self.review | {"request": request})

    def told(self, what: str, words: object) -> str:
        version = self.review["apiVersion"]
        pod, patch = json.dumps(self.pod), json.dumps(_patch(self.answer))
        return f"{what}: {words}\nrules: {self.rules}, {version}\npod: {pod}\npatch: {patch}"


def _reviewer(rules: Rules) -> Reviewer:
    inventory = FilledOffer(GPU)
    inventory.set_node("a", OFFERED)
    return Reviewer(
        Context(rules=rules, mig_offer=inventory, headroom=unlimited),
        instruments=Metrics(metrics.Registry()),
        tracer=tracing.Tracer.disabled(),
        why_not_ready=str,
    )


REVIEWERS = {name: _reviewer(rules) for name, rules in RULES.items()}


def _judged(rules: str, review: Object) -> Object:
    """Ask the webhook; give its response, which is of the version and for the request asked."""
    request = Request("POST", "/webhook", {}, {}, json.dumps(review).encode(), peer="", id="")
    answered = asyncio.run(REVIEWERS[rules].answer(request))
    assert isinstance(answered.body, bytes)
    answer: Object = json.loads(answered.body)
    assert answer["apiVersion"] == review["apiVersion"]
    response: Object = answer["response"]
    assert response["uid"] == review["request"]["uid"]
    return response


def _patch(response: Object) -> list[Object]:
    encoded = response.get("patch")
    return json.loads(base64.b64decode(encoded)) if encoded else []


def _drawn(documents: SearchStrategy[Object], number: int) -> list[Case]:
    """Draw pods, the same in every run; each meets other rules than the one before."""
    reviews: list[Object] = []

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(pod_documents.reviews(documents))
    def draw(review: Object) -> None:
        reviews.append(review)

    draw()
    met = zip(itertools.cycle(RULES), reviews)
    return [Case(rules, review, _judged(rules, review)) for rules, review in met]


@pytest.fixture
def _runtime_class(client: Client) -> Iterator[None]:
    """Make the RuntimeClass that some rules give to pods: the API server looks for it."""
    path = group("node.k8s.io/v1", "runtimeclasses")
    client.create(path, {"metadata": {"name": RUNTIME_CLASS}, "handler": "runc"})
    yield
    client.delete(f"{path}/{RUNTIME_CLASS}")


def _sent(client: Client, bodies: list[Object]) -> list[Object | ApiError]:
    """Have the API server judge pods; give what it would create, or its refusals."""

    def send(body: Object) -> Object | ApiError:
        try:
            return client.create(pods(NAMESPACE), body, dryRun="All", fieldValidation="Strict")
        except ApiError as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(SENDERS) as pool:
        return list(pool.map(send, bodies))


def _require_none(wrong: list[str]) -> None:
    assert not wrong, "\n\n".join([f"{len(wrong)} pods, the first ones:", *wrong[:TOLD]])


def _changed_again(case: Case, made: Object) -> Iterator[str]:
    for what, pod in (("as it was patched", case.patched), ("as it was created", made)):
        again = case.again(pod)
        if not again["allowed"] or _patch(again):
            yield case.told(f"judged anew {what}", (again["status"], _patch(again)))


def _containers(pod: Object) -> list[Object]:
    found: list[Object] = pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
    return found


def _variables(pod: Object, name: str) -> list[Object]:
    every = [variable for each in _containers(pod) for variable in each.get("env", [])]
    return [variable for variable in every if variable["name"] == name]


def _limits(pod: Object, resource: str) -> list[str]:
    """Give each container's limit of a resource; empty: none."""
    return [c.get("resources", {}).get("limits", {}).get(resource, "") for c in _containers(pod)]


def _steps(pod: Object) -> list[str]:
    noted: str = pod["metadata"].get("annotations", {}).get(annotation_keys.FALLBACK, "")
    return noted.split(",")


def _grant(pod: Object) -> list[str]:
    """Give the keys of a grant that a pod carries."""
    metadata = pod["metadata"]
    found = {*metadata.get("annotations", {}), *metadata.get("labels", {})}
    return sorted(found & set(pod_documents.REMOVED_ANNOTATIONS))


#: Parts of a pod, and what a change of them means where no profile was replaced.
PARTS: Mapping[str, Callable[[Object], object]] = {
    "scheduler": lambda pod: pod["spec"].get("schedulerName"),
    "runtime class": lambda pod: pod["spec"].get("runtimeClassName"),
    "default count": lambda pod: _limits(pod, GPU),
    "whole card": lambda pod: _limits(pod, CORES),
    "priority": lambda pod: _variables(pod, edits.TASK_PRIORITY),
    "core policy": lambda pod: _variables(pod, edits.CORE_POLICY),
    "no devices": lambda pod: _variables(pod, edits.VISIBLE_DEVICES),
    "copied grant": lambda pod: (_grant(pod), pod["spec"].get("nodeName")),
}
_ALSO_BY_FALLBACK = {"default count", "whole card"}


def _kinds(case: Case) -> set[str]:
    """Say what was done to a pod, by what stands in it before and after."""
    before, after = case.pod, case.patched
    if before == after:
        return {"nothing"}
    changed = {kind for kind, part in PARTS.items() if part(before) != part(after)}
    steps = [step for step in _steps(after) if step not in _steps(before)]
    if not steps:
        return changed
    share = _limits(before, MEMORY) != _limits(after, MEMORY)
    ends = {"fallback to a share" if share else "fallback to a whole card"}
    at_the_end = [step.endswith("->gpu") for step in steps]
    return (
        (changed - _ALSO_BY_FALLBACK)
        | (ends if any(at_the_end) else set())
        | (set() if all(at_the_end) else {"fallback to a profile"})
    )


@pytest.mark.usefixtures("_runtime_class")
def test_patched_pods_are_accepted_and_not_patched_again(client: Client) -> None:
    cases = _drawn(pod_documents.valid_pods(NAMESPACE), DRAWN)
    sample = cases[:SAMPLE]
    as_drawn = zip(sample, _sent(client, [case.pod for case in sample]), strict=True)
    _require_none([c.told("not valid as drawn", e) for c, e in as_drawn if _is_refusal(e)])
    allowed = [case for case in cases if case.answer["allowed"]][:PATCHED]
    assert len(allowed) == PATCHED
    wrong: list[str] = []
    for case, made in zip(allowed, _sent(client, [c.patched for c in allowed]), strict=True):
        if isinstance(made, ApiError):
            wrong.append(case.told("refused as patched", made))
        else:
            wrong += _changed_again(case, made)
    _require_none(wrong)
    versions = collections.Counter(case.review["apiVersion"] for case in allowed)
    assert min(versions[f"admission.k8s.io/{each}"] for each in ("v1", "v1beta1")) >= PATCHED / 4
    found = collections.Counter(kind for case in allowed for kind in _kinds(case))
    assert set(found) == set(KINDS)
    assert min(found.values()) >= FEWEST, found


@pytest.mark.usefixtures("_runtime_class")
def test_pods_as_people_write_them_are_never_made_worse(client: Client) -> None:
    """Their limits or requests may be missing, which the API server refuses for such resources."""
    cases = _drawn(pod_documents.written_pods(NAMESPACE), WRITTEN)
    allowed = [case for case in cases if case.answer["allowed"]]
    as_drawn = _sent(client, [case.pod for case in allowed])
    as_patched = _sent(client, [case.patched for case in allowed])
    wrong: list[str] = []
    mended = 0
    for case, before, after in zip(allowed, as_drawn, as_patched, strict=True):
        if isinstance(after, ApiError):
            if not _causes(after) <= _causes(before):
                wrong.append(case.told("made worse", after))
            continue
        mended += _is_refusal(before)
        wrong += _changed_again(case, after)
    _require_none(wrong)
    assert mended, "no pod had a missing limit that admission could write"


def _is_refusal(made: Object | ApiError) -> bool:
    return isinstance(made, ApiError)


def _causes(made: Object | ApiError) -> set[str]:
    """Give the fields that the API server found wrong; none where it accepted the pod."""
    if not isinstance(made, ApiError):
        return set()
    return {cause["field"] for cause in made.body["details"]["causes"]}
