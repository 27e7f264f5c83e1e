"""The rows of a study: what competes, each made from every seed of plan and tuning, and what came of it."""

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
from hydrant.runtime.collect import collect
from hydrant.tuning import BatchEnsemble, Jointly
from study import SPLITS, Bundles, Data, Fork, Outputs, average, made_by, note_of, slug, trained
from training import cached, in_parallel

SINGLE, CONTROL, DROPOUT, RANK_ONE = "single", "single, tuned", "MC dropout", "BatchEnsemble"
TAYLOR, CIRCUITS, AVERAGE = "Hydra Taylor", "Hydra Circ", "CircAvg"
LORA, DEEP, PACKED = "LoRA-Ensemble", "Deep Ensemble", "Packed-Ensemble"

TUNED = ", tuned"
"""End of the name of a row that is another one, tuned."""


@dataclass(frozen=True)
class Settings:
    """What was chosen on the validation splits, and how often it is made.

    Attributes:
        forks: late forks, by the most operations that they may take, those of the plain single model being 1.
        keep: heads that members which prune from layer 0 keep in each.
        tune: of every tuned row: a ``hydrant.Jointly`` and the examples of an update.
        rank_one: of the row BatchEnsemble, a ``hydrant.BatchEnsemble``.
        circuit: of the circuits, for ``hydrant.Circuit``.
        passes: of MC dropout.
        members: M, but of forks that say another.
        seeds: of plans and tuning.
    """

    forks: Mapping[float, Fork]
    keep: int
    tune: Jointly
    batch_size: int
    rank_one: BatchEnsemble
    circuit: Mapping[str, Any] = field(default_factory=dict)
    passes: int = 10
    members: int = 3
    seeds: tuple[int, ...] = (0, 1, 2)

    def as_json(self) -> dict[str, Any]:
        return json.loads(json.dumps(asdict(self), default=str))


class Rows:
    """Makes rows by their names."""

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
            raise ValueError(f"two of the forks have one name: {', '.join(map(self._name, settings.forks.values()))}")

    def _name(self, fork: Fork) -> str:
        further = f", {fork.members} members" if fork.members != self.settings.members else ""
        return f"fork at {fork.layer}, keep {fork.keep}{further}"

    def names(self) -> list[str]:
        """All rows, in the order of the tables."""
        pruned = [TAYLOR, CIRCUITS, AVERAGE, *self.forks]
        return [
            SINGLE, CONTROL, *([DROPOUT] if self.dropout else []), RANK_ONE,
            *([LORA] if self.lora else []), *([DEEP] if self.deep else []),
            *(name + end for name in pruned for end in ("", TUNED)),
        ]  # fmt: skip

    def seeds(self, name: str) -> tuple[int, ...]:
        """What a row is made from: one seed where nothing of it is drawn here."""
        return (0,) if name in (SINGLE, LORA, DEEP) else self.settings.seeds

    def bundle(self, name: str, seed: int) -> Path:
        """The bundle of a row."""
        settings, folder = self.settings, f"{slug(name)}-{seed}"
        if name != RANK_ONE and not name.endswith(TUNED):
            return self._untuned(name, seed, folder)
        if name == RANK_ONE:
            source, how = self._copies(), settings.rank_one
        else:
            source, how = self.bundle(name.removesuffix(TUNED), 0 if name == CONTROL else seed), settings.tune
        return self.bundles.tuned(folder, source, how, seed=seed, batch_size=settings.batch_size)

    def _copies(self) -> Path:
        """Members that are all the checkpoint itself."""
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
            assert self.lora is not None  # else it is no row
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
        """What a row says of every split."""
        if name == DROPOUT:
            return self._passes(seed)
        return self.bundles.outputs(self.bundle(name, seed))

    def make(self, names: Sequence[str], jobs: int) -> None:
        """Make rows and their outputs, ``jobs`` at a time: those that others start from first."""
        untuned = [name for name in names if name not in (CONTROL, RANK_ONE) and not name.endswith(TUNED)]
        sources = [name.removesuffix(TUNED) for name in names if name.endswith(TUNED)]
        circuits = [CIRCUITS] if {AVERAGE, AVERAGE + TUNED} & set(names) else []
        first = dict.fromkeys([SINGLE, *circuits, *untuned, *sources])
        self.bundle(SINGLE, 0)
        if RANK_ONE in names:
            self._copies()
        for stage in ([name for name in first if name != AVERAGE], [AVERAGE] * (AVERAGE in first), names):
            asked = [(name, seed) for name in stage for seed in self.seeds(name)]
            in_parallel([(self._made, row) for row in asked], jobs)

    def _made(self, row: tuple[str, int]) -> None:
        self.outputs(*row)

    def _passes(self, seed: int) -> Outputs:
        """MC dropout, as ``evaluate --compare mc-dropout`` runs it."""
        data, passes = self.bundles.data, self.settings.passes
        bundle = hydrant.Bundle.open(self.bundle(SINGLE, 0))

        def make(folder: Path) -> dict[str, Any]:
            with ExitStack() as opened:
                asked = f"mc-dropout:{passes}:{self.single}"
                model = open_models(bundle, [asked], "torch", None, opened, data.test, seed)[1]
                found = {
                    split: collect(
                        model.runs, model.processor, model.architecture, getattr(data, split).inputs,
                        lambda out: {"logits": out["member_logits"]},
                    )["logits"].astype(np.float32)
                    for split in SPLITS
                }  # fmt: skip
            np.savez(folder / "outputs.npz", **found)
            return {}

        recipe = {"checkpoint": made_by(bundle.path), "passes": passes, "seed": seed, "sizes": data.sizes()}
        kept = cached(self.bundles.work / "outputs" / f"{slug(DROPOUT)}-{seed}", recipe, make)
        with np.load(kept / "outputs.npz") as arrays:
            return Outputs({split: arrays[split] for split in SPLITS}, {})


