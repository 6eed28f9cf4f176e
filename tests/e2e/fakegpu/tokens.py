"""What hami's agent will leave on a node for one container, laid out by hand (design D4, D6).

The library by its digest, the token's folder with the policy, the state file, and the token's CDI
spec with the card and the driver's mounts. The answer to kubelet mounts all of it beside the
library and names it in /etc/ld.so.preload, which every process of the container reads.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

from hami.native import libraries
from hami.sandbox.gpu_models import MIB
from hami.wire import region
from tests.e2e.auditor import layouts
from tests.e2e.fakegpu import nodes
from tests.e2e.fakegpu.nodes import GpuNode
from tests.e2e.fakegpu.plugin import VISIBLE, CardPlugin
from tests.e2e.kubelet_api.device_plugin import Allocation, Mount
from tests.kubeapi.client import Object
from tests.native import building

IN_CONTAINER = "/usr/local/vgpu"
LIBRARIES = f"{layouts.HOOK}/vgpu/lib"
PRELOAD = f"{layouts.HOOK}/vgpu/ld.so.preload"


@dataclass(frozen=True)
class Token:
    node: GpuNode
    name: str

    @property
    def folder(self) -> str:
        return f"{layouts.HAMI.tokens}/{self.name}"

    @property
    def state_folder(self) -> str:
        return f"{layouts.HAMI.states}/{self.name}"

    @property
    def state(self) -> str:
        return f"{self.state_folder}/state"

    @property
    def spec(self) -> str:
        return f"/etc/cdi/{layouts.HAMI.spec_prefix}{self.name}.json"

    def write_policy(self, pod: Object, container: str, memory: int) -> None:
        """Give the container `memory` MiB of the node's card."""
        meta = pod["metadata"]
        policy = region.Policy(
            generation=1,
            pod_uid=meta["uid"],
            pod_namespace=meta["namespace"],
            pod_name=meta["name"],
            container=container,
            devices=(region.PolicyDevice(uuid=self.node.card.uuid, memory_limit=memory * MIB),),
        )
        path = self.node.path(self.folder) / layouts.HAMI.policy_file
        draft = path.with_suffix(".draft")
        draft.write_bytes(region.encode_policy(policy))
        draft.replace(path)

    def read_state(self) -> region.State:
        """Read what the container's processes wrote of themselves, as the monitor will."""
        return region.decode_state(self.node.path(self.state).read_bytes())


@contextlib.contextmanager
def prepared(
    node: GpuNode, plugin: CardPlugin, pod: Object, container: str, memory: int
) -> Iterator[Token]:
    """Prepare a container of a pod that is not bound yet: it is the next that kubelet asks for.

    When the block ends the pod must be gone; nothing of the token is left then.
    """
    token = Token(node, uuid.uuid4().hex)
    try:
        library = _install(node)
        _write(token, pod, container, memory)
        plugin.instead.append(_answer(token, library))
        yield token
    finally:
        for file in (token.spec, PRELOAD):
            node.path(file).unlink(missing_ok=True)
        for folder in (token.folder, token.state_folder, LIBRARIES):
            shutil.rmtree(node.path(folder), ignore_errors=True)


def _install(node: GpuNode) -> str:
    built = building.all_current() / "libvgpu.so"
    seen = f"{LIBRARIES}/{libraries.digest(built)}/libvgpu.so"
    node.path(seen).parent.mkdir(parents=True)
    shutil.copy(built, node.path(seen))
    node.path(PRELOAD).write_text(f"{IN_CONTAINER}/libvgpu.so\n")
    return seen


def _write(token: Token, pod: Object, container: str, memory: int) -> None:
    node = token.node
    node.path(token.folder).mkdir(parents=True)
    token.write_policy(pod, container, memory)
    node.path(token.state).parent.mkdir(parents=True, exist_ok=True)
    node.path(token.state).touch()
    node.path(token.state).chmod(0o666)
    driver = json.loads(node.path(nodes.SPEC).read_text())["containerEdits"]
    env = {
        VISIBLE: node.card.uuid,
        "CUDA_DEVICE_MEMORY_LIMIT_0": f"{memory}m",
        "FAKEGPU_DIR": nodes.FOLDER,
    }
    edits = {
        "env": [f"{name}={value}" for name, value in env.items()],
        "mounts": driver["mounts"],
    }
    spec = {
        "cdiVersion": "0.5.0",
        "kind": layouts.HAMI.cdi_kind,
        "devices": [{"name": token.name, "containerEdits": edits}],
    }
    nodes.write_spec(node.machine, token.spec, spec)


def _answer(token: Token, library: str) -> Allocation:
    return Allocation(
        envs={VISIBLE: "void"},
        mounts=(
            Mount(f"{IN_CONTAINER}/libvgpu.so", library),
            Mount(f"{IN_CONTAINER}/policy", token.folder),
            Mount(f"{IN_CONTAINER}/state", token.state, read_only=False),
            Mount("/etc/ld.so.preload", PRELOAD),
        ),
        cdi_devices=(f"{layouts.HAMI.cdi_kind}={token.name}",),
    )
