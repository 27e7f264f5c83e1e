"""Detection by the distance in feature space: at lower ranks, by other taps, and of tuned late forks.

    python benchmarks/distance_taps.py rank ../shared --datasets Few-Shot-Intent-Detection/Datasets -o rank.json
    python benchmarks/distance_taps.py forms ../shared --datasets Few-Shot-Intent-Detection/Datasets -o forms.json
    python benchmarks/distance_taps.py forks ../shared -o benchmarks/results/distance-forks.json

Takes the folder that holds ``models/minilm-clinc150`` and ``data/clinc150``, and the folder ``Datasets`` of
github.com/jianguoz/Few-Shot-Intent-Detection (fa95533). CLINC150 has its checkpoint; of BANKING77-OOS (Zhang et al.
2022: 50 intents, queries of 27 other intents of the bank, and of no bank) and of SNIPS (5 intents, 2 held out), a
MiniLM-L6 is fine-tuned from each seed and kept in ``--work``.

``rank``: the distance of the single model by three sets of taps, at each rank, fitted with several draws of its random
directions; on the test splits. ``forms``: some layers of the trunk, of each the first token, the mean, or both, weighed
as much as the last vectors; on the validation splits. Both write a table of docs/explanation/decisions.md. ``forks``:
the single model, and the forks of CLINC150's study that cost about as much, tuned from three seeds each; every set of
taps has the rank that ``calibrate`` gives it. The table is written into docs/studies/clinc150.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from harness import ROOT, table
from hydrant.calib.decisions.thresholds import false_alarm_threshold
from hydrant.calib.density import DensityFit, squared_distances, standardised, usual_rank
from hydrant.calib.taps import named_taps
from hydrant.data.corruptions import typos
from hydrant.data.examples import Examples, read_examples
from hydrant.families.checkpoint import load_model, load_processor, model_labels
from hydrant.fusion import load_reference
from hydrant.measure.features import by_set, standardised_by
from hydrant.metrics.classification import fpr95
from hydrant.metrics.uncertainty import area_under_roc
from hydrant.runtime.backends.reference import TorchFeatures
from hydrant.runtime.collect import collect
from study import trained
from study_clinc150 import FORKS, Clinc150
from study_rows import SINGLE, TUNED
from training import Recipe, as_json, cached, fresh_minilm, train_on_texts

RANKS = (16, 32, 64, 128)
"""Beside the whole width, and the default of ``calibrate``."""
SEVERITY = 3
"""Of typing errors: 30 % of the words."""
TAPS = ("means", "balanced", "last")
"""Sets of taps; *balanced* has all that the others have."""
COSTS = (0.9, 1.05)
"""Of the forks: operations, those of the plain single model being 1."""
NOISE = "noise flagged"
"""The figure of noisy texts that are answered rightly."""
SNIPS = Recipe(seed=0, epochs=3, learning_rate=1e-4, batch_size=32, matmul="medium")
BANKING = replace(SNIPS, epochs=6)

Rows = list[dict[str, Any]]
Lines = tuple[list[str], list[str]]
"""Texts, and the label of each."""


@dataclass(frozen=True)
class Case:
    """A checkpoint and its data.

    Attributes:
        checkpoint: folder.
        known: split (``train``, ``validation``, ``test``) → texts of its classes.
        unknown: name → texts of others: of each ``NAME, validation`` and ``NAME, test``.
    """

    checkpoint: Path
    known: Mapping[str, Examples]
    unknown: Mapping[str, Sequence[str]]


def clinc150(shared: Path) -> Case:
    checkpoint, folder = shared / "models/minilm-clinc150", shared / "data/clinc150"
    labels = model_labels(load_model(checkpoint).config)
    splits = {"train": "train", "validation": "val", "test": "test"}
    known = {split: read_examples(folder / f"{name}.csv", labels) for split, name in splits.items()}
    outside = {split: folder / f"oos_{splits[split]}.csv" for split in ("validation", "test")}
    unknown = {f"out of scope, {split}": read_examples(path, None).inputs for split, path in outside.items()}
    return Case(checkpoint, known, unknown)


def banking(folder: Path, shared: Path, work: Path, seed: int) -> Case:
    splits = {"train": "train", "validation": "valid", "test": "test"}
    read = {split: read_lines(folder / name) for split, name in splits.items()}
    unknown = {
        f"{kind}, {split}": read_lines(folder / name / splits[split])[0]
        for kind, name in {"other intents": "id-oos", "no bank": "ood-oos"}.items()
        for split in ("validation", "test")
    }
    return fine_tuned(read, unknown, replace(BANKING, seed=seed), shared, work / f"banking77-oos-{seed}")


def snips(folder: Path, shared: Path, work: Path, seed: int, most: int = 3000) -> Case:
    """Two of seven intents are unknown, others from each seed."""
    splits = {"train": "train", "validation": "valid", "test": "test"}
    read = {split: read_lines(folder / name) for split, name in splits.items()}
    names, rng = sorted(set(read["train"][1])), np.random.default_rng(seed)
    held = {names[place] for place in rng.choice(len(names), 2, replace=False)}
    rows = rng.permutation(len(read["train"][0]))[:most]
    read["train"] = tuple([part[row] for row in rows] for part in read["train"])  # type: ignore[assignment]

    def some(lines: Lines, unknown: bool) -> Lines:
        chosen = [place for place, label in enumerate(lines[1]) if (label in held) == unknown]
        return [lines[0][place] for place in chosen], [lines[1][place] for place in chosen]

    known = {split: some(part, unknown=False) for split, part in read.items()}
    unknown = {f"other intents, {split}": some(read[split], unknown=True)[0] for split in ("validation", "test")}
    return fine_tuned(known, unknown, replace(SNIPS, seed=seed), shared, work / f"snips-{seed}")


def read_lines(folder: Path) -> Lines:
    texts, labels = ((folder / name).read_text(encoding="utf-8").splitlines() for name in ("seq.in", "label"))
    if len(texts) != len(labels):
        raise SystemExit(f"{folder} has {len(texts)} texts and {len(labels)} labels; expected as many of each")
    filled = [place for place, text in enumerate(texts) if text.strip()]  # one of BANKING77-OOS is empty
    return [texts[place] for place in filled], [labels[place] for place in filled]


def fine_tuned(
    read: Mapping[str, Lines], unknown: Mapping[str, Sequence[str]], recipe: Recipe, shared: Path, folder: Path
) -> Case:
    """MiniLM-L6 fine-tuned on the training split, in ``folder``."""
    labels = sorted(set(read["train"][1]))
    known = {
        split: Examples(texts, np.array([labels.index(label) for label in names]), split)
        for split, (texts, names) in read.items()
    }
    tokenizer = load_processor(shared / "models/minilm-clinc150", "text")

    def make(kept: Path) -> dict[str, Any]:
        model = fresh_minilm(labels, recipe.seed)
        losses = train_on_texts(model, known["train"], tokenizer, recipe)
        model.save_pretrained(kept)
        tokenizer.save_pretrained(kept)
        return {"losses": losses}

    sizes = {split: len(examples) for split, examples in known.items()}
    return Case(cached(folder, as_json(recipe, sizes=sizes, labels=labels), make), known, unknown)


def measured(case: Case, work: Path, draws: int, forms: bool = False) -> Rows:
    """Figures of the single model by each set of taps, at each rank and from each draw."""

    def make(folder: Path) -> dict[str, Any]:
        hydrant.save_bundle(hydrant.fuse(case.checkpoint), folder / "single", load_processor(case.checkpoint, "text"))
        return {}

    kept_in = cached(work / "bundles" / case.checkpoint.name, {"checkpoint": trained(case.checkpoint)}, make)
    opened = hydrant.Bundle.open(kept_in / "single")
    return by_taps(opened, case, () if forms else (None, *RANKS), draws, forms)


def by_taps(opened: hydrant.Bundle, case: Case, ranks: Sequence[int | None], draws: int, forms: bool = False) -> Rows:
    """Figures of a bundle by each set of taps, or by :func:`forms_of` them, at some ranks and its default one."""
    ensemble = load_reference(opened)
    sets = {name: named_taps(name, ensemble.architecture, ensemble.trunk, ensemble.members)[name] for name in TAPS}
    taps = sets["balanced"]
    if forms:
        sets = forms_of(taps)
    noisy = {f"typing errors, {split}": typos(case.known[split].inputs, SEVERITY) for split in ("validation", "test")}
    texts = {**{split: known.inputs for split, known in case.known.items()}, **case.unknown, **noisy}
    with TorchFeatures(ensemble, taps) as model:
        processor = opened.processor_for("measure its distance")
        outputs = {
            name: collect(model, processor, ensemble.architecture, given, kept, batch_size=64)
            for name, given in texts.items()
        }
    features = {name: found.pop("features") for name, found in outputs.items()}
    train_features, labels, rows = features.pop("train"), case.known["train"].labels, []
    fit = DensityFit(taps, ensemble.architecture.classes, ensemble.architecture.width)
    for start in range(0, len(labels), 1024):
        fit.add(train_features[start : start + 1024], labels[start : start + 1024])
    for name, chosen in sets.items():
        usual = usual_rank(ensemble.architecture, chosen, fit.seen)
        for rank in dict.fromkeys([*ranks, usual]):
            for draw in range(draws if rank is not None else 1):
                how = ("balanced" if forms else name, chosen), (rank, draw)
                distances = standardised_distances(fit, taps, *how, features)
                row: dict[str, Any] = {"taps": name, "rank": rank, "usual": rank == usual, "draw": draw}
                for split in ("validation", "test"):
                    row[split] = figures(distances, outputs, case, split)
                rows.append(row)
    return rows


def forms_of(taps: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Some layers of the trunk, of each its first token or mean, beside the last vectors."""
    ends = tuple(tap for tap in taps if tap.startswith("last."))
    layers = sorted({int(tap.split(".")[1]) for tap in taps if tap not in ends})
    some = {"every layer": layers, "every second": layers[::-2][::-1], "last two": layers[-2:], "last": layers[-1:]}
    kinds = {"first and mean": ("first", "mean"), "first": ("first",), "mean": ("mean",)}
    return {
        f"{of}, {name}": (*(f"layers.{layer}.{kind}" for layer in chosen for kind in each), *ends)
        for of, chosen in some.items()
        for name, each in kinds.items()
    }


