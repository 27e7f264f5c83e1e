"""Corrupted images, at five severities, after ImageNet-C and CIFAR-C (Hendrycks & Dietterich 2019)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .images import upright

NOISE = (0.04, 0.08, 0.12, 0.18, 0.26)  # standard deviation, of the full range
BLUR = (1.0, 2.0, 3.0, 4.0, 6.0)  # radius, in pixels of an image whose shorter edge is 224
LEAST_BLUR = (0.4, 0.6, 0.7, 0.8, 1.0)  # radius in pixels below which a blur of a small image would do nothing
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


def _brightness(image: Any, level: int, _: np.random.Generator) -> np.ndarray:
    return _bytes(_unit(image) + BRIGHTNESS[level])


def _jpeg(image: Any, level: int, _: np.random.Generator) -> np.ndarray:
    from PIL import Image

    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG[level])
    with Image.open(buffer) as found:
        return np.asarray(found.convert("RGB"))


def _pixelate(image: Any, level: int, _: np.random.Generator) -> np.ndarray:
    from PIL import Image

    width, height = (max(1, round(edge * PIXELATE[level])) for edge in image.size)
    coarse = image.resize((width, height), Image.Resampling.BOX)
    return np.asarray(coarse.resize(image.size, Image.Resampling.NEAREST))


CORRUPTIONS: dict[str, Callable[[Any, int, np.random.Generator], np.ndarray]] = {
    "gaussian noise": _noise,
    "blur": _blur,
    "contrast": _contrast,
    "brightness": _brightness,
    "jpeg": _jpeg,
    "pixelate": _pixelate,
}


def _unit(image: Any) -> np.ndarray:
    return np.asarray(image, np.float64) / 255


def _bytes(values: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)


SEVERITIES = (1, 2, 3, 4, 5)
SHARE = 0.1  # severity s changes each word with probability s · SHARE
KINDS = ("swap", "drop", "insert", "keyboard")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def typos(texts: Sequence[Any], severity: int, seed: int = 0, kinds: Sequence[str] = KINDS) -> list[Any]:
    """Texts in which some words got one typing error each."""
    rng = np.random.default_rng([seed, severity])

    def mistyped(text: str) -> str:
        share, words = severity * SHARE, text.split(" ")
        return " ".join(_typo(word, str(rng.choice(kinds)), rng) if rng.random() < share else word for word in words)

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
    key = _neighbour(word[at], rng)
    return word[: at + (kind == "insert")] + key + word[at + 1 :]


def _neighbour(letter: str, rng: np.random.Generator) -> str:
    """A key beside that of a letter; whatever is no letter stays."""
    for row in _ROWS:
        place = row.find(letter.lower())
        if place >= 0:
            beside = row[max(place - 1, 0) : place] + row[place + 1 : place + 2]
            key = str(rng.choice(list(beside)))
            return key.upper() if letter.isupper() else key
    return letter
