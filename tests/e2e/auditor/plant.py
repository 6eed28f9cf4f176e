"""Plant every fault on a real cluster, to prove that the auditor sees it.

    with Recorder(client, path) as recorder:
        undo = one.plant(context)
        try:
            found = {finding.kind for finding in sources.settle(patience=2)}
        finally:
            undo()
    assert found == one.expected | one.recorded

`expected` is all that the fault leads to; `recorded` is what the timeline shows besides and keeps,
so each plant gets a recorder of its own. Afterwards nothing of it is left. Every kind of finding is
in the list (a test says so), some of them with several faults.
"""

from __future__ import annotations

from tests.e2e.auditor import plants_api, plants_node
from tests.e2e.auditor.planting import Context, Plant, Undo

__all__ = ["PLANTS", "Context", "Plant", "Undo"]

PLANTS: tuple[Plant, ...] = (*plants_api.PLANTS, *plants_node.PLANTS)