def kept(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"class": outputs["member_logits"].mean(axis=1).argmax(axis=-1), "features": outputs["features"]}


def standardised_distances(
    fit: DensityFit,
    taps: tuple[str, ...],
    chosen: tuple[str, tuple[str, ...]],
    how: tuple[int | None, int],
    features: Mapping[str, np.ndarray],
) -> dict[str, np.ndarray]:
    """Distances of every split. Directions are drawn by the names of taps: another draw has other names."""
    (name, wanted), (rank, draw) = chosen, how
    fit.taps = tuple(f"{tap}{' ' * draw}" for tap in taps)
    places = [taps.index(tap) for tap in wanted]
    density = replace(fit.density({}, rank, [fit.taps[place] for place in places]), taps=wanted)
    squared = {split: squared_distances(density, found[:, places]) for split, found in features.items()}
    density = by_set(standardised_by(density, squared["validation"]), name)
    return {split: standardised(density, found) for split, found in squared.items()}


def figures(
    distances: Mapping[str, np.ndarray], outputs: Mapping[str, Mapping[str, np.ndarray]], case: Case, split: str
) -> dict[str, float]:
    """AUROC and FPR95 of each unknown set, and the share flagged of noisy texts that are still answered rightly."""
    inside, found = distances[split], {}
    for name in case.unknown:
        kind, _, of = name.rpartition(", ")
        if of == split:
            found[f"{kind}, AUROC"] = float(area_under_roc(inside, distances[name]))
            found[f"{kind}, FPR95"] = float(fpr95(inside, distances[name]))
    noisy = f"typing errors, {split}"
    right = outputs[noisy]["class"] == case.known[split].labels
    threshold = false_alarm_threshold(distances["validation"], 0.05, np.inf)
    return {**found, NOISE: float((distances[noisy][right] > threshold).mean())}


