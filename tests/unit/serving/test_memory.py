"""Memory that a process keeps after it was freed, as the kernel counts it."""

from __future__ import annotations

import subprocess
import sys

import pytest

MIB = 2**20

#: Frees much, with something small left in use behind it, and prints how much of it stayed ours.
LARGE = """
spare = bytearray(24 * MIB)
del spare
before = resident()
large = bytearray(20 * MIB)
behind = [bytearray(2000) for _ in range(200)]
del large
"""
MANY = """
before = resident()
many = [bytearray(20_000) for _ in range(2000)]
behind = [bytearray(2000) for _ in range(200)]
del many
"""
_PROGRAM = """
import pathlib
from hami.serving import lifetime
MIB = 2**20
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096
{begin}
{use}
{end}
print(resident() - before)
"""


def kept(use: str, *, begin: str = "", end: str = "") -> float:
    program = _PROGRAM.format(begin=begin, use=use, end=end)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return int(ran.stdout) / MIB


def test_a_large_buffer_is_the_systems_again_whatever_was_freed_before() -> None:
    assert kept(LARGE) > 15
    assert kept(LARGE, begin="lifetime.bound()") < 2


@pytest.mark.parametrize("begin", ["", "lifetime.bound()"])
def test_what_lies_free_between_things_in_use_is_given_back(begin: str) -> None:
    assert kept(MANY, begin=begin) > 30
    assert kept(MANY, begin=begin, end="lifetime.give_back()") < 2
