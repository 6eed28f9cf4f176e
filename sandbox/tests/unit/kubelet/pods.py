"""Pods and what became of their containers, written short."""

from __future__ import annotations

from typing import Any

from hami_sandbox.kubelet.attempts import Attempt, History
from hami_sandbox.runtime.spec import Phase

Object = dict[str, Any]

NODE = "gpu-a"


def container(name: str = "main", **fields: Any) -> Object:
    return {"name": name, "image": "busybox", "command": ["true"], **fields}


def sidecar(name: str) -> Object:
    return container(name, restartPolicy="Always")


def pod(
    name: str = "p",
    *containers: Object,
    init: tuple[Object, ...] = (),
    meta: Object | None = None,
    status: Object | None = None,
    **spec: Any,
) -> Object:
    made: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **(meta or {})},
        "spec": {"nodeName": NODE, "containers": list(containers or (container(),)), **spec},
    }
    if init:
        made["spec"]["initContainers"] = list(init)
    if status is not None:
        made["status"] = status
    return made


def running(name: str = "main", attempt: int = 0) -> Attempt:
    return Attempt(
        id=f"{name}-{attempt}", name=name, attempt=attempt, phase=Phase.RUNNING, started_at=1000.0
    )


def exited(name: str = "main", code: int = 0, attempt: int = 0) -> Attempt:
    return Attempt(
        id=f"{name}-{attempt}",
        name=name,
        attempt=attempt,
        phase=Phase.EXITED,
        exit_code=code,
        started_at=1000.0,
        finished_at=1010.0,
    )


def created(name: str = "main", attempt: int = 0) -> Attempt:
    return Attempt(id=f"{name}-{attempt}", name=name, attempt=attempt, phase=Phase.CREATED)


def histories(*attempts: Attempt) -> dict[str, History]:
    made: dict[str, History] = {}
    for attempt in attempts:
        before = made.get(attempt.name, History()).attempts
        made[attempt.name] = History((*before, attempt))
    return made
