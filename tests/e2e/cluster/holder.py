"""A machine of the test cluster: process 1 that holds its namespaces.

    python -m tests.e2e.cluster.holder ROOT HOSTNAME LIFELINE [SOURCE:TARGET:ro|rw ...]

The outer process stays in this machine's namespaces; the inner one gets its own process tree,
mounts, network, host name and System V IPC, changes into ROOT, and prints nothing but `{"pid": N}`
through the outer.

Why a process 1: when it ends, the kernel kills everything in its namespace, shims and containers
included, and mounts and interfaces go with their last process. Nothing has to be found and cleaned
up. With LIFELINE `stdin`, the end of the harness (however it dies) closes our standard input, and
the machine ends at once; with `none` it stays until somebody ends it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path

from tests.e2e.cluster import kernel

DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "kmsg", "fuse")
OLD_ROOT = "/.old-root"
# Kubelet sets these for the whole machine, which is not ours. It finds them as it wants them, in
# files of our own that lie over the real ones, and changes nothing.
KUBELET_WANTS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def main() -> None:
    root, hostname, lifeline, *binds = sys.argv[1:]
    ready, tell = os.pipe()
    kernel.unshare(
        kernel.CLONE_NEWNS
        | kernel.CLONE_NEWPID
        | kernel.CLONE_NEWNET
        | kernel.CLONE_NEWUTS
        | kernel.CLONE_NEWIPC
    )
    inner = os.fork()
    if inner == 0:
        kernel.die_with_parent(signal.SIGKILL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        build_root(Path(root), binds)
        socket.sethostname(hostname)
        os.write(tell, b"1")
        os.close(tell)
        reap_forever()
    os.close(tell)
    if not os.read(ready, 1):
        sys.exit(f"machine {hostname}: its root could not be set up; the error stands above")
    sys.stdout.write(json.dumps({"pid": inner}) + "\n")
    sys.stdout.close()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the harness's; it ends us in order
    if lifeline == "stdin":
        watch_lifeline(inner)
    os.waitpid(inner, 0)


def watch_lifeline(inner: int) -> None:
    """Wait until whoever started us is gone; then the machine goes too."""
    while os.read(0, 1):
        pass
    os.kill(inner, signal.SIGKILL)


def reap_forever() -> None:
    """Orphans come to process 1 to be collected; that is its whole work."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait({signal.SIGCHLD})


def build_root(root: Path, binds: list[str]) -> None:
    """Turn the prepared folder into /, with nothing of the outer machine left in sight."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.bind(str(root), str(root))
    for entry in binds:
        source, target, mode = entry.rsplit(":", 2)
        place = root / target.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        kernel.bind(source, str(place), read_only=mode == "ro")
    for folder in ("proc", "sys", "dev", "run", "tmp", OLD_ROOT.lstrip("/")):
        (root / folder).mkdir(exist_ok=True)
    kernel.mount("proc", str(root / "proc"), "proc", kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.mount("sysfs", str(root / "sys"), "sysfs", kernel.MS_NOSUID | kernel.MS_NODEV)
    kernel.bind("/sys/fs/cgroup", str(root / "sys/fs/cgroup"), recursive=True)
    kernel.mount("tmpfs", str(root / "run"), "tmpfs", kernel.MS_NOSUID, "mode=755")
    shield_settings(root)
    build_devices(root / "dev")
    os.chdir(root)
    kernel.pivot_root(".", f".{OLD_ROOT}")
    os.chdir("/")
    kernel.detach(OLD_ROOT)
    # Kubelet and containerd pass mounts on to containers, so what happens here must be shared
    # among this machine's own namespaces (and with no other machine: the group is new).
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_SHARED)


def shield_settings(root: Path) -> None:
    folder = root / "run/settings"
    folder.mkdir()
    for name, value in KUBELET_WANTS.items():
        own = folder / name.replace("/", ".")
        own.write_text(f"{value}\n")
        kernel.bind(str(own), str(root / "proc/sys" / name))


def build_devices(dev: Path) -> None:
    kernel.mount("tmpfs", str(dev), "tmpfs", kernel.MS_NOSUID, "mode=755")
    for name in DEVICES:
        if Path("/dev", name).exists():
            (dev / name).touch()
            kernel.bind(f"/dev/{name}", str(dev / name))
    (dev / "pts").mkdir()
    kernel.mount("devpts", str(dev / "pts"), "devpts", 0, "newinstance,ptmxmode=0666,mode=620")
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "shm").mkdir()
    kernel.mount("tmpfs", str(dev / "shm"), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        (dev / name).symlink_to(f"/proc/self/fd{target}")


if __name__ == "__main__":
    main()
