"""Create and start one container, in kubelet's order.

Devices come first (their plugin is called before each start), then variables and mounts, then the
runtime, which resolves CDI names when it creates the container. A failure has kubelet's reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from hami.kube import errors as kube_errors
from hami.wire import errors as wire_errors
from hami_sandbox.kubelet import environment
from hami_sandbox.kubelet import pod as pods
from hami_sandbox.kubelet import volumes as volume_plans
from hami_sandbox.kubelet.devices.manager import DeviceManager
from hami_sandbox.kubelet.devices.pods import DevicesError
from hami_sandbox.kubelet.environment import NodeFacts, References, VariableError, expand
from hami_sandbox.kubelet.pod import Object
from hami_sandbox.kubelet.stopping import PodRecorder
from hami_sandbox.kubelet.volumes import VolumeError
from hami_sandbox.runtime import spec
from hami_sandbox.runtime.runtime import Runtime
from hami_sandbox.runtime.spec import ContainerSpec, Mount
from hami_sandbox.runtime.states import ContainerError

GRACE_LABEL = "io.kubernetes.pod.terminationGracePeriod"

NO_IMAGE = "ErrImagePull"


class NotStartedError(Exception):
    """A container cannot start now, for this reason; it is retried later."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A container of a pod, and the number of the attempt."""

    pod: Object
    container: Object
    attempt: int
    volumes: Mapping[str, Path]

    @property
    def id(self) -> str:
        """The runtime's id: the same for the same attempt, so that none is created twice."""
        uid, name = pods.uid(self.pod), self.container["name"]
        return hashlib.sha256(f"{uid}/{name}/{self.attempt}".encode()).hexdigest()


class Starter:
    def __init__(
        self,
        *,
        runtime: Runtime,
        devices: DeviceManager,
        references: References,
        recorder: PodRecorder,
        logs: Path,
        node: Callable[[], NodeFacts],
    ) -> None:
        self._runtime = runtime
        self._devices = devices
        self._references = references
        self._recorder = recorder
        self._logs = logs
        self._node = node

    async def start(self, order: Order) -> None:
        """Make the container and start it, else raise NotStartedError."""
        try:
            await self._start(order)
        except NotStartedError as error:
            self._recorder.failed(order.pod, f"Error: {error.message}")
            raise

    async def _start(self, order: Order) -> None:
        self._find_image(order)
        spec = await self._spec(order)
        pod, name = order.pod, order.container["name"]
        try:
            await self._runtime.create(spec)
        except (ContainerError, OSError) as error:
            raise NotStartedError("CreateContainerError", str(error)) from error
        self._recorder.created(pod, name)
        try:
            await self._runtime.start(spec.id)
        except (ContainerError, OSError) as error:
            raise NotStartedError("RunContainerError", str(error)) from error
        self._recorder.started(pod, name)

    def _find_image(self, order: Order) -> None:
        image = str(order.container.get("image") or "")
        if not spec.argv(image, *_words(order.container)):
            message = (
                f'failed to pull and unpack image "{image}": there are no images in the sandbox, '
                f"and it does not know what this one runs; give the container a command"
            )
            self._recorder.failed(order.pod, f'Failed to pull image "{image}": {message}')
            raise NotStartedError(NO_IMAGE, message)
        self._recorder.pulled(order.pod, image)

    async def _spec(self, order: Order) -> ContainerSpec:
        try:
            return await self._made(order)
        except (
            DevicesError,
            VariableError,
            VolumeError,
            wire_errors.WireError,
            kube_errors.KubeError,
            OSError,
        ) as error:
            raise NotStartedError("CreateContainerConfigError", str(error)) from error

    async def _made(self, order: Order) -> ContainerSpec:
        pod, container = order.pod, order.container
        uid, name = pods.uid(pod), container["name"]
        await self._devices.pre_start(uid, name)
        options = self._devices.run_options(uid, name)
        found = await self._references.find(pods.namespace(pod), environment.wanted(container))
        own = environment.variables(pod, container, found, self._node())
        command, args = ([expand(word, own) for word in words] for words in _words(container))
        image = str(container.get("image") or "")
        mounts = [
            *(
                Mount(each.host_path, each.container_path, each.read_only)
                for each in options.mounts
            ),
            *(Mount(each.host_path, each.container_path) for each in options.devices),
            *(
                Mount(each.host, each.container, each.read_only)
                for each in volume_plans.mounts(container, order.volumes)
            ),
        ]
        return ContainerSpec(
            id=order.id,
            pod_uid=uid,
            namespace=pods.namespace(pod),
            pod_name=pods.name(pod),
            name=name,
            attempt=order.attempt,
            argv=spec.argv(image, tuple(command), tuple(args)),
            env={"HOSTNAME": pods.name(pod), **options.envs, **own},
            mounts=tuple(mounts),
            working_dir=container.get("workingDir") or "",
            log=str(log_file(self._logs, pod, name, order.attempt)),
            cdi_devices=tuple(options.cdi_devices),
            labels={GRACE_LABEL: str(pods.grace(pod))},
        )


def log_folder(logs: Path, pod: Object) -> Path:
    return logs / f"{pods.namespace(pod)}_{pods.name(pod)}_{pods.uid(pod)}"


def log_file(logs: Path, pod: Object, container: str, attempt: int) -> Path:
    """Return the log file of an attempt; its folder is created."""
    folder = log_folder(logs, pod) / container
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{attempt}.log"


def _words(container: Object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(container.get("command") or ()), tuple(container.get("args") or ())
