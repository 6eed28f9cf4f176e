"""Kubeconfig files for tests."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import yaml


def write(
    path: pathlib.Path,
    *,
    cluster: Mapping[str, Any] | None = None,
    user: Mapping[str, Any] | None = None,
    **more: Any,
) -> str:
    """Write a file with one context `here` of cluster `c` and user `u`; `more` lies on top."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": dict(cluster or {"server": "https://c:1"})}],
        "users": [{"name": "u", "user": dict(user or {})}],
        **more,
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)
