"""Runs a process of ours under its settings: logs first, then until it is told to stop.

A process's modules are loaded only once its settings are known to be good: they bring aiohttp, and
the scheduler's numpy, with them.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Coroutine, Iterator
from typing import Any

import msgspec

from hami.cli import errors
from hami.cli.flags import Resolved
from hami.kube import errors as kube_errors
from hami.serving import errors as serving_errors
from hami.serving import grant_keys, logs
from hami.vendors import errors as vendor_errors
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: What only another configuration can cure.
_MISCONFIGURED = (
    grant_keys.GrantKeyError,
    kube_errors.AccessError,
    serving_errors.ServingError,
    vendor_errors.ConfigError,
    wire_errors.WireError,
)
#: What may be otherwise at the next try.
_PREVENTED = (kube_errors.KubeError, OSError)


def run(module: str, resolved: Resolved[Any], *, fast: bool = True) -> int:
    """Run `module.run(settings)` until SIGTERM or SIGINT; 0 after a clean stop.

    `fast`: on uvloop, for many requests. Otherwise on asyncio's own loop, which is 2 MiB smaller.
    """
    settings, warnings = resolved.settings, resolved.warnings
    logs.set_up(level="debug" if settings.debug else "info", stream=sys.stderr, format="json")
    for warning in warnings:
        _log.warning("a setting has no effect", extra={"detail": warning})
    _log.info("settings", extra={"settings": msgspec.structs.asdict(settings)})
    try:
        _serve(module, settings, fast=fast)
    except (*_MISCONFIGURED, *_PREVENTED, ExceptionGroup) as error:
        _log.debug("stopped by an error", exc_info=error)
        raise _for_the_user(error) from error
    return 0


def _serve(module: str, settings: msgspec.Struct, *, fast: bool) -> None:
    process: Any = importlib.import_module(module)
    loops: Any = importlib.import_module("uvloop" if fast else "asyncio")
    running: Coroutine[Any, Any, None] = process.run(settings)
    loops.run(running)


def _for_the_user(error: BaseException) -> BaseException:
    """Return what to tell; an error that holds anything else than the user's own comes back."""
    # Tasks fail as groups; one that holds only what the user can cure is told like a single one.
    leaves = list(_leaves(error))
    told = "; ".join(dict.fromkeys(str(leaf) for leaf in leaves))
    if all(isinstance(leaf, _MISCONFIGURED) for leaf in leaves):
        return errors.UsageError(told)
    if all(isinstance(leaf, (*_MISCONFIGURED, *_PREVENTED)) for leaf in leaves):
        return errors.CommandError(told)
    return error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
