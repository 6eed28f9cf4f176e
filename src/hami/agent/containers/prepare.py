"""Prepare a container for its shares: folder, policy file, state file, CDI spec.

The caller (kubelet's plugin now, a DRA driver later) names the container, its allocation id and its
shares, and gets the edits that show it its cards and its limits. Repeating it changes nothing. The
spec is written last: when a runtime finds it, everything that it names exists.

A container that has its cards alone gets the cards and nothing else, and so does one that the
administrator exempts. But an allocation id that was given limits once keeps the limiter: its
processes are running, and new ones beside them would get no card without a policy file. See
docs/designs/003-isolation.md.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Self

import msgspec

from hami.agent.containers import cdi_spec, library, limits
from hami.agent.containers.cdi_spec import EditMount, Edits
from hami.agent.containers.library import Library
from hami.agent.containers.limits import LimitSettings
from hami.agent.containers.nvidia_cdi import DriverEdits, NvidiaCdiError, NvidiaSpecs
from hami.agent.containers.state_files import StateFiles
from hami.agent.errors import AgentError
from hami.node import files, layout
from hami.node.layout import NodeLayout
from hami.vendors.device_config import NvidiaSettings
from hami.wire import errors
from hami.wire.node_register import RegisteredCard
from hami.wire.shares import Share

__all__ = [
    "ContainerShares",
    "EditMount",
    "Edits",
    "Injection",
    "PrepareConfig",
    "PrepareError",
    "Preparer",
]

_log = logging.getLogger(__name__)

Injection = Literal["auto", "cdi", "runtime"]

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
#: Shows no card: a runtime that ignores CDI leaves it at that.
VOID = "void"
_PRELOAD = "/etc/ld.so.preload"
#: Folder in containers whose mounts of /dev/null name cards to NVIDIA's runtime. Where it accepts
#: them (accept-nvidia-visible-devices-as-volume-mounts) it prefers them to VISIBLE: no variable of
#: a pod shows another card then, also where kubelet lets the pod's variables win over ours.
DEVICE_LIST = "/var/run/nvidia-container-devices"


class PrepareError(AgentError):
    """A container's files cannot be written or removed; says why and what to do."""


class PrepareConfig(LimitSettings, frozen=True, kw_only=True):
    """Settings for preparing the containers of this node."""

    #: How cards get into containers: by merging NVIDIA's CDI spec, or by NVIDIA's runtime.
    injection: Injection = "auto"
    #: Whether cards are registered with exactly the memory that they have: only then is a share
    #: of all memory a whole card.
    unscaled: bool = True

    @classmethod
    def of(cls, settings: NvidiaSettings, *, injection: Injection) -> Self:
        """Return what the node's configuration means for its containers."""
        return cls(
            log_level=settings.lib_cuda_log_level,
            core_policy=settings.gpu_core_policy,
            disable_core_limit=settings.disable_core_limit,
            oversubscribe=settings.device_memory_scaling > 1,
            unscaled=settings.device_memory_scaling == 1,
            injection=injection,
        )


class ContainerShares(msgspec.Struct, frozen=True, kw_only=True):
    """A container and its shares."""

    uid: str
    namespace: str
    name: str
    container: str
    allocation_id: str
    shares: tuple[Share, ...]
    #: 0 is high, 1 is low.
    priority: int = 1
    #: Rises with every change of the shares.
    generation: int = 1
    #: Whether the administrator lets it run without the limiter.
    exempt: bool = False


def _unknown_cost(_uuid: str, _limit: int) -> int:
    return 0


