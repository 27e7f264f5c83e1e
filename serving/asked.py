"""What ``POST /predict`` is asked: texts, pairs, words, images and sounds as base64 or files; options beside them.

Bodies are JSON (``{"inputs": […]}``), a form with files (``multipart/form-data``), or the bytes of one image or sound
(``image/…``, ``audio/…``). Nothing in a request is ever read as a path.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..data.raw_inputs import is_words
from ..errors import InputError, cut, listing, literal
from ..runtime.predictor import Predictor
from ..runtime.words import AGGREGATIONS, Aggregation
from .errors import ServeError
from .json_body import read_object
from .multipart import read_parts
from .protocol import from_base64

FLAGS = ("probabilities", "skip_invalid")
NAMES = ("model", "version", "aggregation")
FILES = ("image", "audio")
"""What a file may be: fields of forms, and the first half of a Content-Type."""

JSON_KINDS = ("", "application/json", "text/json", "text/plain", "application/x-www-form-urlencoded")
"""Kinds of bodies that are read as JSON; the last is what ``curl -d`` says of whatever it sends."""

WORDS_OF_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        inputs: as they came: JSON values, or the bytes of files.
        shown: what stands for each input in its row; ``None`` for the input itself.
        model, version: that are asked; ``None`` for the only one, and the one that answers.
        aggregation: of tokens to words.
        probabilities: whether those of every class are wanted.
        skip_invalid: whether an input that cannot be used gets an error in its row, and the others are predicted.
        timeout: seconds until the request is given up.
    """

    inputs: list[Any]
    shown: list[str | None]
    model: str | None = None
    version: str | None = None
    aggregation: Aggregation | None = None
    probabilities: bool = False
    skip_invalid: bool = False
    timeout: float | None = None

    @property
    def on_error(self) -> str:
        """As of ``Predictor.predict``."""
        return "row" if self.skip_invalid else "raise"


@dataclass
class _Given:
    inputs: list[Any] = field(default_factory=list)
    shown: list[str | None] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


