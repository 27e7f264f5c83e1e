"""Text, a pair of texts, or words → token ids, with the checkpoint's own ``tokenizer.json``, without torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ..errors import InputError, cut, of_library
from .raw_inputs import Unusable, is_pair, is_words
from .specs import InputSpec, processor_settings

log = logging.getLogger(__name__)
LONGEST = 2**24  # maximum characters of a text, line or table row; tokenizing takes 130 bytes each
INPUT_NAMES = "model_input_names"  # tokenizer setting that lists its outputs
TYPES = "token_type_ids"
UNREADABLE = "expected readable text"
REMEDY = "use the tokenizer that the model was trained with"
NO_WORD = -1  # word index of special tokens and padding


@dataclass(frozen=True)
class EncodedText:
    """One tokenised text, or pair."""

    ids: list[int]
    types: list[int]
    truncated: bool

    @property
    def tokens(self) -> int:
        """Number of tokens, special ones included."""
        return len(self.ids)


class TextSettings(msgspec.Struct, frozen=True):
    """Settings read from ``tokenizer_config.json``; a missing length means no limit."""

    model_max_length: Annotated[float, msgspec.Meta(ge=4)] = 2**31
    truncation_side: Literal["left", "right"] = "right"
    model_input_names: list[str] | None = None
    unk_token: Any = None


@contextmanager
def tokenizing(what: str) -> Iterator[None]:
    """Convert failures of the library ``tokenizers`` to :class:`InputError`."""
    try:
        yield
    except BaseException as error:
        if not of_library(error):
            raise
        raise InputError(f"{what}: {cut(error, 120)}") from error


class TextProcessor:
    """Tokenises and pads texts, and pairs of texts, for one model. Safe to use from many threads."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise InputError(f"{folder} holds no tokenizer.json; save the tokenizer there with save_pretrained")
        with tokenizing(f"cannot read {file}"):
            tokenizer = Tokenizer.from_file(str(file))
        size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        if size > spec.vocabulary:
            raise InputError(f"tokenizer has token ids up to {size - 1}; this model has {spec.vocabulary}; {REMEDY}")
        self._spec = spec
        name = "tokenizer_config.json"
        settings = processor_settings(folder, TextSettings, name) if (folder / name).is_file() else TextSettings()
        self.max_tokens = min(spec.max_sequence, int(min(settings.model_max_length, 2**31)))
        self.side = settings.truncation_side
        self.typed = settings.model_input_names is None or TYPES in settings.model_input_names
        self._unk_token = settings.unk_token
        tokenizer.no_padding()
        tokenizer.no_truncation()  # done here: the library keeps all overflow, for pairs in every combination
        self._tokenizer = tokenizer

    def encode(self, texts: Sequence[Any], first: int = 0) -> list[EncodedText]:
        """Tokenise texts; longer inputs are truncated, pairs at the longer text."""
        for index, text in enumerate(texts, start=first):
            self._check(text, index)
        encodings = self._encodings(list(texts), range(first, first + len(texts)))
        for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True), start=first):
            empty = is_pair(text) and not {0, 1} <= set(encoding.sequence_ids)
            if empty or all(encoding.special_tokens_mask):
                where = " in one of its texts" * empty
                raise InputError(f"input {index}, {cut(text)}, has no token the model knows{where}; {UNREADABLE}")
        pairs = enumerate(zip(texts, encodings, strict=True), start=first)
        return [self._shortened(encoding, index, text) for index, (text, encoding) in pairs]

    def _encodings(self, texts: list[Any], indices: Sequence[int], **how: Any) -> list[Any]:
        """Encodings from the library; an error names the first text on which it fails."""
        try:
            return list(self._tokenizer.encode_batch(texts, **how))
        except BaseException as error:
            if not of_library(error):
                raise
        return [self._encoding(text, index, **how) for text, index in zip(texts, indices, strict=True)]

    def _encoding(self, text: Any, index: int, **how: Any) -> Any:
        with tokenizing(f"the tokenizer fails on input {index}, {cut(text)}; {REMEDY}"):
            return self._tokenizer.encode_batch([text], **how)[0]

    def _shortened(self, encoding: Any, index: int, item: Any) -> EncodedText:
        """Truncate a tokenised text or pair to the model's maximum length."""
        encoded = self._truncated(encoding, self._kept_places(encoding, index), item)
        ranges = [("token id", max(encoded.ids), self._spec.vocabulary)]
        if TYPES in self._spec.input_names:
            ranges.append(("token type", max(encoded.types), self._spec.token_types))
        for what, largest, count in ranges:  # not every backend checks this
            if largest >= count:
                wrong = f"the tokenizer gives input {index} the {what} {largest}"
                raise InputError(f"{wrong}; this model knows 0 to {count - 1}; {REMEDY}")
        return encoded

    def _kept_places(self, encoding: Any, index: int) -> Sequence[int]:
        if len(encoding.ids) <= self.max_tokens:
            return range(len(encoding.ids))
        belongs = encoding.sequence_ids  # text 0, text 1, or None: a special token, never dropped
        counts = belongs.count(0), belongs.count(1)
        room = self.max_tokens - (len(belongs) - sum(counts))
        if room < sum(count > 0 for count in counts):
            wrong = f"input {index} does not fit into {self.max_tokens} tokens, the limit of the model or of max_length"
            why = "special tokens and one token of each text need more; raise max_length, or give no pair"
            raise InputError(f"{wrong}: {why}")
        dropped = set()
        for text, (count, kept) in enumerate(zip(counts, longest_first(*counts, room), strict=True)):
            places = [place for place, owner in enumerate(belongs) if owner == text]
            dropped |= set(places[kept:] if self.side == "right" else places[: count - kept])
        return [place for place in range(len(belongs)) if place not in dropped]

    def _check(self, item: Any, index: int) -> None:
        if isinstance(item, Unusable):
            raise InputError(f"input {index} {item.reason}")
        if not isinstance(item, str) and not is_pair(item):
            what = f"the file {item}" if isinstance(item, Path) else f"a {type(item).__name__}"
            raise InputError(f"input {index} is {what}; this model reads text (str), or a pair of texts as a tuple")
        if empty := empty_text(item):
            raise InputError(f"input {index} is {empty}; expected at least one word")
        check_texts((item,) if isinstance(item, str) else item, index)

    def _truncated(self, encoding: Any, places: Sequence[int], item: Any) -> EncodedText:  # noqa: ARG002 - in WordProcessor
        ids, types = encoding.ids, encoding.type_ids if self.typed else [0] * len(encoding.ids)
        return EncodedText([ids[place] for place in places], [types[place] for place in places], len(places) < len(ids))

    def collate(self, items: Sequence[EncodedText]) -> dict[str, np.ndarray]:
        """``input_ids``, ``attention_mask`` and, where the model has it, ``token_type_ids``, each [B, T] int64."""
        shape = (len(items), max(item.tokens for item in items))
        arrays = {name: np.zeros(shape, np.int64) for name in self._spec.input_names}
        arrays["input_ids"][:] = self._spec.padding_token
        for row, item in enumerate(items):
            arrays["input_ids"][row, : item.tokens] = item.ids
            arrays["attention_mask"][row, : item.tokens] = 1
            if "token_type_ids" in arrays:
                arrays["token_type_ids"][row, : item.tokens] = item.types
        return arrays

    def settings(self) -> dict[str, Any]:
        """Complete tokenization settings: steps, vocabulary, special tokens, maximum length."""
        steps = json.loads(self._tokenizer.to_str())
        for name in ("version", "decoder", "truncation", "padding"):  # irrelevant here
            steps.pop(name, None)
        settings = {**steps, "longest text": self.max_tokens, "side of truncation": self.side}
        return settings if self.typed else {**settings, "token types": False}

    def describe(self) -> dict[str, Any]:
        """Preprocessing settings, for other runtimes that prepare the same tensors."""
        numbers = {"max_tokens": self.max_tokens, "padding_token": self._spec.padding_token}
        return {"modality": "text", "tokenizer": "processor/tokenizer.json", **numbers}


