"""ASGI middleware: authentication, request size and concurrency limits, time limits."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from ..errors import cut
from .http_refusals import App, Receive, Scope, Send, ServeError, refuse
from .serve_settings import ServeSettings, is_loopback

HEALTH = ("/v2/health/live", "/v2/health/ready")
"""Probes need no token, and are answered at any load."""

STATS_PATHS = {"/metrics": "Metrics for Prometheus.", "/stats": "Counts in JSON."}
"""Exempt from load shedding; they still need the token."""

COUNTED = "hydrant.counted"  # in the ``state`` of a request that the observers have counted

MAX_BODIES = 4
"""Limit of all bodies together, in multiples of the largest allowed body."""

SMALL_BODY = 2**16
"""Largest body, in bytes, that is admitted while others fill the memory."""


@dataclass
class Admission:
    """Requests in progress over REST and gRPC, and the bytes of their bodies, with both limits."""

    max_requests: int
    max_bytes: int
    requests: int = 0
    held_bytes: int = 0

    def check_requests(self) -> None:
        """Refuse a request beyond the limit."""
        if self.requests >= self.max_requests:
            raise ServeError(503, f"too many concurrent requests ({self.requests}); retry", retry_after=1)

    def check_bodies(self, size: int) -> None:
        """Refuse a body, unless it is small, while all bodies exceed the limit."""
        if self.held_bytes > self.max_bytes and size > SMALL_BODY:
            raise ServeError(503, f"request bodies exceed {self.max_bytes} bytes in all; retry", retry_after=1)


class Middleware:
    """Admits requests to an ASGI application, limits their size, number and time, and counts refusals."""

    def __init__(self, app: App, settings: ServeSettings, admission: Admission, count_refusal: Callable[[int], None],
                 open_paths: Collection[str] = ()) -> None:  # fmt: skip
        self._app, self._settings, self._admission = app, settings, admission
        self._open, self._count_refusal = {*HEALTH, *open_paths}, count_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            return  # closes web sockets
        if len(scope["path"]) > 1 and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"][:-1]}
        headers = {name.lower(): value for name, value in scope["headers"]}
        try:
            self._check(scope["path"], headers)
        except ServeError as error:
            self._count_refusal(error.status)
            await refuse(send, error)
            return
        if scope["path"] in HEALTH:
            await self._app(scope, receive, send)
            return
        scope.setdefault("state", {})
        empty = headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers
        body = _LimitedBody(receive, self._settings.max_bytes, self._admission, empty)
        self._admission.requests += 1
        try:
            await self._in_time(scope, body, send)
        finally:
            self._admission.requests -= 1
            self._admission.held_bytes -= body.size

    async def _in_time(self, scope: Scope, body: _LimitedBody, send: Send) -> None:
        """Answer within the time limit; routes that open bundles have none."""
        seconds = None if scope["path"].startswith("/v2/repository/") else self._settings.timeout
        started = False

        async def counted_send(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            await send(message)  # waits while the client does not read earlier answers
            if not started and message["status"] >= 400 and COUNTED not in scope["state"]:
                self._count_refusal(message["status"])
            started = True

        try:
            async with asyncio.timeout(seconds):
                await self._app(scope, body, counted_send)
        except ServeError as error:
            if not started:
                await refuse(counted_send, error)
        except TimeoutError:
            if started:  # the client does not read its answer
                return
            status, problem = (504, "request was not answered") if body.ended else (408, "body did not arrive")
            message = f"the {problem} within {seconds:g} s; send less, or retry later"
            await refuse(counted_send, ServeError(status, message))

    def _check(self, path: str, headers: Mapping[bytes, bytes]) -> None:
        settings = self._settings
        check_host(headers.get(b"host"), settings)
        check_origin(headers.get(b"origin"), headers.get(b"host", b""), settings)
        if settings.token is not None and path not in self._open:
            check_token(headers.get(b"authorization", b""), settings.token)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise ServeError(415, "the body is compressed; send it uncompressed, without Content-Encoding")
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > settings.max_bytes:
            raise _too_large(settings.max_bytes)
        if path not in (*HEALTH, *STATS_PATHS):
            self._admission.check_requests()


class _LimitedBody:
    """Receives a body within the limits; ``ended`` is true once all of it has arrived."""

    def __init__(self, receive: Receive, max_bytes: int, admission: Admission, empty: bool) -> None:
        self._receive, self._max_bytes, self._admission = receive, max_bytes, admission
        self.size, self.ended = 0, empty

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        size = len(message.get("body", b""))
        self.size += size
        self.ended = not message.get("more_body", False)
        self._admission.held_bytes += size
        if self.size > self._max_bytes:
            raise _too_large(self._max_bytes)
        if size:
            self._admission.check_bodies(self.size)
        return message


def check_token(authorization: bytes, token: str) -> None:
    """Refuse a request without the token, in constant time."""
    scheme, _, secret = authorization.partition(b" ")
    if not hmac.compare_digest(secret.strip(), token.encode()) or scheme.lower() != b"bearer":
        raise ServeError(401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN")


def check_host(host: bytes | None, settings: ServeSettings) -> None:
    """Refuse foreign host names on loopback: any site can resolve its name to 127.0.0.1 (DNS rebinding)."""
    if host is None or not is_loopback(settings.host):
        return
    word = host.decode("latin-1").lower()
    if not _is_own(f"//{word}") and word not in {each.lower().partition("://")[2] for each in settings.origins}:
        allow = f"add https://{word} to origins of --settings"
        raise ServeError(403, f"the host {cut(word)} is not this machine; use 127.0.0.1, or {allow}")


@lru_cache(maxsize=256)
def _is_own(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address).hostname or "")
    except ValueError:
        return False


def check_origin(origin: bytes | None, host: bytes, settings: ServeSettings) -> None:
    """Refuse requests from pages of other sites; programs send no origin."""
    if origin is None:
        return
    word = origin.decode("latin-1").lower()
    own = word.partition("://")[2] == host.decode("latin-1").lower() and word.startswith(("http://", "https://"))
    if not own and word not in {each.lower() for each in settings.origins}:
        raise ServeError(403, f"pages of {cut(word)} may not send requests; add it to origins of --settings")


def _too_large(max_bytes: int) -> ServeError:
    return ServeError(413, f"the body has more than {max_bytes} bytes; send fewer inputs, or raise --max-bytes")
