"""Run a process under its settings; flags that all processes have.

Runs a process of ours under its settings: logs first, then until it is told to stop.
A process's modules are loaded only once its settings are known to be good: they bring aiohttp, and
the scheduler's numpy, with them.

Flags that several processes have, described once.
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
from hami.serving import grant_keys, logs
from hami.serving import lifetime as serving_errors
from hami.vendors import config_file as vendor_errors
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


API_SERVER = {
    "kubeconfig": "file that says where the API server is; empty: the pod's service account, "
    "then ~/.kube/config",
    "kube_qps": "requests per second to it; 0: without limit",
    "kube_burst": "requests at once to it; 0: without limit",
    "kube_timeout": "how long one request may take; 0: 30 seconds",
    "resync_interval": "time between two comparisons of the caches with it",
}
DEBUG = {"debug": "log every decision; klog's -v=4 and above do the same"}
TELLING = {
    **DEBUG,
    "otlp_endpoint": "address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces",
}
NODE = {
    "node_name": "our node's name in the API; kubelet gives it to a pod as spec.nodeName",
    "hook_path": "folder above vgpu, on the node and in containers",
    "state_dir": "folder of the ledger, on a disk that survives a reboot",
    "run_dir": "folder of containers' state files, in memory",
    "driver_root": "where the driver's root file system is mounted, as /driver-root; empty: its "
    "libraries are where the linker looks",
}
