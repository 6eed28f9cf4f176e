"""Paths on a GPU node, for agent and monitor.

The agent runs in a container that has these folders at the same paths as the node, so one path is
valid for our own files, for kubelet and for the runtime. See docs/designs/003-isolation.md.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

CDI_KIND = "hami.io/vgpu"
#: Carries the allocation id in our answer to Allocate, in both binding modes.
ALLOCATION_ANNOTATION = "hami.io/vgpu-token"
#: In containers, the folder of `policy/` and `state`: always this, so that every copy of the
#: library finds them. native/libvgpu/abi.h has the same.
SHARE = "/run/hami/share"
INSIDE_POLICY = f"{SHARE}/policy"
INSIDE_STATE = f"{SHARE}/state"

_ALLOCATION_ID = re.compile(r"[0-9a-f]{32}")
_UID = re.compile(r"[0-9a-zA-Z-]{1,63}")


def is_allocation_id(text: str) -> bool:
    """Return whether a text is an allocation id: nothing else may become part of a path."""
    return _ALLOCATION_ID.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Return whether a text can be a pod's UID: nothing else may become part of a path."""
    return _UID.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    """Folders from the settings, and the paths below them."""

    hook_path: Path = Path("/usr/local")
    state_dir: Path = Path("/var/lib/hami")
    run_dir: Path = Path("/run/hami")
    cdi_dir: Path = Path("/var/run/cdi")
    kubelet_dir: Path = Path("/var/lib/kubelet")

    # In the container.

    @property
    def inside(self) -> Path:
        """Return the library's folder in a container; the same path as on the node."""
        return self.hook_path / "vgpu"

    # On persistent disk.

    @property
    def libraries(self) -> Path:
        """Return the folder of <sha256>/libvgpu.so: a new library never replaces one in use."""
        return self.hook_path / "vgpu" / "lib"

    @property
    def preload(self) -> Path:
        return self.hook_path / "vgpu" / "ld.so.preload"

    @property
    def allocations(self) -> Path:
        return self.hook_path / "vgpu" / "tokens"

    def allocation_folder(self, allocation_id: str) -> Path:
        """Return the folder that is mounted read-only at `INSIDE_POLICY`."""
        return self.allocations / allocation_id

    def policy(self, allocation_id: str) -> Path:
        return self.allocations / allocation_id / "policy"

    @property
    def hami_containers(self) -> Path:
        """Return the folder of <pod UID>_<container>/*.cache, which HAMi's plugin creates."""
        return self.hook_path / "vgpu" / "containers"

    @property
    def ledger(self) -> Path:
        return self.state_dir / "ledger"

    def record(self, uid: str) -> Path:
        return self.ledger / f"{uid}.json"

    @property
    def context_costs(self) -> Path:
        return self.state_dir / "context-costs.json"

    @property
    def released_cards(self) -> Path:
        return self.state_dir / "released-cards.json"

    # Removed by a reboot.

    @property
    def states(self) -> Path:
        return self.run_dir / "state"

    def state_folder(self, allocation_id: str) -> Path:
        """Return the mount point of a small tmpfs: a container that fills it harms only itself."""
        return self.states / allocation_id

    def state(self, allocation_id: str) -> Path:
        return self.states / allocation_id / "state"

    def spec(self, allocation_id: str) -> Path:
        return self.cdi_dir / f"{CDI_KIND.replace('/', '-')}-{allocation_id}.json"

    # kubelet's.

    @property
    def device_plugins(self) -> Path:
        return self.kubelet_dir / "device-plugins"

    @property
    def kubelet_socket(self) -> Path:
        return self.device_plugins / "kubelet.sock"

    @property
    def checkpoint(self) -> Path:
        return self.device_plugins / "kubelet_internal_checkpoint"

    @property
    def pod_resources_socket(self) -> Path:
        return self.kubelet_dir / "pod-resources" / "kubelet.sock"
