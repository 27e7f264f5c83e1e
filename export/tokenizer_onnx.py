"""``tokenizer.onnx``: the bundle's tokenizer as a graph, for runtimes without Python, and whether it does the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import onnx

from ..bundle.graphs import tokenizer_source
from ..bundle.store import Bundle
from ..data.text import NO_WORD, EncodedWords, TextProcessor, WordProcessor
from ..errors import InputError, cut, require
from .tokenizer_graph import tokenizer_graph, word_graph
from .tokenizer_test_texts import fuzzed_texts

TEXTS = 2000
"""On which the graph is compared with the tokenizer; half as many pairs of them beside, or as many lists of words."""

REMEDY = "nothing is written; give the C++ runner token ids, or predict with Python"

Outputs = dict[str, np.ndarray]


@dataclass(frozen=True)
class TokenizerExport:
    """A tokenizer as a graph, and numbers of texts, pairs, and lists of words on which it gave the same."""

    kind: str  # WordPiece, BPE or Unigram
    texts: int
    pairs: int
    bytes: int
    lists: int = 0


def made_tokenizer(bundle: Bundle, seed: int, count: int = TEXTS) -> tuple[bytes, TokenizerExport]:
    """The bytes of ``tokenizer.onnx``, compared with the bundle's own tokenizer on fuzzed texts."""
    processor = bundle.processor()
    folder = bundle.processor_folder()
    if folder is None or not isinstance(processor, TextProcessor):
        raise InputError(f"bundle {bundle.path} has no tokenizer of texts; leave --tokenizer out")
    require("onnxruntime", "tokenizer", "compare the tokenizer's graph")
    require("onnxruntime_extensions", "tokenizer", "run the tokenizer's graph")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    steps = json.loads(tokenizer.to_str())
    kind, tags = steps["model"]["type"], isinstance(processor, WordProcessor)
    if tags and kind != "WordPiece":
        told = f"bundle {bundle.path} tags tokens, and the operators tell words by WordPiece alone, not by {cut(kind)}"
        raise InputError(f"{told}; {REMEDY}")
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
    texts = [*fuzzed_texts(count, seed, special[:16]), *more]
    texts = [text for text in texts if not any(token in text for token in unread)]
    pairs = [] if tags else list(zip(texts[::2], texts[1::2], strict=False))
    lists = [[word for word in text.split(" ") if word.strip()] for text in (*texts[::2], *more)] if tags else []
    run = _session(content)
    for item in (*texts, *pairs, *lists):
        _compare(run, processor, item)
    return content, TokenizerExport(kind, len(texts), len(pairs), len(content), len(lists))


def _session(content: bytes) -> Callable[[Sequence[str]], Outputs]:
    """A function of one text, or two, that gives the outputs of the graph by name."""
    import onnxruntime
    import onnxruntime_extensions

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of onnxruntime's own, which share no public base class
        told = f"onnxruntime-extensions does not take this tokenizer ({cut(error, 200)})"
        raise InputError(f"{told}; {REMEDY}") from error
    names = [output.name for output in session.get_outputs()]
    return lambda texts: dict(zip(names, session.run(None, {"text": np.array(texts, object)}), strict=True))


def _compare(run: Callable[[Sequence[str]], Outputs], processor: TextProcessor, item: Any) -> None:
    """Refuse a graph that gives other tokens than the processor, or none where that gives some."""
    parts = [" ".join(item)] if isinstance(item, list) else [item] if isinstance(item, str) else list(item)
    shown = " with ".join(cut(ascii(part)[1:-1], 80) for part in parts)  # as it can be typed
    try:
        encoded = processor.encode([item])[0]
    except InputError:
        encoded = None
    try:
        outputs = run(parts)
    except Exception as error:  # of onnxruntime's own
        raise InputError(f"tokenizer.onnx fails on {shown} ({cut(error, 120)}); {REMEDY}") from error
    if bool((outputs["counts"] > 0).all()) is (encoded is None):
        given, other = ("tokens", "none") if encoded is None else ("no token", "some")
        raise InputError(f"tokenizer.onnx gives {given} for {shown} where the tokenizer gives {other}; {REMEDY}")
    if encoded is None:
        return
    expected: dict[str, Any] = {"input_ids": encoded.ids, "token_type_ids": encoded.types}
    if isinstance(encoded, EncodedWords):
        expected |= {"words": encoded.words, "offsets": encoded.offsets}
    if isinstance(item, list):  # tokens of a list belong to the word of it that they lie in
        starts = [0, *accumulate(len(word) + 1 for word in item)]
        owners = np.searchsorted(starts, outputs["offsets"][..., 0], side="right") - 1
        outputs["words"] = np.where(outputs["words"] == NO_WORD, NO_WORD, owners)
    for name, values in expected.items():
        if name in outputs and not np.array_equal(outputs[name][0], values):
            what = name.removeprefix("input_").replace("token_type_ids", "types")
            raise InputError(f"tokenizer.onnx would give other {what} than the tokenizer for {shown}; {REMEDY}")
