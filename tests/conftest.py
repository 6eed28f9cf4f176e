"""Generated tests are the same in every run, so that a red run means a changed product.

`HYPOTHESIS_EXPLORE=1` draws new examples instead, to look for what the fixed ones miss.
"""

from __future__ import annotations

import os

import hypothesis

import hami

# The mutant runner points this at its copy of the product.
TESTED = os.environ.get("HAMI_TESTED_SOURCE")

SETTINGS = hypothesis.settings(
    database=None,
    deadline=None,
    # A mutant only has to fail; nobody reads its smallest example.
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
    if TESTED
    else list(hypothesis.Phase),
)
hypothesis.settings.register_profile("fixed", SETTINGS, derandomize=True)
hypothesis.settings.register_profile("explore", SETTINGS)
hypothesis.settings.load_profile("explore" if os.environ.get("HYPOTHESIS_EXPLORE") else "fixed")

if TESTED:
    assert hami.__file__ is not None
    assert hami.__file__.startswith(TESTED), "another copy of the product would be tested in vain"
