"""Baselines: detection of OOD inputs and wrong answers by post-hoc scores of the single model behind each model.

The single model of a bundle is its pruned first member. All run in PyTorch in float32 without temperature. kNN and both
Mahalanobis distances read the last vector of the network, ViM and ViLU the input of the last linear map. Regression
has no scores of logits; regression and multi-label have one Gaussian instead of one per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from ..bundle.data_overlap import LEAST
from ..bundle.store import Bundle
from ..calib.ood_detectors import Gaussians, Neighbours, VirtualLogit
from ..data.data_options import DataOptions
from ..data.examples import Examples, check_alike, read_examples
from ..data.fingerprints import shared_part
from ..errors import InputError, noted, require
from ..metrics.spans import span_scores, spans_in
from ..metrics.uncertainty import GAMMA, LIKELIEST
from ..progress import Progress
from ..runtime.backends.reference import TorchSingle
from ..runtime.collect import Sweep
from ..tasks import TASKS
from .competitors import Model
from .deep_ensemble import TEACHERS
from .dropout import KIND
from .evaluation_options import EvaluationOptions
from .metric_names import BASELINES
from .model_reports import detected
from .report import BaselineReport

Arrays = Mapping[str, np.ndarray]

UNFITTED = "needs training data; add fit=… or --fit FILE"


def read_training(
    figures: EvaluationOptions, bundle: Bundle, test_set: Examples, ood: Examples | None, reading: DataOptions
) -> Examples | None:
    """Read the training data of fitted baselines; ``None`` without any."""
    if figures.baselines:
        require("torch", "fuse", "compute baselines")
        if ood is None:
            raise InputError("baselines need OOD data; add ood=… or --ood FILE")
    task = TASKS[bundle.any_architecture().task]
    fitted, possible = {name for names in FITTED for name in names}, set(BASELINES) - set(task.lacks)
    if figures.fit is None:
        if figures.baselines and possible <= fitted:
            raise InputError("baselines for regression need training data; add fit=… or --fit FILE")
        return None
    if not fitted & possible:
        raise InputError("no baseline of this task is fitted on training data; omit fit=… or --fit")
    training = read_examples(figures.fit, bundle.labels, columns=reading, task=task.name)
    check_alike(test_set, training)
    if len(training) < figures.neighbours:
        number, limit = figures.neighbours, len(training)
        raise InputError(f"neighbours is {number}; {training.source} has only {limit} examples")
    return training


def measure_baselines(models: Sequence[Model], test_set: Examples, ood: Examples, training: Examples | None,
                      figures: EvaluationOptions, names: Sequence[str], batch_size: int, seed: int,
                      progress: Progress) -> list[BaselineReport]:  # fmt: skip
    """Measure the baselines of the single model behind each model."""
    reports: list[BaselineReport] = []
    for model in models:
        if model.twin:
            reports.append(replace(reports[-1], of=single_model_of(model)))
            continue
        texts: tuple[np.ndarray, np.ndarray] | None = None
        wrong: np.ndarray | None = None
        settings: dict[str, str] = {}
        unfitted: dict[str, str] = {}
        with TorchSingle(model.module()) as single:
            task = TASKS[model.architecture.task]
            if model.architecture.every_token:
                spans = [_span_scores(single, model, part, names, batch_size, progress) for part in (test_set, ood)]
                scores, texts = [each for each, _ in spans], (spans[0][1], spans[1][1])
            else:
                run = partial(_outputs, single, model, batch_size, progress)
                outputs = [run(test_set), run(ood)]
                scores = [task.logit_scores(each["logits"]) for each in outputs]
                if task.one_class and test_set.labels is not None:
                    wrong = outputs[0]["logits"].argmax(axis=1) != model.columns[test_set.labels]
                trained = None if training is None else run(training, for_fitting=True)
                classes = None if training is None or not task.one_class else model.columns[training.labels]
                fitted = [[name for name in each if name not in task.lacks] for each in FITTED]
                fit = single, trained, classes, figures.neighbours, seed
                settings, unfitted = _add_fitted(filter(None, fitted), scores, outputs, *fit)
            if "gen" in scores[0]:
                likeliest = min(LIKELIEST, len(single.bias))
                settings = {"gen": f"γ = {GAMMA:g}, the {likeliest} likeliest classes", **settings}
        title, sizes = f"resampling baselines of {model.name}", () if texts is None else (len(test_set), len(ood))
        measured = detected(scores[0], scores[1], figures.bootstrap, seed, progress, title, texts, sizes, wrong)
        reports.append(BaselineReport(single_model_of(model), *measured, settings, unfitted | dict(task.lacks)))
    return reports


def _add_fitted(fitted: Iterable[Sequence[str]], scores: Sequence[dict[str, np.ndarray]], outputs: Sequence[Arrays],
                single: TorchSingle, trained: Arrays | None, classes: np.ndarray | None, neighbours: int,
                seed: int) -> tuple[dict[str, str], dict[str, str]]:  # fmt: skip
    """Add scores that are fitted on training data; return their settings, and reasons for scores left out."""
    settings: dict[str, str] = {}
    unfitted: dict[str, str] = {}
    for names in fitted:
        if trained is None:
            unfitted |= dict.fromkeys(names, UNFITTED)
            continue
        try:
            scorer, words = _fitted(names[0], trained, classes, single, neighbours, seed)
        except InputError as error:
            unfitted |= dict.fromkeys(names, str(error))
            continue
        settings |= dict.fromkeys(names, words)
        for own, each in zip(scores, outputs, strict=True):
            values = scorer(each)
            own.update({name: values[name] for name in names})
    return settings, unfitted


def _span_scores(
    single: TorchSingle, model: Model, examples: Examples, names: Sequence[str], batch_size: int, progress: Progress
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return scores [S] of the spans that a single model predicts, and the index of each span's text."""
    run = single, model.processor, model.architecture, examples.inputs
    sweep = Sweep(*run, batch_size, progress, f"single model of {model.name} on {examples.name}")
    words = sweep.collect_words(lambda outputs: {"logits": outputs["logits"]})
    if examples.labels is not None:
        words, _ = words.tagged(examples.labels)  # words without a tag are ignored
    logits = words.outputs["logits"][:, model.columns]
    spans = spans_in(words.texts, [names[label] for label in logits.argmax(axis=1)])
    scores = TASKS[model.architecture.task].logit_scores(logits)
    return span_scores(spans, scores), np.array([span.text for span in spans], np.int64)


