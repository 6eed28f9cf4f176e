"""A container's root: mounts in a namespace, or links in a folder.

In a namespace the machine's folders are mounted read-only, /etc is a small one of its own, /tmp,
/run and /root are empty. /proc is the machine's: there is no process namespace, because the driver
and the monitor name processes by the machine's numbers.

Where namespaces are forbidden a folder of links is made from the same tree. Files that can be
written are hard links, because libvgpu follows no symbolic link to its state.

Standard library only: every shim loads this.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH110, PTH112, PTH115, PTH116, PTH120, PTH208, PTH211 - pathlib costs 10 ms of every start

from __future__ import annotations

import os
import stat

from hami_sandbox.runtime import kernel
from hami_sandbox.runtime.root_tree import Bound, File, Folder, Link, Machine, Shadow, Tree

#: Where the machine's folders are mounted whose copies were opened.
HIDDEN = ".machine"
PROGRAMS = "/usr/local/bin"

_OWN = frozenset(("proc", "sys", "dev", "run", "tmp", "etc", "root", "lost+found", HIDDEN))
_OF_DEV = ("null", "zero", "full", "random", "urandom", "tty", "pts")
#: Parts of the machine's /etc that programs need and that are not secret.
_OF_ETC = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl", "pki"),
    *("ca-certificates", "mime.types", "protocols", "services", "shells", "terminfo"),
)
_SIZE = "256m"


def standard(hostname: str, needed: list[str], programs: str) -> Tree:
    """Return the root that every container has; `needed` are paths that it must see."""
    tree = Tree()
    entries = tree.root.entries
    with os.scandir("/") as found:
        for entry in found:
            if entry.name in _OWN:
                continue
            if entry.is_symlink():
                entries[entry.name] = Link(os.readlink(entry.path))
            elif entry.is_dir():
                entries[entry.name] = Machine(entry.path)
    entries |= {
        "proc": Bound("/proc"),
        "dev": _dev(),
        "etc": _etc(hostname),
        "run": Folder(),
        "tmp": Folder(0o1777),
        "root": Folder(),
    }
    if os.path.isdir("/sys"):
        entries["sys"] = Bound("/sys", kernel.READ_ONLY)
    for path in needed:
        if os.path.exists(path) and not tree.shows(path):
            tree.lay(path, Machine(path))
    for name in os.listdir(programs):
        tree.lay(f"{PROGRAMS}/{name}", Bound(f"{programs}/{name}", kernel.READ_ONLY))
    return tree


def _dev() -> Folder:
    dev = Folder()
    for name in _OF_DEV:
        if os.path.exists(f"/dev/{name}"):
            dev.entries[name] = Bound(f"/dev/{name}")
    dev.entries |= {
        "fd": Link("/proc/self/fd"),
        "stdin": Link("/proc/self/fd/0"),
        "stdout": Link("/proc/self/fd/1"),
        "stderr": Link("/proc/self/fd/2"),
        "ptmx": Link("pts/ptmx"),
        "shm": Folder(0o1777),
    }
    return dev


def _etc(hostname: str) -> Folder:
    etc = Folder()
    for name in _OF_ETC:
        if os.path.exists(f"/etc/{name}"):
            etc.entries[name] = Machine(f"/etc/{name}")
    user, group = os.geteuid(), os.getegid()
    people = ["root:x:0:0:root:/root:/bin/sh"]
    people += [f"user:x:{user}:{group}:user:/root:/bin/sh"] if user else []
    groups = ["root:x:0:", *([f"user:x:{group}:"] if group else [])]
    etc.entries |= {
        "hostname": File(f"{hostname}\n"),
        "hosts": File(f"127.0.0.1 localhost {hostname}\n::1 localhost\n"),
        "passwd": File("\n".join(people) + "\n"),
        "group": File("\n".join(groups) + "\n"),
        "nsswitch.conf": File("passwd: files\ngroup: files\nhosts: files dns\n"),
        "resolv.conf": File(""),
    }
    return etc


def enter(tree: Tree, place: str) -> None:
    """Make the tree at an empty folder and have it as root; OSError says what went wrong."""
    kernel.mount_memory(place, f"mode=0755,size={_SIZE}")
    for base in tree.opened:
        tree.lay(f"/{HIDDEN}{base}", Machine(base))
    bound: list[tuple[str, Bound]] = []
    _mount_machine(tree.root, place, bound)
    # Read-only for everything of the machine; requested mounts follow, with their own attributes.
    kernel.restrict(place, kernel.READ_ONLY)
    kernel.make_writable(place)
    for target, node in bound:
        _bind(node.path, target, node.attributes)
    for path, node in tree.nested:
        _bind(node.path, place + path, node.attributes)
    kernel.pivot(place)


def _mount_machine(folder: Folder, place: str, bound: list[tuple[str, Bound]]) -> None:
    for name, node in folder.entries.items():
        target = f"{place}/{name}"
        if isinstance(node, Folder):
            os.mkdir(target)
            os.chmod(target, node.mode)  # whatever the umask says
            _mount_machine(node, target, bound)
        elif isinstance(node, Machine):
            _show(node.path, target)
        elif isinstance(node, Bound):
            bound.append((target, node))
        else:
            _write(node, target, f"/{HIDDEN}")


def _show(path: str, target: str) -> None:
    """Mount a part of the machine; one that cannot be read (a dead network folder) is empty."""
    try:
        _bind(path, target, 0)
    except OSError:
        os.makedirs(target, exist_ok=True)


def _bind(path: str, target: str, attributes: int) -> None:
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            os.makedirs(target, exist_ok=True)
        elif not os.path.lexists(target):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        kernel.bind(path, target)
        kernel.restrict(target, attributes)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _write(node: Link | File | Shadow, target: str, hidden: str) -> None:
    if isinstance(node, Link):
        os.symlink(node.text, target)
    elif isinstance(node, Shadow):
        os.symlink(hidden + node.path, target)
    else:
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, node.mode)
        os.write(handle, node.content.encode())
        os.close(handle)


def link(folder: Folder, place: str, aside: list[str]) -> None:
    """Make the tree out of links, at a folder that is not there yet.

    Hard links do not leave a file system. A folder that needs one from another is made
    there, with a link to it in its place, and is added to `aside`.
    """
    device = os.stat(os.path.dirname(place)).st_dev
    home = place
    for node in folder.entries.values():
        if isinstance(node, Bound) and _is_shared(node) and os.stat(node.path).st_dev != device:
            home = f"{os.path.dirname(node.path)}/.links-{os.getpid()}"
    os.mkdir(home)
    if home != place:
        aside.append(home)
        os.symlink(home, place)
    for name, node in folder.entries.items():
        target = f"{home}/{name}"
        if isinstance(node, Folder):
            link(node, target, aside)
        elif isinstance(node, Bound) and _is_shared(node):
            os.link(node.path, target)
        elif isinstance(node, Bound | Machine):
            os.symlink(node.path, target)
        else:
            _write(node, target, "")


def _is_shared(node: Bound) -> bool:
    """Return whether container and machine both write this file."""
    writable = not node.attributes & kernel.READ_ONLY
    return writable and stat.S_ISREG(os.stat(node.path).st_mode)
