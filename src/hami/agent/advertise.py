"""Decide what kubelet and the Node object show, from cards, mode and ledger.

`Advertiser` runs after every change of cards, binding mode, ledger or kubelet. It gives kubelet the
list of device ids, and `hami.agent.node_status` an `Advertisement` to write to the Node object.

A node is in service while kubelet has our devices and this agent is not about to end. Otherwise no
card is registered as healthy, so that no scheduler binds a pod that kubelet would refuse.
"""

from __future__ import annotations

import asyncio
import random as randomness
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from hami.agent.allocator import Allocator
from hami.agent.binding_mode import BindingMode
from hami.agent.cards import device_ids
from hami.agent.cards.device_ids import ListedDevice
from hami.agent.cards.inventory import CardInventory
from hami.agent.cards.node_cards import NodeCards
from hami.agent.closed_cards import ClosedCards
from hami.agent.grants import Grants
from hami.agent.kubelet.plugin_server import DeviceList
from hami.agent.kubelet.registration import Registration
from hami.agent.metrics import Metrics
from hami.agent.node_status import Advertisement, NodeStatus
from hami.agent.static_mig import MigPlugins
from hami.kube.transport import Backoff
from hami.vendors.table import AnnotationKeys, Vendor
from hami.wire import annotation_keys, node_marks, node_register
from hami.wire.errors import WireError

#: Seconds between two looks at the keys of grants.
_KEYS_EVERY_S = 5.0
#: Seconds in service after which the next return is at once again.
_CALM_AFTER = 60.0


class Service:
    """The node's service: it ends at once, and returns ever more slowly if kubelet flaps.

    Every change is a write to the Node object, which all schedulers read.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        random: Callable[[], float] = randomness.random,
    ) -> None:
        self._clock = clock
        self._pause = Backoff(first=0.5, longest=30.0, random=random)
        self._calm = True
        #: Since when it is in service; None: it is not.
        self._since: float | None = None
        #: When it returns, if kubelet has our devices until then.
        self._returns_at: float | None = None

    def wait(self, *, possible: bool) -> float | None:
        """Return the seconds until the node is in service, 0: it is; None: it cannot be."""
        now = self._clock()
        if not possible:
            if self._since is not None:
                self._calm = now - self._since > _CALM_AFTER
            self._since = self._returns_at = None
            return None
        if self._since is None:
            if self._returns_at is None:
                self._returns_at = now + self._next_pause()
            if now < self._returns_at:
                return self._returns_at - now
            self._since = now
        return 0.0

    def _next_pause(self) -> float:
        if self._calm:
            self._pause.reset()
            self._calm = False
            return 0.0
        return self._pause.next()


class Advertiser:
    """Derives what is shown from what is known, after every change."""

    def __init__(
        self,
        vendor: Vendor,
        *,
        cards: NodeCards,
        mode: BindingMode,
        allocator: Allocator,
        device_list: DeviceList[ListedDevice],
        registration: Registration,
        mig_plugins: MigPlugins,
        node: NodeStatus,
        metrics: Metrics,
        grants: Grants,
        closed: ClosedCards,
        advertise_shares: bool,
    ) -> None:
        self._vendor = vendor
        self._cards = cards
        self._mode = mode
        self._allocator = allocator
        self._device_list = device_list
        self._registration = registration
        self._mig_plugins = mig_plugins
        self._node = node
        self._metrics = metrics
        self._grants = grants
        self._closed = closed
        #: Whether the sums of memory and cores are in the node's status.
        self._advertise_shares = advertise_shares
        cards.add_handler(self.update)
        mode.add_handler(self.update)
        allocator.add_handler(self.update)
        registration.add_handler(self.update)
        closed.add_handler(self.update)
        self._leaving = False
        self._service = Service()
        self._return: asyncio.TimerHandle | None = None

    def leave(self) -> None:
        """Take the node out of service, for the rest of this process."""
        self._leaving = True
        self.update()

    def update(self) -> None:
        """Show the current state to kubelet, the API server and the metrics."""
        if self._registration.taken_over:
            self._node.silence()  # the other agent writes the Node now
            return
        if not self._cards.asked:
            # An empty list would take every free device from kubelet for a moment.
            if self._leaving:
                self._end_service_of_earlier()
            return
        self._device_list.set(self._listed())
        self._mig_plugins.refresh()
        # Not before the mode is known: a mark that comes and goes would make bound pods fail.
        if self._mode.settled:
            self._node.advertise(self._advertisement())
        health = [device.health for device in self._cards.inventory.devices]
        self._metrics.advertised(
            late=self._mode.late,
            healthy=sum(health),
            unhealthy=len(health) - sum(health),
            pods=len(self._allocator.ledger.records()),
        )

    async def follow_keys(self) -> NoReturn:
        """Show for ever which forms of grants can be verified: Secrets change while we run."""
        shown = self._grants.forms()
        while True:
            await asyncio.sleep(_KEYS_EVERY_S)
            if (now := self._grants.forms()) != shown:
                shown = now
                self.update()

    def _listed(self) -> tuple[ListedDevice, ...]:
        if self._cards.missing:
            return ()
        held, used = self._allocator.held()
        inventory = self._cards.inventory
        numa = inventory.numa if self._cards.config.nvidia.enable_numa_topology else {}
        return device_ids.listed(inventory.devices, held, used, numa=numa)

    def _advertisement(self) -> Advertisement:
        keys, inventory = self._node.keys, self._cards.inventory
        if self._cards.missing:
            return advertisement(keys, register=None)
        late = self._mode.late
        shown = advertisement(
            keys,
            register=inventory.register(in_service=self._is_in_service()),
            scores=self._cards.scores or None,
            late=late,
            lock_reason="" if late else self._mode.mode.reason,
            grant_forms=self._grants.forms(),
            shares=inventory.shares(self._vendor) if self._advertise_shares else None,
        )
        # Before, what an earlier agent has written stays: its cards may still be in use.
        return shown.with_mark(keys.closed, self._closed.mark()) if self._closed.settled else shown

    def _end_service_of_earlier(self) -> None:
        """Take out of service what an earlier agent registered; we do not know the cards yet."""
        node, keys = self._node.node(), self._node.keys
        if node is None:
            return
        try:
            cards = node_register.decode_json(node.annotation(keys.register))
        except WireError:
            return  # no scheduler can read it either
        register = CardInventory(devices=tuple(cards)).register(in_service=False)
        self._node.advertise(advertisement(keys, register=register))

    def _is_in_service(self) -> bool:
        wait = self._service.wait(possible=self._registration.watched and not self._leaving)
        if self._return is not None:
            self._return.cancel()
        self._return = asyncio.get_running_loop().call_later(wait, self.update) if wait else None
        return wait == 0.0


def advertisement(
    keys: AnnotationKeys,
    *,
    register: str | None,
    scores: str | None = None,
    late: bool = False,
    lock_reason: str = "",
    grant_forms: str = "",
    shares: Mapping[str, int] | None = None,
) -> Advertisement:
    """Return what the Node should show.

    `register` None: there are no cards, and no annotation about cards stays. `shares`: sums for
    the node's status by resource name, None for none.
    """
    return Advertisement(
        annotations={
            keys.register: register,
            keys.pair_scores: scores if register is not None else None,
            # The mark names the register value that it is written with: one patch carries both.
            keys.binding: node_marks.late_binding_mark(register)
            if register is not None and late
            else None,
            keys.lock_reason: (lock_reason or None) if register is not None and not late else None,
            annotation_keys.NODE_GRANT_FORMS: (grant_forms or None)
            if register is not None
            else None,
        },
        shares=dict(shares or {}),
    )
