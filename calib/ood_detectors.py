"""Published post-hoc OOD scores fitted on raw training features: kNN, Mahalanobis and ViM."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..errors import InputError, require
from ..metrics.uncertainty import logsumexp
from .mahalanobis import shrunk, unit, whitened

BLOCK = 4096  # number of examples processed at a time, to limit memory for float64 copies


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
    """Gaussians over training features: one for each class, and one for all.

    Class means are μ_c, the covariance within classes is Σ (Lee et al. 2018), and mean and covariance of all examples
    are μ_0 and Σ_0 (Ren et al. 2021). The squared distances of a feature f are

        d_c = (f − μ_c)ᵀ Σ⁻¹ (f − μ_c)        d_0 = (f − μ_0)ᵀ Σ_0⁻¹ (f − μ_0)

    Both covariances are shrunk, since few examples would leave them singular.
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
            raise InputError(f"no class has two distinct examples in the {count} training examples; give more of them")
        self._whitening, self._background = (whitened(shrunk(each, count)) for each in (within, total))
        self._means = means @ self._whitening

    def squared_distances(self, features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances min_c d_c to the nearest class and d_0 to all examples: [B, d] → two arrays [B] float64."""
        squared = np.empty((2, len(features)))
        for part in _blocks(len(features)):
            rows = features[part] - self._centre
            white = rows @ self._whitening  # [n, d]
            nearest = (white @ self._means.T - (self._means**2).sum(axis=1) / 2).argmax(axis=1)
            squared[0, part] = ((white - self._means[nearest]) ** 2).sum(axis=1)
            squared[1, part] = ((rows @ self._background) ** 2).sum(axis=1)
        return squared[0], squared[1]


def principal_dimensions(width: int) -> int:
    """D for features of width d: 1,000 above 1,500 and 512 below, as in the paper; d / 2 for d under 768."""
    return 1000 if width > 1500 else 512 if width >= 768 else width // 2


class VirtualLogit:
    """The virtual logit: norm of a feature where training features hardly vary (ViM, Wang et al. 2022).

    The origin is o = −(Wᵀ)⁺ b, where all logits Wᵀ f + b are zero. The principal space has the D directions of highest
    energy of training features; P has the remaining directions. The virtual logit of a feature is α ‖Pᵀ (f − o)‖. The
    factor α gives it the mean of the largest logit on the training data, and

        score = α ‖Pᵀ (f − o)‖ − log Σ_c exp z_c

    Training features [N, d] are inputs of the last linear map; ``largest`` [N] are their largest logits.
    """

    def __init__(self, features: np.ndarray, largest: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
        count, width = features.shape
        self.dimensions = principal_dimensions(width)
        self._origin = -np.linalg.pinv(weight.astype(np.float64).T) @ bias  # [d]
        energy = np.zeros((width, width))
        for part in _blocks(count):
            rows = features[part] - self._origin
            energy += rows.T @ rows
        self._residual = np.linalg.eigh(energy)[1][:, : width - self.dimensions]  # P [d, d − D]: lowest energy first
        norm = self._norms(features).mean()
        if not norm > 1e-6 * np.sqrt(np.trace(energy) / count):
            raise InputError(f"the {count} training examples span only {self.dimensions} directions; give more of them")
        self._scale = largest.astype(np.float64).mean() / norm  # α

    def scores(self, features: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Scores, higher for OOD inputs: features [B, d] and logits [B, C] → [B] float64."""
        scores: np.ndarray = self._scale * self._norms(features) - logsumexp(logits.astype(np.float64))
        return scores

    def _norms(self, features: np.ndarray) -> np.ndarray:
        """‖Pᵀ (f − o)‖ of features [B, d]: [B]."""
        rows = (features[part] - self._origin for part in _blocks(len(features)))
        return np.concatenate([np.linalg.norm(each @ self._residual, axis=1) for each in rows])


def _blocks(count: int) -> Iterator[slice]:
    return (slice(start, start + BLOCK) for start in range(0, count, BLOCK))
