"""Each vendor's device plugin writes its own annotations, and no grants.

The policies are those that Helm renders; the sandbox's CEL evaluates them.
"""

from __future__ import annotations

import functools

import pytest
import yaml

from hami.admission import checks
from hami.scheduler import kube_scheduler
from hami.vendors import device_config, table
from hami.vendors.table import Vendor
from hami.wire import annotation_keys
from tests.attacks.gate import Gate, Object, account, agent_of, merged
from tests.chart import rendering
from tests.unit.vendors import hami_files

HERE, ELSEWHERE = "node-1", "node-2"
LOCK, PHASE = annotation_keys.NODE_LOCK, annotation_keys.BIND_PHASE
SCHEDULER = account(f"system:serviceaccount:{rendering.NAMESPACE}:hami-scheduler")
ALL = {"devices.iluvatar.enabled": True, "enflameResourceNameVGCU": "enflame.com/vgcu"}

#: `devices.<it>` by section of device-config.yaml.
VENDORS = {"iluvatars": "iluvatar"}
NVIDIA = table.nvidia(table.built_in())
OTHERS = [row for row in table.built_in() if row is not NVIDIA]
LOCKING = [row for row in OTHERS if row.annotations.lock == LOCK]
each_vendor = pytest.mark.parametrize("vendor", OTHERS, ids=lambda row: row.name)
each_locking = pytest.mark.parametrize("vendor", LOCKING, ids=lambda row: row.name)


def value_of(row: Vendor) -> str:
    return VENDORS.get(row.section, row.section)


def user_of(row: Vendor) -> str:
    return f"system:serviceaccount:kube-system:{value_of(row)}-plugin"


@functools.cache
def open_gate() -> Gate:
    """No vendor has an account."""
    return Gate(ALL)


@functools.cache
def closed_gate() -> Gate:
    """Every vendor has one."""
    return Gate(ALL | {f"devices.{value_of(row)}.pluginAccounts": [user_of(row)] for row in OTHERS})


def node_keys(row: Vendor) -> list[str]:
    keys = row.annotations
    return [key for key in (keys.register, keys.handshake, keys.lock) if key]


def pod_keys(row: Vendor) -> list[str]:
    keys = row.annotations
    phase = PHASE if keys.lock == LOCK else ""
    return [key for key in (keys.to_allocate, *keys.extra, phase) if key]


def node_of(row: Vendor) -> Object:
    register = row.annotations.register
    return {"metadata": {"name": HERE, "annotations": {register: "[]"} if register else {}}}


def pod_of(*rows: Vendor, on: str = HERE) -> Object:
    granted = {row.annotations.allocated: "a,b,1,1:;" for row in rows}
    metadata = {"name": "p", "namespace": "team", "annotations": granted}
    return {"metadata": metadata, "spec": {"nodeName": on}}


def refused(
    gate: Gate, user: str, resource: str, old: Object, keys: list[str], *, node: str = HERE
) -> list[str]:
    """Return the keys of these that a user with a token of a node cannot write."""
    speaker = agent_of(node) if user == "agent" else account(user, node)
    if user == "scheduler":
        speaker = SCHEDULER
    found = []
    for key in keys:
        new = merged(old, {"metadata": {"annotations": {key: "1"}}})
        if gate.judges((speaker, "patch", resource, old, new)):
            found.append(key)
    return found


