"""A whole cluster: up, down, and what tests ask of it while it runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from tests.e2e.cluster import (
    cgroups,
    control_plane,
    images,
    kernel,
    layout,
    network,
    node,
    programs,
)
from tests.e2e.cluster.layout import CONTROL_PLANE, Layout, Node, Scheduler
from tests.e2e.cluster.machines import Machine, MachineError, find_machine, start_machine
from tests.e2e.parts import cache, catalogue
from tests.kubeapi.client import Client
from tests.kubeapi.paths import nodes
from tests.kubeapi.waiting import wait_for

Say = Callable[[str], None]
API_SERVER_S = 90
NODES_S = 120
FOLDERS = ("etc", "opt", "root", "usr", "var/lib/kubelet", "var/log/kubernetes", "etc/cdi")
ACCOUNTS = "root:x:0:0:root:/root:/bin/sh\n"


def say(line: str) -> None:
    print(f"cluster: {line}", flush=True)  # noqa: T201 (progress is for the person who waits)


class Cluster:
    """A cluster that runs. Get one from `up` or `find`."""

    def __init__(self, layout: Layout, machines: dict[str, Machine]) -> None:
        self.layout = layout
        self.machines = machines

    @property
    def control_plane(self) -> Machine:
        return self.machines[CONTROL_PLANE]

    def machine(self, node: Node | str) -> Machine:
        return self.machines[node if isinstance(node, str) else node.name]

    @property
    def client(self) -> Client:
        """The API as an administrator; works only in its network (see `joined_network`)."""
        return Client.from_kubeconfig(self.layout.kubeconfig)

    @contextlib.contextmanager
    def joined_network(self) -> Iterator[None]:
        """Bring this process to the cluster: its sockets are on the control plane's machine.

        Nothing outside can be reached meanwhile, and the network stays while somebody is in it.
        """
        with kernel.network_of(self.control_plane.init.pid):
            yield

    def await_api_server(self) -> None:
        def ready(client: Client) -> bool:
            return client.request("GET", "/readyz").status == HTTPStatus.OK

        self._await("the API server to be ready", ready, API_SERVER_S)

    def await_nodes(self) -> None:
        names = {each.name for each in self.layout.nodes}

        def ready(client: Client) -> bool:
            found = client.get(nodes())["items"]
            return names <= {n["metadata"]["name"] for n in found if _is_ready(n)}

        self._await(f"nodes {', '.join(sorted(names))} to be Ready", ready, NODES_S)

    def _await(self, what: str, check: Callable[[Client], bool], seconds: float) -> None:
        """Wait; a program that died meanwhile is the answer, not the time that ran out."""

        def look() -> bool:
            self.require_alive()
            return check(client)

        with self.joined_network(), self.client as client:
            wait_for(what, look, seconds)

    def require_alive(self) -> None:
        for machine in self.machines.values():
            for daemon in machine.daemons():
                if not daemon.alive():
                    raise MachineError(
                        f"{daemon.program} on {machine.name} died; the end of "
                        f"{machine.log(daemon.program)}:\n  {daemon.last_lines()}"
                    )

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.control_plane.run(
            "kubectl", "--kubeconfig=/etc/kubernetes/admin.conf", *arguments, stdin=stdin
        )

    def load_image(self, archive: Path, *where: Node) -> None:
        """Import an OCI archive into the nodes' runtimes, as a registry would have given it."""
        for each in where or self.layout.nodes:
            images.load(self.machine(each), each, archive)

    def down(self) -> None:
        down(self.layout)


def up(wanted: Layout, *, lifeline: int | None = None, say: Say = say) -> Cluster:
    """Bring a cluster up, after clearing away what an earlier one of that name left."""
    require_root()
    provide_parts(wanted)
    archives = images.base_images()
    if running(wanted):
        raise MachineError(
            f"cluster {wanted.name} is up already; end it first (`down`), or give another --name"
        )
    down(wanted)
    started = time.monotonic()
    try:
        cluster = _start(wanted, archives, lifeline, say)
    except BaseException:
        # The folder stays for a look at the logs; everything alive ends.
        _end(wanted)
        raise
    say(f"{len(wanted.nodes)} nodes Ready after {time.monotonic() - started:.1f} s")
    return cluster


@contextlib.contextmanager
def temporary(wanted: Layout) -> Iterator[Cluster]:
    """Give a cluster that ends with this block, and with this process however that dies."""
    with lifeline() as pipe:
        cluster = up(wanted, lifeline=pipe)
        try:
            yield cluster
        finally:
            cluster.down()


def down(wanted: Layout) -> None:
    """End everything of this cluster. What it never started it cannot even see."""
    _end(wanted)
    if wanted.folder.exists():
        _keep_logs(wanted)
        shutil.rmtree(wanted.folder)


