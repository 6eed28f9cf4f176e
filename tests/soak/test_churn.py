"""The churn of sandbox/tests/cluster with more pods, kills and seeds.

`HAMI_SOAK_SEEDS` says how many seeds are tried, `HAMI_SOAK_PODS` how many pods each of them has.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandbox.tests.cluster import test_churn

SEEDS = int(os.environ.get("HAMI_SOAK_SEEDS", "1"))
PODS = int(os.environ.get("HAMI_SOAK_PODS", "60"))
#: One kill comes after every fifth pod that was served; the last pods see none.
KILLS = PODS // 7


@pytest.mark.timeout(0)  # the churn's own patience catches hangs
@pytest.mark.parametrize("seed", range(100, 100 + SEEDS))
async def test_nothing_is_given_twice_whatever_the_seed(tmp_path: Path, seed: int) -> None:
    await test_churn.churned(tmp_path, seed, pods=PODS, kills=KILLS)
