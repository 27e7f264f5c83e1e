"""What the studies share: bundles made once, calibrated alike, measured on the same data, and one table of them.

Every competitor is a hydrant bundle: planned, fused, tuned, calibrated, evaluated and exported by the package's own
verbs. Whatever takes long is kept in a working folder with how it was made (``training.cached``), so that an
interrupted study goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import study_figures as figures
import study_table as tables
from hydrant.calib.decisions.temperature import fit_temperature
from hydrant.calib.heads.options import METHODS
from hydrant.calib.heads.selection import choose_heads
from hydrant.data.examples import Examples
from hydrant.metrics.timing import Rules
from training import cached, matmul

REFERENCE = "Deep Ensemble"
"""The row that the others are compared with, on the same bootstrap draws."""

PLAIN_ROWS = ("single", "Taylor single", "CircAvg", "Hydra Taylor", "Hydra Circ")
"""The rows of the one checkpoint, in the table's order."""

TUNED_ROWS = ("single", "CircAvg", "Hydra Taylor", "Hydra Circ")
"""Those that are also tuned; Taylor single stands for the ablation alone."""

PACKAGES = ("torch", "transformers", "onnxruntime", "numpy", "peft")


@dataclass(frozen=True)
class Data:
    """The splits: ``validation`` and ``ood_validation`` choose and calibrate, the test splits only report."""

    train: Examples
    validation: Examples
    ood_validation: Examples
    test: Examples
    ood_test: Examples

    def sizes(self) -> dict[str, int]:
        return {name: len(examples) for name, examples in vars(self).items()}


class Bundles:
    """Makes the bundles of a study, each once, in ``work``; plans and tunes in a precision of ``training.matmul``."""

    def __init__(self, work: Path, data: Data, processor: Any, precision: str = "highest") -> None:
        self.work, self.data, self.processor, self.precision = work, data, processor, precision

    def joined(self, name: str, checkpoints: Sequence[Path]) -> Path:
        """The checkpoint as it is, or an exact Deep Ensemble of several."""
        separate = ["all"] if len(checkpoints) > 1 else []

        def make(folder: Path) -> dict[str, Any]:
            models = checkpoints if separate else checkpoints[0]
            return self._save(hydrant.fuse(models, keep_separate=separate), folder)

        return self._kept(name, {"checkpoints": list(map(trained, checkpoints))}, make)

    def adapted(self, name: str, base: Path, adapters: Sequence[Path]) -> Path:
        """A LoRA-Ensemble: PEFT adapters of one base model."""

        def make(folder: Path) -> dict[str, Any]:
            return self._save(hydrant.fuse(base, adapters=list(adapters)), folder)

        return self._kept(name, {"adapters": list(map(trained, adapters))}, make)

    def pruned(self, name: str, checkpoint: Path, data: str, ood: str | None = None, **settings: Any) -> Path:
        """Post hoc: the members are prunings of one checkpoint, planned on the splits named."""

        def make(folder: Path) -> dict[str, Any]:
            shape = {name: settings[name] for name in ("members", "keep", "fork_from", "seed")}
            how = {name: value for name, value in settings.items() if name not in (*shape, "method")}
            how |= {"ood": getattr(self.data, ood), "max_accuracy_loss": 100} if ood else {}  # circuits as they are
            method = METHODS[settings["method"]](**how)
            with matmul(self.precision):
                plan = hydrant.plan_heads(
                    checkpoint, getattr(self.data, data), method, processor=self.processor, **shape
                )
            return self._save(hydrant.fuse(checkpoint, plan), folder) | {"overlap": plan.overlap()["mean"]}

        recipe = {"checkpoint": trained(checkpoint), "data": data, "ood": ood, "plan": settings}
        return self._kept(name, recipe, make)

    def averaged(self, name: str, checkpoint: Path, circuits: Path) -> Path:
        """CircAvg of the circuits that another bundle was planned by."""

        def make(folder: Path) -> dict[str, Any]:
            plan = hydrant.Bundle.open(circuits).plan()
            return self._save(hydrant.fuse(checkpoint, average(plan)), folder)

        return self._kept(name, {"average of": made_by(circuits)}, make)

    def tuned(self, name: str, source: Path, *, seed: int, batch_size: int = 32, **settings: Any) -> Path:
        """All members of a bundle fine-tuned jointly on the training split."""

        def make(folder: Path) -> dict[str, Any]:
            known, held_out = self.data.train, self.data.validation
            with matmul(self.precision):
                report = hydrant.tune(
                    source, known, hydrant.Jointly(**settings), validation=held_out, output=folder / name,
                    reading=hydrant.Reading(batch_size=batch_size), seed=seed,
                )  # fmt: skip
            return {"report": json.loads(json.dumps(report.to_json(), default=str))}

        return self._kept(
            name, {"source": made_by(source), "tune": {"seed": seed, "batch_size": batch_size, **settings}}, make
        )

    def logits(self, source: Path, split: str) -> np.ndarray:
        """Member logits [N, M, C] of a bundle on a split."""

        def make(folder: Path) -> dict[str, Any]:
            np.save(folder / "logits.npy", figures.member_logits(source, getattr(self.data, split)))
            return {}

        recipe = {"source": made_by(source), "split": split, "size": len(getattr(self.data, split))}
        return np.load(cached(self.work / "logits" / f"{source.name}-{split}", recipe, make) / "logits.npy")

    def _save(self, ensemble: Any, folder: Path) -> dict[str, Any]:
        hydrant.save_bundle(ensemble, folder / folder.name.removesuffix(".partial"), self.processor)
        return {}

    def _kept(self, name: str, recipe: dict[str, Any], make: Any) -> Path:
        return cached(self.work / "bundles" / name, {"name": name, **recipe}, make) / name


