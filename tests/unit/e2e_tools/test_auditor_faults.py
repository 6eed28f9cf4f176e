"""Every kind of finding: a fault in a clean cluster is found, and only it."""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.auditor import auditing, node_annotations, pod_annotations
from tests.e2e.auditor.evidence import Held, LedgerFile, Listed, TokenThing, Unreadable
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.layouts import BARE, HAMI
from tests.unit.e2e_tools import auditor_sample as sample
from tests.unit.e2e_tools.auditor_sample import (
    BARE_UID,
    GPU,
    MIB,
    NODE,
    TRAIN_UID,
    Draft,
    container,
    grant,
    pod,
)

Fault = Callable[[Draft], None]
TRAIN_CARD = ("GPU-0", 2000 * MIB, 30)


def simple(uid: str, devices: str, **options: Any) -> dict[str, Any]:
    return pod(uid, container(limits={GPU: "1"}), devices=f"{devices};", **options)


def add(*grants: str, gone: bool = False) -> Fault:
    """Add pods with these grants on one more card; with `gone`, only to the timeline."""

    def fault(draft: Draft) -> None:
        cards = [sample.card(name) for name in ("GPU-0", "GPU-1", "GPU-2")]
        draft.nodes[NODE] = sample.node(NODE, *cards)
        draft.see("MODIFIED", draft.nodes[NODE])
        pods = [simple(f"uid-{number}", one) for number, one in enumerate(grants)]
        for one in pods:
            if gone:
                draft.see("ADDED", one)
            else:
                draft.add(one)
        for one in pods if gone else ():
            draft.see("DELETED", one, 3.0)

    return fault


def node_text(key: str, value: str, node: str = NODE) -> Fault:
    def fault(draft: Draft) -> None:
        draft.nodes[node]["metadata"]["annotations"][key] = value

    return fault


def pod_text(key: str, value: str | None, name: str = "train") -> Fault:
    def fault(draft: Draft) -> None:
        if value is None:
            del draft.annotations(name)[key]
        else:
            draft.annotations(name)[key] = value

    return fault


def granted(devices: str, **options: Any) -> Fault:
    """Add a pod of one container with this device list."""

    def fault(draft: Draft) -> None:
        draft.add(pod("uid-x", container(limits={GPU: "1"}), devices=devices, **options))

    return fault


def peak(*arguments: Any, **options: Any) -> Fault:
    def fault(draft: Draft) -> None:
        draft.peaks += sample.peak(*arguments, **options)

    return fault


def lock(value: str, *, quiet: bool = False, **status: str) -> Fault:
    def fault(draft: Draft) -> None:
        draft.nodes[NODE]["metadata"]["annotations"]["hami.io/mutex.lock"] = value
        draft.quiet = quiet
        draft.pods["train"]["status"].update(status)

    return fault


def edit_policy(**changes: Any) -> Fault:
    def fault(draft: Draft) -> None:
        policy = json.loads(draft.folders["b1"].content or b"")
        content = json.dumps({**policy, **changes}).encode()
        draft.folders["b1"] = dataclasses.replace(draft.folders["b1"], content=content)

    return fault


def hami_policy(*cards: tuple[str, int, int], **owner: str) -> Fault:
    """Give the pod of hami's a well-formed policy that says this."""
    return content("folders", "t1", sample.policy(*cards, **owner))


def edit_env(token: str, name: str, value: str) -> Fault:
    def fault(draft: Draft) -> None:
        spec = json.loads(draft.specs[token].content or b"")
        edits = spec["devices"][0]["containerEdits"]
        kept = [one for one in edits["env"] if not one.startswith(f"{name}=")]
        edits["env"] = [*kept, f"{name}={value}"]
        content = json.dumps(spec).encode()
        draft.specs[token] = dataclasses.replace(draft.specs[token], content=content)

    return fault


def content(where: str, token: str, text: bytes) -> Fault:
    def fault(draft: Draft) -> None:
        things = getattr(draft, where)
        things[token] = dataclasses.replace(things[token], content=text)

    return fault


