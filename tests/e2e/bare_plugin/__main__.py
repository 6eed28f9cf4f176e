"""python -m tests.e2e.bare_plugin: the floor that hami's agent is compared with.

Runs in the node's network namespace but in the host's mount namespace, and reaches the node's files
through --node-root, for example /proc/<pid of its kubelet>/root.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import pathlib
import signal

from tests.e2e.bare_plugin import server
from tests.e2e.bare_plugin.binding import CDI_DIR, LateBinding, Node
from tests.e2e.bare_plugin.pods import Pods
from tests.e2e.kubelet_api import device_plugin
from tests.kubeapi.client import Client


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.e2e.bare_plugin", description=__doc__)
    parser.add_argument("--node-root", type=pathlib.Path, required=True)
    parser.add_argument("--node", required=True, help="the node's name in the API")
    parser.add_argument("--kubeconfig", type=pathlib.Path, required=True)
    parser.add_argument("--resource", default="example.com/vgpu")
    parser.add_argument("--devices", type=int, default=128, metavar="COUNT")
    parser.add_argument(
        "--cdi-dir",
        type=pathlib.PurePosixPath,
        default=CDI_DIR,
        help="as the node sees it (%(default)s)",
    )
    return parser.parse_args()


async def _main(arguments: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    node = Node(arguments.node_root, arguments.cdi_dir)
    with Client.from_kubeconfig(arguments.kubeconfig) as client:
        binding = LateBinding(node, arguments.resource, Pods(client, arguments.node))
        try:
            folder = node.path(device_plugin.FOLDER)
            await server.run(binding, folder, arguments.resource, arguments.devices, stop)
        finally:
            binding.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    asyncio.run(_main(_arguments()))
