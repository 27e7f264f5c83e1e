"""Data, bundles and their outputs for the studies.

Every competitor is a hydrant bundle, created by the package's own verbs. Slow steps are cached in a working folder with
their recipes (``training.cached``), so an interrupted study resumes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from hydrant.bundle.head_plan import HeadPlan
from hydrant.calib.features import Reference, by_set, standardised_by
from hydrant.calib.heads.methods import METHODS
from hydrant.calib.heads.selection import choose_heads
from hydrant.calib.mahalanobis import standardised
from hydrant.calib.taps import named_taps
from hydrant.data.examples import Examples
from hydrant.progress import no_progress
from hydrant.tuning import Jointly
from training import cached, device, matmul


@dataclass(frozen=True)
class Data:
    """Splits: ``validation`` and ``ood_validation`` (if OOD data are used) choose and calibrate; test splits report."""

    train: Examples
    validation: Examples
    ood_validation: Examples | None
    test: Examples
    ood_test: Examples

    def sizes(self) -> dict[str, int]:
        return {name: len(examples) for name, examples in vars(self).items() if examples is not None}


SPLITS = ("validation", "ood_validation", "test", "ood_test")  # Splits with outputs

SETS = ("balanced", "all", "last")  # Sets of taps; *means* is the default for texts


@dataclass(frozen=True)
class Fork:
    """Fork: members that prune from one layer on."""

    layer: int  # first layer in which heads are pruned
    keep: int  # heads kept there and in every later layer
    method: str = "random"  # method of choosing them
    members: int = 3  # M


@dataclass(frozen=True)
class Outputs:
    """Outputs of a bundle on every split."""

    logits: Mapping[str, np.ndarray]  # split → member logits [N, M, C], before any temperature
    # set of taps (``calib.taps``) → split → distance [N], standardised on the validation split
    distances: Mapping[str, Mapping[str, np.ndarray]]


class Bundles:
    """Cached bundles of a study in ``work``, planned and tuned in a precision of ``training.matmul``."""

    def __init__(self, work: Path, data: Data, processor: Any, precision: str = "highest") -> None:
        self.work, self.data, self.processor, self.precision = work, data, processor, precision

    def fused(self, name: str, recipe: dict[str, Any], models: Any, *how: Any, **more: Any) -> Path:
        """Bundle from ``hydrant.fuse``; the recipe describes its arguments."""

        def make(folder: Path) -> dict[str, Any]:
            return self._save(hydrant.fuse(models, *how, **more), folder)

        return self._cached(name, recipe, make)

    def joined(self, name: str, checkpoints: Sequence[Path]) -> Path:
        """Unchanged checkpoint, or an exact Deep Ensemble of several."""
        recipe = {"checkpoints": list(map(trained, checkpoints))}
        if len(checkpoints) == 1:
            return self.fused(name, recipe, checkpoints[0])
        return self.fused(name, recipe, checkpoints, keep_separate=["all"])

    def pruned(self, name: str, checkpoint: Path, fork: Fork, seed: int, **how: Any) -> Path:
        """Members pruned from one checkpoint; ``how`` are further options of the method.

        Circuits are searched on the validation splits without selection; Taylor scores use the training split.
        """

        def make(folder: Path) -> dict[str, Any]:
            circuit = fork.method == "circuit"
            more = {"ood": self.data.ood_validation, "max_accuracy_loss": 100} if circuit else {}
            examples = self.data.validation if circuit else self.data.train
            with matmul(self.precision):
                plan = hydrant.plan_heads(
                    checkpoint, examples, METHODS[fork.method](**how, **more),
                    members=fork.members, keep=fork.keep, fork_from=fork.layer, seed=seed, processor=self.processor,
                )  # fmt: skip
            return self._save(hydrant.fuse(checkpoint, plan), folder)

        recipe = {"checkpoint": trained(checkpoint), "plan": {**vars(fork), **how, "seed": seed}}
        return self._cached(name, recipe, make)

    def tuned(self, name: str, source: Path, how: Jointly, *, seed: int, batch_size: int) -> Path:
        """Bundle tuned on the training split; the validation split selects the epoch."""

        def make(folder: Path) -> dict[str, Any]:
            with matmul(self.precision):
                report = hydrant.tune(
                    source, self.data.train, how, validation=self.data.validation, output=folder / name,
                    reading=hydrant.DataOptions(batch_size=batch_size), seed=seed,
                )  # fmt: skip
            return {"report": json.loads(json.dumps(report.to_json(), default=str))}

        settings = {"seed": seed, "batch_size": batch_size, "how": type(how).__name__, **vars(how)}
        recipe = {"source": made_by(source), "tune": settings, "examples": len(self.data.train)}
        return self._cached(name, recipe, make)

    def outputs(self, bundle: Path) -> Outputs:
        """Outputs of a bundle on the splits, by the PyTorch reference; the training split fits the distance."""

        def make(folder: Path) -> dict[str, Any]:
            arrays, sets = self._run(bundle)
            np.savez(folder / "outputs.npz", **arrays)  # type: ignore[arg-type]
            return {"taps": sets}

        sizes = {split: len(getattr(self.data, split)) for split in SPLITS}
        recipe = {"bundle": made_by(bundle), "sizes": sizes, "train": len(self.data.train), "distance": SETS}
        stored = cached(self.work / "outputs" / bundle.name, recipe, make)
        with np.load(stored / "outputs.npz") as arrays:
            logits = {split: arrays[f"{split}.logits"] for split in SPLITS}
            taps = note_of(stored)["taps"]
            return Outputs(logits, {each: {split: arrays[f"{split}.{each}"] for split in SPLITS} for each in taps})

    def _run(self, path: Path) -> tuple[dict[str, np.ndarray], list[str]]:
        reference = Reference(hydrant.Bundle.open(path), 64, no_progress)
        ensemble = reference.ensemble.to(device())
        shape = ensemble.architecture, ensemble.trunk, ensemble.members
        sets = {name: named_taps(name, *shape)[name] for name in (SETS if ensemble.trunk else SETS[-1:])}
        distances = reference.fitted(self.data.train, sets, {}, rank=ensemble.architecture.width)
        arrays: dict[str, np.ndarray] = {}
        for split in SPLITS:
            logits, squared = reference.run(getattr(self.data, split), distances)
            arrays[f"{split}.logits"] = logits.astype(np.float32)
            if split == "validation":  # the first split
                distances = {
                    name: by_set(standardised_by(density, squared[name]), name) for name, density in distances.items()
                }
            for name, density in distances.items():
                arrays[f"{split}.{name}"] = standardised(density, squared[name])
        return arrays, list(distances)

    def _save(self, ensemble: Any, folder: Path) -> dict[str, Any]:
        hydrant.save_bundle(ensemble, folder / folder.name.removesuffix(".partial"), self.processor)
        return {}

    def _cached(self, name: str, recipe: dict[str, Any], make: Any) -> Path:
        return cached(self.work / "bundles" / name, {"name": name, **recipe}, make) / name


def trained(checkpoint: Path) -> dict[str, Any]:
    """Recipe of a checkpoint, or its name if the study did not train it."""
    has_recipe = (checkpoint / "recipe.json").is_file()
    return note_of(checkpoint)["recipe"] if has_recipe else {"checkpoint": checkpoint.name}


def note_of(folder: Path) -> dict[str, Any]:
    """Contents of a folder's ``recipe.json``."""
    return json.loads((folder / "recipe.json").read_text())


def made_by(bundle: Path) -> dict[str, Any]:
    return note_of(bundle.parent)["recipe"]


def average(plan: HeadPlan) -> HeadPlan:
    """Plan of ``Circuit(average=True)``, from the scores in a plan of the same circuits."""
    scores = plan.provenance["scores"]  # [circuits][layers], None where all heads are kept
    heads, layers = tuple(range(plan.heads)), [layer for layer in range(plan.layers) if scores[0][layer]]
    mean = np.stack([np.mean([rows[layer] for rows in scores], axis=0) for layer in layers])
    best = choose_heads(mean, [len(plan.members[0][layer]) for layer in layers])
    member = tuple(best[layers.index(layer)] if layer in layers else heads for layer in range(plan.layers))
    return HeadPlan(plan.family, plan.layers, plan.heads, (member,), "circuit")


def slug(name: str) -> str:
    return name.lower().replace(",", "").replace("+", "and").replace("≤ ", "").replace(" ", "-")
