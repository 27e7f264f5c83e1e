"""Errors with their HTTP status, sending of responses, and strict decoding of request JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeVar

import msgspec

from ..errors import BackendError, HydrantError, InputError, short

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

T = TypeVar("T")


class ServeError(HydrantError):
    """A rejected or failed request: HTTP status, message, and the seconds until a retry may succeed (503).

    Status 400 is invalid, 401 wrong token, 404 unknown model or route, 413 too large, 499 client disconnected, 503
    busy, loading or stopping, 504 out of time.
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


def refusal(error: BaseException) -> ServeError:
    """The error for the client; details of unexpected errors stay in the log."""
    if isinstance(error, ServeError):
        return error
    if isinstance(error, InputError | BackendError):
        return ServeError(400 if isinstance(error, InputError) else 500, str(error))
    return ServeError(500, f"unexpected {type(error).__name__}; see the server's log")


def error_body(message: str) -> bytes:
    """The JSON body of an error."""
    return json.dumps({"error": message}).encode()


async def respond(send: Send, body: bytes, status: int, content_type: str, headers: Mapping[str, str]) -> None:
    """Send a whole response."""
    fields = {"content-type": content_type, "content-length": str(len(body)), **headers}
    encoded = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


async def refuse(send: Send, error: ServeError, allow: str | None = None) -> None:
    """Send an error, with the allowed methods (405)."""
    further = error_headers(error) | ({} if allow is None else {"allow": allow})
    await respond(send, error_body(error.message), error.status, "application/json", further)


def error_headers(error: ServeError) -> dict[str, str]:
    """Headers for the status of an error."""
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    # no close after 413: simple clients send the whole body before they read; the rest is discarded
    return headers | {401: {"www-authenticate": "Bearer"}, 408: {"connection": "close"}}.get(error.status, {})


def decode_json(text: bytes, kind: type[T], what: str) -> T:
    """JSON of a request as ``kind``; raises 400 for other fields or types."""
    try:
        return msgspec.json.decode(text.removeprefix(b"\xef\xbb\xbf"), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ServeError(400, f"{what} is not the expected JSON: {_reason(error, kind)}") from None


def convert_fields(fields: Any, kind: type[T], what: str, *, words: bool = False) -> T:
    """Decoded fields as ``kind``; with ``words``, strings may be numbers and flags."""
    try:
        return msgspec.convert(fields, kind, strict=not words)
    except msgspec.MsgspecError as error:
        raise ServeError(400, f"{what} is invalid: {_reason(error, kind)}") from None


def _reason(error: Exception, kind: type) -> str:
    """What is wrong with JSON, and the fields of the outermost object if one of its fields is unknown."""
    text = short(str(error), 300)
    known = getattr(kind, "__struct_encode_fields__", ()) if "unknown field" in text and " - at " not in text else ()
    return f"{text}; expected {', '.join(known)}" if known else text