def single_rows(options: argparse.Namespace, forms: bool) -> Rows:
    """Rows of the single models of all data sets."""
    places, seeds = (options.shared, options.work), range(options.seeds)
    cases: list[tuple[str, int, Callable[[], Case]]] = [
        ("CLINC150", 0, lambda: clinc150(options.shared)),
        *(("BANKING77-OOS", s, lambda s=s: banking(options.datasets / "BANKING77-OOS", *places, s)) for s in seeds),
        *(("SNIPS", seed, lambda seed=seed: snips(options.datasets / "SNIPS", *places, seed)) for seed in seeds),
    ]
    return [
        {"data": name, "seed": seed, **row}
        for name, seed, make in cases
        for row in measured(make(), options.work, options.draws, forms)
    ]


def fork_rows(options: argparse.Namespace) -> Rows:
    """Rows of the single model and the forks of CLINC150's study."""
    rows = Clinc150(options.shared, options.work, jobs=1).rows(deep=False, lora=False)
    case, named = clinc150(options.shared), dict(zip(FORKS, rows.forks, strict=True))
    return [
        {"row": name, "seed": seed, **row}
        for name in (SINGLE, *(f"{named[cost]}{TUNED}" for cost in COSTS))
        for seed in rows.seeds(name)
        for row in by_taps(hydrant.Bundle.open(rows.bundle(name, seed)), case, (), 1)
    ]


