"""Head plans: which heads each of M members keeps, different enough to disagree where it matters."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...bundle.architecture import Architecture
from ...bundle.plan import HeadPlan, Keep
from ...data.columns import Reading
from ...data.examples import Examples, check_alike, check_apart, read_examples
from ...data.fingerprints import fingerprints
from ...data.processor import Processor, from_transformers
from ...errors import InputError, cut, is_whole
from ...families.checkpoint import load_model, load_processor, model_labels
from ...families.registry import architecture_of, prompts_of
from ...progress import Progress, no_progress
from .options import Budget, Circuit, Dropout, Method, Random, Taylor, deviation, method_of, name_of
from .selection import choose_heads, diversify, drop_heads, head_counts

if TYPE_CHECKING:
    from .budget import Trial

EXAMPLES = 2048
"""Calibration examples drawn where no number is given."""


def plan_heads(
    model: Any,
    data: Any = None,
    method: str | Method = "taylor",
    *,
    members: int = 3,
    keep: int | float | Sequence[Any] | Budget = 8,
    fork_from: int | None = None,
    reading: Reading = Reading(),
    seed: int = 0,
    processor: Any = None,
    progress: Progress = no_progress,
) -> HeadPlan:
    """Choose the attention heads that each member keeps.

    Args:
        model: checkpoint of a transformers classifier: a folder or hub name. In Python also the classifier itself, or
            what ``load_zero_shot`` returns.
        data: labelled calibration data: .csv, .tsv, .jsonl, .parquet, .npz, or an image folder. In Python also what
            ``data.examples.read_examples`` takes. Not needed for random heads without a budget; for a budget, best
            data that the model was not tuned on.
        method: how heads are scored: by Taylor importance, by circuits, or at random; or dropped at a rate. In Python
            also an option object: ``Taylor(noise=1.0)``, ``Circuit(ood=…)``, ``Random()``, ``Dropout(rate=0.1)``, which
            reads neither ``data`` nor ``keep``.
        members: number of members.
        keep: heads kept in each layer: a count, a share such as 0.66 (1.0: all), or a list. A list has one count or
            share for each layer from ``fork_from`` on, or one such list for each member (a list of one entry holds
            for every layer). ``Budget(1.25)`` chooses the fork and the heads on held-out examples
            (``calib.heads.budget``).
        fork_from: layers below this one keep every head in every member: one shared trunk, computed once. Default 0;
            with a budget, where it is best.
        reading: columns, number (2,048) and batch size of the examples; of ``ood`` at most as many are read.
        seed: of everything random; the same seed gives the same plan.
        processor: tokenizer or image processor, when ``model`` is a module that was not loaded
            from a folder holding one.
        progress: display (``hydrant.progress.Progress``).

    Returns:
        The plan; its ``provenance`` tells seed, data, scores, the members' overlap, under ``"budget"`` what was
        compared, and for circuits under ``"validation"`` accuracy, NLL and AUROC before and after.

    Raises:
        InputError: unusable data or options, or a budget below what any plan costs.
        UnsupportedModelError: the architecture is not supported.
    """
    how = method_of(method)
    _check(how, data, members, keep, seed)
    source = model if isinstance(model, str | Path) else getattr(model, "name_or_path", "") or None
    loaded = load_model(model) if isinstance(model, str | Path) else model
    architecture = architecture_of(loaded)
    shape = members, architecture.layers, architecture.heads
    fork = _check_fork(fork_from, architecture.layers)
    budget = keep if isinstance(keep, Budget) else None
    counts = [] if isinstance(keep, Budget) or isinstance(how, Dropout) else head_counts(keep, *shape, fork)
    facts: dict[str, Any] = {"seed": seed, **({"fork_from": fork} if fork else {}), **prompts_of([loaded])}
    chosen: tuple[Keep, ...]
    if isinstance(how, Dropout):
        chosen = drop_heads(*shape, fork, how.rate, seed)
        facts["rate"] = how.rate
    elif isinstance(how, Random) and budget is None:
        chosen = tuple(map(choose_heads, np.random.default_rng(seed).random(shape), counts))
    else:
        names = model_labels(loaded.config)
        drawn = read_examples(data, names, columns=reading, limit=reading.limit(EXAMPLES), seed=seed)
        ready = drawn.processor(architecture, lambda: resolve_processor(processor, source, architecture))
        job = _Job(loaded, architecture, drawn, ready, reading, seed, progress)
        if isinstance(how, Circuit):
            chosen, found = _by_circuits(job, how, counts)
        elif budget is not None:
            chosen, found = _within(job, how, budget, members, None if fork_from is None else fork)
        else:
            scores, found = _scores(job, how, drawn, members)
            chosen = tuple(map(choose_heads, scores, counts))
        facts |= fingerprints(architecture.modality, data=drawn) | found
    plan = HeadPlan(architecture.family, architecture.layers, architecture.heads, chosen, name_of(how))
    return replace(plan, provenance={**facts, "keep": plan.head_counts(), "overlap": plan.overlap()})


@dataclass(frozen=True)
class _Job:
    """A model, the examples drawn for it, and how they run."""

    model: Any
    architecture: Architecture
    drawn: Examples
    processor: Processor
    reading: Reading
    seed: int
    progress: Progress


def _scores(job: _Job, how: Taylor | Random, scoring: Examples, members: int) -> tuple[np.ndarray, dict[str, Any]]:
    """One table of scores for each member, [M, L, H], and what the plan records of them."""
    if isinstance(how, Random):
        shape = members, job.architecture.layers, job.architecture.heads
        return np.random.default_rng(job.seed).random(shape), {}
    from .taylor import taylor_scores

    per_example = taylor_scores(
        job.model, scoring, job.processor, batch_size=job.reading.batch_size, progress=job.progress
    )
    scores = diversify(per_example, members, how.diversity, deviation(how), job.seed)
    return scores, _taylor_provenance(scoring, per_example, how)


def _within(
    job: _Job, how: Taylor | Random, budget: Budget, members: int, fork: int | None
) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """The best plan within a budget, forking at any layer or at the one given."""
    from .budget import check_reachable, choose, find_candidates, mean_tokens, measure, split_examples

    limit, architecture = budget.ratio, job.architecture
    forks = range(architecture.layers) if fork is None else [fork]
    tokens = mean_tokens(job.drawn.inputs, job.processor, architecture)
    check_reachable(architecture, members, limit, forks=forks, sequence=tokens)
    scoring, held_out = split_examples(job.drawn, job.seed)
    scores, facts = _scores(job, how, scoring, members)
    candidates = find_candidates(architecture, scores, limit, forks=forks, sequence=tokens)
    trials = measure(
        job.model, candidates, held_out, job.processor, batch_size=job.reading.batch_size, progress=job.progress
    )
    best = choose(trials)
    compared = _budget_provenance(limit, tokens, len(job.drawn), trials, best)
    return best.candidate.members, {**facts, "budget": compared}


def _by_circuits(job: _Job, how: Circuit, counts: list[list[int]]) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """The heads of circuits, searched on the examples and the out-of-distribution data."""
    from .circuit_plan import plan_circuits
    from .circuits import Settings

    limit = job.reading.limit(EXAMPLES)
    unknown = None if how.ood is None else read_examples(how.ood, None, columns=job.reading, limit=limit, seed=job.seed)
    check_alike(job.drawn, unknown)
    wanted = Settings(counts, how.objective, how.diversity, deviation(how), how.average, job.seed, how.masking)
    chosen, facts = plan_circuits(
        job.model, job.drawn, unknown, job.processor, wanted,
        batch_size=job.reading.batch_size, state=how.state, progress=job.progress,
    )  # fmt: skip
    seen = fingerprints(job.architecture.modality, data=job.drawn, ood=unknown)
    return chosen, data_provenance(job.drawn) | facts | seen


def resolve_processor(processor: Any, source: str | Path | None, architecture: Architecture) -> Processor:
    """A processor for the model: the one given, or the one stored with the checkpoint.

    Raises:
        InputError: there is neither.
    """
    if processor is None:
        if source is None:
            raise InputError(
                "the model was not loaded from a folder; give its tokenizer or image processor as processor=…"
            )
        processor = load_processor(source, architecture.modality)
    if hasattr(processor, "encode") and hasattr(processor, "collate") and hasattr(processor, "describe"):
        return processor
    return from_transformers(processor, architecture)


def _check(how: Method, data: Any, members: int, keep: Any, seed: int) -> None:
    """Refuse what does not go together, before any long work."""
    if members < 1:
        raise InputError(f"members is {members}; expected at least 1")
    if not is_whole(seed, most=2**63 - 1):
        raise InputError(f"seed is {seed!r:.60}; expected 0 or more")
    if isinstance(keep, Budget):
        _check_budget(keep, how, members)
    if isinstance(how, Circuit):
        if data is None:
            raise InputError("method 'circuit' needs labelled validation data; give it with data=… (--data)")
        check_apart(data, how.ood)
    elif data is None and (isinstance(how, Taylor) or isinstance(keep, Budget)):
        needs = "a budget" if isinstance(keep, Budget) else f"method {name_of(how)!r}"
        raise InputError(f"{needs} needs labelled calibration data; give it with data=… (--data)")


def _check_budget(budget: Budget, how: Method, members: int) -> None:
    if isinstance(how, Dropout):
        raise InputError(
            f"budget {budget.ratio:g} is given for method 'dropout', whose rate decides how many heads stay; leave the "
            "budget out, or use method 'random'"
        )
    if isinstance(how, Circuit):
        raise InputError(
            f"budget {budget.ratio:g} is given for method 'circuit', whose scores depend on how many heads each "
            "earlier layer keeps; expected a number of heads to keep, and fork_from for a shared trunk; leave the "
            "budget out, or use method 'taylor'"
        )
    if members < 2:
        raise InputError(
            f"budget {budget.ratio:g} is given for {members} member; expected 2 or more, since plans are compared by "
            "what their members disagree on; give more members, or keep instead of a budget"
        )


def _check_fork(fork_from: int | None, layers: int) -> int:
    """The layer to fork from, 0 when none is given."""
    if fork_from is None:
        return 0
    if isinstance(fork_from, bool) or not isinstance(fork_from, int) or not 0 <= fork_from < layers:
        raise InputError(f"fork_from is {cut(fork_from)}; expected a layer of the model, 0 to {layers - 1}")
    return fork_from


def _budget_provenance(
    budget: float, tokens: int | None, drawn: int, trials: Sequence[Trial], best: Trial
) -> dict[str, Any]:
    """What was compared under the budget; candidates in order of their NLL."""
    return {
        "limit": budget,
        **best.to_json(),
        "sequence": tokens,
        "examples_drawn": drawn,
        "examples_held_out": len(best.losses),
        "candidates": [trial.to_json() for trial in sorted(trials, key=lambda trial: trial.nll)],
    }


def data_provenance(calibration: Examples) -> dict[str, Any]:
    """What the calibration data were."""
    return {
        "data": calibration.name,
        "examples": len(calibration),
        "labels_sha256": hashlib.sha256(np.asarray(calibration.labels).tobytes()).hexdigest(),
    }


def _taylor_provenance(calibration: Examples, per_example: np.ndarray, how: Taylor) -> dict[str, Any]:
    mean = per_example.mean(axis=0, dtype=np.float64)
    facts: dict[str, Any] = {
        **data_provenance(calibration),
        "diversity": how.diversity,
        "scores": [[float(f"{score:.6g}") for score in row] for row in mean],
    }
    return facts | ({"noise": deviation(how)} if how.diversity == "noise" else {})