def trained(checkpoint: Path) -> dict[str, Any]:
    """How a checkpoint was trained, or its name where the study did not train it."""
    known = (checkpoint / "recipe.json").is_file()
    return note_of(checkpoint)["recipe"] if known else {"checkpoint": checkpoint.name}


def note_of(folder: Path) -> dict[str, Any]:
    """What ``training.cached`` noted about a folder."""
    return json.loads((folder / "recipe.json").read_text())


def made_by(bundle: Path) -> dict[str, Any]:
    """How a bundle was made."""
    return note_of(bundle.parent)["recipe"]


def average(plan: hydrant.HeadPlan) -> hydrant.HeadPlan:
    """What ``Circuit(average=True)`` makes of the same circuits, from the scores that their plan records."""
    scores = plan.provenance["scores"]  # [circuits][layers], None where all heads are kept
    heads, layers = tuple(range(plan.heads)), [layer for layer in range(plan.layers) if scores[0][layer]]
    mean = np.stack([np.mean([rows[layer] for rows in scores], axis=0) for layer in layers])
    kept = choose_heads(mean, [len(plan.members[0][layer]) for layer in layers])
    member = tuple(kept[layers.index(layer)] if layer in layers else heads for layer in range(plan.layers))
    return hydrant.HeadPlan(plan.family, plan.layers, plan.heads, (member,), "circuit")


def slug(name: str) -> str:
    """A row's name as that of a folder."""
    return name.lower().replace(",", "").replace("+", "and").replace(" ", "-")


def results(rows: Mapping[str, Path], bundles: Bundles, resamples: int) -> list[dict[str, Any]]:
    """Every row's figures before and after calibration.

    Args:
        rows: row → bundle; holds ``"single"`` and the reference.
        bundles: with the data.
        resamples: of the bootstrap.
    """
    labels = bundles.data.test.labels
    before, after, temperatures = {}, {}, {}
    for name, path in rows.items():
        temperature = fit_temperature(bundles.logits(path, "validation"), bundles.data.validation.labels)
        inside, outside = bundles.logits(path, "test"), bundles.logits(path, "ood_test")
        before[name] = figures.measure(inside, labels, outside, 1.0, resamples)
        after[name] = figures.measure(inside, labels, outside, temperature, resamples)
        temperatures[name] = temperature
    plain, fitted = (figures.with_intervals(found, REFERENCE) for found in (before, after))
    return [
        {
            "name": name,
            "members": bundles.logits(path, "test").shape[1],
            "temperature": temperatures[name],
            "head_overlap": hydrant.Bundle.open(path).plan().overlap()["mean"],
            **figures.parameters(path),
            "made": made_by(path),
            "before": plain[name],
            "after": fitted[name],
        }
        for name, path in rows.items()
    ]


def about(command: str, data: Data) -> dict[str, Any]:
    """What ran: command, machine, versions, sizes."""
    return {
        "command": command,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": {"hydrant": hydrant.__version__, **{name: version(name) for name in PACKAGES}},
        "sizes": data.sizes(),
    }


