"""Late binding needs proof of everything; else a reason says what to do."""

from __future__ import annotations

import pytest

from hami.agent import binding_mode
from hami.agent.binding_mode import Mode
from hami.agent.kubelet.checkpoint import CheckpointError, Kind
from hami.agent.kubelet.runtime import RuntimeStatus, RuntimeStatusError

CDI = "/var/run/cdi"
GOOD = RuntimeStatus(
    name="containerd", version="v2.1.4", cdi_dirs=("/etc/cdi", CDI), cdi_disabled=False
)


def decide(
    binding: str = "auto",
    *,
    version: str = "v1.34.1",
    runtime: RuntimeStatus | RuntimeStatusError = GOOD,
    cdi_dir: str = CDI,
    error: CheckpointError | None = None,
    reported: str = "",
) -> Mode:
    return binding_mode.decide(
        binding,
        kubelet_version=version,
        runtime=runtime,
        cdi_dir=cdi_dir,
        reported_runtime=reported,
        checkpoint_error=error,
    )


def status(**fields: object) -> RuntimeStatus:
    known = {"name": "containerd", "version": "v1.7.20", "cdi_dirs": (CDI,), "cdi_disabled": None}
    return RuntimeStatus(**{**known, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "version",
    ["v1.29.0", "v1.30.4-eks-a737599", "v1.31.2+k3s1", "v1.34.1-gke.100", "1.29", "v2.0.0"],
)
def test_a_node_that_can_binds_late(version: str) -> None:
    assert decide(version=version) == Mode(late=True)
    assert decide(version=version, reported="containerd://2.0.0") == Mode(late=True)


@pytest.mark.parametrize(
    ("folders", "ours"),
    [
        (["/run/cdi"], "/var/run/cdi"),
        (["/var/run/cdi"], "/run/cdi"),
        (["/etc/cdi/"], "/etc/cdi"),
        (["/a", "/run/x/../cdi"], "/var/run/cdi/"),
    ],
)
def test_a_folder_may_be_written_in_two_ways(folders: list[str], ours: str) -> None:
    assert decide(runtime=status(cdi_dirs=tuple(folders)), cdi_dir=ours) == Mode(late=True)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (
            decide(version="v1.28.3"),
            ["kubelet v1.28.3 is older than v1.29, which is the first to pass CDI names", "update"],
        ),
        (decide(version=""), ["version ''", "--binding=late"]),
        (decide(version="master"), ["version 'master'"]),
        (
            decide(reported="docker://28.1.1"),
            ["containerd v2.1.4", "kubelet starts containers with docker://28.1.1", "CRI socket"],
        ),
        (
            decide(runtime=status(cdi_disabled=True)),
            ["containerd v1.7.20 reports that CDI is off", "enable_cdi = true", "restart"],
        ),
        (
            decide(runtime=status(cdi_dirs=("/etc/cdi", "/opt/cdi"))),
            ["containerd v1.7.20", "/etc/cdi, /opt/cdi", "to /var/run/cdi", "--cdi-dir"],
        ),
        (
            decide(runtime=status(name="cri-o", version="1.32.0", cdi_dirs=())),
            ["cri-o 1.32.0 does not report", "cdiSpecDirs", "--binding=late"],
        ),
        (
            decide(runtime=status(version="1.6.20~ds1", cdi_dirs=())),  # as that one is
            ["containerd 1.6.20~ds1 does not report", "cdiSpecDirs", "since 1.7; update it"],
        ),
        (
            decide(runtime=RuntimeStatusError("socket /run/x.sock", "does not exist", "mount it")),
            ["container runtime", "socket /run/x.sock: does not exist; mount it"],
        ),
        (
            decide(error=CheckpointError(Kind.SHAPE, "/cp", "has another shape", "report it")),
            ["/cp: has another shape; report it"],
        ),
        (
            decide(error=CheckpointError(Kind.UNREADABLE, "/cp", "cannot be read")),
            ["/cp: cannot be read"],
        ),
        (decide("lock"), ["--binding=lock", "auto"]),
    ],
)
def test_what_is_missing_is_reported_with_the_remedy(mode: Mode, words: list[str]) -> None:
    assert not mode.late
    for word in words:
        assert word in mode.reason


@pytest.mark.parametrize("kind", [Kind.MISSING, Kind.ANSWER])
def test_no_checkpoint_yet_and_one_broken_answer_are_no_doubt(kind: Kind) -> None:
    assert decide(error=CheckpointError(kind, "/cp", "")) == Mode(late=True)


def test_everything_that_is_missing_is_reported_at_once() -> None:
    mode = decide(version="v1.27.0", runtime=status(cdi_disabled=True))
    assert not mode.late
    assert "v1.27.0" in mode.reason
    assert "enable_cdi" in mode.reason


def test_late_by_command_is_late_and_says_what_speaks_against_it() -> None:
    assert decide("late") == Mode(late=True)
    forced = decide("late", version="v1.28.0")
    assert forced.late
    assert "v1.28.0 is older" in forced.reason
