"""``hydrant fuse``: prune, group and merge members into a bundle."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..bundle.architecture import PARTS
from ..bundle.head_plan import HeadPlan
from ..bundle.manifest import MANIFEST
from ..bundle.staging import check_replaceable
from ..data.batching import Batch, CachedBatches
from ..data.data_sources import check_named
from ..errors import InputError, short
from ..models.plan_cost import cost_of
from . import shared
from .command_options import Command, parts, positive
from .terminal import aligned, members_of, progress, show

EXAMPLE = "hydrant fuse checkpoint/ --plan plan.json -o out/"


def arguments(command: Command) -> None:
    command.add("model", metavar="MODEL", nargs="+",
                help="Checkpoint of a transformers classifier (folder or hub name), or one per member")  # fmt: skip
    command.add("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="Bundle folder to create")
    command.heading("common")
    command.add("--plan", metavar="PLAN", help="Head plan of `hydrant plan` (default: keep all heads)")
    command.add("--members", type=positive, metavar="M",
                help="For one MODEL without a plan: number of members, equal until they are tuned")  # fmt: skip
    command.add("--traced", action="store_true",
                help="Trace any transformers classifier, and compare every member with the original")  # fmt: skip
    command.add("--force", action="store_true",
                help="Replace an existing bundle, and accept a large error from averaging checkpoints")  # fmt: skip
    command.heading("advanced")
    command.add("--adapter", action="append", default=[], metavar="DIR",
                help="PEFT LoRA adapter of the MODEL, one per member; may be repeated")  # fmt: skip
    shared.prompts(command)
    command.add("--data", metavar="FILE",
                help="Data for measuring the merge error (default: synthetic inputs)")  # fmt: skip
    shared.data_options(command)
    command.add("--keep-separate", type=parts, default=(), metavar="PARTS",
                help="Parts not averaged: embeddings, norms, mlp, pooler, classifier, or all")  # fmt: skip
    command.add("--no-processor", action="store_true",
                help="Omit the tokenizer, image processor or feature extractor")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    from ..models.checkpoint import check_supported, load_processor

    _check(options)
    for model in [] if options.traced else options.model:
        check_supported(model, options.adapter)  # before PyTorch is imported
    from ..fusion import common_processor, save_bundle
    from ..fusion import fuse as fuse_models
    from ..fusion.ensemble import load_sources

    check_replaceable(options.output, MANIFEST, options.force)
    if options.data is not None:
        check_named(options.data)
    chosen = None if options.plan is None else HeadPlan.load(options.plan)
    models: list[Any] = []
    separate = frozenset(options.keep_separate)
    if not options.traced:
        sources = [shared.source(source, options) for source in options.model]
        shown = progress(sources, len(sources), "loading checkpoints")
        models, separate = load_sources(shown, options.adapter, separate)
    settings: dict[str, Any] = {"members": options.members, "keep_separate": separate, "traced": options.traced}
    ensemble = fuse_models(models or options.model[0], chosen, adapters=options.adapter, **settings)
    processor = common_processor(options.model, ensemble.architecture, options.adapter) if models else None
    if options.no_processor:
        processor = None
    elif processor is None:
        processor = load_processor(options.model[0], ensemble.architecture.modality)  # or its error
    drift = _drift_report(options, models, ensemble, processor) if len(models) > 1 else None
    provenance: dict[str, Any] = {"sources": [Path(str(source)).name for source in options.model]}
    provenance |= {} if drift is None else {"drift": drift}
    bundle = save_bundle(ensemble, options.output, processor, force=options.force, provenance=provenance,
                         tensors_only=options.no_processor)  # fmt: skip
    facts: dict[str, Any] = {"bundle": str(bundle.path), "members": ensemble.members}
    wrote = f"wrote {bundle.path}: {members_of(ensemble.members)} of {bundle.family}"
    if len(models) > len(options.model):
        one = models[0].config
        wrote += f" from a packed checkpoint, each of {one.num_attention_heads} heads and width {one.hidden_size}"
    if options.traced:
        model, checked = ensemble.architecture, ensemble.provenance["traced"]
        facts |= {"traced": model.form, **checked}
        lines = [
            f"{wrote}, traced, {model.form}",
            f"{model.layers} attention blocks; logits differ by at most {checked['difference']:.1e} from the original "
            f"with the same heads masked (masking changes logits by up to {checked['effect']:.1e}; "
            f"{checked['inputs']} inputs)",
        ]
    else:
        parameters, forms = cost_of(bundle).fused.parameters, ensemble.provenance.get("adapted", {})
        facts |= {"parameters": parameters, "drift": drift, **({"adapted": forms} if forms else {})}
        adapters = adapters_text(ensemble.provenance.get("adapters", []), forms)
        lines = [f"{wrote}, {parameters:,} parameters", *aligned([("adapters", adapters)])]
        lines += [] if drift is None else [merge_error_text(drift)]
    show(options, facts, "\n".join(lines))
    return 0


ALONE = set(PARTS) - {"attention"}  # parts that can be separate; if all are, nothing is averaged


def _check(options: argparse.Namespace) -> None:
    """Reject options that tracing does not support, and data for the merge error if nothing is merged."""
    for name in ("data", "classes", "template", "read") if options.traced else ():
        if getattr(options, name, None) is not None:
            raise InputError(f"--{name} does not apply to --traced; omit it")
    if options.traced and len(options.model) > 1:
        raise InputError(f"{len(options.model)} models with --traced; expected one")
    if options.data is not None and len(options.model) < 2:
        raise InputError("--data needs several MODELs, whose merge error it measures; omit it")
    if options.data is None and hasattr(options, "read"):
        raise InputError("--read needs --data, whose columns it names; omit it")


def _drift_report(
    options: argparse.Namespace, models: list[Any], ensemble: Any, processor: Any
) -> dict[str, Any] | None:
    """Measure the merge error on real or synthetic inputs; ``None`` if nothing was merged."""
    from ..fusion import fuse as fuse_models
    from ..fusion.merge_error import check_merged, measure_merge_error

    if set(ensemble.provenance["separate"]) == ALONE:
        return None
    unmerged = fuse_models(models, ensemble.plan, keep_separate="all")
    inputs, labels, described = _inputs(options, ensemble, processor)
    pairs = zip(inputs, labels, strict=True)
    drift = measure_merge_error(ensemble, unmerged, progress(pairs, len(inputs), "measuring the merge error"))
    if not options.force:
        check_merged(models, ensemble, unmerged, drift, inputs, labels)
    return {"inputs": described, **drift.to_json()}


def _inputs(options: argparse.Namespace, ensemble: Any, processor: Any) -> tuple[Sequence[Batch], list[Any], str]:
    """Return batches for the merge error, their labels, and their description."""
    from ..data.batching import item_batches
    from ..data.check_inputs import synthetic_batches
    from ..data.examples import read_examples
    from ..data.label_encoding import batch_labels
    from ..data.processor import from_transformers

    shape, labels = ensemble.architecture, list[Any]()
    if options.data is None:
        synthetic = synthetic_batches(shape, 64, options.seed)
        return synthetic, [None] * len(synthetic), "64 synthetic inputs"
    settings: dict[str, Any] = {"columns": shared.read_options(options), "seed": options.seed, "task": shape.task}
    examples = read_examples(options.data, ensemble.labels, limit=512, need_labels=False, **settings)
    if processor is None and not examples.ready:
        raise InputError("--data needs the processor; omit --no-processor or --data, or use prepared tensors")
    ready = examples.processor(shape, lambda: from_transformers(processor, shape))

    def batches() -> Iterator[Batch]:
        for index, items, arrays in item_batches(examples.inputs, ready, shape, 32):
            labels.append(None if examples.labels is None else batch_labels(items, examples.labels[index], arrays))
            yield arrays

    return CachedBatches(batches()), labels, f"{len(examples)} inputs of {examples.name}"


def adapters_text(adapters: Sequence[Mapping[str, Any]], forms: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Describe the adapters and the form of their updates; ``None`` without adapters."""
    if not adapters:
        return None
    low_rank = [name for name, form in forms.items() if form["low_rank"]]
    ranks = sorted({form["rank"] for form in forms.values()})
    named = ", ".join(short(str(adapter.get("name")), 24) for adapter in adapters if isinstance(adapter, Mapping))
    rank = f", rank {ranks[0]}" if len(ranks) == 1 else f", ranks {ranks[0]}–{ranks[-1]}" if ranks else ""
    merged = f": {len(forms) - len(low_rank)} of {len(forms)} updated weights merged, "
    merged += f"low-rank: {short(_layers_text(low_rank), 90)}"
    return f"{short(named, 90)}{rank}{merged if forms else ''}"


def _layers_text(modules: Sequence[str]) -> str:
    """``layers.1.attention.query``, … → ``layer 1 query value; layer 2 …``."""
    layers: dict[str, list[str]] = {}
    for name in modules:
        pieces = name.split(".")
        layers.setdefault(pieces[1] if len(pieces) > 1 else name, []).append(pieces[-1])
    return "; ".join(f"layer {layer} {' '.join(names)}" for layer, names in layers.items()) or "none"


def merge_error_text(drift: Mapping[str, Any]) -> str:
    """Describe the merge error in one sentence."""
    text = f"merge error of the shared parts, on {drift['inputs']}: max |Δ logit| "
    text += f"{drift['max_abs_logit_difference']:.3g}"
    if drift["label_changes"] is not None:
        text += f", labels changed {drift['label_changes']:.1%}"
    if drift["accuracy"] is not None:
        text += f", accuracy {drift['accuracy']:.4f} (unmerged {drift['unmerged_accuracy']:.4f})"
    return text
