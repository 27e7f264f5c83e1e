"""Hydrant's backends as Polygraphy runners, and Polygraphy's comparison of two of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from polygraphy.backend.base import BaseRunner
from polygraphy.common import TensorMetadata
from polygraphy.comparator import Comparator, IterationResult, RunResults, SimpleCompareFunc
from polygraphy.logger import G_LOGGER

from ..bundle.traced import AnyArchitecture
from ..data.label_encoding import at_tokens
from ..data.raw_inputs import FLOATS
from ..runtime.backends.protocol import Backend

Batch = dict[str, np.ndarray]

Differences = dict[str, dict[str, float]]


class BackendRunner(BaseRunner):  # type: ignore[misc]  # polygraphy is untyped
    """Polygraphy runner of a hydrant backend."""

    def __init__(self, backend: Backend, architecture: AnyArchitecture) -> None:
        super().__init__(name=backend.name, prefix="hydrant")
        self._backend = backend
        self._architecture = architecture

    def get_input_metadata_impl(self) -> TensorMetadata:
        """Return the inputs, with dynamic batch and sequence."""
        metadata = TensorMetadata()
        arch = self._architecture
        for name in arch.input_names:
            kind = np.float32 if name in FLOATS else np.int64
            metadata.add(name, kind, (None, *(arch.fixed_shape or (None,))))
        return metadata

    def infer_impl(self, feed_dict: Mapping[str, np.ndarray]) -> Batch:
        """Run one batch and record its seconds; token outputs exclude padding."""
        start = time.perf_counter()
        outputs = self._backend.run(feed_dict)
        self.inference_time = time.perf_counter() - start
        if self._architecture.every_token:
            return at_tokens(outputs, feed_dict["attention_mask"].astype(bool))
        return outputs


def compare(
    reference: Backend, tested: Backend, architecture: AnyArchitecture, batches: Sequence[Batch], outputs: Sequence[str]
) -> tuple[Batch, Batch, Differences]:
    """Run both backends on every batch; return the joined outputs of each, and their differences."""
    with G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        runners = [BackendRunner(reference, architecture), BackendRunner(tested, architecture)]
        whole = [
            (name, {output: np.concatenate([np.asarray(batch[output]) for batch in results]) for output in outputs})
            for name, results in Comparator.run(runners, data_loader=list(batches))
        ]
        # joined, because Polygraphy slowly summarizes each output of each batch in words
        function = SimpleCompareFunc(check_error_stat="max", atol=np.inf, rtol=np.inf)
        results = RunResults([(name, [IterationResult(joined, runner_name=name)]) for name, joined in whole])
        pairs = Comparator.compare_accuracy(results, compare_func=function)
    ((figures,),) = pairs[0].values()
    names = {"max_abs": "max_absdiff", "mean_abs": "mean_absdiff", "max_rel": "max_reldiff"}
    differences = {
        output: {name: float(getattr(figures[output], theirs)) for name, theirs in names.items()} for output in outputs
    }
    return whole[0][1], whole[1][1], differences
