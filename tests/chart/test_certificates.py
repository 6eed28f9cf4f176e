"""Certificates by our job, by cert-manager or by the user; the grant key."""

from __future__ import annotations

from typing import Any

import pytest

from hami.cli import jobs
from tests.chart import rendering
from tests.chart.rendering import NAMESPACE, Object, Rendered

WEBHOOK = "scheduler.admissionWebhook"
OWN_TLS = {f"{WEBHOOK}.existingSecret": "my-tls"}
OWN_KEY = {
    "scheduler.grantKey.existingSigningSecret": "my-key",
    "scheduler.grantKey.existingPublicSecret": "my-public-key",
}
NO_WEBHOOK = {f"{WEBHOOK}.enabled": False}
CERT_MANAGER = {"scheduler.certManager.enabled": True}
ALONE = {"webhookOnly.enabled": True}
HOSTS = "hami-webhook.hami-system.svc,hami-scheduler.hami-system.svc,127.0.0.1"
CREATE, PATCH, CLEANUP = "hami-certs-create", "hami-certs-patch", "hami-cleanup"


def reply(rendered: Rendered, job: str) -> dict[str, str] | None:
    """Return the arguments of a job, read by the command itself; None: no such job."""
    if not rendered.has("Job", job):
        return None
    [container] = rendered.pod("Job", job)["spec"]["containers"]
    commands = {
        ("certs", "create"): jobs._create_parser("hami certs create"),
        ("certs", "patch"): jobs._patch_parser("hami certs patch"),
        ("cleanup",): jobs._cleanup_parser("hami cleanup"),
    }
    words = tuple(word for word in container["args"] if not word.startswith("-"))
    read = vars(commands[words].parse_args(container["args"][len(words) :]))
    assert read.pop("namespace") == NAMESPACE
    return {name: value for name, value in read.items() if value}


def mounted(rendered: Rendered, name: str = "hami-scheduler") -> dict[str, str]:
    volumes = rendered.pod("Deployment", name)["spec"]["volumes"]
    return {each["name"]: each["secret"]["secretName"] for each in volumes if "secret" in each}


def hook(document: Object) -> str:
    text = document["metadata"]["annotations"]["helm.sh/hook"]
    assert isinstance(text, str)
    return text


MADE = {
    "tls_secret": "hami-scheduler-tls",
    "hosts": HOSTS,
    "webhook": "hami-webhook",
    "lifetime": "87600h",
}
UNUSED = {"lifetime": "87600h"}
KEY = {
    "grant_signing_secret": "hami-grant-signing-key",
    "grant_public_secret": "hami-grant-public-key",
}
LEFT_BY_ANOTHER = [
    "hami-grant-key",
    "hami-grant-signing-key",
    "hami-grant-public-key",
    "hami-scheduler-tls",
    "hami-scheduler-tls-ca",
    "hami-webhook-tls",
    "hami-webhook-tls-ca",
]


@pytest.mark.parametrize(
    ("values", "create", "patch"),
    [
        ({}, {**MADE, **KEY}, "hami-scheduler-tls"),
        (OWN_KEY, MADE, "hami-scheduler-tls"),
        (OWN_TLS, {**UNUSED, **KEY}, "my-tls"),
        ({**OWN_TLS, **OWN_KEY}, None, "my-tls"),
        ({**OWN_TLS, f"{WEBHOOK}.caBundle": "Q0E="}, {**UNUSED, **KEY}, None),
        ({**OWN_TLS, "scheduler.patch.enabled": False}, {**UNUSED, **KEY}, None),
        (CERT_MANAGER, {**UNUSED, **KEY}, None),
        ({**CERT_MANAGER, **OWN_KEY}, None, None),
        (NO_WEBHOOK, {**UNUSED, **KEY}, None),
        ({**NO_WEBHOOK, **OWN_KEY}, None, None),
        (
            ALONE,
            {
                **MADE,
                "tls_secret": "hami-webhook-tls",
                "hosts": "hami-webhook.hami-system.svc,127.0.0.1",
            },
            "hami-webhook-tls",
        ),
        ({**ALONE, **CERT_MANAGER}, None, None),
    ],
)
def test_jobs_make_what_no_other_component_makes(
    values: dict[str, Any], create: dict[str, str] | None, patch: str | None
) -> None:
    rendered = rendering.render(values)

    assert reply(rendered, CREATE) == create
    expected = patch and {"tls_secret": patch, "webhook": "hami-webhook"}
    assert reply(rendered, PATCH) == expected
    assert rendered.has("ServiceAccount", "hami-certs") == bool(create or patch)


