"""A node's folders under a temporary one, and containers to prepare on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from hami.agent.containers.nvidia_cdi import NvidiaSpecs
from hami.agent.containers.prepare import ContainerShares, PrepareConfig, Preparer
from hami.agent.containers.state_files import StateFiles
from hami.node.layout import NodeLayout
from hami.wire.node_register import RegisteredCard
from hami.wire.shares import Share

FIRST = "GPU-0a1b2c3d-1111-4000-8000-000000000001"
SECOND = "GPU-0a1b2c3d-2222-4000-8000-000000000002"
MIG = "MIG-5f1e0c4a-2222-5000-8000-000000000002"
ALLOCATION_ID = "0123456789abcdef" * 2
CARD_MEMORY = 24000

SHARE = ContainerShares(
    uid="uid-1",
    namespace="team",
    name="pod",
    container="main",
    allocation_id=ALLOCATION_ID,
    shares=(Share(card=FIRST, vendor="NVIDIA", memory_mib=4000, cores=30),),
)


def grant(uuid: str = FIRST, memory: int = 4000, cores: int = 30) -> Share:
    return Share(card=uuid, vendor="NVIDIA", memory_mib=memory, cores=cores)


def layout(root: Path) -> NodeLayout:
    return NodeLayout(
        hook_path=root / "hook",
        state_dir=root / "lib",
        run_dir=root / "run",
        cdi_dir=root / "cdi",
        kubelet_dir=root / "kubelet",
    )


class PlainStates(StateFiles):
    """Without mounts: nothing to clean up."""

    def _mount(self, folder: Path) -> None:
        pass


class Desk:
    """A preparer and its node."""

    def __init__(self, root: Path, states: type[StateFiles] = PlainStates, **config: Any) -> None:
        self.root = root
        self.layout = layout(root)
        self.nvidia = root / "nvidia"
        self.nvidia.mkdir(exist_ok=True)
        self.states = states(self.layout)
        self.devices = {
            uuid: RegisteredCard(id=uuid, index=index, count=10, devmem=CARD_MEMORY, devcore=100)
            for index, uuid in enumerate((FIRST, SECOND, MIG))
        }
        self.context_costs: dict[str, int] = {}
        self.configure(**config)

    def configure(self, **config: Any) -> None:
        """Start the agent again, with other settings."""
        self.preparer = Preparer(
            self.layout,
            library=self.layout.libraries / ("ab" * 32) / "libvgpu.so",
            states=self.states,
            nvidia=NvidiaSpecs([self.nvidia]),
            devices=self.devices.get,
            context_cost=lambda uuid, _limit: self.context_costs.get(uuid, 0),
            config=PrepareConfig(**config),
        )

    def share(self, *shares: Share, **changes: Any) -> ContainerShares:
        return msgspec.structs.replace(SHARE, shares=shares or SHARE.shares, **changes)

    def spec(self) -> dict[str, Any]:
        """Read the allocation id's spec, with paths as if the node's root were /."""
        text = self.layout.spec(ALLOCATION_ID).read_text().replace(str(self.root), "")
        found: dict[str, Any] = json.loads(text)
        return found

    def edits(self) -> dict[str, Any]:
        found: dict[str, Any] = self.spec()["devices"][0]["containerEdits"]
        return found

    def env(self) -> dict[str, str]:
        return dict(variable.split("=", 1) for variable in self.edits()["env"])
