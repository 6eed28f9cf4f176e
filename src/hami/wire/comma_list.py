"""Lists that users write into annotations: `H100, A100-SXM4,,`.

Spaces around a word and empty words mean nothing, as in HAMi, so that a trailing comma or a blank
value does not turn into a word that matches everything or nothing.
"""

from __future__ import annotations


def tokens(value: str) -> tuple[str, ...]:
    """Return the words of a comma list, trimmed, without the empty ones."""
    return tuple(token for token in map(str.strip, value.split(",")) if token)
