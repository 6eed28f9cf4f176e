"""Map a token to its container, by the answer in kubelet's checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.e2e.auditor.evidence import Held, NodeFiles
from tests.e2e.auditor.layouts import Layout

Owners = Mapping[tuple[str, str], list[Held]]
"""By CDI kind and token: the checkpoint's entries that name it, which should be one."""


def of_entry(entry: Held, layout: Layout) -> set[str]:
    """Return the tokens of one plugin in an entry: by CDI devices, mounted folders, annotation."""
    found = of_devices(entry, layout)
    found |= {token for path in entry.mounts if (token := layout.token_of_path(path))}
    found |= of_annotation(entry, layout)
    return found


def of_annotation(entry: Held, layout: Layout) -> set[str]:
    """Return the one that the answer itself is called by."""
    named = layout.token_annotation and entry.annotations.get(layout.token_annotation)
    return {named} if named else set()


def of_devices(entry: Held, layout: Layout) -> set[str]:
    """Return those that the runtime has to find a CDI spec of."""
    return {token for name in entry.cdi_devices if (token := layout.token_of_device(name))}


def owners(files: NodeFiles, layouts: Iterable[Layout]) -> Owners:
    found: defaultdict[tuple[str, str], list[Held]] = defaultdict(list)
    for layout in layouts:
        for entry in files.checkpoint:
            for token in of_entry(entry, layout):
                found[layout.cdi_kind, token].append(entry)
    return dict(found)
