"""Time of one batch, models in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any

from ..progress import Progress
from .models import Model

WARM_UP, ROUNDS = 3, 20


def latencies_ms(models: Sequence[Model], inputs: Sequence[Any], progress: Progress) -> list[float]:
    """Median time of each model on the same inputs as one batch, ready as tensors; each runs once in a round."""
    batches = [model.processor.collate(model.processor.encode(inputs)) for model in models]
    times: list[list[float]] = [[] for _ in models]
    for step in progress(range(WARM_UP + ROUNDS), WARM_UP + ROUNDS, "timing"):
        for model, batch, row in zip(models, batches, times, strict=True):
            start = time.perf_counter()
            model.runs.run(batch)
            if step >= WARM_UP:
                row.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(row) for row in times]
