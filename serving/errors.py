"""What a service refuses, with the status that tells a client whose fault it is."""

from __future__ import annotations

from ..errors import BackendError, HydrantError, InputError

STATUSES = (400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 499, 500, 503, 504)
"""Every status of HTTP that a refusal has; gRPC has a code for each."""


class ServeError(HydrantError):
    """A request that is not answered.

    Attributes:
        status: of HTTP: 400 for what a client may mend, 401 without the token, 404 for an unknown model or route, 413
            for too large, 499 where the client left, 503 while busy, loading or stopping, 504 when it took too long.
        message: what was found, what was expected, what to do.
        retry_after: seconds after which the same request may be answered (503); ``None`` where nobody can say.
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def refusal(error: BaseException) -> ServeError:
    """What a client is told of an error; what is none of its business stays in the log."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, InputError):
        return ServeError(400, str(error))
    if isinstance(error, BackendError):
        return ServeError(500, str(error))
    return ServeError(500, f"unexpected {type(error).__name__}; the log of the server says more")
