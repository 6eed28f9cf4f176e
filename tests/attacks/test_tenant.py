"""Attacks of a tenant with root in a container."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks import attack as attacks
from tests.attacks.attack import NO_GAIN, REPORTED, Attacker, Result
from tests.attacks.tenants import Tenant
from tests.native.probing import GIB

attack = attacks.by(Attacker.TENANT)


@pytest.fixture
def tenant(tmp_path: Path) -> Iterator[Tenant]:
    made = Tenant(tmp_path)
    yield made
    made.close()


@attack(
    "environment-limits",
    "sets HAMi's environment names to a larger limit",
    NO_GAIN,
    "with a policy file the environment sets nothing",
)
def test_limits_in_the_environment(tenant: Tenant) -> Result:
    tenant.fill(
        names={
            "CUDA_DEVICE_MEMORY_LIMIT": "100g",
            "CUDA_DEVICE_MEMORY_LIMIT_0": "100g",
            "CUDA_OVERSUBSCRIBE": "true",
            "CUDA_DISABLE_CONTROL": "true",
        }
    )
    return tenant.result()


@attack(
    "static-binary",
    "runs a program into which nothing is preloaded",
    REPORTED,
    "the monitor compares NVML's processes with the container's",
)
def test_a_static_binary(tenant: Tenant) -> Result:
    probe = tenant.hidden().start()
    probe.do(f"take alloc x {2 * GIB}")
    return tenant.reported(probe)
