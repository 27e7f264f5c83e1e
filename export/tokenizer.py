"""``tokenizer.onnx``: the bundle's tokenizer as a graph, for runtimes without Python, and whether it does the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, islice
from typing import Any

import numpy as np
import onnx

from ..bundle.graphs import tokenizer_source
from ..bundle.store import Bundle
from ..data.text import TextProcessor
from ..data.words import NO_WORD, EncodedWords, WordProcessor
from ..errors import InputError, cut, require
from .fuzzed import fuzzed_texts
from .tokenizer_graph import tokenizer_graph
from .word_graph import word_graph

TEXTS = 2000
"""On which the graph is compared with the tokenizer; half as many pairs of them beside, or as many lists of words."""

REMEDY = "nothing is written; give the C++ runner token ids, or predict with Python"


@dataclass(frozen=True)
class TokenizerExport:
    """A tokenizer as a graph.

    Attributes:
        kind: model of the tokenizer: ``"WordPiece"``, ``"BPE"`` or ``"Unigram"``.
        texts, pairs: on which its ids were compared with those of the tokenizer itself, and did not differ.
        bytes: its size.
        lists: of words, likewise; of models that tag tokens, for pairs. Words and offsets were compared, too.
    """

    kind: str
    texts: int
    pairs: int
    bytes: int
    lists: int = 0

    def to_json(self) -> dict[str, Any]:
        """The fields as a JSON object."""
        return asdict(self)


def made_tokenizer(bundle: Bundle, seed: int, count: int = TEXTS) -> tuple[bytes, TokenizerExport]:
    """The bytes of ``tokenizer.onnx``, compared with the bundle's own tokenizer on fuzzed texts."""
    processor = bundle.processor()
    folder = bundle.processor_folder()
    if folder is None or not isinstance(processor, TextProcessor):
        raise InputError(
            f"bundle {bundle.path} has no tokenizer of texts, so there is no tokenizer.onnx to make; leave --tokenizer "
            "out"
        )
    require("onnxruntime", "tokenizer", "compare the tokenizer's graph")
    require("onnxruntime_extensions", "tokenizer", "run the tokenizer's graph")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    steps = json.loads(tokenizer.to_str())
    kind, tags = steps["model"]["type"], isinstance(processor, WordProcessor)
    if tags and kind != "WordPiece":
        raise InputError(
            f"bundle {bundle.path} tags tokens, and the operators tell the words of tokens by WordPiece alone, not by "
            f"{cut(kind)}; {REMEDY}"
        )
    side = processor.side
    types = "token_type_ids" in bundle.any_architecture().input_names
    special = [token["content"] for token in steps.get("added_tokens", [])]
    unread = [] if kind == "WordPiece" else special
    facts = {"hydrant.tokenizer": tokenizer_source(bundle), "hydrant.unread": "\n".join(unread)}
    make = word_graph if tags else tokenizer_graph
    model = make(tokenizer, processor.max_tokens, side, types, facts, typed=processor.typed)
    content = model.SerializeToString(deterministic=True)
    onnx.checker.check_model(model)
    more = [f"a{token}b {token}" for token in special[16:]]
    texts = [
        text for text in (*fuzzed_texts(count, seed, special[:16]), *more) if not any(token in text for token in unread)
    ]
    pairs = [] if tags else list(zip(texts[::2], texts[1::2], strict=False))
    lists = [[word for word in text.split(" ") if word.strip()] for text in (*texts[::2], *more)] if tags else []
    run = _session(content)
    for items in (texts, pairs, lists):
        _compare(run, processor, items)
    return content, TokenizerExport(kind, len(texts), len(pairs), len(content), len(lists))


def _session(content: bytes) -> Any:
    """What makes of one text, or two, the outputs of the graph by name."""
    import onnxruntime
    import onnxruntime_extensions

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of onnxruntime's own, which share no public base class
        raise InputError(
            f"onnxruntime-extensions does not take this tokenizer ({cut(error, 200)}); {REMEDY}"
        ) from error
    names = [output.name for output in session.get_outputs()]

    def run(texts: Sequence[str]) -> dict[str, np.ndarray]:
        return dict(zip(names, session.run(None, {"text": np.array(texts, object)}), strict=True))

    return run


def _compare(run: Any, processor: TextProcessor, items: Sequence[Any]) -> None:
    """Refuse a graph that gives other tokens than the processor, or none where that gives some."""
    expected: list[int] | None
    for item in items:
        parts = [" ".join(item)] if isinstance(item, list) else [item] if isinstance(item, str) else list(item)
        try:
            made = processor.encode([item])[0]
            expected, types = (made.ids, made.types)
        except InputError:
            made, expected, types = None, None, []
        try:
            given = run(parts)
        except Exception as error:  # of onnxruntime's own
            raise InputError(f"tokenizer.onnx fails on {_shown(parts)} ({cut(error, 120)}); {REMEDY}") from error
        readable = bool((given["counts"] > 0).all())
        ids = given["input_ids"][0].tolist() if readable else None
        if ids != expected:
            raise InputError(_difference(parts, expected, ids))
        if readable and "token_type_ids" in given and given["token_type_ids"][0].tolist() != types:
            raise InputError(f"tokenizer.onnx gives other token types than the tokenizer for {_shown(parts)}; {REMEDY}")
        if isinstance(made, EncodedWords) and _places(given, item) != (made.words, made.offsets):
            raise InputError(f"tokenizer.onnx gives other words than the tokenizer for {_shown(parts)}; {REMEDY}")


def _places(given: dict[str, np.ndarray], item: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """The words and offsets of a graph's tokens; those of a list belong to the word of it that they lie in."""
    words, offsets = given["words"][0], given["offsets"][0]
    if isinstance(item, list):
        starts = [0, *accumulate(len(word) + 1 for word in item)]
        owners = np.searchsorted(starts, offsets[:, 0], side="right") - 1
        words = np.where(words == NO_WORD, NO_WORD, owners)
    return words.tolist(), list(map(tuple, offsets.tolist()))


def _difference(parts: Sequence[str], expected: list[int] | None, ids: list[int] | None) -> str:
    if expected is None or ids is None:
        found = "no token" if ids is None else "tokens"
        other = "none" if expected is None else "some"
        return f"tokenizer.onnx gives {found} for {_shown(parts)} where the tokenizer gives {other}; {REMEDY}"
    unequal = (place for place, pair in enumerate(zip(ids, expected, strict=False)) if pair[0] != pair[1])
    place = next(unequal, min(len(ids), len(expected)))
    mine, theirs = (list(islice(each, place, place + 3)) for each in (ids, expected))
    return (
        f"tokenizer.onnx would give other ids than the tokenizer for {_shown(parts)}: {mine} from token {place} on, "
        f"expected {theirs}; {REMEDY}"
    )


def _shown(parts: Sequence[str]) -> str:
    """A text as it can be typed: characters beyond ASCII as escapes."""
    return " with ".join(cut(ascii(part)[1:-1], 80) for part in parts)
