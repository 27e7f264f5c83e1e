"""Competitors in the study of tasks: checkpoints trained with Hugging Face's losses, and bundles of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hydrant
import numpy as np
import torch
import transformers
from hydrant import fusion
from hydrant.data.examples import Examples
from hydrant.data.label_encoding import IGNORED
from hydrant.models.checkpoint import quiet
from hydrant.tuning import Jointly
from study import Bundles, Fork, made_by, slug
from study_figures import labels_of
from study_rows import CONTROL, DEEP, SINGLE, TUNED
from tasks_data import TaskData
from training import Batches, Recipe, as_json, cached, device, text_batches, train

MEMBERS = 3

FIRST, SECOND = "fork at 4, keep 2", "fork at 5, keep 4"

FORKS = {FIRST: Fork(4, 2), SECOND: Fork(5, 4, "taylor")}
"""Forks of the CLINC150 study by name; not chosen for these tasks."""

NAMES = (SINGLE, CONTROL, *(name + end for name in FORKS for end in ("", TUNED)), DEEP)
"""All rows, in the order of the tables."""

TUNE = Jointly(epochs=2, learning_rate=1e-4)  # As in the CLINC150 study


@dataclass(frozen=True)
class Settings:
    """Hyperparameters of rows; none was chosen on the data of a task."""

    recipes: Mapping[str, Recipe]  # task → recipe of a checkpoint; the member sets the seed
    tune: Jointly = TUNE  # tuning of every tuned row
    batch_size: int = 64  # batch size of tuning
    fitted: int = 2000  # training examples that fit the distance
    # seed s starts from checkpoint 3s; its Deep Ensemble consists of 3s, 3s + 1 and 3s + 2
    seeds: tuple[int, ...] = (0, 1, 2)


RECIPES = {
    "tagger": Recipe(seed=0, epochs=6, learning_rate=1e-4, batch_size=32, matmul="medium"),
    "cross-encoder": Recipe(seed=0, epochs=4, learning_rate=1e-4, batch_size=32, matmul="medium"),
    "several labels": Recipe(seed=0, epochs=5, learning_rate=1e-4, batch_size=32, matmul="medium"),
}
"""Recipes of the shared CLINC150 checkpoint, with other epochs."""


class TaskRows:
    """Rows of one task, each cached in a folder of ``work``."""

    def __init__(self, name: str, task_data: TaskData, base: Path, work: Path, settings: Settings) -> None:
        self.name, self.task_data, self.base, self.settings = name, task_data, base, settings
        self.work = work / slug(name)
        with quiet():
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(base)
        self.bundles = Bundles(self.work, task_data.data, self.tokenizer, "medium")

    def checkpoint(self, member: int) -> Path:
        """Base weights, fine-tuned on the training split, on a GPU if available."""
        recipe = replace(self.settings.recipes[self.name], seed=member)

        def make(folder: Path) -> dict[str, Any]:
            model = fresh(self.base, self.task_data, member)
            examples = self.task_data.data.train
            batches = batches_of(self.task_data, self.tokenizer, recipe.batch_size)
            steps = -(-len(examples) // recipe.batch_size)
            losses = train(model, batches, steps, recipe)
            as_deployed(model, self.task_data)
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return {"losses": losses}

        about = as_json(recipe, base=self.base.name, task=self.name, examples=len(self.task_data.data.train))
        return cached(self.work / f"member-{member}", about, make)

    def bundle(self, name: str, seed: int) -> Path:
        """Uncalibrated bundle of a row."""
        first, settings, folder = self.checkpoint(MEMBERS * seed), self.settings, f"{slug(name)}-{seed}"
        if name == SINGLE:
            return self.bundles.joined(folder, [first])
        if name == DEEP:
            return self.bundles.joined(folder, [self.checkpoint(MEMBERS * seed + place) for place in range(MEMBERS)])
        if name in FORKS:
            return self.bundles.pruned(folder, first, replace(FORKS[name], members=MEMBERS), seed)
        source = self.bundle(SINGLE if name == CONTROL else name.removesuffix(TUNED), seed)
        return self.bundles.tuned(folder, source, settings.tune, seed=seed, batch_size=settings.batch_size)

    def calibrated(self, name: str, seed: int) -> Path:
        """Calibrated bundle of a row: temperature or intervals, thresholds, and distance."""
        task_data, bundle = self.task_data, self.bundle(name, seed)
        count = min(self.settings.fitted, len(task_data.data.train))
        fit = task_data.data.train.take(np.arange(count))

        def make(folder: Path) -> dict[str, Any]:
            shutil.copytree(bundle, folder / bundle.name)
            with on_device():
                hydrant.calibrate(folder / bundle.name, task_data.calibration, fit=fit)
            return {}

        recipe = {"bundle": made_by(bundle), "examples": len(task_data.calibration), "fit": count}
        return cached(self.work / "calibrated" / bundle.name, recipe, make) / bundle.name


@contextmanager
def on_device() -> Iterator[None]:
    """Run the PyTorch reference of calibration and evaluation on a GPU if available."""
    load = fusion.load_reference
    with patch.object(fusion, "load_reference", lambda bundle: load(bundle).to(device())):
        yield


def fresh(base: Path, task_data: TaskData, seed: int) -> Any:
    """Base weights with an untrained classifier and Hugging Face's loss of the task."""
    tokens = task_data.task == "tokens"
    kind = transformers.AutoModelForTokenClassification if tokens else transformers.AutoModelForSequenceClassification
    names = dict(enumerate(task_data.labels))
    torch.manual_seed(seed)
    with quiet():
        return kind.from_pretrained(
            base,
            dtype=torch.float32,
            id2label=names,
            label2id={name: place for place, name in names.items()},
            **({} if tokens else {"problem_type": "multi_label_classification"}),  # a sigmoid for each output
        )


