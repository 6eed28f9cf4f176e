"""python -m tests.e2e.agent: keep the whole product on a running cluster.

For working on a test: `HAMI_E2E_CLUSTER=dev HAMI_E2E_AGENTS=1 pytest tests/e2e/test_agent_life.py`.
"""

from __future__ import annotations

import os
import signal

from tests.e2e.agent import installation
from tests.e2e.cluster import cluster as clusters


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: None)  # it ends the pause, and then all else
    found = clusters.find(os.environ.get("HAMI_E2E_CLUSTER", "dev"))
    with installation.installed(found):
        clusters.say("the agents offer their cards; end me to take everything away")
        signal.pause()


if __name__ == "__main__":
    main()
