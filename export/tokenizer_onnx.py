"""``tokenizer.onnx``: the bundle's tokenizer as a graph for runtimes without Python, compared with the original."""

from __future__ import annotations

import json
import random
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
from .tokenizer_graph import tokenizer_graph

TEXTS = 2000  # texts compared, and half as many pairs or lists of words
LENGTHS = (99, 100, 101, 199, 200, 201, 600)  # lengths of words; some tokenizers reject long ones
REMEDY = "nothing was written; pass token ids to the C++ runner, or predict with Python"

Outputs = dict[str, np.ndarray]

KNOWN = (
    "hello world", "Transfer 100 € to Zoë, please!", "don't stop; it's (really) fine...", "e-mail: a.b@example.com",
    "\xc0\xc9\xce\xd5\xdc \xe0\xe9\xee\xf5\xfc \u0178 \xff \ufb01 \ufb02 \u0132 \u0149 \u01c6 \u1e9e \xdf",
    "İstanbul ıstanbul I i", "ΣΊΣΥΦΟΣ σίσυφος ς", "na\xefve caf\xe9 cafe\u0301 e\u0302\u0301",
    "日本語のテキスト 中文字符 한국어 문장", "안녕하세요 세계",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e01\u0e47\u0e14\u0e35",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd", "مرحبا بالعالم", "Привет, мир! ЁЖ ёж",
    "\U0001f600 ok \U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f1e9\U0001f1ea \u263a\ufe0f \U0001f44d\U0001f3fd", "a\u200bb a\xadb a\u2060b \ufeffbom",
    "tab\tnew\nline\r\nend\x0b\x0c\x1c\x85\u2028\u2029", "a\xa0b\u2003c\u3000d\u202fe", "\x01\x02\x7f control \x80\x9f",
    "\u201cquoted\u201d \u2014 \u2018text\u2019 \u2026 \u203d \xbfqu\xe9? \xa1s\xed!",
    "x\xb2 \xbd \u2177 \u2460  \u33d2 \xc5 K", "\U0001d400\U0001d401\U0001d402 \U00020000\U00020001 \U00010348",
    "\ufffd \ufffd \U000e0001 \ue000 \U000f0000 \U000f0003 \U0010fffd", "$100 1,000.50 3.14e-10 #tag @user",
    "##ing ##a # ## [unk]", "   leading and   inner  spaces   ", "\n\n\n a \n\n", "a", "A", "?", "日", "中a文b",
    "a.b.c", "...", "'s 're 'LL",
)  # fmt: skip


@dataclass(frozen=True)
class TokenizerExport:
    """Report of a tokenizer graph: its kind, and the numbers of texts, pairs and lists of words compared."""

    kind: str  # WordPiece, BPE or Unigram
    texts: int
    pairs: int
    bytes: int
    lists: int = 0


def made_tokenizer(bundle: Bundle, seed: int, count: int = TEXTS) -> tuple[bytes, TokenizerExport]:
    """Bytes of ``tokenizer.onnx``, compared with the bundle's tokenizer on fuzzed texts."""
    processor = bundle.processor()
    folder = bundle.processor_folder()
    if folder is None or not isinstance(processor, TextProcessor):
        raise InputError(f"bundle {bundle.path} has no text tokenizer; omit --tokenizer")
    require("onnxruntime", "tokenizer", "compare the tokenizer's graph")
    require("onnxruntime_extensions", "tokenizer", "run the tokenizer's graph")
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    steps = json.loads(tokenizer.to_str())
    kind, tags = steps["model"]["type"], isinstance(processor, WordProcessor)
    if tags and kind != "WordPiece":
        problem = f"bundle {bundle.path} classifies tokens; this needs a WordPiece tokenizer, not {cut(kind)}"
        raise InputError(f"{problem}; {REMEDY}")
    types = "token_type_ids" in bundle.any_architecture().input_names
    special = [token["content"] for token in steps.get("added_tokens", [])]
    unread = [] if kind == "WordPiece" else special
    facts = {"hydrant.tokenizer": tokenizer_source(bundle), "hydrant.unread": "\n".join(unread)}
    read = processor.max_tokens, processor.side
    model = tokenizer_graph(tokenizer, *read, types, facts, typed=processor.typed, tags=tags)
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
    """Function of one or two texts that returns the graph's outputs by name."""
    import onnxruntime
    import onnxruntime_extensions

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors share no public base class
        problem = f"onnxruntime-extensions rejects this tokenizer ({cut(error, 200)})"
        raise InputError(f"{problem}; {REMEDY}") from error
    names = [output.name for output in session.get_outputs()]
    return lambda texts: dict(zip(names, session.run(None, {"text": np.array(texts, object)}), strict=True))


