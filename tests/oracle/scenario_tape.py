"""Random choices from a tape of bytes, simpler where the bytes are smaller.

Every choice takes a byte or two and 0 always means the simplest choice, so that shrinking the bytes
shrinks the scenario. (A draw of hypothesis per choice costs ten times as much.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Tape:
    """Choices read from bytes; after their end every choice is the simplest."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def below(self, bound: int) -> int:
        """Return a number from 0 to `bound` - 1."""
        width = 1 if bound <= 64 else 2
        piece = self.data[self.position : self.position + width]
        self.position += width
        return int.from_bytes(piece, "big") % bound

    def pick(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def subset(self, options: Sequence[T], size: int) -> list[T]:
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(min(size, len(left)))]
