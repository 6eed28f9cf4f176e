"""Which cluster and namespace a command means, as kubectl decides it.

`hami.kube.access` finds the server; commands of people also choose a context by name and take the
namespace that it names. A context is chosen by laying a file that says only `current-context` over
the others, which is how kubeconfigs are merged anyway.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Mapping, Sequence

import yaml

from hami.cli import errors
from hami.kube import access, in_cluster, kubeconfig

_DEFAULT_NAMESPACE = "default"


def find(
    named: str, context: str, environ: Mapping[str, str] = os.environ
) -> tuple[access.Access, str]:
    """Return the way to the server and the namespace; raises AccessError or UsageError."""
    paths = _paths(named, environ)
    namespace = _namespace(paths, context) if paths else _own_namespace()
    if not context:
        return access.find(named), namespace
    if not paths:
        raise errors.usage(
            "--context", context, "is in no kubeconfig, as there is none", "add --kubeconfig=FILE"
        )
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as overlay:
        yaml.safe_dump({"current-context": context}, overlay)
        overlay.flush()
        return kubeconfig.load([overlay.name, *paths], some_may_be_missing=not named), namespace


def _paths(named: str, environ: Mapping[str, str]) -> list[str]:
    """Return the files that `access.find` would read; none in a pod."""
    if named:
        return [named]
    listed = [path for path in environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if listed or in_cluster.here():
        return listed
    home = pathlib.Path("~/.kube/config").expanduser()
    return [str(home)] if home.exists() else []


def _namespace(paths: Sequence[str], context: str) -> str:
    """Return the context's namespace. What is wrong with the files is told by who reads them."""
    documents = [document for path in paths if (document := _document(path))]
    current = context or next(
        (name for document in documents if (name := document.get("current-context"))), ""
    )
    for document in documents:
        contexts = document.get("contexts")
        for entry in contexts if isinstance(contexts, list) else ():
            if isinstance(entry, dict) and entry.get("name") == current:
                value = entry.get("context")
                found = value.get("namespace") if isinstance(value, dict) else None
                return str(found or _DEFAULT_NAMESPACE)
    return _DEFAULT_NAMESPACE


def _document(path: str) -> dict[str, object] | None:
    try:
        document = yaml.safe_load(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return document if isinstance(document, dict) else None


def _own_namespace(folder: str = in_cluster.FOLDER) -> str:
    try:
        text = pathlib.Path(folder, "namespace").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return _DEFAULT_NAMESPACE
    return text or _DEFAULT_NAMESPACE