def answer(token: str, **env: str) -> Fault:
    """Let the pod of hami's be on a node without CDI: all that it was told stands in the answer."""

    def fault(draft: Draft) -> None:
        draft.checkpoint[0] = dataclasses.replace(
            draft.checkpoint[0],
            cdi_devices=(),
            annotations={"hami.io/vgpu-token": token},
            env=env,
        )
        del draft.specs["t1"]
        draft.folders[token] = dataclasses.replace(draft.folders.pop("t1"), token=token)
        draft.states[:] = [dataclasses.replace(draft.states[0], token=token)]

    return fault


def unowned(where: str) -> Fault:
    def fault(draft: Draft) -> None:
        spec = sample.spec("hami.io/vgpu", "lost", NVIDIA_VISIBLE_DEVICES="a")
        thing = TokenThing(HAMI, "lost", "/lost", spec if where == "specs" else None)
        things = getattr(draft, where)
        if isinstance(things, dict):
            things["lost"] = thing
        else:
            things.append(thing)

    return fault


def of_a_gone_pod(draft: Draft) -> None:
    # The checkpoint still names its token, the API has the pod no more.
    draft.folders["gone"] = TokenThing(HAMI, "gone", f"{HAMI.tokens}/gone")


def of_another_nodes_pod(draft: Draft) -> None:
    draft.pods["bare"]["spec"]["nodeName"] = "node-2"
    del draft.specs["b1"]
    draft.pods["bare"]["status"]["containerStatuses"] = []


def ledger(text: bytes) -> Fault:
    def fault(draft: Draft) -> None:
        draft.ledger.append(LedgerFile(HAMI, "/var/lib/hami/ledger/b", text))

    return fault


def second_entry(**changes: Any) -> Fault:
    """Add an entry for the pod `multi` to the checkpoint that names what `train` has."""

    def fault(draft: Draft) -> None:
        values: dict[str, Any] = {
            "pod_uid": sample.MULTI_UID,
            "container": "sidecar",
            "resource": GPU,
            "device_ids": frozenset({"GPU-9-9"}),
        }
        draft.checkpoint.append(Held(**{**values, **changes}))
        entry = draft.checkpoint[-1]
        draft.pod_resources.append(
            Listed(
                namespace="team",
                pod="multi",
                container=entry.container,
                resource=entry.resource,
                device_ids=entry.device_ids,
            )
        )

    return fault


def rewritten(draft: Draft) -> None:
    later = copy.deepcopy(draft.pods["train"])
    later["metadata"]["annotations"][pod_annotations.ALLOCATED] = f"{grant('GPU-0', 1, 1)};"
    draft.see("MODIFIED", later)


def given_later(draft: Draft) -> None:
    later = copy.deepcopy(draft.pods["bare"])
    later["metadata"]["annotations"][pod_annotations.ALLOCATED] = f"{grant('GPU-0', 1, 1)};"
    draft.see("MODIFIED", later)


def shrunk_card(draft: Draft) -> None:
    # It loses memory under its pods, and later has it again.
    whole = copy.deepcopy(draft.nodes[NODE])
    small = sample.node(NODE, sample.card("GPU-0", devmem=2799), sample.card("GPU-1"))
    draft.see("MODIFIED", small)
    draft.see("MODIFIED", whole)


def missing(where: str) -> Fault:
    def fault(draft: Draft) -> None:
        del getattr(draft, where)["b1"]

    return fault


def asks(**limits: str) -> Fault:
    def fault(draft: Draft) -> None:
        draft.pods["train"]["spec"]["containers"][0]["resources"]["limits"] = limits

    return fault