def _end(wanted: Layout) -> None:
    cgroups.kill(wanted.group)
    cgroups.remove(wanted.group)


def _keep_logs(wanted: Layout) -> None:
    """Keep what the programs said until the next cluster of that name goes down."""
    shutil.rmtree(wanted.kept_logs, ignore_errors=True)
    for log in [*wanted.folder.glob("*/logs/*.log"), wanted.audit_log]:
        if log.exists():
            place = wanted.kept_logs / log.relative_to(wanted.folder)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(log, place)


def running(wanted: Layout) -> bool:
    return find_machine(wanted, CONTROL_PLANE) is not None


def find(name: str) -> Cluster:
    """Find a cluster that another process brought up."""
    bare = Layout(name)
    try:
        note = json.loads((bare.folder / "layout.json").read_text())
    except FileNotFoundError:
        raise MachineError(
            f"there is no cluster {name}; `python -m tests.e2e.cluster up --name {name}` makes it"
        ) from None
    known = dataclasses.replace(
        bare, nodes=layout.nodes(note["nodes"]), scheduler=Scheduler(note["scheduler"])
    )
    machines = {}
    for machine in (CONTROL_PLANE, *(n.name for n in known.nodes)):
        found = find_machine(known, machine)
        if found is None:
            raise MachineError(
                f"cluster {name} is broken: {machine} is gone; `down`, then `up` makes it anew"
            )
        machines[machine] = found
    return Cluster(known, machines)


@contextlib.contextmanager
def lifeline() -> Iterator[int]:
    """Give a pipe for the machines to watch: it closes when this process ends, however it ends."""
    ours, theirs = os.pipe()
    # The machines read `ours`; nobody writes. `theirs` is open in this process alone.
    try:
        yield ours
    finally:
        os.close(ours)
        os.close(theirs)


def require_root() -> None:
    if os.geteuid() != 0:
        raise MachineError(
            "the test cluster needs root, for namespaces, mounts and control groups: run it as root"
        )


def provide_parts(wanted: Layout) -> None:
    parts = [
        catalogue.debian_root(),
        catalogue.etcd(),
        catalogue.kubernetes(),
        catalogue.containerd(),
        catalogue.client_tools(),
    ]
    if wanted.scheduler is Scheduler.OLDEST:
        parts.append(catalogue.oldest_kube_scheduler())
    for part in parts:
        catalogue.provide(part)


def _start(wanted: Layout, archives: tuple[Path, ...], lifeline: int | None, say: Say) -> Cluster:
    say(f"starting {CONTROL_PLANE} and {', '.join(n.name for n in wanted.nodes)}")
    authority = control_plane.prepare(wanted)
    (wanted.folder / "layout.json").write_text(
        json.dumps({"nodes": len(wanted.nodes), "scheduler": wanted.scheduler})
    )
    first = _boot(wanted, CONTROL_PLANE, control_plane.etc(wanted), lifeline)
    network.set_up_control_plane(first, wanted.nodes)
    control_plane.start_api_server(first)
    machines = {CONTROL_PLANE: first}
    for each in wanted.nodes:
        machine = _boot(wanted, each.name, node.etc(wanted, authority, each), lifeline)
        machines[each.name] = machine
        network.connect(first, machine, each, wanted.nodes)
        node.start_runtime(machine, each)
    cluster = Cluster(wanted, machines)
    for each in wanted.nodes:
        node.await_runtime(machines[each.name], each)
        for archive in archives:
            images.load(machines[each.name], each, archive)
    cluster.await_api_server()
    control_plane.start_controllers(first)
    for each in wanted.nodes:
        node.start_kubelet(machines[each.name], each)
    cluster.await_nodes()
    return cluster


def _boot(wanted: Layout, machine: str, etc: dict[str, Path], lifeline: int | None) -> Machine:
    """Lay out a machine's root and start it. /usr is shared and read-only, /usr/local its own."""
    debian = catalogue.folder(catalogue.debian_root())
    root = wanted.machine_folder(machine) / "root"
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    for link in ("bin", "sbin", "lib", "lib64"):
        (root / link).symlink_to(f"usr/{link}")
    (root / "var/run").symlink_to("/run")
    shutil.copytree(debian / "etc", root / "etc", symlinks=True, dirs_exist_ok=True)
    (root / "etc/passwd").write_text(ACCOUNTS)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {machine}\n")
    (root / "etc/kubernetes").mkdir()
    for name, source in etc.items():
        shutil.copy(source, root / "etc/kubernetes" / name)
    own = wanted.machine_folder(machine) / "usr-local"
    own.mkdir()
    binds = [
        f"{debian}/usr:/usr:ro",
        f"{own}:/usr/local:rw",
        f"{cache.default_folder()}:{programs.FOLDER}:ro",
    ]
    return start_machine(wanted, machine, binds, lifeline=lifeline)


def _is_ready(node: dict[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
