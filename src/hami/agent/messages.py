"""Message classes and gRPC calls, made at run time from tables of public field numbers.

kubelet and the runtimes speak protobuf over gRPC. The few messages that we need are said in tables
(`kubelet_api`), as the APIs' documentation numbers them. A table is written as the description that
protobuf's own library reads; by hand, because the library's classes for descriptions
(`descriptor_pb2`) cost 4 MiB and those bytes are simple. Every table has a pool of its own: package
names such as `v1` are too common to be shared.

Neither grpc nor protobuf has types, so `Any` begins here; callers of `kubelet_api` see dataclasses.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

# Before grpc is loaded, so nobody else loads it. Else it writes lines of its own into our log
# whenever a peer goes away.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
from google.protobuf import descriptor_pool, message_factory

#: A call failed; `why` says it in a line.
RpcError = grpc.RpcError
StatusCode = grpc.StatusCode

#: A node of many pods answers with more than grpc's usual 4 MiB.
_NO_LIMIT = ("grpc.max_receive_message_length", -1)
_SCALARS = {"bool": 8, "int32": 5, "int64": 3, "string": 9, "uint64": 4}
_MESSAGE = 11
_ONE, _MANY = 1, 3


class Field(NamedTuple):
    """A field of a message: its number is what crosses the wire, its name is for us."""

    number: int
    name: str
    #: A scalar, or the name of a message of the same table.
    kind: str
    repeated: bool = False
    is_map: bool = False


def one(number: int, name: str, kind: str = "string") -> Field:
    return Field(number, name, kind)


def many(number: int, name: str, kind: str = "string") -> Field:
    return Field(number, name, kind, repeated=True)


def texts(number: int, name: str) -> Field:
    """Return a map from text to text."""
    return Field(number, name, "", is_map=True)


def classes(package: str, table: Mapping[str, Sequence[Field]]) -> dict[str, Any]:
    """Return the class of every message of the table."""
    file = [_text(1, f"{package}.proto"), _text(2, package), _text(12, "proto3")]
    file += [_part(4, _message(package, name, fields)) for name, fields in table.items()]
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(b"".join(file))
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in table
    }


def _message(package: str, name: str, fields: Sequence[Field]) -> bytes:
    parts = [_text(1, name)]
    for field in fields:
        kind = field.kind
        if field.is_map:
            # On the wire a map is many pairs.
            kind = f"{name}.{_pair_name(field.name)}"
            parts.append(_part(3, _pair(package, _pair_name(field.name))))
        many_of_it = field.repeated or field.is_map
        parts.append(_part(2, _field(package, field._replace(kind=kind, repeated=many_of_it))))
    return b"".join(parts)


def _pair_name(field: str) -> str:
    # The library insists on this name.
    return f"{''.join(word.capitalize() for word in field.split('_'))}Entry"


def _pair(package: str, name: str) -> bytes:
    key, value = (_part(2, _field(package, one(n, part))) for n, part in ((1, "key"), (2, "value")))
    return _text(1, name) + key + value + _part(7, _number(7, 1))


def _field(package: str, field: Field) -> bytes:
    kind = _SCALARS.get(field.kind)
    described = _text(1, field.name) + _number(3, field.number)
    described += _number(4, _MANY if field.repeated else _ONE) + _number(5, kind or _MESSAGE)
    return described if kind else described + _text(6, f".{package}.{field.kind}")


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _part(field, value.encode())


def _part(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


class Call(NamedTuple):
    """A call of a gRPC service, with the classes of its messages."""

    service: str
    name: str
    request: Any
    answer: Any
    #: Whether answers come one after the other.
    streams: bool = False

    def on(self, channel: Any) -> Callable[..., Any]:
        """Return the function that makes this call on a channel."""
        make = channel.unary_stream if self.streams else channel.unary_unary
        function: Callable[..., Any] = make(
            f"/{self.service}/{self.name}",
            request_serializer=self.request.SerializeToString,
            response_deserializer=self.answer.FromString,
        )
        return function

    def answered_by(self, function: Callable[..., Any]) -> Any:
        make = (
            grpc.unary_stream_rpc_method_handler
            if self.streams
            else grpc.unary_unary_rpc_method_handler
        )
        return make(
            function,
            request_deserializer=self.request.FromString,
            response_serializer=self.answer.SerializeToString,
        )


def handler(functions: Mapping[Call, Callable[..., Any]]) -> Any:
    """Return what a server adds: the calls of one service, each with what answers it."""
    (service,) = {call.service for call in functions}
    answers = {call.name: call.answered_by(function) for call, function in functions.items()}
    return grpc.method_handlers_generic_handler(service, answers)


def server(socket: str | os.PathLike[str], *handlers: Any) -> Any:
    """Return a server on a socket, not started yet; RuntimeError: it cannot be there."""
    made = grpc.aio.server(options=(_NO_LIMIT,))
    made.add_generic_rpc_handlers(handlers)
    made.add_insecure_port(f"unix:{os.fspath(socket)}")
    return made


def channel(socket: str | os.PathLike[str]) -> Any:
    """Return a channel to a socket of this node, to be used with `async with`."""
    options = (
        # A Go server refuses the authority that grpc makes of a path.
        ("grpc.default_authority", "localhost"),
        _NO_LIMIT,
        # A server that was down a moment ago may be up now: no memory of it from other channels.
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.aio.insecure_channel(f"unix:{os.fspath(socket)}", options)


def why(error: Any) -> str:
    """Return a failed call's reason in a line: grpc's code and what the other side said."""
    return f"{error.code().name}: {error.details()}"
