"""Changes of the cluster, as data.

Each operation sets one thing (a node, a ledger row, a quota) or drops it. `Cluster.apply` returns
the operation that reverses it, which is again one of these: a log of reverses, applied last to
first, is an undo.
"""

from __future__ import annotations

import msgspec

from hami.cluster.ledger import LedgerRow
from hami.cluster.node_facts import NodeFacts
from hami.cluster.quota import QuotaLimits


class PutNode(msgspec.Struct, frozen=True):
    facts: NodeFacts


class DropNode(msgspec.Struct, frozen=True):
    name: str


class PutRow(msgspec.Struct, frozen=True):
    row: LedgerRow


class DropRow(msgspec.Struct, frozen=True):
    uid: str


class PutQuota(msgspec.Struct, frozen=True):
    limits: QuotaLimits


class DropQuota(msgspec.Struct, frozen=True):
    namespace: str
    name: str


Operation = PutNode | DropNode | PutRow | DropRow | PutQuota | DropQuota
