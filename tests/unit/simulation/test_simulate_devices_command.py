"""`hami simulate-devices`: its flags, and mistakes before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.cli import errors, flags, main, simulate_devices
from hami.simulation.settings import Settings

NEEDED = ("--node-name=gpu-1", "--devices-file=/devices.yaml")


def test_without_more_than_it_needs_all_is_default() -> None:
    found = flags.resolve(simulate_devices.TABLE, NEEDED, {}).settings
    assert found == Settings(node_name="gpu-1", devices_file="/devices.yaml")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (NEEDED[:1], "--devices-file.* is empty; name the file that describes the devices"),
        (NEEDED[1:], "is empty; set NODE_NAME"),
        ((*NEEDED, "--kubelet-dir=relative"), "absolute path"),
        ((*NEEDED, "--metrics-bind-address=nowhere"), "no address to listen on"),
    ],
)
def test_a_wrong_flag_is_named(words: tuple[str, ...], why: str) -> None:
    with pytest.raises(errors.UsageError, match=why):
        flags.resolve(simulate_devices.TABLE, words, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nodes: [{devices: [{model: T4, cards: many}]}]", "cards: 'many' must be a whole number"),
        ("nodes: [{devices: [{model: T4}}]", "not valid YAML"),
    ],
)
def test_a_bad_description_ends_it_with_code_2_and_one_line(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text(text)
    code = main.main(["simulate-devices", "--node-name=gpu-1", f"--devices-file={file}"])
    assert code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"hami simulate-devices: {file}: ")
    assert says in last
