"""`python -m hami` is `hami`."""

from __future__ import annotations

import sys

from hami.cli import main

sys.exit(main.main())
