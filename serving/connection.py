"""Connections of HTTP/1.1, by uvicorn and httptools, with limits that these lack.

Headers must be small and arrive in time, as must the rest of a body that was refused early; answers must be read; and
pipelined requests are few. Malformed requests get a JSON error, never in the place of another request's answer.

Requests that ask for another protocol (web sockets, HTTP/2) are read as plain ones, which HTTP allows: httptools ends
such a request at its headers, so that its body would be parsed as a request of its own (uvicorn #2722).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from .http_refusals import error_body

MAX_HEAD = 65_536
"""Bytes of the first line and the headers of a request; and of trailers behind a chunked body."""

MAX_PIPELINED = 100  # unanswered requests of one connection
ASKING = (b"upgrade", b"http2-settings")  # headers, and words of ``Connection``, that ask for another protocol


class _PlainParser:
    """Reads requests for another protocol again; callbacks while ``should_upgrade()`` are to be ignored."""

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
                self._protocol.refuse(501, "CONNECT asks for a tunnel, and this is not a proxy; ask the service itself")
                return
            head = plain_head(method, self._protocol.url, self._parser.get_http_version(), self._protocol.headers)
            self._parser = type(self._parser)(self._protocol)
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
            self._parser.feed_data(head)


def plain_head(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    r"""First line and headers of a request, without those that ask for another protocol.

    >>> plain_head(b"POST", b"/x", "1.1", [(b"connection", b"Upgrade, close"), (b"upgrade", b"h2c"), (b"a", b"b")])
    b'POST /x HTTP/1.1\r\nconnection: close\r\na: b\r\n\r\n'
    """
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in headers:
        words = [value]
        if name == b"connection":
            words = [word for word in map(bytes.strip, value.split(b",")) if word.lower() not in ASKING]
        if words and name not in ASKING:
            lines.append(name + b": " + b", ".join(words))
    return b"\r\n".join([*lines, b"", b""])


class _Limits:
    """A mixin: within ``seconds`` headers must arrive, and the client must read half of what waits for it."""

    seconds: float
    loop: Any
    transport: Any
    parser: Any
    cycle: Any = None
    timeout_keep_alive: float
    timeout_keep_alive_task: Any = None
    _timer: Any = None
    _reader: Any = None
    _left = 0  # bytes that the client had not read at the last look
    _dry = 0  # bytes since the last one of a body
    _amid = False  # between the headers and the end of a body
    _begun: deque[Any]

    def connection_made(self, transport: Any) -> None:
        self._begun = deque()
        self.parser = _PlainParser(self.parser, self)
        super().connection_made(transport)  # type: ignore[misc]
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn notifies only the last one of pipelined requests
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
            # uvicorn stops this timer at any data, and starts it again after answers only
            later = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later

    def on_message_begin(self) -> None:
        super().on_message_begin()  # type: ignore[misc]
        if self._timer is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # it is read again
        self._stop_timer()
        while self._begun and self._begun[0].response_complete:  # answers are in order
            self._begun.popleft()
        if len(self._begun) >= MAX_PIPELINED:
            raise RuntimeError("too many requests at a time")  # the parser makes an error of it
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
        # if it was refused by its headers, its body may still be on its way
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
        self.refuse(400, "this is not HTTP/1.1; check the request line, the headers and the port")

    def shutdown(self) -> None:
        # closes idle connections, in TLS too, where a client that does not read never agrees
        super().shutdown()  # type: ignore[misc]
        if self.transport.is_closing():
            self._end()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._end()

    def _end(self) -> None:
        """Abort the connection if the client does not close it, or read its answers, soon."""
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
        self._reader = self.loop.call_later(self.seconds, self._look_at_reader)

    def _stop_reader(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _look_at_reader(self) -> None:
        """Abort the connection of a client that has read less than half of what waited for it."""
        if 2 * self.transport.get_write_buffer_size() > self._left:
            self.transport.abort()
        else:
            self._watch_reader()

    def refuse(self, status: int, message: str) -> None:
        """Send an error and close the connection, once the requests before are answered."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        own = self.cycle if self._amid else None
        before = [cycle for cycle in self._begun if not cycle.response_complete and cycle is not own]
        if before:  # the error would look like the answer of one of these
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
    """The class of connections for uvicorn, with limits."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    return type("LimitedProtocol", (_Limits, HttpToolsProtocol), {"seconds": seconds})
