"""Edits of a container by admission: each returns a changed copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hami.wire import errors, objects, quantity
from hami.wire.objects import Container


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


def limits_of(container: Container, limits: Mapping[str, objects.Amount]) -> Container:
    """Set limits, and requests that are there already: Kubernetes wants both to be equal.

    The API server copies limits into requests before it asks a webhook.
    """
    there = (container.resources and container.resources.requests) or {}
    requests = {name: amount for name, amount in limits.items() if name in there}
    return amounts(container, limits=limits, requests=requests)


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
    index = next((i for i in reversed(range(len(env))) if is_named(env[i], name)), None)
    if index is None:
        env.append(wanted)
    elif env[index] == wanted:
        return container
    else:
        env[index] = wanted
    return msgspec.structs.replace(container, env=env)


def asks(container: Container, resource: str) -> bool:
    """Tell whether a container asks for a resource; `0` asks for none."""
    amount = container.amount(resource)
    return amount is not None and not is_number(amount, 0)


def is_number(amount: objects.Amount, number: int) -> bool:
    try:
        return quantity.parse(amount, what="") == number
    except errors.WireError:
        return False


def is_named(variable: objects.EnvVar | None, name: str) -> bool:
    return variable is not None and variable.name == name
