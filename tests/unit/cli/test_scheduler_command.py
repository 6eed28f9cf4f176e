"""`hami scheduler`: warnings are logged first, its end is an exit code."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import types
from collections.abc import Awaitable, Callable, Iterator

import pytest

from hami.cli import main
from hami.kube import errors as kube_errors
from hami.scheduler.settings import Settings
from hami.serving.grant_keys import GrantKeyError
from hami.serving.lifetime import ServingError
from hami.vendors.config_file import ConfigError

Process = Callable[[Settings], Awaitable[None]]


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Callable[[Process], None]:
    """Put a process in place of the real one, which needs a cluster."""

    def put(run: Process) -> None:
        stand_in = types.ModuleType("hami.scheduler.main")
        vars(stand_in)["run"] = run
        monkeypatch.setitem(sys.modules, "hami.scheduler.main", stand_in)

    return put


def test_it_runs_the_process_with_the_settings_on_uvloop(
    process: Callable[[Process], None], capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Settings, str]] = []

    async def run(settings: Settings) -> None:
        seen.append((settings, type(asyncio.get_running_loop()).__module__))

    process(run)
    code = main.main(["scheduler", "--scheduler-name=mine", "--dcu-name=x", "-v=1"])
    assert code == 0
    ((settings, loop),) = seen
    assert settings.scheduler_name == "mine"
    assert loop.startswith("uvloop")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[0]["level"] == "warning"
    assert lines[0]["detail"].startswith("--dcu-name has no effect")
    assert lines[1]["settings"]["scheduler_name"] == "mine"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError(source="f", place="", rule="r", remedy="m"), 2),
        (ServingError("cannot listen"), 2),
        (GrantKeyError("no key"), 2),
        (kube_errors.AccessError("kubeconfig", "is not there", "name one"), 2),
        (kube_errors.Unreachable("refused"), 1),
        (OSError("no space"), 1),
        (ExceptionGroup("tasks", [ServingError("cannot listen")]), 2),
        (ExceptionGroup("tasks", [ServingError("x"), kube_errors.Unreachable("refused")]), 1),
    ],
)
def test_what_the_user_can_cure_is_one_line_and_a_code(
    process: Callable[[Process], None],
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
) -> None:
    async def run(settings: Settings) -> None:
        raise error

    process(run)
    assert main.main(["scheduler"]) == code
    *_, last = capsys.readouterr().err.splitlines()
    assert last.startswith("hami scheduler: ")
    leaves = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
    assert all(str(leaf) in last for leaf in leaves)


def test_a_mistake_of_ours_among_them_keeps_its_traceback(
    process: Callable[[Process], None],
) -> None:
    async def run(settings: Settings) -> None:
        raise ExceptionGroup("tasks", [ServingError("cannot listen"), ZeroDivisionError()])

    process(run)
    with pytest.raises(ExceptionGroup, match="tasks"):
        main.main(["scheduler"])


def test_a_wrong_flag_is_reported_before_anything_starts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main.main(["scheduler", "--http_bind=nowhere"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "hami scheduler: --http_bind: 'nowhere' is no address to listen on; "
        "write HOST:PORT, as in :9395, 127.0.0.1:8080 or [::1]:443\n"
    )