def rank_table(rows: Sequence[Mapping[str, Any]], split: str = "test") -> str:
    """A line for each figure: at the whole width, and what lower ranks add to it, mean and range of seeds and draws."""
    whole = {(row["data"], row["taps"], name, row["seed"]): value
             for row in rows if row["rank"] is None for name, value in row[split].items()}  # fmt: skip
    ways = {str(rank): lambda row, rank=rank: row["rank"] == rank for rank in RANKS}
    ways["by itself"] = lambda row: row["usual"]
    lines = []
    for data, taps, name in dict.fromkeys(key[:3] for key in whole):
        found = np.mean([value for key, value in whole.items() if key[:3] == (data, taps, name)])
        lines.append([data, taps, name, f"{found:.3f}"])
        for chosen in ways.values():
            there = [row for row in rows if (row["data"], row["taps"]) == (data, taps) and chosen(row)]
            more = np.array([row[split][name] - whole[data, taps, name, row["seed"]] for row in there])
            alike = all(row["rank"] is None for row in there)
            lines[-1].append("the whole" if alike else f"{more.mean():+.3f} ({more.min():+.3f} to {more.max():+.3f})")
    return table(["data", "taps", "figure", "the whole width, 384", *ways], lines)


def form_table(rows: Sequence[Mapping[str, Any]], split: str = "validation") -> str:
    """A line for each form: AUROC / FPR95 of each unknown set, and noise that is flagged, means of the checkpoints."""
    kinds = {(row["data"], name.rpartition(", ")[0]): None for row in rows for name in row[split]}
    lines = []
    for form in dict.fromkeys(row["taps"] for row in rows):
        lines.append([form])
        for data, kind in kinds:
            there = [row[split] for row in rows if (row["taps"], row["data"]) == (form, data)]
            names = [f"{kind}, AUROC", f"{kind}, FPR95"] if kind else [NOISE]
            lines[-1].append(" / ".join(f"{np.mean([found[name] for found in there]):.3f}" for name in names))
    return table(["", *(f"{data}, {kind or NOISE}" for data, kind in kinds)], lines)


def fork_table(rows: Sequence[Mapping[str, Any]], split: str = "test") -> str:
    """A line for each row and set of taps, mean and range of its seeds."""
    lines = []
    for name in dict.fromkeys(row["row"] for row in rows):
        for taps in TAPS:
            there = [row for row in rows if (row["row"], row["taps"]) == (name, taps)]
            rank = there[0]["rank"]
            lines.append([name, taps, "the whole" if rank is None else str(rank)])
            lines[-1] += [_spread([row[split][figure] for row in there]) for figure in there[0][split]]
    return table(["", "taps", "rank", *rows[0][split]], lines)


def _spread(values: Sequence[float]) -> str:
    mean = f"{np.mean(values):.3f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.3f} to {max(values):.3f})"


QUESTIONS: dict[str, tuple[Callable[[argparse.Namespace], Rows], Callable[[Rows], str], str, str]] = {
    "rank": (lambda options: single_rows(options, forms=False), rank_table, "docs/explanation/decisions.md", "rank"),
    "forms": (lambda options: single_rows(options, forms=True), form_table, "docs/explanation/decisions.md", "forms"),
    "forks": (fork_rows, fork_table, "docs/studies/clinc150.md", "forks-distance"),
}
"""What measures and writes the table of each question; its document, and the mark there."""


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("--datasets", type=Path, help="folder with BANKING77-OOS/ and SNIPS/, not of forks")
    parser.add_argument(
        "--work", type=Path, help="folder of what takes long (default out/rank or out/studies/clinc150)"
    )
    parser.add_argument("--seeds", type=int, default=3, help="of training (default 3)")
    parser.add_argument("--draws", type=int, default=3, help="of random directions (default 3)")
    parser.add_argument("--document", type=Path, help="gets the table")
    options = parser.parse_args()
    if options.question != "forks" and options.datasets is None:
        parser.error(f"--datasets is missing; {options.question} needs the folder of BANKING77-OOS and SNIPS")
    options.work = options.work or Path("out/studies/clinc150" if options.question == "forks" else "out/rank")
    measure, markdown, document, mark = QUESTIONS[options.question]
    rows = measure(options)
    harness.put_into(options.document or ROOT / document, markdown(rows), mark)
    harness.save(options.output, {**harness.about(), "rows": rows})


if __name__ == "__main__":
    main()
