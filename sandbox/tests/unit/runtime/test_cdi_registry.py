"""CDI names become edits as they do in containerd."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from hami_sandbox.runtime import kernel
from hami_sandbox.runtime.cdi import Edits, Registry
from hami_sandbox.runtime.states import UnresolvableError

KIND = "example.com/card"


def spec(*names: str, env: list[str] | None = None, **edits: Any) -> dict[str, Any]:
    """Describe devices that name themselves in the environment."""
    devices = [{"name": name, "containerEdits": {"env": [f"CARD={name}"]}} for name in names]
    return {
        "cdiVersion": "0.5.0",
        "kind": KIND,
        "devices": devices,
        "containerEdits": {"env": env or [], **edits},
    }


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "etc", tmp_path / "run"]
    for folder in made:
        folder.mkdir()
    return made


def test_a_device_brings_what_its_spec_and_it_say(folders: list[Path]) -> None:
    content = spec(
        "a",
        "b",
        env=["CARD=void", "EMPTY=", "BARE"],
        mounts=[
            {"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nosuid", "nodev", "bind"]},
            {"hostPath": "/h2", "containerPath": "/c2", "options": ["rw", "noexec"]},
            {"hostPath": "/h3", "containerPath": "/c"},
        ],
        deviceNodes=[{"path": "/dev/x"}, {"path": "/dev/y", "hostPath": "/dev/z"}],
    )
    (folders[0] / "one.json").write_text(json.dumps(content))
    found = Registry(folders).resolve([f"{KIND}=a", f"{KIND}=b"])
    assert found.env == {"CARD": "b", "EMPTY": "", "BARE": ""}
    assert set(found.mounts) == {
        ("/h3", "/c", 0),
        ("/h2", "/c2", kernel.NO_EXEC),
        ("/dev/x", "/dev/x", 0),
        ("/dev/z", "/dev/y", 0),
    }


def test_attributes_are_those_of_the_options(folders: list[Path]) -> None:
    mount = {"hostPath": "/h", "containerPath": "/c", "options": ["ro", "nosuid", "nodev", "bind"]}
    (folders[0] / "one.json").write_text(json.dumps(spec("a", mounts=[mount])))
    attributes = kernel.READ_ONLY | kernel.NO_SUID | kernel.NO_DEV
    assert Registry(folders).resolve([f"{KIND}=a"]).mounts == (("/h", "/c", attributes),)


def test_nothing_is_asked_for_nothing_is_read(tmp_path: Path) -> None:
    assert Registry([tmp_path / "none"]).resolve([]) == Edits()


def test_all_that_nobody_has_are_named(folders: list[Path]) -> None:
    (folders[0] / "one.yaml").write_text(json.dumps(spec("a")))
    with pytest.raises(UnresolvableError, match=f"devices {KIND}=b, other/kind=a$") as caught:
        Registry(folders).resolve([f"{KIND}=a", f"{KIND}=b", "other/kind=a"])
    assert caught.value.names == (f"{KIND}=b", "other/kind=a")


def test_a_later_folder_goes_before_and_two_files_of_one_folder_exclude_each_other(
    folders: list[Path],
) -> None:
    registry = Registry(folders)
    (folders[0] / "one.json").write_text(json.dumps(spec("a", env=["FROM=etc"])))
    assert registry.resolve([f"{KIND}=a"]).env["FROM"] == "etc"
    (folders[1] / "one.json").write_text(json.dumps(spec("a", env=["FROM=run"])))
    assert registry.resolve([f"{KIND}=a"]).env["FROM"] == "run"
    (folders[1] / "two.json").write_text(json.dumps(spec("a", "b")))
    with pytest.raises(UnresolvableError):
        registry.resolve([f"{KIND}=a"])
    assert registry.resolve([f"{KIND}=b"]).env == {"CARD": "b"}
    (folders[1] / "two.json").unlink()
    assert registry.resolve([f"{KIND}=a"]).env["FROM"] == "run"


@pytest.mark.parametrize("content", ["{", "[]", '{"devices": []}', "\x00", '{"kind": 5}'])
@pytest.mark.parametrize("name", ["bad.json", "bad.yaml"])
def test_a_file_that_is_none_is_passed_over_and_told_once(
    folders: list[Path], caplog: pytest.LogCaptureFixture, name: str, content: str
) -> None:
    (folders[0] / name).write_text(content)
    (folders[0] / "good.json").write_text(json.dumps(spec("a")))
    (folders[0] / ".draft.json").write_text("{")
    (folders[0] / "readme.txt").write_text("{")
    registry = Registry(folders)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            registry.resolve([f"{KIND}=a"])
    [record] = caplog.records
    assert record.__dict__["file"] == str(folders[0] / name)


def test_hooks_are_left_out_and_that_is_said_once(
    folders: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    hooks = [{"hookName": "createContainer", "path": "/bin/false"}]
    (folders[0] / "one.json").write_text(json.dumps(spec("a", hooks=hooks)))
    registry = Registry(folders)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            registry.resolve([f"{KIND}=a"])
    assert [record.getMessage() for record in caplog.records] == [
        "hooks of CDI specs are not run in the sandbox"
    ]
