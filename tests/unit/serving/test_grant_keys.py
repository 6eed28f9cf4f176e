"""The keys that sign grants, from a mounted Secret that changes."""

from __future__ import annotations

import logging
import pathlib

import pytest

from hami.serving.grant_keys import GrantKeyError, KeyFolder, Keyring
from hami.serving.grant_signature import SigningKey
from hami.wire import signature
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig

NAMES = (
    *("current", "previous", "signing-current", "signing-previous"),
    *("public-current", "public-previous"),
)
OLD, NEW = b"o" * 32, b"n" * 32


class Secret:
    """A folder as kubelet mounts a Secret: links into a folder that is swapped as a whole."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._number = 0

    def swap(self, **files: bytes) -> None:
        self._number += 1
        data = self.folder / f"..{self._number}"
        data.mkdir()
        for name, content in files.items():
            (data / name).write_bytes(content)
        link = self.folder / "..data_tmp"
        link.symlink_to(data.name)
        link.replace(self.folder / "..data")
        for name in NAMES:
            path = self.folder / name
            if name in files and not path.is_symlink():
                path.symlink_to(f"..data/{name}")
            elif name not in files:
                path.unlink(missing_ok=True)


@pytest.fixture
def secret(tmp_path: pathlib.Path) -> Secret:
    return Secret(tmp_path)


def test_the_current_key_signs_and_the_previous_one_is_known(secret: Secret) -> None:
    secret.swap(current=NEW, previous=OLD)
    assert KeyFolder(str(secret.folder)).keys() == Keyring(signature.GrantKeys(NEW, OLD))


@pytest.mark.parametrize("previous", [{}, {"previous": b""}])
def test_there_need_not_be_a_previous_key(secret: Secret, previous: dict[str, bytes]) -> None:
    secret.swap(current=NEW, **previous)
    assert KeyFolder(str(secret.folder)).keys() == Keyring(signature.GrantKeys(NEW))


def test_a_swap_is_seen_at_the_next_use(secret: Secret) -> None:
    secret.swap(current=OLD)
    folder = KeyFolder(str(secret.folder))
    assert folder.keys() == Keyring(signature.GrantKeys(OLD))
    secret.swap(current=NEW, previous=OLD)
    assert folder.keys() == Keyring(signature.GrantKeys(NEW, OLD))
    secret.swap(current=NEW)
    assert folder.keys() == Keyring(signature.GrantKeys(NEW))


@pytest.mark.parametrize(
    ("change", "printed"),
    [
        ({"current": b"n" * 31}, "grant key current: 31 bytes long, must be 32"),
        ({"current": b""}, "grant key current: 0 bytes long, must be 32"),
        ({"current": NEW, "previous": b"short"}, "grant key previous: 5 bytes long, must be 32"),
        ({"previous": OLD}, "current does not exist"),
        ({}, "current does not exist"),
    ],
    ids=["half written", "empty", "wrong previous", "no current", "nothing"],
)
def test_what_cannot_be_read_leaves_the_known_keys_in_use_and_is_reported(
    secret: Secret, caplog: pytest.LogCaptureFixture, change: dict[str, bytes], printed: str
) -> None:
    secret.swap(current=OLD)
    folder = KeyFolder(str(secret.folder))
    secret.swap(**change)
    assert folder.keys() == Keyring(signature.GrantKeys(OLD))
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "changed grant keys cannot be read, the previous ones stay in use"
    assert printed in vars(record)["error"]
    secret.swap(current=NEW)
    assert folder.keys() == Keyring(signature.GrantKeys(NEW))


@pytest.mark.parametrize(
    ("files", "printed"),
    [
        ({}, "current does not exist; mount the Secret"),
        ({"current": b"k" * 33}, "33 bytes long, must be 32; make a new one: head"),
        ({"current": NEW, "previous": b"k"}, "grant key previous: 1 bytes long"),
    ],
)
def test_at_the_start_unreadable_keys_are_an_error(
    secret: Secret, files: dict[str, bytes], printed: str
) -> None:
    secret.swap(**files)
    with pytest.raises(GrantKeyError) as raised:
        KeyFolder(str(secret.folder))
    assert printed in str(raised.value)
    assert str(secret.folder) in str(raised.value)


def test_a_key_that_is_a_folder_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "current").mkdir()
    with pytest.raises(GrantKeyError, match="current cannot be read: Is a directory"):
        KeyFolder(str(tmp_path))


SIGNING, OLDER = SigningKey(b"s" * 32), SigningKey(b"t" * 32)
#: All files that a folder may have.
FILES = {
    "current": NEW,
    "signing-current": SIGNING.secret,
    "signing-previous": OLDER.secret,
    "public-current": SIGNING.public.content,
    "public-previous": OLDER.public.content,
}
V1 = signature.GrantKeys(NEW)
RINGS = {
    # Whether it signs, the forms that it accepts, and what it reads.
    "a scheduler": (True, ("v1", "v3"), Keyring(V1, signing=(SIGNING, OLDER))),
    "a scheduler without v1": (True, ("v3",), Keyring(signing=(SIGNING, OLDER))),
    "an agent": (False, ("v1", "v3"), Keyring(V1, public=(SIGNING.public, OLDER.public))),
    "an agent without v1": (False, ("v3",), Keyring(public=(SIGNING.public, OLDER.public))),
    "v1 alone": (False, ("v1",), Keyring(V1)),
}


@pytest.mark.parametrize(("signs", "forms", "ring"), RINGS.values(), ids=RINGS)
def test_a_process_reads_the_keys_of_its_kind_and_of_accepted_forms(
    secret: Secret, *, signs: bool, forms: tuple[str, ...], ring: Keyring
) -> None:
    secret.swap(**FILES)
    assert KeyFolder(str(secret.folder), forms=forms, signs=signs).keys() == ring


def test_a_form_comes_and_goes_with_its_key(secret: Secret) -> None:
    both = {name: FILES[name] for name in ("current", "public-current")}
    secret.swap(current=NEW)
    folder = KeyFolder(str(secret.folder), signs=False)
    assert folder.keys() == Keyring(V1)
    secret.swap(**both)
    assert folder.keys() == Keyring(V1, public=(SIGNING.public,))
    secret.swap(**{"public-current": both["public-current"]})
    assert folder.keys() == Keyring(public=(SIGNING.public,))


@pytest.mark.parametrize(
    ("files", "signs", "printed"),
    [
        (
            {"current": NEW},
            True,
            "signing-current does not exist; mount the Secret",
        ),
        (
            {"current": NEW},
            False,
            "public-current does not exist; mount the Secret",
        ),
        ({"signing-current": b"x"}, True, "grant signing key: 1 bytes long, must be 32"),
        ({"public-current": b"x"}, False, "grant public key: 1 bytes long, must be 32; have `hami"),
        ({"signing-previous": NEW}, True, "signing-current does not exist"),
    ],
)
def test_without_a_key_of_an_accepted_form_it_does_not_start(
    secret: Secret, files: dict[str, bytes], *, signs: bool, printed: str
) -> None:
    secret.swap(**files)
    with pytest.raises(GrantKeyError) as raised:
        KeyFolder(str(secret.folder), forms=("v3",), signs=signs)
    assert printed in str(raised.value)


def test_a_signing_key_on_a_node_is_not_read_and_is_reported(
    secret: Secret, caplog: pytest.LogCaptureFixture
) -> None:
    secret.swap(**FILES)
    folder = KeyFolder(str(secret.folder), signs=False)
    assert folder.keys().signing == ()
    assert "the signing key of grants is on this node" in caplog.text


def test_keys_are_never_shown(secret: Secret, caplog: pytest.LogCaptureFixture) -> None:
    secret.swap(current=OLD)
    folder = KeyFolder(str(secret.folder))
    secret.swap(current=b"secret" * 4)
    assert "ooo" not in repr(folder.keys())
    assert all("secretsecret" not in str(vars(record)) for record in caplog.records)


async def test_binds_are_signed_with_the_key_of_the_moment(secret: Secret) -> None:
    secret.swap(current=OLD)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with rig.running(api, keys=secret.folder) as replica:
            await replica.place(rig.pod("first"))
            secret.swap(current=NEW, previous=OLD)
            await replica.place(rig.pod("second"))
            for name, key in (("first", OLD), ("second", NEW)):
                pod = api.find("pods", name)
                assert pod is not None
                written = pod["metadata"]["annotations"]
                assert signature.verify(
                    signature.GrantKeys(key),
                    written["hami.io/grant-mac"],
                    uid=pod["metadata"]["uid"],
                    node="a",
                    devices=written["hami.io/vgpu-devices-allocated"],
                )
