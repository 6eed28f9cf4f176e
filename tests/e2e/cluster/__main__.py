"""The test cluster by hand: real Kubernetes on this machine, in namespaces of its own.

python -m tests.e2e.cluster up [--nodes N] [--scheduler 1.30] [--name NAME]
python -m tests.e2e.cluster shell [COMMAND ...]     kubectl and helm at hand, in its network
python -m tests.e2e.cluster logs [MACHINE [PROGRAM]]
python -m tests.e2e.cluster fleet 1000              nodes that exist only in the API
python -m tests.e2e.cluster down
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable

from tests.e2e.cluster import cluster, fleet, layout
from tests.e2e.cluster.cluster import say
from tests.e2e.cluster.machines import MachineError
from tests.e2e.parts import catalogue
from tests.e2e.parts.cache import PartError, default_folder


def main() -> None:
    arguments = parser().parse_args()
    act: Callable[[argparse.Namespace], None] = arguments.act
    try:
        act(arguments)
    except (MachineError, PartError, TimeoutError, ValueError) as error:
        sys.exit(f"cluster: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m tests.e2e.cluster",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="build what is missing, then start it")
    up.add_argument("--nodes", type=int, default=2, help="real nodes; the second has no CDI")
    up.add_argument(
        "--scheduler",
        type=layout.Scheduler,
        choices=list(layout.Scheduler),
        default=layout.Scheduler.NEWEST,
        help="version of kube-scheduler",
    )
    up.set_defaults(act=run_up)
    down = commands.add_parser("down", help="end it and remove everything of it")
    down.set_defaults(act=run_down)
    shell = commands.add_parser("shell", help="a shell, or one command, in the cluster's network")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    shell.set_defaults(act=run_shell)
    logs = commands.add_parser("logs", help="what its programs say")
    logs.add_argument("machine", nargs="?", help="control-plane, node-1, ...")
    logs.add_argument("program", nargs="?", help="kubelet, containerd, kube-apiserver, ...")
    logs.set_defaults(act=run_logs)
    many = commands.add_parser("fleet", help="add nodes that exist only in the API (kwok)")
    many.add_argument("count", type=int)
    many.set_defaults(act=run_fleet)
    for command in (up, down, shell, logs, many):
        command.add_argument("--name", default="dev", help="which cluster (default: dev)")
    return top


def run_up(arguments: argparse.Namespace) -> None:
    wanted = layout.Layout(arguments.name, layout.nodes(arguments.nodes), arguments.scheduler)
    cluster.up(wanted)
    suffix = "" if arguments.name == "dev" else f" --name {arguments.name}"
    say(f"try: python -m tests.e2e.cluster shell{suffix}")


def run_down(arguments: argparse.Namespace) -> None:
    cluster.require_root()
    cluster.down(layout.Layout(arguments.name))
    say(f"{arguments.name} is down")


def run_shell(arguments: argparse.Namespace) -> None:
    found = cluster.find(arguments.name)
    tools = [catalogue.client_tools(), catalogue.helm3()]
    folders = [str(default_folder() / tool.folder_name) for tool in tools]
    environment = os.environ | {
        "KUBECONFIG": str(found.layout.kubeconfig),
        "PATH": ":".join([*folders, os.environ.get("PATH", "/usr/bin")]),
    }
    command = arguments.command or [os.environ.get("SHELL", "/bin/sh")]
    with found.joined_network():
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


def run_logs(arguments: argparse.Namespace) -> None:
    folder = layout.Layout(arguments.name).folder
    pattern = f"{arguments.machine or '*'}/logs/{arguments.program or '*'}.log"
    found = sorted(folder.glob(pattern))
    if not found:
        raise MachineError(f"no log matches {pattern} in {folder}; is the cluster up?")
    if arguments.program is None and len(found) > 1:
        for path in found:
            sys.stdout.write(f"{path}  {path.stat().st_size // 1024} KiB\n")
        return
    for path in found:
        sys.stdout.write(path.read_text(errors="replace"))


def run_fleet(arguments: argparse.Namespace) -> None:
    fleet.add(cluster.find(arguments.name), arguments.count, say=say)


if __name__ == "__main__":
    main()
