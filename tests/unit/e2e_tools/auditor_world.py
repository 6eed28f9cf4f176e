"""An API server in a dict and a node in a folder, for the auditor's tests."""

from __future__ import annotations

import base64
import copy
import json
import pathlib
import threading
from typing import Any

from tests.e2e.auditor.layouts import BARE
from tests.e2e.kubelet_api import checkpoint, checksum
from tests.e2e.kubelet_api.device_plugin import MESSAGES

NODE, UID, TOKEN = "node-1", "uid-1", "0123456789abcdef0123456789abcdef"
RESOURCE = "example.com/vgpu"


class FakeApi:
    """Keeps pods and nodes by path, each change with a new version.

    It replaces the client, not a server: the auditor's client is synchronous and used by threads,
    and tests decide at which event a watch ends. So the scripted API server cannot serve here.
    """

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.changed = threading.Condition()
        self.history: list[tuple[str, dict[str, Any]]] = []

    def get(self, path: str, **_: str | float) -> dict[str, Any]:
        with self.changed:
            if path in self.objects:
                return copy.deepcopy(self.objects[path])
            kind = {"pods": "Pod", "nodes": "Node"}[path.rsplit("/", 1)[1]]
            items = [one for one in self.objects.values() if one["kind"] == kind]
            metadata = {"resourceVersion": str(self.version)}
            return {"kind": f"{kind}List", "metadata": metadata, "items": copy.deepcopy(items)}

    def create(self, path: str, body: Any, **_: str | float) -> dict[str, Any]:
        made: dict[str, Any] = copy.deepcopy(body)
        name = made["metadata"]["name"]
        made["metadata"].setdefault("uid", f"uid-of-{name}")
        if "/namespaces/" in path:
            made["metadata"]["namespace"] = path.split("/")[4]
            made.setdefault("status", {"phase": "Pending"})
        return self._store("ADDED", f"{path}/{name}", made)

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        place = path.removesuffix("/status")
        merged = _merge(self.objects[place], body)
        return self._store("MODIFIED", place, merged)

    def delete(self, path: str, body: object = None, **_: str | float) -> dict[str, Any]:
        with self.changed:
            return self._store("DELETED", path, self.objects[path])

    def _store(self, change: str, path: str, thing: dict[str, Any]) -> dict[str, Any]:
        with self.changed:
            self.version += 1
            thing["metadata"]["resourceVersion"] = str(self.version)
            if change == "DELETED":
                del self.objects[path]
            else:
                self.objects[path] = thing
            self.history.append((change, copy.deepcopy(thing)))
            self.changed.notify_all()
            return copy.deepcopy(thing)


def _merge(thing: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(thing)
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = _merge(merged.get(key) or {}, value)
        else:
            merged[key] = value
    return merged


def running_pod() -> dict[str, Any]:
    return {
        "kind": "Pod",
        "metadata": {"uid": UID, "namespace": "team", "name": "one"},
        "spec": {
            "nodeName": NODE,
            "containers": [{"name": "main", "resources": {"limits": {RESOURCE: "1"}}}],
        },
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "state": {"running": {}}}],
        },
    }


def api() -> FakeApi:
    """Return the API of a cluster with one node and one pod that has a token."""
    made = FakeApi()
    made.create("/api/v1/nodes", {"kind": "Node", "metadata": {"name": NODE, "uid": "uid-node"}})
    made.create("/api/v1/namespaces/team/pods", running_pod())
    return made


def answer(**fields: Any) -> str:
    """Return a plugin's answer as kubelet keeps it."""
    message = MESSAGES["ContainerAllocateResponse"](**fields)
    return base64.b64encode(message.SerializeToString()).decode()


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "PodUID": UID,
        "ContainerName": "main",
        "ResourceName": RESOURCE,
        "DeviceIDs": {"-1": ["vgpu-000"]},
        "AllocResp": answer(
            mounts=[{"container_path": "/p", "host_path": f"{BARE.tokens}/{TOKEN}"}],
            cdi_devices=[{"name": f"{BARE.cdi_kind}={TOKEN}"}],
        ),
        **changes,
    }


def write_checkpoint(root: pathlib.Path, *entries: dict[str, Any]) -> None:
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {RESOURCE: ["vgpu-000"]}}
    whole: dict[str, Any] = {"Data": data, "Checksum": 0}
    whole["Checksum"] = checksum.of(whole)
    path = root / str(checkpoint.PATH).lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(whole))


def node_root(root: pathlib.Path) -> pathlib.Path:
    """Fill a folder with what a node has on which the bare plugin serves that one pod."""
    write_checkpoint(root, entry())
    policy = {"uid": UID, "pod": "team/one", "container": "main", "devices": ["vgpu-000"]}
    folder = root / BARE.tokens.lstrip("/") / TOKEN
    folder.mkdir(parents=True)
    (folder / BARE.policy_file).write_text(json.dumps(policy))
    env = ["NVIDIA_VISIBLE_DEVICES=GPU-vgpu-000", f"BARE_POD_UID={UID}", "BARE_CONTAINER=main"]
    device = {"name": TOKEN, "containerEdits": {"env": env}}
    spec = {"cdiVersion": "0.5.0", "kind": BARE.cdi_kind, "devices": [device]}
    cdi = root / "etc/cdi"
    cdi.mkdir(parents=True)
    (cdi / f"{BARE.spec_prefix}{TOKEN}.json").write_text(json.dumps(spec))
    return root
