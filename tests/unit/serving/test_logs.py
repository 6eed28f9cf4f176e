"""Log lines: what they hold, and that nothing keeps one from being written."""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hami.serving import lifetime, logs
from hami.serving.http_server import Request, Response, Route
from hami.wire import codec, correlation
from tests.unit.serving import servers

_log = logging.getLogger("hami.test")


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.set_up(level="info", stream=stream)
    correlation.begin("none-yet")
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [codec.decode(line, dict[str, Any], what="line") for line in out.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_time_level_id_and_fields(out: io.StringIO) -> None:
    correlation.begin("r-7")
    _log.warning("watch ended\nhere", extra={"kind": "pods", "attempts": 3, "more": {"a": [1]}})
    (line,) = lines(out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time"))
    assert line == {
        "level": "warning",
        "logger": "hami.test",
        "message": "watch ended\nhere",
        "id": "r-7",
        "kind": "pods",
        "attempts": 3,
        "more": {"a": [1]},
    }


def test_an_exception_is_in_its_line(out: io.StringIO) -> None:
    try:
        int("broken")
    except ValueError:
        _log.exception("it failed")
    (line,) = lines(out)
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("with base 10: 'broken'")


def test_an_empty_exc_info_is_no_exception(out: io.StringIO) -> None:
    _log.error("no exception here", exc_info=True)
    assert "exception" not in lines(out)[0]


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (Mute(), "<Mute without a repr>"),
        (object, "<class 'object'>"),
        pytest.param(10**5000, "<int without a repr>", id="a number too long to write"),
        ("\ud800", "\\ud800"),
        ({1: Mute()}, "<dict without a repr>"),
        (float("nan"), None),
        (b"\xff", "/w=="),
    ],
)
def test_odd_values_are_written_all_the_same(out: io.StringIO, value: object, want: object) -> None:
    _log.info("odd", extra={"value": value, "plain": 1})
    (line,) = lines(out)
    assert (line["value"], line["plain"], line["message"]) == (want, 1, "odd")


def test_a_message_whose_placeholders_do_not_fit_is_written() -> None:
    record = logging.makeLogRecord({"msg": "%d things", "args": ("no number",)})
    line = codec.decode(logs.JsonFormatter().format(record), dict[str, Any], what="line")
    assert line["message"] == "%d things ('no number',)"


def test_fields_cannot_take_the_place_of_our_own(out: io.StringIO) -> None:
    _log.info("hello", extra={"level": "none", "id": "forged", "time": "never"})
    (line,) = lines(out)
    assert (line["level"], line["id"]) == ("info", "none-yet")
    assert (line["level_"], line["id_"], line["time_"]) == ("none", "forged", "never")


def test_lines_below_the_level_are_not_written(out: io.StringIO) -> None:
    _log.debug("hidden")
    logs.set_up(level="DEBUG", stream=out)
    _log.debug("shown")
    assert [line["message"] for line in lines(out)] == ["shown"]


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(lifetime.ServingError, match="'loud' is unknown; write debug"):
        logs.set_up(level="loud")


def test_text_is_one_line_with_the_fields_behind(out: io.StringIO) -> None:
    logs.set_up(level="info", stream=out, format="text")
    correlation.begin("r-8")
    _log.info("watch\nended", extra={"kind": "pods"})
    (line,) = out.getvalue().splitlines()
    assert line.endswith(" info hami.test watch\\nended kind=pods id=r-8")


async def test_a_handlers_lines_carry_its_requests_id(out: io.StringIO) -> None:
    async def handler(_: Request) -> Response:
        _log.info("deciding")
        return Response()

    async with servers.serving(Route("GET", "/", handler)) as server:
        for number in (1, 2):
            await servers.ask(server.port, "GET", "/", headers={"X-Request-Id": f"r-{number}"})
    assert [line["id"] for line in lines(out)] == ["r-1", "r-2"]


def test_the_same_thing_is_logged_once_per_interval_with_a_count(out: io.StringIO) -> None:
    now = [0.0]
    seldom = logs.Seldom(10, clock=lambda: now[0])
    for at, key in ((0, "a"), (1, "a"), (2, "b"), (9, "a"), (10, "a"), (25, "a")):
        now[0] = at
        seldom.log(_log, logging.INFO, "again", key=key, extra={"at": at})
    reply = [(line["at"], line.get("left_out")) for line in lines(out)]
    assert reply == [(0, None), (2, None), (10, 2), (25, None)]


def test_what_is_logged_seldom_is_forgotten_in_the_end() -> None:
    seldom = logs.Seldom(10, clock=lambda: 0, most_keys=3)
    for key in range(100):
        seldom.due(key)
    assert [seldom.due(key) for key in (97, 98, 99)] == [None, None, None]
    assert len(seldom._logged) == 3
