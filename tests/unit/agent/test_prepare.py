"""A container is prepared once, and in an order that never shows half of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.agent.containers.prepare import EditMount, PrepareError
from hami.node import files
from hami.wire import policy_file
from tests.unit.agent.preparing import ALLOCATION_ID, CARD_MEMORY, FIRST, SECOND, Desk, grant

MIB = 1 << 20


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def policy(desk: Desk) -> policy_file.Policy:
    return policy_file.decode(desk.layout.policy(ALLOCATION_ID).read_bytes())


def stamps(desk: Desk) -> dict[str, tuple[int, int]]:
    """Everything of the allocation id, so that a file written twice shows."""
    return {
        str(path.relative_to(desk.root)): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in desk.root.rglob("*")
        if path.is_file()
    }


def test_a_share_becomes_policy_state_and_spec(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(priority=0, generation=3), cdi=True)
    assert policy(desk) == policy_file.Policy(
        generation=3,
        shares=(grant(FIRST, 4000, 30),),
        priority=0,
        pod_uid="uid-1",
        pod_namespace="team",
        pod_name="pod",
        container="main",
    )
    assert desk.layout.state(ALLOCATION_ID).read_bytes() == b""
    library = f"/hook/vgpu/lib/{'ab' * 32}/libvgpu.so"
    inside = f"{desk.root}/hook/vgpu"
    spec = desk.layout.spec(ALLOCATION_ID).read_text()
    assert f'"containerPath":"{inside}/libvgpu.so"' in spec  # the same path in the container
    assert desk.spec() == {
        "cdiVersion": "0.5.0",
        "kind": "hami.io/vgpu",
        "devices": [
            {
                "name": ALLOCATION_ID,
                "containerEdits": {
                    "env": [
                        f"NVIDIA_VISIBLE_DEVICES={FIRST}",
                        "CUDA_DEVICE_MEMORY_LIMIT_0=4000m",
                        "CUDA_DEVICE_SM_LIMIT=30",
                        "LIBCUDA_LOG_LEVEL=1",
                    ],
                    "mounts": [
                        mount(library, "/hook/vgpu/libvgpu.so"),
                        mount(f"/hook/vgpu/tokens/{ALLOCATION_ID}", "/run/hami/share/policy"),
                        mount("/hook/vgpu/ld.so.preload", "/etc/ld.so.preload"),
                        mount(f"/run/state/{ALLOCATION_ID}/state", "/run/hami/share/state", "rw"),
                        mount("/dev/null", f"/var/run/nvidia-container-devices/{FIRST}"),
                    ],
                },
            }
        ],
    }


def mount(host: str, container: str, access: str = "ro") -> dict[str, Any]:
    options = [access, "nosuid", "nodev", "bind"]
    return {"hostPath": host, "containerPath": container, "options": options}


def test_without_cdi_the_caller_gets_env_and_mounts_and_there_is_no_spec(desk: Desk) -> None:
    edits = desk.preparer.prepare(desk.share(), cdi=False)
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == FIRST
    assert [each.container for each in edits.mounts if not each.read_only] == [
        "/run/hami/share/state"
    ]
    assert EditMount(str(desk.layout.preload), "/etc/ld.so.preload") in edits.mounts
    assert policy(desk).generation == 1
    assert not desk.layout.cdi_dir.exists()


def test_the_same_again_writes_nothing_and_a_new_generation_only_the_policy(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    first = stamps(desk)
    desk.preparer.prepare(desk.share(), cdi=True)
    desk.configure()
    desk.preparer.prepare(desk.share(), cdi=True)
    assert stamps(desk) == first
    desk.preparer.prepare(desk.share(generation=2), cdi=True)
    changed = {path for path, stamp in stamps(desk).items() if first[path] != stamp}
    assert changed == {f"hook/vgpu/tokens/{ALLOCATION_ID}/policy"}
    assert policy(desk).generation == 2


def test_what_a_reboot_took_is_made_again(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    before = desk.spec()
    desk.states.remove(ALLOCATION_ID)
    desk.layout.spec(ALLOCATION_ID).unlink()
    desk.layout.cdi_dir.rmdir()
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.spec() == before
    assert desk.layout.state(ALLOCATION_ID).is_file()


def test_a_state_file_in_use_is_left_as_it_is(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    desk.layout.state(ALLOCATION_ID).write_bytes(b"accounts")
    desk.preparer.prepare(desk.share(generation=2), cdi=True)
    assert desk.layout.state(ALLOCATION_ID).read_bytes() == b"accounts"
    assert desk.layout.state(ALLOCATION_ID).stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\0" * policy_file.SIZE])
def test_a_damaged_policy_is_made_good(desk: Desk, damage: bytes) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    desk.layout.policy(ALLOCATION_ID).write_bytes(damage)
    desk.preparer.prepare(desk.share(), cdi=True)
    assert policy(desk).generation == 1


def test_a_change_always_has_a_higher_generation(desk: Desk) -> None:
    """Running processes take over nothing else: also when the ledger's count was lost."""
    desk.preparer.prepare(desk.share(generation=5), cdi=True)
    desk.preparer.prepare(desk.share(generation=1), cdi=True)
    assert policy(desk).generation == 5
    desk.preparer.prepare(desk.share(grant(memory=5000), generation=1), cdi=True)
    assert (policy(desk).generation, policy(desk).shares[0].memory_mib) == (6, 5000)
    desk.configure(core_policy="force")
    desk.preparer.prepare(desk.share(grant(memory=5000), generation=6), cdi=True)
    assert (policy(desk).generation, policy(desk).flags) == (7, policy_file.Flag.FORCE_CORES)


