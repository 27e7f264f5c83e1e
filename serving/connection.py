"""One connection of a client: HTTP/1.1 by uvicorn and httptools, with limits that these do not have.

Headers must come within the time of a request and fit into :data:`MOST_HEAD` bytes, so that neither slow nor endless
ones hold memory; and what is no HTTP is refused in the form that every error has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

MOST_HEAD = 65_536
"""Bytes of the first line and the headers of a request."""

FAREWELL = 1.0
"""Seconds that an idle client has to answer the end of its connection, when the service ends."""


def error_body(message: str) -> bytes:
    """The one form of an error."""
    return json.dumps({"error": message}).encode()


class Guarded:
    """What a connection of uvicorn gets: headers that are bounded in time and size.

    Attributes:
        seconds: in which the headers of a request must come.
    """

    seconds: float
    loop: Any
    transport: Any
    cycle: Any
    _timer: Any = None
    _head = 0
    _begun: Sequence[Any] = ()

    def connection_made(self, transport: Any) -> None:
        """A client came."""
        super().connection_made(transport)  # type: ignore[misc]
        self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """It left; uvicorn tells so to the last of the requests that it had sent one behind the other, not to all."""
        self._stop_timer()
        for cycle in self._begun:
            cycle.disconnected |= not cycle.response_complete
            cycle.message_event.set()
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        """It sent something."""
        if self._timer is not None:
            self._head += len(data)
        super().data_received(data)  # type: ignore[misc]
        if self._timer is not None and self._head > MOST_HEAD:
            self._refuse(431, f"the headers have more than {MOST_HEAD} bytes; send fewer")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()  # type: ignore[misc]
        if self._timer is None:
            self._expect_headers()

    def on_headers_complete(self) -> None:
        """Its headers are here."""
        self._stop_timer()
        super().on_headers_complete()  # type: ignore[misc]
        self._begun = [*(each for each in self._begun if not each.response_complete), self.cycle]

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """It is no HTTP."""
        self._refuse(400, "this is not HTTP/1.1; check the request line, the headers and the port")

    def shutdown(self) -> None:
        """The service ends: what is idle is closed, in TLS too, where a client that does not read never agrees."""
        super().shutdown()  # type: ignore[misc]
        if self.transport.is_closing():
            self.loop.call_later(FAREWELL, self._end)

    def _end(self) -> None:
        """Close it without the client's consent, once it has got what was written for it."""
        if self.transport.get_write_buffer_size():
            self.loop.call_later(FAREWELL, self._end)
        else:
            self.transport.abort()

    def _unsupported_upgrade_warning(self) -> None:
        """It asks for web sockets or HTTP/2, and is answered in HTTP/1.1: nothing that the log's readers could mend."""

    def _expect_headers(self) -> None:
        self._head = 0
        told = f"the headers did not come within {self.seconds:g} s"
        self._timer = self.loop.call_later(self.seconds, self._refuse, 408, told)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, message: str) -> None:
        self._stop_timer()
        if self.transport.is_closing():
            return
        body = error_body(message)
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


def guarded_protocol(seconds: float) -> type[Any]:
    """The class of connections for uvicorn.

    Args:
        seconds: as of :class:`Guarded`.
    """
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    return type("GuardedProtocol", (Guarded, HttpToolsProtocol), {"seconds": seconds})