class TestWithoutAccounts:
    @each_vendor
    def test_a_vendors_plugin_writes_all_that_its_protocol_asks_for(self, vendor: Vendor) -> None:
        user = user_of(vendor)
        assert refused(open_gate(), user, "nodes", node_of(vendor), node_keys(vendor)) == []
        assert refused(open_gate(), user, "pods", pod_of(vendor), pod_keys(vendor)) == []

    @each_vendor
    def test_the_cards_of_a_grant_are_still_hamis_alone(self, vendor: Vendor) -> None:
        keys = [vendor.annotations.allocated, annotation_keys.GRANT_MAC]
        assert refused(open_gate(), user_of(vendor), "pods", pod_of(vendor), keys) == keys

    @each_vendor
    def test_nothing_of_nvidias_is_open_on_its_nodes_and_pods(self, vendor: Vendor) -> None:
        keys = [*node_keys(NVIDIA), annotation_keys.NODE_LOCK_OWNER]
        assert refused(open_gate(), user_of(vendor), "nodes", node_of(NVIDIA), keys) == keys
        keys = [PHASE, NVIDIA.annotations.to_allocate, NVIDIA.annotations.allocated]
        assert refused(open_gate(), user_of(vendor), "pods", pod_of(NVIDIA), keys) == keys

    @each_locking
    def test_the_phase_and_the_lock_are_open_only_where_the_vendor_is(self, vendor: Vendor) -> None:
        plain: Object = {"metadata": {"name": HERE}}
        assert refused(open_gate(), "jane", "nodes", plain, [LOCK]) == [LOCK]
        assert refused(open_gate(), "jane", "pods", pod_of(), [PHASE]) == [PHASE]
        assert refused(open_gate(), "jane", "nodes", node_of(vendor), [LOCK]) == []
        assert refused(open_gate(), "jane", "pods", pod_of(vendor), [PHASE]) == []

    def test_no_key_of_a_grant_comes_with_a_new_pod(self) -> None:
        keys = {key for row in OTHERS for key in (row.annotations.allocated,) if key}
        keys |= {row.annotations.to_allocate for row in OTHERS if row.annotations.to_allocate}
        for key in sorted(keys | {PHASE}):
            new = merged(pod_of(), {"metadata": {"annotations": {key: "1"}}})
            assert open_gate().judges((account("jane"), "create", "pods", None, new)), key

    def test_a_vendor_that_is_not_enabled_opens_nothing(self) -> None:
        gate = Gate({"devices.hygon.enabled": False})
        hygon = next(row for row in OTHERS if row.section == "hygon")
        assert refused(gate, "jane", "nodes", node_of(hygon), [LOCK]) == [LOCK]
        assert refused(gate, "jane", "pods", pod_of(hygon), [PHASE]) == [PHASE]


class TestWithAccounts:
    @each_vendor
    def test_a_plugin_writes_its_keys_on_its_own_node(self, vendor: Vendor) -> None:
        user = user_of(vendor)
        assert refused(closed_gate(), user, "nodes", node_of(vendor), node_keys(vendor)) == []
        assert (
            refused(closed_gate(), user, "nodes/status", node_of(vendor), node_keys(vendor)) == []
        )
        assert refused(closed_gate(), user, "pods", pod_of(vendor), pod_keys(vendor)) == []

    @each_vendor
    def test_a_plugin_writes_nothing_of_another_node(self, vendor: Vendor) -> None:
        user = user_of(vendor)
        for node in (ELSEWHERE, ""):
            keys = node_keys(vendor)
            found = refused(closed_gate(), user, "nodes", node_of(vendor), keys, node=node)
            assert found == keys
            keys = pod_keys(vendor)
            found = refused(closed_gate(), user, "pods", pod_of(vendor), keys, node=node)
            assert found == keys

    def test_a_plugin_with_a_certificate_has_no_token_to_name_its_node(self) -> None:
        hygon = next(row for row in OTHERS if row.section == "hygon")
        gate = Gate({"devices.hygon.pluginAccounts": ["dcu"]})
        assert refused(gate, "dcu", "nodes", node_of(hygon), node_keys(hygon), node="") == []

    @each_vendor
    def test_no_other_account_writes_them(self, vendor: Vendor) -> None:
        other = next(row for row in LOCKING if row.section != vendor.section)
        for user in ("jane", user_of(other)):
            keys = node_keys(vendor)
            assert refused(closed_gate(), user, "nodes", node_of(vendor), keys) == keys
            keys = [*pod_keys(vendor), vendor.annotations.allocated]
            assert refused(closed_gate(), user, "pods", pod_of(vendor), keys) == keys

    @each_vendor
    def test_a_plugin_writes_no_grant_and_nothing_of_other_vendors(self, vendor: Vendor) -> None:
        user = user_of(vendor)
        keys = [vendor.annotations.allocated, annotation_keys.GRANT_MAC]
        assert refused(closed_gate(), user, "pods", pod_of(vendor), keys) == keys
        for other in (NVIDIA, *OTHERS):
            if other.section == vendor.section:
                continue
            keys = [*node_keys(other), annotation_keys.NODE_LOCK_OWNER]
            assert refused(closed_gate(), user, "nodes", node_of(other), keys) == keys
            keys = pod_keys(other)
            assert refused(closed_gate(), user, "pods", pod_of(other), keys) == keys

    @each_locking
    def test_a_pod_with_cards_of_two_vendors_is_confirmed_by_both(self, vendor: Vendor) -> None:
        other = next(row for row in LOCKING if row.section != vendor.section)
        for user in (user_of(vendor), user_of(other), "agent"):
            assert refused(closed_gate(), user, "pods", pod_of(vendor, other), [PHASE]) == []

    def test_a_refusal_names_the_value_in_which_an_account_belongs(self) -> None:
        hygon = next(row for row in OTHERS if row.section == "hygon")
        new = merged(node_of(hygon), {"metadata": {"annotations": {LOCK: "1"}}})
        why = closed_gate().judges((account("jane"), "patch", "nodes", node_of(hygon), new))
        assert f"{LOCK}: jane must not" in why
        assert "devices.<vendor>.pluginAccounts" in why

    def test_a_refusal_to_a_plugin_elsewhere_names_both_nodes(self) -> None:
        hygon = next(row for row in OTHERS if row.section == "hygon")
        user = account(user_of(hygon), ELSEWHERE)
        old = node_of(hygon)
        new = merged(old, {"metadata": {"annotations": {LOCK: "1"}}})
        why = closed_gate().judges((user, "patch", "nodes", old, new))
        assert f"{LOCK}: {user_of(hygon)} writes only on the node in its token" in why
        assert f"the token names node {ELSEWHERE}, this is {HERE}" in why


