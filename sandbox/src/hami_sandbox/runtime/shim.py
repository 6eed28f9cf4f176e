"""The process beside a container: start it, write its log, record its end.

    FOLDER LOCK STATUS LIFELINE

FOLDER is the container's (`records`). LOCK is a descriptor whose lock shows that the shim lives,
STATUS a pipe that is closed when the container runs or cannot, LIFELINE (or -1) a pipe whose other
end the sandbox holds: when it closes the container is killed and nothing more is written, because
the folder is about to be removed. When the container's first process ends all its others are
killed, as with a process namespace. When the shim is killed the kernel kills the first process,
and the runtime the rest. The log has CRI's format: `<time> <stream> <P or F> <text>`; P: the line
goes on in the next.

Standard library only, and little of it: every container's start loads this.
"""

# ruff: noqa: PTH103, PTH120, PTH123, PTH208 - pathlib costs 10 ms of every start

from __future__ import annotations

import os
import select
import sys
import time

from hami_sandbox.runtime import kernel, records
from hami_sandbox.runtime.launch import LaunchError, launch
from hami_sandbox.runtime.records import KILL, Bundle

_CHUNK = 1 << 16
_LAST_STANDARD = 2


def main() -> None:
    folder = sys.argv[1]
    lock, status, lifeline = map(int, sys.argv[2:5])
    _keep_only((lock, status, lifeline))
    os.chdir("/")
    Shim(folder, status, lifeline).run()


def _keep_only(handles: tuple[int, ...]) -> None:
    """Close handles that are not ours, and let the container inherit none."""
    for name in os.listdir("/proc/self/fd"):
        handle = int(name)
        if handle in handles:
            os.set_inheritable(handle, False)  # noqa: FBT003 - its only form
        elif handle > _LAST_STANDARD:
            try:
                os.close(handle)
            except OSError:  # the folder's own, which is closed already
                continue


def try_namespaces() -> None:
    """Run a bundle's program in this process; an error goes to stderr."""
    folder = sys.argv[1]
    try:
        launch(Bundle.read(folder), folder)
    except LaunchError as error:
        sys.stderr.write(error.why)
    sys.exit(1)