def test_several_cards_and_several_grants_of_one(desk: Desk) -> None:
    grants = (
        *(grant(SECOND, 1000, 10), grant(FIRST, 2000, 0)),
        *(grant(SECOND, 500, 95), grant(FIRST, 1000, 20)),  # no limit and some are no limit
    )
    desk.preparer.prepare(desk.share(*grants), cdi=True)
    limits = [(each.card, each.memory_mib, each.core_limit) for each in policy(desk).shares]
    assert limits == [(SECOND, 1500, None), (FIRST, 3000, None)]
    env = desk.env()
    assert env["NVIDIA_VISIBLE_DEVICES"] == f"{SECOND},{FIRST}"
    assert env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1500m"
    assert env["CUDA_DEVICE_MEMORY_LIMIT_1"] == "3000m"
    assert env["CUDA_DEVICE_SM_LIMIT"] == "100"


@pytest.mark.parametrize(
    ("config", "flags", "env"),
    [
        ({}, policy_file.Flag(0), {}),
        (
            {"oversubscribe": True},
            policy_file.Flag.OVERSUBSCRIBE,
            {"CUDA_OVERSUBSCRIBE": "true"},
        ),
        (
            {"core_policy": "force"},
            policy_file.Flag.FORCE_CORES,
            {"GPU_CORE_UTILIZATION_POLICY": "force"},
        ),
        (
            {"core_policy": "disable"},
            policy_file.Flag.IGNORE_CORES,
            {"GPU_CORE_UTILIZATION_POLICY": "disable"},
        ),
        (
            {"core_policy": "force", "disable_core_limit": True},
            policy_file.Flag.IGNORE_CORES,
            {"GPU_CORE_UTILIZATION_POLICY": "disable"},
        ),
    ],
)
def test_settings_are_in_policy_and_environment(
    tmp_path: Path, config: dict[str, Any], flags: policy_file.Flag, env: dict[str, str]
) -> None:
    desk = Desk(tmp_path, **config)
    desk.preparer.prepare(desk.share(), cdi=True)
    assert policy(desk).flags == flags
    names = ("CUDA_OVERSUBSCRIBE", "GPU_CORE_UTILIZATION_POLICY")
    assert {name: value for name, value in desk.env().items() if name in names} == env


def test_the_log_level_is_the_nodes(tmp_path: Path) -> None:
    desk = Desk(tmp_path, log_level=4)
    assert desk.preparer.prepare(desk.share(), cdi=False).env["LIBCUDA_LOG_LEVEL"] == "4"


def bare(desk: Desk) -> bool:
    """Whether the container gets its cards and nothing else."""
    edits = desk.edits()
    folder = list(desk.layout.allocation_folder(ALLOCATION_ID).iterdir())
    names = {name for name in desk.env() if name != "NVIDIA_VISIBLE_DEVICES"}
    # By these, too, NVIDIA's runtime knows which cards it is to bring.
    listed = [f"/var/run/nvidia-container-devices/{card}" for card in (FIRST, SECOND)]
    mounts = [each for each in edits.get("mounts", ()) if each["containerPath"] not in listed]
    return not (mounts or folder or names or desk.layout.state(ALLOCATION_ID).exists())


@pytest.mark.parametrize("cdi", [True, False])
def test_the_cards_are_listed_for_a_runtime_that_heeds_no_variable(
    desk: Desk, *, cdi: bool
) -> None:
    """With its setting accept-nvidia-visible-devices-as-volume-mounts no variable counts."""
    whole = [grant(uuid, CARD_MEMORY, 0) for uuid in (FIRST, SECOND)]
    edits = desk.preparer.prepare(desk.share(*whole), cdi=cdi)
    assert [(each.host, each.container, each.read_only) for each in edits.mounts] == [
        ("/dev/null", f"/var/run/nvidia-container-devices/{card}", True) for card in (FIRST, SECOND)
    ]


