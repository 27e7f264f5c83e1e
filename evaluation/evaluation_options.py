"""Optional measurements of an evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..errors import InputError, check_plain, check_whole, cut


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions:
    """Optional measurements of an evaluation, and the number of resamples.

    Attributes:
        corruptions: also evaluate on typing errors or corrupted images, in five severities.
        corrupted: number of randomly drawn examples to corrupt.
        bootstrap: number of bootstrap resamples for 95 % intervals; 0 for none.
        latency: also measure each model's latency on one batch, as a graph; an HTML report always does.
        baselines: also measure post-hoc scores from the literature for every model.
        fit: labelled training data for the baselines kNN, ViM, Mahalanobis and ViLU. Without it these are left out.
            Features are held in memory: up to 12 bytes for each example and dimension.
        neighbours: number k of neighbours: the kNN baseline is the distance to the k-th nearest training example.
        caution: for rerankers: also rank by score − caution · √variance, so that disputed documents come later.
    """

    corruptions: bool = False
    corrupted: int = 500
    bootstrap: int = 1000
    latency: bool = False
    baselines: bool = False
    fit: Any = None
    neighbours: int = 10
    caution: float = 0.0

    def __post_init__(self) -> None:
        check_plain(self)
        for name, least in (("bootstrap", 0), ("corrupted", 1), ("neighbours", 1)):
            check_whole(name, getattr(self, name), least)
        if not 0 <= self.caution < math.inf:
            raise InputError(f"caution is {cut(self.caution)}; expected a finite number, 0 or more")
        for name, useful in (("corrupted", "corruptions"), ("neighbours", "baselines")):
            if getattr(self, name) != getattr(type(self), name) and not getattr(self, useful):
                raise InputError(f"{name} is {getattr(self, name)} without {useful}; ask for them too (--{useful})")
        if self.fit is not None and not self.baselines:
            raise InputError("training data (fit=…, --fit) need baselines to fit; add --baselines, or omit them")
