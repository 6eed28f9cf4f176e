"""The chart as real Helm renders it: what an API server would get of some values.

No cluster is needed. Helm gets the version of Kubernetes and the kinds that it knows; it is the one
of the test cluster (kubectl and Helm from PyPI, kept in the cache). Its output is kept as well
(rendered_cache.py).
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.chart import rendered_cache
from tests.chart.rendered_cache import Output, RenderedCache
from tests.e2e.parts import catalogue, project

CHART_NAME = "charts/hami"
CHART = project.ROOT / CHART_NAME
NEWEST = "1.36.3"
VERSIONS = ("1.18.20", "1.22.17", "1.25.16", "1.28.15", NEWEST)
RELEASE, NAMESPACE = "hami", "hami-system"
#: As on a cluster with the Prometheus operator.
PROMETHEUS = "monitoring.coreos.com/v1"

Object = dict[str, Any]
Values = Mapping[str, Any]


class Refused(Exception):  # noqa: N818 - what happened, not an error of the tests
    """Helm would install nothing; its text says why."""


@dataclasses.dataclass(frozen=True)
class Rendered:
    objects: tuple[Object, ...]

    def names(self, kind: str) -> list[str]:
        return sorted(each["metadata"]["name"] for each in self.objects if each["kind"] == kind)

    def has(self, kind: str, name: str) -> bool:
        return name in self.names(kind)

    def one(self, kind: str, name: str) -> Object:
        found = [
            each
            for each in self.objects
            if each["kind"] == kind and each["metadata"]["name"] == name
        ]
        assert len(found) == 1, f"{len(found)} {kind} {name} among {self.names(kind)}"
        return copy.deepcopy(found[0])

    def pod(self, kind: str, name: str) -> Object:
        """Give the pod that a Deployment, DaemonSet or Job makes."""
        template = self.one(kind, name)["spec"]["template"]
        assert isinstance(template, dict)
        return template

    def container(self, kind: str, workload: str, name: str) -> Object:
        containers = self.pod(kind, workload)["spec"]["containers"]
        [found] = [each for each in containers if each["name"] == name]
        assert isinstance(found, dict)
        return found

    def flags(self, kind: str, workload: str, container: str) -> dict[str, str]:
        """Give the flags of a container of ours, without their dashes."""
        args = self.container(kind, workload, container)["args"]
        pairs = [arg.removeprefix("--").partition("=") for arg in args if arg.startswith("--")]
        return {name: value for name, _, value in pairs}

    def pods(self, *kinds: str) -> list[Object]:
        """Give the pods of all workloads, or of those of some kinds."""
        chosen = kinds or ("DaemonSet", "Deployment", "Job")
        return [each["spec"]["template"] for each in self.objects if each["kind"] in chosen]


@functools.cache
def helm_4() -> Path:
    return catalogue.provide(catalogue.client_tools()) / "helm"


def render(
    values: Values | None = None,
    *,
    kube: str = NEWEST,
    release: str = RELEASE,
    namespace: str = NAMESPACE,
    knows: Sequence[str] = (PROMETHEUS,),
    helm: Path | None = None,
) -> Rendered:
    """Render with dotted values: {"scheduler.replicas": 2}."""
    arguments = (
        *("template", release, CHART_NAME, "--namespace", namespace, "--kube-version", kube),
        *(word for each in knows for word in ("--api-versions", each)),
    )
    text = _run(arguments, json.dumps(nested(values or {})), helm or helm_4())
    return Rendered(tuple(json.loads(_as_json(text))))


def notes(values: Values | None = None) -> str:
    """Give what `helm install` tells after it has installed."""
    arguments = ("install", RELEASE, CHART_NAME, "--namespace", NAMESPACE, "--dry-run=client")
    return _run(arguments, json.dumps(nested(values or {}))).partition("\nNOTES:\n")[2]


def refusal(values: Values, **settings: Any) -> str:
    """Render what must be refused; give the sentence of the refusal."""
    try:
        render(values, **settings)
    except Refused as refused:
        return str(refused)
    raise AssertionError(f"{values} was accepted")


def nested(values: Values) -> Object:
    """Turn dotted names into maps."""
    made: Object = {}
    for path, value in values.items():
        *folders, last = path.split(".")
        place = made
        for folder in folders:
            place = place.setdefault(folder, {})
        place[last] = value
    return made


def defaults() -> Object:
    found = yaml.safe_load((CHART / "values.yaml").read_text())
    assert isinstance(found, dict)
    return found


@functools.cache
def _as_json(text: str) -> str:
    """Parse YAML once for each text; JSON is then read in a fraction of the time."""
    return json.dumps([each for each in yaml.load_all(text, yaml.CSafeLoader) if each])


@functools.cache
def _cache() -> RenderedCache:
    return RenderedCache(rendered_cache.default_folder(), CHART)


@functools.cache
def _run(arguments: tuple[str, ...], values: str, helm: Path | None = None) -> str:
    program = helm or helm_4()
    printed = _cache().get(program, arguments, values, lambda: _ask(program, arguments, values))
    if printed.code:
        raise Refused(printed.errors)
    return printed.output


def _ask(helm: Path, arguments: tuple[str, ...], values: str) -> Output:
    done = subprocess.run(
        [str(helm), *arguments, "--values", "-"],
        cwd=project.ROOT,
        input=values,
        capture_output=True,
        text=True,
        check=False,
    )
    return Output(done.returncode, done.stdout, done.stderr)
