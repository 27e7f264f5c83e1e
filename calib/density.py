"""Fitting the distance of features from the training data: class means and one covariance, in a single pass.

Memory holds K·C·d sums and K·d² products for K taps of width d and C classes, whatever the number of examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..bundle.density import Density
from ..errors import InputError


class DensityFit:
    """Sums over labelled examples, from which class means and the covariance within classes follow.

    Args:
        taps: names of the K taps.
        classes: C.
        width: d.
    """

    def __init__(self, taps: Sequence[str], classes: int, width: int) -> None:
        self.taps = tuple(taps)
        self._counts = np.zeros(classes, np.int64)
        self._sums = np.zeros((len(taps), classes, width))
        self._products = np.zeros((len(taps), width, width))

    def add(self, features: np.ndarray, labels: np.ndarray) -> None:
        """Take further examples in.

        Args:
            features: [B, K, d].
            labels: [B] class indices.
        """
        self._counts += np.bincount(labels, minlength=len(self._counts))
        for tap in range(len(self.taps)):
            rows = unit(features[:, tap].astype(np.float64))
            np.add.at(self._sums[tap], labels, rows)
            self._products[tap] += rows.T @ rows

    def density(self, fitted: Mapping[str, Any], rank: int | None = None) -> Density:
        """The distance, not yet standardised: location 0, scale 1.

        Args:
            fitted: on what, for people.
            rank: r, numbers that a feature is brought to (:func:`directions`); all d without it.

        Raises:
            InputError: no two examples differ.
        """
        parts = [self._tap(tap, rank) for tap in range(len(self.taps))]
        centre, whitening, means = (np.stack(arrays).astype(np.float32) for arrays in zip(*parts, strict=True))
        count = len(self.taps)
        zeros, ones = np.zeros(count, np.float32), np.ones(count, np.float32)
        return Density(self.taps, centre, whitening, means, zeros, ones, fitted)

    def _tap(self, tap: int, rank: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Centre [d], whitening [d, r] and whitened class means [R, r] of one tap."""
        seen, count = self._counts > 0, int(self._counts.sum())
        if not count:
            raise InputError("there is no example to fit the distance on; give labelled training data")
        means = self._sums[tap, seen] / self._counts[seen, None]  # [R, d]
        centre = self._sums[tap].sum(axis=0) / count
        scatter = self._products[tap] / count - (means * (self._counts[seen, None] / count)).T @ means
        if np.trace(scatter) <= TINY:  # one example of each class: what parts the classes is all there is
            scatter = self._products[tap] / count - np.outer(centre, centre)
        if np.trace(scatter) <= TINY:
            raise InputError(
                f"all {count} examples have the same features at {self.taps[tap]}, so there is no distance between "
                "them; give more different training data"
            )
        whitening = whitened(shrunk(scatter, count))
        if rank is not None:
            total = self._products[tap] / count - np.outer(centre, centre)
            drawn = drawn_of(self.taps[tap], rank)
            whitening = whitening @ directions(whitening.T @ total @ whitening, rank, drawn, seed=tap)
        return centre, whitening, (means - centre) @ whitening


TINY = 1e-12
"""Features have length 1: a variance below this is rounding."""


def unit(rows: np.ndarray) -> np.ndarray:
    """Rows [..., d] of length 1; a row of zeros stays one."""
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)


def shrunk(covariance: np.ndarray, count: int) -> np.ndarray:
    """A covariance [d, d] drawn towards a multiple of the identity, so that it can be inverted.

    The oracle-approximating shrinkage of Chen et al. (2010), which needs nothing of the examples but their number; as
    in scikit-learn's ``OAS``.
    """
    width = len(covariance)
    mean, square = np.trace(covariance) / width, float((covariance**2).mean())
    spread = (count + 1) * (square - mean**2 / width)
    share = 1.0 if spread <= 0 else min((square + mean**2) / spread, 1.0)
    return (1 - share) * covariance + share * mean * np.eye(width)


def whitened(covariance: np.ndarray) -> np.ndarray:
    """W [d, d] with W Wᵀ the inverse of a positive definite covariance."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    least = values[-1] * len(values) * np.finfo(np.float32).eps * 1e-3
    found: np.ndarray = vectors / np.sqrt(np.maximum(values, least))
    return found


def directions(total: np.ndarray, rank: int, drawn: int, seed: int) -> np.ndarray:
    """Directions [d, r] that stand for all of whitened features.

    Those that part the classes most (linear discriminant analysis: within classes the covariance is the identity, so
    that they are the first principal components), and others drawn at random from the rest of the space, made longer
    by what that loses on average, so that squared lengths stay about the same (Johnson & Lindenstrauss 1984).

    Args:
        total: covariance [d, d] of the whitened features over all classes.
        rank: r, 1 to d; with d this is a rotation.
        drawn: how many of them are drawn.
        seed: of the draw.
    """
    width, first = len(total), rank - drawn
    parting = np.linalg.eigh((total + total.T) / 2)[1][:, width - first :]
    if not drawn:
        return parting
    random = np.random.default_rng(seed).standard_normal((width, drawn))
    rest = np.linalg.qr(random - parting @ (parting.T @ random))[0]
    return np.hstack([parting, rest * np.sqrt((width - first) / drawn)])


def drawn_of(tap: str, rank: int) -> int:
    """How many directions of a tap are drawn at random: of the trunk none, of a member's last vector half.

    Training has made the last vectors of a class alike, so that what is unknown shows in any direction there; before,
    most directions tell of other things than the classes, typing errors among them.
    """
    return (rank + 1) // 2 if tap.startswith("last.") else 0


def squared_distances(density: Density, features: np.ndarray) -> np.ndarray:
    """Squared distance to the nearest class at every tap, not standardised, in float64: [B, K, d] → [B, K]."""
    found = np.empty(features.shape[:2])
    for tap in range(len(density.taps)):
        rows = (unit(features[:, tap].astype(np.float64)) - density.centre[tap]) @ density.whitening[tap]
        means = density.means[tap].astype(np.float64)
        nearest = (rows @ means.T - (means**2).sum(axis=1) / 2).argmax(axis=1)
        found[:, tap] = ((rows - means[nearest]) ** 2).sum(axis=1)
    return found


def standardised(density: Density, distances: np.ndarray) -> np.ndarray:
    """The distance of inputs, float32: the mean over taps of their standardised ones, [B, K] → [B]."""
    return ((distances - density.location) / density.scale).mean(axis=1).astype(np.float32)
