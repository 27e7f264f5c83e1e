"""Fixed raw inputs on which a checkpoint is compared with the bundle made from it, and their form in JSON.

They travel in bundles, so they are hydrant's own and never a user's data.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from typing import Any

import numpy as np

from .records import Sound
from .spec import InputSpec

WORDS = 700
"""Words of the long text: beyond the 512 tokens that most models read."""

SIZES = ((32, 32), (48, 20), (20, 48), (64, 64), (97, 61), (120, 16))
"""Width and height of the small pictures."""


def check_inputs(spec: InputSpec, rate: int = 16_000) -> list[Any]:
    """Raw inputs of the kind that a model reads: about 16 texts, 8 images or 5 sounds."""
    if spec.modality == "image":
        return _images()
    return _sounds(rate) if spec.modality == "audio" else _texts(spec.every_token)


def _texts(words: bool) -> list[Any]:
    texts: list[Any] = [
        "hello world",
        "What is the weather like today?",
        "TRANSFER 250.75 EUR, please!",
        "  two  spaces,\ta tab\nand a line break ",
        "café naïve façade coöperate",
        "Straße nach Größenwahn",
        "Привет, мир",
        "你好，世界",
        "こんにちは世界",
        "안녕하세요 세계",
        "مرحبا بالعالم",
        "नमस्ते दुनिया",
        "🙂 thanks 👍🏽",
        "https://example.com/a?b=c#d user@example.com",
        "a " * WORDS + "last",
        "",
    ]
    if words:
        return [*texts, ["John", "Smith", "lives", "in", "New", "York", "."], ["don't", "café", "世界"]]
    return [*texts, ("how are you", "fine thanks"), ("What is the weather?", "a " * WORDS + "last")]


def _images() -> list[Any]:
    from PIL import Image

    rng = np.random.default_rng(0)
    found = []
    for width, height in SIZES:
        small = rng.integers(0, 256, (4, 4, 3), np.uint8)
        found.append(Image.fromarray(small).resize((width, height), Image.Resampling.BILINEAR))
    return [*found, found[0].convert("L"), found[1].convert("RGBA")]


def _sounds(rate: int) -> list[Sound]:
    """Chirps of 0.1 to 0.5 seconds, as 16-bit samples."""
    found = []
    for tenths in (1, 2, 3, 4, 5):
        time = np.arange(rate * tenths // 10) / rate
        wave = np.sin(2 * np.pi * (200 + 400 * tenths * time) * time) * 0.5
        found.append(Sound(_floats((wave * 2**15).astype("<i2")), rate))
    return found


def _floats(samples: np.ndarray) -> np.ndarray:
    return samples.astype(np.float32) / 2**15


def to_json(item: Any) -> dict[str, Any]:
    """One input of :func:`check_inputs` as a JSON object: images as PNG, sounds as 16-bit samples, in base64."""
    if isinstance(item, str):
        return {"text": item}
    if isinstance(item, tuple):
        return {"pair": list(item)}
    if isinstance(item, list):
        return {"words": item}
    if isinstance(item, Sound):
        samples = np.round(item.samples * 2**15).astype("<i2").tobytes()
        return {"sound": base64.b64encode(samples).decode(), "rate": item.rate}
    content = io.BytesIO()
    item.save(content, "PNG")
    return {"image": base64.b64encode(content.getvalue()).decode()}


def from_json(data: Mapping[str, Any]) -> Any:
    """The input that :func:`to_json` describes; images come as the bytes of a file."""
    if "pair" in data:
        first, second = data["pair"]
        return (first, second)
    if "sound" in data:
        return Sound(_floats(np.frombuffer(base64.b64decode(data["sound"]), "<i2")), data["rate"])
    if "image" in data:
        return base64.b64decode(data["image"])
    return data["words"] if "words" in data else data["text"]
