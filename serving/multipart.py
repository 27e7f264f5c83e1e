"""``multipart/form-data`` (RFC 7578): the parts of a body that is in memory already."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from typing import Any

from ..errors import cut
from .errors import ServeError

MOST_PARTS = 10_000
MOST_HEAD = 16_384
"""Bytes of the headers of one part."""
MOST_SEMICOLONS = 64
"""In a header with parameters: Python's reader takes time that grows with the square of their number."""


@dataclass(frozen=True)
class Part:
    """One field of a form.

    Attributes:
        name: of the field.
        filename: as the client calls the file; ``None`` for a field that is none. It is a word, and never a path here.
        data: its bytes.
    """

    name: str
    filename: str | None
    data: bytes


def read_parts(body: bytes, content_type: str) -> list[Part]:
    """The parts of a body, in their order."""
    boundary = _header(content_type).get_param("boundary")
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise ServeError(400, "the Content-Type has no usable boundary; expected multipart/form-data; boundary=…")
    mark = b"\r\n--" + boundary.encode()
    pieces = (b"\r\n" + body).split(mark, MOST_PARTS + 2)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise ServeError(400, f"the body does not end with its boundary, or has more than {MOST_PARTS} parts")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    padding, found, rest = piece.partition(b"\r\n")
    head, ended, data = (b"", b"\r\n", rest[2:]) if rest.startswith(b"\r\n") else rest.partition(b"\r\n\r\n")
    if padding.strip(b" \t") or not found or not ended or len(head) > MOST_HEAD:
        raise ServeError(400, "a part of the body is malformed; expected headers, an empty line, and data")
    told = str(HeaderParser().parsestr(head.decode("utf-8", "replace")).get("Content-Disposition", ""))
    disposition = _header(" ".join(told.split()))
    try:
        name, filename = (_word(disposition.get_param(each)) for each in ("name", "filename"))
    except (ValueError, TypeError) as error:  # a character set that nobody can have, or pieces of a name out of order
        raise ServeError(400, f"a part of the body has a name that cannot be read: {cut(error, 100)}") from error
    if told.partition(";")[0].strip().lower() != "form-data" or name is None:
        raise ServeError(400, "a part of the body is no form field; expected Content-Disposition: form-data; name=…")
    return Part(name, filename, data)


def _word(value: Any) -> str | None:
    """A parameter of a header, which may be in a character set of its own (RFC 2231)."""
    return None if value is None else collapse_rfc2231_value(value)


def _header(value: str) -> Message:
    """A header with parameters, read as those of mails are."""
    if value.count(";") > MOST_SEMICOLONS:
        raise ServeError(
            400, f"a header of the request has {value.count(';')} semicolons; expected {MOST_SEMICOLONS} at most"
        )
    message = Message()
    message["Content-Type"] = value
    return message
