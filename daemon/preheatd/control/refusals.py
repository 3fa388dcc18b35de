"""What is said to a caller whose request cannot be served, with its HTTP status."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

from preheat.errors import (
    BuildError,
    ConfigurationError,
    PreheatError,
    StoreError,
    UntrustedStoreError,
    WaitTimeoutError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class ListenError(PreheatError):
    """The daemon cannot listen there.

    Raised for a path that is taken or too long, a group or a token that cannot be used, and a port that
    is taken. The daemon goes on without.
    """

    exit_code = 2
    default_remedy = "Correct the table [control] and run `preheat reload`."


class RequestError(PreheatError):
    """The daemon does not understand the request.

    Raised for an address, a method, a body or a parameter that there is not.
    """

    exit_code = 2
    default_remedy = "See docs/control.md."

    def __init__(
        self,
        message: str | None = None,
        *,
        status: HTTPStatus = HTTPStatus.BAD_REQUEST,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status


class ForbiddenError(RequestError):
    """The daemon does not answer this caller.

    Raised for a wrong or missing token, and for requests that a web page of somebody else makes.
    """


class UnknownTargetError(RequestError):
    """The configuration has no such target.

    Raised for a name that is not in the configuration that is in force.
    """

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        super().__init__(message, status=HTTPStatus.NOT_FOUND, remedy=remedy)


_STATUS: Mapping[type[PreheatError], HTTPStatus] = {
    ConfigurationError: HTTPStatus.UNPROCESSABLE_ENTITY,
    WaitTimeoutError: HTTPStatus.REQUEST_TIMEOUT,
    BuildError: HTTPStatus.FAILED_DEPENDENCY,
    UntrustedStoreError: HTTPStatus.FAILED_DEPENDENCY,
    StoreError: HTTPStatus.SERVICE_UNAVAILABLE,
}


def status_of(error: PreheatError) -> HTTPStatus:
    """The HTTP status of an error."""
    if isinstance(error, RequestError):
        return error.status
    kinds = (_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    return next(kinds, HTTPStatus.INTERNAL_SERVER_ERROR)
