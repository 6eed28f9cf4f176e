"""Print the faults of a cluster; exit 1 if there are any.

    python -m tests.e2e.auditor --kubeconfig FILE [--node NAME=ROOT ...]

`--node` names the nodes whose folders can be read here; without any the API alone is judged.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

from tests.e2e.auditor import auditing, layouts, reading, settling
from tests.e2e.auditor.gathering import Sources
from tests.kubeapi.client import Client


def _node(text: str) -> tuple[str, pathlib.Path]:
    name, _, root = text.partition("=")
    if not name or not root:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=ROOT, e.g. node-1=/proc/4711/root")
    return name, pathlib.Path(root)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.e2e.auditor", description=__doc__)
    parser.add_argument("--kubeconfig", type=pathlib.Path, required=True)
    parser.add_argument("--node", type=_node, action="append", default=[], metavar="NAME=ROOT")
    parser.add_argument("--timeline", type=pathlib.Path, help="JSON lines of a recorder")
    parser.add_argument("--hook", default=layouts.HOOK, help="hami's hook path (%(default)s)")
    parser.add_argument("--driver-state", default=reading.DRIVER_STATE, help="(%(default)s)")
    parser.add_argument(
        "--grant-key",
        type=pathlib.Path,
        action="append",
        default=[],
        help="signing key, or of v1",
    )
    parser.add_argument("--quiet", action="store_true", help="nothing is being placed now")
    parser.add_argument("--once", action="store_true", help="one look, in-flight things included")
    parser.add_argument(
        "--patience", type=float, default=settling.PATIENCE, help="seconds (%(default)g)"
    )
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    with Client.from_kubeconfig(arguments.kubeconfig) as client:
        sources = Sources(
            client=client,
            roots=dict(arguments.node),
            timeline=arguments.timeline,
            layouts=(layouts.hami(arguments.hook), layouts.BARE),
            driver_state=arguments.driver_state,
            grant_keys=tuple(path.read_bytes() for path in arguments.grant_key),
            quiet=arguments.quiet,
        )
        if arguments.once:
            found = auditing.audit(sources.gather())
        else:
            found = sources.settle(patience=arguments.patience)
    for finding in found:
        sys.stdout.write(f"{finding}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
