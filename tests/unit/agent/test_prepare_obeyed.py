"""libvgpu obeys what was prepared: the real library on the stand-in driver.

A mount namespace is the container. The edits of its spec are applied to it as a
runtime does; only /etc/ld.so.preload is not put in place, its line goes into LD_PRELOAD.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.agent.containers import library, state_files
from hami.agent.containers.state_files import StateFiles
from hami.node import layout
from tests.native.probing import MIB, OUT_OF_MEMORY, Probe
from tests.unit.agent.card_nodes import CardNode
from tests.unit.agent.preparing import ALLOCATION_ID

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")


class Node(CardNode):
    """The container has the second card."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, StateFiles)

    def start(self) -> Probe:
        """Start a program in the container, which the spec on disk describes."""
        edits = json.loads(self.layout.spec(ALLOCATION_ID).read_text())["devices"][0][
            "containerEdits"
        ]
        env = dict(variable.split("=", 1) for variable in edits["env"])
        inside, stage = str(self.layout.inside), str(self.desk.root / "stage")
        preload = self.layout.preload.read_text().strip()
        ours = [
            (mount["hostPath"], mount["containerPath"], mount["options"][0])
            for mount in edits["mounts"]
            if mount["containerPath"].startswith((inside, layout.SHARE))
        ]
        assert [options for _, _, options in ours] == ["ro", "ro", "rw"]
        # The sources lie below the folder that the container has something else at.
        lines = ["set -e", f"mkdir -p {stage}"]
        for at, (host, _, _) in enumerate(ours):
            make = "mkdir -p" if Path(host).is_dir() else "touch"
            lines += [f"{make} {stage}/{at}", f"mount --bind {host} {stage}/{at}"]
        lines += [f"mount -t tmpfs hami-test {inside}", "mount -t tmpfs hami-test /run"]
        lines += [f"mkdir -p {layout.SHARE}"]
        for at, (host, place, access) in enumerate(ours):
            make = "mkdir -p" if Path(host).is_dir() else "touch"
            lines += [f"{make} {place}", f"mount --bind {stage}/{at} {place}"]
            lines += [f"mount -o remount,bind,{access},nosuid,nodev {place}"]
        lines += [f"exec env LD_PRELOAD={shlex.quote(preload)} {library.find_built('probe')}"]
        return Probe(
            ["unshare", "--mount", "sh", "-c", "\n".join(lines)],
            {
                **env,
                "PATH": os.environ["PATH"],
                "LD_LIBRARY_PATH": str(self.driver),
                "FAKEGPU_DIR": str(self.desk.root / "gpus"),
            },
            self.desk.root / "noise",
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    made.layout.run_dir.mkdir()
    state_files.mount(made.layout.run_dir, size=16 << 20, inodes=1000)
    try:
        yield made
    finally:
        for folder in (*made.layout.states.glob("*"), made.layout.run_dir):
            with contextlib.suppress(OSError):
                while folder.is_mount():
                    state_files.unmount(folder)


def test_a_container_has_its_card_and_its_limit_and_can_be_resized(node: Node) -> None:
    node.prepare(2000)
    with node.start() as probe:
        probe.do("init")
        assert probe.number("count") == 1
        assert node.cards[1].uuid.removeprefix("GPU-") in probe.do("uuid 0")[0]
        assert not node.states.busy(ALLOCATION_ID)
        probe.do("device 0")
        assert node.states.busy(ALLOCATION_ID)
        assert probe.do("info")[1] == str(2000 * MIB)
        assert probe.ask(f"take alloc big {1900 * MIB}").code == OUT_OF_MEMORY
        probe.do(f"take alloc small {100 * MIB}")
        node.prepare(3000, generation=2)
        probe.do(f"take alloc big {1900 * MIB}")
        assert probe.noise == ""
    assert not node.states.busy(ALLOCATION_ID)


def test_a_container_without_its_policy_has_no_card(node: Node) -> None:
    node.prepare(2000)
    node.layout.policy(ALLOCATION_ID).unlink()
    with node.start() as probe:
        assert probe.ask("init").code == 100


def test_a_restarted_container_goes_on_with_the_same_files(node: Node) -> None:
    node.prepare(2000)
    for _ in range(2):
        with node.start() as probe:
            probe.do("init")
            probe.do("device 0")
            assert probe.do("info")[1] == str(2000 * MIB)
        node.prepare(2000)
