"""Tokenizer as an ONNX graph: one text, or a pair of texts → the model's tokens.

Input ``text``: strings [1], or [2] for a pair. Outputs, int64: the model's inputs [1, tokens], truncated; ``counts``,
[texts]: tokens before truncation, without special tokens. For token classification also ``words`` [1, tokens], as in
``data.text``, and ``offsets`` [1, tokens, 2] in characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from ..data.text import tokenizing
from ..errors import InputError, cut
from .wordpiece import BREAKS, FIRST_MARK, normalisation_of, range_pattern, vocabulary_lines

DOMAIN = "ai.onnx.contrib"
OPSET, IR_VERSION = 17, 8

Special = tuple[list[int], list[int]]  # ids and types of special tokens


@dataclass(frozen=True)
class Frame:
    """Ids and types of the special tokens around one text and two texts, and token types of a pair's texts."""

    before: Special
    between: Special
    after: Special
    after_pair: Special
    types: tuple[int, int]


def frame_of(tokenizer: Any, typed: bool) -> Frame:
    """Special tokens that a tokenizer adds around texts; each token has type 0 unless ``typed``."""
    with tokenizing("the tokenizer.json fails on the text 'a' or a pair of it; use that of the model's training"):
        single, pair = tokenizer.encode("a"), tokenizer.encode("a", "a")
    one, two = _parts(single, 1, typed), _parts(pair, 2, typed)
    types = [encoding.type_ids[encoding.sequence_ids.index(0)] for encoding in (single, pair)]
    if one[0] != two[0] or types[0] != types[1]:
        raise InputError("this tokenizer starts a pair differently than a text; pass token ids to the C++ runner")
    second = pair.type_ids[pair.sequence_ids.index(1)]
    return Frame(one[0], two[1], one[1], two[2], (types[0], second) if typed else (0, 0))


def _parts(encoding: Any, texts: int, typed: bool) -> list[Special]:
    """The special tokens before, between and after the texts."""
    parts: list[Special] = [([], []) for _ in range(texts + 1)]
    place = 0
    for token, kind, owner in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
        if owner is not None:
            place = owner + 1
        else:
            parts[place][0].append(token)
            parts[place][1].append(kind if typed else 0)
    return parts


