"""Small parts of containers: images, log lines, records, sizes, CRI socket."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.agent import binding_mode
from hami.agent.kubelet import runtime
from hami_sandbox.runtime import gpu_work, isolation, programs, records, shim, spec
from hami_sandbox.runtime.cri import serve_cri
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import Isolation


@pytest.mark.parametrize(
    ("image", "command", "args", "argv"),
    [
        ("probe", (), (), ("probe",)),
        ("hami.test/team/gpu-work:v1", (), ("--memory=1Gi",), ("gpu-work", "--memory=1Gi")),
        ("localhost:5000/pause:3.10@sha256:00ff", (), (), ("sleep", "infinity")),
        ("busybox:1.36", (), (), ("sh",)),
        ("busybox", (), ("sleep", "5"), ("sleep", "5")),
        ("busybox", ("sleep",), ("5",), ("sleep", "5")),
        ("pause", ("true",), (), ("true",)),
        ("vllm/vllm-openai", ("serve",), (), ("serve",)),
        ("vllm/vllm-openai", (), (), ()),
    ],
)
def test_what_an_image_runs(
    image: str, command: tuple[str, ...], args: tuple[str, ...], argv: tuple[str, ...]
) -> None:
    assert spec.argv(image, command, args) == argv


@given(st.lists(st.binary(max_size=50)), st.integers(1, 40))
def test_a_log_has_every_byte_whatever_pieces_it_comes_in(pieces: list[bytes], cut: int) -> None:
    """Lines of a log, put together again, are what was written; F ends a line, P does not."""
    log = shim.Lines("stdout", longest=cut)
    lines = (b"".join(map(log.add, pieces)) + log.end()).split(b"\n")
    assert lines.pop() == b""
    parts = [line.split(b" ", 3) for line in lines]
    assert all(stream == b"stdout" and len(text) <= cut for _, stream, _, text in parts)
    text = b"".join(text + (b"\n" if tag == b"F" else b"") for _, _, tag, text in parts)
    whole = b"".join(pieces)
    assert text == whole + (b"" if not whole or whole.endswith(b"\n") else b"\n")


@given(st.text(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
def test_a_record_is_json(text: str, number: int, fraction: float) -> None:
    encoded = records.record(text=text, number=number, fraction=fraction)
    valid = text.encode("utf-16", "replace").decode("utf-16")
    assert json.loads(encoded) == {"text": valid, "number": number, "fraction": fraction}


@pytest.mark.parametrize(
    ("text", "size"),
    [("1Gi", 1 << 30), ("1.5Gi", 3 << 29), ("512Mi", 1 << 29), ("2G", 2 * 10**9), ("7", 7)],
)
def test_sizes_are_read_as_kubernetes_writes_them(text: str, size: int) -> None:
    assert gpu_work.quantity(text) == size


@pytest.mark.parametrize("text", ["", "Gi", "-1Gi", "1 Gi", "1GiB", "1e3", ".5Gi", "1.Gi", "1.2.3"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(gpu_work.UsageError, match="2Gi"):
        gpu_work.quantity(text)


def test_options_come_in_both_forms() -> None:
    orders = gpu_work.Orders(["--memory", "1Gi", "--seconds=1.5", "--then-ask=2Gi"])
    assert (orders.memory, orders.then_ask) == (1 << 30, 2 << 30)
    assert (orders.seconds, orders.device) == (1.5, 0)
    assert gpu_work.Orders([]).seconds is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--memory"], "'--memory' has no value"),
        (["--memry", "1Gi"], "'--memry' is not an option"),
        (["1Gi", "2"], "'1Gi' is not an option"),
        (["--seconds=long"], "'long' is no number of seconds"),
        (["--memory=much"], "'much' is no size"),
    ],
)
def test_wrong_options_are_named(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpu_work.main(arguments) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "usage: gpu-work" in said


async def test_the_agent_reads_from_the_socket_that_it_can_bind_late(place: Path) -> None:
    cdi = [place / "etc-cdi", place / "run-cdi"]
    socket = place / "run/cri.sock"
    for _ in range(2):  # a socket that was left behind is no obstacle
        server = await serve_cri(socket, Runtime(place / "rt", cdi_dirs=cdi))
        try:
            status = await runtime.runtime_status(f"unix://{socket}")
        finally:
            await server.stop(None)
    assert status.name == "hami-sandbox"
    assert status.cdi_dirs == tuple(map(str, cdi))
    assert status.cdi_disabled is False
    mode = binding_mode.decide(
        binding_mode.AUTO, kubelet_version="v1.36.3", runtime=status, cdi_dir=str(cdi[1])
    )
    assert mode.late, mode.reason


def test_the_environment_can_forbid_namespaces(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(isolation.VARIABLE, "environment")
    runtime = Runtime(place / "rt", cdi_dirs=())
    assert runtime.isolation is Isolation.ENVIRONMENT
    assert isolation.VARIABLE in runtime.isolation_reason


def test_what_the_machine_forbids_is_told_in_its_words(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(isolation.VARIABLE, raising=False)
    monkeypatch.setattr(isolation, "_PROGRAM", "/bin/not-there")
    found = isolation.detect(programs.install(place / "bin"))
    assert found.isolation is Isolation.ENVIRONMENT
    assert "LD_PRELOAD" in found.sentence
    assert "/bin/not-there: no such file or directory" in found.sentence
    assert [path.name for path in place.iterdir()] == ["bin"]


def test_looking_at_a_runtimes_folder_changes_nothing(place: Path) -> None:
    runtime = Runtime(place / "rt", cdi_dirs=())
    assert runtime.list() == ()
    assert list(place.iterdir()) == []


def test_a_shim_loads_little() -> None:
    """What a container's start costs is mostly what Python loads."""
    command = isolation.shim_command("main")
    command[4] = command[4].replace("shim.main()", "print(*sys.modules)")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint(
        {"asyncio", "enum", "json", "logging", "msgspec", "pathlib", "re", "subprocess", "typing"}
    )
