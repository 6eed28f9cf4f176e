"""The simulated device plugin: one extended resource, offered to kubelet.

A container gets no device, only a variable with the ids of its cards: HAMI_SIMULATED_<VENDOR>.
"""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Sequence

from hami.agent.kubelet.kubelet_api import AllocateResponse
from hami.agent.kubelet.plugin_server import DeviceList
from hami.simulation.cards import SimulatedDevice
from hami.simulation.endings import Ending

_log = logging.getLogger(__name__)


class SimulatedPlugin:
    """Answers kubelet for one resource of one vendor."""

    pre_start_required = False
    preferred_allocation = False

    def __init__(
        self, resource: str, devices: Sequence[SimulatedDevice], *, vendor: str, ending: Ending
    ) -> None:
        self.resource = resource
        self._list: DeviceList[SimulatedDevice] = DeviceList()
        self._list.set(devices)
        self._variable = f"HAMI_SIMULATED_{re.sub('[^A-Z0-9]', '_', vendor.upper())}"
        self._ending = ending

    def devices(self) -> AsyncIterator[Sequence[SimulatedDevice]]:
        return self._list.watch()

    async def allocate(self, requests: Sequence[tuple[str, ...]]) -> list[AllocateResponse]:
        answers = []
        for ids in requests:
            cards = await self._ending.serve(self.resource, len(ids))
            _log.info("Allocate", extra={"resource": self.resource, "cards": cards})
            envs = {self._variable: ",".join(cards)} if cards else {}
            answers.append(AllocateResponse(envs=envs))
        return answers

    async def pre_start(self, device_ids: frozenset[str]) -> None:
        """Do nothing: kubelet does not call it."""

    async def preferred(self, *_: object) -> tuple[str, ...]:
        """Leave the choice to kubelet."""
        return ()
