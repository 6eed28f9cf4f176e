"""Sizes of bursts, fleets and examples: small in `make e2e`, whole in `make soak`.

HAMI_E2E_WHOLE=1 makes them whole. What they prove does not depend on the number. Times and ratios
do, so these are shown in whole runs only.
"""

from __future__ import annotations

import os

WHOLE = bool(os.environ.get("HAMI_E2E_WHOLE"))
PODS_ON_A_NODE = 100 if WHOLE else 24
#: Pods that arrive while agents are replaced.
PODS_OF_A_ROLLOUT = 60 if WHOLE else 24
FLEET = 1000 if WHOLE else 250
PODS_ON_A_FLEET = 500 if WHOLE else 200
#: Drawn pods that the API server is shown as admission patched them.
PATCHED_PODS = 3000 if WHOLE else 600
