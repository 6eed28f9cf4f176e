"""Run a program that ends with its parent: python leash.py PARENT COMMAND ...

The kernel kills it when the parent ends, for whatever reason; exec keeps that. Imports little (and
is run with -I -S), because every program of the sandbox starts through it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):
        sys.exit(1)  # the parent ended before prctl
    os.execvp(command[0], command)  # noqa: S606 - the supervisor's own command


if __name__ == "__main__":
    main()
