"""Random members: drawn independently, as a systematic sample, or by dropout with fixed masks."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from hydrant import Budget, Dropout, HeadPlan, Random, Taylor, fuse, plan_heads
from hydrant.calib.heads.selection import choose_heads, drawn_facts, drop_heads, systematic_scores
from hydrant.errors import InputError
from hypothesis import given
from hypothesis import strategies as st
from support import HEADS, LAYERS, make_inputs, make_model


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 12), st.integers(0, 99), st.data())
def test_a_systematic_sample_keeps_every_head_as_often_as_any_other_to_within_one(
    members: int, layers: int, heads: int, seed: int, data: st.DataObject
) -> None:
    """For any head counts: the scores do not depend on them."""
    counts = data.draw(st.lists(st.integers(1, heads), min_size=layers, max_size=layers))
    scores = systematic_scores(members, layers, heads, seed)
    plans = [choose_heads(scores[member], counts) for member in range(members)]
    HeadPlan("bert", layers, heads, tuple(plans), "random")  # validates itself
    for layer, count in enumerate(counts):
        uses = Counter(head for member in plans for head in member[layer])
        assert {uses[head] for head in range(heads)} <= {
            math.floor(count * members / heads),
            math.ceil(count * members / heads),
        }


def test_systematic_plans_within_a_budget_and_among_other_methods(bert_checkpoint: Path, text_csv: Path) -> None:
    how = Random(systematic=True)
    plain = plan_heads(bert_checkpoint, method=how, members=2, keep=HEADS // 2, seed=5)
    assert plain.method == "random"
    assert plain.provenance["systematic"] is True
    for layer in range(LAYERS):
        assert sorted(head for member in plain.members for head in member[layer]) == list(range(HEADS))
    assert "systematic" not in plan_heads(bert_checkpoint, method="random", keep=2).provenance
    budget = plan_heads(bert_checkpoint, text_csv, how, members=2, keep=Budget(ratio=3.0), seed=5)
    assert budget.provenance["systematic"] is True
    same = plan_heads(bert_checkpoint, method=how, members=2, keep=budget.head_counts(), seed=5)
    assert same.members == budget.members
    mixed = plan_heads(bert_checkpoint, text_csv, [Taylor(), how, how], keep=HEADS // 2, seed=5)
    assert mixed.provenance["random"] == {"systematic": True}
    assert drawn_facts([Random(), Taylor(), how]) == {"systematic": [False, None, True]}
    with pytest.raises(InputError, match="systematic"):
        plan_heads(make_model("bert"), method=how, keep=2, traced=True)
    assert all(not set(one) & set(other) for one, other in zip(*mixed.members[1:], strict=True))


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9), st.floats(0.01, 0.99), st.integers(0, 99), st.data())
def test_every_layer_keeps_a_head_and_the_trunk_all(
    members: int, layers: int, heads: int, rate: float, seed: int, data: st.DataObject
) -> None:
    fork = data.draw(st.integers(0, layers - 1))
    plans = drop_heads(members, layers, heads, fork, rate, seed)
    HeadPlan("bert", layers, heads, plans, "dropout")  # validates itself
    assert plans == drop_heads(members, layers, heads, fork, rate, seed)
    assert all(member[layer] == tuple(range(heads)) for member in plans for layer in range(fork))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_heads_are_dropped_at_the_rate_and_apart(rate: float) -> None:
    """Drops are independent; the rate allows for the one head that always stays."""
    plans = drop_heads(40, 30, 8, 0, rate, 5)
    mask = np.array([[[head in layer for head in range(8)] for layer in member] for member in plans])  # [M, L, H]
    expected = 1 - rate + rate**8 / 8
    assert mask.mean() == pytest.approx(expected, abs=5 * np.sqrt(rate * (1 - rate) / mask.size))
    for axis in range(3):
        first, second = (np.take(mask, index, axis=axis).ravel() for index in (0, 1))
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(first)) + 0.02 / (1 - rate)


def test_members_are_the_model_with_these_heads_silenced() -> None:
    model = make_model("bert")
    plan = plan_heads(model, method=Dropout(rate=0.5), members=3, fork_from=1, seed=2)
    assert (plan.method, plan.provenance["rate"], plan.fork) == ("dropout", 0.5, 1)
    with torch.no_grad():
        logits = fuse(model, plan)(**make_inputs("bert")).member_logits
    np.testing.assert_allclose(logits, oracle.ensemble([model], plan, make_inputs("bert"))["member_logits"], atol=5e-5)
    assert plan_heads(model, method="dropout").provenance["rate"] == 0.1
