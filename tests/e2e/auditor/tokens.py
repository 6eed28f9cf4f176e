"""Whose a token is: kubelet's checkpoint knows, it keeps the plugin's answer word for word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.e2e.auditor.evidence import Held, NodeFiles
from tests.e2e.auditor.layouts import Layout

Owners = Mapping[tuple[str, str], list[Held]]
"""By CDI kind and token: the checkpoint's entries that name it, which should be one."""


def of_entry(entry: Held, layout: Layout) -> set[str]:
    """Return the tokens of one plugin in an entry: its CDI devices and the folders it mounts."""
    found = {layout.token_of_device(name) for name in entry.cdi_devices}
    found |= {layout.token_of_path(path) for path in entry.mounts}
    return {token for token in found if token is not None}


def owners(files: NodeFiles, layouts: Iterable[Layout]) -> Owners:
    found: defaultdict[tuple[str, str], list[Held]] = defaultdict(list)
    for layout in layouts:
        for entry in files.checkpoint:
            for token in of_entry(entry, layout):
                found[layout.cdi_kind, token].append(entry)
    return dict(found)
