"""A container's variables, from all that they can come from."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.kubelet import environment
from hami_sandbox.kubelet.environment import NodeFacts, Reference, VariableError, expand
from sandbox.tests.unit.kubelet.pods import container, pod

NODE = NodeFacts(name="gpu-a", address="127.0.0.1", allocatable={"cpu": "64", "memory": "512Gi"})
SETTINGS = Reference("ConfigMap", "settings")
KEYS = Reference("Secret", "keys")
FOUND = {
    SETTINGS: {"MODE": b"fast", "no/name": b"x"},
    KEYS: {"KEY": b"secret"},
}


def variables(**fields: Any) -> dict[str, str]:
    told = container(**fields)
    made = pod("p", told, meta={"labels": {"app": "web"}, "annotations": {"note": "n"}})
    return environment.variables(made, told, FOUND, NODE)


def of(field: str, **source: Any) -> dict[str, Any]:
    return {"name": "V", "valueFrom": {field: source}}


def test_later_variables_may_name_earlier_ones() -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "B", "value": "$(A)$(C) $$(A)"},
        {"name": "C"},
        {"name": "A", "value": "$(A)2"},
    ]
    assert variables(env=env) == {"A": "12", "B": "1$(C) $(A)", "C": ""}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        (of("fieldRef", fieldPath="metadata.name"), "p"),
        (of("fieldRef", fieldPath="metadata.uid"), "uid-p"),
        (of("fieldRef", fieldPath="metadata.labels['app']"), "web"),
        (of("fieldRef", fieldPath="metadata.annotations['absent']"), ""),
        (of("fieldRef", fieldPath="spec.nodeName"), "gpu-a"),
        (of("fieldRef", fieldPath="status.podIP"), "127.0.0.1"),
        (of("resourceFieldRef", resource="limits.memory", divisor="1Mi"), "1536"),
        (of("resourceFieldRef", resource="requests.cpu"), "1"),
        (of("resourceFieldRef", resource="limits.cpu"), "64"),
        (of("configMapKeyRef", name="settings", key="MODE"), "fast"),
        (of("secretKeyRef", name="keys", key="KEY"), "secret"),
        (of("configMapKeyRef", name="absent", key="K", optional=True), None),
        (of("secretKeyRef", name="keys", key="K", optional=True), None),
    ],
)
def test_what_a_variable_can_come_from(variable: dict[str, Any], value: str | None) -> None:
    resources = {"limits": {"memory": "1.5Gi"}, "requests": {"cpu": "250m"}}
    found = variables(env=[variable], resources=resources)
    assert found == ({} if value is None else {"V": value})


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        (of("configMapKeyRef", name="absent", key="K"), 'configmap "absent" not found'),
        (of("secretKeyRef", name="keys", key="K"), "couldn't find key K in Secret default/keys"),
        (of("fieldRef", fieldPath="spec.x"), "field label not supported: spec.x"),
        (
            of("resourceFieldRef", resource="limits.cpu", containerName="other"),
            'container "other" not found',
        ),
    ],
)
def test_what_is_not_there(variable: dict[str, Any], told: str) -> None:
    with pytest.raises(VariableError, match=f"^{told}$"):
        variables(env=[variable])


def test_whole_config_maps_and_secrets() -> None:
    sources = [
        {"configMapRef": {"name": "settings"}, "prefix": "X_"},
        {"secretRef": {"name": "keys"}},
        {"secretRef": {"name": "absent", "optional": True}},
    ]
    env = [{"name": "KEY", "value": "own"}]
    assert variables(envFrom=sources, env=env) == {"X_MODE": "fast", "KEY": "own"}
    with pytest.raises(VariableError, match='secret "absent" not found'):
        variables(envFrom=[{"secretRef": {"name": "absent"}}])


def test_what_has_to_be_looked_up() -> None:
    env = [of("secretKeyRef", name="keys", key="K"), {"name": "A", "value": "1"}]
    sources = [{"configMapRef": {"name": "settings"}}]
    assert set(environment.wanted(container(env=env, envFrom=sources))) == {SETTINGS, KEYS}


def test_what_config_maps_and_secrets_hold() -> None:
    coded = b64encode(b"\x00b").decode()
    config = {"kind": "ConfigMap", "data": {"a": "ü"}, "binaryData": {"b": coded}}
    assert environment.content(config) == {"a": "ü".encode(), "b": b"\x00b"}
    assert environment.content({"kind": "Secret", "data": {"b": coded}}) == {"b": b"\x00b"}


@given(st.text(alphabet="ab$()", max_size=20))
def test_expansion_leaves_what_it_does_not_know(text: str) -> None:
    assert expand(text.replace("$", "$$"), {"a": "!"}) == text
    if "$" not in text:
        assert expand(text, {"a": "!"}) == text
