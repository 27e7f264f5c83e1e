"""Calibration on the PyTorch reference: member logits, and the distance, fitted, chosen and standardised."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..bundle.data_overlap import FORMS, LEAST, MOST, seen_already
from ..bundle.density_file import Density
from ..bundle.store import Bundle
from ..data.examples import Examples
from ..data.fingerprints import fingerprint_of, fingerprints
from ..errors import InputError, cut, is_whole
from ..metrics.class_metrics import auroc
from ..progress import Progress
from ..runtime.backends.reference import TorchFeatures
from ..runtime.collect import WordOutputs, collect, collect_words, visit, visit_words
from ..tasks import TASKS
from .mahalanobis import TINY, DensityFit, squared_distances, standardised, usual_rank
from .taps import named_taps, tap_weights

log = logging.getLogger(__name__)

Distances = Mapping[str, Density]
"""By the name of a set of taps."""

Squared = dict[str, np.ndarray]
"""By the same name, squared distances at each of its taps [N, K]."""

Reduced = Callable[[np.ndarray], np.ndarray]
"""Distances of words → those of spans."""

KEPT = "kept"
"""The name of the bundle's existing distance; none of ``calib.taps.SETS``."""

MIN_SPREAD = 1e-3
"""Least standard deviation of squared distances, relative to their mean; of normal features in width d √(2 / d)."""


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
        """Distances by name from labelled training data, not yet standardised, in constant memory."""
        fit = self._fit(examples, _union(sets.values()))
        made: dict[tuple[str, ...], Density] = {}
        for taps in dict.fromkeys(map(tuple, sets.values())):
            usual = usual_rank(self._architecture, taps, fit.seen)
            made[taps] = fit.density(about, usual if rank is None else rank, taps)
        return {name: made[tuple(taps)] for name, taps in sets.items()}

    def _fit(self, examples: Examples, taps: Sequence[str]) -> DensityFit:
        """Sums over all examples."""
        assert examples.labels is not None  # read_examples asks for them
        one_class = TASKS[self._architecture.task].one_class
        fit = DensityFit(taps, self._architecture.classes, self._architecture.width)
        with TorchFeatures(self.ensemble, taps) as model:
            given = model, self._processor(examples), self._architecture, examples.inputs
            how = self._batch_size, self._progress, f"fitting the distance on {examples.name}"
            if self._architecture.every_token:  # an example is a word, and its tag its class
                for seen in visit_words(*given, *how):
                    words, tags = seen.tagged(examples.labels)
                    fit.add(words.outputs["features"], tags)
                return fit
            for places, outputs in visit(*given, *how):  # without classes there is one Gaussian
                fit.add(outputs["features"], examples.labels[places] if one_class else np.zeros(len(places), np.int64))
        return fit

    def run(self, examples: Examples, distances: Distances | None = None) -> tuple[np.ndarray, Squared]:
        """Member logits [N, M, C] before any temperature, and by name the squared distance at each tap [N, K]."""
        found = self._collected(collect, examples, distances or {})
        return found["logits"], squared_of(distances or {}, found)

    def words(self, examples: Examples, distances: Distances | None = None) -> WordOutputs:
        """The same for the words of texts, under ``"logits"`` and the names of :func:`squared_of`."""
        found: WordOutputs = self._collected(collect_words, examples, distances or {})
        return found

    def _collected(self, collecting: Callable[..., Any], examples: Examples, distances: Distances) -> Any:
        taps = _union(density.taps for density in distances.values())
        with TorchFeatures(self.ensemble, taps) as model:
            return collecting(
                model, self._processor(examples), self._architecture, examples.inputs, _kept(distances, taps),
                batch_size=self._batch_size, progress=self._progress, title=f"running on {examples.name}",
            )  # fmt: skip

    def _processor(self, examples: Examples) -> Any:
        load = lambda: self._bundle.processor_for(f"read {examples.source}")  # noqa: E731 (asked for when needed)
        return examples.processor(self._architecture, load)


def _union(sets: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(tap for taps in sets for tap in taps))


