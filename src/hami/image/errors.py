"""The one error of building and reading images.

All errors between a package archive and a finished image are `ImageError`: object, rule and remedy.
No other exception leaves this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ImageError(RuntimeError):
    """An image, a layer or a package cannot be made, or breaks a rule."""

    def __init__(self, what: str, rule: str, remedy: str = "") -> None:
        self.what = what
        self.rule = rule
        self.remedy = remedy
        message = f"{what}: {rule}"
        super().__init__(f"{message}; {remedy}" if remedy else message)


@contextmanager
def only_image_errors(what: str) -> Iterator[None]:
    """Raise errors of the file system (no space, no permission) as `ImageError`."""
    try:
        yield
    except OSError as error:
        raise ImageError(what, f"failed ({error})", "check free space and permissions") from error