@pytest.mark.parametrize("cores", [0, 100])
def test_whole_cards_come_alone(desk: Desk, cores: int) -> None:
    whole = [grant(uuid, CARD_MEMORY, cores) for uuid in (FIRST, SECOND)]
    desk.preparer.prepare(desk.share(*whole), cdi=True)
    assert bare(desk)
    assert desk.env()["NVIDIA_VISIBLE_DEVICES"] == f"{FIRST},{SECOND}"


def test_an_exempt_container_gets_no_limiter(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(exempt=True), cdi=True)
    assert bare(desk)


@pytest.mark.parametrize(
    "grants",
    [
        [grant(memory=CARD_MEMORY - 1, cores=0)],
        [grant(memory=CARD_MEMORY, cores=99)],
        [grant(memory=CARD_MEMORY, cores=0), grant(SECOND, 1000, 0)],
    ],
)
def test_a_part_of_any_card_is_limited(desk: Desk, grants: list[Any]) -> None:
    desk.preparer.prepare(desk.share(*grants), cdi=True)
    assert [each.card for each in policy(desk).shares] == [each.card for each in grants]


def test_where_memory_is_scaled_no_card_is_whole(tmp_path: Path) -> None:
    desk = Desk(tmp_path, unscaled=False)
    desk.preparer.prepare(desk.share(grant(memory=CARD_MEMORY, cores=100)), cdi=True)
    assert policy(desk).shares[0].memory_mib == CARD_MEMORY


