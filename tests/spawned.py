"""What a spawned process runs: it imports this module by its name, which a module of tests has not."""

from collections.abc import Sequence

import numpy as np
from hydrant import load


def probabilities_of(path: str, texts: Sequence[str], backend: str) -> np.ndarray:
    """Probabilities [N, C] of texts by a bundle, opened here."""
    with load(path, backend) as predictor:
        return predictor.predict(list(texts)).probabilities
