"""Requests of ``POST /predict`` and the page: JSON, forms, or one file's bytes; no value is used as a path."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from email.parser import HeaderParser
from email.utils import collapse_rfc2231_value
from typing import Annotated, Any, NamedTuple

import msgspec

from ..data.raw_inputs import is_words
from ..errors import InputError, cut
from ..runtime.predictor import Predictor
from ..runtime.word_predictions import Aggregation
from .http_refusals import ServeError, convert_fields, decode_json

FILES = {"image": "an image file", "audio": "a sound file"}
"""Names of file fields in forms, and main types of a Content-Type."""

JSON_TYPES = ("", "application/json", "text/json", "text/plain", "application/x-www-form-urlencoded")
"""Content types read as JSON; ``curl -d`` sends the last one."""

MAX_PARTS, MAX_PART_HEADERS = 10_000, 16_384
MAX_SEMICOLONS = 64  # in a header with parameters: Python's parser takes quadratic time


class PredictOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Options of a request; with ``skip_invalid``, an invalid input gets an error in its row."""

    model: str | None = None
    version: str | None = None
    aggregation: Aggregation | None = None
    probabilities: bool = False
    skip_invalid: bool = False
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None


class PredictBody(PredictOptions, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The JSON body of ``POST /predict``: one text, or a list of inputs, with options."""

    inputs: str | list[Any]


@dataclass
class PredictRequest:
    """Inputs (JSON values, or the bytes of files) with their names in rows, ``None`` for the input itself."""

    inputs: list[Any]
    names: list[Any]
    options: PredictOptions = field(default_factory=PredictOptions)


def read_request(body: bytes, content_type: str, query: Mapping[str, str]) -> PredictRequest:
    """Parse a request."""
    kind = content_type.partition(";")[0].strip().lower()
    fields: dict[str, Any] = {}
    if kind == "multipart/form-data":
        request = _read_form(read_parts(body, content_type), fields)
    elif kind.partition("/")[0] in FILES:
        request = PredictRequest([body], [None])
    elif kind in JSON_TYPES or kind.endswith("+json"):
        whole = {**query, **decode_json(body, dict[str, Any], "the body")}
        options = convert_fields(whole, PredictBody, "the body", words=True)
        inputs = [options.inputs] if isinstance(options.inputs, str) else options.inputs
        return PredictRequest(inputs, [None] * len(inputs), options)
    else:
        expected = "application/json, multipart/form-data, image/… or audio/…"
        raise ServeError(415, f"the Content-Type is {cut(kind)}; expected {expected}")
    if query or fields:
        request.options = convert_fields({**query, **fields}, PredictOptions, "the request", words=True)
    return request


def check_count(count: int, limit: int) -> None:
    """Refuse more inputs than the queue holds; a small body can contain millions."""
    if count > limit:
        raise ServeError(413, f"the request has {count} inputs; expected at most {limit}; split it")


def model_inputs(request: PredictRequest, predictor: Predictor, limit: int) -> tuple[list[Any], list[Any]]:
    """Inputs for the predictor, and their names for the rows; at most ``limit``."""
    check_count(len(request.inputs), limit)
    modality = predictor.modality
    if modality == "text":
        read = _words if predictor.task == "tokens" else _text
        inputs = [read(value, index) for index, value in enumerate(request.inputs)]
        return inputs, [name or value for value, name in zip(inputs, request.names, strict=True)]
    inputs = [_file(value, index, modality) for index, value in enumerate(request.inputs)]
    return inputs, [name or f"{modality} {index}" for index, name in enumerate(request.names)]


def _text(value: Any, index: int) -> Any:
    match value:
        case str():
            return value
        case {"text": str(text), **others} if not others:
            return text
        case [str(text), str(pair)] | {"text": str(text), "text_pair": str(pair)} if len(value) == 2:
            return text, pair
    raise InputError(f"input {index} is {cut(value)}; expected a text, two texts, or an object with text, text_pair")


def _words(value: Any, index: int) -> Any:
    words = value
    if isinstance(value, dict) and len(value) == 1:
        words = value.get("text", value.get("tokens"))
    if isinstance(words, str) or (isinstance(words, list) and is_words(words)):
        return words
    raise InputError(f"input {index} is {cut(value)}; expected a text, or its words as a list of strings")


def _file(value: Any, index: int, kind: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, dict) and len(value) == 1:
        value = value.get(kind, value)
    if not isinstance(value, str) or not value:
        raise InputError(f"input {index} is {cut(value)}; expected {FILES[kind]} in base64")
    head, comma, rest = value.partition(",")
    try:
        return from_base64((rest if comma and head.startswith("data:") else value).encode("ascii"))
    except (ValueError, binascii.Error) as error:
        raise InputError(f"input {index}, {cut(value, 30)}, is not base64; expected {FILES[kind]} in base64") from error


def from_base64(text: bytes) -> bytes:
    """Decode base64, ignoring blanks and line breaks."""
    return base64.b64decode(b"".join(text.split()), validate=True)


def _read_form(parts: Iterable[Part], options: dict[str, Any]) -> PredictRequest:
    """A request from a form: files, fields named text, and other fields as ``options``."""
    request = PredictRequest([], [])
    for part in parts:
        is_file = part.filename is not None or part.name in FILES
        try:
            value: Any = part.data if is_file else part.data.decode()
        except UnicodeDecodeError as error:
            raise ServeError(400, f"field {cut(part.name)} is not UTF-8; send files with a filename") from error
        if is_file or part.name == "text":
            request.inputs.append(value)
            request.names.append(part.filename or None)
        else:
            options[part.name] = value
    return request


class Part(NamedTuple):
    """One field of a form; ``filename`` (never used as a path) is ``None`` unless it is a file."""

    name: str
    filename: str | None
    data: bytes


def read_parts(body: bytes, content_type: str) -> list[Part]:
    """The parts of ``multipart/form-data`` (RFC 7578), in order."""
    boundary = _header(content_type).get_param("boundary")
    if not isinstance(boundary, str) or not 1 <= len(boundary) <= 70 or not boundary.isascii():
        raise ServeError(400, "the Content-Type has no usable boundary; expected multipart/form-data; boundary=…")
    mark = b"\r\n--" + boundary.encode()
    pieces = (b"\r\n" + body).split(mark, MAX_PARTS + 2)
    if len(pieces) < 2 or not pieces[-1].startswith(b"--"):
        raise ServeError(400, f"the body does not end with its boundary, or has more than {MAX_PARTS} parts")
    return [_part(piece) for piece in pieces[1:-1]]


def _part(piece: bytes) -> Part:
    padding, line_break, rest = piece.partition(b"\r\n")
    head, blank, data = (b"", b"\r\n", rest[2:]) if rest.startswith(b"\r\n") else rest.partition(b"\r\n\r\n")
    if padding.strip(b" \t") or not line_break or not blank or len(head) > MAX_PART_HEADERS:
        raise ServeError(400, "a part of the body is malformed; expected headers, an empty line, and data")
    line = str(HeaderParser().parsestr(head.decode("utf-8", "replace")).get("Content-Disposition", ""))
    disposition = _header(" ".join(line.split()))
    try:
        values = map(disposition.get_param, ("name", "filename"))
        name, filename = (None if each is None else collapse_rfc2231_value(each) for each in values)
    except (ValueError, TypeError) as error:  # an unknown character set, or pieces of a name out of order
        raise ServeError(400, f"a part of the body has an unreadable name: {cut(error, 100)}") from error
    if line.partition(";")[0].strip().lower() != "form-data" or name is None:
        raise ServeError(400, "a part of the body is not a form field; expected Content-Disposition: form-data; name=…")
    return Part(name, filename, data)


def _header(value: str) -> Message:
    if value.count(";") > MAX_SEMICOLONS:
        raise ServeError(400, f"a header has {value.count(';')} semicolons; expected {MAX_SEMICOLONS} at most")
    message = Message()
    message["Content-Type"] = value
    return message