class Preparer:
    """Writes and removes everything that exists per allocation id."""

    def __init__(
        self,
        layout: NodeLayout,
        *,
        library: Library | Path,
        states: StateFiles,
        nvidia: NvidiaSpecs,
        devices: Callable[[str], RegisteredCard | None],
        config: PrepareConfig,
        context_cost: Callable[[str, int], int] = _unknown_cost,
    ) -> None:
        self._layout = layout
        self._library = library
        self._states = states
        self._nvidia = nvidia
        self._devices = devices
        self._config = config
        self._context_cost = context_cost
        #: Cards that NVIDIA's specs do not have, each logged once.
        self._reported: set[str] = set()

    def prepare(self, share: ContainerShares, *, cdi: bool) -> Edits:
        """Write what the container needs; without `cdi` the caller passes the edits on."""
        what = f"container {share.container} of pod {share.namespace}/{share.name}"
        if not layout.is_allocation_id(share.allocation_id):
            raise PrepareError(
                what,
                f"allocation id {errors.shorten(share.allocation_id)} is none of ours: it must be "
                "32 hexadecimal digits",
                "delete the pod to reschedule it",
            )
        if not share.shares:
            raise PrepareError(what, "was granted no card", "delete the pod to reschedule it")
        cards = limits.by_card(share.shares)
        try:
            limited = self._is_limited(share, cards)
            edits = self._edits(share.allocation_id, cards, limited=limited, cdi=cdi)
            folder = self._layout.allocation_folder(share.allocation_id)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)  # independent of the umask: containers have processes of any user
            files.label_for_containers(folder)  # what is made in it gets the same
            if limited:
                self._write_policy(share, cards)
                files.label_for_containers(self._layout.policy(share.allocation_id))
                self._states.ensure(share.allocation_id)
            if cdi:
                cdi_spec.write(self._layout, share.allocation_id, edits)
        except OSError as error:
            raise PrepareError(
                what,
                f"{error.filename or 'a file'} cannot be written: {error.strerror or error}",
                "find out why the node's disk or /run cannot be written",
            ) from error
        except errors.WireError as error:
            raise PrepareError(
                what,
                f"its limits cannot be written: {error.what}: {error.value} {error.rule}",
                error.remedy or "delete the pod to reschedule it",
            ) from error
        except AgentError as error:
            raise PrepareError(what, f"{error.what} {error.rule}", error.remedy) from error
        return edits

    def forget(self, allocation_id: str) -> None:
        """Remove all files of an allocation id, the spec first; repeating it does nothing."""
        if not layout.is_allocation_id(allocation_id):
            raise PrepareError(
                f"allocation id {errors.shorten(allocation_id)}",
                "is none of ours",
                "nothing was removed",
            )
        try:
            self._layout.spec(allocation_id).unlink(missing_ok=True)
            self._states.remove(allocation_id)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._layout.allocation_folder(allocation_id))
        except OSError as error:
            raise PrepareError(
                f"allocation id {allocation_id}",
                f"{error.filename or 'a file'} cannot be removed: {error.strerror or error}",
                "the agent tries again",
            ) from error

    def allocation_ids(self) -> frozenset[str]:
        """Return every allocation id that has a file."""
        folder = self._layout.allocations
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        names += [*self._states.allocation_ids(), *cdi_spec.allocation_ids(self._layout)]
        return frozenset(name for name in names if layout.is_allocation_id(name))

    def is_ready(self, allocation_id: str, *, cdi: bool) -> bool:
        """Return whether all files of a container that was prepared once are there."""
        try:
            if not self._layout.allocation_folder(allocation_id).is_dir():
                return False
            if (policy := _read(self._layout.policy(allocation_id))) is not None:
                if not limits.is_valid(policy):
                    return False
                self._states.ensure(allocation_id)
            return not cdi or self._layout.spec(allocation_id).exists()
        except OSError:
            return False  # preparing it will raise the reason

    def is_limited(self, shares: Sequence[Share]) -> bool:
        """Return whether a container with these shares runs under the limiter."""
        try:
            return not self._are_whole(limits.by_card(shares))
        except PrepareError:
            return True  # the size of the card is not known

    def _is_limited(self, share: ContainerShares, cards: Sequence[Share]) -> bool:
        if self._layout.policy(share.allocation_id).exists():
            return True
        return not share.exempt and not self._are_whole(cards)

    def _are_whole(self, cards: Sequence[Share]) -> bool:
        sizes = [self._device(card.card).devmem for card in cards]
        return self._config.unscaled and all(
            card.memory_mib >= size and card.core_limit is None
            for card, size in zip(cards, sizes, strict=True)
        )

    def _device(self, uuid: str) -> RegisteredCard:
        device = self._devices(uuid)
        if device is None:
            raise PrepareError(
                f"card {uuid}",
                "is none of this node's cards now",
                "see the log of hami's agent on this node for what the driver reports",
            )
        return device

    def _edits(
        self, allocation_id: str, cards: Sequence[Share], *, limited: bool, cdi: bool
    ) -> Edits:
        if not cdi and self._config.injection == "cdi":
            raise PrepareError(
                "--driver-injection=cdi",
                "is impossible on a node that binds by its lock: answers there carry no CDI names",
                "set auto or runtime, with NVIDIA's runtime on the node, or update kubelet and "
                "runtime so that the node binds late",
            )
        driver = self._driver(cards) if cdi else None
        uuids = ",".join(card.card for card in cards)
        env = dict(driver.env) if driver else {}
        # With merged edits NVIDIA's runtime must add nothing, whatever the image sets. Only where
        # the cards' own edits set the variable, it names all cards.
        env[VISIBLE] = uuids if driver is None or VISIBLE in driver.card_env else VOID
        if limited:
            env |= limits.env(cards, self._config)
        return Edits(
            env=env,
            mounts=(
                *(self._mounts(allocation_id) if limited else ()),
                *(device_list(card.card for card in cards) if driver is None else ()),
            ),
            device_nodes=driver.device_nodes if driver else (),
            hooks=driver.hooks if driver else (),
            driver_mounts=driver.mounts if driver else (),
            more=driver.more if driver else {},
            cdi_version=cdi_spec.version(driver.cdi_version if driver else ""),
        )

    def _driver(self, cards: Sequence[Share]) -> DriverEdits | None:
        """Return NVIDIA's edits for the cards; None: NVIDIA's runtime brings the cards."""
        if self._config.injection == "runtime":
            return None
        found = [(card.card, self._devices(card.card)) for card in cards]
        try:
            return self._nvidia.merged(
                [(uuid, device.index if device else None) for uuid, device in found]
            )
        except NvidiaCdiError as error:
            if self._config.injection == "cdi":
                raise
            uuids = {uuid for uuid, _ in found}
            if not uuids <= self._reported:
                self._reported |= uuids
                _log.warning(
                    "NVIDIA's runtime must bring the cards: its CDI specs do not have them",
                    extra={"error": str(error)},
                )
            return None

    def _mounts(self, allocation_id: str) -> tuple[EditMount, ...]:
        node = self._layout
        installed = self._library if isinstance(self._library, Path) else self._library.path
        policy, state = node.allocation_folder(allocation_id), node.state(allocation_id)
        return (
            EditMount(str(installed), str(node.inside / library.NAME)),
            EditMount(str(policy), layout.INSIDE_POLICY),
            EditMount(str(node.preload), _PRELOAD),
            EditMount(str(state), layout.INSIDE_STATE, read_only=False),
        )

    def _write_policy(self, share: ContainerShares, cards: Sequence[Share]) -> None:
        path = self._layout.policy(share.allocation_id)
        wanted = limits.policy(
            cards,
            self._config,
            generation=share.generation,
            priority=share.priority,
            uid=share.uid,
            namespace=share.namespace,
            name=share.name,
            container=share.container,
            context_bytes={
                card.card: cost
                for card in cards
                if (cost := self._context_cost(card.card, card.memory_bytes))
            },
        )
        old = _read(path)
        try:
            if (content := limits.renewed(old, wanted)) is not None:
                files.write_atomic(path, content)
        except (OSError, errors.WireError):
            if not limits.is_valid(old):  # a spec must not exist without its policy file
                self._layout.spec(share.allocation_id).unlink(missing_ok=True)
            raise


def device_list(cards: Iterable[str]) -> tuple[EditMount, ...]:
    """Return the mounts that name these cards to NVIDIA's runtime."""
    return tuple(EditMount("/dev/null", f"{DEVICE_LIST}/{card}") for card in cards)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
