"""Orders of lists, events and our own answers: the store ends as the server is.

A list takes time. While it is on its way, the server changes, streams go on, and answers to our own
requests arrive, which may be newer or older than the list. Each seed is another order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from hami.kube import listwatch
from hami.kube.client import Client
from hami.kube.listing import Listing
from hami.kube.store import Store
from hami.wire import errors, objects
from tests.scripted_api.server import ScriptedApi
from tests.unit.kube.following import PATIENCE_S, following, pod, read, truth, until
from tests.unit.kube.test_store import body, resync, take_list

#: Random orders of each kind.
SEEDS = 1000
SELECTED = pytest.mark.parametrize("selected", [False, True], ids=["all", "selected"])


def made(*, selected: bool = False) -> Store[objects.Pod]:
    return Store(read, kind="pods", selected=selected)


class Server:
    """Objects with five names that come, change and go; with a selector they also leave it."""

    def __init__(self, rng: random.Random, *, selected: bool) -> None:
        self._rng = rng
        self._selected = selected
        self._uids = 0
        self.version = 10
        #: Name -> UID, version, and whether the object is wanted (or selected).
        self.objects: dict[str, tuple[str, int, bool]] = {}
        #: Version, bytes, and whether the event is DELETED.
        self.events: list[tuple[int, bytes, bool]] = []
        for _ in range(5):
            self.step()

    def step(self) -> None:
        """Create, change or delete an object."""
        name = f"n{self._rng.randrange(5)}"
        self.version += self._rng.randrange(1, 3)
        uid, _, was = self.objects.get(name, ("", 0, False))
        if not uid:
            self._uids += 1
            self._put(name, f"u{self._uids}", self._rng.random() < 0.8)
        elif self._rng.random() < 0.3:
            self._put(name, uid, was, deleted=True)
            del self.objects[name]
        elif self._selected:
            wanted = self._rng.random() < 0.7
            self._put(name, uid, wanted, deleted=was and not wanted)
        else:
            self._put(name, uid, was or self._rng.random() < 0.95)

    def _put(self, name: str, uid: str, wanted: bool, *, deleted: bool = False) -> None:
        self.objects[name] = uid, self.version, wanted
        if wanted or deleted or not self._selected:
            self.events.append((self.version, self.bytes_of(name), deleted))

    def bytes_of(self, name: str) -> bytes:
        uid, version, wanted = self.objects[name]
        return body(uid, version, wanted=wanted or self._selected, name=name)

    def get(self) -> bytes:
        """Answer a GET of any object."""
        return self.bytes_of(self._rng.choice(sorted(self.objects)))

    def listed(self) -> list[bytes]:
        return [
            self.bytes_of(name)
            for name, (_, _, wanted) in self.objects.items()
            if wanted or not self._selected
        ]

    def since(self, version: int) -> list[tuple[int, bytes, bool]]:
        return [event for event in self.events if event[0] > version]

    def truth(self) -> dict[str, int]:
        return {uid: version for uid, version, wanted in self.objects.values() if wanted}

    def back_up(self) -> Callable[[], None]:
        """Return a function that restores this moment; later objects get UIDs of their own."""
        version, kept, events = self.version, dict(self.objects), list(self.events)

        def restore() -> None:
            self.version, self.objects, self.events = version, kept, events

        return restore


class Order:
    """A store, its server, and all that happens between them in one random order."""

    def __init__(self, seed: int, *, selected: bool) -> None:
        self.rng = random.Random(seed)
        self.selected = selected
        self.server = Server(self.rng, selected=selected)
        self.store = made(selected=selected)
        #: Answers to our own GETs that have not arrived yet.
        self.answers: list[bytes] = []
        self.newest: dict[str, int] = {}

    def chance(self, chance: float) -> bool:
        return self.rng.random() < chance

    def check(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """Hold a change against the server, which was never restored."""
        if self.selected:
            return  # an object that leaves the selection and one that is deleted look the same
        if new is not None:
            assert new.version >= self.newest.get(new.uid, 0)
            self.newest[new.uid] = new.version
        elif old is not None:
            assert old.uid not in self.server.truth()

    def meanwhile(self, chance: float = 0.6) -> None:
        """Let the server change, and answers leave it and arrive."""
        while self.chance(chance):
            kind = self.rng.random()
            if kind < 0.5:
                self.server.step()
            elif kind < 0.75 and self.server.objects:
                self.answers.append(self.server.get())
            elif self.answers:
                self.store.offer(self.answers.pop(self.rng.randrange(len(self.answers))))

    def list_all(self) -> None:
        """Take a full list: in pages, or through a watch, which also sends what changes."""
        self.store.begin_list()
        bodies, version = self.server.listed(), self.server.version
        self.meanwhile()
        for each in bodies:
            self.meanwhile(0.2)
            self.store.listed(each)
        if self.chance(0.5):
            for at, each, deleted in self.server.since(version):
                if self.chance(0.3):
                    break
                version = at
                if deleted:
                    self.store.unlisted(each)
                else:
                    self.store.listed(each)
                self.meanwhile(0.2)
        else:
            self.meanwhile()
        assert self.store._listing is not None
        self.search(self.store._listing)
        self.store.end_list(version)

    def search(self, listing: Listing[objects.Pod]) -> None:
        """Search for what a list lacks, mostly object by object, while all else goes on."""
        for obj in self.store if self.chance(0.7) else ():
            listing.search([obj.uid])
            self.meanwhile(0.2)

    def resync(self) -> None:
        """Compare with a list while the stream goes on."""
        resync = self.store.begin_resync()
        bodies, resync.version = self.server.listed(), self.server.version
        self.meanwhile()
        for each in bodies:
            self.stream(self.chance(0.3))
            self.store.compare(resync, [each])
            self.meanwhile(0.2)
        assert not resync.is_restored
        self.search(resync)
        self.stream(self.rng.randrange(3))
        self.store.end_resync(resync)

    def stream(self, most: int) -> None:
        """Send at most so many events, some of them twice."""
        for _, each, deleted in self.server.since(self.store.version)[:most]:
            for _ in range(2 if self.chance(0.1) else 1):
                self.store.event(each, deleted=deleted)
            self.meanwhile(0.2)

    def stream_all(self) -> None:
        """Send all events; nothing else happens meanwhile."""
        for _, each, deleted in self.server.since(self.store.version):
            self.store.event(each, deleted=deleted)

    def kept(self) -> dict[str, int]:
        return {obj.uid: obj.version for obj in self.store}


@SELECTED
def test_in_random_orders_no_object_goes_back_and_the_store_ends_as_the_server_is(
    selected: bool,
) -> None:
    for seed in range(SEEDS):
        order = Order(seed, selected=selected)
        order.store.add_handler(order.check)
        order.list_all()
        for _ in range(30):
            match order.rng.choices(["list", "resync", "stream", "else"], [15, 15, 40, 30])[0]:
                case "list":
                    order.list_all()
                case "resync":
                    order.resync()
                case "stream":
                    order.stream(order.rng.randrange(4))
                case _:
                    order.meanwhile()
        order.stream_all()
        assert order.kept() == order.server.truth(), seed
        assert order.store.epoch == 0, seed


@SELECTED
@pytest.mark.parametrize("later", [2, 30], ids=["at-once", "overtaken"])
def test_in_random_orders_the_store_ends_as_the_restored_server_is(
    selected: bool, later: int
) -> None:
    for seed in range(SEEDS // 2):
        order = Order(seed, selected=selected)
        order.list_all()
        order.answers.clear()
        restore = order.server.back_up()
        for _ in range(order.rng.randrange(2, 25)):
            order.server.step()
            if order.chance(0.7):
                order.stream_all()
        order.stream_all()
        restore()
        for _ in range(order.rng.randrange(later)):
            order.server.step()
            if order.chance(0.3) and order.server.objects:
                order.store.offer(order.server.get())
        listing = order.store.begin_resync()
        listing.version = order.server.version
        order.store.compare(listing, order.server.listed())
        if listing.is_restored:
            order.list_all()
        else:
            order.store.end_resync(listing)
        order.stream_all()
        assert order.kept() == order.server.truth(), seed


# A list, and what arrives while it is on its way.


def test_an_offer_and_its_own_later_event_in_a_watch_list_are_no_restore() -> None:
    store = made()
    take_list(store, 10, body("x", 5))
    store.begin_list()
    store.offer(body("x", 12))
    store.offer(body("y", 17))
    store.listed(body("x", 5))
    store.listed(body("x", 12))
    store.end_list(15)
    assert {obj.uid: obj.version for obj in store} == {"x": 12, "y": 17}
    assert store.epoch == 0


def test_an_object_that_has_left_the_selection_ends_although_our_own_answer_is_newer() -> None:
    store = made(selected=True)
    take_list(store, 10, body("x", 5))
    store.begin_list()
    store.offer(body("x", 16))  # the answer to a PATCH; x had left at 11
    store.end_list(15)
    assert "x" not in store
    store.event(body("x", 17), deleted=False)
    assert "x" in store


def test_a_late_handler_and_a_late_answer_do_not_see_deleted_objects() -> None:
    store = made()
    take_list(store, 10, body("x", 5), body("y", 6))
    store.event(body("x", 12), deleted=True)
    store.offer(body("x", 11))
    calls: list[tuple[objects.Pod | None, str]] = []
    store.add_handler(lambda old, new: calls.append((old, new.uid if new else "")))
    assert calls == [(None, "y")]
    assert store.is_deleted("x")
    store.event(body("z", 13, name="y"), deleted=False)  # the end of y was swallowed
    store.offer(body("y", 12))
    assert {obj.uid for obj in store} == {"z"}


def test_a_resync_with_an_unidentified_object_leaves_a_late_delete_to_the_stream() -> None:
    store = made()
    take_list(store, 10, body("x", 5), body("y", 6))
    assert resync(store, 15, body("y", 6), b"{}")
    assert "x" in store
    store.event(body("x", 13), deleted=True)
    assert "x" not in store


def test_an_object_that_is_unreadable_when_an_epoch_begins_heals_with_its_next_event() -> None:
    def picky(raw: bytes) -> objects.Pod | None:
        if b"broken" in raw:
            raise errors.WireError("pod", raw, "broken")
        return read(raw)

    store: Store[objects.Pod] = Store(picky, kind="pods")
    take_list(store, 1000, body("x", 900), body("y", 910))
    broken = body("x", 400).replace(b'"yes"', b'"yes", "broken": "1"')
    take_list(store, 500, broken, body("y", 300))
    kept = store.get("x")
    assert kept is not None
    assert kept.version == 900
    store.event(body("x", 510), deleted=False)
    kept = store.get("x")
    assert kept is not None
    assert kept.version == 510


def test_an_older_object_with_the_name_of_a_later_one_is_the_sign_of_a_restore() -> None:
    store = made()
    take_list(store, 60, body("x", 50, name="n"))
    listing = store.begin_resync()
    store.compare(listing, [body("z", 40, name="n")])
    listing.version = 70
    assert listing.is_restored


@pytest.mark.parametrize("wanted", [False, True])
def test_a_resync_with_a_known_version_and_another_content_is_the_sign_of_a_restore(
    wanted: bool,
) -> None:
    store = made()
    take_list(store, 60, body("x", 50), body("y", 60))
    restored = body("y", 60, wanted=wanted).replace(b'"yes"', b'"yes", "other": "1"')
    listing = store.begin_resync()
    store.compare(listing, [body("x", 50), restored])
    listing.version = 60
    assert listing.is_restored
    take_list(store, 60, body("x", 50), restored)
    assert {obj.uid for obj in store} == ({"x", "y"} if wanted else {"x"})
    kept = store.get("y")
    assert kept == (read(restored) if wanted else None)


@pytest.mark.parametrize("changed", [49, 50, 51])
def test_a_watch_list_after_a_restore_counts_as_it_ended_and_not_as_it_began(changed: int) -> None:
    store = made()
    take_list(store, 60, body("x", 50))
    store.begin_list()
    store.listed(body("x", 40))
    store.listed(body("x", changed))
    store.end_list(55)
    assert {obj.uid: obj.version for obj in store} == {"x": changed}


# The informer.


async def test_an_answer_that_overtakes_the_pages_of_a_list_survives_them(
    api: ScriptedApi, client: Client
) -> None:
    api.refuse_watch_list()
    api.put(pod("a"))
    page = asyncio.Event()
    listed = api.fault(path="/pods", when=lambda r: not r.watches, gate_after=page)
    async with following(client) as (informer, held):
        await until(lambda: listed.hits)
        late = api.put(pod("late"))
        informer.offer(await client.get("/api/v1/namespaces/default/pods/late"))
        api.fault(path="/pods", when=lambda r: r.watches, hang=True, times=None)
        page.set()
        await informer.wait_synced()
        assert informer.epoch == 0
        assert late["metadata"]["uid"] in informer
        assert held.names == {"a", "late"}


async def test_a_list_whose_pages_expire_has_nothing_of_the_pages_before(
    api: ScriptedApi, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listwatch, "PAGE", 1)
    api.refuse_watch_list()
    for name in "abcd":
        api.put(pod(name))

    def remove_the_first() -> None:
        if api.find("pods", "a"):
            api.remove("pods", "a")

    api.fault(
        path="/pods",
        when=lambda r: "continue" in r.query,
        status=410,
        reason="Expired",
        times=2,
        on_hit=remove_the_first,
    )
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.names == {"b", "c", "d"}
        assert held.versions == truth(api)


async def test_a_wait_for_a_version_of_the_epoch_before_ends(
    api: ScriptedApi, client: Client
) -> None:
    saved = api.snapshot()
    for number in range(5):
        api.put(pod(f"p{number}"))
    async with following(client) as (informer, _):
        await informer.wait_synced()
        waiting = asyncio.create_task(informer.wait_version(informer.version + 1))
        await asyncio.sleep(0)
        api.restore(saved)
        api.put(pod("x"))
        informer.resync()
        await asyncio.wait_for(waiting, PATIENCE_S)
        assert informer.version == api.store.version


async def test_waits_by_uid_and_by_name_see_an_object_go_and_its_successor_come(
    api: ScriptedApi, client: Client
) -> None:
    uid = api.put(pod("a"))["metadata"]["uid"]
    async with following(client) as (informer, _):
        await informer.wait_synced()
        deleted = asyncio.create_task(informer.wait(uid, lambda p: p is None, PATIENCE_S))
        again = asyncio.create_task(
            informer.wait("default/a", lambda p: p is not None and p.uid != uid, PATIENCE_S)
        )
        await asyncio.sleep(0)
        api.remove("pods", "a")
        successor = api.put(pod("a"))
        assert await deleted is None
        found = await again
        assert found is not None
        assert found.uid == successor["metadata"]["uid"]


async def test_an_object_that_does_not_decode_keeps_no_other_one_back(
    api: ScriptedApi, client: Client
) -> None:
    broken = pod("b")
    broken["spec"]["containers"] = "none"
    for each in (pod("a"), broken, pod("c")):
        api.put(each)
    async with following(client) as (informer, held):
        await informer.wait_synced()
        assert held.names == {"a", "c"}
        for each in (pod("d"), {**broken, "status": {"phase": "Running"}}, pod("e")):
            api.put(each)
        await until(lambda: held.names == {"a", "c", "d", "e"})
        api.put(pod("b"))
        await until(lambda: "b" in held.names)
