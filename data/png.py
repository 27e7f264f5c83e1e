"""Whether a PNG file has all of its rows: where its compressed data end early, Pillow leaves the others black, unasked.

signature, then chunks: length (4 bytes), kind (4), content, checksum (4)
IHDR: width (4), height (4), bits of a sample (1), colour type (1), …, …, interlaced (1)
IDAT, one behind the other: one zlib stream of rows, each a byte for its filter and its samples
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER = 8
"""Bytes of the signature."""


SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Of a pixel, by colour type."""


PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
"""Of an interlaced image: first column and row of each, and the steps to the next ones."""


PIECE = 2**20
"""Bytes that are inflated at a time."""


def check_rows(picture: Any, file: str | Path | bytes | bytearray) -> None:
    """Refuse a PNG file whose pixels end early.

    Args:
        picture: as Pillow read it.
        file: its path or bytes.

    Raises:
        ValueError: rows are missing.
    """
    width, height = picture.size
    last = picture.crop((0, height - 1, width, height))
    if not picture.info.get("interlace") and last.getbbox() is not None:
        return  # as nearly always: what was not read is black or transparent
    content = bytes(file) if isinstance(file, bytes | bytearray) else Path(file).read_bytes()
    headers = list(_chunks(content, b"IHDR"))
    width, height, bits, colour, _, _, interlaced = struct.unpack(">IIBBBBB", headers[0][:13])
    if len(headers) > 1 or colour not in SAMPLES:
        raise ValueError("its header is damaged")
    expected = size_of_rows(width, height, bits * SAMPLES[colour], bool(interlaced))
    found = _inflated(content, expected)
    if found < expected:
        raise ValueError(f"its pixels end after {found} of {expected} bytes")


def size_of_rows(width: int, height: int, bits: int, interlaced: bool) -> int:
    """Bytes of all rows, not compressed.

    Args:
        width, height: pixels.
        bits: of a pixel.
        interlaced: whether they are stored in seven passes.
    """
    total = 0
    for column, row, right, down in PASSES if interlaced else ((0, 0, 1, 1),):
        columns, rows = -(-(width - column) // right), -(-(height - row) // down)
        if columns > 0 and rows > 0:
            total += rows * (1 + -(-columns * bits // 8))
    return total


def _inflated(content: bytes, most: int) -> int:
    """Bytes of pixels that the file holds, counted as far as ``most``."""
    inflater, found = zlib.decompressobj(), 0
    with contextlib.suppress(zlib.error):  # what comes before is counted
        for piece in _chunks(content, b"IDAT"):
            rest = piece
            while rest and found < most and not inflater.eof:
                found += len(inflater.decompress(rest, min(PIECE, most - found)))
                rest = inflater.unconsumed_tail
    return found


def _chunks(content: bytes, wanted: bytes) -> Iterator[bytes]:
    """The content of the chunks of a kind, up to the end of the image."""
    at, kind = HEADER, b""
    while kind != b"IEND" and at + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        if kind == wanted:
            yield content[at + 8 : at + 8 + length]
        at += length + 12
