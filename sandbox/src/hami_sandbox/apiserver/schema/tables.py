"""Tables that kubectl prints, and objects cut to their metadata."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from hami_sandbox.apiserver import refusals
from hami_sandbox.apiserver.kinds import Kind
from hami_sandbox.apiserver.refusals import Object
from hami_sandbox.apiserver.schema import rows

_INCLUDED = frozenset({"", "None", "Metadata", "Object"})


def table(
    kind: Kind,
    objects: Sequence[Object],
    *,
    now: dt.datetime,
    include_object: str = "Metadata",
    version: str = "v1",
    metadata: Object | None = None,
    columns: bool = True,
) -> Object:
    """Return a Table; `metadata` is that of the list, `columns=False` is for later watch events.

    An `include_object` other than "", None, Metadata and Object is refused with 400.
    """
    if include_object not in _INCLUDED:
        raise refusals.bad_request(
            f'unrecognized includeObject value: "{include_object}"; '
            "it is one of Object, Metadata and None"
        )
    sheet = rows.SHEETS.get((kind.group, kind.kind), rows.PLAIN)
    lines = []
    for obj in objects:
        line: Object = {"cells": sheet.row(obj, now)}
        if include_object == "Object":
            line["object"] = {"kind": kind.kind, "apiVersion": kind.api_version, **obj}
        elif include_object != "None":
            line["object"] = partial(obj, version=version)
        lines.append(line)
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata or {},
        "columnDefinitions": _columns(sheet) if columns else None,
        "rows": lines,
    }


def partial(obj: Object, *, version: str = "v1") -> Object:
    """Return PartialObjectMetadata of one object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


def partial_list(objects: Sequence[Object], *, metadata: Object, version: str = "v1") -> Object:
    """Return a PartialObjectMetadataList."""
    return {
        "kind": "PartialObjectMetadataList",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": metadata,
        "items": [partial(obj, version=version) for obj in objects],
    }


def _columns(sheet: rows.Sheet) -> list[Object]:
    narrow = [(name, int(name in rows.WIDE_BETWEEN)) for name in sheet.columns]
    return [
        {
            "name": name,
            "type": "integer" if name in rows.INTEGERS else "string",
            "format": "name" if name == "Name" else "",
            "description": "",
            "priority": priority,
        }
        for name, priority in (*narrow, *((name, 1) for name in sheet.wide))
    ]