def one_init_of_two_ended(draft: Draft) -> None:
    add()(draft)
    one = pod(
        "uid-x",
        container("main", limits={GPU: "1"}),
        init=(container("a", limits={GPU: "1"}), container("b", limits={GPU: "1"})),
        devices=f"{grant('GPU-2', 1, 0)};{grant('GPU-2', 8000, 0)};{grant('GPU-2', 1, 0)};",
    )
    one["status"]["initContainerStatuses"].pop()
    draft.add(one)
    draft.add(simple("uid-y", grant("GPU-2", 1, 0)))


def still_going(draft: Draft) -> None:
    # Who is being deleted holds its card until it is gone.
    add(grant("GPU-2", 8000, 0), grant("GPU-2", 1, 0))(draft)
    draft.pods["0"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"


def gone_above_its_limit(draft: Draft) -> None:
    one = simple("uid-past", grant("GPU-0", 1000, 10))
    draft.see("ADDED", one)
    draft.see("DELETED", one)
    draft.peaks += sample.peak("GPU-0", "uid-past/main", 3, 1000 * MIB + 1)


def locked_by_an_ended_pod(draft: Draft) -> None:
    draft.add(simple("uid-x", grant("GPU-0", 1, 1), phase="Failed"))
    lock("2026-01-01T00:00:00Z,team,x")(draft)


def running_init_without_end(draft: Draft) -> None:
    # Until it has ended it holds what it was given.
    draft.pods["multi"]["status"]["initContainerStatuses"] = []
    draft.add(simple("uid-x", grant("GPU-1", 1001, 0)))


MAC = pod_annotations.mac(
    sample.KEY, uid=TRAIN_UID, node=NODE, devices=f"{grant('GPU-0', 2000, 30)};"
)
OTHER_MAC = pod_annotations.mac(
    bytes(32), uid=TRAIN_UID, node=NODE, devices=f"{grant('GPU-0', 2000, 30)};"
)
UNREADABLE: dict[str, Any] = {"unreadable": (Unreadable("/x", "Permission denied"),)}

FAULTS: list[tuple[Kind, str, Fault]] = [
    (Kind.CARD_COUNT, "five pods, four slots", add(*[grant("GPU-2", 1, 0)] * 5)),
    (Kind.CARD_MEMORY, "one MiB", add(grant("GPU-2", 8000, 1), grant("GPU-2", 1, 1))),
    (Kind.CARD_MEMORY, "an init container that runs", running_init_without_end),
    (Kind.CARD_MEMORY, "one init container of two ended", one_init_of_two_ended),
    (Kind.CARD_MEMORY, "a pod that is being deleted", still_going),
    (Kind.CARD_CORES, "one percent", add(grant("GPU-2", 1, 99), grant("GPU-2", 1, 2))),
    (Kind.CARD_EXCLUSIVE, "a whole card", add(grant("GPU-2", 1, 100), grant("GPU-2", 1, 0))),
    (Kind.PEAK_COUNT, "for a moment", add(*[grant("GPU-2", 1, 0)] * 5, gone=True)),
    (
        Kind.PEAK_MEMORY,
        "for a moment",
        add(grant("GPU-2", 8000, 1), grant("GPU-2", 1, 1), gone=True),
    ),
    (Kind.PEAK_MEMORY, "a card that shrank", shrunk_card),
    (Kind.PEAK_CORES, "for a moment", add(*[grant("GPU-2", 1, 51)] * 2, gone=True)),
    (
        Kind.PEAK_EXCLUSIVE,
        "for a moment",
        add(grant("GPU-2", 1, 100), grant("GPU-2", 1, 0), gone=True),
    ),
    (Kind.DRIVER_CARD, "all together", peak("GPU-0", "", 0, 8000 * MIB + 1)),
    (Kind.DRIVER_CARD, "a process of nobody", peak("GPU-0", "", 9, 8000 * MIB + 1)),
    (Kind.DRIVER_LIMIT, "a container", peak("GPU-0", f"{TRAIN_UID}/main", 0, 2000 * MIB + 1)),
    (Kind.DRIVER_LIMIT, "a process", peak("GPU-0", f"{TRAIN_UID}/main", 7, 2000 * MIB + 1)),
    (Kind.DRIVER_LIMIT, "a pod that is gone", gone_above_its_limit),
    (Kind.DRIVER_NO_GRANT, "another card", peak("GPU-1", f"{TRAIN_UID}/main", 7, 1)),
    (Kind.DRIVER_NO_GRANT, "no grant at all", peak("GPU-0", f"{BARE_UID}/main", 7, 1)),
    (Kind.DRIVER_RECORD, "no total", lambda draft: setattr(draft, "peaks", "{}\n")),
    (Kind.NODE_ANNOTATION, "register", node_text("hami.io/node-register-x", "[{", "node-2")),
    (Kind.NODE_ANNOTATION, "colon register", node_text("hami.io/node-x-register", "a,1:")),
    (Kind.NODE_ANNOTATION, "handshake", node_text("hami.io/node-handshake-x", "Requesting_now")),
    (Kind.NODE_ANNOTATION, "lock", node_text("hami.io/mutex.lock", "a,b")),
    (Kind.NODE_ANNOTATION, "score", node_text(node_annotations.NVIDIA_SCORE, "{}")),
    (
        Kind.NODE_ANNOTATION,
        "score of an unknown card",
        node_text(node_annotations.NVIDIA_SCORE, '[{"uuid":"GPU-7","score":{}}]'),
    ),
    (Kind.NODE_ANNOTATION, "mark", node_text(node_annotations.BINDING_MARK, "late")),
    (Kind.NODE_ANNOTATION, "lock reason", node_text(node_annotations.LOCK_REASON, " ", "node-2")),
    (Kind.BINDING_MARK, "lock", node_text(node_annotations.LOCK_REASON, "no CDI")),
    (Kind.BINDING_MARK, "other", node_text(node_annotations.BINDING_MARK, f"late,{'0' * 16}")),
    (
        Kind.BINDING_MARK,
        "no register",
        node_text(node_annotations.BINDING_MARK, f"late,{'0' * 16}", "node-2"),
    ),
    (Kind.POD_ANNOTATION, "rest", pod_text(pod_annotations.TO_ALLOCATE, "x;")),
    (Kind.POD_ANNOTATION, "other vendor", pod_text("hami.io/dcu-devices-allocated", "a,b:;")),
    (Kind.POD_ANNOTATION, "time", pod_text("hami.io/bind-time", "now")),
    (Kind.POD_ANNOTATION, "phase", pod_text("hami.io/bind-phase", "done")),
    (Kind.POD_ANNOTATION, "MIG", pod_text(pod_annotations.MIG, "[{}]", "bare")),
    (
        Kind.POD_ANNOTATION,
        "node of an ended pod",
        granted(";", phase="Failed", annotations={pod_annotations.NODE: "No_1"}),
    ),
    (Kind.GRANT_CARD, "unknown card", granted(f"{grant('GPU-7', 1, 1)};")),
    (Kind.GRANT_CARD, "no cards", granted(f"{grant('GPU-0', 1, 1)};", where="node-2")),
    (Kind.GRANT_AMOUNT, "memory", granted(f"{grant('GPU-0', 8001, 1)};", where=None)),
    (Kind.GRANT_SLOTS, "too many", granted(f"{grant('GPU-0', 1, 1)};;")),
    (
        Kind.GRANT_SLOTS,
        "too few, signed",
        lambda draft: draft.add(
            pod("uid-x", container(limits={GPU: "1"}), container("b"), devices="GPU-0,NVIDIA,1,1:;")
        ),
    ),
    (Kind.GRANT_ASK, "count", asks(**{GPU: "2"})),
    (Kind.GRANT_ASK, "none", asks()),
    (Kind.GRANT_ASK, "memory", asks(**{GPU: "1", sample.MEMORY: "1k"})),
    (Kind.GRANT_ASK, "percentage", asks(**{GPU: "1", sample.PERCENTAGE: "24"})),
    (Kind.GRANT_ASK, "cores", asks(**{GPU: "1", sample.CORES: "31"})),
    (Kind.GRANT_NODE, "annotation", pod_text(pod_annotations.NODE, "node-2")),
    (Kind.GRANT_NODE, "none", pod_text(pod_annotations.NODE, None)),
    (
        Kind.GRANT_NODE,
        "label",
        lambda draft: draft.pods["train"]["metadata"].update(labels={pod_annotations.NODE: "x"}),
    ),
    (
        Kind.GRANT_REST,
        "other amount",
        pod_text(pod_annotations.TO_ALLOCATE, f"{grant('GPU-0', 2001, 30)};"),
    ),
    (Kind.GRANT_REST, "other slot", pod_text(pod_annotations.TO_ALLOCATE, ";GPU-0,NVIDIA,1,1:;")),
    (Kind.GRANT_MAC, "shape", pod_text(pod_annotations.MAC, "v1:x:y")),
    (Kind.GRANT_MAC, "another key", pod_text(pod_annotations.MAC, OTHER_MAC)),
    (Kind.GRANT_MAC, "another pod's", pod_text(pod_annotations.MAC, MAC, "multi")),
    (Kind.GRANT_MAC, "missing", pod_text(pod_annotations.MAC, None)),
    (Kind.GRANT_MAC, "for nothing", pod_text(pod_annotations.MAC, MAC, "bare")),
    (
        Kind.GRANT_UNBOUND,
        "signed",
        granted(f"{grant('GPU-0', 1, 1)};", where=None, annotations={pod_annotations.MAC: MAC}),
    ),
    (Kind.GRANT_REWRITTEN, "other", rewritten),
    (Kind.GRANT_REWRITTEN, "from nothing", given_later),
    (Kind.LOCK_LEFT, "no pod", lock("2026-01-01T00:00:00Z,team,nobody")),
    (Kind.LOCK_LEFT, "ended", locked_by_an_ended_pod),
    (Kind.LOCK_LEFT, "done", lock("2026-01-01T00:00:00Z,team,train")),
    (Kind.LOCK_LEFT, "quiet", lock("2026-01-01T00:00:00Z,team,bare", quiet=True)),
    (Kind.LOCK_LEFT, "quiet, old form", lock("2026-01-01T00:00:00Z", quiet=True)),
    (
        Kind.LOCK_LEFT,
        "another node",
        node_text("hami.io/mutex.lock", "2026-01-01T00:00:00Z,team,bare", "node-2"),
    ),
    (Kind.PHASE_STUCK, "running", pod_text("hami.io/bind-phase", "allocating")),
    (Kind.SPEC_LEFT, "nobody's", unowned("specs")),
    (Kind.FOLDER_LEFT, "nobody's", unowned("folders")),
    (Kind.FOLDER_LEFT, "gone", of_a_gone_pod),
    (Kind.FOLDER_LEFT, "another node", of_another_nodes_pod),
    (Kind.STATE_LEFT, "nobody's", unowned("states")),
    (Kind.LEDGER_LEFT, "gone", ledger(b'{"uid": "uid-gone"}')),
    (Kind.SPEC_MALFORMED, "no JSON", content("specs", "b1", b"{")),
    (Kind.SPEC_MALFORMED, "another's", content("specs", "b1", sample.spec(BARE.cdi_kind, "b2"))),
    (Kind.SPEC_MALFORMED, "kind", content("specs", "b1", sample.spec("x/y", "b1"))),
    (Kind.SPEC_MALFORMED, "void", content("specs", "t1", sample.spec(HAMI.cdi_kind, "t1"))),
    (Kind.SPEC_OWNER, "pod", edit_env("b1", "BARE_POD_UID", TRAIN_UID)),
    (Kind.SPEC_OWNER, "container", edit_env("b1", "BARE_CONTAINER", "other")),
    (Kind.SPEC_LIMITS, "ids", edit_env("b1", "NVIDIA_VISIBLE_DEVICES", "GPU-vgpu-001")),
    (Kind.SPEC_LIMITS, "cards", edit_env("t1", "NVIDIA_VISIBLE_DEVICES", "GPU-1")),
    (Kind.SPEC_LIMITS, "memory", edit_env("t1", "CUDA_DEVICE_MEMORY_LIMIT_0", "2001m")),
    (Kind.SPEC_LIMITS, "cores", edit_env("t1", "CUDA_DEVICE_SM_LIMIT", "31")),
    (Kind.POLICY_MALFORMED, "no JSON", content("folders", "b1", b"")),
    (Kind.POLICY_MALFORMED, "no uid", edit_policy(uid="")),
    (Kind.POLICY_OWNER, "uid", edit_policy(uid=TRAIN_UID)),
    (Kind.POLICY_OWNER, "pod", edit_policy(pod="team/train")),
    (Kind.POLICY_OWNER, "container", edit_policy(container="other")),
    (Kind.POLICY_MALFORMED, "hami's", content("folders", "t1", b"")),
    (Kind.POLICY_OWNER, "hami's uid", hami_policy(TRAIN_CARD, uid=BARE_UID)),
    (Kind.POLICY_OWNER, "hami's pod", hami_policy(TRAIN_CARD, pod="team/bare")),
    (Kind.POLICY_OWNER, "hami's container", hami_policy(TRAIN_CARD, container="other")),
    (Kind.POLICY_LIMITS, "hami's card", hami_policy(("GPU-1", 2000 * MIB, 30))),
    (Kind.POLICY_LIMITS, "hami's second card", hami_policy(TRAIN_CARD, ("GPU-1", 0, 0))),
    (Kind.POLICY_LIMITS, "hami's memory", hami_policy(("GPU-0", 2001 * MIB, 30))),
    (Kind.POLICY_LIMITS, "hami's no memory limit", hami_policy(("GPU-0", 0, 30))),
    (Kind.POLICY_LIMITS, "hami's cores", hami_policy(("GPU-0", 2000 * MIB, 31))),
    (Kind.POLICY_LIMITS, "hami's no limit of cores", hami_policy(("GPU-0", 2000 * MIB, 100))),
    (Kind.POLICY_LIMITS, "devices", edit_policy(devices=["vgpu-001"])),
    (Kind.POLICY_LIMITS, "no devices", edit_policy(devices=[])),
    (Kind.ANSWER_LIMITS, "card", answer("t2", NVIDIA_VISIBLE_DEVICES="GPU-1")),
    (Kind.ANSWER_LIMITS, "void", answer("t2", CUDA_DEVICE_MEMORY_LIMIT_0="2000m")),
    (
        Kind.ANSWER_LIMITS,
        "memory",
        answer("t2", NVIDIA_VISIBLE_DEVICES="GPU-0", CUDA_DEVICE_MEMORY_LIMIT_0="2001m"),
    ),
    (Kind.TOKEN_MISSING, "state", lambda draft: draft.states.clear()),
    (Kind.TOKEN_MISSING, "spec", missing("specs")),
    (Kind.TOKEN_MISSING, "folder", missing("folders")),
    (Kind.TOKEN_TWICE, "device", second_entry(cdi_devices=("hami.io/vgpu=t1",))),
    (
        Kind.TOKEN_TWICE,
        "annotation",
        second_entry(annotations={"hami.io/vgpu-token": "t1"}, cdi_devices=("hami.io/vgpu=t1",)),
    ),
    (Kind.TOKEN_TWICE, "state", second_entry(mounts=(f"{HAMI.states}/t1/state",))),
    (Kind.TOKEN_TWICE, "mount", second_entry(mounts=(f"{HAMI.tokens}/t1/policy",))),
    (Kind.DEVICE_TWICE, "two pods", second_entry(device_ids=frozenset({"GPU-0-0"}))),
    (Kind.RESOURCES_DIFFER, "none", lambda draft: draft.pod_resources.clear()),
    (Kind.UNREADABLE, "folder", lambda draft: draft.extra.update(UNREADABLE)),
    (Kind.UNREADABLE, "timeline", lambda draft: draft.timeline.append("x\n")),
    (Kind.UNREADABLE, "ledger", ledger(b"")),
]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(kind, fault) for kind, _, fault in FAULTS],
    ids=[f"{kind}: {name}" for kind, name, _ in FAULTS],
)
def test_exactly_the_fault_is_found(kind: Kind, fault: Fault) -> None:
    draft = sample.clean()
    fault(draft)
    found = auditing.audit(draft.evidence())
    assert {finding.kind for finding in found} == {kind}, "\n".join(map(str, found))