def empty_text(item: Any) -> str:
    """Description of an empty text or pair; empty for other inputs."""
    if isinstance(item, str):
        return "" if item.strip() else "an empty text"
    texts = item if is_pair(item) else ()
    empty = [which for which, text in zip(("first", "second"), texts, strict=False) if not text.strip()]
    return f"a pair whose {empty[0]} text is empty" if empty else ""


def check_texts(texts: Sequence[str], index: int) -> None:
    """Reject inputs whose tokenization would fill the memory, and lone surrogates."""
    if (characters := sum(map(len, texts))) > LONGEST:
        raise InputError(f"input {index} has {characters} characters; expected {LONGEST} at most: shorten it")
    for text in texts:
        if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
            raise InputError(f"input {index} holds a lone surrogate, which is not a character; decode the text again")


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Token counts of two texts after truncation to ``room``: first the longer is cut, then both equally."""
    short = min(first, second)
    counts = (short, room - short) if 2 * short <= room else (room // 2, room - room // 2)
    return counts if first <= second else (counts[1], counts[0])


@dataclass(frozen=True)
class EncodedWords(EncodedText):
    """One tokenised text for token classification."""

    words: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True)
class Piece:
    """A token of a text, as described by transformers pipelines."""

    token: str
    start: int
    end: int
    special: bool
    continues: bool


class WordProcessor(TextProcessor):
    """Tokenises texts and lists of words, and records the word of each token."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        super().__init__(folder, spec)
        named = self._unk_token  # the checkpoint's token for unknown parts of a text
        named = named.get("content") if isinstance(named, dict) else named
        self._unknown = named if isinstance(named, str) else getattr(self._tokenizer.model, "unk_token", None)
        splitter = self._tokenizer.pre_tokenizer
        steps = {} if splitter is None else json.loads(splitter.__getstate__())
        parts = steps.get("pretokenizers", [steps])
        self._joins = any(part.get("type") == "ByteLevel" and not part.get("add_prefix_space") for part in parts)
        self._warned = False

    def encode(self, texts: Sequence[Any], first: int = 0) -> list[EncodedText]:
        """Tokenise texts or lists of words; longer inputs are truncated."""
        encoded: dict[int, EncodedText] = {}
        for split in (False, True):
            places = [place for place, item in enumerate(texts) if isinstance(item, str) is not split]
            for place in places:
                self._check(texts[place], first + place)
            inputs = [list(texts[place]) if split else texts[place] for place in places]
            if split and places and self._joins and not self._warned:
                self._warned = True
                what = "puts no space before the words of a list, unlike those of a text"
                log.warning("this tokenizer (add_prefix_space=False) %s; use the form of the training data", what)
            encodings = self._encodings(inputs, [first + place for place in places], is_pretokenized=split)
            for place, encoding in zip(places, encodings, strict=True):
                if all(encoding.special_tokens_mask):
                    what = f"input {first + place}, {cut(texts[place])}"
                    raise InputError(f"{what}, has no token the model knows; {UNREADABLE}")
                encoded[place] = self._shortened(encoding, first + place, texts[place])
        return [encoded[place] for place in range(len(texts))]

    def pieces(self, text: Any, index: int = 0) -> list[Piece]:
        """Tokens that the model reads from a text or list of words, by the rules of transformers pipelines."""
        split = not isinstance(text, str)
        encoding = self._encoding(list(text) if split else text, index, is_pretokenized=split)
        if len(encoding.tokens) != len(encoding.ids):  # a template may add or drop some
            counts = f"{len(encoding.ids)} token ids and {len(encoding.tokens)} tokens"
            raise InputError(f"the tokenizer gives input {index} {counts}; {REMEDY}")
        sentence = " ".join(text) if split else text
        starts = [0, *accumulate(len(word) + 1 for word in text)] if split else []
        marked = bool(getattr(self._tokenizer.model, "continuing_subword_prefix", None))
        pieces = []
        for place in self._kept_places(encoding, index):
            token, word = encoding.tokens[place], encoding.word_ids[place]
            shift = starts[word] if split and word is not None else 0
            start, end = (edge + shift for edge in encoding.offsets[place])
            part = sentence[start:end]
            continues = len(token) != len(part) if marked else start > 0 and " " not in sentence[start - 1 : start + 1]
            if token == self._unknown:
                token, continues = part, False
            pieces.append(Piece(token, start, end, bool(encoding.special_tokens_mask[place]), continues))
        return pieces

    def joined(self, tokens: Sequence[str]) -> str:
        """Join tokens to a text."""
        decoder = self._tokenizer.decoder
        if decoder is None:
            return " ".join(tokens)
        with tokenizing(f"the tokenizer cannot join its tokens to a text; {REMEDY}"):
            return str(decoder.decode(list(tokens)))

    def _check(self, item: Any, index: int) -> None:
        if isinstance(item, str | Unusable):
            super()._check(item, index)
            return
        if not is_words(item):
            kind = "pair of texts" if is_pair(item) else type(item).__name__
            raise InputError(f"input {index} is a {kind}; this model classifies tokens: give a text or list of words")
        empty = [place for place, word in enumerate(item) if not word.strip()]
        if empty or not len(item):
            what = f"has an empty word at {empty[0]}" if empty else "is a list of no words"
            raise InputError(f"input {index} {what}; expected at least one word, and no empty ones")
        check_texts(item, index)

    def _truncated(self, encoding: Any, places: Sequence[int], item: Any) -> EncodedText:
        """Tokens of an input; offsets in a list of words refer to the words joined by spaces."""
        encoded, owners, ends = super()._truncated(encoding, places, item), encoding.word_ids, encoding.offsets
        words = [NO_WORD if owners[place] is None else owners[place] for place in places]
        if isinstance(item, str):
            offsets = [_trimmed(item, *ends[place]) for place in places]
        else:
            starts = [0, *accumulate(len(word) + 1 for word in item)]
            offsets = [
                (0, 0) if word == NO_WORD else (starts[word] + ends[place][0], starts[word] + ends[place][1])
                for word, place in zip(words, places, strict=True)
            ]
        return EncodedWords(encoded.ids, encoded.types, encoded.truncated, words, offsets)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Part of a text without the outer spaces that some tokenizers include in tokens."""
    part = text[start:end]
    return (start, end) if not part.strip() else (end - len(part.lstrip()), start + len(part.rstrip()))
