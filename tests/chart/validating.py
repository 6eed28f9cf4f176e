"""Objects against the schemas of each Kubernetes: fields that it does not know are errors.

From 1.25 on the schemas are those of kubernetes-validate, before they were made by `make_schemas`.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]  # comes without types
import kubernetes_validate  # type: ignore[import-untyped]  # comes without types

from tests.chart import make_schemas

OLD = ("1.18", "1.22")

#: What `check` raises.
Invalid = jsonschema.ValidationError

# Else it reads its largest file again for every object.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)


def check(document: dict[str, Any], version: str) -> None:
    """Raise Invalid if an API server of the version would not take the object whole."""
    minor = ".".join(version.split(".")[:2])
    if minor in OLD:
        _check_old(document, minor)
    else:
        kubernetes_validate.validate(document, minor, strict=True)


def _check_old(document: dict[str, Any], minor: str) -> None:
    schemas = _schemas(minor)
    kind = f"{document['apiVersion']} {document['kind']}"
    if kind not in schemas["kinds"]:
        raise Invalid(f"Kubernetes {minor} has no {kind}")
    reference = make_schemas.REFERENCE + schemas["kinds"][kind]
    schema = {"$ref": reference, "definitions": schemas["definitions"]}
    jsonschema.Draft7Validator(schema).validate(document)


@functools.cache
def _schemas(minor: str) -> dict[str, Any]:
    found = json.loads((make_schemas.FOLDER / f"v{minor}.json").read_text())
    assert isinstance(found, dict)
    return found
