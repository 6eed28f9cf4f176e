"""Images of the test cluster, built here, loaded without a registry."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cluster import node
from tests.e2e.cluster.layout import Node
from tests.e2e.cluster.machines import Machine
from tests.e2e.parts import catalogue, image_archives

BUSYBOX = image_archives.BUSYBOX


def base_images() -> tuple[Path, ...]:
    """Give the archives that every node starts with: the pod's pause process, and busybox."""
    folder = catalogue.provide(image_archives.base_images())
    return (folder / "pause.tar", folder / "busybox.tar")


def load(machine: Machine, runtime: Node, archive: Path) -> None:
    """Import an archive through the runtime's own client, piped: machines do not see our files."""
    with archive.open("rb") as data:
        machine.run_with(data, *node.ctr(runtime), "images", "import", "-")
