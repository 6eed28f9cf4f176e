"""Edits that complete a pod's request for cards; each returns a changed copy.

`completed` adds the number of cards if only memory or compute is named, and all of a card's compute
if a whole card is asked for, so that no other container is placed on it. `with_variables` adds the
variables that the library in the container reads. A container without cards stays as it is, or is
kept from seeing any (`overwriteEnv`).

Pods are read-only structs of the few fields that admission reads and writes;
`hami.admission.json_patch` writes the difference between the first and the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from hami.vendors.device_config import NvidiaSettings
from hami.vendors.family import WHOLE_CARD
from hami.vendors.table import Vendor
from hami.wire import errors, objects, quantity
from hami.wire.objects import Amount, Container, ContainerKind, Pod

TASK_PRIORITY = "CUDA_TASK_PRIORITY"
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = "none"
#: Values with which a container sees no card.
_SEES_NOTHING = (NO_DEVICES, "void", "")
_NVIDIA_DOMAIN = "nvidia.com/"

Edit = Callable[[ContainerKind, Container], Container]


def completed(container: Container, vendor: Vendor) -> Container:
    """Return the container with the amounts that its request leaves open."""
    names = vendor.resources
    limits = (container.resources and container.resources.limits) or {}
    sizes = (names.cores, names.memory, names.memory_percentage)
    given: dict[str, Amount] = {}
    if limits.get(names.count) is None:
        asked = container.amount(names.count)
        if asked is not None and wants(container, vendor):
            # The API server requires a limit beside a request for such a resource.
            given[names.count] = asked
        elif asked is None and vendor.default_count and any(n and n in limits for n in sizes):
            given[names.count] = str(vendor.default_count)
    if given:
        container = amounts(container, limits=given)
    if wants(container, vendor) and _wants_whole_cards(container, vendor):
        container = amounts(container, limits={names.cores: str(WHOLE_CARD)})
    return container


def wants(container: Container, vendor: Vendor) -> bool:
    """Tell whether a container asks for cards of this vendor; `0` asks for none."""
    amount = container.amount(vendor.resources.count)
    return amount is not None and not _is(amount, 0)


def _wants_whole_cards(container: Container, vendor: Vendor) -> bool:
    """Tell whether a container names neither a part of a card's memory nor compute."""
    names = vendor.resources
    if not names.cores or container.amount(names.cores) is not None:
        return False
    percentage = container.amount(names.memory_percentage) if names.memory_percentage else None
    if percentage is not None:
        return _is(percentage, WHOLE_CARD)
    return not names.memory or container.amount(names.memory) is None


def with_variables(container: Container, vendor: Vendor, settings: NvidiaSettings) -> Container:
    """Return a container with cards plus the variables that the library in it reads."""
    priority = vendor.resources.priority
    amount = container.amount(priority) if priority else None
    if amount is not None:
        number = quantity.exact_integer(
            amount,
            what=f"container {container.name}, {priority}",
            remedy="write a whole number; 0 is the highest priority",
        )
        container = variable(container, TASK_PRIORITY, str(number))
    if settings.gpu_core_policy != "default":
        container = variable(container, CORE_POLICY, settings.gpu_core_policy)
    return container


def hidden(container: Container, vendor: Vendor) -> Container:
    """Return a container that sees no card, unless another device plugin gives it one."""
    if any(True for _ in _amounts_of_domain(container, vendor)):
        return container
    return variable(container, VISIBLE_DEVICES, NO_DEVICES)


def sees_cards(container: Container) -> bool:
    """Tell whether a container names cards to NVIDIA's runtime in its own variable."""
    # If a name is repeated, the last one counts.
    named = [each for each in container.env or () if _named(each, VISIBLE_DEVICES)]
    last = named[-1] if named else None
    return last is not None and not (
        last.value_from is None and (last.value or "") in _SEES_NOTHING
    )


def has_other_devices(container: Container, vendor: Vendor) -> bool:
    """Tell whether another device plugin gives a container cards, and sets its variable."""
    ours = frozenset(vendor.resources.named())
    return any(
        name not in ours and amount is not None and not _is(amount, 0)
        for name, amount in _amounts_of_domain(container, vendor)
    )


def _amounts_of_domain(container: Container, vendor: Vendor) -> Iterator[tuple[str, Amount | None]]:
    # A plugin that offers nvidia.com/mig-1g.10gb or nvidia.com/gpu.shared sets the variable, too.
    # Beside such a plugin, our own resources may have another domain.
    domains = (vendor.resources.count.partition("/")[0] + "/", _NVIDIA_DOMAIN)
    resources = container.resources
    for part in (resources.limits, resources.requests) if resources else ():
        for name, amount in (part or {}).items():
            if name.startswith(domains):
                yield name, amount


def _is(amount: Amount, number: int) -> bool:
    try:
        return quantity.parse(amount, what="") == number
    except errors.WireError:
        return False


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
    """Remove resources from a container, then set others."""
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
    # If a name is repeated, the last one counts.
    index = next((i for i in reversed(range(len(env))) if _named(env[i], name)), None)
    if index is None:
        env.append(wanted)
    elif env[index] == wanted:
        return container
    else:
        env[index] = wanted
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
