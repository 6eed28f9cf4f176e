"""The runtime's CRI socket: Version and verbose Status of runtime.v1.

The status has the runtime's configuration as containerd 2 writes it: at any depth there are
`cdiSpecDirs` and `enableCDI`, which decide whether the node binds late.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

from hami.agent.kubelet import grpc
from hami.agent.kubelet.grpc import Call, Message, many, one, shapes, texts
from hami.wire import codec
from hami_sandbox.runtime.runtime import Runtime

NAME = "hami-sandbox"
API_VERSION = "v1"

_SERVICE = "runtime.v1.RuntimeService"
_SHAPES = shapes(
    {
        "VersionRequest": (one(1, "version"),),
        "VersionResponse": (
            one(1, "version"),
            one(2, "runtime_name"),
            one(3, "runtime_version"),
            one(4, "runtime_api_version"),
        ),
        "StatusRequest": (one(1, "verbose", "bool"),),
        "RuntimeCondition": (
            one(1, "type"),
            one(2, "status", "bool"),
            one(3, "reason"),
            one(4, "message"),
        ),
        "RuntimeStatus": (many(1, "conditions", "RuntimeCondition"),),
        "StatusResponse": (one(1, "status", "RuntimeStatus"), texts(2, "info")),
    }
)
_VERSION = Call(_SERVICE, "Version", _SHAPES["VersionRequest"], _SHAPES["VersionResponse"])
_STATUS = Call(_SERVICE, "Status", _SHAPES["StatusRequest"], _SHAPES["StatusResponse"])


async def serve_cri(socket: Path, runtime: Runtime) -> Any:
    """Serve on the socket; return the server, which ends with `await server.stop(None)`."""
    _make_room(socket)
    answers = _Answers(runtime)
    handler = grpc.handler({_VERSION: answers.version, _STATUS: answers.status})
    server = grpc.server(socket, handler)
    await server.start()
    return server


def _make_room(socket: Path) -> None:
    socket.parent.mkdir(parents=True, exist_ok=True)
    socket.unlink(missing_ok=True)  # an earlier kubelet's


class _Answers:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def version(self, _request: Message, _context: Any) -> Message:
        return {
            "version": "0.1.0",  # of the kubelet API, the same in all runtimes
            "runtime_name": NAME,
            "runtime_version": f"v{importlib.metadata.version('hami')}",
            "runtime_api_version": API_VERSION,
        }

    async def status(self, request: Message, _context: Any) -> Message:
        conditions = [{"type": name, "status": True} for name in ("RuntimeReady", "NetworkReady")]
        config = {
            "containerdRootDir": str(self._runtime.folder),
            "cdiSpecDirs": [str(folder) for folder in self._runtime.cdi_dirs],
            "enableCDI": True,
        }
        info = {"config": codec.encode(config).decode()} if request["verbose"] else {}
        return {"status": {"conditions": conditions}, "info": info}
