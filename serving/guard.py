"""What stands before every route: who may ask, how large a request may be, and how many are taken at a time."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from ..errors import cut
from .connection import error_body
from .errors import ServeError
from .room import Room
from .settings import ServeSettings, is_loopback

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

REPOSITORY = "/v2/repository/"

HEALTH = ("/v2/health/live", "/v2/health/ready")
"""Probes of an orchestrator carry no token, and are answered however busy the service is."""

FIGURES = ("/metrics", "/stats")
"""What tells how busy the service is is not refused because it is; it needs the token as all else."""

COUNTED = "hydrant.counted"
"""In the ``state`` of a request that the observers are told of."""


class Guard:
    """An ASGI application around another one."""

    def __init__(
        self,
        app: App,
        settings: ServeSettings,
        open_paths: Collection[str] = (),
        refused: Callable[[int], None] = lambda status: None,  # noqa: ARG005
        room: Room | None = None,
    ) -> None:
        self._app, self._settings, self._refused = app, settings, refused
        self._open = {*HEALTH, *open_paths}
        self._room = room or Room.of(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or let it in."""
        if scope["type"] != "http":
            return  # web sockets, which nobody speaks here, are closed by this
        if len(scope["path"]) > 1 and scope["path"].endswith("/"):  # the same route as without it
            scope = {**scope, "path": scope["path"][:-1]}
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            self._check(scope, headers)
        except ServeError as error:
            self._refused(error.status)
            await _refuse(error, send)
            return
        if scope["path"] in HEALTH:
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
        limited = _Limited(receive, self._settings.max_bytes, self._room, empty)
        self._room.here += 1
        try:
            await self._in_time(scope, limited, send)
        finally:
            self._room.here -= 1
            self._room.held -= limited.came

    async def _in_time(self, scope: Scope, receive: _Limited, send: Send) -> None:
        """Let a request in, which is given up when its time has passed; but for verbs that open bundles."""
        seconds = None if scope["path"].startswith(REPOSITORY) else self._settings.timeout
        begun = False

        async def told(message: MutableMapping[str, Any]) -> None:
            nonlocal begun
            await send(message)  # which waits while the client does not read its answers to other requests
            if not begun and message["status"] >= 400 and COUNTED not in scope["state"]:
                self._refused(message["status"])
            begun = True

        try:
            async with asyncio.timeout(seconds):
                await self._app(scope, receive, told)
        except ServeError as refused:  # of what has no routes of its own that tell it
            if not begun:
                await _refuse(refused, told)
        except TimeoutError:
            if begun:  # a client that does not read its answer
                return
            error = ServeError(504, f"the request was not answered within {seconds:g} s; ask for less, or again later")
            if not receive.ended:
                error = ServeError(408, f"the body did not come within {seconds:g} s; send less, or ask again later")
            await _refuse(error, told)

    def _check(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        settings = self._settings
        check_host(headers.get(b"host"), settings)
        check_origin(headers.get(b"origin"), headers.get(b"host", b""), settings)
        if settings.token is not None and scope["path"] not in self._open:
            check_token(headers.get(b"authorization", b""), settings.token)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ServeError(415, "the body is compressed; send it as it is, without Content-Encoding")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > settings.max_bytes:
            raise _too_large(settings.max_bytes)
        if scope["path"] not in (*HEALTH, *FIGURES):
            self._room.check_requests()


class _Limited:
    """Receives a body that may not be too large, by itself or with the others, and knows whether all of it is here."""

    def __init__(self, receive: Receive, most: int, room: Room, empty: bool) -> None:
        self._receive, self._most, self._room, self.came, self.ended = receive, most, room, 0, empty

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        size = len(message.get("body", b""))
        self.came += size
        self.ended = not message.get("more_body", False)
        self._room.held += size
        if self.came > self._most:
            raise _too_large(self._most)
        self._room.check_bodies(self.came)
        return message


def check_token(authorization: bytes, token: str) -> None:
    """Refuse a request without the token; how long that takes tells nothing of it."""
    scheme, _, given = authorization.partition(b" ")
    if not hmac.compare_digest(given.strip(), token.encode()) or scheme.lower() != b"bearer":
        raise ServeError(401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN")


def check_host(host: bytes | None, settings: ServeSettings) -> None:
    """Refuse a name that is not this machine's, where nobody else is served.

    Any site may let its own name lead to this machine, and would then be asked, and answered, as a site of its own.
    """
    if host is None or not settings.loopback:
        return
    word = host.decode("latin-1").lower()
    if not _is_own(f"//{word}") and word not in {each.lower().partition("://")[2] for each in settings.origins}:
        raise ServeError(
            403, f"the host {cut(word)} is not this machine; ask at 127.0.0.1, or allow it by --origin https://{word}"
        )


@lru_cache(maxsize=256)
def _is_own(address: str) -> bool:
    """Whether an address leads to this machine by its own names."""
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


def check_origin(origin: bytes | None, host: bytes, settings: ServeSettings) -> None:
    """Refuse what a page of another site makes a browser send.

    A browser names the page's origin, and programs send none: it must be the host that is asked.
    """
    if origin is None:
        return
    word = origin.decode("latin-1").lower()
    own = word.partition("://")[2] == host.decode("latin-1").lower() and word.startswith(("http://", "https://"))
    if not own and word not in {each.lower() for each in settings.origins}:
        raise ServeError(403, "a page of another site asks, which is not allowed; the option --origin allows one")


def _too_large(most: int) -> ServeError:
    return ServeError(413, f"the body has more than {most} bytes; send fewer inputs at a time, or raise --max-bytes")


async def _refuse(error: ServeError, send: Send) -> None:
    body = error_body(error.message)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in headers_of(error).items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def headers_of(error: ServeError) -> dict[str, str]:
    """What the headers of a refusal say beside its message."""
    found = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    found |= {"www-authenticate": "Bearer"} if error.status == 401 else {}
    # of what is too large the rest is passed over for a while: a plain client sends all of it before it reads
    return found | ({"connection": "close"} if error.status == 408 else {})
