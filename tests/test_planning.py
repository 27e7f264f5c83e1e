from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydrant import HeadPlan, Reading, Taylor, plan_heads
from hydrant.calib.heads.selection import choose_apart, choose_heads, diversify, head_counts, sets_by_score
from hydrant.calib.heads.taylor import taylor_scores
from hydrant.data.examples import Examples
from hydrant.errors import InputError
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import OUTPUT_PROJECTIONS
from support import FAMILIES, HEADS, LAYERS, TEXT_FAMILIES, ReadyTensors, examples_of, make_model, model_type


def oracle(model: torch.nn.Module, family: str, examples: Examples) -> np.ndarray:
    """|Σ a·∂L/∂a| of every head, each example run alone through the unmodified model."""
    assert examples.labels is not None
    scores = np.zeros((len(examples), LAYERS, HEADS))
    for index, (item, label) in enumerate(zip(examples.inputs, examples.labels, strict=True)):
        captured: dict[int, torch.Tensor] = {}

        def capture(layer: int, into: dict[int, torch.Tensor] = captured) -> Any:
            def hook(_: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
                args[0].retain_grad()
                into[layer] = args[0]

            return hook

        handles = [
            model.get_submodule(OUTPUT_PROJECTIONS[model_type(family)].format(layer)).register_forward_pre_hook(
                capture(layer)
            )
            for layer in range(LAYERS)
        ]
        logits = model(**{name: torch.from_numpy(array)[None] for name, array in item.tensors.items()}).logits
        (-torch.log_softmax(logits[0], dim=-1)[label]).backward()
        for handle in handles:
            handle.remove()
        for layer, a in captured.items():
            assert a.grad is not None
            assert a.shape[-1] % HEADS == 0
            product = (a * a.grad)[0].detach().double().numpy().reshape(a.shape[1], HEADS, -1)
            scores[index, layer] = np.abs(product.sum(axis=(0, 2)))
        model.zero_grad()
    return scores


@pytest.mark.parametrize("family", FAMILIES)
def test_taylor_scores_match_each_example_alone(family: str) -> None:
    model, examples = make_model(family), examples_of(family, 7)
    expected = oracle(model, family, examples)
    assert expected.max() > 1e-3
    if family in TEXT_FAMILIES:
        assert len({item.tokens for item in examples.inputs}) > 3
    for size in (1, 4, 32):
        processor = ReadyTensors(padding=1 if family == "roberta" else 0)
        scores = taylor_scores(model, examples, processor, batch_size=size)
        assert scores.shape == (7, LAYERS, HEADS), size
        most = 1e-5 * expected.max()
        np.testing.assert_allclose(scores, expected, atol=most, rtol=1e-4, err_msg=f"batches of {size}")
        assert [shape[0] for shape in processor.shapes] == [min(size, 7 - i) for i in range(0, 7, size)]


@pytest.mark.parametrize(("keep", "expected"), [
    (3, [[3, 3, 3], [3, 3, 3]]),
    (4.0, [[4, 4, 4], [4, 4, 4]]),
    (0.66, [[5, 5, 5], [5, 5, 5]]),
    (0.01, [[1, 1, 1], [1, 1, 1]]),
    ([1, 0.5, 8], [[1, 4, 8], [1, 4, 8]]),
    ([[2], [0.5]], [[2, 2, 2], [4, 4, 4]]),
    ([(1, 2, 3), [7]], [[1, 2, 3], [7, 7, 7]]),
    (np.int64(3), [[3, 3, 3], [3, 3, 3]]),
])  # fmt: skip
def test_forms_of_keep(keep: Any, expected: list[list[int]]) -> None:
    assert head_counts(keep, members=2, layers=3, heads=8) == expected


@pytest.mark.parametrize(("keep", "message"), [
    (0, "keep is 0"),
    (9, "keep is 9"),
    (float("nan"), "keep is 'nan'"),
    ("8", "keep is '8'"),
    ([1, 2], "2 entries 1, 2; expected one, or one for each of 3 layers"),
    ([[1]], "1 entries; expected 2 lists"),
])  # fmt: skip
def test_wrong_keep_is_refused(keep: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        head_counts(keep, members=2, layers=3, heads=8)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=5), min_size=1, max_size=3),
    shares=st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_sets_come_by_descending_score(rows: list[list[int]], shares: list[float]) -> None:
    """Every set, once, against all combinations sorted by their summed score."""
    counts = [max(1, round(share * len(row))) for share, row in zip(shares, rows, strict=False)]
    layers = [itertools.combinations(range(len(row)), count) for row, count in zip(rows, counts, strict=True)]
    expected = list(itertools.product(*layers))
    sets = list(sets_by_score([np.array(row, float) for row in rows], counts))

    def total(keep: Any) -> int:
        return sum(row[head] for row, heads in zip(rows, keep, strict=True) for head in heads)

    assert sorted(sets) == sorted(expected)
    assert [total(keep) for keep in sets] == sorted(map(total, expected), reverse=True)


def test_a_member_takes_the_best_unused_set() -> None:
    """Other members use the best sets."""
    scores = np.array([[9.0, 8.0, 1.0], [5.0, 4.5, 3.0]])
    sets = choose_apart([scores] * 4, [[1, 1]] * 4)
    assert sets == [((0,), (0,)), ((0,), (1,)), ((1,), (0,)), ((1,), (1,))]  # lose 0, .5, 1 and 1.5
    assert choose_apart([scores] * 2, [[1, 1]] * 2, fixed={1: ((0,), (0,))}) == [((0,), (1,)), ((0,), (0,))]
    apart = [scores, scores[:, ::-1]]
    assert choose_apart(apart, [[1, 1]] * 2) == [choose_heads(table, [1, 1]) for table in apart]
    assert choose_apart([scores] * 3, [[3, 3]] * 3) == [((0, 1, 2), (0, 1, 2))] * 3, "only one set exists"


def test_noise_is_log_normal_with_the_given_spread() -> None:
    scores = np.ones((2, 60, 60), np.float32)
    logs = np.log(diversify(scores, 2, "noise", 0.5, 0))
    assert np.std(logs) == pytest.approx(0.5, rel=0.05)
    assert np.mean(logs) == pytest.approx(0, abs=0.03)


def test_bootstrap_averages_a_resample_with_replacement() -> None:
    marked = np.zeros((30, 1, 30))
    marked[np.arange(30), 0, np.arange(30)] = 30  # head i is example i's: the score counts its draws
    drawn = diversify(marked, 2, "bootstrap", 0.5, 0)
    np.testing.assert_allclose(drawn, np.round(drawn), atol=1e-9)
    np.testing.assert_allclose(drawn.sum(axis=(1, 2)), 30)
    assert (drawn.max(axis=(1, 2)) > 1).all()


@pytest.mark.parametrize(
    "options", [{}, {"method": Taylor("bootstrap")}, {"method": "random"}, {"reading": Reading(examples=9)}]
)
def test_same_seed_gives_the_same_plan(options: dict[str, Any], bert_checkpoint: Path, text_csv: Path) -> None:
    def make(seed: int) -> HeadPlan:
        return plan_heads(str(bert_checkpoint), str(text_csv), members=4, keep=0.5, seed=seed, **options)

    first, again = make(1), make(1)
    assert first == again
    assert first.provenance == again.provenance
    assert any(make(seed) != first for seed in (2, 3))
