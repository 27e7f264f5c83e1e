"""PyTorch reference of calibration: member logits, and the fit, choice and standardisation of the distance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from ..bundle.data_overlap import FORMS, LEAST, MOST, seen_already
from ..bundle.density_file import Density
from ..bundle.store import Bundle
from ..data.examples import Examples
from ..data.fingerprints import fingerprint_of, fingerprints
from ..errors import InputError, check_choice, cut, is_whole, noted
from ..metrics.class_metrics import auroc
from ..progress import Progress
from ..runtime.backends.reference import LENGTHS, TorchFeatures
from ..runtime.collect import Sweep, WordOutputs
from ..tasks import TASKS
from .mahalanobis import TINY, DensityFit, squared_distances, standardised, usual_rank
from .taps import DistanceForm, named_taps, tap_weights

Distances = Mapping[str, Density]  # distances by name of their set of taps
Squared = dict[str, np.ndarray]  # squared distances at each tap [N, K]; of texts also their tokens [N] (``LENGTHS``)
Reduced = Callable[[np.ndarray], np.ndarray]  # function from distances of words to distances of spans
EXISTING = "existing"  # name of the bundle's existing distance; not one of the sets of ``calib.taps``
MIN_SPREAD = 1e-3  # lowest standard deviation of squared distances ÷ their mean; √(2 / d) for normal features
MIN_TEXTS = 100  # fewest validation texts for the form with the length; fewer take constants
MIN_SCALE = 0.1  # lowest scale ÷ its mean over the validation texts: the scale is positive for every length
# Prior standard deviation of a line's change from long texts to one token, in standard deviations of its values.
STEEPEST = 30.0


class Reference:
    """The fused module of a bundle, run on raw examples."""

    def __init__(self, bundle: Bundle, batch_size: int, progress: Progress) -> None:
        from ..fusion import load_reference

        self.ensemble = load_reference(bundle)
        self._bundle, self._architecture = bundle, bundle.any_architecture()
        self._batch_size, self._progress = batch_size, progress

    def fitted(
        self, examples: Examples, sets: Mapping[str, Sequence[str]], about: Mapping[str, Any], rank: int | None = None
    ) -> dict[str, Density]:
        """Distances by name, fitted on labelled training data in constant memory, not yet standardised."""
        fit = self._fit(examples, _union(sets.values()))
        densities: dict[tuple[str, ...], Density] = {}
        for taps in dict.fromkeys(map(tuple, sets.values())):
            usual = usual_rank(self._architecture, taps, fit.seen)
            densities[taps] = fit.density(about, usual if rank is None else rank, taps)
        return {name: densities[tuple(taps)] for name, taps in sets.items()}

    def _fit(self, examples: Examples, taps: Sequence[str]) -> DensityFit:
        """Sums over all training examples."""
        assert examples.labels is not None  # read_examples requires them
        one_class = TASKS[self._architecture.task].one_class
        fit = DensityFit(taps, self._architecture.classes, self._architecture.width)
        with TorchFeatures(self.ensemble, taps) as model:
            sweep = self._sweep(model, examples, "fitting the distance")
            if self._architecture.every_token:  # the examples are words, and their tags the classes
                for batch in sweep.words():
                    words, tags = batch.tagged(examples.labels)
                    fit.add(words.outputs["features"], tags)
                return fit
            for places, outputs in sweep.batches():  # one Gaussian without exclusive classes
                fit.add(outputs["features"], examples.labels[places] if one_class else np.zeros(len(places), np.int64))
        return fit

    def run(self, examples: Examples, distances: Distances | None = None) -> tuple[np.ndarray, Squared]:
        """Member logits [N, M, C] without a temperature, and squared distances at each tap [N, K] by name."""
        taps = _union(density.taps for density in (distances or {}).values())
        with TorchFeatures(self.ensemble, taps) as model:
            outputs = self._sweep(model, examples, "running").collect(_reduction(distances or {}, taps))
        return outputs["logits"], squared_of(distances or {}, outputs)

    def words(self, examples: Examples, distances: Distances | None = None) -> WordOutputs:
        """Outputs of :meth:`run` for the words of texts: ``"logits"``, and inputs of :func:`squared_of`."""
        taps = _union(density.taps for density in (distances or {}).values())
        with TorchFeatures(self.ensemble, taps) as model:
            return self._sweep(model, examples, "running").collect_words(_reduction(distances or {}, taps))

    def _sweep(self, model: Any, examples: Examples, what: str) -> Sweep:
        load = lambda: self._bundle.processor_for(f"read {examples.source}")  # noqa: E731 (loaded on demand)
        run = model, examples.processor(self._architecture, load), self._architecture, examples.inputs
        return Sweep(*run, self._batch_size, self._progress, f"{what} on {examples.name}")


def _union(sets: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tap for taps in sets for tap in taps))


def _reduction(
    distances: Distances, taps: Sequence[str]
) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Function that reduces outputs to logits and squared distances, without the features of ``taps``."""
    different = {_key(density): density for density in distances.values()}
    places = {key: [taps.index(tap) for tap in density.taps] for key, density in different.items()}

    def reduce(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        arrays = {"logits": outputs["member_logits"], **{name: outputs[name] for name in {LENGTHS} & set(outputs)}}
        for key, density in different.items():
            arrays[key] = squared_distances(density, outputs["features"][:, places[key]])
        return arrays

    return reduce


def _key(density: Density) -> str:
    """Key of the squared distances, shared by all names of one distance."""
    return f"squared.{id(density)}"


def squared_of(distances: Distances, outputs: Mapping[str, np.ndarray]) -> Squared:
    """The squared distances by name, from the outputs of a run with the same distances."""
    squared = {name: outputs[_key(density)] for name, density in distances.items()}
    return squared | {name: outputs[name] for name in {LENGTHS} & set(outputs)}


def standardised_by(density: Density, squared: np.ndarray, lengths: np.ndarray | None = None) -> Density:
    """The distance with location and scale of squared distances [N, K]; lines in 1/``lengths`` if they allow."""
    location = squared.mean(axis=0)
    scale = np.maximum(squared.std(axis=0), MIN_SPREAD * location)
    scale = np.where(scale > TINY, scale, 1)
    fields = {"location": location, "scale": scale}
    if lengths is not None and len(lengths) >= MIN_TEXTS and np.ptp(lengths):
        fields |= _lines(squared, lengths, MIN_SPREAD * scale)
    return replace(density, **{name: array.astype(np.float32) for name, array in fields.items()})


def _lines(squared: np.ndarray, lengths: np.ndarray, least: np.ndarray) -> dict[str, np.ndarray]:
    """Location and scale as lines in 1/n; empty if the deviations from the location are less than ``least`` [K]."""
    inverse, logs = 1 / lengths.astype(np.float64), np.log(lengths)
    ends = np.stack([1 - inverse, inverse], axis=1)  # weights [N, 2] of a line's values at 1/n = 0 and 1
    held = np.vstack([ends, [-1 / STEEPEST, 1 / STEEPEST]])  # with the prior as one more example
    locations = np.linalg.lstsq(held, np.pad(squared, ((0, 1), (0, 0))))[0]  # [2, K]
    apart = np.abs(squared - ends @ locations)
    mean = apart.mean(axis=0)
    if (mean < least).any():
        return {}
    scales = _at_least(MIN_SCALE * mean, held, np.pad(apart, ((0, 1), (0, 0))))
    scales *= np.sqrt(((apart / (ends @ scales)) ** 2).mean(axis=0))
    lines = {"location": locations, "scale": scales}
    starts = {name: line[0] for name, line in lines.items()}
    slopes = {f"{name}_slope": line[1] - line[0] for name, line in lines.items()}
    return {**starts, **slopes, "log_length": np.array([logs.mean(), logs.std()])}


def _at_least(least: np.ndarray, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Lines [2, K] through values [N, K] by least squares, not below ``least`` [K] at either end."""
    line = np.linalg.lstsq(ends, values)[0]
    for end, other in ((0, 1), (1, 0)):
        weights = ends[:, other]
        best = weights @ (values - ends[:, end, None] * least) / (weights @ weights)  # with this end at the limit
        low = line[end] < least
        line[other] = np.where(low, np.maximum(best, least), line[other])
        line[end] = np.where(low, least, line[end])
    return line


def by_set(density: Density, name: str) -> Density:
    """The distance with its scale divided by the weights of taps in the named set."""
    weights = tap_weights(name, density.taps)
    slope = None if density.scale_slope is None else (density.scale_slope / weights).astype(np.float32)
    return replace(density, scale=(density.scale / weights).astype(np.float32), scale_slope=slope)


def best_set(
    distances: Distances, id_squared: Squared, ood_squared: Squared | None, spans: tuple[Reduced, Reduced] | None = None
) -> tuple[str, dict[str, float]]:
    """Name of the distance of highest AUROC on validation data, and all AUROCs; the first name without OOD data."""
    if ood_squared is None or len(distances) == 1:
        return next(iter(distances)), {}
    areas = {}
    for name, density in distances.items():
        sides = id_squared, ood_squared
        id_scores, ood_scores = (standardised(density, each[name], each.get(LENGTHS)) for each in sides)
        if spans is not None:
            id_scores, ood_scores = spans[0](id_scores), spans[1](ood_scores)
        if not len(id_scores) or not len(ood_scores):  # no span: the fit of thresholds raises
            return next(iter(distances)), {}
        areas[name] = auroc(id_scores, ood_scores)
    return max(areas, key=lambda name: areas[name]), areas


def check_options(fit: Any, taps: str | Sequence[int], rank: Any, form: Any, width: int) -> None:
    """Raise ``InputError`` for an unknown form, a rank out of range, or one of the options without training data."""
    check_choice("distance_form", form, get_args(DistanceForm))
    usual = {"taps": (taps, "auto"), "rank": (rank, None), "distance_form": (form, "length")}
    for name, (value, default) in usual.items():
        if fit is None and value not in (None, default):
            raise InputError(f"{name} is {cut(value)}, but a distance needs training data; add fit=… (--fit)")
    if rank is not None and width and not is_whole(rank, 1, width):  # no distance without a width
        raise InputError(f"rank is {cut(rank)}; expected a whole number from 1 to {width}, the width of the model")


def unseen_classes(bundle: Bundle, training: Examples | None) -> list[str]:
    """A note, also logged, if some classes have no training example."""
    if training is None or bundle.any_architecture().task != "classification":
        return []
    assert training.labels is not None  # read_examples requires them
    if not (missing := len(bundle.labels) - len(np.unique(training.labels))):
        return []
    lacking = f"{missing} of the {len(bundle.labels)} classes have no example among the {len(training)}"
    return noted(f"{lacking} of {training.name}; the distance will treat their inputs as out of distribution")


def candidates(bundle: Bundle, reference: Reference, training: Examples | None, taps: str | Sequence[int],
               rank: int | None, *, choice: bool) -> Distances:  # fmt: skip
    """Candidate distances, not standardised, by set of taps; without training data the bundle's own, if any."""
    if training is None:
        density = Density.of(bundle)
        return {} if density is None else {EXISTING: density}
    ensemble = reference.ensemble
    sets = named_taps(taps, ensemble.architecture, ensemble.trunk, ensemble.members)
    sets = sets if choice else dict([next(iter(sets.items()))])
    digests = fingerprints(bundle.any_architecture().modality, data=training)
    return reference.fitted(training, sets, {"data": training.name, "examples": len(training), **digests}, rank)


def settled(
    distances: Distances,
    id_squared: Squared,
    ood_squared: Squared | None,
    form: DistanceForm,
    spans: tuple[Reduced, Reduced] | None = None,
) -> tuple[Density | None, np.ndarray | None, np.ndarray | None]:
    """The best distance, standardised on validation data if fitted now, and distances of ID and OOD examples."""
    if not distances:
        return None, None, None
    if EXISTING in distances:
        name, density = EXISTING, distances[EXISTING]
    else:
        lengths = id_squared.get(LENGTHS) if form == "length" else None
        scaled = {name: standardised_by(each, id_squared[name], lengths) for name, each in distances.items()}
        fitted = {name: by_set(each, name) for name, each in scaled.items()}
        name, areas = best_set(fitted, id_squared, ood_squared, spans)
        density = replace(fitted[name], fitted={**fitted[name].fitted, "chosen": name, "auroc": areas})
    id_distance, ood_distance = (
        None if squared is None else standardised(density, squared[name], squared.get(LENGTHS))
        for squared in (id_squared, ood_squared)
    )
    return density, id_distance, ood_distance


def against_training(bundle: Bundle, validation: Examples, training: Examples | None, force: bool) -> list[str]:
    """Notes, also logged, if validation data overlap the training data of the distance, or differ in form."""
    if training is None:
        return []
    modality = bundle.any_architecture().modality
    current, fitted = (fingerprint_of(each.inputs, modality) for each in (validation, training))
    if current is None or fitted is None:
        return []
    notes, share = [], current.share_in(fitted)
    if share >= MOST and not force:
        raise seen_already("calibrating", validation, share, f"the distance is fitted on ({training.source})")
    if share >= LEAST:
        same = f"{share:.0%} of the {len(validation)} examples of {validation.name} are also in {training.name}"
        follows = "on which the distance is fitted: its thresholds will be too low; give other validation data"
        notes.append(f"{same}, {follows}")
    if None not in (current.pairs, fitted.pairs) and current.pairs is not fitted.pairs:
        forms = FORMS[bool(current.pairs)], f"{training.name} (fit) has {FORMS[bool(fitted.pairs)]}"
        remedy = "give both in the form of the model's training data"
        notes.append(f"the examples of {validation.name} are {', but '.join(forms)}; {remedy}")
    return noted(*notes)