def test_secrets_are_there_before_the_pods_and_trust_comes_after_them() -> None:
    rendered = rendering.render()
    assert hook(rendered.one("Job", CREATE)) == "pre-install,pre-upgrade"
    assert hook(rendered.one("Job", PATCH)) == "post-install,post-upgrade"
    assert hook(rendered.one("Job", CLEANUP)) == "post-delete"


@pytest.mark.parametrize(("job", "account"), [(CREATE, "hami-certs"), (CLEANUP, "hami-cleanup")])
def test_a_job_finds_its_account_and_rights_and_leaves_none_behind(job: str, account: str) -> None:
    rendered = rendering.render()
    when = hook(rendered.one("Job", job)).split(",")
    objects = [
        rendered.one(kind, account)
        for kind in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    ]
    for each in objects:
        annotations = each["metadata"]["annotations"]
        assert set(when) <= set(annotations["helm.sh/hook"].split(","))
        assert int(annotations["helm.sh/hook-weight"]) < 0
    for each in [*objects, rendered.one("Job", job)]:
        policy = each["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
        assert policy == "before-hook-creation,hook-succeeded"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"tls": "hami-scheduler-tls"}),
        (CERT_MANAGER, {"tls": "hami-scheduler-tls"}),
        ({**OWN_TLS, **OWN_KEY}, {"tls": "my-tls"}),
        (NO_WEBHOOK, {}),
    ],
)
def test_the_pods_mount_what_was_made(values: dict[str, Any], expected: dict[str, str]) -> None:
    assert mounted(rendering.render(values)) == expected


V1_KEY, SIGNING_KEY, PUBLIC_KEY = LEFT_BY_ANOTHER[:3]
V3 = {"scheduler.grantKey.acceptForms": ["v3"]}


@pytest.mark.parametrize(
    ("values", "scheduler", "agent"),
    [
        ({}, [SIGNING_KEY, V1_KEY], [PUBLIC_KEY, V1_KEY]),
        (V3, [SIGNING_KEY], [PUBLIC_KEY]),
        # As --reuse-values leaves it after an older release.
        (
            {"scheduler.grantKey.acceptForms": None},
            [SIGNING_KEY, V1_KEY],
            [PUBLIC_KEY, V1_KEY],
        ),
        (OWN_KEY, ["my-key", V1_KEY], ["my-public-key", V1_KEY]),
        ({**OWN_KEY, **V3}, ["my-key"], ["my-public-key"]),
        (
            {"scheduler.grantKey.existingSecret": "mine"},
            [SIGNING_KEY, "mine"],
            [PUBLIC_KEY, "mine"],
        ),
    ],
)
def test_no_node_has_the_signing_key_and_with_v3_none_that_signs(
    values: dict[str, Any], scheduler: list[str], agent: list[str]
) -> None:
    rendered = rendering.render(values)
    assert grant_secrets(rendered.pod("Deployment", "hami-scheduler")) == scheduler
    daemons = rendered.pod("DaemonSet", "hami-device-plugin")
    assert grant_secrets(daemons) == agent
    signing = scheduler[0]
    assert signing not in str(daemons)
    forms = "v3" if values.items() >= V3.items() else "v1,v3"
    for kind, name, container in (
        ("Deployment", "hami-scheduler", "vgpu-scheduler-extender"),
        ("DaemonSet", "hami-device-plugin", "device-plugin"),
    ):
        assert rendered.flags(kind, name, container)["accept-grant-forms"] == forms


def grant_secrets(pod: Object) -> list[str]:
    """Return the Secrets with keys of grants that a pod mounts; they may be missing."""
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == "grant-key")
    sources = [source["secret"] for source in volume["projected"]["sources"]]
    assert all(source["optional"] for source in sources)
    return [source["name"] for source in sources]


