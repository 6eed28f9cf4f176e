"""Prepare a container for its share (D13): folder, policy, state, CDI spec.

Whoever asks (kubelet's plugin now, a DRA driver later) names the container, its token and its
grants, and gets the edits that make it see its cards and its limits. Doing it again changes
nothing. The spec comes last: a runtime that finds it finds all that it names.

A container that has its cards alone gets the cards and nothing else. So does one that the
administrator exempts. But a token that was given limits once keeps the limiter: processes with it
are running, and new ones beside them would get no card at all without a policy.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

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
from hami.wire import errors
from hami.wire.node_register import RegisteredCard
from hami.wire.shares import Share

__all__ = [
    "ContainerShare",
    "EditMount",
    "Edits",
    "Injection",
    "PrepareConfig",
    "PrepareError",
    "Preparer",
]

_log = logging.getLogger(__name__)

Injection = Literal["auto", "cdi", "runtime"]

_VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_VOID = "void"
_PRELOAD = "/etc/ld.so.preload"
_NO_CORE_LIMIT = (0, 100)


class PrepareError(AgentError):
    """A container cannot be prepared, or not be forgotten; says why and what to do."""


class PrepareConfig(LimitSettings, frozen=True, kw_only=True):
    """How containers of this node are prepared."""

    #: How cards get into containers: NVIDIA's CDI spec is merged, or NVIDIA's runtime is told.
    injection: Injection = "auto"
    #: Whether cards are registered with just the memory that they have: only then has one who was
    #: given all of it the whole card.
    unscaled: bool = True


class ContainerShare(msgspec.Struct, frozen=True, kw_only=True):
    """A container, and what it was granted."""

    uid: str
    namespace: str
    name: str
    container: str
    token: str
    grants: tuple[Share, ...]
    #: 0 is high, 1 is low.
    priority: int = 1
    #: Rises with every change of the grants.
    generation: int = 1
    #: Whether the administrator lets it run without the limiter.
    exempt: bool = False


class Preparer:
    def __init__(
        self,
        layout: NodeLayout,
        *,
        library: Library | Path,
        states: StateFiles,
        nvidia: NvidiaSpecs,
        devices: Callable[[str], RegisteredCard | None],
        config: PrepareConfig,
    ) -> None:
        self._layout = layout
        self._library = library
        self._states = states
        self._nvidia = nvidia
        self._devices = devices
        self._config = config
        #: Cards that NVIDIA's specs do not have, which was said once.
        self._told: set[str] = set()

    def prepare(self, share: ContainerShare, *, cdi: bool) -> Edits:
        """Lay out what the container needs; with `cdi` its spec, else the caller has to tell."""
        what = f"container {share.container} of pod {share.namespace}/{share.name}"
        if not layout.is_token(share.token):
            raise PrepareError(
                what,
                f"token {errors.shorten(share.token)} is none of ours",
                "delete the pod to have it placed anew",
            )
        if not share.grants:
            raise PrepareError(what, "was granted no card", "delete the pod to have it placed anew")
        cards = limits.by_card(share.grants)
        try:
            limited = self._is_limited(share, cards)
            edits = self._edits(share.token, cards, limited=limited, cdi=cdi)
            folder = self._layout.token_folder(share.token)
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o755)  # whatever the umask says: containers have processes of any user
            if limited:
                self._write_policy(share, cards)
                self._states.ensure(share.token)
            if cdi:
                cdi_spec.write(self._layout, share.token, edits)
        except OSError as error:
            raise PrepareError(
                what,
                f"{error.filename or 'a file'} cannot be made: {error.strerror or error}",
                "see why the node's disk or /run cannot be written",
            ) from error
        except errors.WireError as error:
            raise PrepareError(
                what,
                f"its limits cannot be told: {error.what}: {error.value} {error.rule}",
                error.remedy or "delete the pod to have it placed anew",
            ) from error
        except AgentError as error:
            raise PrepareError(what, f"{error.what} {error.rule}", error.remedy) from error
        return edits

    def forget(self, token: str) -> None:
        """Remove all that there is of a token, the spec first; again does nothing."""
        if not layout.is_token(token):
            raise PrepareError(
                f"token {errors.shorten(token)}", "is none of ours", "nothing was removed"
            )
        try:
            self._layout.spec(token).unlink(missing_ok=True)
            self._states.remove(token)
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(self._layout.token_folder(token))
        except OSError as error:
            raise PrepareError(
                f"token {token}",
                f"{error.filename or 'a file'} cannot be removed: {error.strerror or error}",
                "it is tried again",
            ) from error

    def tokens(self) -> frozenset[str]:
        """Return every token that something is left of."""
        folder = self._layout.tokens
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        names += [*self._states.tokens(), *cdi_spec.tokens(self._layout)]
        return frozenset(name for name in names if layout.is_token(name))

    def is_ready(self, token: str, *, cdi: bool) -> bool:
        """Tell whether a container that was prepared once finds all that it needs."""
        try:
            if not self._layout.token_folder(token).is_dir():
                return False
            if (told := _read(self._layout.policy(token))) is not None:
                if not limits.is_valid(told):
                    return False
                self._states.ensure(token)
            return not cdi or self._layout.spec(token).exists()
        except OSError:
            return False  # preparing it will tell why

    def is_limited(self, grants: Sequence[Share]) -> bool:
        """Tell whether a container with these grants runs under the limiter."""
        try:
            return not self._are_whole(limits.by_card(grants))
        except PrepareError:
            return True  # nobody knows how large the card is

    def _is_limited(self, share: ContainerShare, cards: Sequence[Share]) -> bool:
        if self._layout.policy(share.token).exists():
            return True
        return not share.exempt and not self._are_whole(cards)

    def _are_whole(self, cards: Sequence[Share]) -> bool:
        sizes = [self._device(card.card).devmem for card in cards]
        return self._config.unscaled and all(
            card.memory_mib >= size and card.cores in _NO_CORE_LIMIT
            for card, size in zip(cards, sizes, strict=True)
        )

    def _device(self, uuid: str) -> RegisteredCard:
        device = self._devices(uuid)
        if device is None:
            raise PrepareError(
                f"card {uuid}",
                "is none of this node's cards now",
                "see the agent's log for what the driver says of it",
            )
        return device

    def _edits(self, token: str, cards: Sequence[Share], *, limited: bool, cdi: bool) -> Edits:
        if not cdi and self._config.injection == "cdi":
            raise PrepareError(
                "--driver-injection=cdi",
                "cannot be followed on a node that binds by its lock: its answers carry no CDI",
                "set auto or runtime, with NVIDIA's runtime on the node, or update kubelet and "
                "runtime so that it binds late",
            )
        driver = self._driver(cards) if cdi else None
        uuids = ",".join(card.card for card in cards)
        env = dict(driver.env) if driver else {}
        # Merged, NVIDIA's runtime must add nothing, whatever the image says. Only where the cards'
        # own edits name them, all of them have to be named.
        env[_VISIBLE] = uuids if driver is None or _VISIBLE in driver.card_env else _VOID
        if limited:
            env |= limits.env(cards, self._config)
        return Edits(
            env=env,
            mounts=self._mounts(token) if limited else (),
            device_nodes=driver.device_nodes if driver else (),
            hooks=driver.hooks if driver else (),
            driver_mounts=driver.mounts if driver else (),
            more=driver.more if driver else {},
            cdi_version=cdi_spec.version(driver.cdi_version if driver else ""),
        )

    def _driver(self, cards: Sequence[Share]) -> DriverEdits | None:
        """Return NVIDIA's edits for the cards, or None where its runtime is to bring them."""
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
            if not uuids <= self._told:
                self._told |= uuids
                _log.warning("cards are left to NVIDIA's runtime", extra={"error": str(error)})
            return None

    def _mounts(self, token: str) -> tuple[EditMount, ...]:
        inside = self._layout.inside
        installed = self._library if isinstance(self._library, Path) else self._library.path
        places = (
            (installed, inside / library.NAME),
            (self._layout.token_folder(token), inside / "policy"),
            (self._layout.preload, Path(_PRELOAD)),
        )
        read_only = (EditMount(str(host), str(container)) for host, container in places)
        state = EditMount(str(self._layout.state(token)), str(inside / "state"), read_only=False)
        return (*read_only, state)

    def _write_policy(self, share: ContainerShare, cards: Sequence[Share]) -> None:
        path = self._layout.policy(share.token)
        wanted = limits.policy(
            cards,
            self._config,
            generation=share.generation,
            priority=share.priority,
            uid=share.uid,
            namespace=share.namespace,
            name=share.name,
            container=share.container,
        )
        old = _read(path)
        try:
            if (content := limits.renewed(old, wanted)) is not None:
                files.write_atomic(path, content)
        except (OSError, errors.WireError):
            if not limits.is_valid(old):  # no spec without its policy
                self._layout.spec(share.token).unlink(missing_ok=True)
            raise


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
