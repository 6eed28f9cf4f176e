"""The node's configuration file while we run: what it said at the start, and whether it changed.

Nothing of it is taken over halfway: when it says something else of our node, the process ends in
order and kubelet starts it anew; what is written for other nodes ends nobody here. While it holds a
mistake, no card is offered: a filter that is misspelt would give out cards that were not to be
given out. Containers that were prepared before start nevertheless.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import NoReturn

import msgspec

from hami.agent.cards import node_config
from hami.agent.cards.node_config import NodeConfig
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
        #: What holds here, and why it cannot be followed; empty: it can.
        self.config, self.mistake = self._load()
        for warning in self.config.warnings:
            _log.warning("node configuration", extra={"warning": warning})

    async def watch(self, stop: asyncio.Event) -> NoReturn:
        """End the process when the file says something else of this node."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if (content := self._read()) == self._content:
                continue
            self._content = content
            if self._is_another():
                _log.info("the node configuration changed, starting anew")
                stop.set()
                await asyncio.Event().wait()
            _log.info("the node configuration changed, but not for this node")

    def _is_another(self) -> bool:
        config, mistake = self._load()
        # Warnings are about other nodes' entries.
        config = msgspec.structs.replace(config, warnings=self.config.warnings)
        return (config, mistake) != (self.config, self.mistake)

    def _load(self) -> tuple[NodeConfig, str]:
        try:
            config = node_config.load(
                self._settings.node_config_file,
                node=self._settings.node_name,
                defaults=self._defaults,
                mig_strategy=self._settings.mig_strategy,
            )
        except ConfigError as error:
            return NodeConfig(nvidia=self._defaults), str(error)
        return config, ""

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes() if self._settings.node_config_file else None
        except OSError:
            return None
