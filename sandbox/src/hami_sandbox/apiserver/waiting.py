"""Waiting for a version that is yet to come."""

from __future__ import annotations

import asyncio

from hami_sandbox.apiserver.refusals import Refusal
from hami_sandbox.apiserver.store import Store

#: Seconds that a request for a future version waits for it, as kube-apiserver does.
PATIENCE = 3.0
RETRY_AFTER = 1


async def reached(store: Store, revision: int, *, patience: float = PATIENCE) -> bool:
    """Wait until the store is at a version, but not for long; return whether it is."""
    if store.revision >= revision:
        return True
    woken = asyncio.Event()
    store.wake(woken.set)
    try:
        async with asyncio.timeout(patience):
            while store.revision < revision:
                woken.clear()
                await woken.wait()
    except TimeoutError:
        return False
    finally:
        store.let_sleep(woken.set)
    return True


def too_large(asked: int, current: int) -> Refusal:
    """Refuse a version that did not come in time; the client may ask again."""
    message = f"Too large resource version: {asked}, current: {current}"
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    details = {"causes": [cause], "retryAfterSeconds": RETRY_AFTER}
    return Refusal(504, "Timeout", f"Timeout: {message}", details)


def expired(message: str) -> Refusal:
    """Refuse a version that is forgotten."""
    return Refusal(410, "Expired", message)
