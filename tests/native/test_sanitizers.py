"""The tests of the limit under sanitizers: address, undefined, threads.

Everything in the process is instrumented: libvgpu, the stand-in driver, the probe. What a sanitizer
reports fails the test in which it happened (container.py looks for reports).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import building
from tests.native.container import SANITIZER, Build, Container

HERE = Path(__file__).parent
FILES = (
    *("test_memory_cap.py", "test_memory_growth.py", "test_memory_sharing.py"),
    *("test_memory_views.py", "test_memory_policy.py", "test_memory_faults.py"),
    "test_memory_places.py",
    *("test_oversubscription.py", "test_processes.py", "test_crashes.py", "test_accounting.py"),
    "test_schedules.py",
)


@pytest.mark.parametrize(("kind", "error"), [("address", "memory"), ("thread", "threads")])
def test_an_error_is_noticed(tmp_path: Path, kind: building.Kind, error: str) -> None:
    made = building.sanitized(kind)
    with (
        pytest.raises(AssertionError, match="the sanitizer found"),
        Container(tmp_path, build=Build(made.folder, made)) as box,
    ):
        box.started().ask(f"wrong {error}")


@pytest.mark.skipif(bool(SANITIZER), reason="these are the tests that run the others")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("name", "kind"), [("asan", "address"), ("tsan", "thread")])
def test_whole_suite_is_clean(name: str, kind: building.Kind) -> None:
    building.sanitized(kind)  # skips where there is no compiler for it
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *(str(HERE / file) for file in FILES),
        ],
        env={**os.environ, "HAMI_NATIVE_BUILD": name},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20000:]
