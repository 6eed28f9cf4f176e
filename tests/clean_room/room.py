"""A machine with only make and Python, for one command of an ordinary user.

    python -m tests.clean_room.room ROOT HOME TMP yes|no COMMAND ...

The command gets mounts, processes, host name and IPC of its own, a read-only root that pivot_root
puts in place of this machine's, and the user's rights and nothing else: whatever it sees or does is
what a stranger's fresh machine would show. `no` forbids user namespaces, as some machines do. The
network is this machine's, for downloads.

Process 1 of the room is not the command: when that has ended, process 1 looks who is left, and
writes the names to standard error behind `left behind: `. The exit code is the command's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import sys
import termios
from pathlib import Path

from tests.e2e.cluster import holder, kernel

USER = 1000
HOME = "/home/user"
LEFT_BEHIND = "left behind: "

_OLD_ROOT = ".old-root"
_IDS = 65536
_CLONE_NEWUSER = 0x10000000
_FORBIDDEN = "0"
#: What a network needs, and what says where packages come from and whom to trust.
_NETWORK = ("resolv.conf", "hosts", "nsswitch.conf", "pip.conf", "ssl/certs")
_INIT = 1


def main() -> None:
    root, home, tmp, namespaces, *command = sys.argv[1:]
    ready, tell = os.pipe()
    done, go_on = os.pipe()
    kernel.unshare(kernel.CLONE_NEWPID | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
    inner = os.fork()
    if inner == 0:
        kernel.die_with_parent(signal.SIGKILL)
        kernel.unshare(kernel.CLONE_NEWNS)  # only here: the outer process keeps its own /proc
        _build(Path(root), Path(home), Path(tmp))
        socket.sethostname("clean-room")
        if namespaces == "no":
            kernel.unshare(_CLONE_NEWUSER)
            os.write(tell, b"1")
            os.read(done, 1)
            Path("/proc/sys/user/max_user_namespaces").write_text(_FORBIDDEN)
        os._exit(_init(command))
    if namespaces == "no":
        os.read(ready, 1)
        # Whoever has just entered a namespace may not say himself who is who in it.
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{inner}/{name}").write_text(f"0 0 {_IDS}\n")
        os.write(go_on, b"1")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))


def _build(root: Path, home: Path, tmp: Path) -> None:
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    # The part is shared and stays as it is: what is added goes into a layer of this room.
    upper = tmp.parent / "upper"
    work = tmp.parent / "work"
    merged = tmp.parent / "root"
    for folder in (upper, work, merged):
        folder.mkdir(exist_ok=True)
    layers = f"lowerdir={root},upperdir={upper},workdir={work}"
    kernel.mount("overlay", str(merged), "overlay", 0, layers)
    for name in ("proc", "dev", "run", "tmp", "root", HOME.lstrip("/"), _OLD_ROOT):
        (merged / name).mkdir(parents=True, exist_ok=True)
    _settings(merged / "etc")
    kernel.mount("proc", str(merged / "proc"), "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.mount("tmpfs", str(merged / "run"), "tmpfs", kernel.MS_NOSUID, "mode=755")
    kernel.bind(str(home), str(merged / HOME.lstrip("/")))
    kernel.bind(str(tmp), str(merged / "tmp"))
    holder.build_devices(merged / "dev")
    kernel.mount("none", str(merged), None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY)
    os.chdir(merged)
    kernel.pivot_root(".", _OLD_ROOT)
    os.chdir("/")
    kernel.detach(f"/{_OLD_ROOT}")


def _settings(etc: Path) -> None:
    etc.mkdir(exist_ok=True)
    users = {"root": (0, "/root"), "user": (USER, HOME)}
    (etc / "passwd").write_text(
        "".join(f"{name}:x:{id_}:{id_}::{home}:/bin/bash\n" for name, (id_, home) in users.items())
    )
    (etc / "group").write_text("".join(f"{name}:x:{id_}:\n" for name, (id_, _) in users.items()))
    for name in _NETWORK:
        source, target = Path("/etc", name), etc / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        elif source.exists():
            shutil.copyfile(source, target)


def _init(command: list[str]) -> int:
    """Run the command as the user, collect orphans, and tell who outlived it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    started = os.fork()
    if started == 0:
        _become_user()
        os.execvpe(command[0], command, os.environ)  # noqa: S606 (the test's own command)
    while True:
        pid, status = os.wait()
        if pid == started:
            break
    with contextlib.suppress(ChildProcessError):  # those that have ended, and nobody asked for
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    if left := _others():
        sys.stderr.write(f"{LEFT_BEHIND}{', '.join(left)}\n")
    return os.waitstatus_to_exitcode(status) & 0xFF


def _become_user() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.setsid()
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    os.chdir(HOME)


def _others() -> list[str]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != _INIT:
            with contextlib.suppress(OSError):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found.append(b" ".join(words).decode(errors="replace").strip() or folder.name)
    return found


if __name__ == "__main__":
    main()