class TextGraph:
    """Nodes and constants with unique names; an input that is not a name becomes a constant."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._made = 0

    def constant(self, value: Any) -> str:
        """Whole numbers."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, np.int64), name))
        return name

    def text(self, value: str) -> str:
        """A text as strings [1]."""
        name = f"c{len(self.constants)}"
        self.constants.append(helper.make_tensor(name, TensorProto.STRING, [1], np.array([value.encode()], object)))
        return name

    def node(self, operator: str, *inputs: Any, domain: str = "", outputs: int = 1, **attributes: Any) -> str:
        """The first output of an operator."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        self._made += 1
        made = [f"v{self._made}", *(f"v{self._made}_{index}" for index in range(1, outputs))]
        self.nodes.append(helper.make_node(operator, names, made, domain=domain, **attributes))
        return made[0]

    def output(self, operator: str, name: str, *inputs: str) -> None:
        """Name a value as an output of the graph."""
        self.nodes.append(helper.make_node(operator, inputs, [name]))

    def extension(self, operator: str, *inputs: Any, **attributes: Any) -> str:
        """The first output of an operator of onnxruntime-extensions."""
        return self.node(operator, *inputs, domain=DOMAIN, **attributes)

    def replaced(self, text: str, pattern: str, by: str) -> str:
        """Replace matches of a pattern in strings."""
        return self.extension("StringRegexReplace", text, self.text(pattern), self.text(by))

    def matches(self, text: str, pattern: str) -> str:
        """Parts of a text [1] that match a pattern."""
        single = self.text(pattern)
        return self.extension("StringRegexSplitWithOffsets", text, single, single, outputs=4)

    def characters(self, text: str) -> str:
        """Characters of a text [1]."""
        return self.matches(text, "(?s)(.)")

    def lengths(self, strings: str) -> str:
        """Length of each string in characters."""
        return self.extension("StringLength", strings)

    def joined(self, strings: str) -> str:
        """Concatenate strings into one [1]."""
        return self.extension("StringJoin", strings, self.text(""), [0])

    def part(self, value: Any, start: Any, stop: Any) -> str:
        """Rows of a value."""
        return self.node("Slice", value, start, stop, [0])

    def ends(self, total: str, remaining: str, side: str) -> tuple[str, str]:
        """Start and end of the ``remaining`` tokens of ``total`` after truncation at a side."""
        return (self.constant([0]), remaining) if side == "right" else (self.node("Sub", total, remaining), total)

    def repeated(self, value: int | str, shape: str) -> str:
        """Tensor of a shape, filled with one number."""
        return self.node("Expand", value if isinstance(value, str) else [value], shape)


def tokenizer_graph(
    tokenizer: Any, max_tokens: int, side: str, types: bool, facts: Mapping[str, str], *, typed: bool, tags: bool
) -> onnx.ModelProto:
    """Graph of a tokenizer; for token classification (``tags``) of a WordPiece tokenizer."""
    frame, graph = frame_of(tokenizer, typed), TextGraph()
    tokens, counts = (_of_words if tags else _of_texts)(graph, tokenizer, frame, max_tokens, side)
    ones = graph.repeated(1, graph.node("Shape", tokens["input_ids"]))
    outputs = {"input_ids": tokens["input_ids"], "attention_mask": ones, **tokens}
    if not types:
        del outputs["token_type_ids"]
    zero = graph.constant([0])
    for name, value in outputs.items():
        graph.output("Unsqueeze", name, value, zero)
    graph.output("Identity", "counts", counts)
    shapes = {name: [1, "tokens", *([2] if name == "offsets" else [])] for name in outputs}
    return _model(graph, {**shapes, "counts": [1 if tags else "texts"]}, facts)


def _of_texts(graph: TextGraph, tokenizer: Any, frame: Frame, max_tokens: int, side: str) -> tuple[dict[str, str], str]:
    """Ids and types of the tokens of one or two texts, and the numbers of tokens before truncation."""
    node, part = graph.node, graph.part
    body = _body(graph, tokenizer)
    if max_tokens < len(frame.before[0]) + len(frame.between[0]) + len(frame.after_pair[0]) + 2:
        raise InputError(f"this model reads {max_tokens} tokens, too few for a pair; pass token ids to the C++ runner")
    one = graph.constant([1])
    texts = node("Shape", "text")
    paired = node("Sub", texts, one)
    ids, counts = _each_text(graph, body, texts)
    count = part(counts, [0], one)
    total = node("Shape", ids)
    other = node("Sub", total, count)
    first, second = part(ids, [0], count), part(ids, count, total)
    # tokens left of each text, as in data.text.longest_first
    special = graph.constant([len(frame.before[0]) + len(frame.after[0])])
    further = node("Mul", paired, [len(frame.between[0]) + len(frame.after_pair[0]) - len(frame.after[0])])
    taken = node("Add", special, further)
    room = node("Sub", [max_tokens], taken)
    short = node("Min", count, other)
    half = node("Div", room, [2])
    fits = node("LessOrEqual", node("Add", short, short), room)
    less = node("Where", fits, short, half)
    more = node("Sub", room, less)
    shorter = node("LessOrEqual", count, other)
    kept = node("Min", node("Where", shorter, less, more), count)
    kept_other = node("Min", node("Where", shorter, more, less), other)
    first, second = part(first, *graph.ends(count, kept, side)), part(second, *graph.ends(other, kept_other, side))
    zero = graph.constant([0])
    between_end = node("Mul", paired, [len(frame.between[0])])
    split = graph.constant([len(frame.after[0])])
    after_start = node("Mul", paired, split)
    after_end = node("Add", split, node("Mul", paired, [len(frame.after_pair[0])]))
    outputs = {}
    for which, name in enumerate(("input_ids", "token_type_ids")):
        between = part(frame.between[which], zero, between_end)
        after = part(frame.after[which] + frame.after_pair[which], after_start, after_end)
        if which:
            first, second = graph.repeated(frame.types[0], kept), graph.repeated(frame.types[1], kept_other)
        outputs[name] = node("Concat", frame.before[which], first, between, second, after, axis=0)
    return outputs, counts


def _model(graph: TextGraph, outputs: Mapping[str, Sequence[Any]], facts: Mapping[str, str]) -> onnx.ModelProto:
    """ONNX model of a graph with input ``text``."""
    reads = [helper.make_tensor_value_info("text", TensorProto.STRING, ["texts"])]
    gives = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name, shape in outputs.items()]
    onnx_graph = helper.make_graph(graph.nodes, "tokenizer", reads, gives, graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(onnx_graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="hydrant")
    helper.set_model_props(model, dict(facts))
    return model


def _each_text(graph: TextGraph, body: Any, texts: str) -> tuple[str, str]:
    """Concatenated ids of all texts, and the number of each; the graph contains the tokenizer once."""
    before, graph.nodes = graph.nodes, []
    zero = graph.constant([0])
    start = graph.node("Unsqueeze", "place", zero)
    text_ids = body(graph.part("text", start, graph.node("Add", start, [1])))
    ids = graph.node("Concat", "ids_before", text_ids, axis=0)
    counts = graph.node("Concat", "counts_before", graph.node("Shape", text_ids), axis=0)
    graph.output("Identity", "still_on", "go_on")
    number, flag = TensorProto.INT64, TensorProto.BOOL
    before_it = [("ids_before", number, ["before"]), ("counts_before", number, ["texts_before"])]
    reads = [("place", number, []), ("go_on", flag, []), *before_it]
    gives = [("still_on", flag, []), (ids, number, ["after"]), (counts, number, ["texts_after"])]
    inputs, outputs = ([helper.make_tensor_value_info(*value) for value in values] for values in (reads, gives))
    step = helper.make_graph(graph.nodes, "one_text", inputs, outputs)
    graph.nodes = before
    none = graph.constant([])
    times = graph.node("Squeeze", texts, zero)
    graph.nodes.append(helper.make_node("Loop", [times, "", none, none], ["all_ids", "all_counts"], body=step))
    return "all_ids", "all_counts"


def _body(graph: TextGraph, tokenizer: Any) -> Any:
    """Function that adds the nodes from a text [1] to its ids, without special tokens."""
    steps = json.loads(tokenizer.to_str())
    kind = steps["model"]["type"]
    if kind in ("BPE", "Unigram"):
        return _by_json(graph, steps)
    if kind != "WordPiece":
        problem = f"the tokenizer's model is {cut(kind)}; expected WordPiece, BPE or Unigram for tokenizer.onnx"
        raise InputError(f"{problem}; pass token ids to the C++ runner")
    pieces = WordPiece(graph, tokenizer)

    def ids(text: str) -> str:
        mapped = pieces.mapped(graph.characters(pieces.cleaned(text)))
        return pieces.ids(pieces.without_nothing(graph.joined(mapped)))

    return ids


class WordPiece:
    """Steps of a WordPiece tokenizer; each adds its nodes."""

    def __init__(self, graph: TextGraph, tokenizer: Any) -> None:
        steps = json.loads(tokenizer.to_str())
        model = steps["model"]
        self._graph = graph
        self.lines, marks = vocabulary_lines(steps)
        self.marks = dict(sorted(marks.items(), key=lambda each: len(each[0]), reverse=True))  # longest first
        self.prefix: str = model["continuing_subword_prefix"]
        self.unknown: str = self.marks.get(model["unk_token"], model["unk_token"])
        self._normal = normalisation_of(tokenizer, self.lines, self.prefix)

    def cleaned(self, text: str) -> str:
        """Mark added tokens, remove dropped characters, and put spaces around single-character words."""
        graph, last = self._graph, FIRST_MARK + len(self.marks) + 1
        value = graph.replaced(text, f"[\\x{{{FIRST_MARK:x}}}-\\x{{{last:x}}}]", "")
        for token, stand_in in self.marks.items():
            value = graph.replaced(value, escaped(token), f" {stand_in} ")
        value = graph.replaced(value, f"[{BREAKS}]", " " if self._normal.breaks else "")
        if self._normal.gone:
            gone = [(low, min(high, FIRST_MARK - 1)) for low, high in self._normal.gone if low < FIRST_MARK]
            gone += [(max(low, last + 1), high) for low, high in self._normal.gone if high > last]
            value = graph.replaced(value, range_pattern(gone), "")
        if self._normal.alone:
            value = graph.replaced(value, f"({range_pattern(self._normal.alone)})", " \\1 ")
        return value

    def mapped(self, characters: str) -> str:
        """Map each character; unknown characters become a mark."""
        graph = self._graph
        mapped_characters = graph.extension("StringMapping", characters, map=_table(self._normal.table))
        numbers = graph.extension("StringToVector", characters, map=_table(self._normal.known), unk="0")
        is_known = graph.node("Cast", graph.node("Reshape", numbers, [-1]), to=TensorProto.BOOL)
        return graph.node("Where", is_known, mapped_characters, graph.text(chr(FIRST_MARK)))

    def without_nothing(self, value: str) -> str:
        """Remove the mark of the empty string."""
        return self._graph.replaced(value, chr(FIRST_MARK + len(self.marks) + 1), "")

    def ids(self, value: str) -> str:
        """Ids of a cleaned and mapped text."""
        graph, mark = self._graph, chr(FIRST_MARK)
        some = min(self.marks.values(), default=self.unknown)  # added around texts by the operator, then removed
        # a word with an unknown character is unknown as a whole; the operator would return the pieces before it
        value = graph.replaced(value, f"[^ ]*{mark}[^ ]*", f" {self.unknown} ")
        options: dict[str, Any] = dict.fromkeys(("cls_token", "sep_token", "pad_token", "mask_token"), some)
        options |= dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars"), 0)
        options |= {"vocab_file": "\n".join(self.lines), "suffix_indicator": self.prefix, "unk_token": self.unknown}
        return graph.part(graph.extension("BertTokenizer", value, outputs=3, **options), [1], [-1])


def escaped(token: str) -> str:
    """Escape a string for RE2."""
    return re.escape(token).replace("\\-", "-")


def _table(entries: Mapping[str, str]) -> str:
    return "\n".join(f"{each}\t{new}" for each, new in sorted(entries.items()))


def _by_json(graph: TextGraph, steps: dict[str, Any]) -> Any:
    """Use the operator that reads ``tokenizer.json``; it drops a text's end that starts like a special token."""
    left: dict[str, Any] = {"post_processor": None, "truncation": None, "padding": None, "added_tokens": []}
    plain = json.dumps({**steps, **left}, ensure_ascii=False)
    unigram = steps["model"]["type"] == "Unigram"
    config = {"tokenizer_class": "XLMRobertaTokenizer" if unigram else "GPT2Tokenizer"}
    if unigram and (unknown := steps["model"].get("unk_id")) is not None:
        config["unk_token"] = steps["model"]["vocab"][unknown][0]

    def ids(text: str) -> str:
        tokens = graph.extension("HfJsonTokenizer", text, tokenizer_vocab=plain, tokenizer_config=json.dumps(config))
        return graph.node("Reshape", tokens, [-1])

    return ids


