"""What ``hydrant fuse`` reports when it merges separately tuned checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .errors import InputError
from .progress import Progress


def drift_report(
    options: argparse.Namespace, models: list[Any], ensemble: Any, processor: Any, progress: Progress
) -> dict[str, Any] | None:
    """Drift of merging separately tuned members, on real or synthetic inputs; ``None`` when nothing was merged."""
    from .calib.batching import batches
    from .calib.data import read_examples
    from .calib.synthetic import synthetic_batches
    from .families import PARTS
    from .families.processing import from_transformers
    from .fusion import fuse as fuse_models
    from .fusion import measure_drift

    if set(ensemble.provenance["separate"]) == set(PARTS) - {"attention"}:
        return None
    unmerged = fuse_models(models, ensemble.plan, keep_separate="all")
    if options.data is None:
        pairs: Any = [(batch, None) for batch in synthetic_batches(ensemble.architecture, 64, options.seed)]
        return {"inputs": "64 synthetic inputs", **measure_drift(ensemble, unmerged, pairs).to_json()}
    if processor is None:
        raise InputError("--data needs the processor; leave out --no-processor, or --data")
    found = read_examples(options.data, ensemble.labels, limit=512, seed=options.seed, text_column=options.text_column,
                          label_column=options.label_column, need_labels=False)  # fmt: skip
    ready = from_transformers(processor, ensemble.architecture)
    pairs = (
        (arrays, None if found.labels is None else found.labels[index])
        for index, arrays in batches(found.inputs, ready, 32)
    )
    steps = progress(pairs, -(-len(found) // 32), "measuring drift")
    return {
        "inputs": f"{len(found)} inputs of {Path(options.data).name}",
        **measure_drift(ensemble, unmerged, steps).to_json(),
    }


def drift_text(drift: dict[str, Any]) -> str:
    """The drift in one sentence."""
    text = (
        f"drift of averaging the shared parts, on {drift['inputs']}: "
        f"max |Δ logit| {drift['max_abs_logit_difference']:.3g}, labels changed {drift['label_changes']:.1%}"
    )
    if drift["accuracy"] is not None:
        text += f", accuracy {drift['accuracy']:.4f} (unmerged {drift['unmerged_accuracy']:.4f})"
    return text
