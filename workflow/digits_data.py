"""Data and model of the demo: scikit-learn's handwritten digits, OOD images, and a small ViT, all offline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import require
from ..models.checkpoint import quiet

SIZE = 8

HEAD_DROPOUT = 1 / 3

LETTERS = "AEFHKMNRTWXY"


@dataclass(frozen=True)
class DigitsData:
    """Images [N, 8, 8, 3] uint8 and labels [N] int64; ``ood`` are letters and patches of photographs."""

    train: tuple[np.ndarray, np.ndarray]
    calibration: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    ood: np.ndarray


def load_digits(seed: int) -> DigitsData:
    """Split the 1,797 digits into 997 / 400 / 400, and create 400 images of other things."""
    datasets = require("sklearn.datasets", "demo", "load the handwritten digits")
    digits = datasets.load_digits()
    images = _gray_to_rgb(np.rint(digits.images * (255 / 16)).astype(np.uint8))
    order = np.random.default_rng(seed).permutation(len(images))
    parts = np.split(order, [997, 1397])
    train, calibration, test = ((images[part], digits.target[part].astype(np.int64)) for part in parts)
    rng = np.random.default_rng([seed, 1])
    ood = np.concatenate([_letters(200, rng), _photo_patches(200, rng)])
    return DigitsData(train, calibration, test, ood)


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one torch thread: matrices this small gain nothing from a second one."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def make_checkpoint(
    folder: Any, data: DigitsData, seed: int, epochs: int, progress: Callable[..., Iterable[Any]]
) -> None:
    """Train and save a small ViT; random head dropout makes it tolerate pruning."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessorPil

    from ..models.family_registry import architecture_of, blocks_of
    from ..models.tracing.slices import gated_heads

    torch.manual_seed(seed)
    names = [str(digit) for digit in range(10)]
    config = ViTConfig(
        image_size=SIZE,
        patch_size=2,
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=128,
        initializer_range=0.1,  # the usual 0.02 learns slowly from so few images
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
    )
    model = ViTForImageClassification(config)
    images, labels = data.train
    pixels = torch.from_numpy(images.astype(np.float32).transpose(0, 3, 1, 2) / 127.5 - 1)
    targets = torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    steps = epochs * -(-len(targets) // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps, pct_start=0.1)
    model.train()
    blocks = blocks_of(model, architecture_of(model))
    for _ in progress(range(epochs), epochs, "training a small ViT"):
        for batch in torch.randperm(len(targets)).split(32):
            rows, columns = (int(shift) for shift in torch.randint(-1, 2, (2,)))
            shifted = torch.roll(pixels[batch], (rows, columns), dims=(2, 3))
            gates = [(torch.rand(len(batch), 8) >= HEAD_DROPOUT).float() for _ in range(4)]
            with gated_heads(model, blocks, gates):
                loss = torch.nn.functional.cross_entropy(model(pixel_values=shifted).logits, targets[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    with quiet():
        model.eval().save_pretrained(folder)
    half = [0.5, 0.5, 0.5]
    ViTImageProcessorPil(size={"height": SIZE, "width": SIZE}, image_mean=half, image_std=half).save_pretrained(folder)


def _letters(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw white letters on black, of varied size and position, [count, 8, 8, 3] uint8."""
    from PIL import Image, ImageDraw, ImageFont

    images = []
    for index in range(count):
        canvas = Image.new("L", (64, 64))
        font = ImageFont.load_default(size=float(rng.uniform(56, 76)))
        place = (32 + rng.uniform(-5, 5), 32 + rng.uniform(-5, 5))
        ImageDraw.Draw(canvas).text(place, LETTERS[index % len(LETTERS)], fill=255, font=font, anchor="mm")
        images.append(np.asarray(canvas.resize((SIZE, SIZE), Image.Resampling.BOX)))
    return _gray_to_rgb(np.stack(images))


def _photo_patches(count: int, rng: np.random.Generator) -> np.ndarray:
    """Cut patches from two photographs, shrunk, with full contrast, [count, 8, 8, 3] uint8."""
    from PIL import Image, ImageOps

    datasets = require("sklearn.datasets", "demo", "load the sample photographs")
    photos = [Image.fromarray(photo).convert("L") for photo in datasets.load_sample_images().images]
    patches = []
    for index in range(count):
        photo, side = photos[index % len(photos)], int(rng.integers(48, 160))
        left, top = int(rng.integers(0, photo.width - side)), int(rng.integers(0, photo.height - side))
        patch = photo.crop((left, top, left + side, top + side)).resize((SIZE, SIZE), Image.Resampling.BOX)
        patches.append(np.asarray(ImageOps.autocontrast(patch)))
    return _gray_to_rgb(np.stack(patches))


def _gray_to_rgb(images: np.ndarray) -> np.ndarray:
    return np.repeat(images[..., None], 3, axis=-1)
