"""A container as libvgpu sees it: library, policy and state in a folder.

The policy is packed here and not with hami.wire.policy_file: the Python on a GPU machine need
not have this project's dependencies.
"""

from __future__ import annotations

import os
import platform
import shutil
import struct
import tempfile
import zlib
from pathlib import Path

from tests.gpu.workers import ROOT

#: The product but for one thing: it looks for the agent's files beside itself, not at a fixed path.
LIBRARY = ROOT / "native" / "lib" / platform.machine() / "libvgpu-beside.so"
POLICY_MAGIC = 0x31594C4F50494D41
DEVICES = 16


def pack_policy(uuid: str, limit: int, context: int, generation: int = 1) -> bytes:
    """Pack struct vgpu_policy of native/libvgpu/abi.h for one card."""
    card = struct.pack("<96sQQII40x", uuid.encode(), limit, context, 0, 0)
    size = 488 + DEVICES * len(card) + 128
    head = struct.pack("<QIIQIIiI", POLICY_MAGIC, 1, size, generation, 0, 1, 0, 0)
    who = struct.pack("<64s64s256s64s", b"", b"default", b"gpu-test", b"main")
    body = head + who + card + bytes((DEVICES - 1) * len(card) + 124)
    return body + struct.pack("<I", zlib.crc32(body))


class Container:
    def __init__(self, uuid: str, limit: int, context: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="vgpu-"))
        shutil.copy(LIBRARY, self.folder / "libvgpu.so")
        (self.folder / "policy").mkdir()
        (self.folder / "policy" / "policy").write_bytes(pack_policy(uuid, limit, context))
        (self.folder / "state").touch()

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.folder / "libvgpu.so")}

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def available() -> str:
    """Return why there is no library to test, or nothing."""
    if not LIBRARY.exists():
        return f"{LIBRARY.relative_to(ROOT)} is not there: run make native"
    return "" if os.access(LIBRARY, os.R_OK) else f"{LIBRARY.name} cannot be read"
