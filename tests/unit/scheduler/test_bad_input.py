"""Requests that cannot be served: status, message and log line, over real HTTP."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hami.wire import codec
from tests.builders import MEMORY
from tests.scripted_api.server import ScriptedApi
from tests.unit.scheduler import rig
from tests.unit.serving import servers

MEBIBYTE = 2**20


class Asked:
    """A replica behind HTTP, and what it logs."""

    def __init__(self, api: ScriptedApi, port: int, caplog: pytest.LogCaptureFixture) -> None:
        self.api = api
        self._port = port
        self._caplog = caplog

    async def raw(self, path: str, body: bytes, *, method: str = "POST") -> tuple[int, str]:
        self._caplog.clear()
        status, _, answer = await servers.ask(self._port, method, path, body=body)
        return status, answer.decode()

    async def post(self, path: str, args: object) -> dict[str, Any]:
        """Ask what is answered with status 200, whatever it says."""
        status, answer = await self.raw(path, codec.encode(args))
        assert status == 200
        result: dict[str, Any] = json.loads(answer)
        return result

    def warning(self, message: str) -> dict[str, Any]:
        """Return the fields of the one warning, which has this message."""
        (record,) = [r for r in self._caplog.records if r.levelno >= logging.WARNING]
        assert record.getMessage() == message
        assert record.name.startswith("hami.")
        return vars(record)


@contextlib.asynccontextmanager
async def asked(caplog: pytest.LogCaptureFixture, **options: Any) -> AsyncIterator[Asked]:
    caplog.set_level(logging.INFO)
    async with ScriptedApi() as api:
        api.put(rig.node("a"))
        async with (
            rig.running(api) as replica,
            servers.serving(*replica.scheduler.routes(), **options) as server,
        ):
            yield Asked(api, server.port, caplog)


@pytest.mark.parametrize(
    ("path", "wanted"), [("/filter", "ExtenderArgs"), ("/bind", "ExtenderBindingArgs")]
)
async def test_an_empty_body_is_no_request(
    caplog: pytest.LogCaptureFixture, path: str, wanted: str
) -> None:
    async with asked(caplog) as server:
        status, result = await server.raw(path, b"")
        assert (status, result) == (400, f"{path}: the body is empty; send {wanted} as JSON\n")
        assert server.warning("empty body")["path"] == path


@pytest.mark.parametrize("path", ["/filter", "/bind"])
async def test_a_body_of_20_mebibytes_is_too_large(
    caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with asked(caplog) as server:
        status, result = await server.raw(path, b" " * 20 * MEBIBYTE)
        assert status == 413
        assert f"larger than the {16 * MEBIBYTE} bytes" in result
        fields = server.warning("request refused")
        assert (fields["path"], fields["status"]) == (path, 413)


async def test_a_filter_request_that_is_no_json_is_an_error_in_the_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asked(caplog) as server:
        status, answer = await server.raw("/filter", b'{"Pod": {')
        result = json.loads(answer)
        assert status == 200
        assert result["Error"].startswith("filter request: 9 bytes does not decode")
        assert result["NodeNames"] is result["Nodes"] is result["FailedNodes"] is None
        assert server.warning("filter refused")["error"] == result["Error"]


async def test_a_bind_request_that_is_no_json_is_an_error_in_the_result(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asked(caplog) as server:
        status, answer = await server.raw("/bind", b"[1, 2")
        error = json.loads(answer)["Error"]
        assert status == 200
        assert error.startswith("bind request: 5 bytes does not decode")
        assert server.warning("bind not understood")["error"] == error


@pytest.mark.parametrize("args", [{"Pod": None, "NodeNames": ["a"]}, {"NodeNames": ["a"]}, {}])
async def test_a_filter_request_without_a_pod(
    caplog: pytest.LogCaptureFixture, args: dict[str, Any]
) -> None:
    async with asked(caplog) as server:
        result = await server.post("/filter", args)
        assert result["Error"] == "extender args missing pod"
        assert server.warning("filter refused")["error"] == result["Error"]


async def test_a_filter_request_without_names_names_the_missing_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asked(caplog) as server:
        result = await server.post("/filter", {"Pod": server.api.put(rig.pod("p"))})
        assert "nodeCacheCapable: true" in result["Error"]
        assert server.warning("filter refused")["error"] == result["Error"]


async def test_unknown_nodes_are_unregistered(caplog: pytest.LogCaptureFixture) -> None:
    async with asked(caplog) as server:
        pod = server.api.put(rig.pod("p"))
        result = await server.post("/filter", {"Pod": pod, "NodeNames": ["x", "y", ""]})
        assert result["Error"] == ""
        assert result["NodeNames"] is None
        assert result["FailedAndUnresolvableNodes"] == dict.fromkeys(
            ["x", "y", ""], "node unregistered"
        )
        (record,) = [r for r in caplog.records if r.getMessage() == "no node fits"]
        assert "3 nodes node unregistered" in vars(record)["why"]
        assert vars(record)["pod"] == "default/p"


async def test_a_pod_without_uid_cannot_be_assumed(caplog: pytest.LogCaptureFixture) -> None:
    async with asked(caplog) as server:
        result = await server.post("/filter", {"Pod": rig.pod("p"), "NodeNames": ["a"]})
        assert "pod default/p has no UID" in result["Error"]
        assert "(Nodes) to simulate" in result["Error"]
        assert server.warning("filter refused")["error"] == result["Error"]


QUANTITY = "write a Kubernetes quantity such as 4096, 500m or 16Gi"
UNITS = "write it in units of 1 MiB, for example 16384 for 16 GiB"


@pytest.mark.parametrize(
    ("value", "rule", "remedy"),
    [
        ("much", "is not a quantity", QUANTITY),
        ("", "is not a quantity", QUANTITY),
        ("1.5", "is not a whole number", UNITS),
        ("-1", "is less than the smallest value 0", UNITS),
    ],
)
async def test_an_impossible_amount_is_reported_to_the_pods_owner(
    caplog: pytest.LogCaptureFixture, value: str, rule: str, remedy: str
) -> None:
    async with asked(caplog) as server:
        pod = rig.pod("p")
        pod["spec"]["containers"][0]["resources"]["limits"][MEMORY] = value
        pod = server.api.put(pod)
        error = (await server.post("/filter", {"Pod": pod, "NodeNames": ["a"]}))["Error"]
        assert error.startswith(f"container main, {MEMORY}: {value!r} {rule}")
        assert error.endswith(f"; {remedy}")
        fields = server.warning("filter refused")
        assert (fields["error"], fields["pod"]) == (error, "default/p")
        await rig.eventually(lambda: bool(server.api.objects("events")))
        (event,) = server.api.objects("events")
        assert (event["type"], event["reason"]) == ("Warning", "FilteringFailed")
        assert event["message"] == error
        assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "PodUID", "Node"])
async def test_a_bind_request_needs_each_of_its_values(
    caplog: pytest.LogCaptureFixture, field: str
) -> None:
    whole = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "a"}
    for value in ("", None, ...):
        args = whole | {field: value}
        async with asked(caplog) as server:
            result = await server.post("/bind", {k: v for k, v in args.items() if v is not ...})
            assert result["Error"].startswith("bind request: ")
            assert f"is no value for {field}" in result["Error"]
            assert server.warning("bind not understood")["error"] == result["Error"]
            assert server.api.sent("POST", "/binding") == []


async def test_a_bind_of_a_pod_that_is_not_there(caplog: pytest.LogCaptureFixture) -> None:
    async with asked(caplog) as server:
        args = {"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "a"}
        result = await server.post("/bind", args)
        assert result["Error"].startswith("pod default/p cannot be read: 404 NotFound")
        fields = server.warning("bind refused")
        assert (fields["error"], fields["uid"], fields["node"]) == (result["Error"], "u", "a")


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/filter", 405, "this path takes POST"),
        ("PUT", "/bind", 405, "this path takes POST"),
        ("POST", "/readyz", 405, "this path takes GET"),
        ("POST", "/filters", 404, "there is nothing under this path"),
        ("GET", "/", 404, "there is nothing under this path"),
        ("GET", "/debug/stacks", 404, "there is nothing under this path"),
    ],
)
async def test_another_method_or_path(
    caplog: pytest.LogCaptureFixture, method: str, path: str, status: int, message: str
) -> None:
    async with asked(caplog) as server:
        assert await server.raw(path, b"", method=method) == (status, f'{{"error":"{message}"}}')
        fields = server.warning("request refused")
        assert (fields["method"], fields["path"], fields["status"]) == (method, path, status)


@pytest.mark.parametrize("path", ["/filter", "/bind", "/explain"])
async def test_the_verbs_are_closed_to_foreign_callers(
    caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with asked(caplog, is_local=lambda _: False) as server:
        method = "GET" if path == "/explain" else "POST"
        status, result = await server.raw(path, b"{}", method=method)
        assert status == 403
        assert "loopback callers and those with a certificate" in result
        fields = server.warning(
            "caller refused: neither local nor with a certificate of the client CA"
        )
        assert (fields["path"], fields["peer"]) == (path, "127.0.0.1")
        assert (await server.raw("/healthz", b"", method="GET"))[0] == 200