class Shim:
    def __init__(self, folder: str, status: int, lifeline: int) -> None:
        self._folder = folder
        self._status = status
        self._lifeline = lifeline
        self._bundle = Bundle.read(folder)
        self._log = Log(self._bundle.log)
        self._poll = select.poll()
        #: Streams by the pipe's end that is read.
        self._streams: dict[int, str] = {}
        self._child = 0

    def run(self) -> None:
        """Start the container and stay until it has ended."""
        kernel.become_subreaper()
        failed = self._start()
        if self._lifeline >= 0:
            self._poll.register(self._lifeline, 0)  # POLLHUP is always reported
        failure = self._heard(failed)
        if failure:
            os.waitpid(self._child, 0)
            self._write_end(records.START_EXIT_CODE, 0, records.START_ERROR, failure)
            return
        records.write_record(
            f"{self._folder}/{records.STARTED}",
            pid=self._child,
            shim=os.getpid(),
            started_at=time.time(),
        )
        os.close(self._status)
        code, signal = self._serve()
        self._write_end(code, signal, "", "")
        os.waitpid(
            self._child, 0
        )  # only now: until the end is written the runtime may signal this pid

    def _start(self) -> int:
        """Fork; return the pipe with the reason why the program could not be started."""
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        failed, failed_end = os.pipe()
        shim = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._become(shim, out_end, err_end, failed_end)
        for handle in (out_end, err_end, failed_end):
            os.close(handle)
        self._streams = {out: "stdout", err: "stderr"}
        for handle in self._streams:
            os.set_blocking(handle, False)
            self._poll.register(handle, select.POLLIN)
        return failed

    def _become(self, shim: int, out: int, err: int, failed: int) -> None:
        """Become the container, in the child; never returns."""
        try:
            os.setsid()
            nothing = os.open("/dev/null", os.O_RDONLY)
            for number, handle in enumerate((nothing, out, err)):
                os.dup2(handle, number)
            kernel.die_with(shim)
            launch(self._bundle, self._folder)
        except BaseException as error:  # noqa: BLE001 - every error is reported and ends here
            os.write(failed, str(error).encode() or b"unknown")
        finally:
            os._exit(1)

    def _heard(self, failed: int) -> str:
        """Wait until the child has become its program; return why not, or empty."""
        self._poll.register(failed, select.POLLIN)
        failure = b""
        while True:
            for handle, _ in self._poll.poll():
                if handle == self._lifeline:
                    self._end_all()
                if handle == failed:
                    part = os.read(failed, _CHUNK)
                    failure += part
                    if not part:
                        self._poll.unregister(failed)
                        os.close(failed)
                        return failure.decode(errors="replace")
                elif handle in self._streams:
                    self._read(handle)

    def _serve(self) -> tuple[int, int]:
        """Write the container's output until it has ended; return its exit code and signal."""
        ended = os.pidfd_open(self._child)
        self._poll.register(ended, select.POLLIN)
        while True:
            for handle, _ in self._poll.poll():
                if handle in self._streams:
                    self._read(handle)
                elif handle == ended:
                    return self._ended()
                elif handle == self._lifeline:
                    self._end_all()

    def _read(self, handle: int) -> bool:
        """Read a stream; return whether more can come."""
        stream = self._streams[handle]
        try:
            data = os.read(handle, _CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._log.write(stream, data)
            return True
        self._log.end(stream)
        del self._streams[handle]
        self._poll.unregister(handle)
        os.close(handle)
        return False

    def _ended(self) -> tuple[int, int]:
        self._kill_rest()
        for handle in tuple(self._streams):
            while self._read(handle):
                pass
        for stream in tuple(self._streams.values()):
            self._log.end(stream)
        ended = os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)
        assert ended is not None  # the pidfd was readable
        if ended.si_code == os.CLD_EXITED:
            return ended.si_status, 0
        return 128 + ended.si_status, ended.si_status

    def _kill_rest(self) -> None:
        """Kill the container's other processes: those without parents have become our children."""
        while True:
            rest = [pid for pid in _children() if pid != self._child]
            if not rest:
                return
            for pid in rest:
                os.kill(pid, KILL)
            for pid in rest:
                os.waitpid(pid, 0)

    def _end_all(self) -> None:
        """Kill the container and end, without a report."""
        os.kill(self._child, KILL)
        os.waitid(os.P_PID, self._child, os.WEXITED | os.WNOWAIT)  # now its children are ours
        self._kill_rest()
        os.waitpid(self._child, 0)
        self._remove_aside()
        os._exit(0)

    def _write_end(self, code: int, signal: int, reason: str, message: str) -> None:
        self._remove_aside()
        records.write_record(
            f"{self._folder}/{records.EXITED}",
            exit_code=code,
            signal=signal,
            finished_at=time.time(),
            reason=reason,
            message=message,
        )

    def _remove_aside(self) -> None:
        records.remove_aside(self._folder)


def _children() -> list[int]:
    me = os.getpid()
    try:
        with open(f"/proc/{me}/task/{me}/children", "rb") as file:
            return [int(word) for word in file.read().split()]
    except FileNotFoundError:  # a kernel without that list
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == me]


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


#: As containerd cuts lines.
LONGEST = 16 << 10


class Log:
    def __init__(self, path: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o640)
        self._lines = {stream: Lines(stream) for stream in ("stdout", "stderr")}

    def write(self, stream: str, data: bytes) -> None:
        """Write the complete lines; keep the rest."""
        if lines := self._lines[stream].add(data):
            os.write(self._handle, lines)

    def end(self, stream: str) -> None:
        """Write a last line without newline."""
        if lines := self._lines[stream].end():
            os.write(self._handle, lines)


class Lines:
    """Lines of the log from one stream."""

    def __init__(self, stream: str, longest: int = LONGEST) -> None:
        self._stream = stream
        self._longest = longest
        self._begun = b""

    def add(self, data: bytes) -> bytes:
        """Return the lines that are complete now."""
        *lines, rest = (self._begun + data).split(b"\n")
        out: list[bytes] = []
        for line in lines:
            last = self._cut(line, out)
            out.append(_line(self._stream, b"F", last))
        self._begun = self._cut(rest, out)
        return b"".join(out)

    def end(self) -> bytes:
        return self.add(b"\n") if self._begun else b""

    def _cut(self, line: bytes, out: list[bytes]) -> bytes:
        while len(line) > self._longest:
            out.append(_line(self._stream, b"P", line[: self._longest]))
            line = line[self._longest :]
        return line


def _line(stream: str, tag: bytes, text: bytes) -> bytes:
    seconds, fraction = divmod(time.time_ns(), 1_000_000_000)
    when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{when}.{fraction:09d}Z {stream} ".encode() + tag + b" " + text + b"\n"
