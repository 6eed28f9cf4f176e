"""A snapshot restores objects and versions, and expires older watches."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver import snapshot
from hami_sandbox.apiserver.store import Store
from hami_sandbox.errors import SandboxError
from sandbox.tests.unit.apiserver.making import MAPS, remove, write


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from("abcdef"), st.text(), max_size=6))
def test_everything_comes_back(tmp_path: Path, texts: dict[str, str]) -> None:
    store = Store()
    snapshot.add_built_in(store)
    for name, text in texts.items():
        write(store, name, annotations={"text": text})
    path = tmp_path / "state.json"
    snapshot.write(store, path)
    again = Store()
    snapshot.read(again, path)
    assert again.revision == store.revision
    for where, table in store.tables():
        state, other = table.now(0), again.table(where).now(0)
        assert [stored.object for _, stored in state.items()] == [
            stored.object for _, stored in other.items()
        ]
    snapshot.add_built_in(again)
    assert again.revision == store.revision  # nothing was missing


def test_versions_go_on_and_the_past_is_gone(tmp_path: Path) -> None:
    store = Store()
    first = write(store, "a").revision
    write(store, "b")
    remove(store, "b")
    snapshot.write(store, tmp_path / "s")
    again = Store()
    snapshot.read(again, tmp_path / "s")
    assert again.table(MAPS).past(first) is None
    # A kind without a single object had a past as well.
    assert again.table(("", "pods")).past(first) is None
    assert write(again, "a").revision == store.revision + 1


def test_only_its_owner_reads_a_snapshot(tmp_path: Path) -> None:
    snapshot.write(Store(), tmp_path / "s")
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["s"]


@pytest.mark.parametrize("content", ["", "{}", '{"revision":1,"kinds":[],"format":"other"}'])
def test_a_file_that_is_no_snapshot_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "s"
    path.write_text(content)
    with pytest.raises(SandboxError, match="snapshot"):
        snapshot.read(Store(), path)
