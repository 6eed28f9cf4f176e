"""Events about containers above their limit and unmanaged processes.

They are on the pod of the process, else on the node. Each process is named once for each card, for
as long as it lives.
"""

from __future__ import annotations

from collections.abc import Iterable

from hami.kube.events import EventRecorder
from hami.monitor.findings import Findings, OverLimit, OwnedProcess
from hami.monitor.processes import Owner

OVER_LIMIT = "VGPUOverLimit"
UNMANAGED = "UnmanagedGPUProcess"
_MIB = 2**20
#: Processes in one message.
_NAMED = 5

#: Reason, pid, start, card, pod: a pod may become known only after the process was found.
_Fault = tuple[str, int, int, str, str]


class AuditEvents:
    """Reports findings as events, each once."""

    def __init__(self, recorder: EventRecorder, node: str) -> None:
        self._recorder = recorder
        self._node = node
        self._reported: set[_Fault] = set()

    def report(self, findings: Findings) -> None:
        """Report new faults; forget those of processes that ended or are at fault no longer."""
        before, self._reported = self._reported, set()
        for over in findings.over:
            faults = {_fault(OVER_LIMIT, process) for process in over.processes}
            if not faults <= before:
                self._record(over.processes[0].owner, OVER_LIMIT, _over_text(over))
            self._reported |= faults
        for process in findings.unmanaged:
            fault = _fault(UNMANAGED, process)
            if fault not in before:
                self._record(process.owner, UNMANAGED, _unmanaged_text(process))
            self._reported.add(fault)

    def _record(self, owner: Owner, reason: str, message: str) -> None:
        if owner.pod:
            self._recorder.record(
                namespace=owner.namespace,
                name=owner.pod,
                uid=owner.key.uid,
                type="Warning",
                reason=reason,
                message=message,
            )
        else:
            self._recorder.record(
                namespace="",
                name=self._node,
                uid=self._node,  # as kubelet does
                kind="Node",
                type="Warning",
                reason=reason,
                message=message,
            )


def _fault(reason: str, process: OwnedProcess) -> _Fault:
    return (reason, process.pid, process.start, process.card, process.owner.pod)


def _over_text(over: OverLimit) -> str:
    return (
        f"container {over.container.key.container} has {_mib(over.used)} of card "
        f"{over.share.card} by the driver's account, {_mib(over.excess)} above its limit of "
        f"{_mib(over.share.memory_bytes)} (processes of the node: {_list(over.processes)}); "
        "restart the container, and check it for programs that avoid libvgpu"
    )


def _unmanaged_text(process: OwnedProcess) -> str:
    memory = "memory" if process.memory is None else _mib(process.memory)
    what = f"process {process.pid} of the node has {memory} of card {process.card}"
    container = process.owner.container
    if container is None and not process.owner.pod:
        return (
            f"{what} and belongs to no pod; end it, or keep this card from pods "
            "(filterDevices in the node configuration)"
        )
    if container is None:
        return (
            f"{what}, which its pod was not given; let the pod ask for a card, "
            "or keep this one from pods (filterDevices in the node configuration)"
        )
    name = container.key.container
    if container.share(process.card) is None:
        return f"{what}, which container {name} was not given; restart it, and check its devices"
    return (
        f"{what} without libvgpu, so no limit of container {name} holds for it; it is a static "
        "program, or its image has musl (Alpine) or a glibc before 2.17, or it left the "
        "container's mounts: use a dynamic program and an image with glibc 2.17 or newer, so that "
        "/etc/ld.so.preload reaches it, or give the pod a whole card"
    )


def _list(processes: Iterable[OwnedProcess]) -> str:
    ordered = sorted(processes, key=lambda process: -(process.memory or 0))
    named = [f"{process.pid} with {_mib(process.memory or 0)}" for process in ordered[:_NAMED]]
    return ", ".join(named) + (", …" if len(ordered) > _NAMED else "")


def _mib(count: int) -> str:
    return f"{count / _MIB:.0f} MiB"
