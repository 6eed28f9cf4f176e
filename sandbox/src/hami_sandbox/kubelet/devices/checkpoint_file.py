"""The writer of kubelet's device checkpoint, byte for byte as Go writes it, and its own reader.

`hami.agent.kubelet.checkpoint` reads it for the agent and keeps less of it; what a kubelet needs
after its restart is all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from hami.agent.kubelet import checkpoint
from hami.agent.kubelet.checkpoint import Data, File, PodEntry
from hami.node import files
from hami.wire import codec, errors
from hami_sandbox.errors import SandboxError

#: Go escapes these within texts, so that JSON can stand in HTML; elsewhere JSON has none of them.
_ESCAPED = {text.encode(): b"\\u%04x" % ord(text) for text in ("<", ">", "&", "\u2028", "\u2029")}
_MODE = 0o600
_REMEDY = "delete the file; containers that run keep what they have"


def write(
    path: Path, entries: Sequence[PodEntry], registered: Mapping[str, Collection[str]]
) -> None:
    """Put it into place in one step; OSError: it cannot be written."""
    data = Data(
        entries=list(entries) or None,  # a slice that nothing was appended to is null in Go
        registered={name: list(registered[name]) for name in sorted(registered)},
    )
    files.write_atomic(path, encode(data), mode=_MODE)


def encode(data: Data) -> bytes:
    content = msgspec.json.encode(File(data=data, checksum=checkpoint.checksum(data)))
    for plain, escaped in _ESCAPED.items():
        content = content.replace(plain, escaped)
    return content


def read(path: Path) -> Data | None:
    """Return what was written last; None: nothing yet. SandboxError: it is damaged."""
    what = f"checkpoint {path}"
    try:
        file = codec.decode(path.read_bytes(), File, what=what)
    except FileNotFoundError:
        return None
    except (OSError, errors.WireError) as error:
        raise SandboxError(what, str(error), _REMEDY) from error
    expected = checkpoint.checksum(file.data)
    if file.checksum != expected:
        raise SandboxError(what, f"has checksum {file.checksum}, not {expected}", _REMEDY)
    return file.data
