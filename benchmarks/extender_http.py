"""One kept-alive connection for `benchmarks.extender`, and the kernel's counts.

The connection is a bare socket: a client library would spend as long on a call as the server.
"""

from __future__ import annotations

import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import msgspec

_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\r\n0\r\n\r\n"
#: In place of a length: the body comes in chunks.
_CHUNKED = -1
WARM_UP = 5
_TICKS = os.sysconf("SC_CLK_TCK")
#: Reads a page again and again, until it is ended; its lines are seconds.
_READER = """
import sys, time, urllib.request
while True:
    begin = time.perf_counter()
    with urllib.request.urlopen(sys.argv[1]) as answer:
        size = len(answer.read())
    print(time.perf_counter() - begin, size, flush=True)
"""


class Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=600)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(8 * 2**20))

    def close(self) -> None:
        self._socket.close()

    def call(self, method: str, path: str, body: bytes = b"") -> tuple[float, bytes]:
        """Send a request; returns the seconds until the whole answer was there, and its body."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: kube-scheduler/bench\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        begin = time.perf_counter()
        self._socket.sendall(request)
        head_end, length, got = 0, 0, 0
        while not head_end or not self._is_whole(got, head_end, length):
            received = self._socket.recv_into(self._buffer[got:])
            if not received:
                raise ConnectionError(f"{path}: the server closed the connection")
            got += received
            if not head_end:
                head_end, length = _read_head(bytes(self._buffer[: min(got, 8192)]))
        took = time.perf_counter() - begin
        body = bytes(self._buffer[head_end:got])
        return took, _joined(body) if length == _CHUNKED else body

    def _is_whole(self, got: int, head_end: int, length: int) -> bool:
        if length == _CHUNKED:
            return got >= head_end + len(_LAST_CHUNK) and (
                self._buffer[got - len(_LAST_CHUNK) : got] == _LAST_CHUNK
            )
        return got >= head_end + length


def _read_head(begin: bytes) -> tuple[int, int]:
    """Return where the body begins and how long it is; 0 while that has not arrived."""
    head, found, _ = begin.partition(_HEAD_END)
    if not found:
        return 0, 0
    status, *lines = head.split(b"\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in lines)
    if status.split()[1] != b"200":
        raise ConnectionError(f"the server answered {begin[:500]!r}")
    return len(head) + len(_HEAD_END), int(fields.get(b"content-length", _CHUNKED))


def _joined(chunks: bytes) -> bytes:
    body = []
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        length = int(size, 16)
        body.append(rest[:length])
        chunks = rest[length + 2 :]
    return b"".join(body)


class Measured(msgspec.Struct, frozen=True):
    """Many calls of one kind, in seconds."""

    calls: int
    p50: float
    p99: float
    best: float
    #: CPU of the server process a call, with all it does in the background meanwhile.
    cpu: float


def measure(
    pid: int,
    call: Callable[[int], float],
    *,
    seconds: float,
    least: int = 30,
    warm_up: int = WARM_UP,
) -> Measured:
    """Call again and again, one after the other as kube-scheduler does."""
    for number in range(warm_up):
        call(number)
    times: list[float] = []
    before = cpu_seconds(pid)
    end = time.perf_counter() + seconds
    while len(times) < least or time.perf_counter() < end:
        times.append(call(warm_up + len(times)))
    cpu = (cpu_seconds(pid) - before) / len(times)
    times.sort()
    return Measured(
        calls=len(times),
        p50=statistics.median(times),
        p99=times[int(len(times) * 0.99)],
        best=times[0],
        cpu=cpu,
    )


def cpu_seconds(pid: int) -> float:
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / _TICKS


def memory_mib(pid: int) -> tuple[float, float]:
    """Return what is resident now, and the most that ever was."""
    lines = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    resident, peak = (int(fields[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    return resident, peak


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


class Reader:
    """Another process, which reads a page all the time while this one measures."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", _READER, url]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603  ourselves

    def stop(self) -> list[tuple[float, int]]:
        """Return the seconds and bytes of each time; there is at least one."""
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        self._process.terminate()
        lines = [first, *self._process.communicate()[0].splitlines()]
        return [(float(took), int(size)) for took, size in (line.split() for line in lines)]
