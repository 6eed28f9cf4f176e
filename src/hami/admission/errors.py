"""How admission says no: the status that the API server hands on to the user."""

from __future__ import annotations

from http import HTTPStatus


class Refusal(Exception):  # noqa: N818 - an answer, not an error of ours
    """The pod must not be created as it is; the message says what to change."""

    def __init__(self, message: str, *, code: int = HTTPStatus.FORBIDDEN) -> None:
        super().__init__(message)
        self.message = message
        self.code = int(code)
        self.reason = "Forbidden" if code == HTTPStatus.FORBIDDEN else "Invalid"


def invalid(message: str) -> Refusal:
    """Refuse values that cannot be read, as the API server itself does."""
    return Refusal(message, code=HTTPStatus.UNPROCESSABLE_ENTITY)
