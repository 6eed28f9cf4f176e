"""All objects under one counter of versions, and waiting for a version.

A write happens at once or not at all: a client that writes on top of a version names that version,
and gets StaleError if another write came first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator

from hami_sandbox.apiserver.refusals import Object, Refusal
from hami_sandbox.apiserver.table import Stored, Table, key_of

#: Changes remembered of each kind: about a minute at the pace of a busy demo.
HISTORY = 5_000


class StaleError(Exception):
    """The object is no longer what the writer has read."""


class Store:
    def __init__(self, history: int = HISTORY) -> None:
        self._bound = history
        self._tables: dict[tuple[str, str], Table] = {}
        self._wakers: set[Callable[[], None]] = set()
        #: The version of the newest write. The first one is 2: 1 is before everything.
        self.revision = 1
        #: Whether watches shall end, because the server does.
        self.stopping = False
        # New kinds have no history before this version.
        self._begins = 0

    def table(self, stored: tuple[str, str]) -> Table:
        """Return the objects of a kind by group and resource."""
        table = self._tables.get(stored)
        if table is None:
            # A kind that was never used had no changes, so its history is complete.
            table = self._tables[stored] = Table(self._bound, self._begins)
        return table

    def begin(self, stored: tuple[str, str]) -> None:
        """Begin a kind now: what was before is unknown."""
        self._tables[stored] = Table(self._bound, self.revision)

    def end(self, stored: tuple[str, str]) -> None:
        """Forget a kind and all its objects."""
        table = self._tables.pop(stored, None)
        if table is not None:
            table.wake_all()

    def stop(self) -> None:
        """Let all watches end."""
        self.stopping = True
        for table in self._tables.values():
            table.wake_all()

    def has(self, stored: tuple[str, str], table: Table) -> bool:
        """Whether this is still the table of the kind."""
        return self._tables.get(stored) is table

    def tables(self) -> Iterator[tuple[tuple[str, str], Table]]:
        yield from self._tables.items()

    # Reads of authentication, authorization and admission.

    def find(self, group: str, resource: str, namespace: str, name: str) -> Object | None:
        found = self.table((group, resource)).get(namespace, name)
        return None if found is None else found.object

    def all(self, group: str, resource: str, namespace: str = "") -> Iterable[Object]:
        state = self.table((group, resource)).now(self.revision)
        return [stored.object for _, stored in state.items(namespace)]

    # Writes.

    def put(self, where: tuple[str, str], content: Object, *, over: int) -> Stored:
        """Store an object over the version that was read; 0 if there was none.

        Its resourceVersion is set. The content belongs to the store from now on.
        """
        table = self.table(where)
        metadata = content["metadata"]
        self._expect(table, metadata.get("namespace") or "", metadata["name"], over)
        self.revision += 1
        metadata["resourceVersion"] = str(self.revision)
        stored = Stored(content, self.revision)
        table.put(stored)
        self._wake()
        return stored

    def remove(self, where: tuple[str, str], namespace: str, name: str, *, over: int) -> Stored:
        """Remove an object of which this version was read; return its last state."""
        table = self.table(where)
        self._expect(table, namespace, name, over)
        self.revision += 1
        removed = table.remove(key_of(namespace, name), self.revision).removed
        self._wake()
        return removed

    def forget(self, revision: int) -> None:
        """Forget the history up to a version, as etcd does when it is compacted."""
        for table in self._tables.values():
            table.history.forget(min(revision, self.revision))
            table.wake_all()

    def load(self, revision: int, objects: Iterable[tuple[tuple[str, str], list[Object]]]) -> None:
        """Begin with these objects at this version; nothing before it is known."""
        self.revision = self._begins = revision
        self._tables.clear()
        for where, found in objects:
            table = self._tables[where] = Table(self._bound, revision)
            table.load([Stored(o, int(o["metadata"]["resourceVersion"])) for o in found])

    # Waiting for a version.

    def wake(self, waker: Callable[[], None]) -> None:
        """Call this after each write of any kind."""
        self._wakers.add(waker)

    def let_sleep(self, waker: Callable[[], None]) -> None:
        self._wakers.discard(waker)

    def _wake(self) -> None:
        for waker in self._wakers:
            waker()

    @staticmethod
    def _expect(table: Table, namespace: str, name: str, over: int) -> None:
        found = table.get(namespace, name)
        if (0 if found is None else found.revision) != over:
            raise StaleError


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
