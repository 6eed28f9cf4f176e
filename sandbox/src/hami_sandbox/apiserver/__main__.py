"""Run the API server: `python -m hami_sandbox.apiserver`."""

from __future__ import annotations

import sys

from hami_sandbox.apiserver.main import main

if __name__ == "__main__":
    sys.exit(main())
