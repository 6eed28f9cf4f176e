"""Sanitized builds notice errors, also with libvgpu preloaded.

Without this the silence of a sanitizer would prove nothing.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.native import building

BEYOND_THE_END = """
#include <stdlib.h>
int main(int count, char **words) {
    (void)words;
    char *bytes = calloc(4, 1);
    return bytes[3 + count];
}
"""
TOO_LARGE = """
#include <limits.h>
int main(int count, char **words) {
    (void)words;
    return INT_MAX - 1 + count + count > 0;
}
"""
TWO_WRITERS = """
#include <pthread.h>
static int shared;
static void *write_it(void *unused) {
    for (int i = 0; i < 1000; i++) {
        shared++;
    }
    return unused;
}
int main(void) {
    pthread_t one, other;
    pthread_create(&one, NULL, write_it, NULL);
    pthread_create(&other, NULL, write_it, NULL);
    pthread_join(one, NULL);
    pthread_join(other, NULL);
    return 0;
}
"""


@pytest.mark.timeout(600)  # the first of them compiles everything
@pytest.mark.parametrize(
    ("kind", "program", "found", "where"),
    [
        ("address", BEYOND_THE_END, "heap-buffer-overflow", "a file"),
        ("address", TOO_LARGE, "signed integer overflow", "stderr"),
        ("thread", TWO_WRITERS, "data race", "a file"),
    ],
)
def test_an_error_is_reported(
    tmp_path: Path, kind: building.Kind, program: str, found: str, where: str
) -> None:
    made = building.sanitized(kind)
    compiler = building.instrumenting(kind)
    (tmp_path / "faulty.c").write_text(program)
    files = [str(tmp_path / "faulty.c"), "-o", str(tmp_path / "faulty"), "-lpthread"]
    compiler.run("faulty", [*compiler.command, *compiler.flags, *files])
    done = subprocess.run(
        [*made.wrapper, tmp_path / "faulty"],
        env={
            **os.environ,
            "LD_PRELOAD": made.preload(made.folder / "libvgpu.so"),
            **made.environment(tmp_path / "reports"),
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 99
    told = building.reports(tmp_path / "reports") if where == "a file" else [done.stderr]
    assert found in "".join(told)
