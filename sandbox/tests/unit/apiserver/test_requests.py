"""Paths, queries and forms: what a request asks for."""

from __future__ import annotations

import pytest

from hami_sandbox.apiserver import answers, call, kinds, lists
from hami_sandbox.apiserver.answers import Form
from hami_sandbox.apiserver.refusals import Refusal


def target(method: str, path: str, *, watch: bool = False) -> call.Target:
    return call.parse_target(method, path, watch=watch, find=kinds.find)


@pytest.mark.parametrize(
    ("method", "path", "verb", "resource", "namespace", "name", "sub"),
    [
        ("GET", "/api/v1/pods", "list", "pods", "", "", ""),
        ("GET", "/api/v1/namespaces/n/pods", "list", "pods", "n", "", ""),
        ("GET", "/api/v1/namespaces/n/pods/p", "get", "pods", "n", "p", ""),
        ("PATCH", "/api/v1/namespaces/n/pods/p/status", "patch", "pods", "n", "p", "status"),
        ("POST", "/api/v1/namespaces/n/pods/p/binding", "create", "pods", "n", "p", "binding"),
        ("DELETE", "/api/v1/namespaces/n/pods", "deletecollection", "pods", "n", "", ""),
        ("GET", "/api/v1/namespaces/n", "get", "namespaces", "", "n", ""),
        ("PUT", "/api/v1/namespaces/n/finalize", "update", "namespaces", "", "n", "finalize"),
        ("GET", "/api/v1/namespaces", "list", "namespaces", "", "", ""),
        ("GET", "/apis/apps/v1/deployments", "list", "deployments", "", "", ""),
        (
            "GET",
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode",
            "get",
            "clusterroles",
            "",
            "system:node",
            "",
        ),
    ],
)
def test_a_path_names_what_it_is_about(  # noqa: PLR0917 - one argument for each column of the table
    method: str, path: str, verb: str, resource: str, namespace: str, name: str, sub: str
) -> None:
    found = target(method, path)
    assert (found.verb, found.resource, found.namespace, found.name, found.subresource) == (
        verb,
        resource,
        namespace,
        name,
        sub,
    )
    assert call.require_kind(found).resource == resource


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api/v1/unicorns", 404),
        ("GET", "/api/v1/namespaces/n/nodes", 404),
        ("GET", "/api/v1/pods/p", 404),
        ("GET", "/api/v1/namespaces/n/configmaps/m/status", 404),
        ("PUT", "/api/v1/namespaces/n/pods", 405),
        ("POST", "/api/v1/namespaces/n/pods/p", 405),
        ("POST", "/api/v1/pods", 405),
        ("GET", "/api/v1/namespaces/n/pods/p/binding", 405),
        ("DELETE", "/api/v1/namespaces", 405),
        ("GET", "/apis/authorization.k8s.io/v1/subjectaccessreviews", 405),
    ],
)
def test_what_is_not_served_is_told_apart_from_what_is_not_allowed(
    method: str, path: str, status: int
) -> None:
    with pytest.raises(Refusal) as refused:
        call.require_kind(target(method, path))
    assert refused.value.status == status


@pytest.mark.parametrize("path", ["/", "/api", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz"])
def test_other_paths_are_the_servers_own(path: str) -> None:
    assert target("GET", path).resource == ""


def test_a_watch_is_a_verb_of_its_own() -> None:
    assert target("GET", "/api/v1/pods", watch=True).verb == "watch"


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", Form.WHOLE),
        ("*/*", Form.WHOLE),
        ("application/json", Form.WHOLE),
        ("application/vnd.kubernetes.protobuf, application/json", Form.WHOLE),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Form.TABLE),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", Form.WHOLE),
        (
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
            Form.PARTIAL,
        ),
    ],
)
def test_the_first_form_that_can_be_given_is_given(accept: str, form: Form) -> None:
    assert answers.form_of(accept) is form


def test_a_form_that_cannot_be_given_is_not_acceptable() -> None:
    with pytest.raises(Refusal) as refused:
        answers.form_of("application/vnd.kubernetes.protobuf")
    assert refused.value.status == 406


@pytest.mark.parametrize(
    ("query", "expected"),
    [({}, False), ({"watch": ""}, True), ({"watch": "true"}, True), ({"watch": "0"}, False)],
)
def test_a_flag_without_a_value_is_a_yes(query: dict[str, str], *, expected: bool) -> None:
    assert lists.flag(query, "watch") is expected


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "\uff11"])
def test_a_version_is_a_whole_number(text: str) -> None:
    with pytest.raises(Refusal) as refused:
        lists.parse({"resourceVersion": text})
    assert refused.value.status == 400
