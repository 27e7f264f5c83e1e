"""Model inputs for checks and measurements: real, synthetic, and fixed raw inputs that bundles contain."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, check_seed
from .batching import Batch, CachedBatches, Prepared
from .data_options import DataOptions
from .examples import read_examples
from .processor import Processor
from .raw_inputs import Sound
from .specs import InputSpec
from .tensors import TensorProcessor

LONG = "a " * 700 + "last"  # more tokens than the 512 that most models read
BATCH_SIZES = (1, 2, 5, 16)  # for real inputs, in turn, to exercise every dynamic axis


def model_inputs(
    processor: Processor | None,
    spec: InputSpec,
    data: Any = None,
    *,
    examples: int | None = 256,
    seed: int = 0,
    columns: DataOptions = DataOptions(),
    sizes: Sequence[int] = BATCH_SIZES,
) -> tuple[Sequence[Batch], str]:
    """Batches of ready tensors, and their description."""
    check_seed(seed)
    if data is None:
        if examples is None:
            raise InputError("synthetic inputs have no end; expected a number of examples, 1 or more, or data")
        return synthetic_batches(spec, examples, seed), f"{examples} synthetic inputs, seed {seed}"
    sample = read_examples(data, None, limit=examples, seed=seed, columns=columns)
    if sample.ready:
        processor = TensorProcessor(spec)
    if processor is None:
        raise InputError(f"the bundle has no processor, so it cannot read {sample.source}; give ready tensors")
    ready = Prepared(sample.inputs, processor, spec)
    order = np.random.default_rng(seed).permutation(len(sample))  # files are often sorted by class
    ends = np.cumsum([size for size, _ in zip(cycle(sizes), order, strict=False)])
    batches = CachedBatches(ready.batch(places)[1] for places in np.split(order, ends) if len(places))
    return batches, f"{len(sample)} inputs of {Path(sample.source).name}, seed {seed}"


def full_batch(spec: InputSpec, batch: int, sequence: int, seed: int) -> Batch:
    """A seeded synthetic batch without padding: random token ids [B, T], or normal pixels or samples."""
    return _random_batch(spec, batch, np.random.default_rng(seed), sequence)


def synthetic_batches(spec: InputSpec, examples: int, seed: int) -> list[Batch]:
    """Batches of growing size (1, 2, 3, …) so that every dynamic axis is exercised; the last text has full length."""
    rng = np.random.default_rng(seed)
    text = spec.modality == "text"
    batches, left, size = [], examples - text, 1
    while left > 0:
        batches.append(_random_batch(spec, min(size, left), rng))
        left, size = left - size, min(size + 1, 16)
    if text:
        batches.append(_random_batch(spec, 1, rng, min(spec.max_sequence, 512)))
    return batches


def _random_batch(spec: InputSpec, count: int, rng: np.random.Generator, length: int | None = None) -> Batch:
    """A synthetic batch; ``length`` in tokens or samples per input."""
    if spec.modality == "text":
        return _random_texts(spec, count, rng, length)
    if not spec.fixed_shape:
        return _random_sounds(spec, count, rng, length)
    return {spec.input_names[0]: rng.standard_normal((count, *spec.fixed_shape), np.float32)}


def _random_sounds(spec: InputSpec, count: int, rng: np.random.Generator, samples: int | None) -> Batch:
    """Sounds of up to 12 times the minimum length; of equal length if the model has no mask or ``samples`` is set."""
    lengths = rng.integers(spec.shortest, 12 * spec.shortest + 1, size=count)
    if samples or "attention_mask" not in spec.input_names:
        lengths[:] = samples or lengths[0]
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    arrays = {"input_values": rng.standard_normal(mask.shape, np.float32) * mask.astype(np.float32)}
    return {**arrays, "attention_mask": mask} if "attention_mask" in spec.input_names else arrays


def _random_texts(spec: InputSpec, count: int, rng: np.random.Generator, tokens: int | None) -> Batch:
    """Texts of up to 64 tokens, or of exactly ``tokens``."""
    longest = min(spec.max_sequence, 64)
    lengths = np.full(count, tokens) if tokens else rng.integers(min(3, longest), longest + 1, size=count)
    mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
    ids, padding = rng.integers(0, spec.vocabulary, size=mask.shape), spec.padding_token
    ids = np.where(ids == padding, (padding + 1) % spec.vocabulary, ids)  # padding only where masked
    arrays = {"input_ids": np.where(mask == 1, ids, padding), "attention_mask": mask}
    if "token_type_ids" in spec.input_names:
        arrays["token_type_ids"] = np.zeros_like(mask)
    return arrays


def check_inputs(spec: InputSpec, rate: int = 16_000) -> list[Any]:
    """Fixed raw inputs for a model: about 16 texts, 8 images or 5 sounds."""
    if spec.modality == "image":
        return _images()
    return _sounds(rate) if spec.modality == "audio" else _texts(spec.every_token)


def _texts(words: bool) -> list[Any]:
    texts: list[Any] = [
        "hello world", "What is the weather like today?", "TRANSFER 250.75 EUR, please!",
        "  two  spaces,\ta tab\nand a line break ", "café naïve façade coöperate", "Straße nach Größenwahn",
        "Привет, мир", "你好，世界", "こんにちは世界", "안녕하세요 세계", "مرحبا بالعالم", "नमस्ते दुनिया",
        "🙂 thanks 👍🏽", "https://example.com/a?b=c#d user@example.com", LONG, "",
    ]  # fmt: skip
    if words:
        return [*texts, ["John", "Smith", "lives", "in", "New", "York", "."], ["don't", "café", "世界"]]
    return [*texts, ("how are you", "fine thanks"), ("What is the weather?", LONG)]


def _images() -> list[Any]:
    from PIL import Image

    rng = np.random.default_rng(0)
    images = []
    for size in ((32, 32), (48, 20), (20, 48), (64, 64), (97, 61), (120, 16)):
        small = rng.integers(0, 256, (4, 4, 3), np.uint8)
        images.append(Image.fromarray(small).resize(size, Image.Resampling.BILINEAR))
    return [*images, images[0].convert("L"), images[1].convert("RGBA")]


def _sounds(rate: int) -> list[Sound]:
    """Chirps of 0.1 to 0.5 seconds, as 16-bit samples."""
    sounds = []
    for tenths in (1, 2, 3, 4, 5):
        time = np.arange(rate * tenths // 10) / rate
        wave = np.sin(2 * np.pi * (200 + 400 * tenths * time) * time) * 0.5
        sounds.append(Sound((wave * 2**15).astype("<i2").astype(np.float32) / 2**15, rate))
    return sounds


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
    """Rebuild an input from :func:`to_json`; images are returned as the bytes of a file."""
    if "pair" in data:
        return tuple(data["pair"])
    if "sound" in data:
        return Sound(np.frombuffer(base64.b64decode(data["sound"]), "<i2").astype(np.float32) / 2**15, data["rate"])
    if "image" in data:
        return base64.b64decode(data["image"])
    return data["words"] if "words" in data else data["text"]
