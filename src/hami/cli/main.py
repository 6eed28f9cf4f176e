"""The command `hami`, and how it finds its subcommands.

A command's module is imported only when it runs: `hami --help` answers at once, and the webhook
does not load the scheduler's tables. Each module has `main(arguments, *, prog) -> exit code`.
kubectl finds the same program as `kubectl-hami` and runs it as `kubectl hami`.

Other distributions add commands by an entry point of the group `hami.commands`; hami-sandbox adds
`demo`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import os
import pathlib
import platform
import sys
from collections.abc import Callable, Sequence

from hami.cli import errors
from hami.vendors import config_file as vendor_errors
from hami.wire import errors as wire_errors

#: Command -> module (and function, unless `main`), and description.
COMMANDS = {
    ("scheduler",): ("hami.cli.scheduler", "place pods on shared GPUs, beside a kube-scheduler"),
    ("scheduler", "config"): (
        "hami.cli.scheduler_config",
        "write the configuration of that kube-scheduler",
    ),
    ("webhook",): ("hami.cli.webhook", "replace MIG profiles that the cluster does not have"),
    ("agent",): ("hami.cli.agent", "give containers their shares of a node's GPUs"),
    ("monitor",): ("hami.cli.monitor", "show what containers use of a node's GPUs"),
    ("simulate-devices",): (
        "hami.cli.simulate_devices",
        "offer cards that do not exist, of any vendor, to try a fleet",
    ),
    ("certs", "create"): (
        "hami.cli.jobs:create_certs",
        "create or renew the webhook's certificate and the key that signs grants",
    ),
    ("certs", "patch"): (
        "hami.cli.jobs:patch_webhook",
        "let the API server trust the webhook's certificate",
    ),
    ("certs", "rotate-grant-key"): (
        "hami.cli.jobs:rotate_grant_key",
        "sign grants with a new key",
    ),
    ("cleanup",): ("hami.cli.jobs:clean_up", "remove what an uninstall leaves behind"),
    ("image", "build"): ("hami.cli.image", "build the image of hami as an archive"),
    ("explain",): ("hami.cli.explain", "show why a pod waits, or which cards it got"),
    ("version",): ("hami.cli.main:version", "print the version"),
}
#: Commands of other distributions -> distribution, and description.
ADDED = {
    "demo": ("hami-sandbox", "run a cluster on this machine, with examples; no GPU needed"),
}
_GROUP = "hami.commands"
#: Other spellings, among them HAMi's; COMMANDS has each command once.
_ALSO = {("scheduler", "version"): ("version",), ("--version",): ("version",)}

#: Takes arguments and `prog`, returns an exit code.
Command = Callable[..., int]

_LONGEST = 2
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    called = pathlib.PurePath(sys.argv[0]).name if sys.argv else ""
    prog = "kubectl hami" if called.startswith("kubectl-hami") else "hami"
    if arguments in (["-h"], ["--help"], ["help"]):
        print(_help(prog))  # noqa: T201 - this is what was asked for
        return 0
    if not arguments:
        return _fail(
            prog, errors.UsageError(f"no command given; add one of these\n\n{_help(prog)}")
        )
    if arguments[0] in ADDED:
        return _run(_added(arguments[0]), arguments[1:], prog=f"{prog} {arguments[0]}")
    words = _command(arguments)
    if words is None:
        return _fail(prog, _unknown(arguments[0]))
    name = _ALSO.get(words, words)

    def load() -> Command:
        module, _, function = COMMANDS[name][0].partition(":")
        command: Command = getattr(importlib.import_module(module), function or "main")
        return command

    return _run(load, arguments[len(words) :], prog=" ".join((prog, *name)))


def _added(name: str) -> Callable[[], Command]:
    def load() -> Command:
        for point in importlib.metadata.entry_points(group=_GROUP, name=name):
            command: Command = point.load()
            return command
        raise errors.CommandError(
            f"needs {ADDED[name][0]}, which is not installed; run pip install {ADDED[name][0]}"
        )

    return load


def _command(arguments: Sequence[str]) -> tuple[str, ...] | None:
    for length in range(_LONGEST, 0, -1):
        words = tuple(arguments[:length])
        if words in COMMANDS or words in _ALSO:
            return words
    return None


def _run(load: Callable[[], Command], arguments: list[str], *, prog: str) -> int:
    try:
        code = load()(arguments, prog=prog)
        sys.stdout.flush()  # here, so that a closed pipe is handled below
    except errors.CommandError as error:
        return _fail(prog, error)
    except (vendor_errors.ConfigError, wire_errors.WireError) as error:
        return _fail(prog, errors.UsageError(str(error)))
    except SystemExit as asked:  # argparse ends --help this way
        return asked.code if isinstance(asked.code, int) else 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe. Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _fail(prog: str, error: errors.CommandError) -> int:
    print(f"{prog}: {error}", file=sys.stderr)  # noqa: T201 - for the user
    return error.code


def _unknown(word: str) -> errors.UsageError:
    known = [words for words, _ in _listed()]
    near = difflib.get_close_matches(word[:100], known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    shown = wire_errors.shorten(word)
    return errors.UsageError(f"no command {shown}{hint}; there are: {', '.join(known)}")


def _listed() -> list[tuple[str, str]]:
    """Return all commands with their descriptions, those of other distributions last."""
    own = [(" ".join(words), what) for words, (_, what) in COMMANDS.items()]
    return own + [(name, f"{what} ({package})") for name, (package, what) in ADDED.items()]


def _help(prog: str) -> str:
    listed = _listed()
    width = max(len(words) for words, _ in listed)
    lines = [
        f"usage: {prog} COMMAND [FLAG ...]",
        "",
        "GPU sharing for Kubernetes.",
        "",
        "commands:",
    ]
    lines += [f"  {words:{width}}  {what}" for words, what in listed]
    lines += ["", f"`{prog} COMMAND --help` lists the flags of a command."]
    return "\n".join(lines)


def version(arguments: Sequence[str], *, prog: str) -> int:
    """Print the one line that a bug report needs: `hami version`."""
    errors.Parser(prog=prog, description="Print the version.").parse_args(arguments)
    print(version_line())  # noqa: T201 - this is what was asked for
    return 0


def version_number() -> str:
    """Return the version of the installed distribution."""
    try:
        return importlib.metadata.version("hami")
    except importlib.metadata.PackageNotFoundError:
        return "of a source tree that is not installed"


def version_line() -> str:
    python = platform.python_version()
    return f"hami {version_number()} (Python {python}, {platform.system()} {platform.machine()})"
