"""The keys of grants, from mounted Secrets that may change at any time.

| file | form | who has it |
|---|---|---|
| `signing-current`, `signing-previous` | v3 | schedulers: these sign |
| `public-current`, `public-previous` | v3 | agents: these only verify |
| `current`, `previous` | v1 | both: these sign, too |

`current` signs; readers also accept `previous`, during a rotation. A form counts if it is among
the accepted ones and its key is there: a cluster that was installed with v3 has no key of v1. The
folder is read again when a file in it has changed. If it cannot be read while it is being swapped,
the known keys stay in use. At start that is an error, because agents start no container without a
signed grant.
"""

from __future__ import annotations

import dataclasses
import logging
import pathlib
from collections.abc import Collection, Iterator
from typing import TypeVar

from hami.serving.grant_signature import PublicKey, SigningKey
from hami.serving.lifetime import ServingError
from hami.wire import errors, grant, signature
from hami.wire.grant import V1, V3, Signed

_log = logging.getLogger(__name__)

CURRENT, PREVIOUS = "current", "previous"
SIGNING_CURRENT, SIGNING_PREVIOUS = "signing-current", "signing-previous"
PUBLIC_CURRENT, PUBLIC_PREVIOUS = "public-current", "public-previous"
_FILES = (
    *(CURRENT, PREVIOUS),
    *(SIGNING_CURRENT, SIGNING_PREVIOUS, PUBLIC_CURRENT, PUBLIC_PREVIOUS),
)

_Key = TypeVar("_Key", SigningKey, PublicKey)


class GrantKeyError(ServingError):
    """The keys cannot be read; names the file, the reason and the remedy."""


@dataclasses.dataclass(frozen=True)
class Keyring:
    """The keys that a process has. In each form the current one is first."""

    v1: signature.GrantKeys | None = None
    signing: tuple[SigningKey, ...] = ()
    public: tuple[PublicKey, ...] = ()

    @property
    def _keys_v3(self) -> tuple[SigningKey | PublicKey, ...]:
        return (*self.signing, *self.public)

    def ids(self) -> Iterator[tuple[str, str]]:
        """Yield form and id of every key: the newest form first, the current key first."""
        for key in self._keys_v3:
            yield V3, key.id
        if self.v1 is not None:
            for old in (self.v1.current, self.v1.previous):
                if old is not None:
                    yield V1, signature.key_id(old)

    def sign(self, what: Signed, reads: Collection[tuple[str, str]]) -> str:
        """Return a signature that a node can verify; empty: no key can sign this.

        `reads` are the forms and keys that the node's agent names. It gets the newest form, of the
        current key if it has that one already. An agent that names none is older than v3.
        """
        able = [(V3, key.id) for key in self.signing]
        if self.v1 is not None and what.text_v1() is not None:
            able += [(V1, signature.key_id(self.v1.current))]
        if not able:
            return ""
        forms = {form for form, _ in reads} or {V1}
        of_a_known_form = [each for each in able if each[0] in forms] or able
        chosen = next((each for each in able if each in reads), of_a_known_form[0])
        return self._signed(what, *chosen)

    def _signed(self, what: Signed, form: str, key_id: str) -> str:
        if form == V3:
            (key,) = (key for key in self.signing if key.id == key_id)
            return key.sign(what.text())
        text = what.text_v1()
        assert self.v1 is not None
        assert text is not None
        return signature.sign(self.v1, uid=what.uid, node=what.node, devices=text)

    def verify(self, value: str, what: Signed) -> bool:
        """Return whether one of the keys signed exactly this."""
        form, _, _ = value.partition(":")
        if form == V1:
            text = what.text_v1()
            if self.v1 is None or text is None:
                return False
            return signature.verify(self.v1, value, uid=what.uid, node=what.node, devices=text)
        if form != V3:
            return False
        try:
            content = what.text()
        except errors.WireError:
            return False
        return any(key.verify(value, content) for key in self._keys_v3)


class KeyFolder:
    """The keys of a folder, read again after each change."""

    def __init__(
        self, folder: str, *, forms: Collection[str] = grant.FORMS, signs: bool = True
    ) -> None:
        """Read the folder; `signs`: as a scheduler, with signing keys in place of public ones."""
        self._folder = pathlib.Path(folder)
        self._forms = forms
        self._signs = signs
        self._stamp = self._current_stamp()
        self._keys = self._read()
        if not signs and (self._folder / SIGNING_CURRENT).exists():
            _log.warning(
                "the signing key of grants is on this node, where it has no use; mount the "
                "Secret with the public key only",
                extra={"file": str(self._folder / SIGNING_CURRENT)},
            )

    def keys(self) -> Keyring:
        """Return the keys as they are now."""
        stamp = self._current_stamp()
        if stamp != self._stamp:
            try:
                self._keys = self._read()
            except GrantKeyError as error:
                _log.warning(
                    "changed grant keys cannot be read, the previous ones stay in use",
                    extra={"error": str(error)},
                )
            else:
                self._stamp = stamp
        return self._keys

    def _current_stamp(self) -> tuple[object, ...]:
        return tuple(self._stamp_of(self._folder / name) for name in _FILES)

    @staticmethod
    def _stamp_of(path: pathlib.Path) -> object:
        try:
            stat = path.stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    def _read(self) -> Keyring:
        names = (SIGNING_CURRENT, SIGNING_PREVIOUS)
        if not self._signs:
            names = (PUBLIC_CURRENT, PUBLIC_PREVIOUS)
        try:
            v1 = self._pair(CURRENT, PREVIOUS) if V1 in self._forms else None
            v3 = self._pair(*names) if V3 in self._forms else None
            keys = Keyring(
                v1=signature.GrantKeys(*v1) if v1 else None,
                signing=_keys(SigningKey, v3) if self._signs else (),
                public=() if self._signs else _keys(PublicKey, v3),
            )
        except errors.WireError as error:
            raise GrantKeyError(f"{self._folder}: {error}") from error
        if not any(keys.ids()):
            wanted = [CURRENT] if V1 in self._forms else []
            wanted += [names[0]] if V3 in self._forms else []
            raise self._missing(" or ".join(str(self._folder / name) for name in reversed(wanted)))
        return keys

    def _pair(self, current: str, previous: str) -> tuple[bytes, bytes | None] | None:
        """Return the current and the previous key of a form; None: there is none."""
        first, second = self._read_file(current), self._read_file(previous) or None
        if first is None and second is not None:
            raise self._missing(str(self._folder / current))
        return None if first is None else (first, second)

    def _missing(self, files: str) -> GrantKeyError:
        secret = "grant-signing-key" if self._signs else "grant-public-key"
        return GrantKeyError(
            f"grant keys: {files} does not exist; mount the Secret <release>-{secret} there "
            "(32 bytes each), name its folder with --grant-key-dir, or turn signing off with "
            "--grant-key-dir= if your agents do not require it"
        )

    def _read_file(self, name: str) -> bytes | None:
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise GrantKeyError(
                f"grant keys: {self._folder / name} cannot be read: {error.strerror}; "
                "check the mount and its permissions"
            ) from error


def _keys(kind: type[_Key], pair: tuple[bytes, bytes | None] | None) -> tuple[_Key, ...]:
    return tuple(kind(each) for each in pair or () if each is not None)
