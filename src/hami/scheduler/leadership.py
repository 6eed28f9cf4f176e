"""Leadership: a fence around every write that places a pod.

kube-scheduler elects; this replica only watches its Lease. It leads while the lease names the
kube-scheduler beside it, `<our hostname>_<UUID>` and nothing shorter or longer (HAMi compares a
prefix, so node-1 believes the lease of node-10), and while the lease was *seen* renewed within the
renew deadline. The clock cannot be set back and goes on while the process is stopped. The first
sight of a lease proves nothing: only a renewal does.

A stale leader is dangerous because it may bind after another has decided otherwise. So `check` is
called again in the last moment before a Binding is sent, and its permit bounds how long the API
server may work on it: no other replica gets the lease before `lease_duration` has passed since the
renewal, and our Binding is done or refused by then.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable

from hami.kube import listwatch, paths
from hami.kube.client import Client
from hami.kube.informer import Informer
from hami.kube.lease import LeaseElector
from hami.scheduler.settings import Settings
from hami.wire import objects

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)

#: Seconds that a write may take where there is only one replica.
UNELECTED_WRITE_S = 30.0


def boot_time() -> float:
    """Return seconds since boot: never set back, and going on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class NotLeadingError(Exception):
    """A write was refused because another replica may lead."""


class PermitExpiredError(Exception):
    """A write was held back because its permit has expired; nothing was sent."""


class Leadership:
    """Whether this replica leads, by the lease as it was last seen."""

    def __init__(
        self,
        *,
        is_ours: Callable[[str], bool],
        lease_duration: float,
        renew_deadline: float,
        clock: Callable[[], float],
        now: Callable[[], float],
        handlers: Iterable[Callable[[bool], None]] = (),
    ) -> None:
        self._is_ours = is_ours
        self._lease_duration = lease_duration
        self._renew_deadline = renew_deadline
        self._clock = clock
        self._now = now
        self._holder: str | None = None
        self._renewed: str | None = None
        #: Monotonic; until then we lead.
        self._until = -math.inf
        #: How often we have become the leader; a decision belongs to one term.
        self.term = 0
        self._reported = False
        #: Called with True when we begin to lead and with False when we stop.
        self._handlers = tuple(handlers)

    def add_handler(self, handler: Callable[[bool], None]) -> None:
        """Call back with True when we begin to lead and with False when we stop."""
        self._handlers = (*self._handlers, handler)

    @property
    def leading(self) -> bool:
        return self._clock() < self._until

    @property
    def holder(self) -> str:
        return self._holder or ""

    def on_lease(self, _old: objects.Lease | None, new: objects.Lease | None) -> None:
        """Handle a change of the lease."""
        self.observe(new)

    def observe(self, lease: objects.Lease | None) -> None:
        """Take note of the lease as seen now; None: there is none."""
        self.tick()  # a gap without a renewal ends the term, even if no check fell into it
        spec = (lease and lease.spec) or objects.LeaseSpec()
        holder, renewed = spec.holder_identity or "", spec.renew_time
        same_holder = holder == self._holder
        renewal = same_holder and renewed != self._renewed
        self._holder, self._renewed = holder, renewed
        if not (same_holder and holder and self._is_ours(holder)):
            self._until = -math.inf
        elif renewal:
            self._until = self._clock() - self._age(renewed) + self._renew_deadline
        self.tick()

    def tick(self) -> None:
        """Call the handlers if time or an event has changed who leads."""
        if self.leading != self._reported:
            self._reported = not self._reported
            self.term += self._reported
            for handler in self._handlers:
                handler(self._reported)

    def check(self) -> None:
        """Raise unless we lead at this very moment."""
        if not self.leading:
            raise NotLeadingError(self.why_not())

    def check_decision(self, term: int) -> None:
        """Raise unless we lead, and have done so without a break since a decision was made."""
        self.check()
        self.tick()
        if term != self.term:
            raise NotLeadingError(
                "it was decided before the lease was lost and gained again; nothing to do: "
                "kube-scheduler retries"
            )

    def why_not(self) -> str:
        if not self._holder:
            return "not the leader: the lease has no holder"
        if not self._is_ours(self._holder):
            return f"not the leader: {self._holder} holds the lease"
        return (
            f"not the leader: {self._holder} was not seen renewing the lease for "
            f"{self._renew_deadline:g} s"
        )

    @property
    def longest_write(self) -> float:
        """Seconds after which a write that was sent can take effect no more."""
        return self._lease_duration

    def permit(self, term: int) -> Permit:
        """Allow one write for as long as no other replica can lead; raise if we do not lead.

        A decision of an earlier term is not written: another leader may have decided since.
        """
        self.check_decision(term)
        left = self._until - self._clock() + self._lease_duration - self._renew_deadline
        margin = (self._lease_duration - self._renew_deadline) / 2
        return Permit(self, term, may_take=left - margin, send_before=self._clock() + margin)

    def check_permit(self, permit: Permit) -> None:
        """Raise unless a write may be sent at this very moment."""
        self.check_decision(permit.term)
        if self._clock() > permit.send_before:
            raise PermitExpiredError("the write was not sent before its permit expired")

    def _age(self, renewed: str | None) -> float:
        """Return how old a renewal was when it was seen; 0 if its time cannot be trusted.

        The kube-scheduler beside us reads the same clock. If that is set, the time of sight counts.
        """
        try:
            then = dt.datetime.fromisoformat(renewed or "").timestamp()
        except ValueError:
            return 0.0
        return min(max(self._now() - then, 0.0), self._renew_deadline)


