"""A container with the agent's files at their real place, for the product itself.

A mount namespace is the container: the product looks nowhere but at /run/hami/share. Root is not
needed, where the machine allows user namespaces.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hami.node import layout
from hami.wire import policy_file
from hami.wire.shares import Share
from tests.native.container import Container, Limits
from tests.native.probing import GIB, Probe

ALLOCATION_ID = "0123456789abcdef" * 2
POLICY, STATE = layout.INSIDE_POLICY, layout.INSIDE_STATE
#: The user that most images without root have; it has no capability.
USER = "1024"


@functools.cache
def namespace() -> tuple[str, ...]:
    """Give the command that starts a program in mounts of its own."""
    command = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "-Urm")
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        why = "this machine allows no mount namespaces"
        if os.environ.get("CI") == "true":
            pytest.fail(why)
        pytest.skip(why)
    return command


class Mounted(Container):
    """A container whose files are mounted where the agent mounts them.

    `steps` of a probe are lines of a shell with the tenant's rights and more: it can mount, as a
    runtime does for the volumes of a pod.
    """

    def __init__(self, folder: Path, limits: Limits = (GIB,), *, granted: bool = True) -> None:
        super().__init__(folder, limits, library="libvgpu.so")
        self.copies = folder / "copies"
        # On the node the folder has the name of its allocation, which a mount keeps.
        self.tokens = folder / "tokens" / ALLOCATION_ID
        self.tokens.parent.mkdir()
        (self.folder / "policy").rename(self.tokens)
        (self.folder / "policy").symlink_to(self.tokens)
        if not granted:
            self.policy_path.unlink()

    def copy(self) -> Path:
        """Copy the library to a folder of the tenant's."""
        self.copies.mkdir(exist_ok=True)
        return Path(shutil.copy(self.library, self.copies))

    def forged(self, name: str, memory: int = 100 * GIB) -> Path:
        """Make a folder with a policy that the agent did not write."""
        known = policy_file.decode(self.policy_path.read_bytes())
        shares = tuple(
            Share.from_limits(share.card, memory_bytes=memory, cores=0) for share in known.shares
        )
        folder = self.copies / name
        folder.mkdir(parents=True)
        content = policy_file.encode(policy_file.Policy(generation=9, shares=shares))
        (folder / "policy").write_bytes(content)
        return folder

    def inside(
        self,
        *steps: str,
        mounted: bool = True,
        preload: Sequence[Path] = (),
        user: Sequence[str] = (),
        names: Mapping[str, str] | None = None,
        command: Sequence[str] = ("probe",),
    ) -> Probe:
        """Start a probe in the container after the steps; `user` is a command that drops rights."""
        lines = ["set -e", "mount -t tmpfs run /run"]
        if mounted:
            lines += [f"mkdir -p {POLICY}", f"touch {STATE}"]
            lines += [f"mount --bind {self.tokens} {POLICY}"]
            lines += [f"mount --bind {self.state_path} {STATE}"]
        lines += [*steps, 'exec "$@"']
        before = [*namespace(), "sh", "-c", "\n".join(lines), "sh", *user]
        own = " ".join(str(library) for library in preload or [self.library])
        preloaded = {"LD_PRELOAD": self._build.preload(Path(own))}
        program, *arguments = command
        named = {**preloaded, **(names or {})}
        return self.probe(*arguments, program=program, before=before, names=named)
