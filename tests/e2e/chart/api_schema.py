"""Check an object's fields against a release of Kubernetes.

Strict, as `kubectl apply --validate=strict` is: a field that the release does not have is an error,
because its API server would drop it in silence.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from tests.e2e.parts import catalogue
from tests.e2e.parts.api_schemas import api_schemas

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
#: Written as a text or as a number, whatever the document calls them.
_TEXT_OR_NUMBER = ("io.k8s.apimachinery.pkg.api.resource.Quantity",)
_REFERENCE = "#/definitions/"


class ApiSchema:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._kinds = {
            (f"{g}/{kind['version']}" if (g := kind["group"]) else kind["version"], kind["kind"]): (
                name
            )
            for name, definition in definitions.items()
            for kind in definition.get("x-kubernetes-group-version-kind", ())
        }

    def problems(self, obj: dict[str, Any]) -> list[str]:
        """Return what the release does not know or want of an object."""
        kind = (obj.get("apiVersion", ""), obj.get("kind", ""))
        name = self._kinds.get(kind)
        if name is None:
            return [f"{kind[0]} {kind[1]}: no such kind"]
        return [f"{kind[1]}{problem}" for problem in self._check({"$ref": _REFERENCE + name}, obj)]

    def _check(self, schema: dict[str, Any], value: Any, place: str = "") -> Iterator[str]:
        if value is None:
            return  # absent
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_REFERENCE)
            if name in _TEXT_OR_NUMBER and isinstance(value, (str, int, float)):
                return
            yield from self._check(self._definitions[name], value, place)
            return
        if schema.get("format") == "int-or-string" and isinstance(value, (str, int)):
            return
        expected = _TYPES.get(schema.get("type", ""))
        if expected is not None and (
            not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected)
        ):
            yield f"{place}: {value!r} is no {schema['type']}"
            return
        if isinstance(value, dict):
            yield from self._check_object(schema, value, place)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                yield from self._check(schema.get("items", {}), item, f"{place}[{number}]")

    def _check_object(
        self, schema: dict[str, Any], value: dict[str, Any], place: str
    ) -> Iterator[str]:
        properties = schema.get("properties")
        more = schema.get("additionalProperties")
        for key in schema.get("required", ()):
            if key not in value:
                yield f"{place}: {key} is missing"
        for key, item in value.items():
            if properties is not None and key in properties:
                yield from self._check(properties[key], item, f"{place}.{key}")
            elif more:
                yield from self._check(more, item, f"{place}.{key}")
            elif properties is not None:
                yield f"{place}.{key}: no such field"


@functools.cache
def of_release(minor: str) -> ApiSchema:
    """Read the API of a release, as in 1.28."""
    folder = catalogue.provide(api_schemas())
    return ApiSchema(json.loads((folder / f"{minor}.json").read_text())["definitions"])
