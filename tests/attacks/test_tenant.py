"""Attacks of a tenant with root in a container, on the limit of its own share."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hami.node.layout import SHARE
from hami.wire import file_layout
from hami.wire.file_layout import PROCESS_ENTRY, PROCESS_USAGE, STATE, STATE_CARD
from tests.attacks import attack as attacks
from tests.attacks import past_the_library, tenants
from tests.attacks.attack import NO_GAIN, REFUSED, REPORTED, Attacker, Result
from tests.attacks.tenants import Tenant
from tests.native import test_foreign_cards
from tests.native.mounting import POLICY, Mounted
from tests.native.probing import GIB, MIB, DiedError, Probe
from tests.unit.monitor import nodes

attack = attacks.by(Attacker.TENANT)
needs_mounts = pytest.mark.skipif(not tenants.may_mount(), reason="may not make mount namespaces")


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Tenant]:
    made = Tenant(tmp_path)
    yield made
    made.close()


# Environment and files of the library.


@attack(
    "environment-limits",
    "sets HAMi's environment names to a larger limit",
    NO_GAIN,
    "with a policy file the environment sets nothing",
)
def test_limits_in_the_environment(tenant: Tenant) -> Result:
    tenant.fill(
        names={
            "CUDA_DEVICE_MEMORY_LIMIT": "100g",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "100g",
            "CUDA_OVERSUBSCRIBE": "true",
            "CUDA_DISABLE_CONTROL": "true",
        }
    )
    return tenant.result()


@attack(
    "environment-cleared",
    "starts a program with an empty environment, as ssh or cron do",
    NO_GAIN,
    "the limit is in a file, not in the environment",
)
def test_an_empty_environment(tenant: Tenant) -> Result:
    tenant.fill(before=("env", "-i", *tenant.needed()))
    return tenant.result()


@needs_mounts
@attack(
    "preload-emptied",
    "sets LD_PRELOAD to nothing",
    NO_GAIN,
    "/etc/ld.so.preload loads the library, and is mounted read-only",
)
def test_an_empty_ld_preload(tenant: Tenant) -> Result:
    tenant.fill(names={"LD_PRELOAD": ""}, before=tenant.preloaded())
    return tenant.result()


@attack(
    "driver-copied",
    "loads a copy of the driver's library from a folder of its own",
    NO_GAIN,
    "functions are replaced by name, wherever their library lies",
)
def test_a_copy_of_the_driver(tenant: Tenant) -> Result:
    env = tenant.container.environment()
    mine = shutil.copytree(env["LD_LIBRARY_PATH"], tenant.folder / "mine")
    for lookup in ("dlsym", "procaddress"):
        probe = tenant.program("--lookup", lookup, names={"LD_LIBRARY_PATH": str(mine)})
        tenant.take_all(probe.start())
        probe.kill()
    return tenant.result()


@attack(
    "cache-path",
    "lets CUDA_DEVICE_MEMORY_SHARED_CACHE name a device, a folder, or a file of its own",
    NO_GAIN,
    "HAMi's region is written only where it is one, and never read",
)
@pytest.mark.parametrize("odd", ["/dev/zero", "/proc/self/mem", "{}", "{}/planted", "{}/none/x"])
def test_odd_paths_of_the_region(tenant: Tenant, odd: str) -> Result:
    planted = tenant.folder / "planted"
    planted.write_bytes(os.urandom(8192))
    before = planted.read_bytes()
    tenant.fill(names={"CUDA_DEVICE_MEMORY_SHARED_CACHE": odd.format(tenant.folder)})
    assert planted.read_bytes() == before
    return tenant.result()


@attack(
    "policy-broken",
    "makes the policy file unreadable before a program starts",
    REFUSED,
    "a policy folder without a valid file gives no GPU",
)
def test_a_broken_policy(tenant: Tenant) -> Result:
    policy = tenant.container.policy_path
    policy.write_bytes(policy.read_bytes()[:-1])
    probe = tenant.program()
    answer = probe.ask("init")
    return tenant.result(refusal="" if answer.ok else answer.text)


@attack(
    "policy-older",
    "plants an older policy with a larger limit while a program runs",
    NO_GAIN,
    "only a higher generation is taken over",
)
def test_an_older_policy(tenant: Tenant) -> Result:
    container = tenant.container
    container.resize(tenants.LIMIT)
    probe = tenant.program().start()
    large = tenants.policy(container, 8 * GIB, generation=1)
    container.policy_path.write_bytes(large)
    tenant.take_all(probe)
    return tenant.result()


def past(tenant: Tenant, how: str, size: int) -> Probe:
    return tenant.run(sys.executable, past_the_library.__file__, how, str(size))


@attack(
    "linker-doors",
    "looks the driver up by dlmopen, dlvsym or RTLD_DEEPBIND",
    NO_GAIN,
    "the linker's own functions are answered by the library, too",
)
@pytest.mark.parametrize("how", ["dlmopen", "dlvsym", "deepbind"])
def test_other_doors_of_the_linker(tenant: Tenant, how: str) -> Result:
    probe = past(tenant, how, 2 * GIB)
    assert probe.hear().text == "ok 0 0 0 2"
    return tenant.result()


@attack(
    "driver-twice",
    "loads the driver, then a copy of it, and takes the copy's functions",
    NO_GAIN,
    "a function of the driver is replaced in every copy, by the name that its file has for itself",
)
def test_a_second_copy_of_the_driver(tenant: Tenant) -> Result:
    assert not past(tenant, "copy", 2 * GIB).hear().text.endswith(" 0")
    return tenant.result()


@attack(
    "library-copy",
    "preloads a copy of libvgpu.so from a folder of its own, with a policy beside it",
    NO_GAIN,
    "policy and state are found at one fixed path, by the kernel's list of mounts",
)
def test_a_copy_of_the_library(tmp_path: Path) -> Result:
    with Mounted(tmp_path, (tenants.LIMIT,)) as box:
        names = {"CUDA_DEVICE_MEMORY_LIMIT": "0", "CUDA_DEVICE_MEMORY_LIMIT_0": "0"}
        copy = box.copy()
        box.forged("policy")
        for preload in ([copy], [copy, box.library], [box.library, copy]):
            probe = box.inside(preload=preload, names=names).start()
            probe.fill("alloc", 64 * MIB, 40)
            probe.kill()
        return tenants.judged(box)


@attack(
    "policy-hidden",
    "mounts, moves or covers the policy's folder with one of its own",
    REFUSED,
    "a policy that is not the agent's mount gives no GPU",
)
@pytest.mark.parametrize(
    "steps",
    [
        (f"mount --bind {{forged}} {POLICY}",),
        (f"mount --bind {{forged}}/policy {POLICY}/policy",),
        ("mount -t tmpfs none /run/hami", f"mkdir -p {POLICY}", f"cp {{forged}}/policy {POLICY}"),
    ],
    ids=["folder", "file", "above"],
)
def test_a_hidden_policy(tmp_path: Path, steps: Sequence[str]) -> Result:
    with Mounted(tmp_path, (tenants.LIMIT,)) as box:
        forged = box.forged("forged")
        probe = box.inside(*(step.format(forged=forged) for step in steps))
        answer = probe.ask("init")
        return tenants.judged(box, refusal="" if answer.ok else answer.text)


@attack(
    "mounts-unreadable",
    "moves the policy away, and starts a program that cannot read the list of mounts",
    REFUSED,
    "where the list of mounts cannot be read there is no GPU",
)
@pytest.mark.parametrize("how", ["crowded", "blinded"])
@pytest.mark.parametrize(
    "then",
    ["true", f"mkdir -p {SHARE} && cp -r {{forged}} {POLICY} && touch {SHARE}/state"],
    ids=["moved", "forged"],
)
def test_an_unreadable_list_of_mounts(tmp_path: Path, how: str, then: str) -> Result:
    with Mounted(tmp_path, (tenants.LIMIT,)) as box:
        command = (sys.executable, past_the_library.__file__, how, str(2 * GIB))
        steps = ("mv /run/hami /run/elsewhere", then.format(forged=box.forged("forged")))
        probe = box.inside(*steps, command=command)
        answer = probe.hear()
        return tenants.judged(box, refusal="" if answer.text == "ok 0 0 0 0" else answer.text)


# The CUDA API.


@attack(
    "allocation-kinds",
    "takes memory by every kind of allocation that CUDA has",
    NO_GAIN,
    "every function that gives memory of a card is charged before it is called",
    also=("gpu",),
)
def test_every_kind_of_memory(tenant: Tenant) -> Result:
    for kind in ("pitch", "managed", "async", "vmm", "vmmlost", "array2d", "mipmap", "graph"):
        probe = tenant.program().start()
        tenant.take_all(probe, kind)
        probe.kill()
    return tenant.result()


@attack(
    "managed-pool",
    "takes managed memory from a pool of CUDA 13, for the card or for no place",
    NO_GAIN,
    "only memory whose place is the host is free",
    also=("gpu",),
)
@pytest.mark.parametrize("place", ["device 0", "none 0", "6 0"])
def test_a_managed_pool(tenant: Tenant, place: str) -> Result:
    probe = tenant.program().start()
    tenant.attempt(probe, f"poolat own managed {place}")
    probe.ask(f"fill pool:own {64 * MIB} 40")
    tenant.take_all(probe)
    return tenant.result()


@attack(
    "green-first",
    "makes a green context before any other, which retains a context that nobody counts",
    NO_GAIN,
    "what a green context takes is charged before it is made",
    also=("gpu",),
)
def test_a_green_context_first(tenant: Tenant) -> Result:
    probe = tenant.program()
    probe.do("init")
    assert tenant.attempt(probe, "green create part 0", "green use part") == ""
    tenant.take_all(probe)
    return tenant.result()


@attack(
    "managed-moves",
    "has managed memory moved to a card by prefetch and advice",
    NO_GAIN,
    "managed memory counts against every granted card that it may move to",
    also=("gpu",),
)
def test_managed_memory_that_moves(tenant: Tenant) -> Result:
    probe = tenant.program().start()
    for number in range(24):
        if tenant.attempt(probe, f"take managed m{number} {64 * MIB}"):
            break
        for how in ("v1", "v2", "batch"):
            tenant.attempt(probe, f"prefetch m{number} {how} device 0")
        tenant.attempt(probe, f"advise m{number} v1 3 device 0")
    tenant.take_all(probe)
    return tenant.result()


@attack(
    "overflowing-sizes",
    "asks for sizes that overflow when they are rounded up or added",
    REFUSED,
    "sums that do not fit into 64 bits do not fit into the limit",
)
def test_sizes_that_overflow(tenant: Tenant) -> Result:
    probe = tenant.program().start()
    refusals = []
    for size in (2**64 - 1, 2**64 - 2 * MIB, 2**63, 2**63 - 1, 2**40):
        for kind in ("alloc", "managed", "async", "vmm"):
            answer = probe.ask(f"take {kind} x-{kind}-{size} {size}")
            assert not answer.ok, answer
            refusals.append(answer.text)
    tenant.attempt(probe, f"pitch p {2**63} 4 4", f"pitch p {2**32 + 1} {2**32} 4")
    tenant.take_all(probe)
    return tenant.result(refusal=refusals[0])


@attack(
    "contexts",
    "makes contexts and streams without end, which cost memory themselves",
    NO_GAIN,
    "a context is charged before it is made, by what one costs on this card",
)
def test_many_contexts(tenant: Tenant) -> Result:
    for kind in ("context", "stream"):
        probe = tenant.program().start()
        probe.fill(kind, 1, 400)
        tenant.take_all(probe)
        probe.kill()
    return tenant.result()


@attack(
    "local-memory",
    "loads kernels whose local memory is larger than the share",
    NO_GAIN,
    "local memory is charged when a kernel is looked up",
    also=("gpu",),
)
def test_local_memory(tenant: Tenant) -> Result:
    probe = tenant.program().start()
    tenant.attempt(probe, "module load deep local 16384", "launch deep")
    tenant.attempt(probe, *(f"limit {name} {8 * GIB}" for name in ("stack", "heap", "printf")))
    tenant.take_all(probe)
    return tenant.result()


@attack(
    "other-card",
    "uses a card of the node that it was not given",
    REFUSED,
    "a card that the policy does not name gives no context",
    also=("gpu",),
)
def test_another_card(tenant: Tenant) -> Result:
    refusal = ""
    for names in ({}, {"CUDA_VISIBLE_DEVICES": "1,0"}, {"NVIDIA_VISIBLE_DEVICES": "all"}):
        probe = tenant.program(names=names)
        probe.do("init")
        for device in range(2):
            answer = probe.ask(f"device {device}")
            if answer.ok:
                tenant.take_all(probe)
            else:
                refusal = answer.text
        probe.kill()
    return tenant.result(refusal=refusal)


@attack(
    "other-card-by-doors",
    "reaches a card that it was not given by pools, VMM, graphs, peers, prefetch, multicast",
    REFUSED,
    "every function that names a card checks the grant",
    also=("gpu",),
)
@pytest.mark.parametrize("door", sorted(test_foreign_cards.DOORS))
def test_another_card_by_its_doors(tenant: Tenant, door: str) -> Result:
    first, then = test_foreign_cards.DOORS[door]
    probe = tenant.program().start()
    assert tenant.attempt(probe, *first) == ""
    return tenant.result(refusal=tenant.attempt(probe, then))


# Several processes.


@attack(
    "many-processes",
    "fills the share from many processes at once",
    NO_GAIN,
    "all processes of a container share one account",
)
def test_many_processes(tenant: Tenant) -> Result:
    probes = [tenant.program() for _ in range(4)]
    for probe in probes:
        probe.do("init")
        probe.tell("device 0")
    for probe in probes:
        if probe.hear().ok:
            tenant.take_all(probe)
    return tenant.result()


@attack(
    "kill-9",
    "kills its processes in mid-work, again and again, so that memory is freed twice",
    NO_GAIN,
    "what a dead process had is free when the driver says so",
)
def test_killed_processes(tenant: Tenant) -> Result:
    for _ in range(4):
        probe = tenant.program().start()
        probe.do(f"take alloc x {256 * MIB}")
        probe.tell(f"fill alloc {2 * MIB}")
        probe.kill()
    tenant.fill()
    return tenant.result()


@attack(
    "fork-and-clone",
    "allocates in children of fork, vfork and bare clone",
    NO_GAIN,
    "a child is a process of its own, with its own entry",
)
def test_children(tenant: Tenant) -> Result:
    for how in ("fork", "clone", "spawn"):
        probe = tenant.program()
        tenant.attempt(probe, f"{how} init; device 0; fill alloc {64 * MIB} 40")
        tenant.take_all(probe.start())
        probe.kill()
    return tenant.result()


@attack(
    "all-entries-taken",
    "holds all 1,024 process entries, so that a new process finds none",
    REFUSED,
    "a process without an entry gets no context",
)
def test_no_entry_left(tenant: Tenant) -> Result:
    tenant.program().start()
    path = tenant.container.state_path
    taken = range(1, file_layout.MAX_PROCESSES)
    tenants.write(path, STATE, slots_used=file_layout.MAX_PROCESSES)
    with nodes.held(path, *taken):
        probe = tenant.program()
        probe.do("init")
        answer = probe.ask("device 0")
        return tenant.result(refusal="" if answer.ok else answer.text)


# The state file, which every process of the container can write.


def used_up(tenant: Tenant) -> Probe:
    """Return a program that has all of the share."""
    probe = tenant.program().start()
    tenant.take_all(probe)
    return probe


@attack(
    "state-limit",
    "writes a larger limit into the state file",
    NO_GAIN,
    "the limit is taken from the policy; in the state it is only shown",
)
def test_a_forged_limit(tenant: Tenant) -> Result:
    probe = used_up(tenant)
    card = STATE.places["devices"][0]
    tenants.write(tenant.container.state_path, STATE_CARD, card, limit=64 * GIB)
    tenants.write(tenant.container.state_path, STATE, policy_generation=2**63)
    tenant.take_all(probe)
    tenant.fill()
    return tenant.result()


@attack(
    "state-cut",
    "truncates the state file under its processes",
    NO_GAIN,
    "a process whose state is gone ends or is refused",
)
def test_a_cut_state(tenant: Tenant) -> Result:
    probe = used_up(tenant)
    os.truncate(tenant.container.state_path, 4096)
    with contextlib.suppress(DiedError):
        tenant.take_all(probe)
    return tenant.result()


@attack(
    "state-zeroed",
    "sets all that is counted in the state file to nothing, and allocates again",
    REPORTED,
    "the driver's count is above the limit, whatever the file says",
)
def test_a_zeroed_state(tenant: Tenant) -> Result:
    probe = used_up(tenant)
    for _ in range(8):
        at = STATE.places["slots"][0] + PROCESS_ENTRY.places["usage"][0]
        tenants.write(
            tenant.container.state_path, PROCESS_USAGE, at, linear=0, overhead=0, pending=0
        )
        card = STATE.places["devices"][0]
        tenants.write(tenant.container.state_path, STATE_CARD, card, used=0)
        tenant.take_all(probe)
    return tenant.reported(probe)


@attack(
    "state-wraps",
    "forges an entry so large that the container's sum wraps around",
    NO_GAIN,
    "a sum that does not fit counts as full",
)
def test_a_state_that_wraps(tenant: Tenant) -> Result:
    used_up(tenant)
    path = tenant.container.state_path
    at = STATE.places["slots"][0] + PROCESS_ENTRY.size
    tenants.write(path, PROCESS_ENTRY, at, pid=99, status=1)
    usage = at + PROCESS_ENTRY.places["usage"][0]
    tenants.write(path, PROCESS_USAGE, usage, linear=2**64 - GIB)
    tenants.write(path, STATE, slots_used=2, writing=1)
    with nodes.held(path, 1):
        tenant.fill()
    return tenant.result()


@attack(
    "state-context-price",
    "writes that a context costs one byte, and makes several",
    NO_GAIN,
    "the agent's price in the policy file counts",
)
def test_a_forged_context_price(tenant: Tenant) -> Result:
    tenant.program().start()
    card = STATE.places["devices"][0]
    tenants.write(tenant.container.state_path, STATE_CARD, card, context_bytes=1)
    for _ in range(3):
        tenant.program().ask("init")
        tenant.fill()
    return tenant.result()


# What a library in the container cannot hold, and the monitor reports.


@attack(
    "static-binary",
    "runs a program into which nothing is preloaded",
    REPORTED,
    "the monitor compares NVML's processes with the container's",
)
def test_a_static_binary(tenant: Tenant) -> Result:
    probe = tenant.hidden().start()
    probe.do(f"take alloc x {2 * GIB}")
    return tenant.reported(probe)


@attack(
    "static-on-other-card",
    "runs a static program on a card that it was not given",
    REPORTED,
    "the monitor compares the cards of NVML's processes with the container's",
)
def test_a_static_binary_on_another_card(tenant: Tenant) -> Result:
    probe = tenant.hidden().start(1)
    probe.do(f"take alloc x {GIB}")
    return tenant.reported(probe)


@attack(
    "no-request",
    "uses a card in a pod that asked for none",
    REPORTED,
    "every process that NVML shows must be in a container with a share of that card",
)
def test_a_pod_without_a_request(tenant: Tenant) -> Result:
    probe = tenant.hidden().start()
    probe.do(f"take alloc x {2 * GIB}")
    return tenant.reported(probe, shares=False)


@attack(
    "direct-ioctl",
    "talks to the driver past the library, in a process that has an entry",
    REPORTED,
    "NVML's count of the process is above the limit",
)
def test_the_driver_by_address(tenant: Tenant) -> Result:
    probe = past(tenant, "address", 2 * GIB)
    assert probe.hear().text == "ok 0 0 0 0"
    return tenant.reported(probe)


@attack(
    "driver-preloaded",
    "names the driver in LD_PRELOAD, so that programs are linked to it and not to the library",
    REPORTED,
    "the monitor compares NVML's processes with the container's",
)
def test_a_preloaded_driver(tenant: Tenant) -> Result:
    env = tenant.container.environment()
    driver = Path(env["LD_LIBRARY_PATH"]) / "libcuda.so.1"
    names = {"LD_PRELOAD": f"{driver} {env['LD_PRELOAD']}"}
    probe = tenant.program(program="probe-linked", names=names).start()
    probe.do(f"take alloc x {2 * GIB}")
    return tenant.reported(probe)


@attack(
    "driver-renamed",
    "loads a copy of the driver that has another name for itself",
    REPORTED,
    "the monitor compares NVML's processes with the container's",
)
def test_a_renamed_driver(tenant: Tenant) -> Result:
    probe = past(tenant, "renamed", 2 * GIB)
    assert probe.hear().text == "ok 0 0 0 0"
    return tenant.reported(probe)


@attack(
    "static-with-entry",
    "runs a static program that forges a process entry for itself",
    REPORTED,
    "an entry hides the process, but not what it has",
)
def test_a_static_binary_with_an_entry(tenant: Tenant) -> Result:
    probe = tenant.hidden().start()
    probe.do(f"take alloc x {2 * GIB}")
    path = tenant.container.state_path
    card = tenant.container.node.cards[0].uuid
    path.write_bytes(nodes.state([card], nodes.entry(probe.pid, nodes.usage(linear=MIB))))
    with nodes.held(path, 0):
        return tenant.reported(probe)


@needs_mounts
@attack(
    "unshare",
    "covers /etc/ld.so.preload in a mount namespace of its own",
    REPORTED,
    "a process cannot leave its control group, by which the monitor knows it",
)
def test_another_mount_namespace(tenant: Tenant) -> Result:
    empty = tenant.folder / "empty"
    empty.touch()
    cover = f'mount --bind "{empty}" /etc/ld.so.preload && exec "$@"'
    again = ("unshare", "--map-root-user", "--mount", "sh", "-c", cover, "sh")
    probe = tenant.program(names={"LD_PRELOAD": ""}, before=(*tenant.preloaded(), *again)).start()
    probe.do(f"take alloc x {2 * GIB}")
    return tenant.reported(probe)


@needs_mounts
@attack(
    "chroot",
    "changes its root to a folder without /etc/ld.so.preload",
    REPORTED,
    "a process cannot leave its control group, by which the monitor knows it",
)
def test_another_root(tenant: Tenant) -> Result:
    root = tenant.folder / "root"
    root.mkdir()
    change = (
        f'mount --rbind / "{root}" && mount -t tmpfs none "{root}/etc" && exec chroot "{root}" "$@"'
    )
    again = ("sh", "-c", change, "sh")
    probe = tenant.program(names={"LD_PRELOAD": ""}, before=(*tenant.preloaded(), *again)).start()
    probe.do(f"take alloc x {2 * GIB}")
    return tenant.reported(probe)


@needs_mounts
@attack(
    "preload-symlink",
    "brings an image whose /etc/ld.so.preload is a symlink, and removes it",
    REPORTED,
    "the monitor compares NVML's processes with the container's",
)
def test_a_symlink_in_the_image(tenant: Tenant) -> Result:
    target = tenant.folder / "target"
    plant = f'mount -t tmpfs none /etc && touch "{target}" && ln -s "{target}" /etc/ld.so.preload'
    mount = f'echo "{tenant.container.library}" > "{target}"'
    script = f'{plant} && {mount} && rm /etc/ld.so.preload && exec "$@"'
    before = (*tenants.MOUNTS, "sh", "-c", script, "sh")
    probe = tenant.program(names={"LD_PRELOAD": ""}, before=before).start()
    probe.do(f"take alloc x {2 * GIB}")
    return tenant.reported(probe)
