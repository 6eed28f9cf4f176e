"""Edits of a pod with cards, and of containers for NVIDIA's runtime and library.

Each returns a changed copy. Vendors' families complete requests for cards. `with_variables` adds
the variables that the library in the container reads. A container without cards stays as it is, or
is kept from seeing any (`overwriteEnv`).

Pods are read-only structs of the few fields that admission reads and writes;
`hami.admission.json_patch` writes the difference between the first and the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from hami.vendors import container_edits
from hami.vendors.device_config import NvidiaSettings
from hami.vendors.table import Vendor
from hami.wire import objects, quantity
from hami.wire.objects import Amount, Container, ContainerKind, Pod

TASK_PRIORITY = "CUDA_TASK_PRIORITY"
CORE_POLICY = "GPU_CORE_UTILIZATION_POLICY"
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
NO_DEVICES = "none"
#: Values with which a container sees no card.
_SEES_NOTHING = (NO_DEVICES, "void", "")
_NVIDIA_DOMAIN = "nvidia.com/"

Edit = Callable[[ContainerKind, Container], Container]


def wants(container: Container, vendor: Vendor) -> bool:
    """Tell whether a container asks for cards of this vendor; `0` asks for none."""
    return container_edits.asks(container, vendor.resources.count)


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
        container = container_edits.variable(container, TASK_PRIORITY, str(number))
    if settings.gpu_core_policy != "default":
        container = container_edits.variable(container, CORE_POLICY, settings.gpu_core_policy)
    return container


def hidden(container: Container, vendor: Vendor) -> Container:
    """Return a container that sees no card, unless another device plugin gives it one."""
    if any(True for _ in _amounts_of_domain(container, vendor)):
        return container
    return container_edits.variable(container, VISIBLE_DEVICES, NO_DEVICES)


def sees_cards(container: Container) -> bool:
    """Tell whether a container names cards to NVIDIA's runtime in its own variable."""
    # If a name is repeated, the last one counts.
    named = [
        each for each in container.env or () if container_edits.is_named(each, VISIBLE_DEVICES)
    ]
    last = named[-1] if named else None
    return last is not None and not (
        last.value_from is None and (last.value or "") in _SEES_NOTHING
    )


def has_other_devices(container: Container, vendor: Vendor) -> bool:
    """Tell whether another device plugin gives a container cards, and sets its variable."""
    ours = frozenset(vendor.resources.named())
    return any(
        name not in ours and amount is not None and not container_edits.is_number(amount, 0)
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
