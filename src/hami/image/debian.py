"""Root folders from Debian packages, without changing the host's packages.

A private apt (its own lists, cache and status; the host's sources, keys and proxy settings) finds
the closure of the wanted packages, libc included, as if nothing were installed. apt checks the
indexes by signature and packages by hash; the hash is checked again before each use, so a damaged
cache repairs itself. Root is not needed.

No maintainer script is run. Their work is done elsewhere:

- `update-alternatives` links (iptables, awk, sh): the table `ALTERNATIVES`.
- the bundle /etc/ssl/certs/ca-certificates.crt: written here from the package's certificates.
- users, groups, /etc/passwd: written by `recipes`; services are never started.
- ldconfig's cache: not needed, Debian's library folders are the loader's default ones.
- Python byte code: see `recipes`.

Packages that only serve those scripts (`SCRIPT_HELPERS`) count as installed and are left out.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hami.image import apt, deb, tree
from hami.image.errors import ImageError, only_image_errors

SCRIPT_HELPERS = frozenset({"debconf", "dpkg", "init-system-helpers", "usr-is-merged"})

# Link and its target in the same folder; made if the link is missing and the target is there.
ALTERNATIVES: Mapping[str, str] = {
    "usr/bin/awk": "mawk",
    "usr/bin/sh": "bash",
    "usr/bin/which": "which.debianutils",
    **{
        f"usr/sbin/{family}tables{action}": f"{family}tables-nft{action}"
        for family in ("ip", "ip6", "arp", "eb")
        for action in ("", "-save", "-restore")
    },
}

_REQUEST = re.compile(r"[a-z0-9][a-z0-9+.-]*[a-z0-9+](=[A-Za-z0-9.+~:*?-]+)?")
_DOCUMENTATION = re.compile(
    r"usr/share/(man|info|locale|lintian|linda|doc-base|bug|bash-completion|zsh|fish)(/|$)"
    r"|usr/share/doc/.*(?<!/copyright)$"  # the licences stay: images are handed on
)
_MERGED = ("bin", "sbin", "lib", "lib64")


@dataclass(frozen=True)
class Package:
    name: str
    version: str


def documentation(name: str) -> bool:
    """Return True for documentation; licences are none, because they must stay."""
    return _DOCUMENTATION.match(name) is not None


def unpack(
    packages: Sequence[str],
    root: Path,
    *,
    cache: Path,
    skip: Callable[[str], bool] = documentation,
    without: Collection[str] = SCRIPT_HELPERS,
    alternatives: Mapping[str, str] = ALTERNATIVES,
    say: Callable[[str], None] = print,
) -> tuple[Package, ...]:
    """Extract `packages` (`name` or `name=version-glob`) and all they depend on into `root`.

    Files for which `skip` is true are left out, and so are the packages named in `without`. The
    extracted packages are returned, sorted by name. On an error `root` is half-filled: give a
    temporary folder and rename it.
    """
    closure = Closure(packages, cache=cache, without=without, say=say)
    closure.extract(root, skip=skip, alternatives=alternatives)
    return closure.packages


class Closure:
    """`packages` and all they depend on, resolved and fetched."""

    def __init__(
        self,
        packages: Sequence[str],
        *,
        cache: Path,
        without: Collection[str] = SCRIPT_HELPERS,
        say: Callable[[str], None] = print,
    ) -> None:
        wanted = set()
        for request in packages:
            if not _REQUEST.fullmatch(request):
                raise ImageError(
                    f"package {request!r}",
                    "is no package name",
                    "write name or name=version, * and ? allowed in the version",
                )
            wanted.add(request.partition("=")[0])
        with only_image_errors("fetching Debian packages"), _locked(cache):
            files = _fetch_or_update(apt.Apt(cache, set(without) - wanted), packages, say)
        self._files = sorted(files, key=lambda file: file.name)

    @property
    def packages(self) -> tuple[Package, ...]:
        return tuple(Package(file.name, file.version) for file in self._files)

    @property
    def hashes(self) -> list[str]:
        """The hash of every package: they identify this closure."""
        return [file.sha256 for file in self._files]

    def extract(
        self,
        root: Path,
        *,
        skip: Callable[[str], bool] = documentation,
        alternatives: Mapping[str, str] = ALTERNATIVES,
    ) -> None:
        """Write the files into `root`; in order of name, so that the result is always the same."""
        with only_image_errors("unpacking Debian packages"):
            merge_usr(root)
            for file in self._files:
                deb.extract(file.path, root, skip=skip)
            link_alternatives(root, alternatives)
            bundle_certificates(root)


def _fetch_or_update(
    private: apt.Apt, packages: Sequence[str], say: Callable[[str], None]
) -> tuple[apt.File, ...]:
    fresh = private.update(say)
    try:
        return _fetch(private, packages, say)
    except ImageError:
        if fresh:
            raise
    private.update(say, force=True)  # the mirror may have moved on since the lists were read
    return _fetch(private, packages, say)


def _fetch(
    private: apt.Apt, packages: Sequence[str], say: Callable[[str], None]
) -> tuple[apt.File, ...]:
    files = private.resolve(packages)
    missing = [file for file in files if not _sound(file)]
    if missing:
        size = sum(file.size for file in missing) / 1e6
        say(f"fetching {len(missing)} of {len(files)} Debian packages, {size:.0f} MB")
        for file in missing:
            file.path.unlink(missing_ok=True)
        private.download(packages, missing)
    for file in missing:
        if not _sound(file):
            raise ImageError(
                f"package {file.path.name}", "was fetched but does not have the hash of its index"
            )
    return files


def _sound(file: apt.File) -> bool:
    if not file.path.is_file() or file.path.stat().st_size != file.size:
        return False
    with file.path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == file.sha256


def merge_usr(root: Path) -> None:
    """Make /bin, /sbin and /lib links into /usr, before a package makes them folders."""
    for name in _MERGED:
        tree.folder(root / "usr" / name)
        link = root / name
        if not link.is_symlink():
            link.symlink_to(f"usr/{name}")


def link_alternatives(root: Path, alternatives: Mapping[str, str]) -> None:
    for name, target in alternatives.items():
        link = tree.inside(root, name)
        named = tree.inside(root, str(PurePosixPath(name).with_name(target)), follow=True)
        if named.exists() and not link.is_symlink() and not link.exists():
            link.symlink_to(target)


def bundle_certificates(root: Path) -> None:
    """Write all certificates of the package into one file, as update-ca-certificates does."""
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    if not certificates:
        return
    bundle = tree.inside(root, "etc/ssl/certs/ca-certificates.crt")
    texts = (path.read_text("utf-8").strip() for path in certificates)
    tree.write(bundle, "".join(f"{text}\n" for text in texts))


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Hold the lock of a cache: one apt at a time. The lock of a killed process is free."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
