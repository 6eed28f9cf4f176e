"""Compact the history of the sandbox's API server up to a revision.

    python -m sandbox.tests.cluster.compact REVISION

tests/conformance calls it for the tests of answers about a compacted past.
"""

from __future__ import annotations

import os
import pathlib
import sys

from tests.conformance.target import KUBECONFIG
from tests.kubeapi.client import Client


def main() -> int:
    with Client.from_kubeconfig(pathlib.Path(os.environ[KUBECONFIG])) as client:
        client.call("POST", "/sandbox/compact", query={"revision": sys.argv[1]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
