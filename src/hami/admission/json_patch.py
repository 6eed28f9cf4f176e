"""The smallest JSON Patch that turns one pod into another.

Both pods are structs of the few fields that admission reads and writes, so the patch changes
nothing else of the API server's document: quantities, variables, annotations, labels, node,
scheduler and runtime class are addressed one by one. Null and absent fields are both None here;
`add` replaces the one and creates the other, so the patch is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hami.wire import objects

Operation = Mapping[str, object]


def between(before: objects.Pod, after: objects.Pod) -> tuple[Operation, ...]:
    """Return the operations; none if nothing has changed."""
    return tuple(_pod(before, after))


def _pod(before: objects.Pod, after: objects.Pod) -> Iterator[Operation]:
    # Every object of the API server has `metadata`, even if it is empty.
    had, has = before.metadata or objects.Metadata(), after.metadata or objects.Metadata()
    yield from _mapping("/metadata/annotations", had.annotations, has.annotations)
    yield from _mapping("/metadata/labels", had.labels, has.labels)
    old, new = before.spec or objects.PodSpec(), after.spec or objects.PodSpec()
    if old.node_name and not new.node_name:
        yield {"op": "remove", "path": "/spec/nodeName"}
    if old.scheduler_name != new.scheduler_name:
        yield _add("/spec/schedulerName", new.scheduler_name)
    if old.runtime_class_name != new.runtime_class_name:
        yield _add("/spec/runtimeClassName", new.runtime_class_name)
    yield from _containers("/spec/initContainers", old.init_containers, new.init_containers)
    yield from _containers("/spec/containers", old.containers, new.containers)


def _containers(
    path: str,
    before: Sequence[objects.Container | None] | None,
    after: Sequence[objects.Container | None] | None,
) -> Iterator[Operation]:
    for index, (old, new) in enumerate(zip(before or (), after or (), strict=True)):
        if old is None or new is None or old == new:
            continue
        yield from _resources(f"{path}/{index}/resources", old.resources, new.resources)
        yield from _env(f"{path}/{index}/env", old.env, new.env)


def _resources(
    path: str, before: objects.Resources | None, after: objects.Resources | None
) -> Iterator[Operation]:
    if before == after or after is None:
        return
    if before is None:
        parts = {"limits": after.limits, "requests": after.requests}
        yield _add(path, {key: amounts for key, amounts in parts.items() if amounts})
        return
    yield from _mapping(f"{path}/limits", before.limits, after.limits)
    yield from _mapping(f"{path}/requests", before.requests, after.requests)


def _env(
    path: str,
    before: Sequence[objects.EnvVar | None] | None,
    after: Sequence[objects.EnvVar | None] | None,
) -> Iterator[Operation]:
    old, new = list(before or ()), list(after or ())
    if before is None and new:
        yield _add(path, new)
        return
    for index, variable in enumerate(new):
        if index >= len(old):
            yield _add(f"{path}/-", variable)
        elif old[index] != variable:
            # As a whole, so that a `valueFrom` is removed, too.
            yield {"op": "replace", "path": f"{path}/{index}", "value": variable}


def _mapping(
    path: str, before: Mapping[str, object] | None, after: Mapping[str, object] | None
) -> Iterator[Operation]:
    if before is None:
        if after:
            yield _add(path, after)
        return
    has = after or {}
    for key in before:
        if key not in has:
            yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in has.items():
        if key not in before or before[key] != value:
            yield _add(f"{path}/{_escaped(key)}", value)


def _add(path: str, value: object) -> Operation:
    return {"op": "add", "path": path, "value": value}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
