"""Packed-Ensembles from scratch, for whoever has no pre-trained model: CLINC150, the shape of its MiniLM.

    python benchmarks/packed.py ../shared -o … --document docs/research/findings.md

Packed-Ensembles (Laurent et al. 2023): M = 4 members of α ÷ M = half the width, heads and intermediate width (γ = 1),
with embeddings of their own. They are trained in one loop on the same batches by the sum of their losses; since they
share no parameter, each member's gradients are those of its own loss. They are then fused with everything separate.
Nothing has dropout: with 0.1 the loss stays on its first plateau for more than an epoch.
Rivals from random weights, by the same recipe: one model, ``hydrant.make`` on it, and Deep Ensembles, each of three
models of its own seeds. Last rows: the pre-trained checkpoint, calibrated, and ``hydrant.make`` on it, as
``rivals.py`` made them. Half of the validation data calibrates (``make`` divides them itself), the training data fit
the distance, test data report. Operations at 128 tokens ÷ those of the single model's graph before exact rewrites.
Latency of the FP32 graphs with their distance on ONNX Runtime, at batch 1 and the median length, ÷ the single model's
plain graph: seed 0, interleaved in one process.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import hydrant
import rivals
import torch
import transformers
from hydrant.evaluation.report import REPORT
from hydrant.metrics.timing import Rules
from hydrant.models.plan_cost import cost_of
from rivals import DECISIONS, FIGURES, decision_cells, figure_cells, values_of, write_tables
from study_figures import latencies
from study_subjects import Clinc150, TextMembers
from teaching import Study
from training import Recipe

MEMBERS, ALPHA = 4, 2
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
WIDTHS = ("hidden_size", "num_attention_heads", "intermediate_size")
SINGLE, PACKED, DEEP = "single model", f"Packed-Ensemble, M = {MEMBERS}, α = {ALPHA}", "Deep Ensemble of three"
MADE, PRETRAINED, PRETRAINED_MADE = "`hydrant make`", "pre-trained: single model", "pre-trained: `hydrant make`"
TITLE = "Without a pre-trained model: clinc150"
BUNDLES = {SINGLE: "single", PACKED: "packed-ensemble", DEEP: "deep", MADE: "made"}


class Scratch(TextMembers):
    """Models of the reference's shape with random weights."""

    base_name = "random weights"
    recipe = Recipe(seed=0, epochs=4, learning_rate=3e-4, batch_size=64, warmup=0.1, matmul="medium")

    def fresh(self, seed: int) -> Any:
        torch.manual_seed(seed)
        return self.model()

    def model(self, **shape: int) -> Any:
        config = transformers.AutoConfig.from_pretrained(self.reference, **NO_DROPOUT, **shape)
        return transformers.BertForSequenceClassification(config)


