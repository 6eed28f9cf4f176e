"""Idle connections, more of them than a process may open by default."""

from __future__ import annotations

import contextlib
import http
import http.client
import socket
import subprocess
import sys

#: Soft limits of 1,024 are common for containers; here the same with less to open.
SOFT, HARD, SILENT = 100, 1000, 200
#: Seconds; catches hangs only.
PATIENCE_S = 30

PROGRAM = f"""
import asyncio, resource, sys, types

resource.setrlimit(resource.RLIMIT_NOFILE, ({SOFT}, {HARD}))

import msgspec
from hami.cli import run
from hami.serving import endpoints
from hami.serving.http_server import Server

async def serve(settings):
    server = Server(endpoints.health_routes(lambda names: (True, [])))
    await server.start("127.0.0.1", 0)
    print(server.port, flush=True)
    await asyncio.Event().wait()

sys.modules["silent"] = types.SimpleNamespace(run=serve)

class Settings(msgspec.Struct):
    debug: bool = False

run.run("silent", types.SimpleNamespace(settings=Settings(), warnings=()))
"""


def test_silent_connections_do_not_keep_others_from_being_answered() -> None:
    with contextlib.ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for _ in range(SILENT):
            silent = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
            stack.callback(silent.close)
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        stack.callback(asking.close)
        asking.request("GET", "/healthz")
        assert asking.getresponse().status == http.HTTPStatus.OK
