"""A private apt: the host's sources and keys, a state of its own.

Its configuration is read after the host's and undoes what would reach outside the cache: hooks that
run after an update (some images delete the host's archives there), locks, the sandbox user. apt's
messages name mirrors; their host names are cut out of ours, because a build log travels further
than a machine's sources.list.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from hami.image.errors import ImageError

_DAY = 24 * 3600.0
_SHOWN = 6  # last lines of apt's output in an error
_LINE = re.compile(r"'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})")
_URI_HOST = re.compile(r"(?P<scheme>[\w+]+://)(?P<host>[^/\s'\"]+)")
_NAMED_HOST = re.compile(
    r"(?P<verb>resolve|resolving|connect to|connection to) '?(?P<host>[\w.-]+)'?"
)
_ADDRESS = re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b|\b[0-9a-f]{1,4}(:[0-9a-f]{0,4}){3,7}\b")

_SETTINGS = """\
Dir::State "{at}/state";
Dir::State::status "{at}/status";
Dir::Cache "{at}/cache";
Dir::Cache::archives "{at}/archives";
Dir::Log "{at}/log";
Debug::NoLocking "true";
APT::Sandbox::User "";
APT::Install-Recommends "false";
APT::Install-Suggests "false";
APT::Get::AllowUnauthenticated "false";
APT::Update::Error-Mode "any";
Acquire::AllowInsecureRepositories "false";
Acquire::ForceHash "SHA256";
Acquire::Languages "none";
Acquire::Retries "3";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Pre-Invoke;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
"""

_INSTALLED = """\
Package: {name}
Status: install ok installed
Version: 999:0
Architecture: all
Multi-Arch: foreign
Provides: {provides}
Maintainer: none <none@localhost>
Description: counts as installed

"""
_PROVIDES = {"debconf": "debconf-2.0", "mawk": "awk"}  # other packages depend on these names


@dataclass(frozen=True)
class File:
    """One package of a closure; `path` is its .deb, once it is fetched.

    `mirror` is set if the mirror is a folder of this machine: apt does not copy from it.
    """

    name: str
    version: str
    path: Path
    size: int
    sha256: str
    mirror: Path | None = None


class Apt:
    """apt with its state below `cache`, where the packages `without` count as installed."""

    def __init__(self, cache: Path, without: Collection[str]) -> None:
        tool = shutil.which("apt-get")
        if tool is None:
            raise ImageError(
                "apt-get",
                "is not on this machine",
                "build images on Debian or Ubuntu, or in a container of one",
            )
        self._tool = tool
        self._at = cache.resolve() / "apt"
        self._settings = self._at / "apt.conf"
        for folder in ("state/lists/partial", "cache", "archives/partial", "none/partial", "log"):
            (self._at / folder).mkdir(parents=True, exist_ok=True)
        self._settings.write_text(_SETTINGS.format(at=self._at))
        status = "".join(
            _INSTALLED.format(name=name, provides=_PROVIDES.get(name, f"{name}-counted"))
            for name in sorted(without)
        )
        (self._at / "status").write_text(status)

    def update(self, say: Callable[[str], None], *, force: bool = False) -> bool:
        """Read the mirrors' lists, unless they were read within a day; return True if it did."""
        stamp = self._at / "updated"
        if not force and stamp.exists() and 0 <= time.time() - stamp.stat().st_mtime < _DAY:
            return False
        say("reading the package lists of this machine's Debian mirrors")
        stamp.unlink(missing_ok=True)
        self._run("update", "-q", remedy="try `apt-get update` on this machine: it must work too")
        self._run("autoclean", "-qq")  # packages that the mirrors no longer have
        stamp.touch()
        return True

    def resolve(self, packages: Sequence[str]) -> tuple[File, ...]:
        """Return all packages that `packages` need, by apt's own choice; nothing is fetched."""
        unfetched = (
            f"Dir::Cache::archives={self._at / 'none'}"  # apt lists only packages that it lacks
        )
        text = self._run(
            *("install", "-qq", "-y", "--print-uris", "-o", unfetched, *packages),
            remedy="see `apt-cache policy` for what this machine's sources have",
        )
        return tuple(self._file(line) for line in text.splitlines() if line.startswith("'"))

    def download(self, packages: Sequence[str], files: Sequence[File]) -> None:
        """Fetch missing packages; `files` is the result of `resolve` for the same packages."""
        self._run("install", "-q", "-y", "--download-only", *packages)
        for file in files:
            if file.mirror and not file.path.exists():
                shutil.copyfile(file.mirror, file.path)

    def _file(self, line: str) -> File:
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise ImageError(
                f"apt's answer {hide_hosts(line)!r}",
                "names no SHA256",
                "use a mirror whose indexes have it: Debian's do",
            )
        name, version, _ = found["file"].split("_")
        uri, size = found["uri"], int(found["size"])
        mirror = Path(unquote(uri.removeprefix("file:"))) if uri.startswith("file:") else None
        path = self._at / "archives" / found["file"]
        return File(name, unquote(version), path, size, found["sha256"], mirror)

    def _run(self, command: str, *arguments: str, remedy: str = "") -> str:
        done = subprocess.run(  # noqa: S603 - names are checked by the caller, no shell
            [self._tool, "-c", str(self._settings), command, *arguments],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        )
        if done.returncode:
            lines = hide_hosts(done.stdout + done.stderr).strip().splitlines()
            words = [word for word in arguments if not word.startswith(("-", "Dir::"))]
            raise ImageError(
                " ".join(["apt-get", command, *words]),
                "failed: " + " | ".join(line.strip() for line in lines[-_SHOWN:]),
                remedy,
            )
        return done.stdout


def hide_hosts(text: str) -> str:
    """Cut the names and addresses of mirrors and proxies out of apt's output."""
    hosts = {found["host"] for found in _URI_HOST.finditer(text)}
    hosts |= {host.rpartition("@")[2].partition(":")[0] for host in hosts}
    text = _URI_HOST.sub(r"\g<scheme>MIRROR", text)
    for host in sorted(hosts - {""}, key=len, reverse=True):
        text = text.replace(host, "MIRROR")
    text = _NAMED_HOST.sub(r"\g<verb> MIRROR", text)
    return _ADDRESS.sub("ADDRESS", text)
