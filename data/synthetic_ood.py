"""Out-of-distribution inputs synthesised from the data, to choose by, never to report on (Hendrycks et al. 2019).

In turn: words or patches shuffled, halves of two inputs joined, and another script or a strong corruption.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from .corruptions import CORRUPTIONS, corrupt, opened
from .examples import Examples
from .raw_inputs import is_pair, is_words
from .specs import Modality

LATIN = "abcdefghijklmnopqrstuvwxyz"
SCRIPTS = ("абцдефгхижклмнопярстувшъыз", "αβκδεφγηιξκλμνοπθρστυωχψζζ", "ابجدهوزحطيكلمنسعفصقرشتثخذض")
"""Letters that stand for the Latin ones: Cyrillic, Greek, Arabic. Latin ones stand for those of every other script."""


def synthetic_ood(known: Examples, modality: Modality, seed: int = 0) -> Examples:
    """A made input of every example, but for those that no way of making changes."""
    if known.ready:
        raise InputError(f"data {known.source} holds ready tensors; expected texts or images, or OOD data of your own")
    if len(known) < 2:
        raise InputError(f"data {known.source} has {len(known)} example to make OOD inputs of; expected 2 or more")
    make = _image if modality == "image" else _pair if is_pair(known.inputs[0]) else _text
    words = modality == "text" and is_words(known.inputs[0])
    inputs = [" ".join(item) for item in known.inputs] if words else known.inputs
    rng = np.random.default_rng([seed, len(known)])
    made: list[Any] = [make(inputs, index, rng) for index in range(len(known))]
    if modality != "image":
        made = [each for each, source in zip(made, inputs, strict=True) if each != source]
        if 2 * len(made) < len(known):
            same = f"{len(known) - len(made)} of {len(known)} texts of {known.source} come out as they are"
            raise InputError(f"{same} where OOD inputs are made of them; give out-of-distribution data of your own")
    made = [text.split() for text in made] if words else made
    return Examples(made, None, f"inputs made of {known.name}")


def _pair(inputs: Sequence[Any], index: int, rng: np.random.Generator) -> tuple[str, ...]:
    return tuple(_text(side, index, rng) for side in zip(*inputs, strict=True))


def _text(texts: Sequence[str], index: int, rng: np.random.Generator) -> str:
    """One made text: of a text without a second word, or that comes out as it is, the script changes."""
    text = texts[index]
    words, space = _words(text)
    made = text
    if len(words) > 1 and index % 3 == 0:
        made = space.join(words[place] for place in rng.permutation(len(words)))
        made = space.join([words[-1], *words[:-1]]) if made == space.join(words) else made
    elif len(words) > 1 and index % 3 == 1:
        other, _ = _words(texts[_another(index, len(texts), rng)])
        made = space.join([*words[: len(words) // 2], *other[len(other) // 2 :]])
    return _in_another_script(text, SCRIPTS[int(rng.integers(len(SCRIPTS)))]) if made == text else made


def _words(text: str) -> tuple[list[str], str]:
    """What a text is taken apart into, and what stands between: characters of a lone word that is not Latin."""
    words = text.split()
    return (list(words[0]), "") if len(words) == 1 and any(map(_is_foreign, text)) else (words, " ")


def _in_another_script(text: str, letters: str) -> str:
    """The Latin letters as those, and letters of any other script as Latin ones."""
    stands = dict(zip(LATIN, letters, strict=True))
    return "".join(stands.get(each, LATIN[ord(each) % 26] if _is_foreign(each) else each) for each in text.lower())


def _is_foreign(character: str) -> bool:
    return character.isalpha() and not unicodedata.name(character, "").startswith("LATIN")


def _another(index: int, count: int, rng: np.random.Generator) -> int:
    return (index + int(rng.integers(1, count))) % count


def _image(images: Sequence[Any], index: int, rng: np.random.Generator) -> np.ndarray:
    """One made image, [H, W, 3] uint8."""
    pixels = np.asarray(opened(images[index]))
    if index % 3 == 0:
        return _patches(pixels, rng)
    if index % 3 == 1:
        other = opened(images[_another(index, len(images), rng)]).resize(pixels.shape[1::-1])
        half = pixels.shape[1] // 2
        return np.concatenate([pixels[:, :half], np.asarray(other)[:, half:]], axis=1)
    kinds = list(CORRUPTIONS)
    return corrupt([images[index]], kinds[int(rng.integers(len(kinds)))], 5, int(rng.integers(2**31)))[0]


def _patches(pixels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The image cut into a grid and put together in another order; what the grid does not cover is cut off."""
    grid = min(4, *pixels.shape[:2])
    height, width = pixels.shape[0] // grid, pixels.shape[1] // grid
    rows = [pixels[row * height : (row + 1) * height] for row in range(grid)]
    patches = [row[:, column * width : (column + 1) * width] for row in rows for column in range(grid)]
    order = rng.permutation(len(patches))
    return np.concatenate(
        [np.concatenate([patches[place] for place in order[row * grid :][:grid]], axis=1) for row in range(grid)]
    )