class AlwaysLeading(Leadership):
    """The only replica: no other can take the lease."""

    def __init__(
        self, *, clock: Callable[[], float], handlers: Iterable[Callable[[bool], None]] = ()
    ) -> None:
        super().__init__(
            is_ours=lambda _: True,
            lease_duration=0,
            renew_deadline=0,
            clock=clock,
            now=lambda: 0.0,
            handlers=handlers,
        )
        self._until = math.inf

    @property
    def longest_write(self) -> float:
        return UNELECTED_WRITE_S

    def permit(self, term: int) -> Permit:
        return Permit(self, term, may_take=UNELECTED_WRITE_S, send_before=math.inf)


class Permit:
    """One write: how long the API server may work on it if it is sent soon."""

    def __init__(
        self, leadership: Leadership, term: int, *, may_take: float, send_before: float
    ) -> None:
        self._leadership = leadership
        self.term = term
        #: Seconds from its sending.
        self.may_take = may_take
        #: By the leadership's clock.
        self.send_before = send_before

    def check(self) -> None:
        """Raise unless the write may be sent at this very moment."""
        self._leadership.check_permit(self)


def elect(
    settings: Settings,
    client: Client,
    *,
    hostname: str,
    clock: Callable[[], float],
    now: Callable[[], float],
    handlers: Iterable[Callable[[bool], None]],
) -> tuple[Leadership, LeaseElector | None]:
    """Return the leadership that the settings ask for, and an elector if we hold the lease."""
    if not settings.leader_elect:
        return AlwaysLeading(clock=clock, handlers=handlers), None
    own = settings.leader_elect_own_lease
    identity = f"{hostname}_{uuid.uuid4()}"
    leadership = Leadership(
        is_ours=identity.__eq__ if own else functools.partial(is_sibling, hostname=hostname),
        lease_duration=settings.leader_elect_lease_duration,
        renew_deadline=settings.leader_elect_renew_deadline,
        clock=clock,
        now=now,
        handlers=handlers,
    )
    if not own:
        return leadership, None
    return leadership, LeaseElector(
        client,
        namespace=settings.leader_elect_resource_namespace,
        name=settings.leader_elect_resource_name,
        identity=identity,
        lease_duration=settings.leader_elect_lease_duration,
        renew_deadline=settings.leader_elect_renew_deadline,
        retry_period=settings.leader_elect_retry_period,
        on_observed=leadership.observe,
        clock=clock,
        now=now,
    )


def lease_informer(
    settings: Settings, client: Client, leadership: Leadership
) -> dict[str, Informer[objects.Lease]]:
    """Return the informer of kube-scheduler's lease, by kind; empty: it is not followed."""
    if not settings.leader_elect or settings.leader_elect_own_lease:
        return {}
    informer: Informer[objects.Lease] = Informer(
        client,
        paths.leases(settings.leader_elect_resource_namespace),
        listwatch.all_of(objects.Lease, "lease"),
        kind="lease",
        query={"fieldSelector": f"metadata.name={settings.leader_elect_resource_name}"},
        resync_interval=settings.resync_interval,
    )
    informer.add_handler(leadership.on_lease)
    return {"lease": informer}


def is_sibling(identity: str, hostname: str) -> bool:
    """Return whether the holder of a lease is the kube-scheduler on our host."""
    return identity.startswith(f"{hostname}_") and bool(
        _UUID.fullmatch(identity[len(hostname) + 1 :])
    )
