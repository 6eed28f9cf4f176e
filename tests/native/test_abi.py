"""abi.h and file_layout.py have the same offsets, sizes and constants."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.node import layout
from hami.wire import file_layout, policy_file
from native import build

ABI = (build.SOURCES / "libvgpu/abi.h").read_text()
STRUCTS = {
    "vgpu_policy_device": file_layout.POLICY_CARD,
    "vgpu_policy": file_layout.POLICY,
    "vgpu_usage": file_layout.PROCESS_USAGE,
    "vgpu_slot": file_layout.PROCESS_ENTRY,
    "vgpu_state_device": file_layout.STATE_CARD,
    "vgpu_state": file_layout.STATE,
}
CONSTANTS = {
    "VGPU_MAX_DEVICES": file_layout.MAX_CARDS,
    "VGPU_MAX_SLOTS": file_layout.MAX_PROCESSES,
    "VGPU_UUID_SIZE": file_layout.POLICY_CARD.places["uuid"][1],
    "VGPU_POLICY_MAGIC": file_layout.POLICY_MAGIC,
    "VGPU_POLICY_VERSION": file_layout.POLICY_VERSION,
    "VGPU_STATE_MAGIC": file_layout.STATE_MAGIC,
    "VGPU_STATE_VERSION": file_layout.STATE_VERSION,
    "VGPU_LOCK_BASE": file_layout.LOCK_BASE,
    "VGPU_POLICY_OVERSUBSCRIBE": policy_file.Flag.OVERSUBSCRIBE,
    "VGPU_POLICY_FORCE_CORES": policy_file.Flag.FORCE_CORES,
    "VGPU_POLICY_IGNORE_CORES": policy_file.Flag.IGNORE_CORES,
}
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCT = re.compile(r"struct (\w+) \{\n(.*?)\n\};", re.DOTALL)
_UNION = re.compile(r"union \{\s*[^;]* (\w+);.*?\};", re.DOTALL)
_MEMBER = re.compile(r"(\w+)(?:\[\w+\])*;")


def members(body: str) -> list[str]:
    """Name a struct's members in order; of a union without a name the first."""
    return _MEMBER.findall(_UNION.sub(r"\1;", body))


def in_c() -> dict[str, list[str]]:
    return {name: members(body) for name, body in _STRUCT.findall(_COMMENT.sub("", ABI))}


def program() -> Iterator[str]:
    yield '#include <stddef.h>\n#include <stdio.h>\n#include "abi.h"\nint main(void) {'
    for name, fields in in_c().items():
        yield f'printf("{name} 0 %zu\\n", sizeof(struct {name}));'
        for field in fields:
            # The mutex has the union's whole space, whatever it takes of it.
            sized = f"{field}_space" if field == "lock" else field
            yield (
                f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
                f"sizeof(((struct {name} *)0)->{sized}));"
            )
    for name in CONSTANTS:
        yield f'printf("{name} %llu 0\\n", (unsigned long long){name});'
    yield "}"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """Compile and run the program with the compiler of the product."""
    folder: Path = tmp_path_factory.mktemp("abi")
    (folder / "offsets.c").write_text("\n".join(program()))
    compiler = build.zig(build.own_arch())
    compiler.run(
        "offsets",
        [
            *(*compiler.command, "-std=c11", "-D_GNU_SOURCE"),
            *("-I", str(build.SOURCES / "libvgpu"), str(folder / "offsets.c")),
            *("-o", str(folder / "offsets")),
        ],
    )
    done = subprocess.run([folder / "offsets"], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: (int(first), int(second)) for name, first, second in lines}


def test_every_struct_of_the_header_is_in_the_table() -> None:
    assert in_c().keys() == STRUCTS.keys()


@pytest.mark.parametrize("name", STRUCTS)
def test_fields_lie_where_the_library_puts_them(
    name: str, told: dict[str, tuple[int, int]]
) -> None:
    expected = STRUCTS[name]
    assert {field: told[f"{name}.{field}"] for field in in_c()[name]} == expected.places
    assert told[name] == (0, expected.size)


def test_constants_are_the_same(told: dict[str, tuple[int, int]]) -> None:
    assert {name: told[name][0] for name in CONSTANTS} == CONSTANTS
    defined = re.findall(r"#define (VGPU_\w+) (?!\")", ABI)
    assert set(defined) == CONSTANTS.keys()


def test_the_agent_mounts_its_files_where_the_library_looks() -> None:
    assert re.findall(r'#define VGPU_SHARE "(.*)"', ABI) == [layout.SHARE]
    assert f"{layout.SHARE}/policy" == layout.INSIDE_POLICY
    assert f"{layout.SHARE}/state" == layout.INSIDE_STATE
