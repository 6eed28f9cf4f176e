"""Refusals of admission, with the status that the API server passes on."""

from __future__ import annotations

from http import HTTPStatus


class Refusal(Exception):  # noqa: N818 - an answer, not a failure
    """The pod must not be created as it is; the message says what to change."""

    def __init__(self, message: str, *, code: int = HTTPStatus.FORBIDDEN) -> None:
        super().__init__(message)
        self.message = message
        self.code = int(code)
        self.reason = "Forbidden" if code == HTTPStatus.FORBIDDEN else "Invalid"


def invalid(message: str) -> Refusal:
    """Return the refusal of a value that cannot be read, with the API server's own status."""
    return Refusal(message, code=HTTPStatus.UNPROCESSABLE_ENTITY)
