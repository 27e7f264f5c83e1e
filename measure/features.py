"""Running the PyTorch reference for what calibration needs: member logits, and the distance of features."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..bundle.density import Density
from ..bundle.store import Bundle
from ..calib.density import TINY, DensityFit, squared_distances, standardised
from ..calib.taps import tap_weights
from ..data.examples import Examples
from ..metrics.uncertainty import area_under_roc
from ..progress import Progress
from ..runtime.backends.reference import TorchFeatures
from ..runtime.collect import WordOutputs, collect, collect_words, visit, visit_words


class Reference:
    """The fused module of a bundle, and the way to it from raw examples.

    Args:
        bundle: that holds it.
        batch_size: examples per run.
        progress: display.
    """

    def __init__(self, bundle: Bundle, batch_size: int, progress: Progress) -> None:
        from ..fusion import load_reference

        self.ensemble = load_reference(bundle)
        self._bundle, self._architecture = bundle, bundle.any_architecture()
        self._batch_size, self._progress = batch_size, progress

    def fitted(
        self, examples: Examples, taps: Sequence[str], about: Mapping[str, Any], rank: int | None = None
    ) -> Density:
        """The distance from labelled training data, not yet standardised; memory does not grow with their number.

        Args:
            examples: to fit it on.
            taps: K names.
            about: on what it is fitted, for people.
            rank: numbers that a feature is brought to; all without it.

        Raises:
            InputError: an example cannot be used, or all are alike.
            BackendError: the model gives values that are not finite.
        """
        assert examples.labels is not None  # read_examples asks for them
        one = self._architecture.task in ("score", "multi_label")
        fit = DensityFit(taps, self._architecture.classes, self._architecture.width)
        with TorchFeatures(self.ensemble, taps) as model:
            given = model, self._processor(examples), self._architecture, examples.inputs
            how = self._batch_size, self._progress, f"fitting the distance on {examples.name}"
            if self._architecture.every_token:  # an example is a word, and its tag its class
                for seen in visit_words(*given, *how):
                    words, tags = seen.tagged(examples.labels)
                    fit.add(words.outputs["features"], tags)
                return fit.density(about, rank)
            for places, outputs in visit(*given, *how):
                known = examples.labels[places]
                if one:  # no example is of one class: there is one Gaussian for all
                    known = np.zeros(len(known), np.int64)
                fit.add(outputs["features"], known)
        return fit.density(about, rank)

    def run(self, examples: Examples, density: Density | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Member logits [N, M, C] before any temperature, and the squared distance at each tap [N, K].

        Raises:
            InputError: an example cannot be used.
            BackendError: the model gives values that are not finite.
        """
        with TorchFeatures(self.ensemble, () if density is None else density.taps) as model:
            found = collect(
                model,
                self._processor(examples),
                self._architecture,
                examples.inputs,
                _kept(density),
                batch_size=self._batch_size,
                progress=self._progress,
                title=f"running on {examples.name}",
            )
        return found["logits"], found.get("taps")

    def words(self, examples: Examples, density: Density | None) -> WordOutputs:
        """Of the words of texts member logits [N, M, C] before any temperature, under the name ``"logits"``.

        With a density also the squared distance at each tap, ``"taps"`` [N, K].

        Raises:
            InputError: an example cannot be used.
            BackendError: the model gives values that are not finite.
        """
        with TorchFeatures(self.ensemble, () if density is None else density.taps) as model:
            return collect_words(
                model,
                self._processor(examples),
                self._architecture,
                examples.inputs,
                _kept(density),
                batch_size=self._batch_size,
                progress=self._progress,
                title=f"running on {examples.name}",
            )

    def _processor(self, examples: Examples) -> Any:
        load = lambda: self._bundle.processor_for(f"read {examples.source}")  # noqa: E731 (asked for when needed)
        return examples.processor(self._architecture, load)


def _kept(density: Density | None) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """What is kept of outputs: logits, and squared distances instead of features."""

    def reduce(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        kept = {"logits": outputs["member_logits"]}
        return kept if density is None else {**kept, "taps": squared_distances(density, outputs["features"])}

    return reduce


def standardised_by(density: Density, known: np.ndarray) -> Density:
    """The distance with location and scale of in-distribution squared distances [N, K].

    Where they hardly differ, as those of one text repeated do by rounding alone, the scale is :data:`LEAST_SPREAD` of
    their mean: rounding must not become many standard deviations.
    """
    location = known.mean(axis=0)
    scale = np.maximum(known.std(axis=0), LEAST_SPREAD * location)
    scale = np.where(scale > TINY, scale, 1)
    return replace(density, location=location.astype(np.float32), scale=scale.astype(np.float32))


LEAST_SPREAD = 1e-3
"""Least standard deviation of squared distances, relative to their mean; of normal features in width d √(2 / d)."""


def by_set(density: Density, name: str, taps: Sequence[str]) -> Density:
    """A standardised distance by one set of its taps, whose weights its scale takes in."""
    chosen = density.only(taps)
    return replace(chosen, scale=(chosen.scale / tap_weights(name, taps)).astype(np.float32))


def best_set(
    density: Density,
    sets: Mapping[str, Sequence[str]],
    known: np.ndarray,
    outside: np.ndarray | None,
    spans: tuple[Reduced, Reduced] | None = None,
) -> tuple[str, dict[str, float]]:
    """The set of taps that separates best on validation data, and the AUROC of each; the first without OOD data.

    Args:
        density: of all taps, standardised.
        sets: name → taps, as of ``calib.taps.named_taps``.
        known, outside: squared distances [N, K] of in- and out-of-distribution examples, or of their words.
        spans: of words, distances [N] → those of the spans [S] that are found among them, of either.
    """
    if outside is None or len(sets) == 1:
        return next(iter(sets)), {}

    def distance(name: str, squared: np.ndarray) -> np.ndarray:
        return standardised(by_set(density, name, sets[name]), squared[:, density.places(sets[name])])

    areas = {}
    for name in sets:
        inside, beyond = distance(name, known), distance(name, outside)
        if spans is not None:
            inside, beyond = spans[0](inside), spans[1](beyond)
        if not len(inside) or not len(beyond):  # whoever fits thresholds says that there is no span
            return next(iter(sets)), {}
        areas[name] = area_under_roc(inside, beyond)
    return max(areas, key=lambda name: areas[name]), areas


Reduced = Callable[[np.ndarray], np.ndarray]
"""Distances of words → those of spans."""