def _outputs(single: TorchSingle, model: Model, batch_size: int, progress: Progress, examples: Examples,
             for_fitting: bool = False) -> Arrays:  # fmt: skip
    """Return the single model's outputs in the order of the examples; for fitting, the answers and their logits."""
    arrays: dict[str, np.ndarray] = {}
    title = f"single model of {model.name} on {examples.name}"
    sweep = Sweep(single, model.processor, model.architecture, examples.inputs, batch_size, progress, title)
    for places, outputs in sweep.batches():
        batch = dict(outputs)
        if for_fitting:
            logits = batch.pop("logits")
            batch |= {"largest": logits.max(axis=1), "answers": logits.argmax(axis=1)}
        for name, array in batch.items():
            if name not in arrays:
                arrays[name] = np.empty((len(examples), *array.shape[1:]), array.dtype)
            arrays[name][places] = array
    return arrays


def _last_input(outputs: Arrays) -> np.ndarray:
    """Input of the last linear map, after a pooler if the model has one."""
    return outputs["penultimate"] if "penultimate" in outputs else outputs["features"]


Scorer = Callable[[Arrays], Mapping[str, np.ndarray]]


FITTED = (("knn",), ("vim",), ("mahalanobis", "relative_mahalanobis"), ("vilu",))


def _fitted(
    name: str, trained: Arrays, classes: np.ndarray | None, single: TorchSingle, neighbours: int, seed: int
) -> tuple[Scorer, str]:
    """Fit a score and return it with a description; raises ``InputError`` if it cannot be fitted."""
    features = trained["features"]
    if name == "knn":
        index = Neighbours(features, neighbours)
        return lambda batch: {"knn": index.distances(batch["features"])}, f"k = {neighbours}, features of length 1"
    if name == "vim":
        read = _last_input(trained)
        virtual = VirtualLogit(read, trained["largest"], single.weight, single.bias)
        words = f"D = {virtual.dimensions} principal directions of {read.shape[1]}"
        return lambda batch: {"vim": virtual.scores(_last_input(batch), batch["logits"])}, words
    if name == "vilu" and classes is not None:
        from .error_predictor import learn_errors

        own = trained["answers"] if single.zero_shot else None
        errors, words = learn_errors(single.weight, single.bias, _last_input(trained), classes, seed, own)
        return lambda batch: {"vilu": errors.scores(_last_input(batch), batch["logits"].argmax(axis=1))}, words
    gaussians = Gaussians(features, np.zeros(len(features), np.int64) if classes is None else classes)

    def score(batch: Arrays) -> Mapping[str, np.ndarray]:
        nearest, background = gaussians.squared_distances(batch["features"])
        return {"mahalanobis": nearest, "relative_mahalanobis": nearest - background}

    return score, f"last vector, {'one Gaussian, ' * (classes is None)}covariance shrunk (OAS)"


WHOLE = {
    "checkpoint": "the checkpoint itself",
    KIND: "the checkpoint itself, without dropout",
    TEACHERS: "one of its checkpoints",
}


def single_model_of(model: Model) -> str:
    """Describe the single model behind a model."""
    if model.kind in WHOLE:
        return WHOLE[model.kind]
    members, heads, counts = len(model.plan.members), model.plan.heads, model.plan.head_counts()[0]
    words = "its one member" if members == 1 else f"the first of its {members} members alone"
    if min(counts) == heads:
        return words
    number = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{words}, which keeps {number} of {heads} heads in a layer"


def baseline_notes(
    models: Sequence[Model], bundle: Bundle, test_set: Examples, ood: Examples, training: Examples | None
) -> list[str]:
    """Return notes for reading baselines: no unpruned model, data that are used twice."""
    notes = []
    counts = [(model.plan.head_counts(), [list(model.architecture.heads_of_layers)]) for model in models]
    if not any(model.kind in WHOLE or own == every for model, (own, every) in zip(models, counts, strict=True)):
        notes.append(
            f"the baselines of {models[0].name} are those of {single_model_of(models[0])}; for the baselines of the "
            "original checkpoint, compare with it, too (compare=…, --compare)"
        )
    if training is not None:
        modality = bundle.any_architecture().modality
        for examples in (test_set, ood):
            share = shared_part(examples, training, modality)
            if share >= LEAST:  # they are their own nearest neighbours
                notes.append(
                    f"{share:.0%} of the examples of {examples.name} are also in {training.name}, on which baselines "
                    "are fitted, so their metrics are wrong; evaluate on other data"
                )
    return noted(*notes)
