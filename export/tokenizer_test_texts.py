"""Texts on which two tokenizers are compared: what real ones hold, and what nobody would write."""

from __future__ import annotations

import random
from collections.abc import Sequence

KNOWN = (
    "hello world",
    "Transfer 100 \u20ac to Zo\xeb, please!",
    "don't stop; it's (really) fine...",
    "e-mail: a.b@example.com",
    "\xc0\xc9\xce\xd5\xdc \xe0\xe9\xee\xf5\xfc \u0178 \xff \ufb01 \ufb02 \u0132 \u0149 \u01c6 \u1e9e \xdf",
    "\u0130stanbul \u0131stanbul I i",
    "\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3 \u03c3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u03c2",
    "na\xefve caf\xe9 cafe\u0301 e\u0302\u0301",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u4e2d\u6587\u5b57\u7b26 \ud55c\uad6d\uc5b4 \ubb38\uc7a5",
    "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e",
    "\u0e20\u0e32\u0e29\u0e32\u0e44\u0e17\u0e22 \u0e01\u0e47\u0e14\u0e35",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u05e2\u05d5\u05dc\u05dd",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u0416 \u0451\u0436",
    "\U0001f600 ok \U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f1e9\U0001f1ea \u263a\ufe0f \U0001f44d\U0001f3fd",
    "a\u200bb a\xadb a\u2060b \ufeffbom",
    "tab\tnew\nline\r\nend\x0b\x0c\x1c\x85\u2028\u2029",
    "a\xa0b\u2003c\u3000d\u202fe",
    "\x01\x02\x7f control \x80\x9f",
    "\u201cquoted\u201d \u2014 \u2018text\u2019 \u2026 \u203d \xbfqu\xe9? \xa1s\xed!",
    "x\xb2 \xbd \u2177 \u2460  \u33d2 \xc5 K",
    "\U0001d400\U0001d401\U0001d402 \U00020000\U00020001 \U00010348",
    "\ufffd \ufffd \U000e0001 \ue000 \U000f0000 \U000f0003 \U0010fffd",
    "$100 1,000.50 3.14e-10 #tag @user",
    "##ing ##a # ## [unk]",
    "   leading and   inner  spaces   ",
    "\n\n\n a \n\n",
    "a",
    "A",
    "?",
    "\u65e5",
    "\u4e2da\u6587b",
    "a.b.c",
    "...",
    "'s 're 'LL",
)

LENGTHS = (99, 100, 101, 199, 200, 201, 600)
"""Of words; some tokenizers give up on long ones."""


def fuzzed_texts(count: int, seed: int, special: Sequence[str] = ()) -> list[str]:
    """Known texts, then random ones, none of them blank, and without NUL."""
    draw = random.Random(seed)  # noqa: S311 (texts to try, the same for everyone)
    texts = [*KNOWN, *("x" * length + " y" for length in LENGTHS), "word " * 700, "日" * 300]
    for token in special:
        texts += [token, f"a {token} b", f"a{token}b", f"{token}{token}", f" {token}.", token.lower(), token[:-1]]
    while len(texts) < count:
        made = draw.choice((_planes, _latin, _words, _marks))(draw)
        if made.strip():
            texts.append(made)
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
    """Letters with marks that combine, in any order."""
    return "".join(
        draw.choice("aeiouAEIOUnN가ᄀ日") + "".join(chr(draw.randrange(0x300, 0x370)) for _ in range(draw.randrange(3)))
        for _ in range(draw.randrange(1, 30))
    )


def _character(draw: random.Random, limit: int) -> str:
    point = draw.randrange(1, limit)
    return _character(draw, limit) if 0xD800 <= point < 0xE000 else chr(point)