class PackedScratch(Scratch):
    """Narrow models trained together; a checkpoint is a folder of their checkpoints."""

    base_name = f"random weights, M = {MEMBERS}, alpha = {ALPHA}"

    def fresh(self, seed: int) -> Any:
        torch.manual_seed(seed)
        config = transformers.AutoConfig.from_pretrained(self.reference)
        narrow = {name: getattr(config, name) * ALPHA // MEMBERS for name in WIDTHS}
        return Together(self.model(**narrow) for _ in range(MEMBERS))


class Together(torch.nn.ModuleList):
    """Models that are trained by the sum of their losses."""

    def forward(self, **batch: Any) -> Any:
        return SimpleNamespace(loss=sum(model(**batch).loss for model in self))

    def save_pretrained(self, folder: Path) -> None:
        for place, model in enumerate(self):
            model.save_pretrained(folder / f"member-{place}")


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--work", type=Path, default=Path("out/studies/packed"), help="cache folder")
    parser.add_argument("--rivals", type=Path, default=Path("out/studies/clinc150"), help="cache folder of rivals.py")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--deep", type=int, default=3, help="number of Deep Ensembles")
    parser.add_argument("--epochs", type=int, default=Scratch.recipe.epochs, help="of training from scratch")
    parser.add_argument("--document", type=Path, help="page that shows the first table")
    options = parser.parse_args()
    work = options.work / f"epochs-{options.epochs}"
    subject = Clinc150(options.shared, work, 1)
    reference, arguments = subject.single, (subject.members.processor, subject.data.train)
    singles = Scratch(reference, *arguments, work, 1)
    packed = PackedScratch(reference, *arguments, work / "packed", 1)
    singles.recipe = packed.recipe = replace(Scratch.recipe, epochs=options.epochs)
    study = Study(subject, work, None, None, lambda _: [singles.full(0)], quick=False)
    report: dict[str, Any] = {**harness.about(subject.data.sizes()), "epochs": options.epochs, "rows": {}}
    title = f"{TITLE}, {options.epochs} epochs"

    def add(name: str, row: dict[str, Any], bundle: Path) -> None:
        row["operations"] = cost_of(hydrant.Bundle.open(bundle)).fused.flops / full
        report["rows"].setdefault(name, []).append(row)
        harness.save(options.output, report)

    def fused(name: str, seed: int, trained: list[Path]) -> None:
        place, models = f"{BUNDLES[name]}-{seed}", [part for each in trained for part in members_in(each)]
        row = study.remembered(place, partial(study.fused, models=models))
        seconds = sum(json.loads((each / "recipe.json").read_text())["seconds"] for each in trained)
        add(name, {**row, "training_seconds": seconds}, work / place)

    full = cost_of(hydrant.Bundle.open(options.rivals / "made-0")).single.flops
    for seed in range(options.seeds):
        fused(SINGLE, seed, [singles.full(seed)])
        fused(PACKED, seed, [packed.full(seed)])
        add(MADE, made(study, singles.full(seed), work / f"made-{seed}", seed), work / f"made-{seed}")
        bundle = options.rivals / f"made-{seed}"
        models = rivals.run(subject, bundle, seed)["models"]
        add(PRETRAINED_MADE, row_of(models[0]), bundle)
        add(PRETRAINED, row_of(models[1]), work / "single-0")
        write_tables(options.output, title, tables(report))
    for seed in range(options.deep):
        fused(DEEP, seed, [singles.full(3 * seed + place) for place in range(3)])
    timed = {
        "single" if name == SINGLE else name: work / f"{BUNDLES[name]}-0" for name in BUNDLES if name in report["rows"]
    }
    timed[PRETRAINED_MADE] = options.rivals / "made-0"
    times = latencies(timed, subject.data.test, [1], Rules(seconds=4.0))
    report["latency"] = {name: row["1"] for name, row in times.items()}
    harness.save(options.output, report)
    write_tables(options.output, title, tables(report))
    if options.document:
        harness.put_into(options.document, tables(report).partition("\n\n")[0], "packed")


def members_in(checkpoint: Path) -> list[Path]:
    """The narrow checkpoints in a packed one; of any other, itself."""
    return sorted(checkpoint.glob("member-*")) or [checkpoint]


def made(study: Study, model: Path, place: Path, seed: int) -> dict[str, Any]:
    """Row of the bundle that ``make`` writes from a model, now or earlier."""
    done, data = place.with_suffix(".json"), study.subject.data
    if not done.is_file():
        hydrant.make(
            model, data.train, data.validation, data.ood_validation, output=place, test=data.test,
            test_ood=data.ood_test, seed=seed, force=place.exists(), say=print,
        )  # fmt: skip
        done.write_text(json.dumps(row_of(hydrant.Bundle.open(place).read_json(REPORT)["models"][0])))
    return json.loads(done.read_text())


def row_of(model: dict[str, Any]) -> dict[str, Any]:
    """Figures and decisions of a model in a stored report."""
    return {"figures": values_of(model), "decisions": model["decisions"]}


def tables(report: dict[str, Any]) -> str:
    """Means over the seeds with their range; detection as AUROC / FPR95."""
    latency = {name: f"{ratio['median']:.2f}" for name, ratio in report.get("latency", {}).items()}
    latency[SINGLE] = latency[PRETRAINED] = latency.get("single", "–")  # the same graph with other numbers
    lines, decisions = [], []
    for name in (SINGLE, PACKED, DEEP, MADE, PRETRAINED, PRETRAINED_MADE):
        if rows := report["rows"].get(name):
            cells = figure_cells([row["figures"] for row in rows])
            lines.append([name, f"{rows[0]['operations']:.2f}", latency.get(name, "–"), *cells])
            decisions.append([name, *decision_cells(rows)])
    head = ["", "operations", "latency", *FIGURES.values()]
    return f"{harness.table(head, lines)}\n\n{harness.table(['', *DECISIONS.values()], decisions)}"


if __name__ == "__main__":
    main()
