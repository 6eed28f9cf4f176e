"""An attack: what is tried, what must happen, and what did.

    @attack("library-copy", "preloads a copy of libvgpu.so from another folder", NO_GAIN,
            "policy and state are found at one fixed path")
    def test_a_copy_of_the_library(tenant: Tenant) -> Result:
        ...
        return tenant.result()

The test tries it and returns what others counted: the driver its bytes, the API server its objects,
the monitor its events. From that alone `Result.outcome` follows, and a declared outcome that is
another one fails the test. docs/threats.md is made of these outcomes (`tests.attacks.report`).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
from collections.abc import Callable
from typing import Any

#: Seconds of virtual time in which a gain that cannot be prevented must be reported.
REPORTED_WITHIN_S = 10.0


class Attacker(enum.Enum):
    """One file of attacks each, in this order; the text is its heading."""

    TENANT = "Tenant with root in a container"
    CREATOR = "User who may create pods"
    PATCHER = "User who may patch pods"
    NODE = "Holder of a node agent's token"
    NETWORK = "Process on the network of nodes or pods"


class Outcome(enum.StrEnum):
    REFUSED = "refused"
    NO_GAIN = "no gain"
    REPORTED = "reported"
    GAP = "known gap"


REFUSED, NO_GAIN, REPORTED, GAP = Outcome


@dataclasses.dataclass(frozen=True)
class Report:
    """An event about the attacker, and when it was there, in seconds after the attack."""

    reason: str
    after_s: float


@dataclasses.dataclass(frozen=True)
class Result:
    """What an attacker got beyond its share, as others counted it."""

    gain: int
    #: Unit of the gain, and its judge.
    of: str
    #: The refusal that it met, in the words of the refusing part; empty: none.
    refusal: str = ""
    reports: tuple[Report, ...] = ()

    @property
    def outcome(self) -> Outcome:
        if self.gain <= 0:
            return REFUSED if self.refusal else NO_GAIN
        in_time = [each for each in self.reports if each.after_s <= REPORTED_WITHIN_S]
        return REPORTED if in_time else GAP

    def __str__(self) -> str:
        refusal = f"; refused: {self.refusal}" if self.refusal else ""
        reports = "".join(f"; {each.reason} after {each.after_s:.1f} s" for each in self.reports)
        return f"{self.outcome}: {self.gain} {self.of}{refusal}{reports}"


@dataclasses.dataclass(frozen=True)
class Attack:
    id: str
    attacker: Attacker
    #: As the end of a sentence that begins with the attacker.
    tries: str
    outcome: Outcome
    #: The rule that holds it; of a gap, its consequence.
    why: str
    #: Of a gap: where it will be closed, or why it stays.
    reference: str = ""
    #: Other test beds that try it as well.
    also: tuple[str, ...] = ()


#: All attacks by id, as the files declare them.
DECLARED: dict[str, Attack] = {}
#: What happened in this run, by id.
HAPPENED: dict[str, Outcome] = {}

Test = Callable[..., Any]
Declare = Callable[..., Callable[[Test], Test]]


def by(attacker: Attacker) -> Declare:
    """Return the decorator of one attacker's file."""

    def declare(
        name: str, tries: str, outcome: Outcome, why: str, **more: Any
    ) -> Callable[[Test], Test]:
        made = Attack(name, attacker, tries, outcome, why, **more)
        assert DECLARED.get(name, made) == made, f"two attacks are called {name}"
        DECLARED[name] = made
        return functools.partial(_judged, made)

    return declare


def again(name: str, bed: str) -> Callable[[Test], Test]:
    """Return the decorator of a test that tries an attack on another bed as well."""
    assert bed in DECLARED[name].also, f"attack {name} does not say that {bed} tries it, too"
    return functools.partial(_judged, DECLARED[name])


def _judged(declared: Attack, test: Test) -> Test:
    if inspect.iscoroutinefunction(test):

        @functools.wraps(test)
        async def judged_later(*args: Any, **kwargs: Any) -> None:
            _judge(declared, await test(*args, **kwargs))

        return judged_later

    @functools.wraps(test)
    def judged(*args: Any, **kwargs: Any) -> None:
        _judge(declared, test(*args, **kwargs))

    return judged


def _judge(declared: Attack, result: Result) -> None:
    assert result.outcome == declared.outcome, (
        f"attack {declared.id} was expected to end as {declared.outcome!s}, but {result}"
    )
    HAPPENED[declared.id] = result.outcome
