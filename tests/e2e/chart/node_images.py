"""The chart's images, loaded into the runtime of every real node.

Our own is built from this checkout once in a run of the tests, however many releases are installed;
kube-scheduler's is a part.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from tests.e2e.cluster.cluster import Cluster
from tests.e2e.parts import catalogue, image_archives

REGISTRY, _, _ours = image_archives.HAMI.partition("/")
REPOSITORY, _, TAG = _ours.partition(":")


@functools.cache
def load(cluster: Cluster) -> None:
    """Give the nodes both images; for a cluster that has them it does nothing."""
    kube_scheduler = catalogue.provide(image_archives.kube_scheduler_image())
    cluster.load_image(kube_scheduler / "kube-scheduler.tar")
    with tempfile.TemporaryDirectory() as folder:
        cluster.load_image(image_archives.build_hami_image(Path(folder) / "hami.tar"))
