"""Images by name: what they run when the pod says nothing.

There are no images here: every container has the machine's own programs. But a pod names one, and
may leave the command to it.
"""

from __future__ import annotations

import re
from typing import Final

#: An image's last name, without registry, tag and digest, to the program that it is: what a pod
#: says as `args` follows it.
PROGRAMS: Final = {"pause": ("sleep", "infinity"), "probe": ("probe",), "gpu-work": ("gpu-work",)}
#: The same to what it runs where the pod says nothing; `args` take its place.
COMMANDS: Final = {
    "busybox": ("sh",),
    "alpine": ("sh",),
    "debian": ("bash",),
    "ubuntu": ("bash",),
    "python": ("python3",),
}

_TAG = re.compile(r"(?::[\w][\w.-]{0,127})?(?:@[\w.:+-]+)?$", re.ASCII)


def name(image: str) -> str:
    """Return the last name of an image: `registry.example/team/probe:dev` is `probe`."""
    return _TAG.sub("", image.rpartition("/")[2], count=1)


def argv(image: str, command: tuple[str, ...] = (), args: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return what a container runs, by Kubernetes' rules; empty: nobody says what."""
    program = command or PROGRAMS.get(name(image), ())
    if args:
        return (*program, *args)
    return program or COMMANDS.get(name(image), ())
