"""The API server as a process is told to reach it: its settings to a client."""

from __future__ import annotations

from typing import Protocol

from hami.kube import access
from hami.kube.client import Client


class Connection(Protocol):
    """What every process can be told about the API server."""

    @property
    def kubeconfig(self) -> str: ...
    @property
    def kube_timeout(self) -> float: ...
    @property
    def kube_qps(self) -> float: ...
    @property
    def kube_burst(self) -> int: ...


def client(settings: Connection, *, user_agent: str) -> Client:
    return Client(
        access.find(settings.kubeconfig),
        user_agent=user_agent,
        timeout=settings.kube_timeout,
        qps=settings.kube_qps,
        burst=settings.kube_burst,
    )
