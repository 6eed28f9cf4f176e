"""The test image: a shell, libc, the probe and the stand-in driver.

Everything but the probe and the driver is copied from the part that the nodes' own /usr is made of,
so nothing is fetched. The driver lies in a folder where no program looks by itself: on a node with
CDI it must come through that, and only where there is none a pod names the folder (LIBRARIES).

A second image wants all cards, as NVIDIA's own images do. In a third /run is a link. In all lies a
linker that looks for /etc/ld.so.preload elsewhere: so a tenant would get rid of what we preload
(UNWATCHED).
"""

from __future__ import annotations

import hashlib
import platform
import tempfile
from pathlib import Path

from hami.image import debian, layers, oci, tree, verify
from hami_sandbox import gpus
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.parts import cache, catalogue
from tests.native import building

NAME = "hami.test/probe:dev"
WANTS_ALL = "hami.test/probe-of-all:dev"
LINKED = "hami.test/probe-with-links:dev"
UNWATCHED = "/opt/unwatched/ld.so"
PROBE = "/usr/local/bin/probe"
LIBRARIES = "/opt/fakegpu"

_MULTIARCH = f"usr/lib/{platform.machine()}-linux-gnu"
_LIBC = ("ld-linux*", "libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1")
_APPLETS = ("cat", "env", "ls", "sh", "sleep")
_PRELOAD, _ELSEWHERE = b"/etc/ld.so.preload", b"/etc/no.so.preload"


def load(cluster: Cluster) -> None:
    """Build them from what is in this checkout now, and give them to all nodes."""
    layer = _layer()
    all_cards = {"NVIDIA_VISIBLE_DEVICES": "all"}
    images: tuple[tuple[str, dict[str, str], list[layers.Layer]], ...] = (
        (NAME, {}, [layer]),
        (WANTS_ALL, all_cards, [layer]),
        (LINKED, {}, [layer, _links()]),
    )
    for name, env, content in images:
        with tempfile.TemporaryDirectory() as folder:
            archive = Path(folder, "probe.tar")
            oci.write(
                archive,
                names=[name],
                layers=content,
                settings=oci.Settings(command=("sh",), env={"PATH": oci.PATH, **env}),
            )
            verify.archive(archive)
            cluster.load_image(archive)


def _layer() -> layers.Layer:
    system = catalogue.debian_root()
    built = building.all_current()
    ours = {PROBE: built / "probe"}
    ours |= {f"{LIBRARIES}/{name}": built / "fakegpu" / name for name in gpus.LIBRARIES}

    def write(root: Path) -> None:
        debian.merge_usr(root)
        _copy_system(catalogue.folder(system), root)
        for place, source in ours.items():
            tree.copy(source, root / place.lstrip("/"), 0o755)
        _write_unwatched(root)

    digests = {place: _digest(source) for place, source in ours.items()}
    digests[UNWATCHED] = _ELSEWHERE.decode()
    return layers.Store(cache.packages_folder() / "layers").layer(
        "the probe of the tests", [system.folder_name, digests], write
    )


def _links() -> layers.Layer:
    def write(root: Path) -> None:
        (root / "var" / "run").mkdir(parents=True)
        (root / "run").symlink_to("var/run")

    return layers.Store(cache.packages_folder() / "layers").layer("links of the tests", [], write)


def _copy_system(system: Path, root: Path) -> None:
    for pattern in _LIBC:
        for source in (system / _MULTIARCH).glob(pattern):
            tree.copy(source, root / _MULTIARCH / source.name, 0o755)
    for link in system.glob("usr/lib*/ld-linux*"):  # where programs look for their interpreter
        (root / link.relative_to(system)).symlink_to(link.readlink())
    tree.copy(system / "usr/bin/busybox", root / "usr/bin/busybox", 0o755)
    for applet in _APPLETS:
        (root / "usr/bin" / applet).symlink_to("busybox")


def _write_unwatched(root: Path) -> None:
    (linker,) = (root / _MULTIARCH).glob("ld-linux*.so.*")
    content = linker.read_bytes()
    assert _PRELOAD in content
    path = root / UNWATCHED.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_bytes(content.replace(_PRELOAD, _ELSEWHERE))
    path.chmod(0o755)


def _digest(path: Path) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
