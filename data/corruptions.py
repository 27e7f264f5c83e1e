"""Corrupted images and texts (ImageNet-C, Hendrycks & Dietterich 2019), and OOD inputs synthesised from the data.

Synthetic OOD inputs serve to choose scores and never to report them (Hendrycks et al. 2019).
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InputError
from .examples import Examples
from .images import upright
from .raw_inputs import is_pair, is_words
from .specs import Modality

NOISE = (0.04, 0.08, 0.12, 0.18, 0.26)  # standard deviation, of the full range
BLUR = (1.0, 2.0, 3.0, 4.0, 6.0)  # radius, in pixels of an image whose shorter edge is 224
LEAST_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # minimum radius in pixels: less has no effect on small images
CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # factor of the distance from the image's mean colour
BRIGHTNESS = (0.1, 0.2, 0.3, 0.4, 0.5)  # added to every value, of the full range
JPEG = (50, 25, 18, 12, 7)  # quality
PIXELATE = (0.8, 0.65, 0.5, 0.4, 0.3)  # factor of the edges of the coarser image


def corrupt(images: Sequence[Any], kind: str, severity: int, seed: int = 0, first: int = 0) -> list[np.ndarray]:
    """Corrupted copies of images, [H, W, 3] uint8 each."""
    generators = (np.random.default_rng([seed, severity, first + index]) for index in range(len(images)))
    pictures = map(opened, images, range(first, first + len(images)))
    return [CORRUPTIONS[kind](each, severity - 1, rng) for each, rng in zip(pictures, generators, strict=True)]


def opened(image: Any, index: int = 0) -> Any:
    """An image as a PIL image in RGB; ``index`` is for messages."""
    from PIL import Image

    return (Image.fromarray(image) if isinstance(image, np.ndarray) else upright(image, index)).convert("RGB")


def _noise(image: Any, level: int, rng: np.random.Generator) -> np.ndarray:
    values = _unit(image)
    return _bytes(values + rng.normal(0, NOISE[level], values.shape))


def _blur(image: Any, level: int, _: np.random.Generator) -> np.ndarray:
    from PIL import ImageFilter

    radius = max(BLUR[level] * min(image.size) / 224, LEAST_BLUR[level])
    return np.asarray(image.filter(ImageFilter.GaussianBlur(radius)))


def _contrast(image: Any, level: int, _: np.random.Generator) -> np.ndarray:
    values = _unit(image)
    mean = values.mean(axis=(0, 1))
    return _bytes((values - mean) * CONTRAST[level] + mean)


def _jpeg(image: Any, level: int, _: np.random.Generator) -> np.ndarray:
    from PIL import Image

    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG[level])
    with Image.open(buffer) as decoded:
        return np.asarray(decoded.convert("RGB"))


def _pixelate(image: Any, level: int, _: np.random.Generator) -> np.ndarray:
    from PIL import Image

    width, height = (max(1, round(edge * PIXELATE[level])) for edge in image.size)
    return np.asarray(image.resize((width, height), Image.Resampling.BOX).resize(image.size, Image.Resampling.NEAREST))


CORRUPTIONS: dict[str, Callable[[Any, int, np.random.Generator], np.ndarray]] = {
    "gaussian noise": _noise, "blur": _blur, "contrast": _contrast,
    "brightness": lambda image, level, _: _bytes(_unit(image) + BRIGHTNESS[level]), "jpeg": _jpeg,
    "pixelate": _pixelate,
}  # fmt: skip


def _unit(image: Any) -> np.ndarray:
    return np.asarray(image, np.float64) / 255


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


SEVERITIES = (1, 2, 3, 4, 5)
SHARE = 0.1  # severity s changes each word with probability s · SHARE
KINDS = ("swap", "drop", "insert", "keyboard")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def typos(texts: Sequence[Any], severity: int, seed: int = 0) -> list[Any]:
    """Texts with one typing error in some words."""
    rng = np.random.default_rng([seed, severity])

    def mistyped(text: str) -> str:
        share, words = severity * SHARE, text.split(" ")
        return " ".join(_typo(word, str(rng.choice(KINDS)), rng) if rng.random() < share else word for word in words)

    def changed(text: Any) -> Any:
        if isinstance(text, str):
            return mistyped(text)
        return tuple(map(mistyped, text)) if isinstance(text, tuple) else [mistyped(word) for word in text]

    return [changed(text) for text in texts]


def _typo(word: str, kind: str, rng: np.random.Generator) -> str:
    """The word with one error; single letters stay."""
    if len(word) < 2:
        return word
    at = int(rng.integers(0, len(word) - (kind == "swap")))
    if kind == "swap":
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if kind == "drop":
        return word[:at] + word[at + 1 :]
    return word[: at + (kind == "insert")] + _neighbour(word[at], rng) + word[at + 1 :]


def _neighbour(letter: str, rng: np.random.Generator) -> str:
    """A neighbouring key of a letter; other characters are unchanged."""
    for row in _ROWS:
        place = row.find(letter.lower())
        if place >= 0:
            beside = row[max(place - 1, 0) : place] + row[place + 1 : place + 2]
            key = str(rng.choice(list(beside)))
            return key.upper() if letter.isupper() else key
    return letter


LATIN = "abcdefghijklmnopqrstuvwxyz"  # and its replacements: Cyrillic, Greek, Arabic
SCRIPTS = ("абцдефгхижклмнопярстувшъыз", "αβκδεφγηιξκλμνοπθρστυωχψζζ", "ابجدهوزحطيكلمنسعفصقرشتثخذض")


def synthetic_ood(examples: Examples, modality: Modality, seed: int = 0) -> Examples:
    """One synthetic OOD input per example, without those that come out unchanged."""
    if examples.ready:
        wrong = f"data {examples.source} holds ready tensors"
        raise InputError(f"{wrong}; expected texts or images, or OOD data of your own")
    if len(examples) < 2:
        raise InputError(f"data {examples.source} has {len(examples)} example; synthetic OOD inputs need 2 or more")
    make = _image if modality == "image" else _pair if is_pair(examples.inputs[0]) else _text
    words = modality == "text" and is_words(examples.inputs[0])
    inputs = [" ".join(item) for item in examples.inputs] if words else examples.inputs
    rng = np.random.default_rng([seed, len(examples)])
    changed: list[Any] = [make(inputs, index, rng) for index in range(len(examples))]
    if modality != "image":
        changed = [each for each, source in zip(changed, inputs, strict=True) if each != source]
        if 2 * len(changed) < len(examples):
            same = f"{len(examples) - len(changed)} of {len(examples)} texts of {examples.source} stay unchanged"
            raise InputError(f"{same} by OOD synthesis; give OOD data of your own")
    changed = [text.split() for text in changed] if words else changed
    return Examples(changed, None, f"inputs made of {examples.name}")


def _pair(inputs: Sequence[Any], index: int, rng: np.random.Generator) -> tuple[str, ...]:
    return tuple(_text(side, index, rng) for side in zip(*inputs, strict=True))


def _text(texts: Sequence[str], index: int, rng: np.random.Generator) -> str:
    """One synthetic text; single words, and texts that come out unchanged, change script."""
    text = texts[index]
    words, space = _words(text)
    changed = text
    if len(words) > 1 and index % 3 == 0:
        changed = space.join(words[place] for place in rng.permutation(len(words)))
        changed = space.join([words[-1], *words[:-1]]) if changed == space.join(words) else changed
    elif len(words) > 1 and index % 3 == 1:
        other, _ = _words(texts[_another(index, len(texts), rng)])
        changed = space.join([*words[: len(words) // 2], *other[len(other) // 2 :]])
    return _in_another_script(text, SCRIPTS[int(rng.integers(len(SCRIPTS)))]) if changed == text else changed


def _words(text: str) -> tuple[list[str], str]:
    """Words of a text and their separator; the characters of a single word that is not Latin."""
    words = text.split()
    return (list(words[0]), "") if len(words) == 1 and any(map(_is_foreign, text)) else (words, " ")


def _in_another_script(text: str, letters: str) -> str:
    """Replace Latin letters by ``letters``, and letters of other scripts by Latin ones."""
    alphabet = dict(zip(LATIN, letters, strict=True))
    return "".join(alphabet.get(each, LATIN[ord(each) % 26] if _is_foreign(each) else each) for each in text.lower())


def _is_foreign(character: str) -> bool:
    return character.isalpha() and not unicodedata.name(character, "").startswith("LATIN")


def _another(index: int, count: int, rng: np.random.Generator) -> int:
    return (index + int(rng.integers(1, count))) % count


def _image(images: Sequence[Any], index: int, rng: np.random.Generator) -> np.ndarray:
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
    grid = min(4, *pixels.shape[:2])
    height, width = pixels.shape[0] // grid, pixels.shape[1] // grid
    rows = [pixels[row * height : (row + 1) * height] for row in range(grid)]
    patches = [row[:, column * width : (column + 1) * width] for row in rows for column in range(grid)]
    order = rng.permutation(len(patches))
    tiles = [[patches[place] for place in order[row * grid :][:grid]] for row in range(grid)]
    return np.concatenate([np.concatenate(row, axis=1) for row in tiles])
