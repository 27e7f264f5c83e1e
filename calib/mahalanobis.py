"""Fit of the Mahalanobis distance in one pass: class means and one covariance; K·C·d sums and K·d² products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..bundle.density_file import Density
from ..bundle.traced import AnyArchitecture
from ..errors import InputError


class DensityFit:
    """Sums over labelled examples that yield class means and the covariance within classes."""

    def __init__(self, taps: Sequence[str], classes: int, width: int) -> None:
        self.taps = tuple(taps)
        self._counts = np.zeros(classes, np.int64)
        self._sums = np.zeros((len(taps), classes, width))
        self._products = np.zeros((len(taps), width, width))

    def add(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Add examples: features [B, K, d] and class indices [B]."""
        self._counts += np.bincount(labels, minlength=len(self._counts))
        for tap in range(len(self.taps)):
            rows = unit(features[:, tap].astype(np.float64))
            np.add.at(self._sums[tap], labels, rows)
            self._products[tap] += rows.T @ rows

    @property
    def seen(self) -> int:
        """R, the number of classes with an example."""
        return int((self._counts > 0).sum())

    def density(self, fitted: Mapping[str, Any], rank: int | None = None, taps: Sequence[str] | None = None) -> Density:
        """The distance, not yet standardised: location 0, scale 1."""
        taps = self.taps if taps is None else tuple(taps)
        parts = [self._tap(self.taps.index(tap), rank) for tap in taps]
        centre, whitening, means = (np.stack(arrays).astype(np.float32) for arrays in zip(*parts, strict=True))
        zeros, ones = np.zeros(len(taps), np.float32), np.ones(len(taps), np.float32)
        return Density(taps, centre, whitening, means, zeros, ones, fitted)

    def _tap(self, tap: int, rank: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Centre [d], whitening [d, r] and whitened class means [R, r] of one tap."""
        seen, count = self._counts > 0, int(self._counts.sum())
        if not count:
            raise InputError("the training data contain no example to fit the distance on; give labelled training data")
        means = self._sums[tap, seen] / self._counts[seen, None]  # [R, d]
        centre = self._sums[tap].sum(axis=0) / count
        scatter = self._products[tap] / count - (means * (self._counts[seen, None] / count)).T @ means
        if np.trace(scatter) <= TINY:  # one example of each class
            scatter = self._products[tap] / count - np.outer(centre, centre)
        if np.trace(scatter) <= TINY:
            raise InputError(f"all {count} examples have the same features at {self.taps[tap]}; give other examples")
        whitening = whitened(shrunk(scatter, count))
        if rank is not None and rank < len(centre):
            shares = self._counts[seen, None] / count  # [R, 1]
            apart = np.sqrt(shares) * ((means - centre) @ whitening)  # [R, d]
            separating = min(len(means) - 1, rank // 2 if self.taps[tap].startswith(LAST) else rank)
            whitening = whitening @ directions(apart, rank, separating, self.taps[tap])
        return centre, whitening, (means - centre) @ whitening


TINY = 1e-12  # smaller variances are rounding errors, since features have length 1


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows [..., d] scaled to length 1; rows of zeros stay zero."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def shrunk(covariance: np.ndarray, count: int) -> np.ndarray:
    """Oracle-approximating shrinkage of a covariance [d, d] (Chen et al. 2010), as in scikit-learn's ``OAS``."""
    width = len(covariance)
    mean, square = np.trace(covariance) / width, float((covariance**2).mean())
    spread = (count + 1) * (square - mean**2 / width)
    share = 1.0 if spread <= 0 else min((square + mean**2) / spread, 1.0)
    return (1 - share) * covariance + share * mean * np.eye(width)


def whitened(covariance: np.ndarray) -> np.ndarray:
    """W [d, d] with W Wᵀ the inverse of a positive definite covariance."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    least = values[-1] * len(values) * np.finfo(np.float32).eps * 1e-3
    whitening: np.ndarray = vectors / np.sqrt(np.maximum(values, least))
    return whitening


MAX_RANK, MIN_CLASSES = 64, 50  # limits of :func:`usual_rank`; fewer classes were measured only with a handful


def usual_rank(architecture: AnyArchitecture, taps: Sequence[str], classes: int) -> int | None:
    """Default rank: reduced if taps include a text model's trunk and classes are many (docs/evaluate/decisions.md)."""
    rank = min(MAX_RANK, classes - 1)
    trunk = any(not tap.startswith(LAST) for tap in taps)
    many = architecture.task == "classification" and classes >= MIN_CLASSES
    return rank if trunk and many and architecture.modality == "text" and rank < architecture.width else None


LAST = "last."
"""Prefix of members' last vectors. Half of their directions are random, since OOD inputs deviate in any direction.
In the trunk most directions carry other information than classes, such as typing errors."""


def directions(apart: np.ndarray, rank: int, separating: int, tap: str) -> np.ndarray:
    """Orthogonal directions [d, r] that replace all d of whitened features.

    The first ``separating`` directions separate the classes most (linear discriminant analysis). The others are random,
    scaled to preserve lengths (Johnson & Lindenstrauss 1984). ``apart`` are centred class means [R, d] × √share.
    """
    width, drawn = apart.shape[1], rank - separating
    first = np.linalg.eigh(apart.T @ apart)[1][:, width - separating :]  # [d, parting]
    if not drawn:
        return first
    random = np.random.default_rng(list(tap.encode())).standard_normal((width, drawn))
    rest = np.linalg.qr(random - first @ (first.T @ random))[0]
    return np.hstack([first, rest * np.sqrt((width - separating) / drawn)])


def squared_distances(density: Density, features: np.ndarray) -> np.ndarray:
    """Squared distance to the nearest class at every tap, not standardised, in float64: [B, K, d] → [B, K]."""
    squared = np.empty(features.shape[:2])
    for tap in range(len(density.taps)):
        rows = (unit(features[:, tap].astype(np.float64)) - density.centre[tap]) @ density.whitening[tap]
        means = density.means[tap].astype(np.float64)
        nearest = (rows @ means.T - (means**2).sum(axis=1) / 2).argmax(axis=1)
        squared[:, tap] = ((rows - means[nearest]) ** 2).sum(axis=1)
    return squared


def standardised(density: Density, distances: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
    """The mean of the taps' standardised distances, [B, K] → [B] float32; ``lengths`` [B]: numbers of tokens."""
    location, scale = density.location, density.scale
    if density.log_length is not None:
        assert lengths is not None  # a text has a length
        inverse = 1 / lengths[:, None].astype(np.float64)
        location, scale = location + inverse * density.location_slope, scale + inverse * density.scale_slope
    return ((distances - location) / scale).mean(axis=1).astype(np.float32)
