"""Cambricon MLU: the plugin learns its profile from annotations of the pod.

Cards come from the node's capacity. The plugin finds the pod whose `CAMBRICON_DSMLU_ASSIGNED` is
`false`, cuts the card by `CAMBRICON_DSMLU_PROFILE` (`<card>_<percent>_<units of memory>`), and
removes the node's lock. Of a pod with several cards the profile names the first, as in HAMi.
"""

from __future__ import annotations

from hami.vendors.family import Grant, Plain
from hami.wire import shares

ASSIGNED = "CAMBRICON_DSMLU_ASSIGNED"
PROFILE = "CAMBRICON_DSMLU_PROFILE"


class Cambricon(Plain):
    def record(self, pod_shares: shares.PodShares, grant: Grant) -> dict[str, str]:
        written = {ASSIGNED: "false"}
        for share in (share for each in pod_shares for share in each):
            index = grant.cards[share.card].index
            units = share.memory_mib // self.vendor.memory_factor
            written[PROFILE] = f"{index}_{share.cores}_{units}"
            break
        return written | super().record(pod_shares, grant)