def read_asked(body: bytes, content_type: str, query: Mapping[str, str]) -> Asked:
    """What a request asks."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        given = _of_form(body, content_type)
    elif kind.startswith(tuple(f"{each}/" for each in FILES)):
        given = _Given([body], [None])
    elif kind in JSON_KINDS or kind.endswith("+json"):
        given = _of_json(body)
    else:
        raise ServeError(
            415, f"the Content-Type is {cut(kind)}; expected application/json, multipart/form-data, image/… or audio/…"
        )
    return Asked(given.inputs, given.shown, **_options({**query, **given.options}))


def inputs_for(asked: Asked, predictor: Predictor) -> tuple[list[Any], list[Any]]:
    """The inputs as the predictor takes them, and as rows repeat them."""
    modality = predictor.modality
    read = partial(_file, kind=modality) if modality != "text" else _words if predictor.task == "tokens" else _text
    inputs = [read(given, index) for index, given in enumerate(asked.inputs)]
    files = modality != "text"
    named = zip(inputs, asked.shown, strict=True)
    return inputs, [
        each if shown is None and not files else shown or f"{modality} {index}"
        for index, (each, shown) in enumerate(named)
    ]


def _of_json(body: bytes) -> _Given:
    found = read_object(body, "the body", "an object with inputs")
    inputs = found.pop("inputs", None)
    if not isinstance(inputs, list):
        what = "has no inputs" if inputs is None else f"has inputs = {cut(inputs)}"
        raise ServeError(400, f'the body {what}; expected a list of them, as in {{"inputs": ["a text"]}}')
    return _Given(inputs, [None] * len(inputs), found)


def _of_form(body: bytes, content_type: str) -> _Given:
    """Files are images or sounds, fields called text are texts, and other fields options."""
    given = _Given()
    for part in read_parts(body, content_type):
        if part.filename is not None or part.name in FILES:
            given.shown.append(part.filename or None)
            given.inputs.append(part.data)
            continue
        try:
            word = part.data.decode()
        except UnicodeDecodeError as error:
            raise ServeError(400, f"field {cut(part.name)} is not UTF-8; send files with a filename") from error
        if part.name == "text":
            given.inputs.append(word)
            given.shown.append(None)
        else:
            given.options[part.name] = word
    return given


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they are taken; words of forms and queries stand for numbers and flags."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in FLAGS:
            found[name] = WORDS_OF_FLAGS.get(value, value) if isinstance(value, str) else value
            if not isinstance(found[name], bool):
                raise ServeError(400, f"{name} is {cut(value)}; expected true or false")
        elif name in NAMES:
            if not isinstance(value, str):
                raise ServeError(400, f"{name} is {literal(value)}; expected a string")
            if name == "aggregation" and value not in AGGREGATIONS:
                raise ServeError(400, f"aggregation is {cut(value)}; expected one of {listing(AGGREGATIONS)}")
            found[name] = value
        elif name == "timeout":
            found[name] = _seconds(value)
        else:
            if name == "inputs":
                raise ServeError(400, "inputs stand in a body of JSON; a form has fields called text, or files")
            known = listing(("inputs", *NAMES, *FLAGS, "timeout"))
            raise ServeError(400, f"the request has {cut(name)}, which is not known; expected {known}")
    return found


def _seconds(value: Any) -> float:
    try:
        found = float(value) if not isinstance(value, bool) else 0.0
    except (TypeError, ValueError, OverflowError):
        found = 0.0
    if not 0 < found < float("inf"):
        raise ServeError(400, f"timeout is {cut(value)}; expected seconds, above 0")
    return found


def _text(given: Any, index: int) -> Any:
    """A text, or a pair of texts as a tuple."""
    if isinstance(given, str):
        return given
    pair = given
    if isinstance(given, dict) and set(given) in ({"text"}, {"text", "text_pair"}):
        pair = list(given.values()) if set(given) == {"text"} else [given["text"], given["text_pair"]]
        if len(pair) == 1 and isinstance(pair[0], str):
            return pair[0]
    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair):
        return tuple(pair)
    raise InputError(
        f"input {index} is {_kind(given)}; expected a text, a list of two texts, or an object with text (and text_pair)"
    )


def _words(given: Any, index: int) -> Any:
    """A text, or the list of its words."""
    if isinstance(given, dict) and len(given) == 1:
        given = given.get("text", given.get("tokens", given))
    if isinstance(given, str) or (isinstance(given, list) and is_words(given)):
        return given
    raise InputError(f"input {index} is {_kind(given)}; expected a text, or its words as a list of strings")


def _file(given: Any, index: int, kind: str) -> bytes:
    """The bytes of an image or sound file; ``kind`` is ``"image"`` or ``"audio"``."""
    if isinstance(given, bytes):
        return given
    what = {"image": "an image file in base64", "audio": "a sound file in base64"}[kind]
    if isinstance(given, dict) and len(given) == 1:
        given = given.get(kind, given)
    if not isinstance(given, str):
        raise InputError(f"input {index} is {_kind(given)}; expected {what}")
    head, comma, rest = given.partition(",")
    text = rest if comma and head.startswith("data:") else given
    try:
        found = from_base64(text.encode("ascii"))
    except (ValueError, binascii.Error) as error:
        raise InputError(f"input {index}, {cut(given, 30)}, is not base64; expected {what}") from error
    if not found:
        raise InputError(f"input {index} is empty; expected {what}")
    return found


def _kind(given: Any) -> str:
    """What a value of JSON is called there, with the keys of an object."""
    if isinstance(given, dict):
        return f"an object with {listing(sorted(given))}"
    if isinstance(given, Sequence) and not isinstance(given, str):
        return "the bytes of a file" if isinstance(given, bytes) else f"a list of {len(given)}"
    return cut(given) if isinstance(given, str) else json.dumps(given)[:60]
