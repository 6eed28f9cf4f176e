"""Wait until a sandbox is ready: programs, nodes' cards, the webhook."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping
from http import HTTPStatus
from pathlib import Path

import aiohttp

from hami.kube import errors as kube_errors
from hami.kube import paths
from hami.kube.client import Client
from hami.wire import codec, node_marks, objects
from hami_sandbox.errors import SandboxError
from hami_sandbox.programs import Program

REGISTER = "hami.io/node-nvidia-register"
BINDING = "hami.io/node-nvidia-binding"
GPU = "nvidia.com/gpu"
WEBHOOK = "hami-webhook"

_PATIENCE_S = 60.0
_STEP_S = 0.05
#: Lines of a log that are searched for these words, and lines that are shown.
_SEARCHED_LINES = 200
_SHOWN_LINES = 2
_LONGEST_LINE = 300
_BAD = ('"level":"error"', '"level":"warning"', "Error: ")
_WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class _Condition(codec.Object, frozen=True):
    last_heartbeat_time: str | None = None


class _NodeStatus(codec.Object, frozen=True):
    conditions: tuple[_Condition, ...] | None = None


class _Node(codec.Object, frozen=True):
    status: _NodeStatus = _NodeStatus()


async def await_file(path: Path, program: Program) -> None:
    """Wait for the file that a program writes when it serves."""

    async def there() -> bool:
        return await asyncio.to_thread(path.exists)

    await _until(f"{program.name} to serve", there, [program])


async def await_ready(
    client: Client,
    *,
    nodes: Mapping[str, Collection[str]],
    since: str,
    scheduler_url: str,
    authority: Path,
    programs: Collection[Program],
) -> None:
    """Wait until pods can be placed, then register the webhook: from there on it must answer.

    `nodes` has the begins of the names of resources that each must offer. `since` is the start of
    the sandbox, as the API writes times: older statuses do not count.
    """
    trust = ssl.create_default_context(cafile=str(authority))
    async with aiohttp.ClientSession() as session:

        async def answers() -> bool:
            async with session.get(f"{scheduler_url}/readyz", ssl=trust) as answer:
                return answer.status == HTTPStatus.OK

        for name, resources in nodes.items():
            offers = _offers(client, name, resources, since)
            await _until(f"node {name} to offer its cards", offers, programs)
        await _until("hami scheduler to be ready", answers, programs)
    webhook = codec.encode(_webhook(scheduler_url, authority))
    try:
        await client.create(_WEBHOOKS, webhook)
    except kube_errors.Conflict:  # from a snapshot, with an old address
        await client.patch(f"{_WEBHOOKS}/{WEBHOOK}", webhook)


def _offers(
    client: Client, name: str, resources: Collection[str], since: str
) -> Callable[[], Awaitable[bool]]:
    async def offers() -> bool:
        try:
            body = await client.get(paths.nodes(name))
        except kube_errors.NotFound:
            return False
        conditions = codec.decode(body, _Node, what=f"node {name}").status.conditions or ()
        if max((each.last_heartbeat_time or "" for each in conditions), default="") < since:
            return False  # a snapshot's status: the kubelet of this run has not written its own
        node = codec.decode(body, objects.Node, what=f"node {name}")
        offered = [name for name, amount in node.allocatable.items() if str(amount) != "0"]
        return all(any(name.startswith(each) for name in offered) for each in resources)

    return offers


def is_late(node: objects.Node) -> bool:
    """Return whether a node binds late, by its agent's annotations."""
    return node_marks.is_late(node.annotations.get(BINDING), node.annotations.get(REGISTER))


def _webhook(scheduler_url: str, authority: Path) -> dict[str, object]:
    """Return the chart's webhook for a server on loopback; its failure fails the pod."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [
            {
                "name": "vgpu.hami.io",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {
                    "url": f"{scheduler_url}/webhook",
                    "caBundle": b64encode(authority.read_bytes()).decode(),
                },
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                        "scope": "*",
                    }
                ],
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
                    ]
                },
                "objectSelector": {
                    "matchExpressions": [
                        {"key": "hami.io/webhook", "operator": "NotIn", "values": ["ignore"]}
                    ]
                },
                "failurePolicy": "Fail",
                "reinvocationPolicy": "IfNeeded",
                "sideEffects": "None",
                "timeoutSeconds": 10,
            }
        ],
    }


async def _until(
    what: str, condition: Callable[[], Awaitable[bool]], programs: Collection[Program]
) -> None:
    end = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(aiohttp.ClientError, kube_errors.KubeError, TimeoutError):
            if await condition():
                return
        if time.monotonic() > end:
            complaints = [f"{one.name}: {shown}" for one in programs for shown in _complaints(one)]
            raise SandboxError(
                f"waited {_PATIENCE_S:.0f} s for {what}",
                "it did not happen",
                "the programs say:\n" + "\n".join(complaints),
            )
        await asyncio.sleep(_STEP_S)


def _complaints(program: Program) -> list[str]:
    """Return the last errors and warnings of a program's log, or else its last line."""
    lines = program.last_lines(_SEARCHED_LINES)
    bad = [line for line in lines if any(word in line for word in _BAD)]
    return [line[:_LONGEST_LINE] for line in (bad[-_SHOWN_LINES:] or lines[-1:])]
