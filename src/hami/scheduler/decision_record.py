"""What a Binding writes into its pod: the decision, in HAMi's annotations, and its proof.

One write binds the pod and records where its cards are (D3). Devices are written twice: the list
that HAMi's device plugins consume, and the one that stays. The proof covers pod, node and the
latter (D14).
"""

from __future__ import annotations

from collections.abc import Mapping

from hami.cluster.ledger import LedgerRow
from hami.vendors.row import Vendor
from hami.wire import annotation_keys, grant, pod_devices

ALLOCATING = "allocating"


def write(
    row: LedgerRow, vendors: Mapping[str, Vendor], *, now: float, keys: grant.GrantKeys | None
) -> dict[str, str]:
    """Return the annotations of the Binding that puts `row`'s pod on its node."""
    if not row.slots:
        return {}
    seconds = str(int(now))
    written = {
        annotation_keys.ASSIGNED_NODE: row.node,
        annotation_keys.ASSIGNED_TIME: seconds,
        annotation_keys.BIND_PHASE: ALLOCATING,
        annotation_keys.BIND_TIME: seconds,
    }
    for word, slots in row.slots:
        devices = pod_devices.encode(slots)
        own = vendors[word].annotations
        written[own.to_allocate] = devices
        written[own.allocated] = devices
        if keys is not None and own.allocated == annotation_keys.SIGNED_DEVICES:
            written[annotation_keys.GRANT_MAC] = grant.sign(
                keys, uid=row.uid, node=row.node, devices=devices
            )
    return written
