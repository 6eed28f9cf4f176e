"""Faults in a real node's folders: files, checkpoint, driver's record.

They leave the pod that runs there alone: kubelet reads its checkpoint at starts only, and a
container's spec and policy are read when it is made.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from tests.e2e.auditor import peaks, planting, stage
from tests.e2e.auditor.findings import Kind
from tests.e2e.auditor.layouts import Layout
from tests.e2e.auditor.planting import Build, Context, Plant, plant
from tests.e2e.kubelet_api.device_plugin import Allocation

_MIB = 2**20
_TOTAL = 8000 * _MIB
_ELSE = "00000000-0000-0000-0000-000000000000"


def _spec_text(layout: Layout, token: str) -> bytes:
    env = ["NVIDIA_VISIBLE_DEVICES=GPU-plant-0"]
    device = {"name": token, "containerEdits": {"env": env}}
    return json.dumps(
        {"cdiVersion": "0.5.0", "kind": layout.cdi_kind, "devices": [device]}
    ).encode()


Choice = Callable[[Context], Layout]


def _bare(context: Context) -> Layout:
    return context.layout


def _hami(context: Context) -> Layout:
    return context.hami


def _spec(choice: Choice, content: bytes | None = None) -> Build:
    def build(context: Context, undo: contextlib.ExitStack) -> None:
        layout = choice(context)
        token = planting.new_token()
        path = context.path(f"{layout.cdi_folders[-1]}/{layout.spec_prefix}{token}.json")
        text = _spec_text(layout, token) if content is None else content
        undo.callback(planting.write(path, text))

    return build


def _folder(choice: Choice) -> Build:
    def build(context: Context, undo: contextlib.ExitStack) -> None:
        path = context.path(f"{choice(context).tokens}/{planting.new_token()}")
        undo.callback(planting.make_folders(path))

    return build


def _state(context: Context, undo: contextlib.ExitStack) -> None:
    path = context.path(f"{context.hami.states}/{planting.new_token()}/state")
    undo.callback(planting.write(path, b""))


def _ledger(content: bytes) -> Build:
    def build(context: Context, undo: contextlib.ExitStack) -> None:
        path = context.path(f"{context.hami.ledger}/{planting.new_token()}")
        undo.callback(planting.write(path, content))

    return build


def _policy(change: Callable[[dict[str, Any]], None]) -> Build:
    def build(context: Context, undo: contextlib.ExitStack) -> None:
        undo.callback(planting.edit_json(context.policy_file, change))

    return build


def _env(name: str, value: str) -> Build:
    """Change what the spec of the running pod sets."""

    def change(spec: dict[str, Any]) -> None:
        edits = spec["devices"][0]["containerEdits"]
        kept = [one for one in edits["env"] if not one.startswith(f"{name}=")]
        edits["env"] = [*kept, f"{name}={value}"]

    def build(context: Context, undo: contextlib.ExitStack) -> None:
        undo.callback(planting.edit_json(context.spec_file, change))

    return build


def _bad_policy(context: Context, undo: contextlib.ExitStack) -> None:
    undo.callback(planting.write(context.policy_file, b"{"))


def _no_policy(context: Context, undo: contextlib.ExitStack) -> None:
    undo.callback(planting.take_away(context.policy_file))


def _staged_pod(context: Context, undo: contextlib.ExitStack, devices: str | None) -> str:
    made = context.stage()
    undo.callback(made.take_down)
    made.set_node()
    return str(made.add_pod(devices)["metadata"]["uid"])


def _token_twice(context: Context, undo: contextlib.ExitStack) -> None:
    uid = _staged_pod(context, undo, None)
    ids = {"-1": ["plant-0"]}
    undo.callback(planting.add_to_checkpoint(context, uid=uid, DeviceIDs=ids))


def _answer_limits(context: Context, undo: contextlib.ExitStack) -> None:
    """Let kubelet know of a container without CDI that was told to use another card."""
    uid = _staged_pod(context, undo, stage.grant(1000, 10))
    token = planting.new_token()
    assert context.hami.token_annotation is not None
    answer = Allocation(
        envs={"NVIDIA_VISIBLE_DEVICES": "GPU-plant-1", "CUDA_DEVICE_MEMORY_LIMIT_0": "1000m"},
        annotations={context.hami.token_annotation: token},
    )
    undo.callback(
        planting.add_to_checkpoint(
            context,
            uid=uid,
            DeviceIDs={"-1": ["plant-0"]},
            AllocResp=base64.b64encode(answer.encode()).decode(),
        )
    )


def _device_twice(context: Context, undo: contextlib.ExitStack) -> None:
    uid = _staged_pod(context, undo, None)
    undo.callback(planting.add_to_checkpoint(context, uid=uid, AllocResp=""))


def _resources_differ(context: Context, undo: contextlib.ExitStack) -> None:
    undo.callback(
        planting.add_to_checkpoint(
            context,
            uid=context.pod["metadata"]["uid"],
            ContainerName=context.pod["spec"]["containers"][0]["name"],
            ResourceName="plant.hami.io/none",
            DeviceIDs={"-1": ["plant-0"]},
            AllocResp="",
        )
    )


def _record(context: Context, undo: contextlib.ExitStack, line: str) -> None:
    path = context.path(f"{context.driver_state}/{peaks.FILE}")
    before = path.read_bytes() if path.exists() else b""
    undo.callback(planting.write(path, before + line.encode() + b"\n"))


def _peak(owner: str, allocated: int) -> str:
    return json.dumps(
        {
            "time": time.time(),
            "card": stage.CARD,
            "owner": owner,
            "pid": 0,
            "bytes": allocated,
            "total": _TOTAL,
        }
    )


def _card_overrun(context: Context, undo: contextlib.ExitStack) -> None:
    _record(context, undo, _peak("", _TOTAL + 1))


def _limit_overrun(context: Context, undo: contextlib.ExitStack) -> None:
    uid = _staged_pod(context, undo, stage.grant(1000, 10))
    _record(context, undo, _peak(f"{uid}/main", 1000 * _MIB + 1))


def _ungranted(context: Context, undo: contextlib.ExitStack) -> None:
    uid = _staged_pod(context, undo, None)
    _record(context, undo, _peak(f"{uid}/main", 1))


def _bad_record(context: Context, undo: contextlib.ExitStack) -> None:
    _record(context, undo, '{"card": 1}')


PLANTS: tuple[Plant, ...] = (
    plant("a CDI spec of the bare plugin that nobody owns", _spec(_bare), Kind.SPEC_LEFT),
    plant("a CDI spec of hami that nobody owns", _spec(_hami), Kind.SPEC_LEFT),
    plant(
        "a CDI spec of nobody that is none",
        _spec(_hami, b"{}"),
        Kind.SPEC_LEFT,
        Kind.SPEC_MALFORMED,
    ),
    plant("a folder of the bare plugin that nobody owns", _folder(_bare), Kind.FOLDER_LEFT),
    plant("a folder of hami that nobody owns", _folder(_hami), Kind.FOLDER_LEFT),
    plant("a state file that nobody owns", _state, Kind.STATE_LEFT),
    plant(
        "a ledger entry of a pod that is gone",
        _ledger(json.dumps({"uid": _ELSE}).encode()),
        Kind.LEDGER_LEFT,
    ),
    plant("a ledger entry that is none", _ledger(b"?"), Kind.UNREADABLE),
    plant("another's policy", _policy(lambda one: one.update(uid=_ELSE)), Kind.POLICY_OWNER),
    plant(
        "a policy for other devices",
        _policy(lambda one: one.update(devices=["x"])),
        Kind.POLICY_LIMITS,
    ),
    plant("a policy that is none", _bad_policy, Kind.POLICY_MALFORMED),
    plant("a running container without policy", _no_policy, Kind.TOKEN_MISSING),
    plant("another's environment", _env("BARE_POD_UID", _ELSE), Kind.SPEC_OWNER),
    plant(
        "an environment with other cards", _env("NVIDIA_VISIBLE_DEVICES", "GPU-x"), Kind.SPEC_LIMITS
    ),
    plant("an answer without CDI for another card", _answer_limits, Kind.ANSWER_LIMITS),
    plant("a token given twice", _token_twice, Kind.TOKEN_TWICE),
    plant("a device id given twice", _device_twice, Kind.DEVICE_TWICE),
    plant("a checkpoint unlike PodResources", _resources_differ, Kind.RESOURCES_DIFFER),
    plant("a card with more allocated than it has", _card_overrun, Kind.DRIVER_CARD),
    plant("a container above its limit", _limit_overrun, Kind.DRIVER_LIMIT),
    plant("a container on a card it was not given", _ungranted, Kind.DRIVER_NO_GRANT),
    plant("a driver's record that is none", _bad_record, Kind.DRIVER_RECORD),
)
