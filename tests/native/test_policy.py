"""A container's limits: the agent's policy file, or HAMi's environment."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hami.wire.file_layout import POLICY, POLICY_CARD
from native import build
from tests.native import state_driving
from tests.native.state_driving import UUID, Container, field_at, policy

REFUSED = "refused 0 0 0"
ENV = {
    "CUDA_DEVICE_MEMORY_LIMIT": "1g",
    "CUDA_DEVICE_SM_LIMIT": "30",
    "CUDA_TASK_PRIORITY": "5",
    "CUDA_OVERSUBSCRIBE": "true",
}


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = build.zig(build.own_arch()).command
    return state_driving.compile_driver(tmp_path_factory.mktemp("policy") / "driver", command)


@pytest.fixture
def container(tmp_path: Path, driver: Path) -> Iterator[Container]:
    with Container(tmp_path / "container", driver) as made:
        yield made


def limits(container: Container, **environment: str) -> list[str]:
    """Give `source generation flags priority` and then a word per device."""
    words = container.start(**environment).tell("limits").split(" ")
    return [" ".join(words[:4]), *words[4:]]


def test_the_policy_beats_the_environment(container: Container) -> None:
    container.grant(policy(7, 3 << 30, cores=25, context_bytes=999))
    assert limits(container, **ENV) == ["policy 7 0 0", f"{UUID}/{3 << 30}/25/999"]


def test_a_policy_without_limits_is_not_filled_from_the_environment(container: Container) -> None:
    container.grant(policy(7, 0))
    assert limits(container, **ENV) == ["policy 7 0 0", f"{UUID}/0/100/0"]


def test_the_policy_is_found_from_any_working_directory(container: Container) -> None:
    container.grant(policy(7))
    process = container.start("env", "-C", "/")
    assert process.tell("limits").startswith("policy 7 ")


def checksummed(data: bytes) -> bytes:
    body = data[: field_at(POLICY, "crc32")]
    return body + struct.pack("<I", zlib.crc32(body))


def changed(name: str, value: bytes, *, of_device: bool = False) -> bytes:
    """Give a policy with one field changed and a right checksum."""
    data = bytearray(policy())
    inside = POLICY_CARD.places[name][0] if of_device else 0
    at = field_at(POLICY, "devices") + inside if of_device else field_at(POLICY, name)
    data[at : at + len(value)] = value
    return checksummed(bytes(data))


def flipped(at: int) -> bytes:
    data = bytearray(policy())
    data[at] ^= 1
    return bytes(data)


BAD_FILES = {
    "empty": b"",
    "short": policy()[:-1],
    "long": policy() + b"\0",
    "zeros": bytes(POLICY.size),
    "checksum": flipped(POLICY.size - 1),
    "limit changed": flipped(field_at(POLICY, "devices") + field_at(POLICY_CARD, "memory_limit")),
    "magic": changed("magic", b"AMIPOLY2"),
    "version": changed("version", struct.pack("<I", 2)),
    "size": changed("size", struct.pack("<I", 4)),
    "no devices": changed("device_count", struct.pack("<I", 0)),
    "too many devices": changed("device_count", struct.pack("<I", 17)),
    "unnamed device": changed("uuid", bytes(96), of_device=True),
    "endless name": changed("uuid", b"x" * 96, of_device=True),
    "cores": changed("core_limit", struct.pack("<I", 101), of_device=True),
}


def test_the_checksum_of_a_changed_file_is_right() -> None:
    assert changed("magic", b"AMIPOLY1") == policy()


@pytest.mark.parametrize("what", BAD_FILES)
def test_a_bad_file_grants_nothing(container: Container, what: str) -> None:
    container.grant(BAD_FILES[what])
    assert limits(container, **ENV) == [REFUSED]


def no_file(_: Path) -> None:
    pass


def link(path: Path) -> None:
    elsewhere = path.parents[1] / "elsewhere"
    elsewhere.write_bytes(policy())
    path.symlink_to(elsewhere)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [no_file, link, pipe, folder])
def test_what_is_no_file_grants_nothing(container: Container, make: Callable[[Path], None]) -> None:
    (container.folder / "policy").mkdir()
    make(container.folder / "policy/policy")
    assert limits(container, **ENV) == [REFUSED]


def test_a_file_named_policy_is_no_policy_folder(container: Container) -> None:
    (container.folder / "policy").write_bytes(policy())
    assert limits(container)[0] == "none 0 0 1"


def test_a_newer_file_is_taken_over_and_nothing_else(container: Container) -> None:
    container.grant(policy(2, 1 << 30))
    process = container.start()
    known = process.tell("limits")
    assert process.tell("reread") == f"0 {known}"
    for same in (policy(2, 2 << 30), policy(1, 2 << 30), BAD_FILES["checksum"], b""):
        container.grant(same)
        assert process.tell("reread") == f"0 {known}"
        assert process.tell("reread") == f"0 {known}"
    (container.folder / "policy/policy").unlink()
    assert process.tell("reread") == f"0 {known}"
    container.grant(policy(3, 5 << 30))
    assert process.tell("reread") == f"1 policy 3 0 0 {UUID}/{5 << 30}/100/0"
    assert process.tell("reread") == f"0 policy 3 0 0 {UUID}/{5 << 30}/100/0"


def test_a_first_policy_is_taken_over_whatever_its_generation(container: Container) -> None:
    (container.folder / "policy").mkdir()
    process = container.start()
    assert process.tell("limits") == REFUSED
    assert process.tell("reread") == f"0 {REFUSED}"
    container.grant(policy(1))
    assert process.tell("reread") == f"1 policy 1 0 0 {UUID}/{4 << 30}/100/0"


def test_a_container_that_was_not_late_bound_does_not_become_so(container: Container) -> None:
    process = container.start(CUDA_DEVICE_MEMORY_LIMIT="1g")
    known = process.tell("limits")
    container.grant(policy(9))
    assert process.tell("reread") == f"0 {known}"


def test_places_with_an_agent(container: Container) -> None:
    container.grant(policy())
    here = container.folder
    told = container.start().tell("places")
    assert told == f"{here}/policy/policy|{here}/state|{here}/region|1"
    told = container.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="").tell("places")
    assert told == f"{here}/policy/policy|{here}/state||1"


def test_places_without_an_agent(container: Container) -> None:
    here = container.folder
    assert container.start().tell("places") == f"|{here}/region.state|{here}/region|0"
    told = container.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="").tell("places")
    assert told == "|/tmp/cudevshr.cache.state|/tmp/cudevshr.cache|0"
    (here / "state").touch()
    assert container.start().tell("places") == f"|{here}/state|{here}/region|1"


def test_a_program_started_by_a_relative_name_finds_its_folder(container: Container) -> None:
    container.grant(policy(7))
    command = f'cd "{container.folder}"; exec ./driver'
    process = container.start("sh", "-c", command)
    assert process.tell("places").startswith(f"{container.folder}/policy/policy|")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4096", 4096),
        ("1024k", 1 << 20),
        ("1024K", 1 << 20),
        ("512m", 512 << 20),
        ("512M", 512 << 20),
        ("8g", 8 << 30),
        ("8G", 8 << 30),
        ("0x10m", 16 << 20),
        ("010", 8),
        (" 3m", 3 << 20),
        ("8Gi", 8),
        ("2.5g", 2 << 30),
        ("0", 0),
        ("0g", 0),
        ("", 0),
        ("g", 0),
        ("none", 0),
        ("-1", 0),
        ("-1g", 0),
        ("18446744073709551615", (1 << 64) - 1),
        ("18446744073709551616", 0),
        ("17179869183g", 17179869183 << 30),
        ("17179869184g", 0),
    ],
)
def test_amounts_are_read_as_hami_does(container: Container, text: str, expected: int) -> None:
    assert container.start().ask(f"parse {text}") == expected


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "none 0 0 1"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_SM_LIMIT": "100"}, "none 0 0 1"),
        ({"CUDA_OVERSUBSCRIBE": "true", "CUDA_TASK_PRIORITY": "0"}, "none 0 1 0"),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1g"}, "env 0 0 1"),
        ({"CUDA_DEVICE_MEMORY_LIMIT_15": "1g"}, "env 0 0 1"),
        ({"CUDA_DEVICE_MEMORY_LIMIT_16": "1g"}, "none 0 0 1"),
        ({"CUDA_DEVICE_SM_LIMIT": "99"}, "env 0 0 1"),
        ({"CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": "force"}, "env 0 2 1"),
        ({"CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": "DISABLE"}, "env 0 4 1"),
        ({"CUDA_DEVICE_SM_LIMIT": "30", "GPU_CORE_UTILIZATION_POLICY": "Force"}, "env 0 0 1"),
        ({"CUDA_DEVICE_SM_LIMIT": "30", "CUDA_OVERSUBSCRIBE": "false"}, "env 0 0 1"),
        ({"CUDA_DEVICE_SM_LIMIT": "30", "CUDA_TASK_PRIORITY": "-2"}, "env 0 0 -2"),
    ],
)
def test_the_environment(container: Container, environment: dict[str, str], expected: str) -> None:
    assert limits(container, **environment)[0] == expected


def test_a_devices_own_name_wins(container: Container) -> None:
    rows = limits(
        container,
        CUDA_DEVICE_MEMORY_LIMIT="1g",
        CUDA_DEVICE_MEMORY_LIMIT_1="2g",
        CUDA_DEVICE_MEMORY_LIMIT_2="0",
        CUDA_DEVICE_SM_LIMIT="40",
        CUDA_DEVICE_SM_LIMIT_3="250",
    )
    gib = 1 << 30
    usual = f"/{gib}/40/0"
    assert rows[1:5] == [usual, f"/{2 * gib}/40/0", usual, f"/{gib}/100/0"]
    assert rows[5:] == [usual] * 12
