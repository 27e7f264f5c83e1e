"""What ``hydrant fuse`` reports when it merges separately tuned checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..bundle.plan import HeadPlan
from ..errors import InputError
from ..progress import Progress
from .adapters import adapters_text
from .options import _parts, _prompt_arguments, _source
from .terminal import _show, progress


def _fuse_arguments(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("model", metavar="MODEL", nargs="+", help="one checkpoint, or one for each member")
    sub.add_argument("--plan", metavar="PLAN", help="head plan; without it every head is kept")
    _prompt_arguments(sub)
    sub.add_argument("--keep-separate", type=_parts, default=(), metavar="PARTS",
                     help="parts not averaged: embeddings,norms,mlp,pooler,classifier or all")  # fmt: skip
    sub.add_argument("--adapter", action="append", default=[], metavar="DIR",
                     help="PEFT LoRA adapter of the one MODEL: a member; once for each")  # fmt: skip
    sub.add_argument(
        "--low-rank",
        choices=("auto", "merge", "keep"),
        default="auto",
        help="adapters' updates of attention: merged, kept, or kept where that is cheaper (default auto)",
    )
    sub.add_argument(
        "--data", metavar="FILE", help="data to measure the drift of averaging on (default: synthetic inputs)"
    )
    sub.add_argument("--label-column", default="label", metavar="NAME", help="column that holds the label")
    sub.add_argument("--no-processor", action="store_true", help="leave the tokenizer or image processor out")
    sub.add_argument("--force", action="store_true", help="replace an existing bundle")
    sub.add_argument("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="folder to create")


def fuse(options: argparse.Namespace) -> int:
    """``hydrant fuse``: prune, group and merge members into a bundle."""
    from ..bundle.files import check_replaceable
    from ..bundle.store import MANIFEST
    from ..families.checkpoint import load_model, load_processor
    from ..fusion import common_processor, save_bundle
    from ..fusion import fuse as fuse_models
    from .terminal import members_of

    check_replaceable(options.output, MANIFEST, options.force)
    chosen = HeadPlan.load(options.plan) if options.plan else None
    sources = [_source(source, options) for source in options.model]
    models = [
        load_model(source) if isinstance(source, str) else source
        for source in progress(sources, len(sources), "loading checkpoints")
    ]
    adapters = {"adapters": options.adapter, "low_rank": options.low_rank}
    ensemble = fuse_models(models, chosen, keep_separate=options.keep_separate, **adapters)
    processor = common_processor(options.model, ensemble.architecture, options.adapter)
    if options.no_processor:
        processor = None
    elif processor is None:
        processor = load_processor(options.model[0], ensemble.architecture.modality)  # which says what is missing
    provenance: dict[str, Any] = {"sources": [Path(str(source)).name for source in options.model]}
    drift = drift_report(options, models, ensemble, processor, progress) if len(models) > 1 else None
    if drift is not None:
        provenance["drift"] = drift
    bundle = save_bundle(ensemble, options.output, processor, force=options.force, provenance=provenance,
                         tensors_only=options.no_processor)  # fmt: skip
    parameters = sum(tensor.numel() for tensor in ensemble.state_dict().values())
    lines = [f"wrote {bundle.path}: {members_of(ensemble.members)} of {bundle.family}, {parameters:,} parameters"]
    forms = ensemble.provenance.get("adapted", {})
    lines += adapters_text(ensemble.provenance.get("adapters", []), forms)
    if drift is not None:
        lines.append(drift_text(drift))
    facts = {"bundle": str(bundle.path), "members": ensemble.members, "parameters": parameters, "drift": drift}
    facts |= {"adapted": forms} if forms else {}
    _show(options, facts, "\n".join(lines))
    return 0


def drift_report(
    options: argparse.Namespace, models: list[Any], ensemble: Any, processor: Any, progress: Progress
) -> dict[str, Any] | None:
    """Drift of merging separately tuned members, on real or synthetic inputs; ``None`` when nothing was merged."""
    from ..bundle.architecture import PARTS
    from ..data.batching import batches
    from ..data.examples import read_examples
    from ..data.processor import from_transformers
    from ..data.samples import synthetic_batches
    from ..fusion import fuse as fuse_models
    from ..fusion import measure_drift

    if set(ensemble.provenance["separate"]) == set(PARTS) - {"attention"}:
        return None
    unmerged = fuse_models(models, ensemble.plan, keep_separate="all")
    if options.data is None:
        pairs: Any = [(batch, None) for batch in synthetic_batches(ensemble.architecture, 64, options.seed)]
        return {"inputs": "64 synthetic inputs", **measure_drift(ensemble, unmerged, pairs).to_json()}
    found = read_examples(options.data, ensemble.labels, limit=512, seed=options.seed, text_column=options.text_column,
                          text_pair_column=options.text_pair_column, label_column=options.label_column,
                          need_labels=False)  # fmt: skip
    if processor is None and not found.ready:
        raise InputError("--data needs the processor; leave out --no-processor, or --data, or give ready tensors")
    ready = found.processor(ensemble.architecture, lambda: from_transformers(processor, ensemble.architecture))
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
