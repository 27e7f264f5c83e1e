"""Post-hoc detection scores that are fitted on training features, as published: kNN, Mahalanobis and ViM.

Unlike ``calib.mahalanobis``, which a bundle carries, Mahalanobis features keep their length and are not standardised.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import InputError, require
from ..metrics.uncertainty import logsumexp
from .mahalanobis import shrunk, unit, whitened

BLOCK = 4096
"""Examples worked on at a time, so that float64 copies of large sets stay small."""


class Neighbours:
    """Distance to the k-th nearest training example (Sun et al. 2022), searched exhaustively."""

    def __init__(self, features: np.ndarray, neighbours: int) -> None:
        search = require("sklearn.neighbors", "report", "find nearest neighbours")
        if len(features) < neighbours:
            raise InputError(f"{len(features)} training examples are fewer than {neighbours} neighbours (--neighbours)")
        self._index = search.NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(unit(features))

    def distances(self, features: np.ndarray) -> np.ndarray:
        """‖u − u_(k)‖ to the k-th nearest training example, both of length 1: [B, d] → [B], 0 to 2."""
        distances: np.ndarray = self._index.kneighbors(unit(features))[0][:, -1]
        return distances


class Gaussians:
    """Gaussians over training features, one for each class and one for all.

    With class means μ_c and one covariance Σ within classes (Lee et al. 2018), and mean μ_0 and covariance Σ_0 of all
    examples (Ren et al. 2021), the squared distances of a feature f are

        d_c = (f − μ_c)ᵀ Σ⁻¹ (f − μ_c)        d_0 = (f − μ_0)ᵀ Σ_0⁻¹ (f − μ_0)

    Both covariances are shrunk, since few examples leave them singular; with many it hardly shows.
    """

    def __init__(self, features: np.ndarray, labels: np.ndarray) -> None:
        count, width = features.shape
        self._centre = features.mean(axis=0, dtype=np.float64)
        seen, places = np.unique(labels, return_inverse=True)
        sizes = np.bincount(places)[:, None]  # [R, 1]
        sums, products = np.zeros((len(seen), width)), np.zeros((width, width))
        for part in _blocks(count):
            rows = features[part] - self._centre  # float64
            np.add.at(sums, places[part], rows)
            products += rows.T @ rows
        means = sums / sizes  # [R, d], from the centre
        total = products / count
        within = total - (means * (sizes / count)).T @ means
        if not np.trace(within) > np.trace(total) * 1e-12:  # rounding
            raise InputError(f"no class has two different examples among the {count} of the training data; give more")
        self._whitening, self._background = (whitened(shrunk(each, count)) for each in (within, total))
        self._means = means @ self._whitening

    def squared_distances(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """To the nearest class, min_c d_c, and to all examples, d_0: [B, d] → two of [B] float64."""
        parts = [self._squared(features[part] - self._centre) for part in _blocks(len(features))]
        nearest, background = (np.concatenate(each) for each in zip(*parts, strict=True))
        return nearest, background

    def _squared(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        white = rows @ self._whitening  # [n, d]
        nearest = (white @ self._means.T - (self._means**2).sum(axis=1) / 2).argmax(axis=1)
        background = rows @ self._background
        return ((white - self._means[nearest]) ** 2).sum(axis=1), (background**2).sum(axis=1)


def principal_dimensions(width: int) -> int:
    """D for features of width d: as in the paper 1,000 above 1,500 and else 512; half of d where that is too narrow."""
    return 1000 if width > 1500 else 512 if width >= 768 else width // 2


class VirtualLogit:
    """The virtual logit: how much of a feature lies where training features do not vary (ViM, Wang et al. 2022).

    Features are seen from o = −(Wᵀ)⁺ b, where all logits Wᵀ f + b are zero. The principal space holds the D directions
    in which training features have most energy, P those that remain. The virtual logit of a feature is α ‖Pᵀ (f − o)‖,
    with α so that on the training data its mean is that of the largest logit, and

        score = α ‖Pᵀ (f − o)‖ − log Σ_c exp z_c

    Training features [N, d] are what the last linear map reads, ``largest`` [N] the largest logit of each.
    """

    def __init__(self, features: np.ndarray, largest: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
        count, width = features.shape
        self.dimensions = principal_dimensions(width)
        self._origin = -np.linalg.pinv(weight.astype(np.float64).T) @ bias  # [d]
        energy = np.zeros((width, width))
        for part in _blocks(count):
            rows = features[part] - self._origin
            energy += rows.T @ rows
        self._residual = np.linalg.eigh(energy)[1][:, : width - self.dimensions]  # P [d, d − D]: least energy first
        norm = self._norms(features).mean()
        if not norm > 1e-6 * np.sqrt(np.trace(energy) / count):
            raise InputError(f"the {count} training examples lie in {self.dimensions} directions alone; give more")
        self._scale = largest.astype(np.float64).mean() / norm  # α

    def scores(self, features: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Higher means less like the training data: [B, d] and logits [B, C] → [B] float64."""
        found: np.ndarray = self._scale * self._norms(features) - logsumexp(logits.astype(np.float64))
        return found

    def _norms(self, features: np.ndarray) -> np.ndarray:
        """‖Pᵀ (f − o)‖ of features [B, d]: [B]."""
        rows = (features[part] - self._origin for part in _blocks(len(features)))
        return np.concatenate([np.linalg.norm(each @ self._residual, axis=1) for each in rows])


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))