def _of_words(graph: TextGraph, tokenizer: Any, frame: Frame, max_tokens: int, side: str) -> tuple[dict[str, str], str]:
    """Ids, types, words and offsets of a text's tokens, and the number of tokens before truncation."""
    steps = WordPiece(graph, tokenizer)
    pieces, owners, value = _normalised(graph, steps)
    ids = steps.ids(value)
    words, offsets = _word_places(graph, steps, ids, pieces, owners, value)
    count = graph.node("Shape", ids)
    room = max_tokens - len(frame.before[0]) - len(frame.after[0])
    span = graph.ends(count, graph.node("Min", count, [room]), side)
    return _framed(graph, frame, (ids, words, offsets), span), count


def _normalised(graph: TextGraph, steps: WordPiece) -> tuple[str, str, str]:
    """Pieces of the text (characters or added tokens), each normalised character's piece, and the result [1]."""
    tokens = [escaped(token) for token in steps.marks]
    pieces = graph.matches("text", "((?s:" + "|".join([*tokens, "."]) + "))")
    cleaned = steps.cleaned(pieces)
    from_pieces = _owners(graph, graph.lengths(cleaned))
    mapped = steps.without_nothing(steps.mapped(graph.characters(graph.joined(cleaned))))
    from_characters = _owners(graph, graph.lengths(mapped))
    return pieces, graph.node("Gather", from_pieces, from_characters), graph.joined(mapped)