def _compare(run: Callable[[Sequence[str]], Outputs], processor: TextProcessor, item: Any) -> None:
    """Raise :class:`InputError` if the graph's tokens differ from the processor's, or only one of them fails."""
    parts = [" ".join(item)] if isinstance(item, list) else [item] if isinstance(item, str) else list(item)
    shown = " with ".join(cut(ascii(part)[1:-1], 80) for part in parts)  # in typeable characters
    try:
        encoded = processor.encode([item])[0]
    except InputError:
        encoded = None
    try:
        outputs = run(parts)
    except Exception as error:  # onnxruntime's own errors
        raise InputError(f"tokenizer.onnx fails on {shown} ({cut(error, 120)}); {REMEDY}") from error
    if bool((outputs["counts"] > 0).all()) is (encoded is None):
        ours, theirs = ("tokens", "none") if encoded is None else ("no token", "some")
        raise InputError(f"tokenizer.onnx returns {ours} for {shown}, the tokenizer {theirs}; {REMEDY}")
    if encoded is None:
        return
    expected: dict[str, Any] = {"input_ids": encoded.ids, "token_type_ids": encoded.types}
    if isinstance(encoded, EncodedWords):
        expected |= {"words": encoded.words, "offsets": encoded.offsets}
    if isinstance(item, list):  # each token belongs to the word that contains it
        starts = [0, *accumulate(len(word) + 1 for word in item)]
        owners = np.searchsorted(starts, outputs["offsets"][..., 0], side="right") - 1
        outputs["words"] = np.where(outputs["words"] == NO_WORD, NO_WORD, owners)
    for name, values in expected.items():
        if name in outputs and not np.array_equal(outputs[name][0], values):
            what = name.removeprefix("input_").replace("token_type_ids", "types")
            raise InputError(f"tokenizer.onnx returns other {what} than the tokenizer for {shown}; {REMEDY}")


def fuzzed_texts(count: int, seed: int, special: Sequence[str] = ()) -> list[str]:
    """Fixed texts, then random ones; none is blank or contains NUL."""
    draw = random.Random(seed)  # noqa: S311 (texts to try, the same for everyone)
    texts = [*KNOWN, *("x" * length + " y" for length in LENGTHS), "word " * 700, "日" * 300]
    for token in special:
        texts += [token, f"a {token} b", f"a{token}b", f"{token}{token}", f" {token}.", token.lower(), token[:-1]]
    while len(texts) < count:
        text = draw.choice((_planes, _latin, _words, _marks))(draw)
        if text.strip():
            texts.append(text)
    return texts


def _planes(draw: random.Random) -> str:
    """Characters of all planes, the lower ones more often."""
    limits = (0x250, 0x3000, 0x20000, 0x110000)
    return "".join(
        _character(draw, draw.choice(limits)) + " " * (draw.random() < 0.15) for _ in range(draw.randrange(1, 60))
    )


def _latin(draw: random.Random) -> str:
    return "".join(draw.choice((_character(draw, 0x250), " ", "a", "e")) for _ in range(draw.randrange(1, 80)))


def _words(draw: random.Random) -> str:
    words = " ".join(KNOWN).split()
    return draw.choice((" ", "  ", "\t", "\n", ", ", "-")).join(draw.choices(words, k=draw.randrange(1, 40)))


def _marks(draw: random.Random) -> str:
    """Letters with combining marks, in any order."""
    return "".join(
        draw.choice("aeiouAEIOUnN가ᄀ日") + "".join(chr(draw.randrange(0x300, 0x370)) for _ in range(draw.randrange(3)))
        for _ in range(draw.randrange(1, 30))
    )


def _character(draw: random.Random, limit: int) -> str:
    point = draw.randrange(1, limit)
    return _character(draw, limit) if 0xD800 <= point < 0xE000 else chr(point)
