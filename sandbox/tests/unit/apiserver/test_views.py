"""Events in both groups: the same objects under other names, and nothing lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hami_sandbox.apiserver import answers
from hami_sandbox.apiserver.store import Store
from sandbox.tests.unit.apiserver.making import kind

NEW = kind("Event", "events.k8s.io/v1")
FIELDS = st.dictionaries(
    st.sampled_from(
        [
            "regarding",
            "note",
            "reason",
            "type",
            "deprecatedCount",
            "eventTime",
            "reportingController",
        ]
    ),
    st.text(max_size=3),
)


@settings(max_examples=40)
@given(FIELDS)
def test_there_and_back_is_the_same(fields: dict[str, str]) -> None:
    event = {"kind": "Event", "apiVersion": "events.k8s.io/v1", "metadata": {}, **fields}
    stored = answers.as_stored(NEW, event)
    assert stored["apiVersion"] == "v1"
    assert not {"regarding", "note", "deprecatedCount"} & stored.keys()
    assert answers.as_shown(NEW, stored) == event


def test_the_other_form_is_made_once() -> None:
    content = {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {"name": "e", "namespace": "n"},
        "message": "m",
    }
    stored = Store().put(NEW.stored, content, over=0)
    shown = answers.shown(NEW, stored)
    assert (shown.object["note"], shown.revision) == ("m", stored.revision)
    assert answers.shown(NEW, stored) is shown
    assert answers.shown(kind("Event"), stored) is stored
