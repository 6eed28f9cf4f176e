"""The process of the API server, from start to SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import ssl
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from hami.kube import kubeconfig
from hami.kube.client import Client
from hami.serving import addresses, lifetime, logs
from hami_sandbox import access
from hami_sandbox.apiserver import deletion, snapshot
from hami_sandbox.apiserver.api import Api
from hami_sandbox.apiserver.auth.admission import Admission
from hami_sandbox.apiserver.auth.authorization import Authorizer
from hami_sandbox.apiserver.auth.logs import Logs
from hami_sandbox.apiserver.auth.reviews import Reviews
from hami_sandbox.apiserver.auth.users import Authenticator, signing_key
from hami_sandbox.apiserver.definitions import Definitions
from hami_sandbox.apiserver.kinds import Catalogue
from hami_sandbox.apiserver.server import Server
from hami_sandbox.apiserver.store import HISTORY, Store
from hami_sandbox.apiserver.writes import Writes, complete
from hami_sandbox.controllers.main import run as run_controllers

_log = logging.getLogger(__name__)

_CONTROLLERS = "kube-controller-manager"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the server."""

    host: str
    port: int
    folder: Path
    kubeconfig: Path | None = None
    history: int = HISTORY
    snapshot: Path | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    settings, level = _parse(arguments)
    logs.set_up(level=level)
    uvloop.run(run(settings))
    return 0


async def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = lifetime.stop_asked()
    store = Store(settings.history)
    if settings.snapshot is not None and settings.snapshot.exists():
        snapshot.read(store, settings.snapshot)
    snapshot.add_built_in(store)
    admission = Admission(store, complete=complete)
    server = _server(settings, store, admission)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.folder / access.CERTIFICATE, settings.folder / access.KEY)
    await server.start(settings.host, settings.port, context)
    try:
        url = f"https://{settings.host}:{server.port}"
        _write_kubeconfig(settings, settings.folder / "controllers.kubeconfig", url)
        async with asyncio.TaskGroup() as group:
            works = lifetime.start(
                group, {"controllers": _control(settings), "events": deletion.forget(store)}
            )
            if settings.kubeconfig is not None:
                _write_kubeconfig(settings, settings.kubeconfig, url)
            _log.info("serving", extra={"url": url, "revision": store.revision})
            await stop.wait()
            for work in works:
                work.cancel()
    finally:
        store.stop()
        await server.stop()
        await admission.close()
        _save(settings, store)
    _log.info("stopped", extra={"revision": store.revision})


def _server(settings: Settings, store: Store, admission: Admission) -> Server:
    folder = settings.folder
    secret = (folder / access.KEY).read_bytes()
    authenticator = Authenticator(store, access.users(folder), key=signing_key(secret))
    authorizer = Authorizer(store)
    catalogue = Catalogue()
    Definitions(store, catalogue).start()
    api = Api(
        store=store,
        catalogue=catalogue,
        authenticator=authenticator,
        authorizer=authorizer,
        reviews=Reviews(store, authenticator, authorizer),
        writes=Writes(store, admission),
    )
    token = (folder / access.KUBELET_TOKEN).read_text().strip()
    save = functools.partial(_save, settings, store) if settings.snapshot is not None else None
    return Server(api, Logs(store, kubelet_token=token), save=save)


async def _control(settings: Settings) -> None:
    """Run the controllers as a client of this server."""
    found = kubeconfig.load([str(settings.folder / "controllers.kubeconfig")])
    async with Client(found, user_agent=_CONTROLLERS) as client:
        await run_controllers(client)
        await asyncio.Event().wait()


def _write_kubeconfig(settings: Settings, path: Path, url: str) -> None:
    folder = settings.folder
    token = access.users(folder)[0].token
    access.write_kubeconfig(
        path, server=url, ca=(folder / access.AUTHORITY).read_bytes(), token=token
    )


def _save(settings: Settings, store: Store) -> None:
    if settings.snapshot is not None:
        snapshot.write(store, settings.snapshot)


def _parse(arguments: Sequence[str] | None) -> tuple[Settings, str]:
    parser = argparse.ArgumentParser(
        prog="python -m hami_sandbox.apiserver",
        description="Serve the Kubernetes API of a sandbox on this machine.",
    )
    parser.add_argument("--bind", default="127.0.0.1:0", help="address; port 0 finds a free one")
    parser.add_argument(
        "--folder", type=Path, required=True, help="certificate and tokens (hami_sandbox.access)"
    )
    parser.add_argument(
        "--kubeconfig", type=Path, help="file to write for the administrator once it serves"
    )
    parser.add_argument(
        "--history", type=int, default=HISTORY, help="changes remembered of each kind"
    )
    parser.add_argument(
        "--snapshot", type=Path, help="file to begin with if it exists, and to write at the end"
    )
    parser.add_argument("--log-level", default="info", help="debug, info or warning")
    found = parser.parse_args(arguments)
    if found.history < 1:
        parser.error(f"--history {found.history}: at least 1 change must be remembered; raise it")
    if not (found.folder / access.TOKENS).exists():
        parser.error(
            f"--folder {found.folder}: it has no {access.TOKENS}; make it with hami_sandbox.access"
        )
    host, port = addresses.parse(found.bind)
    settings = Settings(
        host=host,
        port=port,
        folder=found.folder,
        kubeconfig=found.kubeconfig,
        history=found.history,
        snapshot=found.snapshot,
    )
    return settings, found.log_level
