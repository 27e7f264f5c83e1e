"""What a lower rank of the distance in feature space loses: detection and noise, on texts of 5, 50 and 150 classes.

    python benchmarks/distance_rank.py ../shared Few-Shot-Intent-Detection/Datasets -o distance-rank.json

Takes the folder that holds ``models/minilm-clinc150`` and ``data/clinc150``, and the folder ``Datasets`` of
github.com/jianguoz/Few-Shot-Intent-Detection (fa95533). CLINC150 has its checkpoint; of BANKING77-OOS (Zhang et al.
2022: 50 intents, queries of 27 other intents of the bank, and of no bank) and of SNIPS (5 intents, 2 held out), a
MiniLM-L6 is fine-tuned from each seed and kept in ``--work``. The distance is that of the single model, by three sets
of taps; at a lower rank it is fitted with several draws of its random directions. The table of the
test splits is written into docs/explanation/decisions.md.

With ``--forms -o distance-forms.json`` it tells, on the validation splits, what may be read of the trunk: some of its
layers, of each the first token, the mean, or both, weighed as much as the last vectors. That table stands there, too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from harness import about
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
from study_table import put_into, table
from training import Recipe, as_json, cached, fresh_minilm, train_on_texts

RANKS = (16, 32, 64, 128)
"""Beside the whole width, and what ``calibrate`` takes by itself."""

SEVERITY = 3
"""Of typing errors: 30 % of the words."""

TAPS = ("means", "balanced", "last")
"""Sets of taps; *balanced* has all that the others have."""

NOISE = "noise flagged"
"""The figure of noisy texts that are answered rightly."""

DOCUMENT = Path(__file__).parents[1] / "docs/explanation/decisions.md"

SNIPS = Recipe(seed=0, epochs=3, learning_rate=1e-4, batch_size=32, matmul="medium")
BANKING = replace(SNIPS, epochs=6)


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
    known = {
        split: read_examples(folder / f"{name}.csv", labels)
        for split, name in {"train": "train", "validation": "val", "test": "test"}.items()
    }
    outside = {"validation": "oos_val", "test": "oos_test"}
    texts = {split: read_examples(folder / f"{name}.csv", None).inputs for split, name in outside.items()}
    return Case(checkpoint, known, {f"out of scope, {split}": found for split, found in texts.items()})


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
    read = {split: read_lines(folder / name) for split, name in {"train": "train", "validation": "valid"}.items()}
    read["test"] = read_lines(folder / "test")
    names, rng = sorted(set(read["train"][1])), np.random.default_rng(seed)
    held = {names[place] for place in rng.choice(len(names), 2, replace=False)}
    rows = rng.permutation(len(read["train"][0]))[:most]
    read["train"] = tuple([part[row] for row in rows] for part in read["train"])  # type: ignore[assignment]
    known = {
        split: (
            [text for text, label in zip(*part, strict=True) if label not in held],
            [label for label in part[1] if label not in held],
        )
        for split, part in read.items()
    }
    unknown = {
        f"other intents, {split}": [text for text, label in zip(*read[split], strict=True) if label in held]
        for split in ("validation", "test")
    }
    return fine_tuned(known, unknown, replace(SNIPS, seed=seed), shared, work / f"snips-{seed}")


Lines = tuple[list[str], list[str]]
"""Texts, and the label of each."""


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


def measured(case: Case, work: Path, draws: int, forms: bool = False) -> list[dict[str, Any]]:
    """What the distance of the single model tells by each set of taps, at each rank and from each draw."""

    def make(folder: Path) -> dict[str, Any]:
        hydrant.save_bundle(hydrant.fuse(case.checkpoint), folder / "single", load_processor(case.checkpoint, "text"))
        return {}

    kept_in = cached(work / "bundles" / case.checkpoint.name, {"checkpoint": trained(case.checkpoint)}, make)
    opened = hydrant.Bundle.open(kept_in / "single")
    return by_taps(opened, case, () if forms else (None, *RANKS), draws, forms)


def by_taps(
    opened: hydrant.Bundle, case: Case, ranks: Sequence[int | None], draws: int, forms: bool = False
) -> list[dict[str, Any]]:
    """What the distance of a bundle tells by each set of taps, or :func:`forms_of` them, at some ranks and its own."""
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
    """What may be read of the trunk, besides the last vectors: some of its layers, of each its first token or mean."""
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
    """Distances of every split. Directions are drawn by the names of taps: another draw has other names.

    Args:
        fit: of ``taps``.
        taps: of the features [N, K, d].
        chosen: name of a set, and its taps.
        how: rank, and which draw.
        features: of every split.
    """
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
    """AUROC and FPR95 of each unknown set, and what is flagged of noisy texts that are still answered rightly."""
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


def markdown(rows: Sequence[Mapping[str, Any]], split: str = "test") -> str:
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


def markdown_of_forms(rows: Sequence[Mapping[str, Any]], split: str = "validation") -> str:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path, help="folder with models/ and data/")
    parser.add_argument("datasets", type=Path, help="folder with BANKING77-OOS/ and SNIPS/")
    parser.add_argument("--work", type=Path, default=Path("out/rank"), help="folder of what takes long")
    parser.add_argument("--seeds", type=int, default=3, help="of training")
    parser.add_argument("--draws", type=int, default=3, help="of random directions")
    parser.add_argument(
        "--forms", action="store_true", help="measure what to read of the trunk; no document is written"
    )
    parser.add_argument("-o", "--output", type=Path, help="JSON file to write")
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="gets the table")
    options = parser.parse_args()
    banks, intents = options.datasets / "BANKING77-OOS", options.datasets / "SNIPS"
    seeds, places = range(options.seeds), (options.shared, options.work)
    cases: list[tuple[str, int, Callable[[], Case]]] = [
        ("CLINC150", 0, lambda: clinc150(options.shared)),
        *(("BANKING77-OOS", seed, lambda seed=seed: banking(banks, *places, seed)) for seed in seeds),
        *(("SNIPS", seed, lambda seed=seed: snips(intents, *places, seed)) for seed in seeds),
    ]
    rows = []
    for name, seed, make in cases:
        for row in measured(make(), options.work, options.draws, options.forms):
            rows.append({"data": name, "seed": seed, **row})
            print(json.dumps(rows[-1]), flush=True)
    text, name = (markdown_of_forms(rows), "forms") if options.forms else (markdown(rows), "rank")
    put_into(options.document, text, name)
    if options.output:
        options.output.write_text(json.dumps({**about({}), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
