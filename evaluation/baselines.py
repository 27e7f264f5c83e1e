"""Baselines: what the single model behind each row detects by itself, by post-hoc scores of the literature.

The single model of a checkpoint, and of a bundle of one member, is that model. A bundle of several members holds no
other whole model than its members: there it is the first of them alone, pruned as it is, and the report says so.

Scores of the logits need nothing else (``metrics.logit_scores``). The others are fitted on training features: kNN and
both Mahalanobis distances on the last vector of the network, the one that hydrant's own distance reads, and ViM on
what the last linear map reads. All run in PyTorch, in float32, without the temperature of any calibration.

Several labels have scores of their logits of their own (``label_logit_scores``), one score has none; and since no
example of either is of one class, the Mahalanobis distance is that from one Gaussian over all. Of a tagger the scores
of the logits are those of the spans that it finds (``span_scores``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..bundle.data_overlap import LEAST
from ..bundle.store import Bundle
from ..bundle.tasks import Task
from ..bundle.traced import Traced
from ..calib.gaussians import Gaussians
from ..calib.neighbours import Neighbours
from ..calib.virtual_logit import VirtualLogit
from ..data.columns import Reading
from ..data.examples import Examples, check_alike, read_examples
from ..data.fingerprints import shared_part
from ..data.spec import Modality
from ..errors import InputError, require
from ..metrics.logit_scores import GAMMA, LIKELIEST, label_logit_scores, logit_scores
from ..progress import Progress
from ..runtime.backends.reference import TorchSingle
from ..runtime.collect import visit
from .dropout import KIND
from .figures import detected
from .models import Model
from .options import Figures
from .report import BaselineReport
from .span_scores import scores_of_spans

log = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]

OF_LOGITS: dict[Task, Callable[[np.ndarray], dict[str, np.ndarray]]] = {
    "classification": logit_scores,
    "multi_label": label_logit_scores,
    "score": lambda _: {},
}
"""Task → scores of the logits."""

SOFTMAX = "is of probabilities of which one class is right, and here each label is decided by itself"
ONE_SCORE = "is of several classes' logits, and one score has none"
NO_VECTOR = "is of one vector for an input, and a tagger has one for each token"
NO_CLASSES = "needs classes of which one is right: there is one Gaussian for all"

LACKS: dict[Task, dict[str, str]] = {
    "classification": {},
    "multi_label": {
        "max_probability": "ranks as max logit does",
        **dict.fromkeys(("gen", "vim"), SOFTMAX),
        "relative_mahalanobis": NO_CLASSES,
    },
    "tokens": dict.fromkeys(("knn", "vim", "mahalanobis", "relative_mahalanobis"), NO_VECTOR),
    "score": {
        **dict.fromkeys(("max_probability", "max_logit", "predictive_entropy", "energy", "gen", "vim"), ONE_SCORE),
        "relative_mahalanobis": NO_CLASSES,
    },
}
"""Task → the scores that it has not, and why."""

UNFITTED = "needs features of training data; give these as well (fit=…, --fit)"


def read_training(
    figures: Figures, bundle: Bundle, known: Examples, ood: Examples | None, reading: Reading
) -> Examples | None:
    """The training data that baselines are fitted on; ``None`` where none are given."""
    if figures.baselines:
        require("torch", "fuse", "compute baselines")
    if figures.baselines and ood is None:
        raise InputError(
            "baselines are scores that find out-of-distribution inputs, and there are none; give such data (ood=…, "
            "--ood), or leave baselines (--baselines) out"
        )
    task = bundle.any_architecture().task
    if figures.fit is not None and task == "tokens":
        raise InputError(
            "training data are given (fit=…, --fit), but no baseline of a model that tags tokens is fitted, since that "
            "has no one vector for an input; leave them out"
        )
    if figures.fit is None:
        if figures.baselines and task == "score":
            raise InputError(
                "baselines of a model of one output are of its features alone, since one score tells nothing of what "
                "is unknown; give training data to fit them on (fit=…, --fit), or leave baselines (--baselines) out"
            )
        return None
    training = read_examples(figures.fit, bundle.labels, columns=reading, task=task)
    check_alike(known, training)
    if len(training) < figures.neighbours:
        raise InputError(
            f"neighbours is {figures.neighbours}, but {training.source} holds {len(training)} examples; give more of "
            "them, or a smaller number (--neighbours)"
        )
    return training


def measure_baselines(
    models: Sequence[Model],
    known: Examples,
    ood: Examples,
    training: Examples | None,
    figures: Figures,
    names: Sequence[str],
    batch_size: int,
    seed: int,
    progress: Progress,
) -> list[BaselineReport]:
    """Baselines of the single model behind each model."""
    found = []
    for model in models:
        if model.architecture.every_token:
            found.append(_of_spans(model, known, ood, figures, names, batch_size, seed, progress))
            continue
        with TorchSingle(model.module()) as single:
            run = partial(_outputs, single, model, batch_size, progress)
            given = run(known, _everything), run(ood, _everything)
            task = model.architecture.task
            scores = [OF_LOGITS[task](outputs["logits"]) for outputs in given]
            settings = {"gen": _gen(single)} if "gen" in scores[0] else {}
            fits = {names: fit for names, fit in FITS.items() if not set(names) <= set(LACKS[task])}
            left_out = {name: UNFITTED for names in fits for name in names} | LACKS[task]
            if training is not None:
                assert training.labels is not None  # read_examples asks for them
                classes = training.labels if task == "classification" else np.zeros(len(training), np.int64)
                trained = Trained(run(training, _for_fitting), classes, single, figures.neighbours)
                further, told, unfitted = _fitted_scores(trained, given, fits)
                left_out = unfitted | LACKS[task]
                kept = [{name: own for name, own in more.items() if name not in left_out} for more in further]
                scores = [{**own, **more} for own, more in zip(scores, kept, strict=True)]
                settings |= {name: words for name, words in told.items() if name not in left_out}
        title = f"resampling baselines of {model.name}"
        measured = detected(scores[0], scores[1], figures.bootstrap, seed, progress, title)
        found.append(BaselineReport(single_model_of(model), measured, settings, left_out))
    return found


def _gen(single: TorchSingle) -> str:
    return f"γ = {GAMMA:g}, the {min(LIKELIEST, len(single.bias))} likeliest classes"


def _of_spans(
    model: Model,
    known: Examples,
    ood: Examples,
    figures: Figures,
    names: Sequence[str],
    batch_size: int,
    seed: int,
    progress: Progress,
) -> BaselineReport:
    """The baselines of a tagger, by the spans that its single model finds."""
    with TorchSingle(model.module()) as single:
        spans = [scores_of_spans(single, model, part, names, batch_size, progress) for part in (known, ood)]
        settings = {"gen": _gen(single)}
    title = f"resampling baselines of {model.name}"
    scores = (spans[0].scores, spans[1].scores)
    measured = detected(*scores, figures.bootstrap, seed, progress, title, spans)
    return BaselineReport(single_model_of(model), measured, settings, LACKS["tokens"])


def _outputs(
    single: TorchSingle,
    model: Model,
    batch_size: int,
    progress: Progress,
    examples: Examples,
    reduce: Callable[[Arrays], Arrays],
) -> Arrays:
    """What is kept of the single model's outputs, each once, float32, in the order of the examples."""
    found: dict[str, np.ndarray] = {}
    title = f"single model of {model.name} on {examples.name}"
    batches = visit(single, model.processor, model.architecture, examples.inputs, batch_size, progress, title)
    for places, outputs in batches:
        for name, array in reduce(outputs).items():
            if name not in found:
                found[name] = np.empty((len(examples), *array.shape[1:]), np.float32)
            found[name][places] = array
    return found


