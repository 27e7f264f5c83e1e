"""CIFAR-10 against CIFAR-100: a small ViT, trained here, and images that it does not know, JPEG-coded alike.

    python benchmarks/study_cifar.py ../shared -o benchmarks/results/study-cifar.json

Takes the folder that holds ``data/cifar``; trains what is missing, on a GPU if there is one, otherwise in the reduced
setting for two CPU cores (``--setting`` overrules), then makes, calibrates, measures and times every row, and writes
the tables into docs/studies/cifar.md.
Everything long is kept in ``--work`` and used again. Data: CIFAR-10 and CIFAR-100
(Krizhevsky 2009).
"""

from __future__ import annotations

import argparse
import io
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import study
import torch
import transformers
from hydrant.data.examples import Examples
from hydrant.families.checkpoint import load_model
from training import Recipe, as_json, cached, image_batches, in_parallel, train

MEMBERS = 3
SIZE = 32
SPLITS = {"cifar10-train": "train", "cifar10-test": "test", "cifar100-test": "ood"}
HALF = [0.5, 0.5, 0.5]

INITIALIZER = 0.06
"""Standard deviation of the first weights; with the usual 0.02 so narrow a model is slow to begin to learn."""

ADAPTER: dict[str, Any] = {
    "r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    "modules_to_save": ["classifier"],
}


@dataclass(frozen=True)
class Setting:
    """The ViT and how much it is trained.

    Attributes:
        layers, heads, width: of the ViT; its MLP is twice as wide.
        patch: side of a patch, pixels.
        images: CIFAR-10 training images used for members and adapters.
        tuned: how many of them plans are scored on and ``hydrant.tune`` sees.
        validation, ood_validation: images held out to choose and calibrate on.
        test: images of each test split that are reported; ``None`` for all that remain.
        full: training of a member.
        adapter: of a LoRA adapter.
        tune: of ``hydrant.tune``.
    """

    patch: int
    images: int
    tuned: int
    validation: int
    ood_validation: int
    test: int | None
    full: Recipe
    adapter: Recipe
    tune: dict[str, Any]
    layers: int = 6
    heads: int = 6
    width: int = 192

    def model(self, classes: list[str]) -> Any:
        """The ViT with random weights."""
        config = transformers.ViTConfig(
            image_size=SIZE,
            patch_size=self.patch,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=2 * self.width,
            initializer_range=INITIALIZER,
            id2label=dict(enumerate(classes)),
            label2id={name: index for index, name in enumerate(classes)},
        )
        return transformers.ViTForImageClassification(config)


SETTINGS = {
    "full": Setting(
        patch=4,
        images=45_000,
        tuned=45_000,
        validation=5_000,
        ood_validation=2_000,
        test=None,
        full=Recipe(seed=0, epochs=100, learning_rate=1e-3, batch_size=128, schedule="cosine", warmup=0.05),
        adapter=Recipe(seed=0, epochs=10, learning_rate=1e-3, batch_size=128, schedule="cosine", warmup=0.05),
        tune={"epochs": 3, "learning_rate": 1e-4, "batch_size": 128},
    ),
    "reduced": Setting(
        patch=8,
        images=40_000,
        tuned=20_000,
        validation=2_000,
        ood_validation=2_000,
        test=5_000,
        full=Recipe(seed=0, epochs=10, learning_rate=1e-3, batch_size=32, schedule="cosine", warmup=0.05),
        adapter=Recipe(seed=0, epochs=1, learning_rate=1e-3, batch_size=32, schedule="cosine", warmup=0.05),
        tune={"epochs": 1, "learning_rate": 1e-4, "batch_size": 32},
    ),
}

CHOICE = study.Choice(members=MEMBERS, keep=4)
"""Chosen on the validation images."""


