"""Run a process under its settings; help texts that several processes share.

Logs are set up first. The process's modules are loaded once its settings are known to be valid:
they load aiohttp, and the scheduler's also numpy.
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
from hami.serving import lifetime, logs
from hami.vendors import config_file as vendor_errors
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

#: Only another configuration helps: exit code 2.
_MISCONFIGURED = (
    kube_errors.AccessError,
    lifetime.ServingError,
    vendor_errors.ConfigError,
    wire_errors.WireError,
)
#: A retry may help: exit code 1.
_PREVENTED = (kube_errors.KubeError, lifetime.MustRestartError, OSError)
#: Modules of the extra `agent`, which a plain installation does not have.
_OF_THE_AGENT = frozenset(("grpc", "pynvml"))


API_SERVER = {
    "kubeconfig": "file with the API server's address; empty: the pod's service account, "
    "then ~/.kube/config",
    "kube_qps": "requests per second to it; 0: without limit",
    "kube_burst": "requests at once to it; 0: without limit",
    "kube_timeout": "longest time for one request; 0: 30 seconds",
    "resync_interval": "time between two resyncs with it",
}
DEBUG = {"debug": "log every decision; klog's -v=4 and above do the same"}
LOGS_AND_TRACES = {
    **DEBUG,
    "otlp_endpoint": "address of an OpenTelemetry collector (OTLP over HTTP); empty: no traces",
}
NODE = {
    "node_name": "name of this node in the API, a pod's spec.nodeName",
    "hook_path": "folder above vgpu, on the node and in containers",
    "state_dir": "folder of the ledger, on a disk that survives a reboot",
    "run_dir": "folder of containers' state files, in memory",
    "proc_dir": "folder of the node's processes; needs the host's PID namespace",
    "driver_root": "mount point of the driver's root file system, as /driver-root; empty: its "
    "libraries are where the linker finds them",
}


def run(module: str, resolved: Resolved[Any], *, fast: bool = True) -> int:
    """Run `module.run(settings)` until SIGTERM or SIGINT; returns 0 after a clean stop.

    `fast`: use uvloop, for many requests. asyncio's own loop takes 2 MiB less memory.
    """
    settings, warnings = resolved.settings, resolved.warnings
    logs.set_up(level="debug" if settings.debug else "info", stream=sys.stderr, format="json")
    for warning in warnings:
        _log.warning("setting without effect", extra={"detail": warning})
    _log.info("settings", extra={"settings": msgspec.structs.asdict(settings)})
    lifetime.raise_file_limit()
    try:
        _serve(module, settings, fast=fast)
    except (*_MISCONFIGURED, *_PREVENTED, ExceptionGroup) as error:
        _log.debug("stopped by an error", exc_info=error)
        raise _for_the_user(error) from error
    return 0


def _serve(module: str, settings: msgspec.Struct, *, fast: bool) -> None:
    try:
        process: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in _OF_THE_AGENT:
            raise
        raise errors.CommandError(
            f"needs the Python module {error.name}, which is not installed; install 'hami[agent]'"
        ) from error
    loops: Any = importlib.import_module("uvloop" if fast else "asyncio")
    running: Coroutine[Any, Any, None] = process.run(settings)
    loops.run(running)


def _for_the_user(error: BaseException) -> BaseException:
    """Return the error to print; a bug, or a group with one in it, is returned as it is."""
    # Failed tasks come as a group, also if a single one failed.
    leaves = list(_leaves(error))
    message = "; ".join(dict.fromkeys(str(leaf) for leaf in leaves))
    if all(isinstance(leaf, _MISCONFIGURED) for leaf in leaves):
        return errors.UsageError(message)
    if all(isinstance(leaf, (*_MISCONFIGURED, *_PREVENTED)) for leaf in leaves):
        return errors.CommandError(message)
    return error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
