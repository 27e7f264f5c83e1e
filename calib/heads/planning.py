"""Head plans: which heads each of M members keeps, different enough to disagree where it matters."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.architecture import Architecture
from ...bundle.plan import HeadPlan
from ...data.examples import Examples, check_alike, read_examples
from ...data.processor import Processor, from_transformers
from ...errors import InputError, cut
from ...families.checkpoint import load_model, load_processor, model_labels
from ...families.registry import architecture_of, prompts_of
from ...progress import Progress, no_progress
from .budget import Trial, check_reachable, choose, find_candidates, mean_tokens, measure, split_examples
from .circuit_plan import DEFAULT_OBJECTIVE, check_options, plan_circuits
from .circuits import MASKING, Settings
from .selection import choose_heads, diversify, head_counts
from .taylor import taylor_scores

METHODS = ("taylor", "circuit", "random")


DIVERSITY = ("noise", "bootstrap")


DEFAULT_EXAMPLES = 2048


DEFAULT_KEEP = 8


DEFAULT_DIVERSITY = {"taylor": "noise", "circuit": "bootstrap", "random": "noise"}
"""By method; for circuits, what gave the higher OOD AUROC on the validation split of CLINC150."""


def plan_heads(
    model: Any,
    data: Any = None,
    *,
    members: int = 3,
    keep: int | float | list[Any] | None = None,
    budget: float | None = None,
    fork_from: int | None = None,
    method: str = "taylor",
    ood: Any = None,
    objective: str | None = None,
    masking: str | None = None,
    average: bool = False,
    diversity: str | None = None,
    noise: float = 0.5,
    examples: int | None = DEFAULT_EXAMPLES,
    seed: int = 0,
    processor: Any = None,
    text_column: str = "text",
    text_pair_column: str | None = None,
    label_column: str = "label",
    batch_size: int = 32,
    state: str | Path | None = None,
    progress: Progress = no_progress,
) -> HeadPlan:
    """Choose the attention heads that each member keeps.

    Args:
        model: a transformers classifier, a path or hub name of one, or what ``load_zero_shot`` returns.
        data: labelled calibration data (``calib.data.read_examples``); not needed for ``"random"`` without a
            budget. For a budget, best data that the model was not tuned on.
        members: number of members M.
        keep: heads kept per layer (default 8): a count; a share of the heads (a float, at most 1); a list with
            one count or share for each layer from ``fork_from`` on; or a list of M such lists (a list of one
            entry holds for every layer).
        budget: instead of ``keep``, the most operations, in those of the plain single model (1.25): where to
            fork and how many heads to keep is chosen on held-out examples (``calib.budget``).
        fork_from: layers below it keep every head in every member: one trunk, computed once (default 0). With
            a budget, members part exactly there (default: where it is best).
        method: ``"taylor"`` keeps the heads of highest Taylor importance; ``"circuit"`` those whose absence hurts
            the objective most, layer by layer (``calib.circuits``); ``"random"`` any.
        ood: for circuits: out-of-distribution inputs, as ``data`` but without need of labels.
        objective: of circuits (``calib.objectives``): ``"separation"`` of ``ood`` from ``data`` by predictive
            entropy (default), ``"nll"`` on ``data``, or ``"both"``.
        masking: of circuits: heads of earlier layers that are masked while a layer is scored, the ``"pruned"``
            (default) or the ``"selected"`` ones, as HeadMap does.
        average: for circuits: a plan of one member, the average of M circuits (CircAvg).
        diversity: how members are made to differ: ``"noise"`` on their scores (default of Taylor);
            ``"bootstrap"`` scores each member on its own resample, with replacement, of the examples (default of
            circuits). A single member has neither.
        noise: for ``"noise"``, with ε standard normal and summing to zero over the members: Taylor scores are
            multiplied by exp(noise · ε); noise · ε · (spread of the layer's scores) is added to those of circuits.
        examples: number of calibration examples, drawn at random, and at most as many of ``ood``; ``None`` for all.
        seed: of everything random; the same seed gives the same plan.
        processor: tokenizer or image processor, when ``model`` is a module that was not loaded
            from a folder holding one.
        text_column, text_pair_column, label_column: columns of tabular data; the second for pairs of texts.
        batch_size: examples per forward and backward pass.
        state: for circuits: a file that keeps what the search has found. If it exists the search goes on where it
            was interrupted; when the search is complete it is deleted.
        progress: display (``hydrant.progress.Progress``).

    Returns:
        The plan; its ``provenance`` tells seed, data, scores, the members' overlap, under ``"budget"`` what was
        compared, and for circuits under ``"validation"`` accuracy, NLL and AUROC before and after.

    Raises:
        InputError: unusable data or options, or a budget below what any plan costs.
        UnsupportedModelError: the architecture is not supported.
    """
    diversity = diversity or DEFAULT_DIVERSITY.get(method, "noise")
    _check_options(method, diversity, members, noise, seed, batch_size)
    _check_budget(budget, keep, members)
    check_options(method, data, ood, objective, masking, average=average, budget=budget)
    source = model if isinstance(model, str | Path) else getattr(model, "name_or_path", "") or None
    loaded = load_model(model) if isinstance(model, str | Path) else model
    architecture = architecture_of(loaded)
    shape = members, architecture.layers, architecture.heads
    fork = _check_fork(fork_from, architecture.layers)
    counts = [] if budget else head_counts(DEFAULT_KEEP if keep is None else keep, *shape, fork)
    provenance: dict[str, Any] = {"seed": seed, **({"fork_from": fork} if fork else {}), **prompts_of([loaded])}
    if method == "random":
        scores = np.random.default_rng(seed).random(shape)
    if method != "random" or budget:
        if data is None:
            needs = "a budget" if budget else f"method {method!r}"
            raise InputError(f"{needs} needs labelled calibration data; give it with data=… (--data)")
        names = model_labels(loaded.config)
        drawn = read_examples(
            data,
            names,
            limit=examples,
            seed=seed,
            text_column=text_column,
            text_pair_column=text_pair_column,
            label_column=label_column,
        )
        ready = drawn.processor(architecture, lambda: resolve_processor(processor, source, architecture))
        scoring = drawn
    if budget:
        forks = range(architecture.layers) if fork_from is None else [fork]
        tokens = mean_tokens(drawn.inputs, ready, architecture)
        check_reachable(architecture, members, budget, forks=forks, sequence=tokens)
        scoring, held_out = split_examples(drawn, seed)
    if method == "taylor":
        per_example = taylor_scores(loaded, scoring, ready, batch_size=batch_size, progress=progress)
        scores = diversify(per_example, members, diversity, noise, seed)
        provenance |= _taylor_provenance(scoring, per_example, diversity, noise)
    if budget:
        candidates = find_candidates(architecture, scores, budget, forks=forks, sequence=tokens)
        trials = measure(loaded, candidates, held_out, ready, batch_size=batch_size, progress=progress)
        best = choose(trials)
        chosen = best.candidate.members
        provenance["budget"] = _budget_provenance(budget, tokens, len(drawn), trials, best)
    elif method == "circuit":
        texts: dict[str, Any] = {"text_column": text_column, "text_pair_column": text_pair_column}
        unknown = None if ood is None else read_examples(ood, None, limit=examples, seed=seed, **texts)
        check_alike(drawn, unknown)
        wanted = Settings(
            counts, objective or DEFAULT_OBJECTIVE, diversity, noise, average, seed, masking or MASKING[0]
        )
        chosen, facts = plan_circuits(
            loaded, drawn, unknown, ready, wanted, batch_size=batch_size, state=state, progress=progress
        )
        provenance |= data_provenance(drawn) | facts
    else:
        chosen = tuple(map(choose_heads, scores, counts))
    plan = HeadPlan(architecture.family, architecture.layers, architecture.heads, chosen, method)
    return replace(plan, provenance={**provenance, "keep": plan.head_counts(), "overlap": plan.overlap()})


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


def _check_options(method: str, diversity: str, members: int, noise: float, seed: int, batch_size: int) -> None:
    if method not in METHODS:
        raise InputError(f"method {cut(method)} is unknown; expected one of {', '.join(METHODS)}")
    if diversity not in DIVERSITY:
        raise InputError(f"diversity {cut(diversity)} is unknown; expected one of {', '.join(DIVERSITY)}")
    if members < 1:
        raise InputError(f"members is {members}; expected at least 1")
    if not 0 <= noise < float("inf"):
        raise InputError(f"noise is {noise}; expected a finite number, 0 or more")
    if seed < 0:
        raise InputError(f"seed is {seed}; expected 0 or more")
    if batch_size < 1:
        raise InputError(f"batch_size is {batch_size}; expected 1 or more")


def _check_budget(budget: float | None, keep: Any, members: int) -> None:
    if budget is None:
        return
    if not (isinstance(budget, int | float) and 0 < budget < float("inf")) or isinstance(budget, bool):
        raise InputError(
            f"budget is {cut(budget)}; expected a positive number: the cost in operations of the single model, as 1.25"
        )
    if keep is not None:
        raise InputError(
            f"keep {cut(keep)} and budget {budget:g} are both given; expected one of them, since a budget chooses "
            "how many heads to keep; leave one out"
        )
    if members < 2:
        raise InputError(
            f"budget {budget:g} is given for {members} member; expected 2 or more, since plans are compared by what "
            "their members disagree on; give more members, or keep instead of a budget"
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


def _taylor_provenance(calibration: Examples, per_example: np.ndarray, diversity: str, noise: float) -> dict[str, Any]:
    mean = per_example.mean(axis=0, dtype=np.float64)
    facts: dict[str, Any] = {
        **data_provenance(calibration),
        "diversity": diversity,
        "scores": [[float(f"{score:.6g}") for score in row] for row in mean],
    }
    return facts | ({"noise": noise} if diversity == "noise" else {})