class Members:
    """Trains the ViTs and adapters, and keeps them in ``work``."""

    def __init__(self, setting: Setting, data: study.Data, classes: list[str], work: Path, jobs: int) -> None:
        self.setting, self.train, self.classes, self.work, self.jobs = setting, data.train, classes, work, jobs
        size = {"height": SIZE, "width": SIZE}
        self.processor = transformers.ViTImageProcessorPil(size=size, image_mean=HALF, image_std=HALF)

    def train_all(self, count: int = MEMBERS) -> tuple[list[Path], Path, list[Path]]:
        """The Deep Ensemble's checkpoints, the LoRA-Ensemble's base model (their first), and its adapters."""
        checkpoints = in_parallel([(self.full, seed) for seed in range(count)], self.jobs)
        adapters = in_parallel([(self.adapter, seed) for seed in range(count)], self.jobs)
        return checkpoints, checkpoints[0], adapters

    def full(self, seed: int) -> Path:
        """A ViT trained from random weights."""
        recipe = replace(self.setting.full, seed=seed)

        def make(folder: Path) -> dict[str, Any]:
            torch.manual_seed(seed)
            model = self.setting.model(self.classes)
            losses = self._train(model, recipe)
            model.save_pretrained(folder)
            self.processor.save_pretrained(folder)
            return {"losses": losses}

        kind = as_json(recipe, patch=self.setting.patch, images=self.setting.images, initializer_range=INITIALIZER)
        return cached(self.work / f"member-{seed}", kind, make)

    def adapter(self, seed: int) -> Path:
        """A PEFT LoRA adapter of the first ViT, with a fresh classifier of its own."""
        import peft

        recipe = replace(self.setting.adapter, seed=seed)
        base = self.full(0)

        def make(folder: Path) -> dict[str, Any]:
            torch.manual_seed(seed)
            model = load_model(base)
            model.classifier.reset_parameters()
            model = peft.get_peft_model(model, peft.LoraConfig(**ADAPTER))
            losses = self._train(model, recipe)
            model.save_pretrained(folder)
            return {"losses": losses}

        return cached(self.work / f"lora-{seed}", as_json(recipe, base=study.trained(base), adapter=ADAPTER), make)

    def _train(self, model: Any, recipe: Recipe) -> list[float]:
        pixels, labels = np.stack(self.train.inputs), self.train.labels
        batches = image_batches(pixels, labels, normalized, recipe.batch_size)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return train(model, batches, -(-len(pixels) // recipe.batch_size), recipe, device)


def normalized(images: np.ndarray) -> torch.Tensor:
    """[B, H, W, 3] uint8 → [B, 3, H, W] float32 in −1 … 1, as the image processor does it."""
    return torch.from_numpy(images.astype(np.float32).transpose(0, 3, 1, 2) / 127.5 - 1)


def read_zip(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images [N, 32, 32, 3] uint8, labels [N] and class names of a zip of ``class/name.jpg``, read in place."""
    from PIL import Image

    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        images = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    classes = sorted({name.split("/")[0] for name in names})
    return np.stack(images), np.array([classes.index(name.split("/")[0]) for name in names]), classes


def decoded(folder: Path, work: Path) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], list[str]]:
    """Images and labels of every zip, decoded once; and the classes of CIFAR-10."""

    def make(target: Path) -> dict[str, Any]:
        classes: dict[str, list[str]] = {}
        for name in SPLITS:
            images, labels, classes[name] = read_zip(folder / f"{name}.zip")
            np.save(target / f"{name}-images.npy", images)
            np.save(target / f"{name}-labels.npy", labels)
        return {"classes": classes["cifar10-train"]}

    kept = cached(work / "images", {"zips": list(SPLITS)}, make)
    arrays = {name: tuple(np.load(kept / f"{name}-{kind}.npy") for kind in ("images", "labels")) for name in SPLITS}
    return arrays, study.note_of(kept)["classes"]  # type: ignore[return-value]


def split(arrays: dict[str, tuple[np.ndarray, np.ndarray]], setting: Setting, seed: int = 0) -> study.Data:
    """Training, validation and test images, drawn at random; no image stands in two of them."""
    rng = np.random.default_rng(seed)

    def drawn(name: str, *sizes: int | None) -> list[Examples]:
        images, labels = arrays[name]
        order, start, found = rng.permutation(len(images)), 0, []
        for size in sizes:
            rows = order[start : None if size is None else start + size]
            start += len(rows)
            found.append(Examples(list(images[rows]), labels[rows].astype(np.int64), name))
        return found

    validation, training = drawn("cifar10-train", setting.validation, setting.images)
    (test,) = drawn("cifar10-test", setting.test)
    ood_validation, ood_test = drawn("cifar100-test", setting.ood_validation, setting.test)
    return study.Data(training, validation, ood_validation, test, ood_test)


def first(examples: Examples, count: int) -> Examples:
    """The first examples, which are as random as all."""
    assert examples.labels is not None
    return Examples(examples.inputs[:count], examples.labels[:count], examples.source)


def run(setting: Setting, name: str, choice: study.Choice, options: argparse.Namespace) -> None:
    """The study in one setting: train, make every row, measure, write."""
    arrays, classes = decoded(options.shared / "data/cifar", options.work)
    data = split(arrays, setting)
    work = options.work / name
    members = Members(setting, data, classes, work, options.jobs)
    trained = members.train_all()
    some = replace(data, train=first(data.train, setting.tuned))
    bundles = study.Bundles(work, some, members.processor)
    choice = replace(choice, tune={} if options.no_tuning else setting.tune)
    rows = study.make_rows(bundles, *trained, choice)
    facts = {"setting": {**vars(setting), "name": name}, "lora": ADAPTER, "choice": vars(choice)}
    study.finish(rows, bundles, options, study.command_line(), facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with data/")
    parser.add_argument("--setting", choices=["auto", *SETTINGS], default="auto", help="default: full with a GPU")
    study.add_options(parser, "cifar")
    options = parser.parse_args()
    automatic = "full" if torch.cuda.is_available() else "reduced"
    name = automatic if options.setting == "auto" else options.setting
    run(SETTINGS[name], name, CHOICE, options)


if __name__ == "__main__":
    main()
