"""A node with stand-in cards, and a preparer that gives shares of them."""

from __future__ import annotations

import json
from pathlib import Path

from hami.agent.containers import library as containers_library
from hami.agent.containers.library import Library
from hami.agent.containers.nvidia_cdi import NvidiaSpecs
from hami.agent.containers.prepare import PrepareConfig, Preparer
from hami.agent.containers.state_files import StateFiles
from hami.wire.node_register import RegisteredCard
from hami_sandbox import gpus
from tests.unit.agent.preparing import Desk, grant

MIB = 1 << 20


class CardNode:
    """Two stand-in cards; containers have the second."""

    def __init__(self, root: Path, states: type[StateFiles]) -> None:
        self.desk = Desk(root)
        self.layout = self.desk.layout
        self.cards = gpus.write_node(root / "gpus", [("A10", 2)], name="node")
        self.driver = gpus.driver_folder()
        spec = gpus.cdi_spec(root / "gpus", self.driver)
        (self.desk.nvidia / "nvidia.json").write_text(json.dumps(spec))
        library = Library(self.layout, containers_library.find_built("libvgpu.so"))
        library.install()
        self.states = states(self.layout)
        devices = {
            card.uuid: RegisteredCard(id=card.uuid, index=index, devmem=card.memory // MIB)
            for index, card in enumerate(self.cards)
        }
        self.preparer = Preparer(
            self.layout,
            library=library,
            states=self.states,
            nvidia=NvidiaSpecs([self.desk.nvidia]),
            devices=devices.get,
            config=PrepareConfig(injection="cdi"),
        )

    def prepare(self, mebibytes: int, generation: int = 1) -> None:
        share = self.desk.share(grant(self.cards[1].uuid, mebibytes, 0), generation=generation)
        self.preparer.prepare(share, cdi=True)
