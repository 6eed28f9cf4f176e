"""Images as archives: those of every node, kube-scheduler, hami itself."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import hami.image
from hami.cli import image
from hami.image import recipes
from tests.e2e.parts import cache, catalogue
from tests.e2e.parts.cache import Part, Say

BUSYBOX = "hami.test/busybox:1"
PAUSE = "hami.test/pause:1"
HAMI = "hami.test/hami:dev"


def base_images() -> Part:
    def make(into: Path, say: Say) -> None:
        store = cache.packages_folder()
        recipes.pause(into / "pause.tar", names=[PAUSE], cache=store, say=say)
        recipes.busybox(into / "busybox.tar", names=[BUSYBOX], cache=store, say=say)

    return Part(
        name="base-images",
        version="1",
        made_from={"builder": _builder(), "machine": platform.machine(), "names": BUSYBOX + PAUSE},
        make=make,
        takes="10 s",
    )


def kube_scheduler_image() -> Part:
    programs = catalogue.kubernetes()

    def make(into: Path, say: Say) -> None:
        folder = catalogue.provide(programs)
        recipes.kube_scheduler(
            into / "kube-scheduler.tar",
            names=[f"hami.test/kube-scheduler:v{programs.version}"],
            binary=folder / "kube-scheduler",
            version=programs.version,
            cache=cache.packages_folder(),
            say=say,
        )

    return Part(
        name="kube-scheduler-image",
        version=programs.version,
        made_from={"builder": _builder(), "programs": programs.folder_name},
        make=make,
        takes="10 s",
    )


def build_hami_image(out: Path, say: Say = cache.say) -> Path:
    """Build our own image from this checkout; layers that did not change come from the cache."""
    image.build(out, names=[HAMI], cache=cache.packages_folder(), say=say)
    return out


def _builder() -> str:
    """Fingerprint the builder: a changed one may write other bytes."""
    assert hami.image.__file__ is not None
    sources = sorted(Path(hami.image.__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