def _everything(outputs: Arrays) -> Arrays:
    return outputs


def _for_fitting(outputs: Arrays) -> Arrays:
    """Features, and of the logits the largest."""
    kept = {name: array for name, array in outputs.items() if name != "logits"}
    return {**kept, "largest": outputs["logits"].max(axis=1)}


def _read(outputs: Arrays) -> np.ndarray:
    """What the last linear map reads: behind a pooler, where there is one."""
    return outputs["penultimate"] if "penultimate" in outputs else outputs["features"]


Scorer = Callable[[Arrays], Mapping[str, np.ndarray]]
"""Outputs of a single model → scores [N] by name."""


@dataclass(frozen=True, eq=False)
class Trained:
    """What scores are fitted on.

    Attributes:
        outputs: of the single model on the training data: ``features`` [N, d], ``largest`` logit [N], and
            ``penultimate`` [N, d'] where that is another vector.
        labels: [N].
        single: the model, for its last linear map.
        neighbours: k.
    """

    outputs: Arrays
    labels: np.ndarray
    single: TorchSingle
    neighbours: int


def _nearest(trained: Trained) -> tuple[Scorer, str]:
    index = Neighbours(trained.outputs["features"], trained.neighbours)
    return lambda given: {"knn": index.distances(given["features"])}, f"k = {trained.neighbours}, features of length 1"


