"""`python -m hami.sandbox.apiserver`."""

from __future__ import annotations

import sys

from hami.sandbox.apiserver.process import main

if __name__ == "__main__":
    sys.exit(main())
