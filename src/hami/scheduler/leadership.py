"""Who may bind now: a fence around every write that places a pod.

kube-scheduler elects; we only watch its Lease. We lead while the lease names our own sibling,
which is `<our hostname>_<UUID>` and nothing shorter or longer (HAMi compares a prefix, so node-1
believes the lease of node-10), and while it was *seen* renewed within the renew deadline, by a
clock that no administrator can set back and that goes on while the process is stopped. The first
sight of a lease proves nothing: only a renewal does.

A stale leader is dangerous because it may bind after another one has decided otherwise. So `check`
is called again in the last moment before a Binding's bytes leave, and its permit bounds how long
the API server may still work on it: nobody else gets the lease before `lease_duration` has passed
since the renewal, and a Binding of ours is done or refused by then.

The next stage, readiness after gaining the lease, is `hami.scheduler.readiness`.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable

from hami.wire import objects

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.ASCII)

UNELECTED_WRITE_S = 30.0


class NotLeadingError(Exception):
    """A write was refused because another replica may lead."""


def is_sibling(identity: str, hostname: str) -> bool:
    """Return whether a holder is the kube-scheduler beside us."""
    return identity.startswith(f"{hostname}_") and bool(
        _UUID.fullmatch(identity[len(hostname) + 1 :])
    )


class PermitExpiredError(Exception):
    """A write was held back because its time was counted from too long ago; nothing was sent."""


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


class Leadership:
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
        #: Monotonic; before it we lead.
        self._until = -math.inf
        #: How often we have become the leader; a decision belongs to one term.
        self.term = 0
        self._told = False
        #: Called with True when we lead, and with False when we do not any more.
        self._handlers = tuple(handlers)

    @property
    def leading(self) -> bool:
        return self._clock() < self._until

    @property
    def holder(self) -> str:
        return self._holder or ""

    def observe(self, lease: objects.Lease | None) -> None:
        """Take note of the lease as seen now; None: there is none."""
        self.tick()  # a gap without a renewal ends the term, even if nobody looked meanwhile
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

    def on_lease(self, _old: objects.Lease | None, new: objects.Lease | None) -> None:
        """Handle a change of the lease."""
        self.observe(new)

    def tick(self) -> None:
        """Call the handlers if time or an event has changed who leads."""
        if self.leading != self._told:
            self._told = not self._told
            self.term += self._told
            for handler in self._handlers:
                handler(self._told)

    def check(self) -> None:
        """Raise unless we lead at this very moment."""
        if not self.leading:
            raise NotLeadingError(self.why_not())

    def check_decision(self, term: int) -> None:
        """Raise unless we lead, and have done so without a break since a decision was made."""
        self.check()
        self.tick()
        if term != self.term:
            raise NotLeadingError("it was decided before the lease was lost and gained again")

    def why_not(self) -> str:
        if not self._holder:
            return "not the leader: nobody holds the lease"
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
        """Allow one write, from now on for as long as nobody else can lead; raise if we do not.

        What was decided in an earlier term is not written: another leader may have decided since.
        """
        self.check_decision(term)
        left = self._until - self._clock() + self._lease_duration - self._renew_deadline
        margin = (self._lease_duration - self._renew_deadline) / 2
        return Permit(self, term, may_take=left - margin, send_before=self._clock() + margin)

    def check_permit(self, permit: Permit) -> None:
        """Raise unless a write may be sent at this very moment."""
        self.check_decision(permit.term)
        if self._clock() > permit.send_before:
            raise PermitExpiredError("it took too long to be sent")

    def _age(self, renewed: str | None) -> float:
        """Return how old a renewal was when it was seen; 0 if its time cannot be trusted.

        The sibling reads the same clock as we do. Should somebody set it, the time of sight counts.
        """
        try:
            then = dt.datetime.fromisoformat(renewed or "").timestamp()
        except ValueError:
            return 0.0
        return min(max(self._now() - then, 0.0), self._renew_deadline)


class AlwaysLeading(Leadership):
    """The only replica: there is nobody to lose the lease to."""

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
