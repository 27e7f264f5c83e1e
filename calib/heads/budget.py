"""Planning within a budget of operations: candidates (``candidates``), measured and chosen on held-out examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...bundle.architecture import Architecture
from ...bundle.plan import Keep
from ...data.examples import Examples
from ...data.processor import Processor
from .candidates import check_reachable, few_heads, find_candidates, unpruned
from .choosing import AccuracyLossError, Choice
from .held_out import ANY, within
from .options import Budget
from .trials import Trial, choose, lost_words, measure


def mean_tokens(examples: Examples, processor: Processor, architecture: Architecture) -> int | None:
    """Mean length of texts in tokens, rounded up, for the cost; ``None`` for images, which have their own."""
    if architecture.modality == "image":
        return None
    lengths = [item.tokens for item in processor.encode(examples.inputs)]
    return min(math.ceil(sum(lengths) / len(lengths)), architecture.max_sequence)


def plan_within(
    budget: Budget, choice: Choice, members: int, fork: int | None, tokens: int | None, held_out: Examples
) -> tuple[tuple[Keep, ...], dict[str, Any]]:
    """The best plan within a budget, forking at any layer or at the one given.

    Returns:
        The heads of each member, and what the plan records.
    """
    job, limit = choice.job, budget.ratio
    architecture = job.architecture
    late = architecture.layers - max(1, architecture.layers // 3) if budget.to_tune else 0
    forks = range(late, architecture.layers) if fork is None else [fork]
    check_reachable(architecture, members, limit, forks=forks, sequence=tokens)
    search = (lambda counts: choice.heads([counts] * members)) if choice.searches else None
    how: dict[str, Any] = {"forks": forks, "sequence": tokens, "search": search, "drawn": choice.drawn}
    if budget.to_tune:
        candidates = [few_heads(architecture, choice.tables, limit, **how)]
    else:
        candidates = find_candidates(architecture, choice.tables, limit, **how)
    single, *trials = measure(
        job.model, [unpruned(architecture), *candidates], job.held_out(held_out), progress=job.progress
    )
    margin = choice.max_accuracy_loss
    anything = budget.to_tune or margin >= ANY  # members that will be tuned are not yet what they will be
    allowed = [trial for trial in trials if anything or within(trial.lost(single), margin)]
    if not allowed:
        best = min(trials, key=lambda trial: trial.lost(single))
        raise AccuracyLossError(
            f"of {len(trials)} plans within {limit:g} × the single model's operations, the best has {best.quality()} "
            f"on {len(held_out)} held-out examples, and the single model {single.quality()}; expected a "
            f"loss of at most {lost_words(f'{margin:g}', single)} (--max-accuracy-loss); allow more, give a larger "
            "budget, or choose another method"
        )
    best_trial = choose(allowed)
    counts = [best_trial.candidate.counts] * members
    facts = {**choice.provenance(counts), "budget": _provenance(budget, tokens, single, trials, best_trial)}
    return best_trial.candidate.members, facts


def _provenance(
    budget: Budget, tokens: int | None, single: Trial, trials: Sequence[Trial], best: Trial
) -> dict[str, Any]:
    """What was compared under the budget; candidates in order of their NLL."""
    return {
        "limit": budget.ratio,
        "to_tune": budget.to_tune,
        **best.to_json(),
        "sequence": tokens,
        "examples_held_out": len(best.losses),
        "single": single.to_json(),
        "candidates": [trial.to_json() for trial in sorted(trials, key=lambda trial: trial.nll)],
    }
