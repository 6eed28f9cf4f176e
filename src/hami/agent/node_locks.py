"""Giving HAMi's node lock back after its pod has been served (A.8).

The lock may be another pod's by now, or be taken by the scheduler while we look. So it is removed
only where it names our pod, and the patch names the version of the node that was read. Should it
stay nevertheless, the scheduler finds that its pod has its cards, and removes it.
"""

from __future__ import annotations

import asyncio
import logging
import random as randomness
from collections.abc import Awaitable, Callable

from hami.kube import errors, paths
from hami.kube.backoff import Backoff
from hami.kube.client import Client
from hami.wire import annotation_keys, codec, node_lock, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

ATTEMPTS = 8


async def release(
    client: Client,
    node: str,
    *,
    namespace: str,
    name: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    random: Callable[[], float] = randomness.random,
) -> bool:
    """Remove the node's lock if it is this pod's; return whether it is surely not there now."""
    backoff = Backoff(first=0.1, longest=5.0, random=random)
    failure: Exception | None = None
    for _ in range(ATTEMPTS):
        try:
            return await _release_once(client, node, namespace, name)
        except errors.NotFound:
            return True  # no node, no lock
        except errors.KubeError as error:
            failure = error
            if error.retry is errors.Retry.NEVER:
                break
            await sleep(backoff.next(error.retry_after))
        except wire_errors.WireError as error:
            failure = error
            break
    _log.warning(
        "a node lock could not be removed; the scheduler will",
        extra={"node": node, "namespace": namespace, "pod": name, "error": str(failure)},
    )
    return False


async def _release_once(client: Client, node: str, namespace: str, name: str) -> bool:
    body = await client.get(paths.nodes(node))
    found = codec.decode(body, objects.Node, what=f"node {node}")
    if not is_held_by(found.annotation(annotation_keys.NODE_LOCK), namespace, name):
        return True
    patch = {
        "metadata": {
            "annotations": {annotation_keys.NODE_LOCK: None},
            "resourceVersion": found.metadata and found.metadata.resource_version,
        }
    }
    await client.patch(paths.nodes(node), codec.encode(patch))
    return True


def is_held_by(value: str, namespace: str, name: str) -> bool:
    """Tell whether a lock names this pod; what is no lock names none."""
    if not value:
        return False
    try:
        return node_lock.decode(value).held_by(namespace, name)
    except wire_errors.WireError:
        return False
