"""Generated tests are the same in every run, so that a red run means a changed product.

`HYPOTHESIS_EXPLORE=1` draws new examples instead, to look for what the fixed ones miss.
"""

from __future__ import annotations

import os

import hypothesis

hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("explore", database=None, deadline=None)
hypothesis.settings.load_profile("explore" if os.environ.get("HYPOTHESIS_EXPLORE") else "fixed")
