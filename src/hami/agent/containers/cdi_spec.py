"""Our CDI specs: one file and one device per allocation id.

A spec has everything that its container gets. Its edits override image and pod, so limits cannot be
undone there. The runtime watches the folder: a file is written beside the specs under a name that
no runtime reads and renamed into place, and an unchanged spec is not written again.
"""

from __future__ import annotations

from typing import Any

import msgspec

from hami.agent.containers import library, nvidia_cdi
from hami.node import files, layout
from hami.node.layout import NodeLayout
from hami.wire import codec, errors

#: The first in which a device's name may begin with a digit.
LOWEST_VERSION = "0.5.0"


class EditMount(msgspec.Struct, frozen=True):
    host: str
    container: str
    read_only: bool = True


class Edits(msgspec.Struct, frozen=True, kw_only=True):
    """What a container gets, by a CDI spec or by an answer to kubelet.

    Without CDI there are only `env` and `mounts`.
    """

    env: dict[str, str]
    mounts: tuple[EditMount, ...] = ()
    #: As CDI writes them.
    device_nodes: tuple[dict[str, Any], ...] = ()
    hooks: tuple[dict[str, Any], ...] = ()
    #: The driver's, as CDI writes them, with options of their own.
    driver_mounts: tuple[dict[str, Any], ...] = ()
    #: Lists under CDI's other names.
    more: dict[str, tuple[Any, ...]] = {}
    cdi_version: str = LOWEST_VERSION


def version(wanted: str) -> str:
    """Return the version of a spec that holds entries of a spec with the wanted version."""
    return max(wanted, LOWEST_VERSION, key=nvidia_cdi.version_key)


def encode(allocation_id: str, edits: Edits) -> bytes:
    """Return the spec of an allocation id as bytes."""
    content: dict[str, Any] = {
        "env": [f"{name}={value}" for name, value in edits.env.items()],
        "deviceNodes": edits.device_nodes,
        "hooks": edits.hooks,
        "mounts": [*edits.driver_mounts, *map(_mount, edits.mounts)],
        **edits.more,
    }
    return codec.encode(
        {
            "cdiVersion": edits.cdi_version,
            "kind": layout.CDI_KIND,
            "devices": [
                {
                    "name": allocation_id,
                    "containerEdits": {name: values for name, values in content.items() if values},
                }
            ],
        }
    )


def _mount(mount: EditMount) -> dict[str, Any]:
    return {
        "hostPath": mount.host,
        "containerPath": mount.container,
        "options": ["ro" if mount.read_only else "rw", "nosuid", "nodev", "bind"],
    }


def write(node: NodeLayout, allocation_id: str, edits: Edits) -> bool:
    """Write the spec of an allocation id; return whether it differed before."""
    path = node.spec(allocation_id)
    content = encode(allocation_id, edits)
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, content)
    return True


def allocation_ids(node: NodeLayout) -> list[str]:
    """Return the allocation ids that have a spec."""
    before, after = node.spec("*").name.split("*")
    names = (path.name for path in node.cdi_dir.glob(f"{before}*{after}"))
    found = (name.removeprefix(before).removesuffix(after) for name in names)
    return sorted(name for name in found if layout.is_allocation_id(name))


class _ListedMount(codec.Object, frozen=True):
    host_path: str = ""


class _ListedEdits(codec.Object, frozen=True):
    mounts: tuple[_ListedMount, ...] = ()


class _ListedDevice(codec.Object, frozen=True):
    container_edits: _ListedEdits = _ListedEdits()


class _ListedSpec(codec.Object, frozen=True):
    devices: tuple[_ListedDevice, ...] = ()


def libraries_in_use(node: NodeLayout) -> frozenset[str] | None:
    """Return the digests of the libraries that specs mount; None if one cannot be read."""
    found = set()
    for allocation_id in allocation_ids(node):
        path = node.spec(allocation_id)
        try:
            spec = codec.decode(path.read_bytes(), _ListedSpec, what=str(path))
        except FileNotFoundError:
            continue
        except (OSError, errors.WireError):
            return None
        for device in spec.devices:
            for mount in device.container_edits.mounts:
                found.add(library.digest_of(node, mount.host_path))
    return frozenset(found - {""})