@dataclass(frozen=True)
class Choice:
    """What was chosen on the validation splits.

    Attributes:
        keep: heads kept in each pruned layer.
        fork_from: first layer in which heads are pruned.
        taylor: further options of the Taylor plans, of ``hydrant.Taylor``.
        circuit: of the circuits, of ``hydrant.Circuit``.
        tune: of ``hydrant.Jointly``, and the batch size; empty for no tuned rows.
        members: M.
        seed: of plans and tuning.
    """

    keep: int = 8
    fork_from: int = 0
    taylor: Mapping[str, Any] = field(default_factory=dict)
    circuit: Mapping[str, Any] = field(default_factory=dict)
    tune: Mapping[str, Any] = field(default_factory=dict)
    members: int = 3
    seed: int = 0


def make_rows(
    bundles: Bundles, checkpoints: Sequence[Path], base: Path, adapters: Sequence[Path], choice: Choice
) -> dict[str, Path]:
    """Row → its bundle, not calibrated.

    Args:
        bundles: that makes them.
        checkpoints: of the Deep Ensemble; the first is the single model, from which every pruning is made.
        base, adapters: of the LoRA-Ensemble.
        choice: settings.
    """
    single = checkpoints[0]
    common = {"keep": choice.keep, "fork_from": choice.fork_from, "seed": choice.seed}
    taylor = {"data": "train", "method": "taylor", **common, **choice.taylor}
    circuit = {"data": "validation", "ood": "ood_validation", "method": "circuit", **common, **choice.circuit}
    plans: dict[str, dict[str, Any]] = {
        "Taylor single": {**taylor, "members": 1},
        "Hydra Taylor": {**taylor, "members": choice.members},
        "Hydra Circ": {**circuit, "members": choice.members},
    }
    made = {"single": bundles.joined("single", [single])}
    made |= {name: bundles.pruned(slug(name), single, **plan) for name, plan in plans.items()}
    made["CircAvg"] = bundles.averaged("circavg", single, made["Hydra Circ"])
    made |= {
        f"{name}, tuned": bundles.tuned(slug(f"{name}, tuned"), made[name], seed=choice.seed, **choice.tune)
        for name in (TUNED_ROWS if choice.tune else ())
    }
    made = {name: made[name] for plain in PLAIN_ROWS for name in (plain, f"{plain}, tuned") if name in made}
    made["LoRA-Ensemble"] = bundles.adapted("lora-ensemble", base, adapters)
    made[REFERENCE] = bundles.joined(slug(REFERENCE), checkpoints)
    return made


def add_options(parser: argparse.ArgumentParser, name: str) -> None:
    """The options that both studies have."""
    work, document = Path("out/studies") / name, Path(__file__).parents[1] / "docs/studies" / f"{name}.md"
    parser.add_argument("--work", type=Path, default=work, help=f"folder of what takes long (default {work})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trainings at a time (default: one a core)")
    parser.add_argument("--seconds", type=float, default=1.0, help="that each row is timed at least (default 1)")
    parser.add_argument("--no-tuning", action="store_true", help="leave the tuned rows out")
    parser.add_argument("--resamples", type=int, default=200, help="of the bootstrap (default 200)")
    parser.add_argument(
        "--document", type=Path, default=document, help=f"gets the tables (default docs/studies/{name}.md)"
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")


def command_line() -> str:
    """The command that runs, without the folder in which this machine keeps what takes long."""
    given = [Path(sys.argv[0]).name, *sys.argv[1:]]
    if "--work" in given:
        del given[given.index("--work") : given.index("--work") + 2]
    return f"python benchmarks/{shlex.join(given)}"


def finish(
    rows: Mapping[str, Path], bundles: Bundles, options: argparse.Namespace, command: str, facts: Mapping[str, Any]
) -> None:
    """Measure every row, and write the JSON file and the tables of the document."""
    found = results(rows, bundles, options.resamples)
    times = figures.latencies(
        rows, REFERENCE, bundles.data.test, (1, 8), Rules(options.seconds, iterations=30, warm_up=options.seconds / 5)
    )
    for row in found:
        row["latency"] = times[row["name"]]
    report = {**about(command, bundles.data), **facts, "resamples": options.resamples, "rows": found}
    report["latency"] = times
    text = tables.render(found)
    print(text)
    if options.output:
        options.output.write_text(json.dumps(report, indent=1, default=vars) + "\n")
    tables.put_into(options.document, text)
