"""The signing key of grants and its public key, in Secrets of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.installation import grant_secret
from hami.installation.job import InstallationError
from hami.serving.grant_keys import KeyFolder, Keyring
from hami.serving.grant_signature import SigningKey
from hami.wire import annotation_keys
from hami.wire.grant import Grant
from tests.scripted_api.server import Lost
from tests.unit.installation.rig import NAMESPACE, Rig

SIGNING, PUBLIC = "hami-grant-signing-key", "hami-grant-public-key"
OLD, OLDER = SigningKey(b"o" * 32), SigningKey(b"p" * 32)
GRANT = Grant(uid="u", node="n", devices={annotation_keys.SIGNED_DEVICES: "d"})


async def ensure(rig: Rig) -> None:
    await grant_secret.ensure(rig.job, namespace=NAMESPACE, signing=SIGNING, public=PUBLIC)


async def rotate(rig: Rig) -> None:
    await grant_secret.rotate(
        rig.job, namespace=NAMESPACE, signing=SIGNING, public=PUBLIC, wait=180
    )


def put(rig: Rig, current: SigningKey, previous: SigningKey | None, *, ours: bool = True) -> None:
    entries = {"signing-current": current.secret}
    public = {"public-current": current.public.content}
    if previous is not None:
        entries["signing-previous"] = previous.secret
        public["public-previous"] = previous.public.content
    rig.put_secret(SIGNING, entries, ours=ours)
    rig.put_secret(PUBLIC, public, ours=ours)


class Mounts:
    """The Secrets in a scheduler and an agent, whose kubelets bring them at their own times."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        self._rig = rig
        self._folders = {name: folder / name for name in (SIGNING, PUBLIC)}
        for name, each in self._folders.items():
            each.mkdir()
            self.bring(name)

    def bring(self, name: str) -> None:
        for entry, content in self._rig.entries(name).items():
            (self._folders[name] / entry).write_bytes(content)

    def scheduler(self) -> Keyring:
        return KeyFolder(str(self._folders[SIGNING])).keys()

    def agent(self) -> Keyring:
        return KeyFolder(str(self._folders[PUBLIC]), signs=False).keys()

    def starts_a_pod(self) -> bool:
        """Whether the agent accepts what the scheduler signs for it."""
        agent = self.agent()
        return agent.verify(self.scheduler().sign(GRANT, frozenset(agent.ids())), GRANT)


async def test_the_agents_secret_holds_nothing_that_signs(rig: Rig, tmp_path: Path) -> None:
    await ensure(rig)
    assert set(rig.entries(PUBLIC)) == {"public-current", "public-previous"}
    secret = rig.entries(SIGNING)["signing-current"]
    assert rig.entries(PUBLIC)["public-current"] == SigningKey(secret).public.content
    mounts = Mounts(rig, tmp_path)
    assert mounts.starts_a_pod()
    assert mounts.agent().sign(GRANT, frozenset()) == ""
    assert rig.printed == [
        f"Secret kube-system/{SIGNING}: created, key {SigningKey(secret).id} signs",
        f"Secret kube-system/{PUBLIC}: created",
    ]


@pytest.mark.parametrize("ours", [True, False])
async def test_what_is_there_and_fits_is_never_changed(rig: Rig, *, ours: bool) -> None:
    put(rig, OLD, OLDER, ours=ours)
    before = rig.secret(SIGNING), rig.secret(PUBLIC)
    await ensure(rig)
    assert (rig.secret(SIGNING), rig.secret(PUBLIC)) == before
    assert rig.printed == [f"Secret kube-system/{SIGNING}: kept, key {OLD.id} signs"]


@pytest.mark.parametrize("there", [True, False])
async def test_a_public_key_that_is_missing_or_wrong_is_written_again(
    rig: Rig, *, there: bool
) -> None:
    put(rig, OLD, None)
    if there:
        rig.put_secret(PUBLIC, {"public-current": OLDER.public.content})
    else:
        rig.api.remove("secrets", PUBLIC, NAMESPACE)
    await ensure(rig)
    assert rig.entries(PUBLIC)["public-current"] == OLD.public.content


async def test_a_wrong_public_key_of_others_is_reported(rig: Rig) -> None:
    put(rig, OLD, None)
    rig.put_secret(PUBLIC, {"public-current": OLDER.public.content}, ours=False)
    with pytest.raises(InstallationError, match="has other keys than those of the signing keys"):
        await ensure(rig)


async def test_a_damaged_signing_key_is_left_for_a_person_to_decide(rig: Rig) -> None:
    rig.put_secret(SIGNING, {"signing-current": b"short"})
    with pytest.raises(InstallationError, match="entry signing-current is 5 bytes long"):
        await ensure(rig)
    assert rig.entries(SIGNING) == {"signing-current": b"short"}


@pytest.mark.parametrize("late", [(), (SIGNING,), (PUBLIC,), (SIGNING, PUBLIC)])
async def test_during_a_rotation_every_pod_starts_whatever_comes_late(
    rig: Rig, tmp_path: Path, late: tuple[str, ...]
) -> None:
    """The wait is a courtesy: also a kubelet that brings the keys much later costs no pod."""
    put(rig, OLD, OLDER)
    mounts = Mounts(rig, tmp_path)
    seen: list[bool] = []

    def between() -> None:
        for name in {SIGNING, PUBLIC} - set(late):
            mounts.bring(name)
        seen.append(mounts.starts_a_pod())

    rig.api.fault(method="PUT", on_hit=between, times=None)
    await rotate(rig)
    between()
    assert seen == [True] * 5  # before each of four writes, and after the last
    for name in (SIGNING, PUBLIC):
        mounts.bring(name)
    new = SigningKey(rig.entries(SIGNING)["signing-current"])
    assert new not in (OLD, OLDER)
    assert mounts.scheduler().signing == (new, OLD)
    assert mounts.agent().public == (new.public, OLD.public)
    assert mounts.starts_a_pod()
    before = OLD.sign(GRANT.text())
    assert mounts.agent().verify(before, GRANT)
    assert mounts.scheduler().verify(before, GRANT)


@pytest.mark.parametrize("lost", list(Lost))
@pytest.mark.parametrize("write", [0, 1, 2, 3])
async def test_a_lost_answer_does_not_spoil_the_exchange(rig: Rig, lost: Lost, write: int) -> None:
    put(rig, OLD, None)
    puts = iter(range(20))
    rig.api.fault(method="PUT", when=lambda _: next(puts) == write, lost=lost)
    await rotate(rig)
    new = SigningKey(rig.entries(SIGNING)["signing-current"])
    assert rig.entries(SIGNING)["signing-previous"] == OLD.secret
    assert rig.entries(PUBLIC) == {
        "public-current": new.public.content,
        "public-previous": OLD.public.content,
    }
