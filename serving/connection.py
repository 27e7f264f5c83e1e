"""One connection of a client: HTTP/1.1 by uvicorn and httptools, with limits that these do not have.

Headers must fit into :data:`MOST_HEAD` bytes and come within the time of a request, as must the rest of a body that was
refused before all of it was here; answers must be read; and requests sent one behind the other are few. So neither slow
clients nor endless ones hold memory. What is no HTTP is refused in the form that every error has, and never in the
place of an answer to another request.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from .upgrade import Plainly

MOST_HEAD = 65_536
"""Bytes of the first line and the headers of a request; of what stands behind a body in chunks, too."""

MOST_BEHIND = 100
"""Requests of one connection that are begun or wait: HTTP lets a client send them before it has an answer."""

MOST_GATHERED = 65_536
"""Bytes of answers that wait for the end of a turn of the event loop; of more, all leave at once."""

LEAVING = "hydrant.leaving"
"""In the scope of a request: what tells when its client leaves."""

FAREWELL = 1.0
"""Seconds that an idle client has to answer the end of its connection, when the service ends."""


def error_body(message: str) -> bytes:
    """The one form of an error."""
    return json.dumps({"error": message}).encode()


class TooManyBehindError(Exception):
    """A connection on which :data:`MOST_BEHIND` requests are not answered yet, and one more came."""


class Gathered:
    """A transport whose writes of one turn of the event loop leave together, at its end.

    Head and body of an answer then need one call of the system, not two; and the answers of one batch leave one behind
    the other, while the processor that their clients run on is awake.
    """

    def __init__(self, transport: Any, loop: Any) -> None:
        self._transport, self._loop, self._size = transport, loop, 0
        self._parts: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it soon."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        self._size += len(data)
        if self._size > MOST_GATHERED:
            self._flush()

    def get_write_buffer_size(self) -> int:
        """Bytes that were not sent."""
        return self._size + int(self._transport.get_write_buffer_size())

    def close(self) -> None:
        """Send what is here, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts, self._size = self._parts, [], 0
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))


class Leaving:
    """Whether the client of a request has left, and what is to be done then."""

    def __init__(self, listen: Callable[[], None]) -> None:
        self._listen, self._left = listen, False
        self._call: Callable[[], None] | None = None

    def then(self, call: Callable[[], None] | None) -> None:
        """Do this when it leaves, at once where it has; nothing for ``None``."""
        self._call = call
        if call is not None:
            (call if self._left else self._listen)()

    def left(self) -> None:
        """It has left."""
        self._left = True
        if self._call is not None:
            self._call()


