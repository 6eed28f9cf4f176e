"""Clusters without findings: no fault, and everything odd that is legal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.auditor import auditing, node_annotations, pod_annotations
from tests.e2e.auditor.evidence import Evidence, Held, Listed, TokenThing
from tests.e2e.auditor.layouts import BARE, HAMI
from tests.unit.e2e_tools import auditor_sample as sample
from tests.unit.e2e_tools.auditor_sample import GPU, MIB, NODE, Draft, container, grant, pod


def test_a_cluster_without_fault_has_no_finding() -> None:
    assert auditing.audit(sample.clean().evidence()) == []


def test_an_empty_cluster_has_no_finding() -> None:
    assert auditing.audit(Evidence()) == []


def _init_peak(draft: Draft) -> None:
    # Init containers run alone: 7000, then 6000, then 5000 with 1000 fit into 8000.
    _third_card(draft)
    waiting = pod(
        "uid-init",
        container("main", limits={GPU: "1"}),
        container("other", limits={GPU: "1"}),
        init=(container("one", limits={GPU: "1"}), container("two", limits={GPU: "1"})),
        devices=";".join(grant("GPU-2", memory, 50) for memory in (7000, 6000, 5000, 1000)) + ";",
        phase="Pending",
    )
    waiting["status"] = {"phase": "Pending"}
    draft.add(waiting)
    draft.see("ADDED", waiting)


def _sidecar_and_init(draft: Draft) -> None:
    # A sidecar of 1000 stays beside an init container of 7000 and an app of 7000.
    sidecar = {**container("sidecar", limits={GPU: "1"}), "restartPolicy": "Always"}
    one = pod(
        "uid-side",
        container("main", limits={GPU: "1"}),
        init=(sidecar, container("init", limits={GPU: "1"})),
        devices=f"{grant('GPU-2', 1000, 10)};" + f"{grant('GPU-2', 7000, 90)};" * 2,
    )
    one["status"] = {"phase": "Pending"}
    _third_card(draft)
    draft.add(one)
    draft.see("ADDED", one)


def _ended_init(draft: Draft) -> None:
    # What an ended init container held, another pod may hold.
    _third_card(draft)
    first = pod(
        "uid-first",
        container("main", limits={GPU: "1"}),
        init=(container("init", limits={GPU: "1"}),),
        devices=f"{grant('GPU-2', 8000, 100)};{grant('GPU-2', 1000, 10)};",
    )
    second = _simple("uid-second", grant("GPU-2", 7000, 90))
    for one in (first, second):
        draft.add(one)
        draft.see("ADDED", one)


def _third_card(draft: Draft) -> None:
    # Give node-1 a card that nobody has.
    node = sample.node(NODE, sample.card("GPU-0"), sample.card("GPU-1"), sample.card("GPU-2"))
    draft.nodes[NODE] = node
    draft.see("MODIFIED", node)


def _simple(uid: str, devices: str, **options: Any) -> dict[str, Any]:
    count = str(devices.count(":"))
    return pod(uid, container(limits={GPU: count}), devices=f"{devices};", **options)


def _finished(draft: Draft) -> None:
    # Finished pods hold nothing, and their cards may be others by now; so may their tokens.
    for number, phase in enumerate(("Succeeded", "Failed")):
        done = _simple(f"uid-done{number}", grant("GPU-9", 8000, 100), phase=phase)
        draft.add(done)
        draft.see("ADDED", done)
    done = _simple("uid-done9", grant("GPU-0", 8000, 100), phase="Succeeded")
    draft.add(done)
    draft.see("ADDED", done)
    draft.checkpoint.append(sample.held("uid-done9", "main", GPU, "GPU-0-0", "hami.io/vgpu=t9"))
    policy = sample.policy(("GPU-0", 8000 * MIB, 100), uid="uid-done9", pod="team/done9")
    draft.folders["t9"] = TokenThing(HAMI, "t9", f"{HAMI.tokens}/t9", policy)


def _terminating(draft: Draft) -> None:
    # A pod that is being deleted keeps its card, its lock is another's, its files may go.
    going = draft.pods["train"]
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    del draft.specs["t1"], draft.folders["t1"]
    draft.see("MODIFIED", going)


def _without_cdi(draft: Draft) -> None:
    # The runtime knows no CDI: there is no spec, the answer itself has all of it.
    draft.checkpoint[0] = dataclasses.replace(
        draft.checkpoint[0],
        cdi_devices=(),
        mounts=(f"{HAMI.tokens}/t1", f"{HAMI.states}/t1/state"),
        annotations={"hami.io/vgpu-token": "t1"},
        env={
            "NVIDIA_VISIBLE_DEVICES": "GPU-0",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "2000m",
            "CUDA_DEVICE_SM_LIMIT": "30",
        },
    )
    del draft.specs["t1"]
    kept = draft.nodes[NODE]["metadata"]["annotations"]
    del kept[node_annotations.BINDING_MARK]
    kept[node_annotations.LOCK_REASON] = "containerd 1.6 does not say that it knows CDI"


def _whole_card_runs(draft: Draft) -> None:
    # There is nothing to limit, so nothing is in the container but the card.
    _whole_card(draft)
    draft.checkpoint.append(sample.held("uid-whole", "main", GPU, "GPU-2-0", "hami.io/vgpu=t8"))
    draft.pod_resources.append(sample.listed("whole", GPU, "GPU-2-0"))
    draft.specs["t8"] = sample.thing(
        "t8", sample.spec("hami.io/vgpu", "t8", NVIDIA_VISIBLE_DEVICES="GPU-2")
    )


def _whole_card_runs_without_cdi(draft: Draft) -> None:
    _whole_card_runs(draft)
    draft.checkpoint[-1] = dataclasses.replace(
        draft.checkpoint[-1],
        cdi_devices=(),
        annotations={"hami.io/vgpu-token": "t8"},
        env={"NVIDIA_VISIBLE_DEVICES": "GPU-2"},
    )
    del draft.specs["t8"]


def _whole_card(draft: Draft) -> None:
    _third_card(draft)
    whole = _simple("uid-whole", grant("GPU-2", 8000, 100))
    draft.add(whole)
    draft.see("ADDED", whole)


def _percentage(draft: Draft) -> None:
    # 33 % of 8000 MiB is 2640 of them; cores above 100 count as 100.
    _third_card(draft)
    ask = {GPU: "1", sample.PERCENTAGE: "33", sample.CORES: "120"}
    draft.add(pod("uid-part", container(limits=ask), devices=f"{grant('GPU-2', 2640, 100)};"))


def _migrating_card(draft: Draft) -> None:
    # MIG cards are not counted yet: one container may have several slices of a card.
    draft.nodes[NODE] = sample.node(
        NODE, sample.card("GPU-0"), sample.card("GPU-1"), sample.card("GPU-M", mode="mig", count=1)
    )
    slices = [
        {
            "containerIndex": 0,
            "deviceIndex": index,
            "gpuUUID": "GPU-M",
            "profile": "2g.10gb",
            "placement": {"start": 2 * index, "size": 2},
        }
        for index in range(2)
    ]
    draft.add(
        _simple(
            "uid-mig",
            grant("GPU-M", 9984, 30) * 2,
            annotations={pod_annotations.MIG: json.dumps(slices)},
        )
    )


def _annotated_but_unbound(draft: Draft) -> None:
    # HAMi writes its decision first and binds later; until then nothing is held.
    for number in range(3):
        waiting = _simple(f"uid-hami{number}", grant("GPU-0", 8000, 100), where=None)
        draft.add(waiting)
        draft.see("ADDED", waiting)


def _as_hami_writes(draft: Draft) -> None:
    # HAMi leaves out slots of containers without cards, and signs nothing.
    draft.grant_keys = ()
    draft.add(
        pod(
            "uid-hami",
            container("main", limits={GPU: "1"}),
            init=(container("plain"),),
            devices=f"{grant('GPU-0', 1000, 10)};",
            signed=False,
            annotations={pod_annotations.TO_ALLOCATE: ";;;;"},
        )
    )


def _other_vendors(draft: Draft) -> None:
    # Theirs decode and are not counted; what has another form is left alone.
    annotations = draft.annotations("bare")
    annotations["hami.io/dcu-devices-allocated"] = "DCU-7,DCU,99999,400:;"
    annotations["hami.io/Ascend910B-devices-to-allocate"] = "a,Ascend910B,1,1,vir02:;"
    annotations["hami.io/kunlun-allocated"] = "node-1-kunlun-0,kunlun,0,0:;"
    annotations["metax-tech.com/gpu-devices-allocated"] = "[[]]"
    node = draft.nodes["node-2"]["metadata"]["annotations"]
    node["hami.io/node-register-Ascend910B"] = json.dumps([sample.card("a", custominfo={"x": 1})])
    node["hami.io/node-MR-V100-register"] = "i,1,2,3,MR-V100,-1,f:"
    node["hami.io/node-biren-register"] = "[]"


def _lock_in_use(draft: Draft) -> None:
    waiting = _simple("uid-locked", grant("GPU-0", 100, 1), phase="Pending")
    waiting["metadata"]["annotations"]["hami.io/bind-phase"] = "allocating"
    waiting["status"] = {"phase": "Pending"}
    draft.add(waiting)
    kept = draft.nodes[NODE]["metadata"]["annotations"]
    kept["hami.io/mutex.lock"] = "2026-01-01T00:00:00+01:00,team,locked"


def _old_lock(draft: Draft) -> None:
    draft.nodes["node-2"]["metadata"]["annotations"]["hami.io/mutex.lock"] = "2026-01-01T00:00:00Z"


def _init_reuses_ids(draft: Draft) -> None:
    # kubelet gives the id of an init container to the next, a sidecar or an app among them.
    sidecar = {**container("side", limits={GPU: "1"}), "restartPolicy": "Always"}
    draft.add(
        pod(
            "uid-reuse",
            container("main", limits={GPU: "1"}),
            init=(container("one", limits={GPU: "1"}), container("two"), sidecar),
        )
    )
    for name, device in (("one", "x"), ("two", "x"), ("main", "x"), ("one", "y"), ("side", "y")):
        draft.checkpoint.append(sample.held("uid-reuse", name, "r", device, "other/kind=1"))
    draft.pod_resources += [
        Listed(
            namespace="team",
            pod="reuse",
            container=name,
            resource="r",
            device_ids=frozenset({device}),
        )
        for name, device in (("main", "x"), ("side", "y"))
    ]


def _not_started_yet(draft: Draft) -> None:
    # Between Allocate and PreStart a token has an empty folder and no spec.
    new = pod("uid-new", container(limits={"example.com/vgpu": "1"}), phase="Pending")
    new["status"] = {"phase": "Pending"}
    draft.add(new)
    draft.checkpoint.append(
        Held(
            pod_uid="uid-new",
            container="main",
            resource="example.com/vgpu",
            device_ids=frozenset({"vgpu-009"}),
            mounts=(f"{BARE.tokens}/b9",),
        )
    )
    draft.folders["b9"] = TokenThing(BARE, "b9", f"{BARE.tokens}/b9", None)


def _two_in_a_row(draft: Draft) -> None:
    # One pod after the other on a whole card, each gone or ended before the next is bound.
    _third_card(draft)
    for number, end in enumerate(("DELETED", "MODIFIED", "DELETED")):
        one = _simple(f"uid-row{number}", grant("GPU-2", 8000, 100))
        draft.see("ADDED", one)
        if end == "MODIFIED":
            one["status"] = {"phase": "Succeeded"}
        draft.see(end, one)


def _relisted(draft: Draft) -> None:
    # What a new list does not have is gone.
    _third_card(draft)
    draft.see("ADDED", _simple("uid-lost", grant("GPU-2", 8000, 100)))
    draft.see("LIST", {"kind": "PodList", "items": list(draft.pods.values())})
    draft.see("ADDED", _simple("uid-next", grant("GPU-2", 8000, 100)))
    draft.see("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": "7"}})


def _torn_lines(draft: Draft) -> None:
    draft.peaks += '{"time": 17'
    draft.timeline.append('{"time": 17')


def _a_gone_pod_within_its_limit(draft: Draft) -> None:
    one = _simple("uid-past", grant("GPU-0", 1000, 10))
    draft.see("ADDED", one)
    draft.see("DELETED", one)
    draft.peaks += sample.peak("GPU-0", "uid-past/main", 3, 1000 * MIB)


def _peaks_of_processes_are_not_added(draft: Draft) -> None:
    for process in (2, 3, 4):
        draft.peaks += sample.peak("GPU-0", f"{sample.TRAIN_UID}/main", process, 1500 * MIB)


def _no_memory_limit(draft: Draft) -> None:
    _third_card(draft)
    draft.add(_simple("uid-free", grant("GPU-2", 0, 0)))
    draft.peaks += sample.peak("GPU-2", "uid-free/main", 1, 8000 * MIB)


def _half_started(draft: Draft) -> None:
    # One container runs, the other is still being made: binding may be in progress.
    one = pod("uid-half", container("a"), container("b", limits={GPU: "1"}))
    one["metadata"]["annotations"]["hami.io/bind-phase"] = "allocating"
    del one["status"]["containerStatuses"][1]
    draft.add(one)


def _init_runs(draft: Draft) -> None:
    # PodResources does not tell of init containers, while they run neither.
    one = pod("uid-prep", container(), init=(container("init", limits={GPU: "1"}),))
    one["status"]["initContainerStatuses"][0]["state"] = {"running": {}}
    draft.add(one)
    draft.checkpoint.append(sample.held("uid-prep", "init", GPU, "GPU-1-1", "other/kind=1"))


def _label_too(draft: Draft) -> None:
    draft.pods["train"]["metadata"]["labels"] = {pod_annotations.NODE: NODE}


LEGAL = [
    _init_peak,
    _sidecar_and_init,
    _ended_init,
    _finished,
    _terminating,
    _without_cdi,
    _whole_card,
    _whole_card_runs,
    _whole_card_runs_without_cdi,
    _percentage,
    _migrating_card,
    _annotated_but_unbound,
    _as_hami_writes,
    _other_vendors,
    _lock_in_use,
    _old_lock,
    _init_reuses_ids,
    _not_started_yet,
    _two_in_a_row,
    _relisted,
    _torn_lines,
    _a_gone_pod_within_its_limit,
    _peaks_of_processes_are_not_added,
    _no_memory_limit,
    _half_started,
    _init_runs,
    _label_too,
]


@pytest.mark.parametrize("change", LEGAL, ids=[change.__name__ for change in LEGAL])
def test_what_is_legal_is_no_finding(change: Callable[[Draft], None]) -> None:
    draft = sample.clean()
    change(draft)
    assert auditing.audit(draft.evidence()) == []


def test_a_node_whose_folders_were_not_read_is_judged_by_the_api_alone() -> None:
    evidence = sample.clean().evidence()
    api_only = Evidence(nodes=evidence.nodes, pods=evidence.pods, grant_keys=evidence.grant_keys)
    assert auditing.audit(api_only) == []


def test_the_sample_uses_what_it_claims() -> None:
    """Otherwise a clean sample would prove nothing."""
    cards = node_annotations.register(
        node_annotations.NVIDIA_REGISTER,
        sample.clean().nodes[NODE]["metadata"]["annotations"][node_annotations.NVIDIA_REGISTER],
    )
    assert cards is not None
    assert [card.id for card in cards] == ["GPU-0", "GPU-1"]
