"""Gaussians over training features, one for each class and one for all: the Mahalanobis detection scores.

With class means μ_c and one covariance Σ within classes (Lee et al. 2018), and mean μ_0 and covariance Σ_0 of all
examples (Ren et al. 2021), the squared distances of a feature f are

    d_c = (f − μ_c)ᵀ Σ⁻¹ (f − μ_c)        d_0 = (f − μ_0)ᵀ Σ_0⁻¹ (f − μ_0)

Unlike ``calib.density``, which a bundle carries, these are the scores as published: features keep their length, and
nothing is standardised. Both covariances are shrunk, since few examples leave them singular; with many it hardly shows.
"""

from __future__ import annotations

import numpy as np

from ..errors import InputError
from .density import shrunk, whitened

BLOCK = 4096
"""Examples worked on at a time, so that float64 copies of large sets stay small."""


class Gaussians:
    """Means and whitenings of the training features.

    Args:
        features: [N, d] float32.
        labels: [N] class indices; a class may have no example.
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
        if not np.trace(within) > np.trace(total) * TINY:
            raise InputError(
                f"no class has two different examples among the {count} of the training data, so there is no spread "
                "within classes to measure distances by; give more training data"
            )
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


TINY = 1e-12
"""Share of all variance below which that within classes is rounding."""


def _blocks(count: int) -> list[slice]:
    return [slice(start, start + BLOCK) for start in range(0, count, BLOCK)]
