"""Every writable mount of a container is bounded: a tenant cannot fill the node.

In a user namespace, where the agent mounts as it does on a node, without root on the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hami.agent import lock_binding
from hami.agent.containers.state_files import StateFiles
from hami.wire import state_file
from tests.native import mounting
from tests.unit.agent.preparing import ALLOCATION_ID, Desk

#: A container with a share has room for its accounts, and hardly more.
MOST = 2 << 20
STEP = 1 << 16
ENOUGH = 64 << 20


def fill(root: str, mode: str) -> None:
    """Fill every writable mount of a container; print its place and what went into it."""
    desk = Desk(Path(root), states=StateFiles)
    edits = desk.preparer.prepare(desk.share(), cdi=mode == "late")
    if mode == "late":
        mounts = [
            (mount["containerPath"], mount["hostPath"], "rw" not in mount["options"])
            for mount in json.loads(desk.layout.spec(ALLOCATION_ID).read_text())["devices"][0][
                "containerEdits"
            ]["mounts"]
        ]
    else:
        answer = lock_binding.allocate_response(ALLOCATION_ID, edits)
        mounts = [(each.container_path, each.host_path, each.read_only) for each in answer.mounts]
    found = {place: filled(Path(host)) for place, host, read_only in mounts if not read_only}
    sys.stdout.write(json.dumps(found))


def filled(path: Path) -> int:
    """Write to a file until its file system is full; return the bytes that it takes there."""
    assert path.is_file()  # a folder would take any number of files
    with path.open("r+b", buffering=0) as file, contextlib.suppress(OSError):
        while file.tell() < ENOUGH:
            file.write(b"\1" * STEP)
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("mode", ["late", "lock"])
def test_what_a_container_can_write_is_bounded(tmp_path: Path, mode: str) -> None:
    code = f"from {fill.__module__} import fill; fill({str(tmp_path)!r}, {mode!r})"
    # Its own file system is the node's /run, whatever the machine has there.
    script = f'mkdir {tmp_path}/run && mount -t tmpfs run {tmp_path}/run && exec "$@"'
    done = subprocess.run(
        [*mounting.namespace(), "sh", "-c", script, "sh", sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == {mounting.STATE}
    assert state_file.SIZE <= found[mounting.STATE] <= MOST
