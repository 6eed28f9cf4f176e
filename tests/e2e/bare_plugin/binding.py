"""A token at Allocate, an owner at PreStart; nothing else.

It follows docs/designs/001-late-binding.md. Allocate does not say for whom it is. So the container
gets a token: a CDI device that nothing describes yet and a folder that is still empty. When kubelet
is about to create the container, its checkpoint says whose token that is; now the folder gets the
policy and CDI the device. All of it blocks (files, the API): call it from a thread.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import pathlib
import re
import shutil
import time
import uuid
from collections.abc import Iterable

from tests.e2e.bare_plugin.pods import Pod, Pods
from tests.e2e.kubelet_api import checkpoint
from tests.e2e.kubelet_api.checkpoint import Entry
from tests.e2e.kubelet_api.device_plugin import Allocation, Mount, RefusedError

KIND = "bare.hami.io/vgpu"
CDI_DIR = pathlib.PurePosixPath("/etc/cdi")
FOLDER = pathlib.PurePosixPath("/var/lib/bare-plugin")
TOKENS = FOLDER / "tokens"
POLICY_MOUNT = "/run/bare/policy"
POLICY_FILE = "policy.json"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"

_TOKEN = re.compile(r"[0-9a-f]{32}")
_SPEC = re.compile(rf"bare\.hami\.io-vgpu-({_TOKEN.pattern})\.json")
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Node:
    """Where the node's folders are for us. Absolute links in them would lead out of the node."""

    root: pathlib.Path
    cdi_dir: pathlib.PurePosixPath = CDI_DIR

    def path(self, seen_in_node: pathlib.PurePosixPath) -> pathlib.Path:
        return self.root / seen_in_node.relative_to("/")


class LateBinding:
    def __init__(self, node: Node, resource: str, pods: Pods) -> None:
        self._checkpoint = node.path(checkpoint.PATH)
        self._tokens = node.path(TOKENS)
        self._cdi = node.path(node.cdi_dir)
        # Each beside its target, on the same file system; CDI does not look into folders.
        self._staging = (node.path(FOLDER) / "staging", self._cdi / ".bare-plugin")
        self._resource = resource
        self._pods = pods
        for folder in (self._tokens, *self._staging):
            folder.mkdir(parents=True, exist_ok=True)

    def allocate(self) -> Allocation:
        token = uuid.uuid4().hex
        (self._tokens / token).mkdir()
        return Allocation(
            envs={VISIBLE: "void"},
            mounts=(Mount(POLICY_MOUNT, str(TOKENS / token), read_only=True),),
            cdi_devices=(f"{KIND}={token}",),
        )

    def prepare(self, device_ids: frozenset[str]) -> None:
        """Give the tokens of these devices their owner. RefusedError says why that cannot be.

        kubelet re-uses an init container's devices for a main container of the pod: both are
        prepared, because nothing tells which of the two is about to start.
        """
        begin = time.monotonic()
        ours = [
            (entry, token)
            for entry in checkpoint.read(self._checkpoint).of_resource(self._resource)
            if entry.device_ids == device_ids
            for token in _tokens(entry)
        ]
        ids = ",".join(sorted(device_ids))
        owners = sorted({entry.pod_uid for entry, _token in ours})
        if len(owners) != 1:
            raise RefusedError(
                f"kubelet's checkpoint gives {self._resource} {ids} with a token of ours to "
                f"{' and '.join(owners) or 'no pod'}; exactly one pod must hold it"
            )
        pod = self._pods.find(owners[0])
        if pod is None:
            raise RefusedError(f"the API server has no pod with UID {owners[0]} on this node")
        for entry, token in ours:
            self._prepare(entry, token, pod)
        took = (time.monotonic() - begin) * 1000
        _log.info("prepared %s for %s, %d token(s), %.1f ms", ids, pod.name, len(ours), took)

    def sweep(self, older_than: float) -> None:
        """Forget the tokens whose pod is gone.

        kubelet's checkpoint keeps a gone pod until kubelet writes it again, so the API is asked as
        well. A token that is younger than `older_than` seconds may not be in the checkpoint yet.
        """
        newest = time.time() - older_than
        tokens = {
            token
            for token in self._tokens_on_disk()
            if not (folder := self._tokens / token).exists() or folder.stat().st_mtime <= newest
        }
        if not tokens:
            return
        entries = checkpoint.read(self._checkpoint).of_resource(self._resource)
        owners = {token: entry.pod_uid for entry in entries for token in _tokens(entry)}
        alive = self._pods.uids()
        for token in sorted(tokens):
            if owners.get(token) not in alive:
                self.forget(token)

    def forget(self, token: str) -> None:
        self._spec(token).unlink(missing_ok=True)
        shutil.rmtree(self._tokens / token, ignore_errors=True)

    def close(self) -> None:
        """Leave only what containers need."""
        for folder in self._staging:
            shutil.rmtree(folder, ignore_errors=True)

    def _prepare(self, entry: Entry, token: str, pod: Pod) -> None:
        limit = pod.limits.get(entry.container, {}).get(self._resource, "0")
        if limit != str(len(entry.device_ids)):
            raise RefusedError(
                f"kubelet gave container {entry.container!r} of pod {pod.name} "
                f"{len(entry.device_ids)} of {self._resource}, but its limit says {limit}"
            )
        ids = sorted(entry.device_ids)
        owner = {"uid": entry.pod_uid, "pod": pod.name, "container": entry.container}
        env = {
            VISIBLE: ",".join(f"GPU-{one}" for one in ids),
            "BARE_POD_UID": entry.pod_uid,
            "BARE_CONTAINER": entry.container,
        }
        edits = {"env": [f"{name}={value}" for name, value in env.items()]}
        spec = {
            "cdiVersion": "0.5.0",  # the first whose device names may begin with a digit
            "kind": KIND,
            "devices": [{"name": token, "containerEdits": edits}],
        }
        folder = self._tokens / token
        folder.mkdir(exist_ok=True)
        _move_in({**owner, "devices": ids}, folder / POLICY_FILE, self._staging[0])
        _move_in(spec, self._spec(token), self._staging[1])

    def _spec(self, token: str) -> pathlib.Path:
        return self._cdi / f"bare.hami.io-vgpu-{token}.json"

    def _tokens_on_disk(self) -> Iterable[str]:
        yield from (path.name for path in self._tokens.iterdir() if _TOKEN.fullmatch(path.name))
        specs = (_SPEC.fullmatch(path.name) for path in self._cdi.iterdir())
        yield from (spec[1] for spec in specs if spec)


def _tokens(entry: Entry) -> Iterable[str]:
    for name in entry.allocation().cdi_devices:
        kind, _, token = name.partition("=")
        if kind == KIND and _TOKEN.fullmatch(token):
            yield token


def _move_in(content: object, target: pathlib.Path, staging: pathlib.Path) -> None:
    """Write elsewhere and rename, so that nobody ever reads half; the same is not written twice."""
    text = json.dumps(content)
    if target.exists() and target.read_text() == text:
        return
    draft = staging / uuid.uuid4().hex
    draft.write_text(text)
    draft.replace(target)
