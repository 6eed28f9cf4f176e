"""Retries of a step, and errors that end it at once."""

from __future__ import annotations

from typing import Any

import pytest

from hami.installation import job as jobs
from hami.installation.job import InstallationError
from hami.kube import errors as kube_errors
from hami.kube import paths
from tests.scripted_api.server import Lost
from tests.unit.installation.rig import Rig


async def ask(rig: Rig) -> bytes:
    return await rig.job.persist(lambda: rig.job.client.get(paths.nodes()))


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 500},
        {"status": 503, "retry_after": 7},
        {"status": 409, "reason": "Conflict"},
        {"lost": Lost.BEFORE},
    ],
)
async def test_what_may_pass_is_tried_again_and_reported(rig: Rig, fault: dict[str, Any]) -> None:
    scripted = rig.api.fault(path="/nodes", times=3, **fault)
    assert b"NodeList" in await ask(rig)
    assert scripted.hits == 3
    # A broken connection is also tried again by the HTTP library itself.
    assert len(rig.printed) == len(rig.slept) >= (1 if "lost" in fault else 3)
    assert all(line.endswith("; retrying") for line in rig.printed)
    assert all(wait >= fault.get("retry_after", 0) for wait in rig.slept)


async def test_it_ends_after_a_minute_with_the_last_reason(rig: Rig) -> None:
    rig.api.fault(path="/nodes", status=500, message="broken", times=None)
    with pytest.raises(kube_errors.ServerFault, match="broken"):
        await ask(rig)
    assert jobs.PATIENCE_S - 10 < rig.monotonic <= jobs.PATIENCE_S


@pytest.mark.parametrize("status", [400, 401, 403, 422])
async def test_what_cannot_pass_is_reported_at_once(rig: Rig, status: int) -> None:
    rig.api.fault(path="/nodes", status=status, times=None)
    with pytest.raises(kube_errors.ApiError):
        await ask(rig)
    assert (rig.slept, rig.printed) == ([], [])


async def test_what_a_person_must_decide_is_reported_at_once(rig: Rig) -> None:
    async def step() -> None:
        raise InstallationError("it", "is so", "do that")

    with pytest.raises(InstallationError, match="it: is so; do that"):
        await rig.job.persist(step)
    assert rig.slept == []
