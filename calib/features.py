"""Running the PyTorch reference for what calibration needs: member logits, and the distance of features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ..bundle.density_file import Density
from ..bundle.store import Bundle
from ..data.examples import Examples
from ..metrics.class_metrics import auroc
from ..progress import Progress
from ..runtime.backends.reference import TorchFeatures
from ..runtime.collect import WordOutputs, collect, collect_words, visit, visit_words
from ..tasks import TASKS
from .mahalanobis import TINY, DensityFit, squared_distances, standardised, usual_rank
from .taps import tap_weights

Distances = Mapping[str, Density]
"""By the name of a set of taps."""

Squared = dict[str, np.ndarray]
"""By the same name, squared distances at each of its taps [N, K]."""

NO_DISTANCES: Distances = MappingProxyType({})

Reduced = Callable[[np.ndarray], np.ndarray]
"""Distances of words → those of spans."""


class Reference:
    """The fused module of a bundle, and the way to it from raw examples."""

    def __init__(self, bundle: Bundle, batch_size: int, progress: Progress) -> None:
        from ..fusion import load_reference

        self.ensemble = load_reference(bundle)
        self._bundle, self._architecture = bundle, bundle.any_architecture()
        self._batch_size, self._progress = batch_size, progress

    def fitted(
        self,
        examples: Examples,
        sets: Mapping[str, Sequence[str]],
        about: Mapping[str, Any],
        rank: int | None = None,
    ) -> dict[str, Density]:
        """Distances by name from labelled training data, not yet standardized; memory stays the same however many."""
        fit = self._fit(examples, _union(sets.values()))
        made: dict[tuple[str, ...], Density] = {}
        for taps in dict.fromkeys(map(tuple, sets.values())):
            usual = usual_rank(self._architecture, taps, fit.seen)
            made[taps] = fit.density(about, usual if rank is None else rank, taps)
        return {name: made[tuple(taps)] for name, taps in sets.items()}

    def _fit(self, examples: Examples, taps: Sequence[str]) -> DensityFit:
        """Sums over all examples."""
        assert examples.labels is not None  # read_examples asks for them
        one = not TASKS[self._architecture.task].one_class
        fit = DensityFit(taps, self._architecture.classes, self._architecture.width)
        with TorchFeatures(self.ensemble, taps) as model:
            given = model, self._processor(examples), self._architecture, examples.inputs
            how = self._batch_size, self._progress, f"fitting the distance on {examples.name}"
            if self._architecture.every_token:  # an example is a word, and its tag its class
                for seen in visit_words(*given, *how):
                    words, tags = seen.tagged(examples.labels)
                    fit.add(words.outputs["features"], tags)
                return fit
            for places, outputs in visit(*given, *how):
                known = examples.labels[places]
                if one:  # no example is of one class: there is one Gaussian for all
                    known = np.zeros(len(known), np.int64)
                fit.add(outputs["features"], known)
        return fit

    def run(self, examples: Examples, distances: Distances = NO_DISTANCES) -> tuple[np.ndarray, Squared]:
        """Member logits [N, M, C] before any temperature, and by name the squared distance at each tap [N, K]."""
        found = self._collected(collect, examples, distances)
        return found["logits"], squared_of(distances, found)

    def words(self, examples: Examples, distances: Distances = NO_DISTANCES) -> WordOutputs:
        """Of the words of texts member logits [N, M, C] before any temperature, under the name ``"logits"``.

        With distances also the squared ones at each tap [N, K], of which :func:`squared_of` has the names.
        """
        found: WordOutputs = self._collected(collect_words, examples, distances)
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
    """What is kept of outputs: logits, and squared distances instead of the features of ``taps``."""
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
    """The squared distances of each name among what a run with these very distances kept."""
    return {name: kept[_key(density)] for name, density in distances.items()}


def standardised_by(density: Density, known: np.ndarray) -> Density:
    """The distance with location and scale of in-distribution squared distances [N, K].

    Where they hardly differ, as those of one text repeated do by rounding alone, the scale is :data:`MIN_SPREAD` of
    their mean: rounding must not become many standard deviations.
    """
    location = known.mean(axis=0)
    scale = np.maximum(known.std(axis=0), MIN_SPREAD * location)
    scale = np.where(scale > TINY, scale, 1)
    return replace(density, location=location.astype(np.float32), scale=scale.astype(np.float32))


MIN_SPREAD = 1e-3
"""Least standard deviation of squared distances, relative to their mean; of normal features in width d √(2 / d)."""


def by_set(density: Density, name: str) -> Density:
    """A standardised distance whose scale takes in how much each tap counts in a set of this name."""
    return replace(density, scale=(density.scale / tap_weights(name, density.taps)).astype(np.float32))


def best_set(
    distances: Distances, known: Squared, outside: Squared | None, spans: tuple[Reduced, Reduced] | None = None
) -> tuple[str, dict[str, float]]:
    """The distance that separates best on validation data, and the AUROC of each; the first without OOD data.

    Squared distances [N, K] by name; ``spans`` reduce distances of words [N] to those of spans [S].
    """
    if outside is None or len(distances) == 1:
        return next(iter(distances)), {}
    areas = {}
    for name, density in distances.items():
        inside, beyond = (standardised(density, squared[name]) for squared in (known, outside))
        if spans is not None:
            inside, beyond = spans[0](inside), spans[1](beyond)
        if not len(inside) or not len(beyond):  # whoever fits thresholds says that there is no span
            return next(iter(distances)), {}
        areas[name] = auroc(inside, beyond)
    return max(areas, key=lambda name: areas[name]), areas
