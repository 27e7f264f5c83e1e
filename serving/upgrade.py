"""Requests that ask for another protocol (web sockets, HTTP/2) are read as if they did not, as HTTP lets a server do.

httptools ends such a request at its headers, whatever its length says: its body would be left out, and what comes of it
later be read as a request of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

ASKING = (b"upgrade", b"http2-settings")
"""Headers, and words of ``Connection``, that ask for another protocol."""


class Plainly:
    """A parser of httptools, which reads what asks for another protocol anew, without that.

    Its protocol has to ignore the calls back of a request for which ``should_upgrade()`` is true.
    """

    def __init__(self, parser: Any, protocol: Any) -> None:
        self._parser, self._protocol = parser, protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        """Read on."""
        from httptools import HttpParserUpgrade

        while data:
            try:
                self._parser.feed_data(data)
                return
            except HttpParserUpgrade as ended:
                data = data[ended.args[0] :]
            method = self._parser.get_method()
            if method == b"CONNECT":  # of which no other reading is left
                self._protocol.refuse_tunnel()
                return
            head = plain_head(method, self._protocol.url, self._parser.get_http_version(), self._protocol.headers)
            self._parser = type(self._parser)(self._protocol)
            self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
            self._parser.feed_data(head)


def plain_head(method: bytes, url: bytes, version: str, headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    r"""The first line and the headers of a request but for what asks for another protocol.

    >>> plain_head(b"POST", b"/x", "1.1", [(b"connection", b"Upgrade, close"), (b"upgrade", b"h2c"), (b"a", b"b")])
    b'POST /x HTTP/1.1\r\nconnection: close\r\na: b\r\n\r\n'
    """
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode()), *_kept(headers), b"", b""]
    return b"\r\n".join(lines)


def _kept(headers: Sequence[tuple[bytes, bytes]]) -> Iterator[bytes]:
    for name, value in headers:
        words = [word.strip() for word in value.split(b",")] if name == b"connection" else [value]
        words = [word for word in words if name != b"connection" or word.lower() not in ASKING]
        if words and name not in ASKING:
            yield name + b": " + b", ".join(words)
