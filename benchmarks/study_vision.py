"""CIFAR-10 against CIFAR-100 at 96 pixels, every competitor from one ViT-Tiny that was pre-trained on ImageNet.

    python benchmarks/study_vision.py ../shared -o benchmarks/results/study-vision.json

Takes the folder that holds ``models/vit-tiny-cifar10``, ``models/vit-tiny-imagenet`` and ``data/cifar``; trains what is
missing, then makes, calibrates, measures and times every row, and writes the tables into docs/studies/vision.md.
Everything long is kept in ``--work`` and used again. Data: CIFAR-10 and CIFAR-100 (Krizhevsky 2009). Weights: the
ViT-Tiny of "How to train your ViT?" (Steiner et al. 2022).
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import study_run
import torch
import transformers
from hydrant.data.examples import Examples
from hydrant.families.checkpoint import load_model, load_processor
from PIL import Image
from study import Bundles, Data, Fork, note_of, trained
from study_rows import Rows, Settings
from training import Batches, Recipe, as_json, augment, cached, in_parallel, train

MEMBERS = 3
SPLITS = {"cifar10-train": "train", "cifar10-test": "test", "cifar100-test": "ood"}
SIZES = {
    "train": 12_000,
    "members": 12_000,
    "validation": 2_000,
    "ood_validation": 1_000,
    "test": 3_000,
    "ood_test": 3_000,
}
"""Images drawn at random with seed 0: tuned on, trained on, and of the other splits."""

FULL = Recipe(seed=0, epochs=2, learning_rate=1e-4, batch_size=50, schedule="cosine")
"""What the shared checkpoint (seed 0) was trained by; seeds 1 and 2 make a Deep Ensemble of it."""

LORA = replace(FULL, learning_rate=1e-3)
ADAPTER: dict[str, Any] = {
    "r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "modules_to_save": ["classifier"],
}
"""Of the adapters; PEFT gets a copy, for it adds to the lists."""

FORKS = {0.93: Fork(11, 2), 1.05: Fork(10, 1), 1.1: Fork(10, 2), 1.2: Fork(10, 1, members=5), 1.25: Fork(9, 1)}
"""Of each price, once tuned, the least validation NLL among benchmarks/study_trials.py's; five members were added later
(docs/studies/vision.md)."""

SETTINGS = Settings(
    forks=FORKS,
    keep=2,
    tune=hydrant.Jointly(epochs=5, learning_rate=1e-4),
    batch_size=32,
    rank_one=hydrant.BatchEnsemble(epochs=5, learning_rate=1e-4, fork_from=10),
)


class Members:
    """Fine-tunes the ImageNet weights on CIFAR-10, and keeps what comes of it in ``work``."""

    def __init__(self, shared: Path, examples: Examples, work: Path, jobs: int) -> None:
        self.reference, self.start = shared / "models/vit-tiny-cifar10", shared / "models/vit-tiny-imagenet"
        self.examples, self.work, self.jobs = examples, work, jobs
        self.processor = load_processor(self.reference, "image")

    def deep(self, count: int = MEMBERS) -> list[Path]:
        """The Deep Ensemble's checkpoints."""
        return [self.reference, *in_parallel([(self.full, seed) for seed in range(1, count)], self.jobs)]

    def adapted(self, count: int = MEMBERS) -> tuple[Path, list[Path]]:
        """The LoRA-Ensemble's base model, and its adapters."""
        return self.base(), in_parallel([(self.adapter, seed) for seed in range(count)], self.jobs)

    def full(self, seed: int, epochs: int = FULL.epochs) -> Path:
        """A checkpoint as the shared one, from another seed or of more epochs."""
        recipe = replace(FULL, seed=seed, epochs=epochs)

        def make(folder: Path) -> dict[str, Any]:
            model = self._fresh(seed)
            losses = self._train(model, recipe)
            model.save_pretrained(folder)
            self.processor.save_pretrained(folder)
            return {"losses": losses}

        name = f"member-{seed}" if epochs == FULL.epochs else f"trained-{epochs}-{seed}"
        return cached(self.work / name, as_json(recipe, images=len(self.examples)), make)

    def base(self) -> Path:
        """The ImageNet weights at 96 pixels; the classifier is replaced by every adapter's own."""

        def make(folder: Path) -> dict[str, Any]:
            self._fresh(0).save_pretrained(folder)
            self.processor.save_pretrained(folder)
            return {}

        return cached(self.work / "base", {"base": self.start.name, "head": "random, seed 0"}, make)

    def adapter(self, seed: int) -> Path:
        """A PEFT LoRA adapter of the ImageNet weights, with a classifier of its own."""
        import peft

        recipe, base = replace(LORA, seed=seed), self.base()

        def make(folder: Path) -> dict[str, Any]:
            torch.manual_seed(seed)
            model = load_model(base)
            model.classifier.reset_parameters()
            model = peft.get_peft_model(model, peft.LoraConfig(**deepcopy(ADAPTER)))
            losses = self._train(model, recipe)
            model.save_pretrained(folder)
            return {"losses": losses}

        kind = as_json(recipe, base=trained(base), adapter=ADAPTER, images=len(self.examples))
        return cached(self.work / f"lora-{seed}", kind, make)

    def _fresh(self, seed: int) -> Any:
        """The ImageNet model for CIFAR-10's classes and pixels: its table of positions is resized bicubically."""
        torch.manual_seed(seed)
        source, model = (
            load_model(self.start),
            transformers.ViTForImageClassification(load_model(self.reference).config),
        )
        state = {name: tensor for name, tensor in source.state_dict().items() if not name.startswith("classifier")}
        name = next(name for name in state if name.endswith("position_embeddings"))
        state[name] = resized(state[name], model.state_dict()[name].shape[1])
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert set(missing) == {"classifier.weight", "classifier.bias"} and not unexpected
        return model

    def _train(self, model: Any, recipe: Recipe) -> list[float]:
        images, labels = np.stack(self.examples.inputs), self.examples.labels
        batches = pixel_batches(images, labels, self.processor, recipe.batch_size)
        return train(model, batches, -(-len(images) // recipe.batch_size), recipe)


def resized(table: torch.Tensor, positions: int) -> torch.Tensor:
    """A table of positions [1, 1 + S², D], its square part resized bicubically to ``positions`` rows."""
    first, square = table[:, :1], table[:, 1:]
    old, new = (int((count - 1) ** 0.5) for count in (table.shape[1], positions))
    grid = square.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, size=(new, new), mode="bicubic", align_corners=False)
    return torch.cat([first, grid.permute(0, 2, 3, 1).reshape(1, new * new, -1)], dim=1)


def pixel_batches(images: np.ndarray, labels: np.ndarray, processor: Any, batch_size: int) -> Batches:
    """Shuffled batches of images [N, H, W, 3] uint8, moved and mirrored at random, then as the model reads them."""

    def epoch(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        order = rng.permutation(len(images))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            moved = [Image.fromarray(image) for image in augment(images[rows], rng)]
            yield {**processor(images=moved, return_tensors="pt"), "labels": torch.from_numpy(labels[rows])}

    return epoch


def read_zip(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images [N, 32, 32, 3] uint8, labels [N] and class names of a zip of ``class/name.jpg``, read in place."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        images = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    classes = sorted({name.split("/")[0] for name in names})
    return np.stack(images), np.array([classes.index(name.split("/")[0]) for name in names]), classes


Arrays = dict[str, tuple[np.ndarray, np.ndarray]]


def decoded(folder: Path, work: Path) -> tuple[Arrays, list[str]]:
    """Images and labels of every zip, decoded once; and the classes of CIFAR-10."""

    def make(target: Path) -> dict[str, Any]:
        classes: dict[str, list[str]] = {}
        for name in SPLITS:
            images, labels, classes[name] = read_zip(folder / f"{name}.zip")
            np.save(target / f"{name}-images.npy", images)
            np.save(target / f"{name}-labels.npy", labels)
        return {"classes": classes["cifar10-train"]}

    kept = cached(work / "images", {"zips": list(SPLITS)}, make)
    arrays = {name: (np.load(kept / f"{name}-images.npy"), np.load(kept / f"{name}-labels.npy")) for name in SPLITS}
    return arrays, note_of(kept)["classes"]


def split(arrays: Arrays, sizes: dict[str, int], seed: int = 0) -> tuple[Data, Examples]:
    """The splits, and what members are trained on; no image that chooses is among those that report.

    Validation and test images are CIFAR-10's test images, of which the shared checkpoint has seen none.
    """
    rng = np.random.default_rng(seed)

    def drawn(name: str, *wanted: str) -> list[Examples]:
        images, labels = arrays[name]
        order, start, found = rng.permutation(len(images)), 0, []
        for kind in wanted:
            rows = order[start : start + sizes[kind]]
            start += len(rows)
            found.append(Examples(list(images[rows]), labels[rows].astype(np.int64), name))
        return found

    (members,) = drawn("cifar10-train", "members")
    validation, test = drawn("cifar10-test", "validation", "test")
    ood_validation, ood_test = drawn("cifar100-test", "ood_validation", "ood_test")
    training = members.take(np.arange(min(sizes["train"], len(members))))
    return Data(training, validation, ood_validation, test, ood_test), members


class Vision:
    """The study's subject: its data, the single model, and what is trained to compare with.

    Args:
        shared: folder with models/ and data/.
        work: folder of what takes long.
        jobs: trainings at a time.
        sizes: images of each split.
    """

    name = "vision"
    title = "CIFAR-10"
    settings = SETTINGS

    def __init__(self, shared: Path, work: Path, jobs: int, sizes: dict[str, int] | None = None) -> None:
        arrays, _ = decoded(shared / "data/cifar", work)
        self.data, more = split(arrays, sizes or SIZES)
        self.members = Members(shared, more, work, jobs)
        self.single = self.members.reference
        self.bundles = Bundles(work, self.data, self.members.processor)

    def rows(self, *, deep: bool = True, lora: bool = True) -> Rows:
        """All rows; members of the Deep Ensemble and adapters are trained where they are asked for."""
        checkpoints = self.members.deep() if deep else []
        adapters = self.members.adapted() if lora else None
        return Rows(self.bundles, self.settings, self.single, checkpoints, adapters, dropout=False)


if __name__ == "__main__":
    study_run.main(Vision, __doc__)