def test_who_was_limited_stays_so_when_the_share_grows_to_the_card(desk: Desk) -> None:
    """Without a policy the container's new processes would get no card."""
    desk.preparer.prepare(desk.share(), cdi=True)
    grown = desk.share(grant(memory=CARD_MEMORY, cores=100), generation=2)
    desk.preparer.prepare(grown, cdi=True)
    assert policy(desk).shares[0].memory_mib == CARD_MEMORY
    assert "/etc/ld.so.preload" in [each["containerPath"] for each in desk.edits()["mounts"]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"allocation_id": "../../../etc"}, "none of ours"),
        ({"shares": ()}, "granted no card"),
        ({"shares": (grant("GPU-removed"),)}, "GPU-removed is none of this node's cards"),
        ({"shares": (grant(memory=0),)}, "MiB of memory: a share needs some"),
        ({"name": "n" * 300}, "printable ASCII"),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_no_spec(
    desk: Desk, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(PrepareError, match=says) as error:
        desk.preparer.prepare(msgspec.structs.replace(desk.share(), **changes), cdi=True)
    assert "container main of pod team/" in str(error.value)
    assert error.value.remedy
    assert not desk.layout.cdi_dir.exists()


def test_a_limited_container_is_prepared_again_without_the_driver(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    before = stamps(desk)
    desk.devices.clear()
    desk.preparer.prepare(desk.share(), cdi=True)
    assert stamps(desk) == before


@pytest.mark.parametrize("fails", ["policy", "state", "spec"])
def test_a_full_disk_leaves_no_spec_without_its_policy(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    write = files.write_atomic

    def full(path: Path, content: bytes, **how: Any) -> None:
        if path == getattr(desk.layout, fails)(ALLOCATION_ID):
            raise OSError(28, "No space left on device", str(path))
        write(path, content, **how)

    def no_state(allocation_id: str) -> Path:
        raise OSError(28, "No space left on device", "state")

    monkeypatch.setattr(files, "write_atomic", full)
    if fails == "state":
        monkeypatch.setattr(desk.states, "ensure", no_state)
    with pytest.raises(PrepareError, match="No space left on device"):
        desk.preparer.prepare(desk.share(), cdi=True)
    assert not desk.layout.spec(ALLOCATION_ID).exists()
    monkeypatch.undo()
    desk.preparer.prepare(desk.share(), cdi=True)
    assert policy(desk).generation == 1
    assert desk.layout.spec(ALLOCATION_ID).exists()


def test_a_policy_that_is_lost_and_cannot_be_made_takes_the_spec_along(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    desk.layout.policy(ALLOCATION_ID).unlink()

    def full(path: Path, content: bytes, **how: Any) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(files, "write_atomic", full)
    with pytest.raises(PrepareError):
        desk.preparer.prepare(desk.share(), cdi=True)
    assert not desk.layout.spec(ALLOCATION_ID).exists()


def test_the_spec_comes_last_and_goes_first(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    kinds = {desk.layout.policy(ALLOCATION_ID): "policy", desk.layout.spec(ALLOCATION_ID): "spec"}
    write, ensure, remove = files.write_atomic, desk.states.ensure, desk.states.remove

    def written(path: Path, content: bytes, **how: Any) -> None:
        order.append(f"write {kinds[path]}")
        write(path, content, **how)

    def ensured(allocation_id: str) -> Path:
        order.append("write state")
        return ensure(allocation_id)

    def removed(allocation_id: str) -> None:
        order.append("remove state")
        assert not desk.layout.spec(ALLOCATION_ID).exists()
        assert desk.layout.policy(ALLOCATION_ID).exists()
        remove(allocation_id)

    monkeypatch.setattr(files, "write_atomic", written)
    monkeypatch.setattr(desk.states, "ensure", ensured)
    monkeypatch.setattr(desk.states, "remove", removed)
    desk.preparer.prepare(desk.share(), cdi=True)
    desk.preparer.forget(ALLOCATION_ID)
    assert order == ["write policy", "write state", "write spec", "remove state"]


def test_forgetting_leaves_nothing_and_can_be_repeated(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    assert desk.preparer.allocation_ids() == {ALLOCATION_ID}
    for _ in range(2):
        desk.preparer.forget(ALLOCATION_ID)
        assert desk.preparer.allocation_ids() == frozenset()
        assert [path for path in desk.root.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("left", ["spec", "state", "folder"])
def test_an_allocation_id_of_which_only_a_part_is_left_is_known_and_forgotten(
    desk: Desk, left: str
) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)
    if left != "spec":
        desk.layout.spec(ALLOCATION_ID).unlink()
    if left != "state":
        desk.states.remove(ALLOCATION_ID)
    if left != "folder":
        desk.layout.policy(ALLOCATION_ID).unlink()
        desk.layout.allocation_folder(ALLOCATION_ID).rmdir()
    assert desk.preparer.allocation_ids() == {ALLOCATION_ID}
    desk.preparer.forget(ALLOCATION_ID)
    assert desk.preparer.allocation_ids() == frozenset()


def test_nothing_outside_is_ever_removed(desk: Desk) -> None:
    outside = desk.layout.allocations / "keep"
    outside.mkdir(parents=True)
    with pytest.raises(PrepareError, match="none of ours"):
        desk.preparer.forget("keep")
    assert outside.is_dir()
    assert desk.preparer.allocation_ids() == frozenset()


def test_others_in_the_container_can_read_whatever_the_umask(desk: Desk) -> None:
    before = os.umask(0o077)
    try:
        desk.preparer.prepare(desk.share(), cdi=True)
    finally:
        os.umask(before)
    assert desk.layout.allocation_folder(ALLOCATION_ID).stat().st_mode & 0o777 == 0o755
    assert desk.layout.policy(ALLOCATION_ID).stat().st_mode & 0o777 == 0o644
    assert desk.layout.spec(ALLOCATION_ID).stat().st_mode & 0o777 == 0o644


def test_what_was_prepared_is_ready_without_the_driver(desk: Desk) -> None:
    assert not desk.preparer.is_ready(ALLOCATION_ID, cdi=True)
    desk.preparer.prepare(desk.share(), cdi=False)
    assert desk.preparer.is_ready(ALLOCATION_ID, cdi=False)
    assert not desk.preparer.is_ready(ALLOCATION_ID, cdi=True)
    desk.preparer.prepare(desk.share(), cdi=True)
    desk.devices.clear()
    desk.states.remove(ALLOCATION_ID)
    assert desk.preparer.is_ready(ALLOCATION_ID, cdi=True)
    assert desk.layout.state(ALLOCATION_ID).is_file()


def test_an_unlimited_container_is_ready_without_policy_and_state(desk: Desk) -> None:
    desk.preparer.prepare(desk.share(exempt=True), cdi=True)
    assert desk.preparer.is_ready(ALLOCATION_ID, cdi=True)
    assert not desk.layout.state(ALLOCATION_ID).exists()


def test_what_is_damaged_or_cannot_be_made_is_not_ready(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.preparer.prepare(desk.share(), cdi=True)

    def full(allocation_id: str) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(desk.states, "ensure", full)
        assert not desk.preparer.is_ready(ALLOCATION_ID, cdi=True)
    desk.layout.policy(ALLOCATION_ID).write_bytes(b"")
    assert not desk.preparer.is_ready(ALLOCATION_ID, cdi=True)


def test_who_would_be_limited_can_be_asked(desk: Desk) -> None:
    assert desk.preparer.is_limited([grant()])
    assert not desk.preparer.is_limited([grant(memory=CARD_MEMORY // 2, cores=0)] * 2)
    assert desk.preparer.is_limited([grant("GPU-removed", memory=1 << 20)])