@pytest.mark.parametrize("given", ["existingSigningSecret", "existingPublicSecret"])
def test_a_signing_key_of_ones_own_has_its_public_key_beside_it(given: str) -> None:
    with pytest.raises(rendering.Refused, match="set both, or none"):
        rendering.render({f"scheduler.grantKey.{given}": "mine"})


def test_cert_manager_makes_the_secret_and_sets_the_ca() -> None:
    custom = {f"{WEBHOOK}.customURL.enabled": True, f"{WEBHOOK}.customURL.host": "gpu.example"}
    rendered = rendering.render({**CERT_MANAGER, **custom})
    name, ca = "hami-scheduler-tls", "hami-scheduler-tls-ca"
    # So that they are known as ours, and go with us.
    ours = {"labels": {"app.kubernetes.io/managed-by": "hami"}}

    assert rendered.one("Issuer", ca)["spec"] == {"selfSigned": {}}
    assert rendered.one("Certificate", ca)["spec"] == {
        "isCA": True,
        "commonName": ca,
        "duration": "87600h",
        "secretName": ca,
        "secretTemplate": ours,
        "issuerRef": {"kind": "Issuer", "name": ca},
    }
    assert rendered.one("Issuer", name)["spec"] == {"ca": {"secretName": ca}}
    assert rendered.one("Certificate", name)["spec"] == {
        "secretName": name,
        "secretTemplate": ours,
        "issuerRef": {"kind": "Issuer", "name": name},
        "dnsNames": [
            "hami-webhook.hami-system.svc",
            "hami-scheduler.hami-system.svc",
            "gpu.example",
        ],
        "ipAddresses": ["127.0.0.1"],
        "usages": ["digital signature", "key encipherment", "server auth"],
    }
    configuration = rendered.one("MutatingWebhookConfiguration", "hami-webhook")
    assert configuration["metadata"]["annotations"] == {
        "cert-manager.io/inject-ca-from": f"{NAMESPACE}/{name}"
    }


def test_a_certificate_is_also_for_the_address_of_ones_own() -> None:
    custom = {f"{WEBHOOK}.customURL.enabled": True, f"{WEBHOOK}.customURL.host": "gpu.example"}
    create = reply(rendering.render(custom), CREATE)
    assert create is not None
    assert create["hosts"] == f"{HOSTS},gpu.example"


def test_a_ca_of_ones_own_is_given_to_the_api_server() -> None:
    values = {**OWN_TLS, f"{WEBHOOK}.caBundle": "Q0E="}
    [webhook] = rendering.render(values).one("MutatingWebhookConfiguration", "hami-webhook")[
        "webhooks"
    ]
    assert webhook["clientConfig"]["caBundle"] == "Q0E="


def test_a_client_ca_is_mounted_without_the_key_beside_it() -> None:
    rendered = rendering.render({"scheduler.clientCASecret": "clients"})
    volumes = rendered.pod("Deployment", "hami-scheduler")["spec"]["volumes"]
    [volume] = [each for each in volumes if each["name"] == "client-ca"]
    assert volume["secret"]["secretName"] == "clients"
    assert volume["secret"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]


@pytest.mark.parametrize("values", [{}, ALONE, CERT_MANAGER])
def test_an_uninstall_takes_away_what_jobs_and_cert_manager_made(values: dict[str, Any]) -> None:
    cleanup_arguments = reply(rendering.render(values), CLEANUP)
    assert cleanup_arguments is not None
    assert cleanup_arguments["lease"] == "hami-scheduler"
    assert cleanup_arguments["secrets"].split(",") == LEFT_BY_ANOTHER


def test_an_uninstall_leaves_what_its_owner_brought_whatever_its_name() -> None:
    own = {
        "scheduler.grantKey.existingSecret": "hami-grant-key",
        "scheduler.grantKey.existingSigningSecret": "hami-grant-signing-key",
        "scheduler.grantKey.existingPublicSecret": "hami-grant-public-key",
        f"{WEBHOOK}.existingSecret": "hami-scheduler-tls",
    }
    cleanup_arguments = reply(rendering.render(own), CLEANUP)
    assert cleanup_arguments is not None
    left = set(LEFT_BY_ANOTHER) - {*own.values()}
    assert set(cleanup_arguments["secrets"].split(",")) == left
