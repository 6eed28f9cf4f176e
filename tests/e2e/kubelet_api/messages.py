"""Message classes and calls, built at import from tables of field numbers.

A message is one line of `name=number type` fields: `*` after the type means repeated, `?` optional,
`map` a map from string to string; a type that is no scalar is a message of the same table. A call
is `Request -> Answer`, with `*` after the answer for a stream. Each table gets a pool of its own,
because kubelet's package names (`v1`, `v1beta1`) are too common for one that is shared.

Neither grpc nor protobuf has types, so `Any` lives in this package; callers see dataclasses.
Who imports this imports grpc, which does not survive a fork: start programs, do not fork.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint64": _Field.TYPE_UINT64,
}


def messages(package: str, table: Mapping[str, str]) -> dict[str, Any]:
    """Return a class for each message of the table."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        for field in filter(None, map(str.strip, fields.split(","))):
            _add_field(message, f".{package}", field)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in table
    }


def _add_field(message: Any, package: str, text: str) -> None:
    place, kind = text.split()
    name, number = place.split("=")
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if kind.endswith("*"):
        field.label = _Field.LABEL_REPEATED
    elif kind.endswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    kind = kind.rstrip("*?")
    if kind == "map":
        entry = message.nested_type.add(name=f"{name.capitalize()}Entry")
        entry.options.map_entry = True
        _add_field(entry, package, "key=1 string")
        _add_field(entry, package, "value=2 string")
        field.label = _Field.LABEL_REPEATED
        kind = f"{message.name}.{entry.name}"
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type, field.type_name = _Field.TYPE_MESSAGE, f"{package}.{kind}"


@dataclasses.dataclass(frozen=True)
class Service:
    """A gRPC service: `calls` is its table, `types` its messages."""

    name: str
    calls: Mapping[str, str]
    types: Mapping[str, Any]

    def handler(self, functions: Mapping[str, Callable[..., Any]]) -> Any:
        """Return what a grpc server adds; a call without a function is answered UNIMPLEMENTED."""
        handlers = {}
        for call, function in functions.items():
            request, answer, streams = self._types(call)
            make = (
                grpc.unary_stream_rpc_method_handler
                if streams
                else grpc.unary_unary_rpc_method_handler
            )
            handlers[call] = make(
                function,
                request_deserializer=request.FromString,
                response_serializer=answer.SerializeToString,
            )
        return grpc.method_handlers_generic_handler(self.name, handlers)

    def call(self, channel: Any, call: str) -> Callable[..., Any]:
        """Return the function that makes this call on a channel, of grpc or of grpc.aio."""
        request, answer, streams = self._types(call)
        make = channel.unary_stream if streams else channel.unary_unary
        function: Callable[..., Any] = make(
            f"/{self.name}/{call}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        return function

    def _types(self, call: str) -> tuple[Any, Any, bool]:
        request, answer = self.calls[call].split(" -> ")
        return self.types[request], self.types[answer.rstrip("*")], answer.endswith("*")
