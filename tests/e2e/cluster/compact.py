"""Compact the cluster's etcd, from inside the cluster's network.

    python -m tests.e2e.cluster.compact REVISION

The conformance suite calls it to see what the API server says of a past that is gone.
"""

from __future__ import annotations

import json
import sys
import urllib.request

COMPACTION = "http://127.0.0.1:2379/v3/kv/compaction"


def main() -> None:
    body = json.dumps({"revision": sys.argv[1]}).encode()
    with urllib.request.urlopen(urllib.request.Request(COMPACTION, body)) as answer:
        answer.read()


if __name__ == "__main__":
    main()
