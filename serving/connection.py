"""HTTP/1.1 connections by uvicorn and httptools, with limits that these lack.

Headers must be small and arrive in time, and so must the rest of a body that was rejected early. Clients must read
their answers, and pipeline few requests. A malformed request gets a JSON error, never before pending answers.

Upgrade requests (web sockets, HTTP/2) are read as plain requests, which HTTP allows. httptools would end such a request
at its headers, and parse its body as another request (uvicorn #2722).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from .http_refusals import error_body

MAX_HEAD = 65_536
"""Bytes of the first line and headers of a request, and of the trailers of a chunked body."""

MAX_PIPELINED = 100  # unanswered requests of one connection
UPGRADE = (b"upgrade", b"http2-settings")  # headers, and words of ``Connection``, that request another protocol


class _PlainParser:
    """Reads upgrade requests again as plain ones; ignore callbacks while ``should_upgrade()``."""

    def __init__(self, parser: Any, protocol: Any) -> None:
        self._parser, self._protocol = parser, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        from httptools import HttpParserUpgrade

        while data:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            method = self._parser.get_method()
            if method == b"CONNECT":
                self._protocol.refuse(501, "CONNECT is not supported: this is not a proxy; send the request itself")
                return
            head = plain_head(method, self._protocol.url, self._parser.get_http_version(), self._protocol.headers)
            self._parser = type(self._parser)(self._protocol)
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
            self._parser.feed_data(head)


def plain_head(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    r"""First line and headers of a request, without upgrade headers.

    >>> plain_head(b"POST", b"/x", "1.1", [(b"connection", b"Upgrade, close"), (b"upgrade", b"h2c"), (b"a", b"b")])
    b'POST /x HTTP/1.1\r\nconnection: close\r\na: b\r\n\r\n'
    """
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in headers:
        words = [value]
        if name == b"connection":
            words = [word for word in map(bytes.strip, value.split(b",")) if word.lower() not in UPGRADE]
        if words and name not in UPGRADE:
            lines.append(name + b": " + b", ".join(words))
    return b"\r\n".join([*lines, b"", b""])


class _Limits:
    """Mixin: within ``seconds``, headers must arrive and the client must read half of its pending answers."""

    seconds: float
    loop: Any
    transport: Any
    parser: Any
    cycle: Any = None
    timeout_keep_alive: float
    timeout_keep_alive_task: Any = None
    _timer: Any = None
    _reader: Any = None
    _left = 0  # unread bytes at the last check
    _dry = 0  # bytes received since the last byte of a body
    _amid = False  # between the headers and the end of a body
    _begun: deque[Any]

    def connection_made(self, transport: Any) -> None:
        self._begun = deque()
        self.parser = _PlainParser(self.parser, self)
        super().connection_made(transport)  # type: ignore[misc]
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn notifies only the last pipelined request
        self._stop_timer()
        self._stop_reader()
        for cycle in self._begun:
            cycle.disconnected |= not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        self._dry += len(data)
        super().data_received(data)  # type: ignore[misc]
        if self._dry > MAX_HEAD:
            self.refuse(431, f"the headers have more than {MAX_HEAD} bytes; send fewer")
        idle = self.cycle is not None and self.cycle.response_complete and self._timer is None
        if idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            # uvicorn stops this timer at any data, and restarts it only after answers
            later = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later

    def on_message_begin(self) -> None:
        super().on_message_begin()  # type: ignore[misc]
        if self._timer is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # the plain parser reads it again
        self._stop_timer()
        while self._begun and self._begun[0].response_complete:  # answers are in order
            self._begun.popleft()
        if len(self._begun) >= MAX_PIPELINED:
            raise RuntimeError("too many requests at a time")  # the parser reports it as malformed
        super().on_headers_complete()  # type: ignore[misc]
        self._begun.append(self.cycle)
        self._amid = True

    def on_body(self, body: bytes) -> None:
        self._dry = 0
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._dry, self._amid = 0, False
        self._stop_timer()
        super().on_message_complete()  # type: ignore[misc]

    def on_response_complete(self) -> None:
        # if the headers were rejected, the body may still arrive
        super().on_response_complete()  # type: ignore[misc]
        if self.transport.is_closing():
            self._end()
        elif self._amid and self.cycle.response_complete:
            self._timer = self.loop.call_later(self.seconds, self.timeout_keep_alive_handler)

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._watch_reader()

    def resume_writing(self) -> None:
        self._stop_reader()
        super().resume_writing()  # type: ignore[misc]

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        self.refuse(400, "the request is not valid HTTP/1.1; check its first line, headers and port")

    def shutdown(self) -> None:
        # closes idle connections; a TLS client that does not read never confirms
        super().shutdown()  # type: ignore[misc]
        if self.transport.is_closing():
            self._end()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._end()

    def _end(self) -> None:
        """Abort the connection unless the client soon closes it or reads its answers."""
        self._stop_timer()
        waits = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self.seconds if waits else 1.0, self.transport.abort)

    def _expect_headers(self) -> None:
        self._dry = 0
        message = f"the headers did not arrive within {self.seconds:g} s"
        self._timer = self.loop.call_later(self.seconds, self.refuse, 408, message)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _watch_reader(self) -> None:
        self._stop_reader()
        self._left = self.transport.get_write_buffer_size()
        self._reader = self.loop.call_later(self.seconds, self._check_reader)

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _check_reader(self) -> None:
        """Abort the connection if the client has read less than half of its pending bytes."""
        if 2 * self.transport.get_write_buffer_size() > self._left:
            self.transport.abort()
        else:
            self._watch_reader()

    def refuse(self, status: int, message: str) -> None:
        """Send an error and close the connection, after the answers to earlier requests."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        own = self.cycle if self._amid else None
        before = [cycle for cycle in self._begun if not cycle.response_complete and cycle is not own]
        if before:  # the error would be taken for their answer
            before[-1].keep_alive = False
            return
        if own is None or not own.response_started:
            body = error_body(message)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.timeout_keep_alive_handler()


def limited_protocol(seconds: float) -> type[Any]:
    """The protocol class for uvicorn, with limits."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    return type("LimitedProtocol", (_Limits, HttpToolsProtocol), {"seconds": seconds})
