"""The configuration of kube-scheduler: each version gets what it reads.

The allowed keys below were read from the Go types of k8s.io/kube-scheduler in each version, whose
decoders refuse unknown ones from 1.19 on (and 1.18 in v1alpha1 complains about them).
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
import yaml

from hami.scheduler import kube_scheduler
from hami.scheduler.kube_scheduler import Options
from hami.scheduler.settings import Settings
from hami.vendors import device_config, table
from hami.wire.errors import WireError
from tests import builders

EXAMPLES = pathlib.Path(__file__).parents[3] / "examples" / "kube-scheduler"
RESOURCES = kube_scheduler.managed_resources(table.switched_on(builders.VENDORS, ()))
OPTIONS = Options(managed_resources=RESOURCES)

COMMON = {
    "apiVersion",
    "kind",
    "leaderElection",
    "clientConnection",
    "percentageOfNodesToScore",
    "podInitialBackoffSeconds",
    "podMaxBackoffSeconds",
}
EXTENDER = {
    "urlPrefix",
    "filterVerb",
    "bindVerb",
    "preemptVerb",
    "weight",
    "tlsConfig",
    "httpTimeout",
    "nodeCacheCapable",
    "managedResources",
    "ignorable",
}


def documents(version: str, options: Options = OPTIONS) -> dict[str, Any]:
    made = kube_scheduler.files(version, options)
    return {name: yaml.safe_load(text) for name, text in made.items()}


@pytest.mark.parametrize(
    ("version", "wanted"),
    {
        "1.36": "v1",
        "v1.30.14": "v1",
        "1.25": "v1",
        "1.24": "v1beta3",
        "1.23.17+k3s1": "v1beta3",
        "1.22": "v1beta2",
        "1.21": "v1beta1",
        "1.19": "v1beta1",
    }.items(),
)
def test_from_1_19_on_there_is_one_file_with_profile_and_extender(
    version: str, wanted: str
) -> None:
    (document,) = documents(version).values()
    assert document["apiVersion"] == f"kubescheduler.config.k8s.io/{wanted}"
    assert document["kind"] == "KubeSchedulerConfiguration"
    assert set(document) == COMMON | {"profiles", "extenders"}
    assert document["profiles"] == [{"schedulerName": "hami-scheduler"}]
    (extender,) = document["extenders"]
    assert set(extender) == EXTENDER - {"tlsConfig"}
    assert extender["httpTimeout"] == "10m"


@pytest.mark.parametrize("version", ["1.18", "1.17", "1.16"])
def test_before_1_19_the_extender_is_in_a_policy_that_the_configuration_names(
    version: str,
) -> None:
    made = documents(version)
    configuration, policy = made["kube-scheduler.yaml"], made["policy.yaml"]
    assert configuration["apiVersion"] == "kubescheduler.config.k8s.io/v1alpha1"
    assert configuration["schedulerName"] == "hami-scheduler"
    path = configuration["algorithmSource"]["policy"]["file"]["path"]
    assert path == "/etc/kube-scheduler/policy.yaml"
    backoff = {"podInitialBackoffSeconds", "podMaxBackoffSeconds"}
    known = COMMON if version != "1.16" else COMMON - backoff
    assert set(configuration) == known | {"schedulerName", "algorithmSource"}
    assert (policy["apiVersion"], policy["kind"]) == ("v1", "Policy")
    assert set(policy) == {"apiVersion", "kind", "extenders"}
    (extender,) = policy["extenders"]
    assert set(extender) == EXTENDER - {"tlsConfig"}
    assert extender["httpTimeout"] == 600 * 10**9


@pytest.mark.parametrize("version", ["1.16", "1.18", "1.22", "1.24", "1.36"])
def test_every_version_gets_the_same_values(version: str) -> None:
    made = documents(version)
    configuration = made["kube-scheduler.yaml"]
    (extender,) = made.get("policy.yaml", configuration)["extenders"]
    assert configuration["percentageOfNodesToScore"] == 100
    assert configuration["leaderElection"] == {
        "leaderElect": True,
        "resourceLock": "leases",
        "resourceName": "hami-scheduler",
        "resourceNamespace": "kube-system",
        "leaseDuration": "8s",
        "renewDeadline": "6s",
        "retryPeriod": "1s",
    }
    assert configuration["clientConnection"] == {"qps": 1000, "burst": 2000}
    assert configuration.get("podInitialBackoffSeconds", 1) == 1
    assert configuration.get("podMaxBackoffSeconds", 2) == 2
    assert extender["urlPrefix"] == f"http://{Settings().http_bind}"
    assert (extender["filterVerb"], extender["bindVerb"]) == ("filter", "bind")
    assert extender["nodeCacheCapable"] is True
    assert extender["ignorable"] is False
    assert extender["weight"] == 1
    managed = extender["managedResources"]
    assert managed == [{"name": name, "ignoredByScheduler": True} for name in RESOURCES]


def test_resources_are_those_of_the_vendors_with_the_users_names() -> None:
    text = (
        "nvidia:\n  resourceCountName: example.com/gpu\n  resourcePriorityName: ''\n"
        "hygon:\n  resourceCountName: example.com/dcu\n"
    )
    vendors = device_config.parse(text, source="test").vendors
    found = kube_scheduler.managed_resources(vendors)
    assert len(found) == len(set(found))
    assert "example.com/dcu" in found
    assert "cambricon.com/vmlu" not in found  # a file without its section
    assert tuple(name for name in found if name == "example.com/gpu" or "nvidia" in name) == (
        "example.com/gpu",
        "nvidia.com/gpumem",
        "nvidia.com/gpumem-percentage",
        "nvidia.com/gpucores",
    )


@pytest.mark.parametrize(("version", "key"), [("1.18", "enableHttps"), ("1.19", "enableHTTPS")])
def test_https_is_spelt_as_the_version_spells_it(version: str, key: str) -> None:
    options = Options(
        managed_resources=RESOURCES,
        url="https://127.0.0.1:443",
        ca_file="/tls/ca.crt",
        client_cert_file="/tls/client.crt",
        client_key_file="/tls/client.key",
        server_name="hami",
    )
    made = documents(version, options)
    (extender,) = made.get("policy.yaml", made["kube-scheduler.yaml"])["extenders"]
    assert extender[key] is True
    assert extender["tlsConfig"] == {
        "caFile": "/tls/ca.crt",
        "certFile": "/tls/client.crt",
        "keyFile": "/tls/client.key",
        "serverName": "hami",
    }


def test_https_without_a_ca_says_that_nothing_is_checked() -> None:
    made = documents("1.36", Options(managed_resources=RESOURCES, url="https://127.0.0.1"))
    assert made["kube-scheduler.yaml"]["extenders"][0]["tlsConfig"] == {"insecure": True}


def test_options_reach_the_file_whatever_characters_they_hold() -> None:
    options = Options(
        managed_resources=("example.com/a",),
        scheduler_name="true",
        kubeconfig="/a b: #c",
        lease_name="123",
        lease_namespace="on",
        leader_elect=False,
        lease_duration=90.0,
        renew_deadline=2.5,
        folder="/x",
    )
    document = documents("1.36", options)["kube-scheduler.yaml"]
    assert document["profiles"][0]["schedulerName"] == "true"
    assert document["clientConnection"]["kubeconfig"] == "/a b: #c"
    election = document["leaderElection"]
    assert (election["resourceName"], election["resourceNamespace"]) == ("123", "on")
    assert (election["leaseDuration"], election["renewDeadline"]) == ("90s", "2.5s")
    assert election["leaderElect"] is False


@pytest.mark.parametrize(
    ("text", "rule"),
    {
        "": "is no version",
        "latest": "is no version",
        "1": "is no version",
        "2.0": "is no version",
        "1.x": "is no version",
        "1.15.12": "is older than 1.16",
    }.items(),
)
def test_what_is_no_version_that_can_be_served_is_refused(text: str, rule: str) -> None:
    with pytest.raises(WireError, match=rule):
        kube_scheduler.render(text, OPTIONS)


def test_as_one_text_several_files_are_separate_documents() -> None:
    text = kube_scheduler.render("1.18", OPTIONS)
    assert [d["kind"] for d in yaml.safe_load_all(text)] == ["KubeSchedulerConfiguration", "Policy"]
    assert "# File kube-scheduler.yaml\n" in text
    one = kube_scheduler.render("1.36", OPTIONS)
    assert one == kube_scheduler.files("1.36", OPTIONS)["kube-scheduler.yaml"]


@pytest.mark.parametrize("version", ["1.18", "1.22", "1.24", "1.30", "1.36"])
def test_the_examples_are_what_the_command_writes(version: str) -> None:
    folder = EXAMPLES / version
    found = {file.name: file.read_text("utf-8") for file in folder.iterdir()}
    again = f"run: hami scheduler config --kube-version {version} --output-dir {folder.name}"
    assert found == kube_scheduler.files(version, OPTIONS), again


def test_there_are_no_other_examples() -> None:
    assert sorted(folder.name for folder in EXAMPLES.iterdir()) == [
        "1.18",
        "1.22",
        "1.24",
        "1.30",
        "1.36",
    ]