def test_every_kind_has_a_fault() -> None:
    assert {kind for kind, _, _ in FAULTS} == set(Kind)


def test_devices_shared_within_a_pod_are_found_unless_one_ends_before_the_other() -> None:
    """A sidecar stays beside the init containers after it."""
    sidecar = {**container("side"), "restartPolicy": "Always"}
    for names, wrong in (
        (("main", "more"), True),
        (("side", "main"), True),
        (("side", "late"), True),
        (("early", "side"), False),
        (("early", "late"), False),
        (("late", "main"), False),
        (("main", "unknown"), True),
    ):
        draft = sample.clean()
        draft.add(
            pod(
                "uid-x",
                container("main"),
                container("more"),
                init=(container("early"), sidecar, container("late")),
                phase="Pending",
            )
        )
        for one in draft.pods["x"]["status"].values():
            if isinstance(one, list):
                one.clear()
        for name in names:
            draft.checkpoint.append(sample.held("uid-x", name, "r", "d", "other/kind=1"))
        kinds = {finding.kind for finding in auditing.audit(draft.evidence())}
        assert kinds == ({Kind.DEVICE_TWICE} if wrong else set()), names


def test_a_finding_says_value_rule_and_where_it_was_read() -> None:
    draft = sample.clean()
    add(grant("GPU-2", 8000, 1), grant("GPU-2", 1, 1))(draft)
    (found,) = auditing.audit(draft.evidence())
    assert str(found) == (
        "card-memory card GPU-2 of node node-1: 8001 MiB held, the card registers 8000: "
        "team/0 8000, team/1 1 (grants of live pods in the API)"
    )