class Guarded:
    """What a connection of uvicorn gets: bounds of time and size for what comes, and for who does not read.

    Attributes:
        seconds: in which the headers of a request must come, and half of what waits to be read must be read.
    """

    seconds: float
    loop: Any
    transport: Any
    parser: Any
    cycle: Any = None
    timeout_keep_alive: float
    timeout_keep_alive_task: Any = None
    _timer: Any = None
    _reader: Any = None
    _left = 0  # bytes that were not read when last looked at
    _dry = 0  # bytes that came, since any of them was of a body
    _amid = False  # whether headers came, and not all of their body
    _begun: deque[Any]

    def connection_made(self, transport: Any) -> None:
        """A client came."""
        self._begun = deque()
        self.parser = Plainly(self.parser, self)
        super().connection_made(Gathered(transport, self.loop))  # type: ignore[misc]
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It left; uvicorn tells so to the last of the requests that it had sent one behind the other, not to all."""
        self._stop_timer()
        self._stop_reader()
        for cycle in self._begun:
            cycle.disconnected |= not cycle.response_complete
            cycle.message_event.set()
            cycle.scope[LEAVING].left()
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        self._dry += len(data)
        super().data_received(data)  # type: ignore[misc]
        if self._dry > MOST_HEAD:
            self._refuse(431, f"the headers have more than {MOST_HEAD} bytes; send fewer")
        idle = self.cycle is not None and self.cycle.response_complete and self._timer is None
        if idle and self.timeout_keep_alive_task is None and not self.transport.is_closing():
            # uvicorn stops this timer for whatever comes, and begins it anew for answers alone
            later = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
            self.timeout_keep_alive_task = later

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()  # type: ignore[misc]
        if self._timer is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        """Its headers are here."""
        if self.parser.should_upgrade():
            return  # it is read anew
        self._stop_timer()
        while self._begun and self._begun[0].response_complete:  # they are answered in their order
            self._begun.popleft()
        if len(self._begun) >= MOST_BEHIND:
            raise TooManyBehindError
        super().on_headers_complete()  # type: ignore[misc]
        self._begun.append(self.cycle)
        self.cycle.scope[LEAVING] = Leaving(self.cycle.flow.resume_reading)
        self._amid = True

    def on_body(self, body: bytes) -> None:
        """Some of its body is here."""
        self._dry = 0
        super().on_body(body)  # type: ignore[misc]

    def on_message_complete(self) -> None:
        """All of it is here."""
        if self.parser.should_upgrade():
            return
        self._dry, self._amid = 0, False
        self._stop_timer()
        super().on_message_complete()  # type: ignore[misc]

    def on_response_complete(self) -> None:
        """A request was answered; where it was refused by its headers, its body may still be on its way."""
        super().on_response_complete()  # type: ignore[misc]
        if self.transport.is_closing():
            self._end()
        elif self._amid and self.cycle.response_complete:
            self._timer = self.loop.call_later(self.seconds, self._part)

    def timeout_keep_alive_handler(self) -> None:
        """It has asked nothing for long."""
        self._part()

    def pause_writing(self) -> None:
        """It reads more slowly than it is answered."""
        super().pause_writing()  # type: ignore[misc]
        self._watch_reader()

    def resume_writing(self) -> None:
        """It has read nearly all."""
        self._stop_reader()
        super().resume_writing()  # type: ignore[misc]

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """It is no HTTP."""
        self._refuse(400, "this is not HTTP/1.1; check the request line, the headers and the port")

    def refuse_tunnel(self) -> None:
        """It asks for a tunnel, as of a proxy."""
        self._refuse(501, "CONNECT asks for a tunnel, and this is no proxy; ask the service itself")

    def shutdown(self) -> None:
        """The service ends: what is idle is closed, in TLS too, where a client that does not read never agrees."""
        super().shutdown()  # type: ignore[misc]
        if self.transport.is_closing():
            self._end()

    def _part(self) -> None:
        """Close it."""
        if not self.transport.is_closing():
            self.transport.close()
            self._end()

    def _end(self) -> None:
        """Close it without the client's consent, where that does not come soon, or does not read what it was sent."""
        self._stop_timer()
        waits = self.transport.get_write_buffer_size()
        self._timer = self.loop.call_later(self.seconds if waits else FAREWELL, self.transport.abort)

    def _expect_headers(self) -> None:
        self._dry = 0
        told = f"the headers did not come within {self.seconds:g} s"
        self._timer = self.loop.call_later(self.seconds, self._refuse, 408, told)

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
        """Give a client up that has read less than half of what waited for it."""
        if 2 * self.transport.get_write_buffer_size() > self._left:
            self.transport.abort()
        else:
            self._watch_reader()

    def _refuse(self, status: int, message: str) -> None:
        """Refuse what comes, and close the connection, once the requests before it are answered."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        own = self.cycle if self._amid else None
        before = [cycle for cycle in self._unanswered() if cycle is not own]
        if before:  # the refusal would be taken for the answer of one of these
            before[-1].keep_alive = False
            return
        if own is None or not own.response_started:
            body = error_body(message)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self._part()

    def _unanswered(self) -> Iterable[Any]:
        return (cycle for cycle in self._begun if not cycle.response_complete)


def guarded_protocol(seconds: float) -> type[Any]:
    """The class of connections for uvicorn."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    return type("GuardedProtocol", (Guarded, HttpToolsProtocol), {"seconds": seconds})
