"""While a record is written anew in a thread, whoever looks at the ledger finds it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.agent.ledger import Ledger, LedgerError
from hami.node.ledger_record import LedgerRecord
from tests.unit.agent import preparing, records


class Watched(dict[str, LedgerRecord]):
    """Lets nobody out."""

    def pop(self, *_args: Any) -> Any:
        raise AssertionError("somebody could look now, and find nothing")

    __delitem__ = pop


OLD = records.record(
    "uid-a", (records.APP, [("GPU-1", 1000, 0)]), allocations=[records.allocation("a")]
)
NEW = msgspec.structs.replace(OLD, allocations=(*OLD.allocations, records.allocation("b")))


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(preparing.layout(tmp_path))
    made.load()
    made.put(OLD)
    made._records = Watched(made._records)
    return made


def test_a_record_that_is_replaced_is_never_away(ledger: Ledger) -> None:
    ledger.put(NEW)
    assert ledger.by_allocation_id("a" * 32) == ledger.by_allocation_id("b" * 32) == NEW
    ledger.put(OLD)
    assert ledger.by_allocation_id("a" * 32) == OLD
    assert ledger.by_allocation_id("b" * 32) is None


def test_a_record_that_cannot_be_replaced_is_never_away(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hami.node.files.write_atomic", full)
    with pytest.raises(LedgerError, match="free space"):
        ledger.put(NEW)
    assert ledger.get("uid-a") == OLD
