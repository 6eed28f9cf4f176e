"""The test cluster by hand: real Kubernetes in namespaces of this machine.

    up [--nodes N] [--scheduler 1.30] [--name NAME]   build what is missing, start it
    shell [COMMAND ...]       kubectl and helm at hand, in the cluster's network
    logs [MACHINE [PROGRAM]]  what its programs said
    fleet 1000                add nodes that exist only in the API
    down                      end it and remove everything of it
    run COMMAND ...           a cluster for as long as a command runs

It needs root, Go and Debian's package lists for the first start, and touches nothing outside.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable

from tests.e2e.cluster import cluster, fleet, kernel, layout
from tests.e2e.cluster.cluster import say
from tests.e2e.cluster.machines import MachineError
from tests.e2e.parts import catalogue
from tests.e2e.parts.cache import PartError


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
    up.set_defaults(act=run_up)
    run = commands.add_parser("run", help="a cluster that lives only while a command runs")
    for command in (up, run):
        command.add_argument("--nodes", type=int, default=2, help="real nodes; the 2nd has no CDI")
        command.add_argument(
            "--scheduler",
            type=layout.Scheduler,
            choices=list(layout.Scheduler),
            default=layout.Scheduler.NEWEST,
            help="version of kube-scheduler",
        )
    run.add_argument("command", nargs=argparse.REMAINDER)
    run.set_defaults(act=run_temporarily)
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
    for command in (up, run, down, shell, logs, many):
        default = "run" if command is run else "dev"
        command.add_argument("--name", default=default, help=f"which cluster (default: {default})")
    return top


def wanted_by(arguments: argparse.Namespace) -> layout.Layout:
    return layout.Layout(arguments.name, layout.nodes(arguments.nodes), arguments.scheduler)


def run_up(arguments: argparse.Namespace) -> None:
    cluster.up(wanted_by(arguments))
    suffix = "" if arguments.name == "dev" else f" --name {arguments.name}"
    say(f"try: python -m tests.e2e.cluster shell{suffix}")


def run_temporarily(arguments: argparse.Namespace) -> None:
    if not arguments.command:
        raise ValueError("run: name the command that the cluster is for")
    # An order to end is obeyed in order; a kill is seen by the machines themselves.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # A shell starts what runs in the background with this one ignored, and so are its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with cluster.temporary(wanted_by(arguments)) as found:
        code = run_inside(found, arguments.command)
    sys.exit(code)


def run_down(arguments: argparse.Namespace) -> None:
    cluster.require_root()
    cluster.down(layout.Layout(arguments.name))
    say(f"{arguments.name} is down")


def run_shell(arguments: argparse.Namespace) -> None:
    command = arguments.command or [os.environ.get("SHELL", "/bin/sh")]
    sys.exit(run_inside(cluster.find(arguments.name), command))


def run_inside(found: cluster.Cluster, command: list[str]) -> int:
    """Run a command in the cluster's network, with its kubeconfig and the tools at hand."""
    tools = [catalogue.client_tools(), catalogue.helm3()]
    folders = [str(catalogue.folder(tool)) for tool in tools]
    environment = os.environ | {
        "KUBECONFIG": str(found.layout.kubeconfig),
        "PATH": ":".join([*folders, os.environ.get("PATH", "/usr/bin")]),
    }
    with found.joined_network():
        return subprocess.run(
            command,
            env=environment,
            check=False,
            # It would keep the network of a cluster that ended with us.
            preexec_fn=lambda: kernel.die_with_parent(signal.SIGKILL),
        ).returncode


def run_logs(arguments: argparse.Namespace) -> None:
    folder = layout.Layout(arguments.name).folder
    pattern = f"{arguments.machine or '*'}/logs/{arguments.program or '*'}.log"
    kept = layout.Layout(arguments.name).kept_logs
    found = sorted(folder.glob(pattern)) or sorted(kept.glob(pattern))
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