def _word_places(graph: TextGraph, steps: WordPiece, ids: str, pieces: str, owners: str, value: str) -> tuple[str, str]:
    """The word of each token [tokens], and its characters in the text [tokens, 2]."""
    node, zero, one = graph.node, graph.constant([0]), graph.constant([1])
    characters = graph.characters(value)
    solid = node("Min", graph.lengths(graph.replaced(characters, " ", "")), one)
    end = node("Shape", solid)
    before = graph.part(node("Concat", zero, solid, axis=0), zero, end)
    begins = node("Mul", solid, node("Sub", one, before))  # 1 at the start of a word
    inside = _where(graph, solid)
    owners, begins = (node("Gather", each, inside) for each in (owners, begins))
    firsts = _where(graph, begins)  # first character of each word, among non-space characters
    after = graph.part(firsts, one, [2**62])
    after = node("Concat", after, node("Shape", begins), axis=0)  # first character behind each word
    opens, length, whole = (node("Gather", table, ids) for table in _tables(steps))
    words = node("Sub", node("CumSum", opens, zero), one)
    passed = node("CumSum", length, zero, exclusive=1)
    passed_before = node("Gather", passed, node("Gather", _where(graph, opens), words))
    start = node("Add", node("Gather", firsts, words), node("Sub", passed, passed_before))
    whole = node("Cast", whole, to=TensorProto.BOOL)
    stop = node("Where", whole, node("Gather", after, words), node("Add", start, length))
    last = node("Sub", stop, one)
    sizes = graph.lengths(pieces)
    ends_of = node("CumSum", sizes, zero)
    pairs = ((node("Sub", ends_of, sizes), start), (ends_of, last))
    edges = [node("Unsqueeze", node("Gather", of, node("Gather", owners, at)), one) for of, at in pairs]
    return words, node("Concat", *edges, axis=1)


