"""Texts, or texts as lists of words → token ids, and which word each token belongs to: for models that tag tokens."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from ..errors import InputError, cut
from .raw_inputs import Unusable, is_pair, is_words
from .specs import InputSpec
from .text import REMEDY, UNREADABLE, EncodedText, TextProcessor, check_texts, tokenizing

log = logging.getLogger(__name__)
NO_WORD = -1  # the word of a special token or of padding


@dataclass(frozen=True)
class EncodedWords(EncodedText):
    """One tokenised text of a model that tags tokens."""

    words: list[int]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True)
class Piece:
    """A token of a text, as pipelines of transformers speak of it."""

    token: str
    start: int
    end: int
    special: bool
    continues: bool


class WordProcessor(TextProcessor):
    """Tokenises texts, and texts given as lists of words, and keeps which word each token belongs to."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        super().__init__(folder, spec)
        named = self._unk_token  # what stands for an unknown part of a text, as the checkpoint names it
        named = named.get("content") if isinstance(named, dict) else named
        self._unknown = named if isinstance(named, str) else getattr(self._tokenizer.model, "unk_token", None)
        splitter = self._tokenizer.pre_tokenizer
        steps = {} if splitter is None else json.loads(splitter.__getstate__())
        parts = steps.get("pretokenizers", [steps])
        self._joins = any(part.get("type") == "ByteLevel" and not part.get("add_prefix_space") for part in parts)
        self._told = False

    def encode(self, texts: Sequence[Any], first: int = 0) -> list[EncodedText]:
        """Tokenise texts; of those longer than the model reads the end is cut off."""
        found: dict[int, EncodedText] = {}
        for split in (False, True):
            places = [place for place, item in enumerate(texts) if isinstance(item, str) is not split]
            for place in places:
                self._check(texts[place], first + place)
            given = [list(texts[place]) if split else texts[place] for place in places]
            if split and places and self._joins and not self._told:
                self._told = True
                what = "words of a list without a space before them, and those of a text with one"
                log.warning("this tokenizer (add_prefix_space=False) reads %s; give what it was trained on", what)
            encodings = self._encodings(given, [first + place for place in places], is_pretokenized=split)
            for place, encoding in zip(places, encodings, strict=True):
                if all(encoding.special_tokens_mask):
                    what = f"input {first + place}, {cut(texts[place])}"
                    raise InputError(f"{what}, has no token the model knows; {UNREADABLE}")
                found[place] = self._shortened(encoding, first + place, texts[place])
        return [found[place] for place in range(len(texts))]

    def pieces(self, text: Any, index: int = 0) -> list[Piece]:
        """The tokens that the model reads of a text, or of a list of words, by the rules of transformers' pipelines."""
        split = not isinstance(text, str)
        encoding = self._encoding(list(text) if split else text, index, is_pretokenized=split)
        if len(encoding.tokens) != len(encoding.ids):  # a template may name more or fewer
            counts = f"{len(encoding.ids)} token ids and {len(encoding.tokens)} tokens"
            raise InputError(f"the tokenizer gives input {index} {counts}; {REMEDY}")
        sentence = " ".join(text) if split else text
        starts = [0, *accumulate(len(word) + 1 for word in text)] if split else []
        marked = bool(getattr(self._tokenizer.model, "continuing_subword_prefix", None))
        found = []
        for place in self._kept(encoding, index):
            token, word = encoding.tokens[place], encoding.word_ids[place]
            shift = starts[word] if split and word is not None else 0
            start, end = (edge + shift for edge in encoding.offsets[place])
            part = sentence[start:end]
            continues = len(token) != len(part) if marked else start > 0 and " " not in sentence[start - 1 : start + 1]
            if token == self._unknown:
                token, continues = part, False
            found.append(Piece(token, start, end, bool(encoding.special_tokens_mask[place]), continues))
        return found

    def joined(self, tokens: Sequence[str]) -> str:
        """The text of some tokens."""
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
            raise InputError(f"input {index} is a {kind}; this model tags tokens: give a text, or its words as a list")
        empty = [place for place, word in enumerate(item) if not word.strip()]
        if empty or not len(item):
            what = f"has an empty word at {empty[0]}" if empty else "is a list of no words"
            raise InputError(f"input {index} {what}; expected at least one word, and no empty ones")
        check_texts(item, index)

    def _made(self, encoding: Any, places: Sequence[int], item: Any) -> EncodedText:
        """The tokens of an input; offsets in words of a list become those in these words joined by spaces."""
        made, owners, ends = super()._made(encoding, places, item), encoding.word_ids, encoding.offsets
        words = [NO_WORD if owners[place] is None else owners[place] for place in places]
        if isinstance(item, str):
            offsets = [_trimmed(item, *ends[place]) for place in places]
        else:
            starts = [0, *accumulate(len(word) + 1 for word in item)]
            offsets = [
                (0, 0) if word == NO_WORD else (starts[word] + ends[place][0], starts[word] + ends[place][1])
                for word, place in zip(words, places, strict=True)
            ]
        return EncodedWords(made.ids, made.types, made.truncated, words, offsets)


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """The same part of a text without spaces at its ends, which some tokenizers count to their tokens."""
    part = text[start:end]
    return (start, end) if not part.strip() else (end - len(part.lstrip()), start + len(part.rstrip()))