def results(rows: Rows, names: Sequence[str], references: Sequence[str], resamples: int) -> list[dict[str, Any]]:
    """Every row's figures from each of its seeds, before and after calibration."""
    data, drawn, found = rows.bundles.data, {}, []
    for name in names:
        seeds = []
        for seed in rows.seeds(name):
            outputs = rows.outputs(name, seed)
            temperature = figures.temperature_of(outputs, data)
            note = note_of(rows.bundle(name, seed).parent)
            seeds.append(
                {
                    "seed": seed,
                    "temperature": temperature,
                    "before": figures.measure(outputs, data, 1.0),
                    "after": figures.measure(outputs, data, temperature),
                    "flagged": figures.flagged(outputs, temperature),
                    "best_epoch": note.get("report", {}).get("best_epoch"),
                }
            )
            if name not in drawn and resamples:
                drawn[name] = figures.draws(outputs, data, temperature, resamples)
        path = rows.bundle(name, rows.seeds(name)[0])
        tokens = figures.mean_tokens(path, data.test)
        costs, here = figures.cost(path, None), figures.cost(path, tokens)
        if name == DROPOUT:  # each pass is the plain model: with masks the rewrites are not exact
            costs["operations"] = here["operations"] = float(rows.settings.passes)
        found.append(
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
    for row in found:
        row["against"] = {
            reference: {
                name: figures.difference(drawn[row["name"]], drawn[reference], name)
                for name in drawn[row["name"]] if name in drawn[reference]
            }
            for reference in references if reference in drawn and reference != row["name"]
        }  # fmt: skip
    return found


class Subject:
    """Data, the single model, and what is trained to compare with; a subclass sets them.

    Attributes:
        name: of the study; its tables are in benchmarks/results/NAME-tables.md.
        title: of its pictures.
        settings: of its rows.
        taps: set by whose distance its rows are compared.
        dropout: whether the checkpoint has dropout.
        data: its splits.
        members: what is trained.
        single: the checkpoint.
        bundles: that are made and kept.
    """

    name: str
    title: str
    settings: Settings
    taps: str
    dropout: bool = True
    data: Data
    members: Any
    single: Path
    bundles: Bundles

    def rows(self, *, deep: bool = True, lora: bool = True) -> Rows:
        """All rows; members of the Deep Ensemble and adapters are trained if asked for."""
        checkpoints = self.members.deep() if deep else []
        adapters = self.members.adapted() if lora else None
        return Rows(self.bundles, self.settings, self.single, checkpoints, adapters, self.dropout)
