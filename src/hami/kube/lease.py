"""Hold a Lease of our own, where no kube-scheduler elects beside us.

One loop takes the lease when it is free, and renews it while we have it. Two rules make it safe:

- Every write names the version that it is based on, so of two candidates one gets a 409.
- Whether another's lease has run out is judged by our own monotonic clock since we last saw it
  change, never by the times written in it: clocks of two machines differ.

What the lease means for binding (the fence, the renew deadline) is decided by
`hami.scheduler.leadership`, which is called for every lease that is seen or written here.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import math
import random as randomness
import time
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from hami.kube import errors, paths
from hami.kube.client import Client
from hami.wire import codec, objects
from hami.wire import errors as wire_errors

_log = logging.getLogger(__name__)

Document = dict[str, Any]


class LeaseElector:
    """Takes one Lease and renews it."""

    def __init__(
        self,
        client: Client,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease_duration: float,
        renew_deadline: float,
        retry_period: float,
        on_observed: Callable[[objects.Lease], None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self.identity = identity
        # A renewal must not queue behind a burst of binds: that would lose the lease.
        self._client = client.apart(1)
        self._namespace = namespace
        self._name = name
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._retry_period = retry_period
        self._on_observed = on_observed
        self._clock = clock
        self._now = now
        self._sleep = sleep
        self._random = random
        self._lock = asyncio.Lock()
        self._released = False
        #: The lease as last seen, to be written back with our changes; None: read it first.
        self._document: Document | None = None
        self._spec: objects.LeaseSpec | None = None
        self._changed_at = -math.inf
        self._renewed_at = -math.inf

    @property
    def holding(self) -> bool:
        """Whether a renewal of ours succeeded within the renew deadline."""
        return self._clock() - self._renewed_at < self._renew_deadline

    async def run(self) -> NoReturn:
        """Take the lease and keep it, for ever; end by cancellation."""
        while True:
            began = self._clock()
            async with self._lock:
                if not self._released:
                    await self._try()
            wait = self._retry_period
            if not self.holding:
                # Candidates must not all ask in the same moment.
                wait *= 1 + 0.2 * self._random()
            await self._sleep(max(wait - (self._clock() - began), 0.01))

    async def release(self) -> None:
        """Give the lease up, so that another takes it at once; `run` takes it no more."""
        async with self._lock:
            self._released = True
            if not self.holding or self._document is None:
                return
            self._renewed_at = -math.inf
            spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._stamp()}
            try:
                await self._write(self._document, spec)
            except (errors.KubeError, wire_errors.WireError) as error:
                _log.warning("cannot release the lease", extra={"error": str(error)})

    async def _try(self) -> None:
        held = self.holding
        try:
            await self._step()
        except (errors.KubeError, wire_errors.WireError) as error:
            # Whether it was written or not: read it before the next write.
            self._document = None
            _log.warning(
                "cannot read or write the lease",
                extra={"lease": f"{self._namespace}/{self._name}", "error": str(error)},
            )
        if held != self.holding:
            word = "lost" if held else "taken"
            _log.info("lease %s", word, extra={"identity": self.identity})

    async def _step(self) -> None:
        if self._document is not None and self.holding:
            with contextlib.suppress(errors.Conflict, errors.NotFound):
                await self._take(self._document)
                return
        try:
            self._observe(await self._client.get(self._path, timeout=self._patience))
        except errors.NotFound:
            await self._create()
            return
        assert self._document is not None
        if self._may_take():
            with contextlib.suppress(errors.Conflict):  # another was faster; it will be seen
                await self._take(self._document)

    def _may_take(self) -> bool:
        spec = self._spec or objects.LeaseSpec()
        if not spec.holder_identity or spec.holder_identity == self.identity:
            return True
        lasts = spec.lease_duration_seconds or 0
        return self._clock() - self._changed_at > (lasts if lasts > 0 else self._lease_duration)

    async def _take(self, document: Document) -> None:
        spec: Document = {"renewTime": self._stamp()}
        old = document.get("spec") or {}
        if old.get("holderIdentity") != self.identity:
            spec |= {
                "holderIdentity": self.identity,
                "acquireTime": spec["renewTime"],
                "leaseTransitions": (old.get("leaseTransitions") or 0) + 1,
            }
        spec["leaseDurationSeconds"] = self._seconds
        began = self._clock()
        await self._write(document, spec)
        self._renewed_at = began

    async def _create(self) -> None:
        stamp = self._stamp()
        document: Document = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self.identity,
                "leaseDurationSeconds": self._seconds,
                "acquireTime": stamp,
                "renewTime": stamp,
                "leaseTransitions": 0,
            },
        }
        began = self._clock()
        path = paths.leases(self._namespace)
        with contextlib.suppress(errors.Conflict):  # another was faster; it will be seen
            self._observe(
                await self._client.create(path, codec.encode(document), timeout=self._patience)
            )
            self._renewed_at = began

    async def _write(self, document: Document, spec: Document) -> None:
        """Replace the lease, based on the version that `document` has."""
        changed = {**document, "spec": {**(document.get("spec") or {}), **spec}}
        self._document = None  # until the answer says what it is now
        body = codec.encode(changed)
        self._observe(await self._client.replace(self._path, body, timeout=self._patience))

    def _observe(self, body: bytes) -> None:
        lease = codec.decode(body, objects.Lease, what="lease")
        self._document = codec.decode(body, dict[str, Any], what="lease")
        spec = lease.spec or objects.LeaseSpec()
        if spec != self._spec:
            self._spec = spec
            self._changed_at = self._clock()
        self._on_observed(lease)

    def _stamp(self) -> str:
        return dt.datetime.fromtimestamp(self._now(), dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    @property
    def _seconds(self) -> int:
        return max(math.ceil(self._lease_duration), 1)

    @property
    def _patience(self) -> float:
        """Seconds for one request, so that there is time for a second one within the deadline."""
        return self._renew_deadline / 2

    @property
    def _path(self) -> str:
        return paths.lease(self._namespace, self._name)
