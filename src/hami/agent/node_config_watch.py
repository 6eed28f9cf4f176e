"""The node's configuration file while we run: what it said at the start, and whether it changed.

Nothing of it is taken over halfway: when the file is another, the process ends in order and kubelet
starts it anew. While it holds a mistake, no card is offered: a filter that is misspelt would give
out cards that were not to be given out. Containers that were prepared before start nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NoReturn

from hami.agent import node_config
from hami.agent.node_config import NodeConfig
from hami.agent.settings import Settings
from hami.vendors.device_config import NvidiaSettings
from hami.vendors.errors import ConfigError

_log = logging.getLogger(__name__)

#: Seconds between two looks; kubelet needs a minute to bring a changed ConfigMap.
_LOOK_EVERY = 5.0


class NodeConfigFile:
    def __init__(self, settings: Settings, defaults: NvidiaSettings) -> None:
        self._settings = settings
        self._defaults = defaults
        self._path = Path(settings.node_config_file)
        self._content = self._read()
        #: Why it cannot be followed; empty: it can.
        self.mistake = ""
        self.config = NodeConfig(nvidia=defaults)
        try:
            self.config = node_config.load(
                settings.node_config_file,
                node=settings.node_name,
                defaults=defaults,
                mig_strategy=settings.mig_strategy,
            )
        except ConfigError as error:
            self.mistake = str(error)
        for warning in self.config.warnings:
            _log.warning("node configuration", extra={"warning": warning})

    async def watch(self, stop: asyncio.Event) -> NoReturn:
        """End the process when the file says something else."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._read() != self._content:
                _log.info("the node configuration changed, starting anew")
                stop.set()
                await asyncio.Event().wait()

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes() if self._settings.node_config_file else None
        except OSError:
            return None