def _virtual_logit(trained: Trained) -> tuple[Scorer, str]:
    read, last = _read(trained.outputs), trained.single
    fitted = VirtualLogit(read, trained.outputs["largest"], last.weight, last.bias)
    words = f"D = {fitted.dimensions} principal directions of {read.shape[1]}"
    return lambda given: {"vim": fitted.scores(_read(given), given["logits"])}, words


def _gaussians(trained: Trained) -> tuple[Scorer, str]:
    fitted = Gaussians(trained.outputs["features"], trained.labels)
    one = not trained.labels.any()

    def score(given: Arrays) -> Mapping[str, np.ndarray]:
        nearest, background = fitted.squared_distances(given["features"])
        return {"mahalanobis": nearest, "relative_mahalanobis": nearest - background}

    return score, f"last vector, {'one Gaussian, ' * one}covariance shrunk (OAS)"


Fit = Callable[[Trained], tuple[Scorer, str]]

FITS: dict[tuple[str, ...], Fit] = {
    ("knn",): _nearest,
    ("vim",): _virtual_logit,
    ("mahalanobis", "relative_mahalanobis"): _gaussians,
}
"""Scores that need training features → what fits them, and says how; ``InputError`` where that cannot be."""


def _fitted_scores(
    trained: Trained, given: Sequence[Arrays], fits: Mapping[tuple[str, ...], Fit]
) -> tuple[list[dict[str, np.ndarray]], dict[str, str], dict[str, str]]:
    """Scores of each of some outputs, how they were computed, and why others were not."""
    scores: list[dict[str, np.ndarray]] = [{} for _ in given]
    settings: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for names, fit in fits.items():
        try:
            scorer, words = fit(trained)
        except InputError as error:
            left_out |= dict.fromkeys(names, str(error))
            continue
        settings |= dict.fromkeys(names, words)
        for own, outputs in zip(scores, given, strict=True):
            own.update(scorer(outputs))
    return scores, settings, left_out


WHOLE = {"checkpoint": "the checkpoint itself", KIND: "the checkpoint itself, without dropout"}
"""Kinds of models behind which a checkpoint stands, and how it runs."""


def single_model_of(model: Model) -> str:
    """Which single model the baselines of a model are computed from, in words."""
    if model.kind in WHOLE:
        return WHOLE[model.kind]
    members, heads, counts = len(model.plan.members), model.plan.heads, model.plan.head_counts()[0]
    words = "its one member" if members == 1 else f"the first of its {members} members alone"
    if min(counts) == heads:
        return words
    kept = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
    return f"{words}, which keeps {kept} of {heads} heads in a layer"


def is_whole_model(model: Model) -> bool:
    """Whether it is one model with all its heads."""
    shape, plan = model.architecture, model.plan
    heads = [block.heads for block in shape.blocks] if isinstance(shape, Traced) else [plan.heads] * plan.layers
    return model.kind in WHOLE or plan.head_counts() == [heads]


def baseline_notes(
    models: Sequence[Model], bundle: Bundle, known: Examples, ood: Examples, training: Examples | None
) -> list[str]:
    """What to know when reading baselines: whether any is of a whole model, and what data are used twice."""
    notes = []
    if not any(is_whole_model(model) for model in models):
        notes.append(
            f"the baselines of {models[0].name} are computed from {single_model_of(models[0])}; those that it has to "
            "beat are the ones of a checkpoint that it was made from: compare with one, too (compare=…, --compare)"
        )
    if training is not None:
        notes += _twice(training, (known, ood), bundle.any_architecture().modality)
    for note in notes:
        log.warning("%s", note)
    return notes


def _twice(training: Examples, measured: Sequence[Examples], modality: Modality) -> list[str]:
    """Say which data are measured on and hold training examples, whose nearest neighbours are themselves."""
    shares = [(examples.name, shared_part(examples, training, modality)) for examples in measured]
    return [
        f"{share:.0%} of the examples of {name} are among those of {training.name} that baselines are fitted on, so "
        "that their figures are wrong; give data that nothing was fitted on"
        for name, share in shares
        if share >= LEAST
    ]
