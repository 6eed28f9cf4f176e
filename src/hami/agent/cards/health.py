"""Which cards may be given out: what their errors and their silence mean, over time.

A card that reported a critical error or did not answer is left out until the quarantine has passed
without another, it has answered since, and the driver wants nothing done to it any more. Then it
comes back by itself. Nothing here asks a driver or waits: `health_watch` does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hami.agent.cards import xids
from hami.agent.cards.xids import Ignored

#: Told when a card's health changes: UUID, whether it is healthy now, and why not.
Changed = Callable[[str, bool, str], None]

#: What NVML's numbers ask for.
_ACTIONS = {
    1: "reset it (`nvidia-smi --gpu-reset`)",
    2: "reboot the node",
    3: "stop what talks over its NVLinks, then reset it",
    4: "let its work end, then reset it",
    5: "restore the IMEX domain",
    6: "reset its bus",
    7: "power-cycle the machine",
}


@dataclasses.dataclass(slots=True)
class _State:
    healthy: bool = True
    #: When the quarantine ends, by our clock.
    until: float = 0.0
    #: What the quarantine is for.
    trouble: str = ""
    #: Why it does not answer; empty: it does.
    silent: str = ""
    #: What the driver wants done to it; empty: nothing.
    pending: str = ""
    #: Whether it has yet to answer after its trouble.
    unproven: bool = False


class Health:
    """The health of a node's cards. A card that nobody complained of is healthy."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        quarantine: float,
        ignored: Ignored | None = None,
        changed: Changed = lambda uuid, healthy, why: None,  # noqa: ARG005 - names of the contract
    ) -> None:
        self.ignored = Ignored() if ignored is None else ignored
        self._clock = clock
        self._quarantine = quarantine
        self._changed = changed
        self._states: dict[str, _State] = {}

    def xid(self, uuid: str, code: int) -> bool:
        """Take note of an error; give whether it counts."""
        if not uuid or code in self.ignored:
            return False
        state = self._states.setdefault(uuid, _State())
        state.until = self._clock() + self._quarantine
        state.trouble = xids.describe(code)
        state.unproven = self.ignored.probing
        self._judge(uuid, state)
        return True

    def probed(self, uuid: str, why: str, recovery_action: int | None = None) -> None:
        """Take note of a card's answer: why there was none, and what the driver wants done."""
        if not why and not recovery_action and uuid not in self._states:
            return
        state = self._states.setdefault(uuid, _State())
        state.silent = why
        if why:
            state.until = self._clock() + self._quarantine
            state.trouble = f"it did not answer: {why}"
            state.unproven = True
        else:
            state.unproven = False
            state.pending = _pending(recovery_action) if recovery_action else ""
        self._judge(uuid, state)

    def tick(self) -> None:
        """Let cards back whose time has come."""
        for uuid, state in self._states.items():
            self._judge(uuid, state)

    def is_healthy(self, uuid: str) -> bool:
        state = self._states.get(uuid)
        return state is None or state.healthy

    def why(self, uuid: str) -> str:
        """Tell why a card is left out; empty: it is not."""
        state = self._states.get(uuid)
        if state is None or state.healthy:
            return ""
        reasons = []
        if state.silent:
            reasons.append(f"it does not answer: {state.silent}")
        if state.pending:
            reasons.append(state.pending)
        if not state.silent and (state.unproven or self._clock() < state.until):
            reasons.append(f"{state.trouble} (out until {self._quarantine:g} s after the last one)")
        return "; ".join(reasons)

    def _judge(self, uuid: str, state: _State) -> None:
        healthy = not (
            state.silent or state.pending or state.unproven or self._clock() < state.until
        )
        if healthy != state.healthy:
            state.healthy = healthy
            self._changed(uuid, healthy, self.why(uuid))


def _pending(action: int) -> str:
    wanted = _ACTIONS.get(action, f"recovery action {action} of NVML")
    return f"the driver wants something done before it is good again: {wanted}"