def test_a_moment_is_found_with_its_time_and_its_pods() -> None:
    draft = sample.clean()
    add(grant("GPU-2", 8000, 1), grant("GPU-2", 1, 1), gone=True)(draft)
    (found,) = auditing.audit(draft.evidence())
    assert found.what == (
        "8001 MiB held, the card registers 8000: team/0 8000, team/1 1 (timeline at 2.000)"
    )


def test_of_several_moments_the_worst_is_told() -> None:
    draft = sample.clean()
    add(*[grant("GPU-2", 5000, 1)] * 3, gone=True)(draft)
    (found,) = auditing.audit(draft.evidence())
    assert found.what.startswith("15000 MiB held")


def test_a_grant_that_was_rewritten_still_counts_as_it_was_bound() -> None:
    draft = sample.clean()
    add(grant("GPU-2", 8000, 1))(draft)
    first = simple("uid-0", grant("GPU-2", 8000, 1))
    draft.see("ADDED", first)
    smaller = copy.deepcopy(first)
    smaller["metadata"]["annotations"][pod_annotations.ALLOCATED] = f"{grant('GPU-2', 1, 1)};"
    draft.see("MODIFIED", smaller)
    draft.see("ADDED", simple("uid-9", grant("GPU-2", 1, 1)))
    kinds = {finding.kind for finding in auditing.audit(draft.evidence())}
    assert kinds == {Kind.GRANT_REWRITTEN, Kind.PEAK_MEMORY}


def test_the_same_evidence_gives_the_same_findings_in_the_same_order() -> None:
    draft = sample.clean()
    for _, _, fault in FAULTS[:8]:
        fault(draft)
    assert auditing.audit(draft.evidence()) == auditing.audit(draft.evidence())
