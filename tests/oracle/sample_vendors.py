"""Two vendors for the reference: NVIDIA as it is, and ACME, different throughout.

ACME has a memory factor, no percentages, no selectors, no quota, and a rule about columns.
Scenarios, hand-made cases and the benchmark use them; test_agreement.py has the rows of both in the
product.
"""

from __future__ import annotations

from tests.oracle.reference_cards import Card
from tests.oracle.reference_vendor import Ask, RefVendor


def _mig(card: Card, _ask: Ask) -> str | None:
    return "CardMigTopologyInfeasible" if card.device.mode == "mig" else None


def _even_columns(card: Card, _ask: Ask) -> str | None:
    return "CardNotFoundCustomFilterRule" if card.column % 2 else None


NVIDIA = RefVendor(
    name="NVIDIA",
    count="nvidia.com/gpu",
    memory="nvidia.com/gpumem",
    percentage="nvidia.com/gpumem-percentage",
    cores="nvidia.com/gpucores",
    register="hami.io/node-nvidia-register",
    cordon="hami.io/device-cordon",
    to_allocate="hami.io/vgpu-devices-to-allocate",
    allocated="hami.io/vgpu-devices-allocated",
    use_type="nvidia.com/use-gputype",
    nouse_type="nvidia.com/nouse-gputype",
    use_uuid="nvidia.com/use-gpuuuid",
    nouse_uuid="nvidia.com/nouse-gpuuuid",
    mode="nvidia.com/vgpu-mode",
    numa_bind="nvidia.com/numa-bind",
    rule=_mig,
)
ACME = RefVendor(
    name="ACME",
    count="acme.test/card",
    memory="acme.test/mem",
    cores="acme.test/cores",
    memory_factor=256,
    register="acme.test/register",
    allocated="acme.test/allocated",
    enforces_quota=False,
    rule=_even_columns,
)
