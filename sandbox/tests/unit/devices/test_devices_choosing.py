"""The device ids that a container gets, with and without a preference."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami_sandbox.kubelet.devices.allocations import choose
from hami_sandbox.kubelet.devices.pods import DevicesError

IDS = st.frozensets(st.sampled_from("abcdefgh"), max_size=8)


@given(IDS, IDS, IDS, IDS, st.integers(1, 6))
def test_chosen_ids_are_reusable_or_free_and_preferred_ones_go_first(
    healthy: frozenset[str],
    taken: frozenset[str],
    reusable: frozenset[str],
    preferred: frozenset[str],
    size: int,
) -> None:
    asked: list[tuple[AbstractSet[str], AbstractSet[str], int]] = []
    taken |= reusable  # they are their init container's

    async def prefer(
        available: AbstractSet[str], must: AbstractSet[str], count: int
    ) -> frozenset[str]:
        asked.append((available, must, count))
        return preferred

    def chosen() -> frozenset[str]:
        return asyncio.run(
            choose("x.com/y", size, healthy=healthy, taken=taken, reusable=reusable, prefer=prefer)
        )

    free = healthy - taken
    lacking = max(0, size - len(reusable))
    if len(free) < lacking:
        with pytest.raises(DevicesError, match=f"Requested: {lacking}, Available: {len(free)}"):
            chosen()
        return
    ids = chosen()
    assert len(ids) == size
    assert ids <= reusable | free
    if not lacking:
        assert ids <= reusable
        assert not asked
        return
    assert reusable <= ids
    assert asked == [(free | reusable, reusable, size)]
    liked = preferred & free
    assert len(ids & liked) == min(len(liked), lacking)
