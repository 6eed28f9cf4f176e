"""Changes of a pod, each of which gives a new one.

Pods are read-only structs of the few fields we know. What these functions return is what the pod
will be, for the rules that come after; `hami.admission.patching` finds out what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from hami.wire import objects
from hami.wire.objects import Container, ContainerKind, Pod

Edit = Callable[[ContainerKind, Container], Container]


def containers(pod: Pod, edit: Edit) -> Pod:
    """Change every container, init containers first."""
    if pod.spec is None:
        return pod
    edited = [(kind, edit(kind, container)) for kind, container in pod.containers()]
    inits = len(pod.spec.init_containers or ())
    spec = msgspec.structs.replace(
        pod.spec,
        init_containers=_kept(pod.spec.init_containers, edited[:inits]),
        containers=_kept(pod.spec.containers, edited[inits:]),
    )
    return msgspec.structs.replace(pod, spec=spec)


def _kept(
    before: list[Container | None] | None, after: list[tuple[ContainerKind, Container]]
) -> list[Container | None] | None:
    return None if before is None else [container for _, container in after]


def amounts(
    container: Container,
    *,
    limits: Mapping[str, objects.Amount] | None = None,
    requests: Mapping[str, objects.Amount] | None = None,
    without: Iterable[str] = (),
) -> Container:
    """Take resources away from a container, then set others."""
    dropped = frozenset(without)
    resources = container.resources or objects.Resources()
    return msgspec.structs.replace(
        container,
        resources=msgspec.structs.replace(
            resources,
            limits=_changed(resources.limits, limits or {}, dropped),
            requests=_changed(resources.requests, requests or {}, dropped),
        ),
    )


def _changed(
    before: dict[str, objects.Amount | None] | None,
    more: Mapping[str, objects.Amount],
    dropped: frozenset[str],
) -> dict[str, objects.Amount | None] | None:
    if before is None and not more:
        return None
    return {key: value for key, value in (before or {}).items() if key not in dropped} | {**more}


def variable(container: Container, name: str, value: str) -> Container:
    """Set an environment variable: in its place if it is there, else at the end."""
    env = list(container.env or ())
    wanted = objects.EnvVar(name=name, value=value)
    # Of several the last counts.
    place = next((i for i in reversed(range(len(env))) if _named(env[i], name)), None)
    if place is None:
        env.append(wanted)
    elif env[place] == wanted:
        return container
    else:
        env[place] = wanted
    return msgspec.structs.replace(container, env=env)


def _named(variable: objects.EnvVar | None, name: str) -> bool:
    return variable is not None and variable.name == name


def annotation(pod: Pod, key: str, value: str) -> Pod:
    metadata = pod.metadata or objects.Metadata()
    annotations = {**(metadata.annotations or {}), key: value}
    return msgspec.structs.replace(
        pod, metadata=msgspec.structs.replace(metadata, annotations=annotations)
    )


def scheduler(pod: Pod, name: str) -> Pod:
    spec = msgspec.structs.replace(pod.spec or objects.PodSpec(), scheduler_name=name)
    return msgspec.structs.replace(pod, spec=spec)


def runtime_class(pod: Pod, name: str) -> Pod:
    spec = msgspec.structs.replace(pod.spec or objects.PodSpec(), runtime_class_name=name)
    return msgspec.structs.replace(pod, spec=spec)
