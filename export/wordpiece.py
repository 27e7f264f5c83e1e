"""WordPiece for onnxruntime-extensions, which only looks up words: a table normalises as the tokenizer does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, cut

FIRST_MARK = 0xF0000  # private characters: the first for unknown characters, the others for added tokens
CHUNK = 256
BREAKS = "\t\n\r"  # characters that the table cannot contain


@dataclass(frozen=True)
class Normalisation:
    """Mapping of every character."""

    table: Mapping[str, str]  # character → replacement; the first mark for unknown characters
    known: Mapping[str, str]  # characters that are pieces or in the table, each with a 1
    gone: tuple[tuple[int, int], ...]  # ranges of removed characters
    alone: tuple[tuple[int, int], ...]  # ranges of single-character words
    breaks: str  # characters of BREAKS that become a space; the others are removed


def normalisation_of(tokenizer: Any, words: Sequence[str], prefix: str) -> Normalisation:
    """Normalisation and pre-tokenisation of each Unicode character by a tokenizer."""
    changes: dict[int, str] = {}
    for start in (*range(0, 0xD800, CHUNK), *range(0xE000, 0x110000, CHUNK)):
        _read(tokenizer, range(start, start + CHUNK), changes)
    if changes.get(FIRST_MARK) != "":
        raise InputError(f"this tokenizer keeps the private U+{FIRST_MARK:X}; pass token ids to the C++ runner")
    letters = _alphabet(words, prefix, changes) | {" "}
    unknown = chr(FIRST_MARK)
    nothing = chr(FIRST_MARK + 1 + sum(ord(each) > FIRST_MARK for each in letters))
    gone = _runs(point for point, new in changes.items() if new == "")
    alone = _runs(point for point, new in changes.items() if new == f" {chr(point)} ")
    ranged = {point for first, last in (*gone, *alone) for point in range(first, last + 1)}
    table = {
        chr(point): "".join(each if each in letters else unknown for each in new) or nothing
        for point, new in changes.items()
        if point not in ranged and chr(point) not in BREAKS and point > 0
    }
    breaks = "".join(each for each in BREAKS if changes.get(ord(each)) == " ")
    return Normalisation(table, dict.fromkeys(letters | set(table), "1"), gone, alone, breaks)


def _read(tokenizer: Any, points: range, changes: dict[int, str]) -> None:
    """Add these characters' mapping to ``changes``: together if all stay, are removed or become words."""
    between = "a".join(map(chr, points))
    text = f"a{between}a"
    normalised = text if tokenizer.normalizer is None else tokenizer.normalizer.normalize_str(text)
    words = [word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normalised)]
    if words == [text]:
        return
    if words == ["a" * (len(points) + 1)]:
        changes |= dict.fromkeys(points, "")
    elif words == ["a", *(word for point in points for word in (chr(point), "a"))]:
        changes |= {point: f" {chr(point)} " for point in points}
    elif len(points) == 1:
        changes |= {point: new for point in points if (new := " ".join(words)[1:-1]) != chr(point)}
    else:
        half = len(points) // 2
        _read(tokenizer, points[:half], changes)
        _read(tokenizer, points[half:], changes)


def _runs(points: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Runs of at least 64 characters; surrogates, absent from texts, do not interrupt a run."""
    runs: list[list[int]] = []
    for point in sorted(points):
        if runs and point in (runs[-1][1] + 1, 0xE000 if runs[-1][1] == 0xD7FF else 0):
            runs[-1][1] = point
        else:
            runs.append([point, point])
    return tuple((first, last) for first, last in runs if last - first >= 63)


def range_pattern(ranges: Sequence[tuple[int, int]]) -> str:
    """Character class of RE2, without surrogates."""
    parts: list[tuple[int, int]] = []
    for first, last in ranges:
        parts += [(first, 0xD7FF), (0xE000, last)] if first < 0xD800 <= last else [(first, last)]
    return "[" + "".join(f"\\x{{{first:x}}}-\\x{{{last:x}}}" for first, last in parts) + "]"


def _alphabet(words: Sequence[str], prefix: str, changes: Mapping[int, str]) -> set[str]:
    """Characters that are pieces at the start of a word and, unless single-character words, also within one."""
    vocabulary = set(words)
    single = [each for each in vocabulary if len(each) == 1]
    inside = {each for each in single if prefix + each in vocabulary or ord(each) > FIRST_MARK}
    return inside | {each for each in single if changes.get(ord(each)) == f" {each} "}


def vocabulary_lines(steps: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Vocabulary by id with private characters for added tokens, and their mapping."""
    words = dict(steps["model"]["vocab"])
    marks: dict[str, str] = {}
    for index, token in enumerate(steps.get("added_tokens", []), start=1):
        if token["normalized"] or token["single_word"]:
            problem = f"tokenizer.onnx cannot match {cut(token['content'])} in normalised text or as a whole word"
            raise InputError(f"{problem}; pass token ids to the C++ runner")
        marks[token["content"]] = chr(FIRST_MARK + index)
        words.pop(token["content"], None)
        words[marks[token["content"]]] = token["id"]
    by_id = {index: word for word, index in words.items()}
    if sorted(by_id) != list(range(len(by_id))) or any("\n" in word for word in words):
        raise InputError("tokenizer.onnx cannot hold gaps in the tokenizer's ids; pass token ids to the C++ runner")
    return [by_id[index] for index in range(len(by_id))], marks