def _tables(steps: WordPiece) -> tuple[list[int], list[int], list[int]]:
    """For each piece: 1 if it starts a word, its length, and 1 if it replaces a whole word."""
    standing = {steps.unknown, *steps.marks.values()}
    inner = [piece.startswith(steps.prefix) for piece in steps.lines]
    lengths = [len(piece) - len(steps.prefix) * within for piece, within in zip(steps.lines, inner, strict=True)]
    return [int(not within) for within in inner], lengths, [int(piece in standing) for piece in steps.lines]


def _framed(graph: TextGraph, frame: Frame, tokens: tuple[str, str, str], span: tuple[str, str]) -> dict[str, str]:
    """Outputs of the truncated tokens, with special tokens around them."""
    before, after = frame.before, frame.after
    ids, words, offsets = (graph.part(each, *span) for each in tokens)
    none = [-1] * len(before[0]), [-1] * len(after[0])
    nowhere = np.zeros((len(before[0]), 2), np.int64), np.zeros((len(after[0]), 2), np.int64)
    parts: dict[str, Any] = {
        "input_ids": (before[0], ids, after[0]),
        "token_type_ids": (before[1], graph.repeated(frame.types[0], graph.node("Shape", ids)), after[1]),
        "words": (none[0], words, none[1]),
        "offsets": (nowhere[0], offsets, nowhere[1]),
    }
    return {name: graph.node("Concat", *each, axis=0) for name, each in parts.items()}


def _where(graph: TextGraph, flags: str) -> str:
    """Indices of ones."""
    return graph.node("Reshape", graph.node("NonZero", flags), [-1])


def _owners(graph: TextGraph, lengths: str) -> str:
    """Repeat each index as often as its length: count the lengths that end at or before each position."""
    zero, one = graph.constant([0]), graph.constant([1])
    stops = graph.node("CumSum", lengths, zero)
    total = graph.node("ReduceSum", lengths, keepdims=1)
    nothing = graph.node("Expand", zero, graph.node("Add", total, one))
    ones = graph.node("Expand", one, graph.node("Shape", stops))
    ended = graph.node("ScatterElements", nothing, stops, ones, reduction="add", axis=0)
    return graph.part(graph.node("CumSum", ended, zero), zero, total)
