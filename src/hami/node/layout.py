"""Where everything lies on a GPU node (design D6), for the agent and the monitor alike.

The agent runs in a container that has these folders at the paths that the node has them at, so one
path is good for our own files, for kubelet and for the runtime.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

CDI_KIND = "hami.io/vgpu"
#: Names the allocation id in kubelet's record of an answer, in every mode.
ALLOCATION_ANNOTATION = "hami.io/vgpu-token"

_ALLOCATION_ID = re.compile(r"[0-9a-f]{32}")
_UID = re.compile(r"[0-9a-zA-Z-]{1,63}")


def is_allocation_id(text: str) -> bool:
    """Tell whether a text is a allocation id of ours: nothing else becomes part of a path."""
    return _ALLOCATION_ID.fullmatch(text) is not None


def is_uid(text: str) -> bool:
    """Tell whether a text can be a pod's UID: nothing else becomes part of a path."""
    return _UID.fullmatch(text) is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeLayout:
    hook_path: Path = Path("/usr/local")
    state_dir: Path = Path("/var/lib/hami")
    run_dir: Path = Path("/run/hami")
    cdi_dir: Path = Path("/var/run/cdi")
    kubelet_dir: Path = Path("/var/lib/kubelet")

    # In the container, beside the library: libvgpu looks there.

    @property
    def inside(self) -> Path:
        """The folder that a container finds everything in; the same path as on the node."""
        return self.hook_path / "vgpu"

    # On persistent disk.

    @property
    def libraries(self) -> Path:
        """Holds <sha256>/libvgpu.so: a new library never takes the place of one in use."""
        return self.hook_path / "vgpu" / "lib"

    @property
    def preload(self) -> Path:
        return self.hook_path / "vgpu" / "ld.so.preload"

    @property
    def allocations(self) -> Path:
        return self.hook_path / "vgpu" / "tokens"

    def allocation_folder(self, allocation_id: str) -> Path:
        """Mounted read-only as `policy` beside the library."""
        return self.allocations / allocation_id

    def policy(self, allocation_id: str) -> Path:
        return self.allocations / allocation_id / "policy"

    @property
    def hami_containers(self) -> Path:
        """Holds <pod UID>_<container>/*.cache of containers that HAMi's plugin started."""
        return self.hook_path / "vgpu" / "containers"

    @property
    def ledger(self) -> Path:
        return self.state_dir / "ledger"

    def record(self, uid: str) -> Path:
        return self.ledger / f"{uid}.json"

    # Gone after a reboot.

    @property
    def states(self) -> Path:
        return self.run_dir / "state"

    def state_folder(self, allocation_id: str) -> Path:
        """Return the place of a small tmpfs of its own: whoever fills it harms only himself."""
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
