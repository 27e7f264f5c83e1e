"""Labels in another order than the model's classes, as where class indices were given without their names."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ..errors import literal

log = logging.getLogger(__name__)


def order_notes(data: str, probabilities: np.ndarray, labels: np.ndarray, names: Sequence[str]) -> list[str]:
    """A note, also logged, where the labels fit the predictions in another order of the classes only.

    The order is fitted on every second example and judged on the others.
    """
    predicted = probabilities.argmax(axis=1)
    order = fitted_order(predicted[::2], labels[::2], len(names))
    predicted, labels = predicted[1::2], labels[1::2]
    if not len(labels):
        return []
    plain, chance, _ = agreement(predicted, labels, len(names))
    other, _, improbable = agreement(order[predicted], labels, len(names))
    if improbable >= 1e-6 or not (plain < chance or 2 * plain <= other):
        return []
    first = next(index for index in np.unique(predicted) if order[index] not in (-1, index))
    note = (
        f"the labels of {data} seem to be in another order than the classes of the model: accuracy is {plain:.1%}, and "
        f"{other:.1%} with classes exchanged, such as {literal(names[order[first]])} for {literal(names[first])} "
        "(exchanged by half of the examples, measured on the other half); give labels as class names, not as indices, "
        "or correct id2label in the checkpoint's config.json and fuse it again"
    )
    log.warning("%s", note)
    return [note]


def fitted_order(predicted: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """The label that each predicted class stands for, [C], each label once; most frequent pairs first, −1 for none."""
    pairs, counts = np.unique(predicted * classes + labels, return_counts=True)
    order, taken = np.full(classes, -1), np.zeros(classes, bool)
    for pair in pairs[np.argsort(-counts, kind="stable")]:
        index, label = divmod(int(pair), classes)
        if order[index] < 0 and not taken[label]:
            order[index], taken[label] = label, True
    return order


def agreement(predicted: np.ndarray, labels: np.ndarray, classes: int) -> tuple[float, float, float]:
    """How often predictions, −1 for none, are the labels; how often unrelated ones of the same frequencies would be.

    The third is a bound on the probability that these agree as often (Chernoff), 1 for a share not above theirs.
    """
    frequencies = [np.bincount(array[array >= 0], minlength=classes) / len(labels) for array in (predicted, labels)]
    share, chance = float((predicted == labels).mean()), float(frequencies[0] @ frequencies[1])
    if share <= chance or chance == 0:
        return share, chance, 1.0
    divergence = share * np.log(share / chance)
    if share < 1:
        divergence += (1 - share) * np.log((1 - share) / (1 - chance))
    return share, chance, float(np.exp(-len(labels) * divergence))
