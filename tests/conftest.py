"""Generated tests are the same in every run: a red run is a changed product.

`HYPOTHESIS_EXPLORE=1` draws new examples instead, to look for what the fixed ones miss.

The product under test is always the one beside these tests (or the mutant runner's copy), never
one that another checkout has installed.
"""

from __future__ import annotations

import os
import pathlib

import hypothesis
import pytest

import hami
import hami_sandbox

# The mutant runner points this at its copy of the product.
TESTED = os.environ.get("HAMI_TESTED_CHECKOUT")

SETTINGS = hypothesis.settings(
    database=None,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # it is a matter of the machine
    # A mutant only has to fail; its smallest example is not read.
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
    if TESTED
    else list(hypothesis.Phase),
)
hypothesis.settings.register_profile("fixed", SETTINGS, derandomize=True)
hypothesis.settings.register_profile("explore", SETTINGS)
hypothesis.settings.load_profile("explore" if os.environ.get("HYPOTHESIS_EXPLORE") else "fixed")

CHECKOUT = pathlib.Path(TESTED or pathlib.Path(__file__).parents[1]).resolve()
for package in (hami, hami_sandbox):
    assert pathlib.Path(package.__path__[0]).resolve().is_relative_to(CHECKOUT), (
        f"{package.__path__[0]} would be tested, not {CHECKOUT}; run `make setup` in this checkout"
    )


@pytest.hookimpl(tryfirst=True)  # a folder's own order counts more
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the longest files come first: at the end of a run one worker would wait for the other.

    A file is long when one of its tests has a time limit of its own.
    """
    limits: dict[pathlib.Path, float] = {}
    for item in items:
        if mark := item.get_closest_marker("timeout"):
            limits[item.path] = max(limits.get(item.path, 0.0), float(mark.args[0]))
    items.sort(key=lambda item: -limits.get(item.path, 0.0))
