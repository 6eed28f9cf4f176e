"""Conditions in CEL: their values, and no error but CelError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.apiserver.auth import cel
from hami_sandbox.apiserver.auth.cel import CelError

POD = {
    "metadata": {"name": "gpu-1", "annotations": {"hami.io/x": "1"}},
    "spec": {
        "containers": [
            {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}},
            {"name": "b"},
        ]
    },
}


def value(text: str, **variables: Any) -> Any:
    return cel.compiled(text)(**{"object": POD, "oldObject": None, **variables})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - 4", 3),
        ("(1 + 2) * 3", 9),
        ("-7 / 2", -3),
        ("-7 % 3", -1),
        ("7.0 / 2.0", 3.5),
        ("0x10 + 1u", 17),
        ("'a' + \"b\" + '''c'''", "abc"),
        (r"r'\d' + '\n'", "\\d\n"),
        ("[1, 2] + [3]", [1, 2, 3]),
        ("{'a': 1, 'b': [2]}", {"a": 1, "b": [2]}),
        ("1 == 1.0", True),
        ("1 == true", False),
        ("[1, 'a'] == [1, 'a']", True),
        ("'a' < 'b' && 2 >= 2", True),
        ("'a' != 'b' ? 1 : 2", 1),
        ("!true || !!true", True),
        ("true || 1 / 0 == 1", True),
        ("1 / 0 == 1 || true", True),
        ("1 / 0 == 1 && false", False),
        ("2 in [1, 2] && 'k' in {'k': 1} && !('x' in ['y'])", True),
        ("size('abc') + [1].size() + {}.size()", 4),
        ("'abc'.startsWith('a') && 'abc'.endsWith('c') && 'abc'.contains('b')", True),
        ("'gpu-12'.matches('^gpu-[0-9]+$')", True),
        ("['a', 'b'].join(', ') + string(1) + string(true)", "a, b1true"),
        ("[1, 2, 3].filter(x, x > 1).map(x, x * 2)", [4, 6]),
        ("[1, 2, 3].map(x, x > 1, x * 2)", [4, 6]),
        ("[1, 2].all(x, x > 0) && [1, 2].exists_one(x, x == 1)", True),
        ("{'a': 1}.exists(k, k == 'a')", True),
        ("object.metadata.name.startsWith('gpu-')", True),
        ("object.spec.containers[1].name", "b"),
        ("object['metadata']['name']", "gpu-1"),
        ("has(object.spec) && !has(object.status) && !has(object.spec.nodeName)", True),
        ("oldObject == null || oldObject.spec == object.spec", True),
        ("object.?metadata.?labels.orValue({}) == {}", True),
        ("object.?metadata.?annotations['hami.io/x'].orValue('') == '1'", True),
        ("object.metadata.annotations[?'no'].hasValue()", False),
        ("oldObject.?metadata.?name.orValue('none')", "none"),
        ("object.metadata.annotations[?'a'] == object.metadata.annotations[?'b']", True),
        ("// a comment\n true", True),
    ],
)
def test_an_expression_has_its_value(text: str, expected: object) -> None:
    found = value(text)
    assert (type(found), found) == (type(expected), expected)


def test_the_condition_of_hamis_own_chart_finds_pods_with_cards() -> None:
    text = """
    has(object.spec) && (
    (has(object.spec.containers) ? object.spec.containers : []) +
    (has(object.spec.initContainers) ? object.spec.initContainers : [])
    ).exists(c, has(c.resources) && [
    has(c.resources.limits) ? c.resources.limits : {},
    has(c.resources.requests) ? c.resources.requests : {}
    ].exists(given, ["nvidia.com/gpu","nvidia.com/gpumem"].exists(name, name in given) ||
    given.exists(name, name.startsWith('nvidia.com/mig-')))) ||
    has(object.metadata) && (has(object.metadata.annotations) &&
    ["hami.io/grant-mac"].exists(key, key in object.metadata.annotations) ||
    has(object.metadata.labels) && 'hami.io/vgpu-node' in object.metadata.labels)
    """
    plain = {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {}}]}}
    mig = {"requests": {"nvidia.com/mig-1g.10gb": 1}}
    assert value(text) is True
    assert value(text, object=plain) is False
    assert value(text, object={"metadata": {"labels": {"hami.io/vgpu-node": ""}}}) is True
    assert value(text, object={"spec": {"initContainers": [{"resources": mig}]}}) is True


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 +", "syntax error at character 3"),
        ("a b", "syntax error at character 2"),
        ("'open", "syntax error at character 0"),
        ("nobody", "undeclared reference to 'nobody'"),
        ("object.unheard()", "undeclared reference to 'unheard'"),
        ("object.spec.nodeName", "no such key: nodeName"),
        ("oldObject.spec", "no such overload: 'spec' of null"),
        ("[1][1]", "index out of bounds: 1"),
        ("1 / 0", "no such overload"),
        ("1 + 'a'", "no such overload"),
        ("1 < 'a'", "no such overload"),
        ("1 && true", "is no bool"),
        ("has(object)", "has() takes one field"),
        ("[1].exists(x, x / 0 == 1)", "no such overload"),
        ("'a'.matches('(')", "no such overload"),
        ("(" * 200 + "1" + ")" * 200, "nested deeper"),
    ],
)
def test_what_has_no_value_says_why(text: str, why: str) -> None:
    with pytest.raises(CelError) as caught:
        value(text)
    assert why in str(caught.value)


def test_names_are_checked_before_anything_is_evaluated() -> None:
    for text in (
        "object.a == oldObject.b",
        "object.items.all(x, x in object.y && [x].exists(y, y == x))",
        "[object].map(x, x > 1, {'k': x})",
    ):
        cel.check(text, "object", "oldObject")
    for text, name in (
        ("true || nobody", "nobody"),
        ("[1].exists(x, y)", "y"),
        ("[1].exists(x, x == 1) && x == 1", "x"),
        ("{'k': [object.?a[nobody]]}", "nobody"),
        ("authorizer.group('')", "group"),
    ):
        with pytest.raises(CelError, match=f"undeclared reference to '{name}'"):
            cel.check(text, "object", "oldObject")


_WORDS = (
    "object . ? [ ] ( ) { } , : ! - + * / % == < && || in has exists size x 'a' 1 true null "
    "metadata name .? [? orValue filter"
)
_pieces = st.sampled_from(_WORDS.split())


@given(st.lists(_pieces, max_size=12).map(" ".join) | st.text(max_size=30))
def test_any_text_is_a_value_or_an_error_of_ours(text: str) -> None:
    try:
        value(text)
    except CelError:
        return


_values = st.recursive(
    st.booleans() | st.integers(-(2**40), 2**40) | st.text("ab'\"\\\n ä", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=3), inner),
    max_leaves=8,
)


def _written(found: Any) -> str:
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, list):
        return f"[{', '.join(map(_written, found))}]"
    if isinstance(found, dict):
        return "{" + ", ".join(f"{_written(k)}: {_written(v)}" for k, v in found.items()) + "}"
    return repr(found)


@given(_values)
def test_a_literal_equals_the_value_that_it_writes(found: Any) -> None:
    assert value(_written(found)) == found
    assert value(f"object == {_written(found)}", object=found) is True
