"""Rows of a study: the competitors, created from every seed of plan and tuning, and their results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import study_figures as figures
from hydrant.evaluation.competitors import open_models
from hydrant.runtime.collect import Sweep
from hydrant.tuning import BatchEnsemble, Jointly
from study import SPLITS, Bundles, Data, Fork, Outputs, average, made_by, note_of, slug, trained
from training import cached, in_parallel

SINGLE, CONTROL, DROPOUT, RANK_ONE = "single", "single, tuned", "MC dropout", "BatchEnsemble"
TAYLOR, CIRCUITS, AVERAGE = "Hydra Taylor", "Hydra Circ", "CircAvg"
LORA, DEEP, PACKED = "LoRA-Ensemble", "Deep Ensemble", "Packed-Ensemble"

TUNED = ", tuned"  # Suffix of tuned rows


@dataclass(frozen=True)
class Settings:
    """Hyperparameters, chosen on the validation splits, and seeds."""

    # late forks by maximum operations ÷ the plain single model's
    forks: Mapping[float, Fork]
    keep: int  # heads kept in each layer by members that prune from layer 0
    tune: Jointly  # tuning of every tuned row
    batch_size: int
    rank_one: BatchEnsemble  # tuning of the row BatchEnsemble
    circuit: Mapping[str, Any] = field(default_factory=dict)  # options of ``hydrant.Circuit``
    passes: int = 10  # passes of MC dropout
    members: int = 3  # M, unless a fork sets another
    seeds: tuple[int, ...] = (0, 1, 2)  # seeds of plans and tuning

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self), default=str))


class Rows:
    """Rows by name."""

    def __init__(
        self,
        bundles: Bundles,
        settings: Settings,
        single: Path,
        deep: Sequence[Path] = (),
        lora: tuple[Path, Sequence[Path]] | None = None,
        dropout: bool = True,
    ) -> None:
        self.bundles, self.settings, self.single = bundles, settings, single
        self.deep, self.lora, self.dropout = deep, lora, dropout
        self.forks = {self._name(fork): fork for fork in settings.forks.values()}
        if len(self.forks) < len(settings.forks):
            raise ValueError(f"two forks have the same name: {', '.join(map(self._name, settings.forks.values()))}")

    def _name(self, fork: Fork) -> str:
        further = f", {fork.members} members" if fork.members != self.settings.members else ""
        return f"fork at {fork.layer}, keep {fork.keep}{further}"

    def names(self) -> list[str]:
        """Names of all rows, in the order of the tables."""
        pruned = [TAYLOR, CIRCUITS, AVERAGE, *self.forks]
        return [
            SINGLE, CONTROL, *([DROPOUT] if self.dropout else []), RANK_ONE,
            *([LORA] if self.lora else []), *([DEEP] if self.deep else []),
            *(name + end for name in pruned for end in ("", TUNED)),
        ]  # fmt: skip

    def seeds(self, name: str) -> tuple[int, ...]:
        """Seeds of a row: one if nothing random is drawn here."""
        return (0,) if name in (SINGLE, LORA, DEEP) else self.settings.seeds

    def bundle(self, name: str, seed: int) -> Path:
        """Bundle of a row."""
        settings, folder = self.settings, f"{slug(name)}-{seed}"
        if name != RANK_ONE and not name.endswith(TUNED):
            return self._untuned(name, seed, folder)
        if name == RANK_ONE:
            source, how = self._copies(), settings.rank_one
        else:
            source, how = self.bundle(name.removesuffix(TUNED), 0 if name == CONTROL else seed), settings.tune
        return self.bundles.tuned(folder, source, how, seed=seed, batch_size=settings.batch_size)

    def _copies(self) -> Path:
        """Bundle whose members all equal the checkpoint."""
        count = self.settings.members
        recipe = {"checkpoint": trained(self.single), "members": count}
        return self.bundles.fused("copies", recipe, self.single, members=count)

    def _untuned(self, name: str, seed: int, folder: str) -> Path:
        bundles = self.bundles
        if name in (SINGLE, DROPOUT):
            return bundles.joined(SINGLE, [self.single])
        if name == DEEP:
            return bundles.joined(slug(DEEP), self.deep)
        if name == LORA:
            assert self.lora is not None  # otherwise not a row
            base, adapters = self.lora
            return bundles.fused(slug(LORA), {"adapters": list(map(trained, adapters))}, base, adapters=list(adapters))
        if name == AVERAGE:
            circuits = self.bundle(CIRCUITS, seed)
            plan = average(hydrant.Bundle.open(circuits).plan())
            return bundles.fused(folder, {"average of": made_by(circuits)}, self.single, plan)
        how = dict(self.settings.circuit) if name == CIRCUITS else {}
        keep, members = self.settings.keep, self.settings.members
        whole = {TAYLOR: Fork(0, keep, "taylor", members), CIRCUITS: Fork(0, keep, "circuit", members)}
        return bundles.pruned(folder, self.single, {**whole, **self.forks}[name], seed, **how)

    def outputs(self, name: str, seed: int) -> Outputs:
        """Outputs of a row on every split."""
        if name == DROPOUT:
            return self._passes(seed)
        return self.bundles.outputs(self.bundle(name, seed))

    def make(self, names: Sequence[str], jobs: int) -> None:
        """Create rows and their outputs, ``jobs`` at a time, sources of other rows first."""
        untuned = [name for name in names if name not in (CONTROL, RANK_ONE) and not name.endswith(TUNED)]
        sources = [name.removesuffix(TUNED) for name in names if name.endswith(TUNED)]
        circuits = [CIRCUITS] if {AVERAGE, AVERAGE + TUNED} & set(names) else []
        first = dict.fromkeys([SINGLE, *circuits, *untuned, *sources])
        self.bundle(SINGLE, 0)
        if RANK_ONE in names:
            self._copies()
        for stage in ([name for name in first if name != AVERAGE], [AVERAGE] * (AVERAGE in first), names):
            in_parallel([(self._output, (name, seed)) for name in stage for seed in self.seeds(name)], jobs)

    def _output(self, row: tuple[str, int]) -> None:
        self.outputs(*row)

    def _passes(self, seed: int) -> Outputs:
        """Outputs of MC dropout, as in ``evaluate --compare mc-dropout``."""
        data, passes = self.bundles.data, self.settings.passes
        bundle = hydrant.Bundle.open(self.bundle(SINGLE, 0))

        def make(folder: Path) -> dict[str, Any]:
            with ExitStack() as opened:
                name = f"mc-dropout:{passes}:{self.single}"
                model = open_models(bundle, [name], "torch", None, opened, data.test, seed)[1]
                arrays = {
                    split: Sweep(model.runs, model.processor, model.architecture, getattr(data, split).inputs)
                    .collect(lambda out: {"logits": out["member_logits"]})["logits"]
                    .astype(np.float32)
                    for split in SPLITS
                }
            np.savez(folder / "outputs.npz", **arrays)
            return {}

        recipe = {"checkpoint": made_by(bundle.path), "passes": passes, "seed": seed, "sizes": data.sizes()}
        stored = cached(self.bundles.work / "outputs" / f"{slug(DROPOUT)}-{seed}", recipe, make)
        with np.load(stored / "outputs.npz") as arrays:
            return Outputs({split: arrays[split] for split in SPLITS}, {})


def results(rows: Rows, names: Sequence[str], references: Sequence[str], resamples: int) -> list[dict[str, Any]]:
    """Metrics of every row and seed, before and after calibration."""
    data, drawn, reports = rows.bundles.data, {}, []
    for name in names:
        seeds = []
        for seed in rows.seeds(name):
            outputs = rows.outputs(name, seed)
            temperature = figures.temperature_of(outputs, data)
            note = note_of(rows.bundle(name, seed).parent)
            seeds.append({
                "seed": seed, "temperature": temperature, "before": figures.measure(outputs, data, 1.0),
                "after": figures.measure(outputs, data, temperature), "flagged": figures.flagged(outputs, temperature),
                "best_epoch": note.get("report", {}).get("best_epoch"),
            })  # fmt: skip
            if name not in drawn and resamples:
                drawn[name] = figures.draws(outputs, data, temperature, resamples)
        path = rows.bundle(name, rows.seeds(name)[0])
        tokens = figures.mean_tokens(path, data.test)
        costs, here = figures.cost(path, None), figures.cost(path, tokens)
        if name == DROPOUT:  # each pass is the plain model, since rewrites are not exact with masks
            costs["operations"] = here["operations"] = float(rows.settings.passes)
        reports.append(
            {
                "name": name,
                "members": outputs.logits["test"].shape[1],
                "operations": costs["operations"],
                "operations_at_mean": here["operations"],
                "mean_tokens": tokens,
                "parameters": costs["parameters"],
                "made": made_by(path),
                "seeds": seeds,
            }
        )
    for row in reports:
        row["against"] = {
            reference: {
                name: figures.difference(drawn[row["name"]], drawn[reference], name)
                for name in drawn[row["name"]] if name in drawn[reference]
            }
            for reference in references if reference in drawn and reference != row["name"]
        }  # fmt: skip
    return reports


class Subject:
    """Data, single model and trained competitors; set by subclasses."""

    name: str  # name of the study; tables are in benchmarks/results/NAME-tables.md
    title: str  # title of its pictures
    settings: Settings
    taps: str  # set of taps of the compared distance
    dropout: bool = True  # the checkpoint has dropout
    data: Data
    members: Any  # trained members
    single: Path  # checkpoint
    bundles: Bundles

    def rows(self, *, deep: bool = True, lora: bool = True) -> Rows:
        """All rows, optionally with the trained Deep Ensemble and adapters."""
        checkpoints = self.members.deep() if deep else []
        adapters = self.members.adapted() if lora else None
        return Rows(self.bundles, self.settings, self.single, checkpoints, adapters, self.dropout)
