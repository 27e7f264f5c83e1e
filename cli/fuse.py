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
from ..errors import InputError, short
from ..models.plan_cost import cost_of
from . import shared
from .command_options import Command, parts, positive
from .terminal import members_of, progress, show

EXAMPLE = "hydrant fuse checkpoint/ --plan plan.json -o out/"


def arguments(command: Command) -> None:
    """Its options."""
    command.heading("input")
    command.add("model", metavar="MODEL", nargs="+",
                help="Checkpoint of a transformers classifier, a folder or hub name: one, or one a member")  # fmt: skip
    command.add("--plan", metavar="PLAN", help="Head plan made by `hydrant plan`; without it every head is kept")
    command.add("--adapter", action="append", default=[], metavar="DIR",
                help="PEFT LoRA adapter of the one MODEL, which makes a member; once for each")  # fmt: skip
    shared.prompts(command)
    command.add("--data", metavar="FILE",
                help="Data to measure on what averaging changes (default: synthetic inputs)")  # fmt: skip
    shared.data_options(command)
    command.heading("method")
    command.add("--members", type=positive, metavar="M",
                help="Of one MODEL without a plan: number of members, which are alike until `hydrant tune "
                "--batch-ensemble` tells them apart")  # fmt: skip
    command.add("--traced", action="store_true",
                help="Take any classifier of texts, tokens, images or sounds that transformers has: attention is "
                "found by running it, and each member is compared with the original first")  # fmt: skip
    command.add("--keep-separate", type=parts, default=(), metavar="PARTS",
                help="Parts of separately tuned members that are not averaged: embeddings, norms, mlp, pooler, "
                "classifier, joined by commas, or all")  # fmt: skip
    command.heading("output")
    command.add("-o", "--output", type=Path, required=True, metavar="BUNDLE", help="Folder to create")
    command.add("--no-processor", action="store_true",
                help="Leave the tokenizer, image processor or feature extractor out of the bundle")  # fmt: skip
    command.add("--force", action="store_true", help="Replace an existing bundle at the output folder; "
                "write members whose averaging changes too much")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Fuse, and tell what was made and what averaging cost."""
    from ..models.checkpoint import check_supported, load_model, load_processor

    if options.traced:
        _check_traced(options)
    for model in [] if options.traced else options.model:
        check_supported(model, options.adapter)  # before PyTorch is imported
    from ..fusion import common_processor, save_bundle
    from ..fusion import fuse as fuse_models

    check_replaceable(options.output, MANIFEST, options.force)
    shared.check_data(options.data)
    _check_measured(options)
    chosen = None if options.plan is None else HeadPlan.load(options.plan)
    how: dict[str, Any] = {"members": options.members, "keep_separate": options.keep_separate}
    models: list[Any] = []
    if not options.traced:
        sources = [shared.source(source, options) for source in options.model]
        models = [
            load_model(source, options.adapter) if isinstance(source, str) else source
            for source in progress(sources, len(sources), "loading checkpoints")
        ]
    given = models or options.model[0]
    ensemble = fuse_models(given, chosen, adapters=options.adapter, traced=options.traced, **how)
    processor = common_processor(options.model, ensemble.architecture, options.adapter) if models else None
    if options.no_processor:
        processor = None
    elif processor is None:
        processor = load_processor(options.model[0], ensemble.architecture.modality)  # which says what is missing
    provenance: dict[str, Any] = {"sources": [Path(str(source)).name for source in options.model]}
    drift = _drift_report(options, models, ensemble, processor) if len(models) > 1 else None
    if drift is not None:
        provenance["drift"] = drift
    bundle = save_bundle(ensemble, options.output, processor, force=options.force, provenance=provenance,
                         tensors_only=options.no_processor)  # fmt: skip
    facts: dict[str, Any] = {"bundle": str(bundle.path), "members": ensemble.members}
    wrote = f"wrote {bundle.path}: {members_of(ensemble.members)} of {bundle.family}"
    if options.traced:
        model, checked = ensemble.architecture, ensemble.provenance["traced"]
        facts |= {"traced": model.form, **checked}
        lines = [
            f"{wrote}, traced, {model.form}",
            f"{model.layers} attention blocks; logits differ by {checked['difference']:.1e} at most from the original "
            f"with the same heads silenced, which moves them by up to {checked['effect']:.1e} "
            f"({checked['inputs']} inputs)",
        ]
    else:
        parameters, forms = cost_of(bundle).fused.parameters, ensemble.provenance.get("adapted", {})
        facts |= {"parameters": parameters, "drift": drift, **({"adapted": forms} if forms else {})}
        lines = [f"{wrote}, {parameters:,} parameters"]
        lines += adapters_text(ensemble.provenance.get("adapters", []), forms)
        lines += [] if drift is None else [merge_error_text(drift)]
    show(options, facts, "\n".join(lines))
    return 0


ALONE = set(PARTS) - {"attention"}
"""Parts that can be separate: with all of them nothing is averaged."""


def _check_measured(options: argparse.Namespace) -> None:
    """Refuse what only the drift of averaging is measured on, where nothing is averaged."""
    if options.data is not None and len(options.model) < 2:
        raise InputError("--data is given with one MODEL; data measure the drift of averaging several; leave it out")
    if options.data is None and hasattr(options, "read"):
        raise InputError("--read is given without --data, which it is about; leave it out")


def _check_traced(options: argparse.Namespace) -> None:
    """Refuse what tracing has no use for."""
    for name in ("data", "classes", "template", "read"):
        if getattr(options, name, None) is not None:
            raise InputError(
                f"--{name.replace('_', '-')} is given with --traced, which has no use for it; leave it out"
            )
    if len(options.model) > 1:
        raise InputError(f"{len(options.model)} models were given with --traced; expected one")


def _drift_report(
    options: argparse.Namespace, models: list[Any], ensemble: Any, processor: Any
) -> dict[str, Any] | None:
    """Drift of merging separately tuned members, on real or synthetic inputs; ``None`` when nothing was merged."""
    from ..fusion import fuse as fuse_models
    from ..fusion.merge_error import check_merged, measure_merge_error

    if set(ensemble.provenance["separate"]) == ALONE:
        return None
    unmerged = fuse_models(models, ensemble.plan, keep_separate="all")
    inputs, labels, described = _inputs(options, ensemble, processor)
    pairs = zip(inputs, labels, strict=True)
    drift = measure_merge_error(ensemble, unmerged, progress(pairs, len(inputs), "measuring drift"))
    if not options.force:
        check_merged(models, ensemble, unmerged, drift, inputs, labels)
    return {"inputs": described, **drift.to_json()}


def _inputs(options: argparse.Namespace, ensemble: Any, processor: Any) -> tuple[Sequence[Batch], list[Any], str]:
    """Batches to measure the drift on, the labels of each, and their description."""
    from ..data.batching import item_batches
    from ..data.check_inputs import synthetic_batches
    from ..data.examples import read_examples
    from ..data.label_encoding import batch_labels
    from ..data.processor import from_transformers

    shape, labels = ensemble.architecture, list[Any]()
    if options.data is None:
        synthetic = synthetic_batches(shape, 64, options.seed)
        return synthetic, [None] * len(synthetic), "64 synthetic inputs"
    how: dict[str, Any] = {"columns": shared.read_options(options), "seed": options.seed, "task": shape.task}
    found = read_examples(options.data, ensemble.labels, limit=512, need_labels=False, **how)
    if processor is None and not found.ready:
        raise InputError("--data needs the processor; leave out --no-processor, or --data, or give ready tensors")
    ready = found.processor(shape, lambda: from_transformers(processor, shape))

    def batches() -> Iterator[Batch]:
        for index, items, arrays in item_batches(found.inputs, ready, shape, 32):
            labels.append(None if found.labels is None else batch_labels(items, found.labels[index], arrays))
            yield arrays

    return CachedBatches(batches()), labels, f"{len(found)} inputs of {found.name}"


def adapters_text(adapters: Sequence[Mapping[str, Any]], forms: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The members' adapters, and in what form their updates are stored; no line without adapters."""
    if not adapters:
        return []
    kept = [name for name, form in forms.items() if form["low_rank"]]
    ranks = sorted({form["rank"] for form in forms.values()})
    named = ", ".join(short(str(adapter.get("name")), 24) for adapter in adapters if isinstance(adapter, Mapping))
    rank = f", rank {ranks[0]}" if len(ranks) == 1 else f", ranks {ranks[0]}–{ranks[-1]}" if ranks else ""
    told = f": {len(forms) - len(kept)} of {len(forms)} updated weights merged, "
    told += f"low-rank: {short(_layers_text(kept), 90)}"
    return [f"adapters      {short(named, 90)}{rank}{told if forms else ''}"]


def _layers_text(modules: Sequence[str]) -> str:
    """``layers.1.attention.query``, … → ``layer 1 query value; layer 2 …``."""
    layers: dict[str, list[str]] = {}
    for name in modules:
        pieces = name.split(".")
        layers.setdefault(pieces[1] if len(pieces) > 1 else name, []).append(pieces[-1])
    return "; ".join(f"layer {layer} {' '.join(names)}" for layer, names in layers.items()) or "none"


def merge_error_text(drift: Mapping[str, Any]) -> str:
    """The error of averaging members that were tuned separately, in one sentence."""
    text = f"drift of averaging the shared parts, on {drift['inputs']}: max |Δ logit| "
    text += f"{drift['max_abs_logit_difference']:.3g}"
    if drift["label_changes"] is not None:
        text += f", labels changed {drift['label_changes']:.1%}"
    if drift["accuracy"] is not None:
        text += f", accuracy {drift['accuracy']:.4f} (unmerged {drift['unmerged_accuracy']:.4f})"
    return text
