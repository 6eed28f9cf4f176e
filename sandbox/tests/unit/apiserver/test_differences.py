"""The list of differences from kube-apiserver keeps its own rules."""

from __future__ import annotations

import fnmatch
import re

from sandbox.tests.cluster.conformance import NEEDS, ROOT, SUITE, differences
from tests.conformance.target import NEEDS as KNOWN_NEEDS

MOST = 10
#: Where there must be none: lists, watches, 410, patches, conflicts, bindings, admission.
WHOLE = (
    "test_lists",
    "test_paging",
    "test_selectors",
    "test_watch*",
    "test_expiry",
    "test_patches",
    "test_strategic_merge",
    "test_apply",
    "test_conflicts",
    "test_bindings",
    "test_webhook*",
)


def test_there_are_few_and_each_says_what_and_why() -> None:
    assert len(differences()) <= MOST
    for difference in differences():
        assert set(difference) == {"what", "why", "tests"}
        assert all(difference.values())


def test_none_is_where_none_may_be() -> None:
    for difference in differences():
        for test in difference["tests"]:
            for file in files(test):
                assert not any(fnmatch.fnmatch(file, whole) for whole in WHOLE), test


def files(test: str) -> set[str]:
    """Return the names of the test files that an entry leaves tests out of; there must be some."""
    suite = ROOT / SUITE
    if test.startswith(NEEDS):
        need = test.removeprefix(NEEDS)
        assert need in KNOWN_NEEDS
        mark = re.compile(rf"needs\([^)]*\"{need}\"")
        found = {file.stem for file in suite.glob("test_*.py") if mark.search(file.read_text())}
    else:
        name, _, function = test.partition("::")
        text = (suite / name).read_text()
        found = (
            {name.removesuffix(".py")} if f"def {function.partition('[')[0]}(" in text else set()
        )
    assert found, f"{test} leaves out nothing"
    return found
