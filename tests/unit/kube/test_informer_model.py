"""The informer against a plain model, after every step of random orders.

The server has objects with few names, which come, change, leave and enter the selection, and go. It
may be restored from a backup, once or more. The store sees it through a stream with duplicates,
lists in pages and through a watch, resyncs beside the stream, and late answers to single GETs. The
model knows only what was shown, by version. The handlers' view is built from (old, new) alone.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from hami.kube.listing import Listing
from hami.kube.store import Store
from hami.wire import objects
from tests.unit.kube.following import read

NAMES = ("a", "b", "c")
FOR_EVER = float("inf")


class Obj(NamedTuple):
    uid: str
    name: str
    version: int
    #: Whether the reader keeps it.
    wanted: bool
    #: Whether it matches the selector, where there is one.
    labelled: bool
    #: Of two histories that give the same version to different contents.
    mark: int

    @property
    def body(self) -> bytes:
        wanted = "yes" if self.wanted else "no"
        return (
            f'{{"metadata": {{"uid": "{self.uid}", "name": "{self.name}", "resourceVersion": '
            f'"{self.version}", "annotations": {{"wanted": "{wanted}", "mark": "{self.mark}"}}}}}}'
        ).encode()


class Event(NamedTuple):
    obj: Obj
    deleted: bool


class Answer(NamedTuple):
    """What a GET will be answered with; no object: 404."""

    uid: str
    obj: Obj | None


class Server:
    def __init__(self, *, selected: bool) -> None:
        self.selected = selected
        self.version = 10
        self.objects: dict[str, Obj] = {}
        self.events: list[Event] = []
        self.backups: list[tuple[int, dict[str, Obj], list[Event]]] = []
        self._counter = 0

    def shows(self, obj: Obj) -> bool:
        return obj.labelled or not self.selected

    def put(self, name: str, *, wanted: bool, labelled: bool) -> None:
        old = self.objects.get(name)
        self._counter += 1
        self.version += 1
        uid = old.uid if old is not None else f"u{self._counter}"
        new = Obj(uid, name, self.version, wanted, labelled, self._counter)
        self.objects[name] = new
        if self.shows(new) or (old is not None and self.shows(old)):
            self.events.append(Event(new, deleted=not self.shows(new)))

    def delete(self, name: str) -> None:
        old = self.objects.pop(name, None)
        if old is not None:
            self.version += 1
            if self.shows(old):
                self.events.append(Event(old._replace(version=self.version), deleted=True))

    def listed(self) -> list[Obj]:
        return [obj for obj in self.objects.values() if self.shows(obj)]

    def truth(self) -> dict[str, Obj]:
        return {obj.uid: obj for obj in self.listed() if obj.wanted}

    def back_up(self) -> None:
        self.backups.append((self.version, dict(self.objects), list(self.events)))

    def restore(self, number: int) -> None:
        self.version, kept, events = self.backups[number]
        self.objects, self.events = dict(kept), list(events)


class Model:
    """All that was shown of each UID: its highest version, and the object then, if it exists."""

    def __init__(self, *, selected: bool) -> None:
        self.selected = selected
        self.shown: dict[str, tuple[float, Obj | None]] = {}
        #: The version of the last list.
        self.floor = 0
        #: A resync is under way, whose list may still have what ended meanwhile.
        self.remembers = False

    def view(self) -> dict[str, Obj]:
        return {uid: obj for uid, (_, obj) in self.shown.items() if obj is not None}

    def known(self, uid: str, name: str = "") -> float:
        """Return the version known of a UID, or of a present object with its name."""
        if uid not in self.view():
            namesakes = [obj.version for obj in self.view().values() if obj.name == name]
            return max([self.shown.get(uid, (0, None))[0], *namesakes])
        return self.shown[uid][0]

    def show(self, obj: Obj, *, again: bool = False) -> None:
        """Take an object; `again`: of a list, which also counts at the same version."""
        if not obj.wanted and obj.uid not in self.view() and not self.remembers:
            return  # of the many objects that are not wanted nothing is kept
        known = self.known(obj.uid, obj.name if obj.wanted else "")
        if obj.version > known or (again and obj.version == known and obj.wanted):
            if obj.wanted:
                for other in self.view().values():
                    if other.name == obj.name and other.uid != obj.uid:
                        self.end(other.uid, obj.version)
            self.shown[obj.uid] = obj.version, obj if obj.wanted else None

    def end(self, uid: str, version: float) -> None:
        self.shown[uid] = max(version, self.shown.get(uid, (0, None))[0]), None

    def offer(self, obj: Obj) -> None:
        present = obj.uid in self.view()
        if present or not (self.selected or obj.version <= self.floor):
            self.show(obj)


class Taking(NamedTuple):
    """A list on its way."""

    kind: str
    #: The objects that it has when it ends, by UID.
    objects: dict[str, Obj]
    version: int
    #: The highest version shown before, and the UIDs that were not found before.
    known: float
    missing: frozenset[str]
    #: Answers that had arrived when it began.
    arrived: int


class InformerMachine(stateful.RuleBasedStateMachine):
    selected = False

    def __init__(self) -> None:
        super().__init__()
        self.server = Server(selected=self.selected)
        self.model = Model(selected=self.selected)
        self.store: Store[objects.Pod] = Store(read, kind="pods", selected=self.selected)
        self.view: dict[str, objects.Pod] = {}
        self.store.add_handler(self.changed)
        self.answers: list[Answer] = []
        self.arrived = 0
        self.highest = 0
        self.streaming = False
        self.list: Taking | None = None
        self.to_list: list[Obj] = []
        self.resync: Listing[objects.Pod] | None = None
        self.compared: dict[str, Obj] = {}
        #: UID -> the later version that was known when a list had an older one.
        self.older: dict[str, float] = {}
        self.unlisted = False

    @initialize(before=st.integers(0, 3), after=st.integers(0, 3), lists=st.booleans())
    def begin(self, before: int, after: int, lists: bool) -> None:
        """Begin with a backup and an informer that has passed it."""
        for number in range(before):
            self.server.put(NAMES[number], wanted=True, labelled=True)
        self.server.back_up()
        for number in range(after):
            self.server.put(NAMES[number], wanted=True, labelled=True)
        if lists:
            self.finish_list()
            self.connect()

    def changed(self, old: objects.Pod | None, new: objects.Pod | None) -> None:
        """See a change: once, and in order."""
        pod = new or old
        assert pod is not None
        assert self.view.get(pod.uid) is old
        assert new != old
        if new is None:
            del self.view[pod.uid]
        else:
            assert all(p.name != new.name for p in self.view.values() if p.uid != new.uid)
            self.view[new.uid] = new

    @invariant()
    def the_view_is_the_models(self) -> None:
        seen = {uid: (pod.version, pod.annotations["mark"]) for uid, pod in self.view.items()}
        assert seen == {uid: (obj.version, str(obj.mark)) for uid, obj in self.model.view().items()}
        assert {obj.uid for obj in self.store} == set(seen)

    # The server.

    @rule(
        name=st.sampled_from(NAMES),
        wanted=st.sampled_from([True, True, True, False]),
        labelled=st.booleans(),
    )
    def put(self, name: str, wanted: bool, labelled: bool) -> None:
        self.server.put(name, wanted=wanted, labelled=labelled)

    @rule(name=st.sampled_from(NAMES))
    def delete(self, name: str) -> None:
        self.server.delete(name)

    @rule()
    def back_up(self) -> None:
        self.server.back_up()

    @precondition(lambda self: self.server.backups)
    @rule(data=st.data(), later=st.integers(0, 8))
    def restore(self, data: st.DataObject, later: int) -> None:
        """Restore a backup and go on; every connection breaks, and what was on its way is lost."""
        self.server.restore(data.draw(st.integers(0, len(self.server.backups) - 1)))
        for number in range(later):
            self.server.put(NAMES[number % len(NAMES)], wanted=True, labelled=bool(number % 2))
        self.answers.clear()
        # A list that broke is taken again before anything is watched.
        self.unlisted = self.unlisted or self.list is not None
        self.streaming, self.list, self.resync = False, None, None

    # Answers to our own requests.

    @rule(name=st.sampled_from(NAMES))
    def get(self, name: str) -> None:
        found = self.server.objects.get(name)
        if found is not None:
            self.answers.append(Answer(found.uid, found))

    @precondition(lambda self: self.view)
    @rule(data=st.data())
    def get_known(self, data: st.DataObject) -> None:
        """Read a pod that we know; another UID in its place is as good as none."""
        uid = data.draw(st.sampled_from(sorted(self.view)))
        found = self.server.objects.get(self.view[uid].name)
        if found is None or found.uid != uid:
            self.answers.append(Answer(uid, None))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        uid, obj = self.answers.pop(data.draw(st.integers(0, len(self.answers) - 1)))
        self.arrived += 1
        if obj is None:
            self.store.offer_missing(uid)
            self.model.end(uid, FOR_EVER)
        else:
            self.store.offer(obj.body)
            self.model.offer(obj)
            self.highest = max(self.highest, obj.version)

    # The stream.

    @precondition(lambda self: self.store.synced and self.list is None and not self.unlisted)
    @rule()
    def connect(self) -> None:
        """Watch from the newest version on, if the server has it."""
        if self.store.version <= self.server.version:
            self.store.begin_stream()
            self.streaming = True

    @precondition(lambda self: self.streaming)
    @rule(most=st.integers(1, 4), twice=st.booleans())
    def stream(self, most: int, twice: bool) -> None:
        for obj, deleted in self._unsent()[:most]:
            for _ in range(1 + twice):
                self.store.event(obj.body, deleted=deleted)
            self.highest = max(self.highest, obj.version)
            if obj.version <= self.model.floor:
                continue
            if deleted:
                if obj.uid in self.model.view() or self.model.remembers:
                    self.model.end(obj.uid, obj.version)
            else:
                self.model.show(obj)

    def _unsent(self) -> list[Event]:
        return [event for event in self.server.events if event.obj.version > self.store.version]

    @precondition(lambda self: self.streaming and not self._unsent())
    @rule()
    def bookmark(self) -> None:
        self.store.bookmark(self.server.version)
        self.highest = max(self.highest, self.server.version)

    # Full lists.

    @precondition(lambda self: self.list is None)
    @rule(kind=st.sampled_from(["pages", "watch"]))
    def begin_list(self, kind: str) -> None:
        self.store.begin_list()
        self.resync, self.streaming = None, False
        self.to_list = self.server.listed()
        self.older = {}
        self.model.remembers = self.unlisted = False
        missing = frozenset(u for u, (v, _) in self.model.shown.items() if v == FOR_EVER)
        self.list = Taking(
            kind,
            {obj.uid: obj for obj in self.to_list},
            self.server.version,
            self.highest,
            missing,
            self.arrived,
        )

    @precondition(lambda self: self.list is not None and self.to_list)
    @rule(most=st.integers(1, 3))
    def read_list(self, most: int) -> None:
        for _ in range(min(most, len(self.to_list))):
            self._listed(self.to_list.pop(0))

    def _listed(self, obj: Obj) -> None:
        self.store.listed(obj.body)
        if obj.wanted:
            known = self.model.known(obj.uid, obj.name)
            if obj.version < known:
                self.older.setdefault(obj.uid, known)
            self.model.show(obj, again=True)
            if self.model.view().get(obj.uid) is obj:
                self.highest = max(self.highest, obj.version)

    @precondition(lambda self: self.list is not None and self.to_list and self.list.kind == "pages")
    @rule()
    def expire_pages(self) -> None:
        """Begin the same list again, as it is now."""
        assert self.list is not None
        self.store.restart_list()
        self.older = {}
        self.to_list = self.server.listed()
        self.list = self.list._replace(
            objects={obj.uid: obj for obj in self.to_list}, version=self.server.version
        )

    @precondition(lambda self: self.list is not None)
    @rule(changes=st.integers(0, 3))
    def end_list(self, changes: int) -> None:
        taking = self.list
        assert taking is not None
        while self.to_list:
            self._listed(self.to_list.pop(0))
        version = taking.version
        if taking.kind == "watch":
            later = [event for event in self.server.events if event.obj.version > version]
            for obj, deleted in later[:changes]:
                version = obj.version
                if deleted:
                    self.store.unlisted(obj.body)
                    taking.objects.pop(obj.uid, None)
                else:
                    taking.objects[obj.uid] = obj
                    self._listed(obj)
        wanted = {uid: obj for uid, obj in taking.objects.items() if obj.wanted}
        restored = self._shows_a_restore(taking, wanted, version)
        self.store.end_list(version)
        model, self.list = self.model, None
        if restored:
            model.shown = {uid: (obj.version, obj) for uid, obj in wanted.items()}
            self.highest = version
        for uid, obj in model.view().items():
            if uid not in wanted and (self.selected or obj.version <= version):
                model.end(uid, obj.version)
        model.floor = version
        self.highest = max(self.highest, version)
        if taking.arrived == self.arrived:  # nothing else was shown meanwhile
            assert model.view() == wanted

    def _shows_a_restore(self, taking: Taking, wanted: dict[str, Obj], version: int) -> bool:
        """Judge by what was known before the list was asked for."""
        return version < taking.known or any(
            uid in wanted and (known <= taking.known or uid in taking.missing)
            for uid, known in self.older.items()
        )

    # Lists beside the stream.

    @precondition(lambda self: self.streaming and self.resync is None)
    @rule()
    def begin_resync(self) -> None:
        self.resync = self.store.begin_resync()
        self.resync.version = self.server.version
        self.model.remembers = True
        self.compared = {obj.uid: obj for obj in self.server.listed()}

    @precondition(lambda self: self.streaming and self.resync is not None)
    @rule()
    def end_resync(self) -> None:
        resync, self.resync = self.resync, None
        assert resync is not None
        self.store.compare(resync, [obj.body for obj in self.compared.values()])
        if resync.is_restored:
            self.finish_list()
            return
        self.model.remembers = False
        assert self.store.end_resync(resync)
        for obj in self.compared.values():
            present = obj.uid in self.model.view()
            if obj.wanted and not (present and self.model.known(obj.uid) >= obj.version):
                self.model.show(obj, again=True)
            elif present and not obj.wanted and obj.version > self.model.known(obj.uid):
                self.model.end(obj.uid, obj.version)
        for uid, obj in self.model.view().items():
            listed = self.compared.get(uid)
            if (listed is None or not listed.wanted) and obj.version <= resync.version:
                self.model.end(uid, obj.version)
        self.model.floor = max(self.model.floor, resync.version)
        self.highest = max(self.highest, resync.version)

    def finish_list(self) -> None:
        """Take a whole list, with nothing in between."""
        self.answers.clear()
        self.list = None
        self.begin_list("pages")
        self.end_list(0)
        self.the_view_is_the_models()
        assert self.model.view() == self.server.truth()

    def teardown(self) -> None:
        self.finish_list()


class SelectedInformerMachine(InformerMachine):
    selected = True


SETTINGS = hypothesis.settings(
    max_examples=int(os.environ.get("HAMI_INFORMER_EXAMPLES", "150")),
    stateful_step_count=40,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)
TestInformer = InformerMachine.TestCase
TestInformer.settings = SETTINGS
TestSelectedInformer = SelectedInformerMachine.TestCase
TestSelectedInformer.settings = SETTINGS
