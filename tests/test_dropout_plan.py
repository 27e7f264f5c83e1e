"""MC dropout whose masks are drawn once: a plan, as any other."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from hydrant import Dropout, HeadPlan, fuse, plan_heads
from hydrant.calib.heads.selection import drop_heads
from hypothesis import given
from hypothesis import strategies as st
from support import make_inputs, make_model


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 9), st.floats(0.01, 0.99), st.integers(0, 99), st.data())
def test_every_layer_keeps_a_head_and_the_trunk_all(
    members: int, layers: int, heads: int, rate: float, seed: int, data: st.DataObject
) -> None:
    fork = data.draw(st.integers(0, layers - 1))
    kept = drop_heads(members, layers, heads, fork, rate, seed)
    HeadPlan("bert", layers, heads, kept, "dropout")  # which checks itself
    assert kept == drop_heads(members, layers, heads, fork, rate, seed)
    assert all(member[layer] == tuple(range(heads)) for member in kept for layer in range(fork))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_heads_are_dropped_at_the_rate_and_apart(rate: float) -> None:
    """Each with the probability asked for (what at least one head adds included), independently of each other."""
    kept = drop_heads(40, 30, 8, 0, rate, 5)
    mask = np.array([[[head in layer for head in range(8)] for layer in member] for member in kept])  # [M, L, H]
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
        found = fuse(model, plan)(**make_inputs("bert")).member_logits
    np.testing.assert_allclose(found, oracle.ensemble([model], plan, make_inputs("bert"))["member_logits"], atol=5e-5)
    assert plan_heads(model, method="dropout").provenance["rate"] == 0.1
