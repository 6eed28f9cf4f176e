"""gRPC on the sockets of a node: calls, who answers them, servers and channels.

The only module that loads grpc. grpc has no types, so `Any` stands for its things.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hami.agent.kubelet.messages import Shape

# Before grpc is loaded. Else it writes lines of its own into our log whenever a peer goes away.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc

#: A call failed; `why` says it in a line.
RpcError = grpc.RpcError
StatusCode = grpc.StatusCode

#: A node of many pods answers with more than grpc's usual 4 MiB.
_NO_LIMIT = ("grpc.max_receive_message_length", -1)


class Call(NamedTuple):
    """A call of a gRPC service, with the shapes of its messages."""

    service: str
    name: str
    request: Shape
    answer: Shape
    #: Whether answers come one after the other.
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