class TestHamisOwnAccounts:
    @each_vendor
    def test_the_scheduler_asks_locks_and_grants(self, vendor: Vendor) -> None:
        keys = vendor.annotations
        ours = [key for key in (keys.handshake, keys.lock, keys.lock_owner) if key]
        for gate in (open_gate(), closed_gate()):
            assert refused(gate, "scheduler", "nodes", node_of(vendor), ours) == []
            granted = [*pod_keys(vendor), keys.allocated]
            assert refused(gate, "scheduler", "pods", pod_of(vendor), granted) == []

    @each_vendor
    def test_only_the_scheduler_names_the_owner_of_a_lock(self, vendor: Vendor) -> None:
        if owner := vendor.annotations.lock_owner:
            for gate in (open_gate(), closed_gate()):
                found = refused(gate, user_of(vendor), "nodes", node_of(vendor), [owner])
                assert found == [owner]

    @each_vendor
    def test_nvidias_agent_writes_a_mixed_pods_grant_back_but_removes_none(
        self, vendor: Vendor
    ) -> None:
        key = vendor.annotations.allocated
        old = pod_of(NVIDIA, vendor)
        assert refused(closed_gate(), "agent", "pods", old, [key]) == []
        assert refused(closed_gate(), "agent", "pods", old, [key], node=ELSEWHERE) == [key]
        new = merged(old, {"metadata": {"annotations": {key: None}}})
        assert closed_gate().judges((agent_of(HERE), "patch", "pods", old, new))


class TestTheChartsTable:
    @pytest.mark.parametrize(
        "values",
        [
            {},
            ALL,
            {"mluResourceName": "", "dcuResourceName": "a.io/n", "devices.amd.enabled": False},
            *(
                {"device-config.content": hami_files.text(version)}
                for version in hami_files.VERSIONS
            ),
            {"device-config.content": "nvidia: {resourceCountName: a.io/n}\nhygon:\namd: {}\n"},
            {"device-config.content": hami_files.text("2.10"), "devices.iluvatar.enabled": True},
            {
                "devices.iluvatar.enabled": True,
                "device-config.content": yaml.safe_dump(
                    {
                        "iluvatars": [
                            {"commonWord": "TG-V200", "resourceCountName": "a.io/n"},
                            {"commonWord": "BI-V100", "resourceCountName": ""},
                        ]
                    }
                ),
            },
        ],
    )
    def test_has_the_vendors_of_hami_for_any_configuration(self, values: rendering.Values) -> None:
        rendered = rendering.render(values)
        files = rendered.one("ConfigMap", "hami-scheduler-device")["data"]
        vendors = device_config.parse(files["device-config.yaml"], source="the chart").vendors

        on = {"enable-iluvatar"} if values.get("devices.iluvatar.enabled") else set()
        vendors = table.switched_on(vendors, on)
        flags = rendered.flags("Deployment", "hami-scheduler", "vgpu-scheduler-extender")
        assert flags["enable-iluvatar"] == str(bool(on)).lower()

        config = yaml.safe_load(
            rendered.one("ConfigMap", "hami-scheduler")["data"]["kube-scheduler.yaml"]
        )
        [extender] = config["extenders"]
        managed = [each["name"] for each in extender["managedResources"]]
        assert managed == list(kube_scheduler.managed_resources(vendors))

        policy = rendered.one("ValidatingAdmissionPolicy", "hami-pod-annotations")
        [changed] = [v for v in policy["spec"]["variables"] if v["name"] == "changed"]
        listed = yaml.safe_load(changed["expression"].partition(".filter(")[0])
        assert sorted(listed) == sorted(checks.protected_annotations(vendors))
