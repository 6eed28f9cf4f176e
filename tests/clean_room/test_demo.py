"""`make demo` by an ordinary user on a machine with only make and Python.

With user namespaces and without, without a terminal and on one. The first test sets everything up,
as a stranger's first command does; the others find it done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clean_room.room import LEFT_BEHIND
from tests.clean_room.rooms import Done, Room

LIMIT_S = 500.0
INTERRUPTED = 130
#: The last line of the downloads; the library is compiled after it, and the cluster started.
SET_UP = "setup: done"
HINT = "kubectl"


@pytest.fixture(scope="module")
def room() -> Iterator[Room]:
    with tempfile.TemporaryDirectory(prefix="hami-room-") as folder:
        yield Room(Path(folder))


def check_end(room: Room, done: Done) -> None:
    """Nothing is left of it: no process, no file."""
    assert LEFT_BEHIND not in done.text, done.text
    assert room.left() == []


def test_the_first_command_of_a_stranger_shows_every_example(room: Room) -> None:
    done = room.run("make", "demo", "DEMO=--once", user_namespaces=True, limit_s=LIMIT_S)
    assert done.code == 0, done.text
    assert "containers run in namespaces" in done.text
    check_end(room, done)
    seconds = done.seconds_of("as expected") - done.seconds_of(SET_UP)
    print(f"first example done {seconds:.1f} s after the downloads")  # noqa: T201 - a figure


def test_where_user_namespaces_are_forbidden_it_says_so_and_does_the_same(room: Room) -> None:
    done = room.run("make", "demo", "DEMO=--once", user_namespaces=False, limit_s=LIMIT_S)
    assert done.code == 0, done.text
    assert "this machine does not allow namespaces" in done.text
    assert "LD_PRELOAD" in done.text
    check_end(room, done)


@pytest.mark.parametrize("namespaces", [True, False])
def test_ctrl_c_on_a_terminal_leaves_nothing(room: Room, *, namespaces: bool) -> None:
    flags = "DEMO=--example 01-share-by-memory"
    done = room.interrupted(
        "make", "demo", flags, user_namespaces=namespaces, limit_s=LIMIT_S, after=HINT
    )
    assert done.code != 0
    assert "no process and no file is left behind" in done.text, done.text
    check_end(room, done)


def test_ctrl_c_while_it_starts_leaves_nothing(room: Room) -> None:
    done = room.interrupted(
        "make", "demo", user_namespaces=True, limit_s=LIMIT_S, after="starting node"
    )
    assert done.code != 0
    check_end(room, done)
