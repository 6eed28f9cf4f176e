"""The events of a pod's life on its node, in kubelet's words."""

from __future__ import annotations

from hami.kube.events import EventRecorder
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet.pod import Object

COMPONENT = "kubelet"


class Teller:
    def __init__(self, events: EventRecorder) -> None:
        self._events = events

    def pulled(self, pod: Object, image: str) -> None:
        self._normal(pod, "Pulled", f'Container image "{image}" already present on machine')

    def created(self, pod: Object, container: str) -> None:
        self._normal(pod, "Created", f"Created container: {container}")

    def started(self, pod: Object, container: str) -> None:
        self._normal(pod, "Started", f"Started container {container}")

    def killing(self, pod: Object, container: str) -> None:
        self._normal(pod, "Killing", f"Stopping container {container}")

    def failed(self, pod: Object, message: str) -> None:
        self._warning(pod, "Failed", message)

    def backing_off(self, pod: Object, container: str) -> None:
        said = f"Back-off restarting failed container {container} in pod {pods.full_name(pod)}"
        self._warning(pod, "BackOff", said)

    def backing_off_image(self, pod: Object, image: str) -> None:
        self._normal(pod, "BackOff", f'Back-off pulling image "{image}"')

    def not_mounted(self, pod: Object, message: str) -> None:
        self._warning(pod, "FailedMount", message)

    def rejected(self, pod: Object, reason: str, message: str) -> None:
        self._warning(pod, reason, message)

    def too_long(self, pod: Object, message: str) -> None:
        self._normal(pod, "DeadlineExceeded", message)

    def _normal(self, pod: Object, reason: str, message: str) -> None:
        self._record(pod, "Normal", reason, message)

    def _warning(self, pod: Object, reason: str, message: str) -> None:
        self._record(pod, "Warning", reason, message)

    def _record(self, pod: Object, kind: str, reason: str, message: str) -> None:
        self._events.record(
            namespace=pods.namespace(pod),
            name=pods.name(pod),
            uid=pods.uid(pod),
            type=kind,
            reason=reason,
            message=message,
        )
