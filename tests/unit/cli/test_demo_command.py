"""`hami demo` before it starts anything: its flags, and how it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.cli import main
from hami_sandbox.demo import main as demo_main


@pytest.mark.parametrize(
    ("flags", "reply"),
    [
        (["--node", "gpu-a"], "write for example gpu-a=8xH100"),
        (["--node", "gpu-a=2xH101"], "models are"),
        (["--node", "a=1xT4", "--node", "a=1xT4"], "name each once"),
        (["--nodes", "2"], "less than the 3 real ones"),
        (["--nodes", "100000"], "simulated"),
        (["--nodes", "many"], "invalid int value"),
        (["--example", "nothing"], "take 01-"),
        (["--examples", "/nowhere/at/all"], "cannot be read"),
        (["--no-examples", "--example", "quota"], "exclude each other"),
        (["--exampel", "quota"], "--exampel"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(
    flags: list[str], reply: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["demo", *flags]) == 2
    err = capsys.readouterr().err
    assert reply in err
    assert err.count("\n") == 1


def test_logs_that_cannot_be_kept_are_reported_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main.main(["demo", "--keep-logs", str(tmp_path / "file" / "logs")]) == 2
    assert "--keep-logs" in capsys.readouterr().err


def test_help_says_what_the_exit_code_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["demo", "--help"]) == 0
    out = capsys.readouterr().out
    assert "every example ended as its text says" in out
    assert "hami demo --nodes 1000" in out


def test_flags_may_be_repeated() -> None:
    asked = demo_main.build_parser("hami demo").parse_args(
        ["--node", "a=1xT4", "--node", "b=1xT4", "--example", "1", "--example", "2", "--once"]
    )
    assert (asked.node, asked.example, asked.once) == (["a=1xT4", "b=1xT4"], ["1", "2"], True)
