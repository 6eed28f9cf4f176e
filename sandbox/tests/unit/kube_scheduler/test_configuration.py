"""kube-scheduler's configuration, read as `hami scheduler config` writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hami.scheduler import kube_scheduler
from hami_sandbox.errors import SandboxError
from hami_sandbox.kube_scheduler import configuration
from tests.builders import VENDORS

VERSIONS = ("1.19", "1.22", "1.24", "1.30", "1.36")


def written(version: str, **options: object) -> str:
    resources = kube_scheduler.managed_resources(VENDORS)
    made = kube_scheduler.Options(managed_resources=resources, **options)  # type: ignore[arg-type] # any of its fields
    return kube_scheduler.render(version, made)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_the_product_writes_is_understood(version: str) -> None:
    text = written(version, url="https://127.0.0.1:1/", kubeconfig="/k", ca_file="/ca")
    found = configuration.parse(text, source="file")
    assert found.schedulers == ("hami-scheduler", "default-scheduler")
    assert found.kubeconfig == "/k"
    assert (found.qps, found.burst) == (1000, 2000)
    assert (found.first_backoff, found.longest_backoff) == (1, 2)
    assert found.election == configuration.Election(
        namespace="kube-system",
        name="hami-scheduler",
        lease_duration=8,
        renew_deadline=6,
        retry_period=1,
    )
    (extender,) = found.extenders
    assert extender.url == "https://127.0.0.1:1"
    assert (extender.filter_verb, extender.bind_verb, extender.prioritize_verb) == (
        "filter",
        "bind",
        "",
    )
    assert extender.node_cache_capable
    assert not extender.ignorable
    assert extender.timeout == 600
    assert extender.tls == configuration.Tls(ca_file="/ca")
    assert "nvidia.com/gpumem" in found.ignored


def test_what_is_not_said_is_as_in_kube_scheduler() -> None:
    text = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    found = configuration.parse(text, source="file")
    assert found.schedulers == ("default-scheduler",)
    assert found.extenders == ()
    assert (found.first_backoff, found.longest_backoff) == (1, 10)
    assert found.election is not None
    assert found.election.name == "kube-scheduler"
    assert found.election.lease_duration == 15


def test_without_election() -> None:
    text = written("1.36", leader_elect=False)
    assert configuration.parse(text, source="file").election is None


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("kind: Pod\napiVersion: v1\n", "'v1' 'Pod'"),
        ("[]\n", "is no KubeSchedulerConfiguration"),
        (written("1.36").replace("10m", "soon"), "'soon' is not a duration"),
        (written("1.36", url="ftp://there"), "begins with http:// or https://"),
    ],
)
def test_others_are_refused_with_a_remedy(text: str, told: str) -> None:
    with pytest.raises(SandboxError, match="hami scheduler config") as caught:
        configuration.parse(text, source="file")
    assert told in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="cannot be read"):
        configuration.load(tmp_path / "nothing")
    (tmp_path / "broken").write_text("a: b: c\n")
    with pytest.raises(SandboxError, match="not valid YAML"):
        configuration.load(tmp_path / "broken")
