"""GPU models as their drivers show them.

Memory is what NVML reports, which is less than what the product name says. Context is what a CUDA
context takes of it: measured on the H200, near it for the others. Names are NVML's, because
programs and pod annotations select cards by them.
"""

from __future__ import annotations

import dataclasses

MIB = 1 << 20

_NVIDIA = 14
_GEFORCE = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    name: str
    memory_mib: int
    sms: int
    threads: int
    """Threads that one SM holds: what local memory costs is a multiple of it."""
    capability: tuple[int, int]
    context_mib: int
    watts: int
    clock_mhz: int
    memory_clock_mhz: int
    pci_device: int
    links: int = 0
    """NVLinks of a card."""
    switched: bool = False
    """Whether its NVLinks end in a switch, so that every card reaches every other."""
    mig: bool = False
    ecc: bool = True
    p2p: bool = True
    brand: int = _NVIDIA


MODELS = {
    "B200": Model(
        name="NVIDIA B200",
        memory_mib=183359,
        sms=148,
        threads=2048,
        capability=(10, 0),
        context_mib=600,
        watts=1000,
        clock_mhz=1965,
        memory_clock_mhz=3996,
        pci_device=0x290110DE,
        links=18,
        switched=True,
        mig=True,
    ),
    "H200": Model(
        name="NVIDIA H200",
        memory_mib=143771,
        sms=132,
        threads=2048,
        capability=(9, 0),
        context_mib=518,
        watts=700,
        clock_mhz=1980,
        memory_clock_mhz=3201,
        pci_device=0x233510DE,
        links=18,
        switched=True,
        mig=True,
    ),
    "H100": Model(
        name="NVIDIA H100 80GB HBM3",
        memory_mib=81559,
        sms=132,
        threads=2048,
        capability=(9, 0),
        context_mib=518,
        watts=700,
        clock_mhz=1980,
        memory_clock_mhz=2619,
        pci_device=0x233010DE,
        links=18,
        switched=True,
        mig=True,
    ),
    "A100-80GB": Model(
        name="NVIDIA A100-SXM4-80GB",
        memory_mib=81920,
        sms=108,
        threads=2048,
        capability=(8, 0),
        context_mib=418,
        watts=400,
        clock_mhz=1410,
        memory_clock_mhz=1593,
        pci_device=0x20B210DE,
        links=12,
        switched=True,
        mig=True,
    ),
    "A100-40GB": Model(
        name="NVIDIA A100-SXM4-40GB",
        memory_mib=40960,
        sms=108,
        threads=2048,
        capability=(8, 0),
        context_mib=418,
        watts=400,
        clock_mhz=1410,
        memory_clock_mhz=1215,
        pci_device=0x20B010DE,
        links=12,
        switched=True,
        mig=True,
    ),
    "L40S": Model(
        name="NVIDIA L40S",
        memory_mib=46068,
        sms=142,
        threads=1536,
        capability=(8, 9),
        context_mib=400,
        watts=350,
        clock_mhz=2520,
        memory_clock_mhz=9001,
        pci_device=0x26B910DE,
    ),
    "L4": Model(
        name="NVIDIA L4",
        memory_mib=23034,
        sms=58,
        threads=1536,
        capability=(8, 9),
        context_mib=218,
        watts=72,
        clock_mhz=2040,
        memory_clock_mhz=6251,
        pci_device=0x27B810DE,
    ),
    "A10": Model(
        name="NVIDIA A10",
        memory_mib=23028,
        sms=72,
        threads=1536,
        capability=(8, 6),
        context_mib=258,
        watts=150,
        clock_mhz=1695,
        memory_clock_mhz=6251,
        pci_device=0x223610DE,
    ),
    "T4": Model(
        name="Tesla T4",
        memory_mib=15360,
        sms=40,
        threads=1024,
        capability=(7, 5),
        context_mib=102,
        watts=70,
        clock_mhz=1590,
        memory_clock_mhz=5001,
        pci_device=0x1EB810DE,
    ),
    "V100": Model(
        name="Tesla V100-SXM2-32GB",
        memory_mib=32768,
        sms=80,
        threads=2048,
        capability=(7, 0),
        context_mib=302,
        watts=300,
        clock_mhz=1530,
        memory_clock_mhz=877,
        pci_device=0x1DB510DE,
        links=6,
    ),
    "RTX4090": Model(
        name="NVIDIA GeForce RTX 4090",
        memory_mib=24564,
        sms=128,
        threads=1536,
        capability=(8, 9),
        context_mib=380,
        watts=450,
        clock_mhz=3105,
        memory_clock_mhz=10501,
        pci_device=0x268410DE,
        ecc=False,
        p2p=False,
        brand=_GEFORCE,
    ),
}
