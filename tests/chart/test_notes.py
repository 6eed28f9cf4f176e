"""The text after `helm install`: next commands, and values without effect."""

from __future__ import annotations

from tests.chart.rendering import notes

WEBHOOK = "scheduler.admissionWebhook"


def test_the_next_commands_name_what_was_installed() -> None:
    text = notes()
    assert "kubectl -n hami-system rollout status deployment/hami-scheduler" in text
    assert "kubectl get mutatingwebhookconfiguration hami-webhook" in text
    assert '"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"' in text
    assert "kubectl -n hami-system rollout status daemonset/hami-device-plugin" in text
    assert "kubectl label node NODE gpu=on" in text
    assert r"SHARES:.status.allocatable.nvidia\.com/gpu'" in text
    assert "offers 10 shares of every card" in text
    assert "no effect" not in text
    assert "Careful" not in text


def test_the_notes_of_the_webhook_alone_speak_of_nothing_else() -> None:
    text = notes({"webhookOnly.enabled": True})
    assert "rollout status deployment/hami-webhook" in text
    assert "part of a card" not in text
    assert "Label" not in text
    assert "device plugin" not in text


def test_without_admission_the_example_names_the_scheduler_itself() -> None:
    text = notes({f"{WEBHOOK}.enabled": False, "schedulerName": "mine"})
    assert '"schedulerName": "mine"' in text
    assert "mutatingwebhookconfiguration" not in text


def test_values_without_effect_are_named() -> None:
    text = notes(
        {
            "iluvatarResourceName": "a.io/b",
            "devicePlugin.passDeviceSpecsEnabled": True,
            "devicePlugin.monitor.ctrPath": "/usr/local/vgpu/containers",
            "scheduler.patch.imageNew.tag": "v1",
            "scheduler.replica": 2,
            "scheduler.admissionWebhook.failPolicy": "Fail",
        }
    )
    reply = text.partition("These values have no effect in this version:\n")[2].split("\n")
    assert [line.strip() for line in reply if line.strip()] == [
        "iluvatarResourceName",
        "devicePlugin.passDeviceSpecsEnabled",
        "devicePlugin.monitor.ctrPath",
        "scheduler.replica",
        "scheduler.admissionWebhook.failPolicy",
        "scheduler.patch.imageNew: jobs run scheduler.extender.image",
    ]


def test_a_policy_that_could_stop_every_pod_is_warned_of() -> None:
    fail = {f"{WEBHOOK}.failurePolicy": "Fail"}
    assert "Careful" not in notes(fail)
    assert "overwriteEnv concerns every pod" in notes({**fail, "scheduler.overwriteEnv": True})


def test_a_ca_that_the_api_server_does_not_get_is_warned_of() -> None:
    own = {f"{WEBHOOK}.existingSecret": "mine"}
    warning = "The API server does not get the CA that signed mine"
    assert warning in notes({**own, "scheduler.patch.enabled": False})
    assert warning not in notes(own)
    assert warning not in notes({**own, f"{WEBHOOK}.caBundle": "Q0E="})


def test_vendors_without_an_account_of_their_plugin_are_named() -> None:
    opening = "Vendors whose device plugins have no account named: "
    [line] = [each for each in notes().splitlines() if each.startswith(opening)]
    assert line == f"{opening}cambricon, hygon, enflame, amd, biren."
    account = ["system:serviceaccount:a:b"]
    named = {
        "devices.cambricon.pluginAccounts": account,
        "devices.enflame.pluginAccounts": account,
        "devices.amd.enabled": False,
        "devices.biren.enabled": False,
    }
    text = notes(named)
    assert f"{opening}hygon.\n" in text
    assert "--set 'devices.hygon.pluginAccounts={system:serviceaccount:NAMESPACE:NAME}'" in text
    assert opening not in notes({**named, "devices.hygon.pluginAccounts": account})
    assert opening not in notes({"admissionPolicy.enabled": False})
    assert opening not in notes({"webhookOnly.enabled": True})


def test_where_policies_hold_the_account_of_another_device_plugin_must_be_named() -> None:
    asked = "admissionPolicy.trustedAccounts={system:serviceaccount:NAMESPACE:hami-device-plugin}"
    other = {"devicePlugin.enabled": False}
    assert asked in notes(other)
    assert asked not in notes({**other, "admissionPolicy.trustedAccounts": ["system:node-plugin"]})
    assert asked not in notes({**other, "admissionPolicy.enabled": False})
    assert asked not in notes()
