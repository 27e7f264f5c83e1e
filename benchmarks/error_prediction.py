"""ViLU, a learned predictor of errors, beside scores of the same frozen classifier; three seeds of the predictor.

    python benchmarks/error_prediction.py clinc150 ../shared -o benchmarks/results/error-prediction.json
    python benchmarks/error_prediction.py banking77-oos ../shared --texts BANKING77-OOS -o …
    python benchmarks/error_prediction.py vision ../shared -o …

It learns from training data, as in ``evaluate --baselines --fit``, or from the classifier's answers on validation data,
which it has not seen. Test data report. Mutual information is that of ``made-0`` of ``rivals.py``.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.calib.ood_detectors import Gaussians
from hydrant.errors import InputError
from hydrant.evaluation.error_predictor import fitted, learn_errors
from hydrant.evaluation.report import REPORT
from hydrant.metrics.bootstrap import interval, resampled, whole
from hydrant.metrics.class_metrics import DETECTION, ScoreDetection
from hydrant.metrics.uncertainty import logit_scores
from hydrant.runtime.backends.reference import TorchSingle
from hydrant.runtime.collect import Sweep
from rivals import set_parser, subject_of, write_tables

SPLITS, KINDS = ("train", "validation", "test", "ood_test"), {"errors": "wrong answers", "ood": "unknown inputs"}
SHOWN = ("predictive_entropy", "energy", "mahalanobis", "mutual_information", "ViLU")


def outputs_of(subject: Any, place: Path) -> dict[str, np.ndarray]:
    """Logits, vectors and labels of every split, and the last linear map; kept in a file."""
    if not place.is_file():
        ensemble = hydrant.fuse(str(subject.single))
        with tempfile.TemporaryDirectory() as folder, TorchSingle(ensemble) as single:
            bundle = hydrant.save_bundle(ensemble, f"{folder}/single", subject.bundles.processor)
            processor, found = bundle.processor_for("read data"), {"weight": single.weight, "bias": single.bias}
            for name in SPLITS:
                examples = getattr(subject.data, name)
                rows = Sweep(single, processor, ensemble.architecture, examples.inputs).collect(dict)
                known = {} if examples.labels is None else {"labels": examples.labels}
                found |= {f"{name}.{key}": array for key, array in {**rows, **known}.items()}
        np.savez(place, **found)
    return dict(np.load(place))


def measure(found: dict[str, np.ndarray], seeds: int) -> dict[str, Any]:
    """Figures of every score, and those of ViLU minus those of entropy on the same resamples: value, low, high."""
    read = "penultimate" if "train.penultimate" in found else "features"
    vectors = {name: found[f"{name}.{read}"] for name in SPLITS}
    answers = {name: found[f"{name}.logits"].argmax(axis=1) for name in SPLITS}
    wrong = {name: answers[name] != found[f"{name}.labels"] for name in SPLITS[:3]}
    scores = {name: logit_scores(found[f"{name}.logits"]) for name in SPLITS[2:]}
    gaussians, weight, bias = Gaussians(found["train.features"], found["train.labels"]), found["weight"], found["bias"]
    learnt, left_out = {}, {}
    for seed in range(seeds):
        try:
            rows = vectors["validation"], answers["validation"], wrong["validation"]
            learnt[f"ViLU of validation data, seed {seed}"] = fitted(weight.T.copy(), bias, *rows, seed)
            labels = found["train.labels"]
            learnt[f"ViLU, seed {seed}"], _ = learn_errors(weight, bias, vectors["train"], labels, seed)
        except InputError as error:
            left_out[f"ViLU, seed {seed}"] = str(error)
    for name, own in scores.items():
        own["mahalanobis"] = gaussians.squared_distances(found[f"{name}.features"])[0]
        own |= {title: model.scores(vectors[name], answers[name]) for title, model in learnt.items()}
    how = ScoreDetection(scores["test"], scores["ood_test"], wrong["test"]), [len(vectors[name]) for name in SPLITS[2:]]
    values, draws = whole(*how), resampled(*how, 1000, 0)
    over = {name: name.replace(name.split(".")[1], "predictive_entropy") for name in values if "ViLU" in name}
    over_entropy = {name: [values[name] - values[to], *interval(draws[name] - draws[to])] for name, to in over.items()}
    figures = {name: [value, *interval(draws[name])] for name, value in values.items()}
    about = {"wrong": {name: int(each.sum()) for name, each in wrong.items()}, "left_out": left_out}
    return {**about, "figures": figures, "over_entropy": over_entropy}


def table(found: dict[str, Any]) -> str:
    """AUROC / AUPR / FPR95 of each score, and the interval of its AUROC minus that of entropy."""
    lines = []
    for name in dict.fromkeys(name.split(".")[1] for name in found["figures"] if name.split(".")[1].startswith(SHOWN)):
        cells = []
        for kind in KINDS:
            cells.append(" / ".join(f"{found['figures'][f'{kind}.{name}.{each}'][0]:.3f}" for each in DETECTION))
            _, low, high = found["over_entropy"].get(f"{kind}.{name}.auroc", [0, 0, 0])
            cells.append(f"{low:+.3f} to {high:+.3f}" if low < high else "–")
        lines.append([name.replace("_", " "), *cells])
    head = [each for words in KINDS.values() for each in (words, "AUROC − that of entropy")]
    return harness.table(["", *head], lines) + f"\n\nWrong: {found['wrong']}. Left out: {found['left_out'] or 'none'}."


def main() -> None:
    options = set_parser(__doc__).parse_args()
    subject, work = subject_of(options)
    old = json.loads(options.output.read_text())["sets"] if options.output and options.output.is_file() else {}
    found = measure(outputs_of(subject, work / "error-prediction.npz"), options.seeds)
    ensemble = hydrant.Bundle.open(work / "made-0").read_json(REPORT)["models"][0]["figures"]
    found["figures"] |= {name: list(each.values()) for name, each in ensemble.items() if ".mutual_information." in name}
    report = {**harness.about(subject.data.sizes()), "sets": {**old, options.set: found}}
    harness.save(options.output, report)
    parts = [f"## {name}\n\n{table(each)}" for name, each in report["sets"].items()]
    write_tables(options.output, "Predicting errors", "\n\n".join(parts))


if __name__ == "__main__":
    main()
