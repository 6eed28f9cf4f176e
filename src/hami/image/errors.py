"""The one error of building and reading images.

Whatever goes wrong between a package archive and a finished image, `ImageError` says it: what was
read, its value, the rule it breaks and what to do. Nothing else escapes this package.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class ImageError(RuntimeError):
    """An image, a layer or a package cannot be made or is not what it says it is."""

    def __init__(self, what: str, rule: str, remedy: str = "") -> None:
        self.what = what
        self.rule = rule
        self.remedy = remedy
        message = f"{what}: {rule}"
        super().__init__(f"{message}; {remedy}" if remedy else message)


@contextmanager
def only_image_errors(what: str) -> Iterator[None]:
    """Tell what the file system refused (no space, no permission) as an `ImageError` too."""
    try:
        yield
    except OSError as error:
        raise ImageError(what, f"failed ({error})", "is there space, and may you write?") from error
