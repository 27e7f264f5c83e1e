"""The tokenizer of a model that tags tokens as an ONNX graph: of each token also its word, and where it stands.

Input ``text``: strings [1]. Outputs, int64: ``input_ids``, ``attention_mask``, where the model has them
``token_type_ids``, and ``words``, all [1, tokens], as ``data.words`` gives them; ``offsets`` [1, tokens, 2] in
characters; ``counts`` [1]: the tokens before the text was cut, without special ones.

The normalisation goes character by character (``wordpiece``), so each character of the normalised text knows from which
it came. A token is as long as its piece, and one that stands for a whole word as long as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from .tokenizer_graph import MANY, Frame, TextGraph, WordPiece, escaped, frame_of, made_model, untyped


def word_graph(
    tokenizer: Any, max_tokens: int, side: str, types: bool, facts: Mapping[str, str], *, typed: bool = True
) -> onnx.ModelProto:
    """The graph of a WordPiece tokenizer."""
    frame = frame_of(tokenizer) if typed else untyped(frame_of(tokenizer))
    graph = TextGraph()
    steps = WordPiece(graph, tokenizer)
    pieces, owners, value = _normalised(graph, steps)
    ids = steps.ids(value)
    words, offsets = _places(graph, steps, ids, pieces, owners, value)
    count = graph.node("Shape", ids)
    room = max_tokens - len(frame.before[0]) - len(frame.after[0])
    kept = graph.ends(count, graph.node("Min", count, [room]), side)
    outputs = _framed(graph, frame, (ids, words, offsets), kept)
    ones = graph.repeated(1, graph.node("Shape", outputs["input_ids"]))
    outputs = {"input_ids": outputs["input_ids"], "attention_mask": ones, **outputs}
    if not types:
        del outputs["token_type_ids"]
    for name, made in outputs.items():
        graph.output("Unsqueeze", name, made, graph.constant([0]))
    graph.output("Identity", "counts", count)
    shapes = {name: [1, "tokens", *([2] if name == "offsets" else [])] for name in outputs}
    return made_model(graph, {**shapes, "counts": [1]}, facts)


def _normalised(graph: TextGraph, steps: WordPiece) -> tuple[str, str, str]:
    """Pieces of the text, from which each character of the normalised text came, and that text [1].

    A piece is a character, or an added token.
    """
    tokens = [escaped(token) for token, _ in steps.longest_first()]
    pieces = graph.matches("text", "((?s:" + "|".join([*tokens, "."]) + "))")
    cleaned = steps.cleaned(pieces)
    from_pieces = _owners(graph, _lengths(graph, cleaned))
    mapped = steps.without_nothing(steps.mapped(graph.characters(graph.joined(cleaned))))
    from_characters = _owners(graph, _lengths(graph, mapped))
    return pieces, graph.node("Gather", from_pieces, from_characters), graph.joined(mapped)


def _places(graph: TextGraph, steps: WordPiece, ids: str, pieces: str, owners: str, value: str) -> tuple[str, str]:
    """The word of each token [tokens], and its characters in the text [tokens, 2]."""
    node, zero, one = graph.node, graph.constant([0]), graph.constant([1])
    characters = graph.characters(value)
    solid = node("Min", _lengths(graph, graph.replaced(characters, " ", "")), one)
    end = node("Shape", solid)
    before = graph.part(node("Concat", zero, solid, axis=0), zero, end)
    begins = node("Mul", solid, node("Sub", one, before))  # 1 where a word begins
    inside = _where(graph, solid)
    owners, begins = (node("Gather", each, inside) for each in (owners, begins))
    firsts = _where(graph, begins)  # of each word, among the characters that are no spaces
    after = graph.part(firsts, one, [MANY])
    after = node("Concat", after, node("Shape", begins), axis=0)  # the first behind each word
    opens, length, whole = (node("Gather", table, ids) for table in _tables(steps))
    words = node("Sub", node("CumSum", opens, zero), one)
    passed = node("CumSum", length, zero, exclusive=1)
    passed_before = node("Gather", passed, node("Gather", _where(graph, opens), words))
    start = node("Add", node("Gather", firsts, words), node("Sub", passed, passed_before))
    whole = node("Cast", whole, to=TensorProto.BOOL)
    stop = node("Where", whole, node("Gather", after, words), node("Add", start, length))
    last = node("Sub", stop, one)
    sizes = _lengths(graph, pieces)
    ends_of = node("CumSum", sizes, zero)
    starts_of = node("Sub", ends_of, sizes)
    edges = [
        node("Unsqueeze", node("Gather", of, node("Gather", owners, at)), one)
        for of, at in ((starts_of, start), (ends_of, last))
    ]
    return words, node("Concat", *edges, axis=1)


def _tables(steps: WordPiece) -> tuple[list[int], list[int], list[int]]:
    """Of each piece whether it begins a word, how many characters it has, and whether it stands for a whole word."""
    standing = {steps.unknown, *steps.marks.values()}
    inner = [piece.startswith(steps.prefix) for piece in steps.lines]
    lengths = [len(piece) - len(steps.prefix) * within for piece, within in zip(steps.lines, inner, strict=True)]
    return [int(not within) for within in inner], lengths, [int(piece in standing) for piece in steps.lines]


def _framed(graph: TextGraph, frame: Frame, tokens: tuple[str, str, str], kept: tuple[str, str]) -> dict[str, str]:
    """Outputs of the tokens that are kept, with special tokens around them."""
    before, after = frame.before, frame.after
    ids, words, offsets = (graph.part(each, *kept) for each in tokens)
    none = [-1] * len(before[0]), [-1] * len(after[0])
    nowhere = np.zeros((len(before[0]), 2), np.int64), np.zeros((len(after[0]), 2), np.int64)
    parts: dict[str, Any] = {
        "input_ids": (before[0], ids, after[0]),
        "token_type_ids": (before[1], graph.repeated(frame.types[0], graph.node("Shape", ids)), after[1]),
        "words": (none[0], words, none[1]),
        "offsets": (nowhere[0], offsets, nowhere[1]),
    }
    return {name: graph.node("Concat", *each, axis=0) for name, each in parts.items()}


def _lengths(graph: TextGraph, strings: str) -> str:
    """How many characters each string has."""
    return graph.extension("StringLength", strings)


def _where(graph: TextGraph, flags: str) -> str:
    """The places of ones."""
    return graph.node("Reshape", graph.node("NonZero", flags), [-1])


def _owners(graph: TextGraph, lengths: str) -> str:
    """Each index as often as its length says: how many lengths end at or before each place."""
    zero, one = graph.constant([0]), graph.constant([1])
    stops = graph.node("CumSum", lengths, zero)
    total = graph.node("ReduceSum", lengths, keepdims=1)
    nothing = graph.node("Expand", zero, graph.node("Add", total, one))
    ones = graph.node("Expand", one, graph.node("Shape", stops))
    ended = graph.node("ScatterElements", nothing, stops, ones, reduction="add", axis=0)
    return graph.part(graph.node("CumSum", ended, zero), zero, total)
