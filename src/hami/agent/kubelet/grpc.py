"""gRPC on a node's sockets: protobuf messages, calls, servers.

kubelet and the runtimes speak protobuf over gRPC. The few messages that we need are in tables of
public field numbers (`kubelet_api`): strings, booleans, integers, messages, lists of those, maps of
strings. A message is a dict in which no field is missing. Protobuf's wire format is written by
hand, because its library alone costs 5 MiB of memory in every agent; tests compare the two.

Two things are simpler than in protobuf: a message that is no list element and comes twice is not
merged (the last one counts), and groups, which are not in use any more, are an error.

This is the only module that loads grpc. grpc has no types, so `Any` is written for its objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc

Message = dict[str, Any]

#: Wire types: how a field's value is encoded; in the lowest bits of the tag before it.
_VARINT, _FIXED64, _PIECE, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_DEFAULTS: Mapping[str, Any] = {"bool": False, "int32": 0, "int64": 0, "string": ""}
_BITS = {"int32": 32, "int64": 64}
_LONGEST_VARINT = 10


class MessageError(ValueError):
    """Bytes do not decode as this message."""


class Field(NamedTuple):
    """A field of a message: its number is on the wire, its name is ours."""

    number: int
    name: str
    #: A scalar, `map`, or the name of a message of the same table.
    kind: str
    repeated: bool = False


def one(number: int, name: str, kind: str = "string") -> Field:
    return Field(number, name, kind)


def many(number: int, name: str, kind: str = "string") -> Field:
    return Field(number, name, kind, repeated=True)


def texts(number: int, name: str) -> Field:
    """Return a field that maps text to text: on the wire, many pairs."""
    return Field(number, name, "map")


class Shape:
    """The fields of one kind of message."""

    def __init__(self, fields: Sequence[Field], shapes: Mapping[str, Shape]) -> None:
        self._fields = fields
        self._by_number = {field.number: field for field in fields}
        #: The table of all messages, by name.
        self._shapes = shapes

    def encode(self, values: Mapping[str, Any]) -> bytes:
        """Encode a message; fields that are absent or have their default are not written."""
        unknown = values.keys() - {field.name for field in self._fields}
        if unknown:
            raise MessageError(f"no such fields: {', '.join(sorted(unknown))}")
        parts: list[bytes] = []
        for field in self._fields:
            value = values.get(field.name)
            if value is None:
                continue
            if field.kind == "map":
                # Both halves of a pair are written, even empty ones.
                pairs = ((_text(1, key), _text(2, value[key])) for key in sorted(value))
                parts += [_piece(field.number, key + text) for key, text in pairs]
            elif field.repeated:
                parts += [self._encode(field, each) for each in value]
            elif field.kind not in _DEFAULTS or value != _DEFAULTS[field.kind]:
                parts.append(self._encode(field, value))
        return b"".join(parts)

    def _encode(self, field: Field, value: Any) -> bytes:
        if field.kind == "string":
            return _text(field.number, value)
        if field.kind in _DEFAULTS:
            return _varint(field.number << 3 | _VARINT) + _varint(int(value) & (1 << 64) - 1)
        return _piece(field.number, self._shapes[field.kind].encode(value))

    def decode(self, data: bytes) -> Message:
        """Decode a message; unknown fields and fields of another wire type are skipped."""
        values: Message = {field.name: _default(field) for field in self._fields}
        at, end = 0, len(data)
        while at < end:
            tag, at = _read_varint(data, at)
            number, layout = tag >> 3, tag & 7
            value: Any
            if layout == _PIECE:
                size, at = _read_varint(data, at)
                value = data[at : at + size]
                at += size
            elif layout == _VARINT:
                value, at = _read_varint(data, at)
            elif layout in _FIXED:
                value = None
                at += _FIXED[layout]
            else:
                raise MessageError(f"field {number} has layout {layout}, which is not in use")
            if at > end or not number:
                raise MessageError(f"ends within field {number}" if number else "has a field 0")
            field = self._by_number.get(number)
            if field is not None and layout == _layout(field):
                self._take(values, field, value)
        return values

    def _take(self, values: Message, field: Field, value: Any) -> None:
        if field.kind == "map":
            pair = _PAIR.decode(value)
            values[field.name][pair["key"]] = pair["value"]
            return
        if field.kind == "string":
            try:
                value = value.decode()
            except UnicodeDecodeError as error:
                raise MessageError(f"field {field.number} is no text: {error}") from error
        elif field.kind == "bool":
            value = value != 0
        elif field.kind in _BITS:
            value = _signed(value, _BITS[field.kind])
        else:
            value = self._shapes[field.kind].decode(value)
        if field.repeated:
            values[field.name].append(value)
        else:
            values[field.name] = value


def shapes(table: Mapping[str, Sequence[Field]]) -> dict[str, Shape]:
    """Return every message of the table."""
    made: dict[str, Shape] = {}
    made.update((name, Shape(fields, made)) for name, fields in table.items())
    return made


_PAIR = Shape((one(1, "key"), one(2, "value")), {})


def _default(field: Field) -> Any:
    if field.repeated:
        return []
    return {} if field.kind == "map" else _DEFAULTS.get(field.kind)


def _layout(field: Field) -> int:
    return _VARINT if field.kind in ("bool", *_BITS) else _PIECE


def _text(number: int, value: str) -> bytes:
    return _piece(number, value.encode())


def _piece(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _PIECE) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits to a byte
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at an offset, and the offset after it."""
    if at < len(data) and data[at] < 0x80:  # noqa: PLR2004 - nearly always
        return data[at], at + 1
    value = 0
    for index, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:  # noqa: PLR2004 - its last byte
            return value & (1 << 64) - 1, at + index + 1
    raise MessageError("ends within a number, or has one without end")


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


# Before grpc is loaded. Else it writes lines of its own into our log when a peer disconnects.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


#: A call failed; `why` gives the reason in one line.
RpcError = grpc.RpcError
StatusCode = grpc.StatusCode

#: A node of many pods answers with more than grpc's default of 4 MiB.
_NO_LIMIT = ("grpc.max_receive_message_length", -1)


class Call(NamedTuple):
    """A call of a gRPC service, with the shapes of its messages."""

    service: str
    name: str
    request: Shape
    answer: Shape
    #: Whether there are many answers, one after the other.
    streams: bool = False

    def on(self, channel: Any) -> Callable[..., Any]:
        """Return the function that makes this call on a channel."""
        make = channel.unary_stream if self.streams else channel.unary_unary
        function: Callable[..., Any] = make(
            f"/{self.service}/{self.name}",
            request_serializer=self.request.encode,
            response_deserializer=self.answer.decode,
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
            request_deserializer=self.request.decode,
            response_serializer=self.answer.encode,
        )


def handler(functions: Mapping[Call, Callable[..., Any]]) -> Any:
    """Return a handler for a server: the calls of one service, each with its function."""
    (service,) = {call.service for call in functions}
    answers = {call.name: call.answered_by(function) for call, function in functions.items()}
    return grpc.method_handlers_generic_handler(service, answers)


def server(socket: str | os.PathLike[str], *handlers: Any) -> Any:
    """Return a server on a socket, not started yet; RuntimeError: the socket cannot be used."""
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
        # A server that was down a moment ago may be up now: share no state with other channels.
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.aio.insecure_channel(f"unix:{os.fspath(socket)}", options)


def why(error: Any) -> str:
    """Return a failed call's reason in one line: grpc's code and the server's text."""
    return f"{error.code().name}: {error.details()}"
