"""Images that we build without a Docker daemon start on both runtimes."""

from __future__ import annotations

from pathlib import Path

import pytest

import hami
from hami.image import verify
from tests.e2e import pods
from tests.e2e.cluster import images
from tests.e2e.cluster.cluster import Cluster
from tests.e2e.cluster.node import ctr
from tests.e2e.parts import catalogue, image_archives
from tests.kubeapi.client import Client

WHAT_HAMI_CAN = (
    "import hami, numpy, msgspec, yaml, ssl, asyncio; from hami.placement import decide; "
    "import os; print(hami.__name__, decide.__name__, os.getuid())"
)


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Build our own image anew; the others lie among the parts."""
    pause, busybox = images.base_images()
    scheduler = catalogue.provide(image_archives.kube_scheduler_image()) / "kube-scheduler.tar"
    ours = image_archives.build_hami_image(tmp_path_factory.mktemp("image") / "hami.tar")
    return {"pause": pause, "busybox": busybox, "kube-scheduler": scheduler, "hami": ours}


@pytest.mark.parametrize("name", ["pause", "busybox", "kube-scheduler", "hami"])
def test_an_archive_is_whole_and_both_runtimes_take_it(
    archives: dict[str, Path], cluster: Cluster, name: str
) -> None:
    image = verify.archive(archives[name])
    for node in cluster.layout.nodes:
        cluster.load_image(archives[name], node)
        listed = cluster.machine(node).run(*ctr(node), "images", "list", "--quiet").split()
        assert set(image.names) <= set(listed)


@pytest.mark.parametrize("node", ["node-1", "node-2"])
def test_our_image_has_all_that_hami_imports_and_is_not_root(
    archives: dict[str, Path], cluster: Cluster, client: Client, namespace: str, node: str
) -> None:
    cluster.load_image(archives["hami"])
    container = {"image": image_archives.HAMI, "command": ["python3", "-c", WHAT_HAMI_CAN]}
    body = pods.pod("ours", container=container, nodeName=node, restartPolicy="Never")
    pods.create(client, namespace, body)
    pods.await_phase(client, namespace, "ours", "Succeeded")
    said = pods.logs(client, namespace, "ours").split()
    assert said == [hami.__name__, "hami.placement.decide", "65532"]


def test_the_kube_scheduler_image_runs_the_release_it_is_named_after(
    archives: dict[str, Path], cluster: Cluster, client: Client, namespace: str
) -> None:
    [name] = verify.archive(archives["kube-scheduler"]).names
    cluster.load_image(archives["kube-scheduler"])
    container = {"image": name, "command": None, "args": ["--version"]}
    body = pods.pod("scheduler", container=container, nodeName="node-1", restartPolicy="Never")
    pods.create(client, namespace, body)
    pods.await_phase(client, namespace, "scheduler", "Succeeded")
    assert pods.logs(client, namespace, "scheduler").strip() == f"Kubernetes {name.split(':')[1]}"
