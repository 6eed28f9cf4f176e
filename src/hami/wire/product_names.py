"""Whether a word from a user's annotation names a card's product.

Users write part of a product name (`A100`, `h20`), cards carry the whole (`NVIDIA A100-SXM4-40GB`).
HAMi takes any substring, so that asking for an H20 also gets an H200. Here a number is never
cut: where the word begins or ends with a digit, the product's number must begin or end there
too. docs/placement.md, "Type tokens", is the contract.
"""

from __future__ import annotations

_DIGITS = frozenset("0123456789")


def matches(token: str, product: str) -> bool:
    """Return whether `token` occurs in `product`, ignoring case, without cutting a number.

    A product has at most 256 characters (`hami.wire.node_register`), and a longer token, of which
    lower-casing never makes a shorter one, is not searched for: so the work is bounded.
    """
    product = product.lower()
    if not token or len(token) > len(product):
        return False
    token = token.lower()
    digit_first, digit_last = token[0] in _DIGITS, token[-1] in _DIGITS
    start = product.find(token)
    while start >= 0:
        end = start + len(token)
        cut_before = digit_first and start > 0 and product[start - 1] in _DIGITS
        cut_after = digit_last and end < len(product) and product[end] in _DIGITS
        if not (cut_before or cut_after):
            return True
        start = product.find(token, start + 1)
    return False
