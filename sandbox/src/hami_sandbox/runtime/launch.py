"""From a fork to the container's own program: root, working folder, exec.

Failures have containerd's and runc's words, because users know them from `kubectl describe`.
Standard library only: every shim loads this.
"""

# ruff: noqa: PTH103, PTH112, PTH116, PTH123 - pathlib costs 10 ms of every start

from __future__ import annotations

import errno
import os
import stat

from hami_sandbox.runtime import kernel, root
from hami_sandbox.runtime.records import ASIDE, ROOT, Bundle
from hami_sandbox.runtime.root_tree import Bound, Tree

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_CREATE = (
    "failed to create containerd task: failed to create shim task: OCI runtime create failed: "
    "runc create failed: unable to start container process: "
)
_INIT = "error during container init: "


class LaunchError(Exception):
    """The program cannot be started; the message is for `kubectl describe`."""

    def __init__(self, why: str, *, inside: bool = True) -> None:
        self.why = why
        super().__init__(f"{_CREATE}{_INIT if inside else ''}{why}: unknown")


def launch(bundle: Bundle, folder: str) -> None:
    """Become the container's program; returns only by raising LaunchError."""
    try:
        if bundle.namespaces:
            kernel.enter_namespaces()
            kernel.set_hostname(bundle.hostname)
    except OSError as error:
        raise LaunchError(_what(error), inside=False) from error
    try:
        if bundle.namespaces:
            root.enter(_mounted(bundle), f"{folder}/{ROOT}")
        else:
            _link(bundle, folder)
    except OSError as error:
        raise LaunchError(f"error mounting {_what(error)}") from error
    _exec(bundle)


def _what(error: OSError) -> str:
    return f"{error.filename}: {(error.strerror or '').lower()}"


def _mounted(bundle: Bundle) -> Tree:
    tree = root.standard(bundle.hostname, bundle.needed, bundle.programs)
    _lay(tree, bundle)
    return tree


def _link(bundle: Bundle, folder: str) -> None:
    tree = Tree(mounting=False)
    _lay(tree, bundle)
    aside: list[str] = []
    try:
        root.link(tree.root, f"{folder}/{ROOT}", aside)
    finally:
        if aside:
            with open(f"{folder}/{ASIDE}", "w") as file:
                file.write("".join(f"{path}\n" for path in aside))


def _lay(tree: Tree, bundle: Bundle) -> None:
    for host, place, attributes in bundle.mounts:
        os.stat(host)  # raises with the missing path
        tree.lay(place, Bound(host, attributes))


def _exec(bundle: Bundle) -> None:
    program = bundle.argv[0]
    try:
        folder = bundle.working_dir or "/"
        os.makedirs(folder, exist_ok=True)
        os.chdir(folder)
    except OSError as error:
        raise LaunchError(f"mkdir {_what(error)}") from error
    path = _found(program, bundle.env.get("PATH", DEFAULT_PATH))
    kernel.forget_ignored_signals()
    try:
        os.execve(path, bundle.argv, bundle.env)  # noqa: S606 - what the pod asks for
    except OSError as error:
        raise _refused(program, (error.strerror or "").lower()) from error


def _found(program: str, path: str) -> str:
    if "/" in program:
        try:
            found = os.stat(program)
        except OSError as error:
            reason = f"stat {program}: {(error.strerror or '').lower()}"
            raise _refused(program, reason) from error
        if stat.S_ISDIR(found.st_mode):
            raise _refused(program, os.strerror(errno.EISDIR).lower())
        return program
    for folder in path.split(":"):
        candidate = f"{folder or '.'}/{program}"
        if os.access(candidate, os.X_OK) and not os.path.isdir(candidate):
            return candidate
    raise _refused(program, "executable file not found in $PATH")


def _refused(program: str, reason: str) -> LaunchError:
    return LaunchError(f'exec: "{program}": {reason}')