def _kept(distances: Distances, taps: Sequence[str]) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Outputs → logits, and squared distances instead of the features of ``taps``."""
    different = {_key(density): density for density in distances.values()}
    places = {key: [taps.index(tap) for tap in density.taps] for key, density in different.items()}

    def reduce(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = {"logits": outputs["member_logits"]}
        for key, density in different.items():
            kept[key] = squared_distances(density, outputs["features"][:, places[key]])
        return kept

    return reduce


def _key(density: Density) -> str:
    """Names of one distance share its squared ones."""
    return f"squared.{id(density)}"


def squared_of(distances: Distances, kept: Mapping[str, np.ndarray]) -> Squared:
    """The squared distances of each name from a run with the same distances."""
    return {name: kept[_key(density)] for name, density in distances.items()}


def standardised_by(density: Density, known: np.ndarray) -> Density:
    """The distance with location and scale of in-distribution squared distances [N, K], above the scale of rounding."""
    location = known.mean(axis=0)
    scale = np.maximum(known.std(axis=0), MIN_SPREAD * location)
    scale = np.where(scale > TINY, scale, 1)
    return replace(density, location=location.astype(np.float32), scale=scale.astype(np.float32))


def by_set(density: Density, name: str) -> Density:
    """A standardised distance whose scale takes in how much each tap counts in a set of this name."""
    return replace(density, scale=(density.scale / tap_weights(name, density.taps)).astype(np.float32))


def best_set(
    distances: Distances, known: Squared, outside: Squared | None, spans: tuple[Reduced, Reduced] | None = None
) -> tuple[str, dict[str, float]]:
    """The distance that separates best on validation data, and the AUROC of each; the first without OOD data."""
    if outside is None or len(distances) == 1:
        return next(iter(distances)), {}
    areas = {}
    for name, density in distances.items():
        inside, beyond = (standardised(density, squared[name]) for squared in (known, outside))
        if spans is not None:
            inside, beyond = spans[0](inside), spans[1](beyond)
        if not len(inside) or not len(beyond):  # no span: fitting thresholds raises
            return next(iter(distances)), {}
        areas[name] = auroc(inside, beyond)
    return max(areas, key=lambda name: areas[name]), areas


def check_options(fit: Any, taps: str | Sequence[int], rank: Any, width: int) -> None:
    """Refuse a rank out of range, and options without the training data that they are for."""
    for name, value in {"taps": None if taps == "auto" else taps, "rank": rank}.items():
        if fit is None and value is not None:
            raise InputError(f"{name} {cut(value)} given without training data to fit the distance on (fit=…, --fit)")
    if rank is not None and width and not is_whole(rank, 1, width):  # without a width there is no distance
        raise InputError(f"rank is {cut(rank)}; expected a whole number from 1 to {width}, the width of the model")


def unseen_classes(bundle: Bundle, training: Examples | None) -> list[str]:
    """A note, also logged, if classes have no training example."""
    if training is None or bundle.any_architecture().task != "classification":
        return []
    assert training.labels is not None  # read_examples asks for them
    if not (missing := len(bundle.labels) - len(np.unique(training.labels))):
        return []
    note = (
        f"{missing} of the {len(bundle.labels)} classes have no example among the {len(training)} of "
        f"{training.name}: their inputs will look far from the training data"
    )
    log.warning("%s", note)
    return [note]


def candidates(
    bundle: Bundle,
    reference: Reference,
    training: Examples | None,
    taps: str | Sequence[int],
    rank: int | None,
    *,
    choice: bool,
) -> Distances:
    """The distances of each candidate set of taps, not standardised; without training data the bundle's, if any."""
    if training is None:
        kept = Density.of(bundle)
        return {} if kept is None else {KEPT: kept}
    ensemble = reference.ensemble
    sets = named_taps(taps, ensemble.architecture, ensemble.trunk, ensemble.members)
    sets = sets if choice else dict([next(iter(sets.items()))])
    seen = fingerprints(bundle.any_architecture().modality, data=training)
    return reference.fitted(training, sets, {"data": training.name, "examples": len(training), **seen}, rank)


def settled(
    distances: Distances, known: Squared, outside: Squared | None, spans: tuple[Reduced, Reduced] | None = None
) -> tuple[Density | None, np.ndarray | None, np.ndarray | None]:
    """The best distance, standardised on validation data unless it was before, and distances of known and others."""
    if not distances:
        return None, None, None
    if KEPT in distances:
        name, density = KEPT, distances[KEPT]
    else:
        fresh = {name: by_set(standardised_by(each, known[name]), name) for name, each in distances.items()}
        name, areas = best_set(fresh, known, outside, spans)
        density = replace(fresh[name], fitted={**fresh[name].fitted, "chosen": name, "auroc": areas})
    near, far = (None if squared is None else standardised(density, squared[name]) for squared in (known, outside))
    return density, near, far


def against_training(bundle: Bundle, known: Examples, training: Examples | None, force: bool) -> list[str]:
    """Notes, also logged, if validation data are among those that the distance is fitted on, or of another form."""
    if training is None:
        return []
    modality = bundle.any_architecture().modality
    now, then = (fingerprint_of(each.inputs, modality) for each in (known, training))
    if now is None or then is None:
        return []
    notes, share = [], now.share_in(then)
    if share >= MOST and not force:
        raise seen_already("calibrating", known, share, f"the distance is fitted on ({training.source})")
    if share >= LEAST:
        notes.append(
            f"{share:.0%} of the {len(known)} examples of {known.name} are among those of {training.name} that the "
            "distance is fitted on: thresholds on it are too low; give other validation data"
        )
    if None not in (now.pairs, then.pairs) and now.pairs is not then.pairs:
        notes.append(
            f"the examples of {known.name} are {FORMS[bool(now.pairs)]}, and those of {training.name} that the "
            f"distance is fitted on {FORMS[bool(then.pairs)]}; give both in the form of the model's training data"
        )
    for note in notes:
        log.warning("%s", note)
    return notes