def as_deployed(model: Any, task_data: TaskData) -> None:
    """Set a trained model's output type in its configuration."""
    if task_data.task == "score":
        model.config.problem_type = None
        model.config.sentence_transformers = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}


def batches_of(task_data: TaskData, tokenizer: Any, batch_size: int) -> Batches:
    """Shuffled batches of the training split, with labels for Hugging Face's loss."""
    examples = task_data.data.train
    if task_data.task == "tokens":
        return _tagged_batches(examples, tokenizer, batch_size)
    pairs = task_data.task == "score"
    encoded = [dict(tokenizer(*(item if pairs else (item,)), truncation=True)) for item in examples.inputs]
    labels = labels_of(examples).astype(np.float32).reshape(len(examples), -1)
    return text_batches(encoded, labels, tokenizer, batch_size)


def _tagged_batches(examples: Examples, tokenizer: Any, batch_size: int) -> Batches:
    """Batches with each word's tag at its first token only."""
    encoded, tags = [], labels_of(examples)
    at_tokens = []
    for words, row in zip(examples.inputs, tags, strict=True):
        item = tokenizer(words, is_split_into_words=True, truncation=True)
        places = item.word_ids()
        starts = [place is not None and place not in places[:token] for token, place in enumerate(places)]
        at_tokens.append([row[place] if begins else IGNORED for place, begins in zip(places, starts, strict=True)])
        encoded.append(dict(item))
    labels = np.full((len(encoded), max(map(len, at_tokens))), IGNORED, np.int64)
    for place, row in enumerate(at_tokens):
        labels[place, : len(row)] = row
    return partial(_cut, text_batches(encoded, labels, tokenizer, batch_size))


def _cut(batches: Batches, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Batches with labels cut to the number of tokens."""
    for batch in batches(rng):
        yield {**batch, "labels": batch["labels"][:, : batch["input_ids"].shape[1]].contiguous()}
