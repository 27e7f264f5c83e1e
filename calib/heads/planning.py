"""Head plans: the attention heads that each member keeps."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.architecture import Architecture
from ...bundle.head_plan import HeadPlan, Keep
from ...bundle.traced import LACKS, Block
from ...data.corruptions import synthetic_ood
from ...data.data_options import DataOptions
from ...data.examples import Examples, check_alike, check_apart, check_folder, read_examples
from ...data.fingerprints import fingerprints
from ...data.processor import Processor, from_transformers
from ...errors import InputError, check_seed, cut
from ...models.checkpoint import load_model, load_processor, model_labels, own_processor
from ...models.family_registry import architecture_of, blocks_of, prompts_of
from ...progress import Progress, no_progress
from .methods import Budget, Circuit, Dropout, Method, Random, Taylor, is_pseudo, methods_of, name_of, of_members
from .selection import (
    ANY,
    choose_heads,
    drawn_facts,
    drawn_scores,
    drop_heads,
    group_counts,
    group_scores,
    heads_of_groups,
    split_examples,
)

log = logging.getLogger(__name__)
USUAL = Budget()
EXAMPLES = 2048  # default number of calibration examples


def plan_heads(
    model: Any,
    data: Any = None,
    method: str | Method | Sequence[str | Method] = "taylor",
    *,
    members: int = 3,
    keep: int | float | Sequence[Any] | Budget = USUAL,
    fork_from: int | None = None,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    processor: Any = None,
    traced: bool = False,
    progress: Progress = no_progress,
) -> HeadPlan:
    """Choose the attention heads that each member keeps.

    Args:
        model: checkpoint of a transformers classifier: a folder or hub name. In Python also the classifier itself, or
            what ``load_zero_shot`` returns.
        data: labelled data to rank heads: .csv, .jsonl, .parquet, .npz, an image folder, hf:NAME or URL. Also .tsv; a
            Hugging Face data set is ``hf:NAME:CONFIG:SPLIT``. In Python also what ``data.examples.read_examples``
            takes. Not needed for random heads if ``keep`` says how many; for a budget, best data that the model was not
            tuned on.
        method: head ranking: taylor, circuit, random or dropout, or one per member. ``taylor`` is Taylor importance; a
            list such as taylor,random,random has one for each member; ``dropout`` drops heads at a rate and needs
            neither ``data`` nor ``keep``. In Python also an option object, ``Taylor(noise=1.0)``, ``Circuit(ood=…)``,
            ``Random(systematic=True)``, ``Dropout(rate=0.1)``, or a list of them.
        members: number of members.
        keep: heads kept in each layer: a count, a share such as 0.66, or a list; replaces a budget. 1.0 keeps all. A
            list has one count or share for each layer from ``fork_from`` on, or one such list for each member (a list
            of one entry holds for every layer). The default is ``Budget()``: the best plan that costs no more than the
            plain single model; fork and heads are chosen on held-out examples (``calib.heads.plan_search``).
        fork_from: layers below this one are shared by all members and keep every head. Default 0; with a budget, where
            it is best.
        reading: columns, number (2,048) and batch size of the examples; of ``ood`` at most as many are read.
        seed: of everything random; the same seed gives the same plan.
        processor: tokenizer or image processor, when ``model`` is a module that was not loaded
            from a folder holding one.
        traced: trace any transformers classifier; needs --keep, and taylor or random. Texts, tokens, images and sounds;
            attention is discovered by running the model.
        progress: display (``hydrant.progress.Progress``).

    Returns:
        The plan. Its ``provenance`` has seed, data, scores, and overlap of the members; ``"budget"`` lists the compared
        plans; for circuits, ``"validation"`` has accuracy, NLL and AUROC before and after.

    Raises:
        InputError: data or options are unusable, a budget is below the cost of any plan, or circuits lose more accuracy
            than allowed.
        UnsupportedModelError: the architecture is not supported.
    """
    methods = methods_of(method, members)
    _check(methods, data, members, keep, seed, traced)
    source = model if isinstance(model, str | Path) else getattr(model, "name_or_path", "") or None
    loaded, architecture, blocks = _read(model, processor, traced)
    if not 0 <= (fork := fork_from or 0) < architecture.layers:
        raise InputError(f"fork_from is {fork}; expected a layer, 0 to {architecture.layers - 1}")
    dropped = methods[0] if isinstance(methods[0], Dropout) else None
    counts = [] if isinstance(keep, Budget) or dropped else group_counts(keep, members, blocks, fork)
    facts: dict[str, Any] = {"seed": seed, **({"traced": True} if traced else {})}
    facts |= {**({"fork_from": fork} if fork else {}), **prompts_of([loaded])}
    shape = members, architecture.layers, architecture.heads
    chosen: tuple[Keep, ...]
    if dropped is not None:
        chosen = drop_heads(*shape, fork, dropped.rate, seed)
        facts["rate"] = dropped.rate
    elif counts and all(isinstance(each, Random) for each in methods):
        tables = drawn_scores(of_members(methods, members), *shape[1:], seed)
        groups = map(choose_heads, [group_scores(table, blocks) for table in tables], counts)
        chosen = tuple(heads_of_groups(each, blocks) for each in groups)
        facts |= drawn_facts(methods)
    else:
        from .choosing import Choice, Job  # PyTorch

        read = partial(read_examples, columns=reading, limit=reading.limit(EXAMPLES), seed=seed, task=architecture.task)
        check_folder(data, architecture.modality)
        drawn = read(data, model_labels(loaded.config))
        if architecture.task == "score":
            from ...tasks.regression import loss_of

            facts["loss"] = loss_of(np.asarray(drawn.labels), architecture.score_activation, drawn.source)
        ood = _ood_examples(methods, drawn, read, architecture, seed)
        ready = drawn.processor(architecture, lambda: resolve_processor(processor, source, architecture))
        guarded = any(isinstance(method, Circuit) and method.max_accuracy_loss < ANY for method in methods)
        compared = guarded or isinstance(keep, Budget)
        scoring, held_out = split_examples(drawn, seed) if compared else (drawn, drawn)
        job = Job(loaded, architecture, scoring, ood, ready, reading, seed, progress)
        with Choice(job, methods, members).searching() as choice:
            if not compared:
                chosen, provenance = choice.heads(counts), choice.provenance(counts)
            else:
                from .plan_search import heads_within_margin, mean_tokens, plan_within

                if isinstance(keep, Budget):
                    at, tokens = None if fork_from is None else fork, mean_tokens(drawn, ready, architecture)
                    chosen, provenance = plan_within(keep, choice, members, at, tokens, held_out)
                else:
                    chosen, provenance = heads_within_margin(choice, counts, held_out)
        if ood is not None and len(ood) < 200:
            log.warning("%s has %d OOD examples; circuits overfit fewer than 200: give more", ood.name, len(ood))
        facts |= {**data_provenance(drawn), **fingerprints(architecture.modality, data=drawn, ood=ood), **provenance}
    name = ",".join(map(name_of, methods))
    plan = HeadPlan(architecture.family, architecture.layers, architecture.heads, chosen, name)
    return replace(plan, provenance={**facts, "keep": plan.head_counts(), "overlap": plan.overlap()})


def _read(model: Any, processor: Any, traced: bool) -> tuple[Any, Any, tuple[Block, ...]]:
    """A classifier, its architecture and its attention blocks."""
    if traced:
        from ...models.tracing.members import trace
        from ...models.tracing.traced_model import load_traced, modality_of, taken  # PyTorch

        loaded = load_traced(model) if isinstance(model, str | Path) else taken(model)
        architecture: Any = trace(loaded, processor or own_processor(model, modality_of(type(loaded).__name__)))
    else:
        loaded = load_model(model) if isinstance(model, str | Path) else model
        architecture = architecture_of(loaded)
    return loaded, architecture, blocks_of(loaded, architecture)


def _ood_examples(
    methods: Sequence[Method], drawn: Examples, read: Callable[..., Examples], architecture: Architecture, seed: int
) -> Examples | None:
    """The OOD examples for the search of circuits."""
    sources = [method.ood for method in methods if isinstance(method, Circuit) and method.ood is not None]
    if not sources:
        return None
    if any(ood is not sources[0] and not (isinstance(ood, str | Path) and ood == sources[0]) for ood in sources[1:]):
        raise InputError("the members' circuits have different out-of-distribution data; give the same data to all")
    pseudo = is_pseudo(sources[0])
    examples = synthetic_ood(drawn, architecture.modality, seed) if pseudo else read(sources[0], None)
    check_alike(drawn, examples)
    return examples


def resolve_processor(processor: Any, source: str | Path | None, architecture: Architecture) -> Processor:
    """A processor for the model: the argument, or the processor stored with the checkpoint."""
    if processor is None:
        if source is None:
            raise InputError("the model comes from no folder; pass its tokenizer or image processor as processor=…")
        processor = load_processor(source, architecture.modality)
    if hasattr(processor, "encode") and hasattr(processor, "collate") and hasattr(processor, "describe"):
        return processor
    return from_transformers(processor, architecture)


def _check(methods: Sequence[Method], data: Any, members: int, keep: Any, seed: int, traced: bool) -> None:
    """Raise ``InputError`` for options that do not fit together."""
    check_seed(seed)
    if traced:
        _check_traced(methods, keep)
    if any(isinstance(method, Dropout) for method in methods):
        if keep != USUAL:
            raise InputError(f"keep is {cut(keep)}, but the rate of method 'dropout' decides the heads; omit keep")
        return
    if isinstance(keep, Budget) and members < 2:
        raise InputError(f"a budget ({keep.ratio:g}) needs 2 or more members; add some, or give heads to keep (keep)")
    for method in methods:
        if isinstance(method, Circuit):
            if method.average and isinstance(keep, Budget):
                raise InputError("averaged circuits are one member, so have no budget; give the number of heads (keep)")
            if data is None:
                raise InputError("method 'circuit' needs labelled validation data; give it with data=… (--data)")
            check_apart(data, None if is_pseudo(method.ood) else method.ood)
        elif data is None and (isinstance(method, Taylor) or isinstance(keep, Budget)):
            needs = f"method {name_of(method)!r}" if isinstance(method, Taylor) else f"a budget ({keep.ratio:g})"
            raise InputError(f"{needs} needs labelled calibration data; give it with data=… (--data)")


def _check_traced(methods: Sequence[Method], keep: Any) -> None:
    """Raise ``InputError`` for options that need a declared family."""
    if any(isinstance(method, Circuit | Dropout) for method in methods):
        names = ",".join(map(name_of, methods))
        raise InputError(f"traced models do not support method {names}, nor {LACKS}; choose taylor or random")
    if isinstance(keep, Budget):
        raise InputError("a traced model has no cost estimate for a budget; give heads to keep (keep=0.5, --keep 0.5)")
    if any(isinstance(method, Random) and method.systematic for method in methods):
        raise InputError("traced models do not support systematic random heads; omit systematic")


def data_provenance(calibration: Examples) -> dict[str, Any]:
    """Provenance of the calibration data."""
    digest = hashlib.sha256(np.asarray(calibration.labels).tobytes()).hexdigest()
    return {"data": calibration.name, "examples": len(calibration), "labels_sha256": digest}
