"""The command `hami`: what it lists, how it finds commands, how it fails."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys

import pytest

from hami.cli import errors, main
from hami.vendors.config_file import ConfigError
from hami.wire.errors import WireError

EVERY = [
    "scheduler",
    "scheduler config",
    "webhook",
    "agent",
    "monitor",
    "simulate-devices",
    "certs create",
    "certs patch",
    "certs rotate-grant-key",
    "cleanup",
    "image build",
    "explain",
    "version",
    "demo",
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(words)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.parametrize("word", ["-h", "--help", "help"])
def test_help_lists_every_command_and_nothing_else(
    capsys: pytest.CaptureFixture[str], word: str
) -> None:
    code, out, err = run(capsys, word)
    assert (code, err) == (0, "")
    listed = out.partition("commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line[2:].partition("  ")[0].strip() for line in listed] == EVERY


def test_without_a_command_the_help_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert "no command given" in err
    assert "commands:" in err


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "schedler", "--debug")
    assert (code, out) == (2, "")
    assert err == (
        f"hami: no command 'schedler' (did you mean scheduler?); there are: {', '.join(EVERY)}\n"
    )


def test_a_command_of_another_distribution_names_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **_: ())
    assert run(capsys, "demo", "--once") == (
        1,
        "",
        "hami demo: needs hami-sandbox, which is not installed; run pip install hami-sandbox\n",
    )


@pytest.mark.parametrize("words", [["version"], ["--version"], ["scheduler", "version"]])
def test_the_version_is_one_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert out == f"{main.version_line()}\n"
    assert out.startswith(f"hami {main.version_number()} (Python 3.")


def test_a_wrong_argument_of_a_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "version", "--long") == (
        2,
        "",
        "hami version: unrecognized arguments: --long; see `hami version --help`\n",
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.UsageError("m"), 2),
        (errors.CommandError("m"), 1),
        (WireError("what", "value", "rule"), 2),
        (ConfigError(source="file", place="", rule="rule", remedy="remedy"), 2),
    ],
)
def test_the_users_errors_are_one_line_and_a_code(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    code: int,
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise error

    monkeypatch.setattr(main, "version", fail)
    assert run(capsys, "version") == (code, "", f"hami version: {error}\n")


def test_our_own_mistakes_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(main, "version", fail)
    with pytest.raises(ZeroDivisionError):
        main.main(["version"])


def test_an_interrupt_is_not_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "version", interrupt)
    assert run(capsys, "version") == (130, "", "")


def test_called_by_kubectl_it_speaks_as_kubectl_hami(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/kubectl-hami"])
    assert run(capsys, "--help")[1].startswith("usage: kubectl hami COMMAND")
    assert run(capsys, "nothing")[2].startswith("kubectl hami: no command 'nothing'")
    assert run(capsys, "explain")[2].startswith("kubectl hami explain: ")


@pytest.mark.parametrize("words", [["--help"], ["scheduler", "--help"], ["version"]])
def test_help_loads_neither_numpy_nor_aiohttp(words: list[str]) -> None:
    program = (
        "import sys; from hami.cli import main; code = main.main(sys.argv[1:]); "
        "print([name for name in ('numpy', 'aiohttp', 'uvloop') if name in sys.modules]); "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("[]\n")


def test_python_m_hami_is_hami() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hami", "version"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{main.version_line()}\n", "")
    unknown = subprocess.run(
        [sys.executable, "-m", "hami", "nothing"], capture_output=True, text=True, check=False
    )
    assert unknown.returncode == 2
    assert unknown.stderr.count("\n") == 1


@pytest.mark.parametrize(("command", "missing"), [("agent", "grpc"), ("monitor", "pynvml")])
def test_a_plain_installation_names_the_extra_of_the_agent(command: str, missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None; from hami.cli.main import main; "
        f"sys.exit(main([{command!r}, '--node-name=n']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"hami {command}: needs the Python module {missing}, which is not installed; "
        "install 'hami[agent]'"
    )


def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    shell = f"{sys.executable} -m hami scheduler config --kube-version 1.36 | true"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"],  # noqa: S607 - the user's own shell
        # Buffered, as people run it: then the last bytes are written at the very end.
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr
