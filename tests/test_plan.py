import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hydrant import Budget, Dropout, HeadPlan, Random, Reading, Taylor, fuse, plan_heads
from hydrant.bundle.traced import Block
from hydrant.calib.heads.selection import (
    choose_apart,
    choose_heads,
    diversify,
    drawn_facts,
    drop_heads,
    group_counts,
    sets_by_score,
    systematic_scores,
)
from hydrant.calib.heads.taylor import taylor_scores
from hydrant.data.examples import Examples
from hydrant.errors import InputError, PlanError
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import OUTPUT_PROJECTIONS
from support import (
    FAMILIES,
    HEADS,
    LAYERS,
    TEXT_FAMILIES,
    ReadyTensors,
    examples_of,
    make_inputs,
    make_model,
    model_type,
)

VALID: dict[str, Any] = {
    "schema": 1, "family": "bert", "layers": 2, "heads": 4,
    "members": [{"keep": [[0, 1], [2]]}, {"keep": [[1, 2, 3], [2]]}], "method": "taylor",
    "provenance": {"seed": 3, "nested": {"scores": [0.5, 1.25]}},
}  # fmt: skip


def changed(**keys: Any) -> dict[str, Any]:
    return {**VALID, **keys}


def keeping(*keep: Any) -> dict[str, Any]:
    return changed(members=[VALID["members"][0], {"keep": list(keep)}])


@st.composite
def plans(draw: st.DrawFn) -> HeadPlan:
    layers, heads = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    layer_heads = st.sets(st.integers(0, heads - 1), min_size=1).map(lambda indices: tuple(sorted(indices)))
    member = st.tuples(*[layer_heads] * layers)
    members = draw(st.lists(member, min_size=1, max_size=4))
    facts = draw(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3))
    return HeadPlan(
        draw(st.sampled_from(["bert", "vit"])), layers, heads, tuple(members), draw(st.text(max_size=8)), facts
    )


def test_saved_bytes_survive_load_and_save(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    HeadPlan.from_json(VALID).save(first)
    HeadPlan.load(first).save(str(second))
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(first.read_bytes()) == VALID
    bare = {key: value for key, value in VALID.items() if key != "provenance"}
    assert HeadPlan.from_json(bare) == HeadPlan.load(first), "provenance is not compared"


@pytest.mark.parametrize(("data", "pattern"), [
    (keeping([0, 4], [2]), r"member 1, layer 0 .*\[0, 4\]"),
    (keeping([0], [1.0]), r"members\[1\]\.keep\[1\]"),
    (keeping([0], []), r"member 1, layer 1 .*\[\]"),
    (keeping([0]), r"member 1 .*1 layers; expected 2"),
    (changed(members=[]), "0 members"),
    (changed(layers=0, members=[{"keep": []}]), "0 layers"),
    (changed(schema=2), r"schema '2'.*a newer hydrant wrote it"),
    (None, "schema"),
])  # fmt: skip
def test_invalid_plan_is_refused(data: Any, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=pattern):
        HeadPlan.from_json(data)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=rf"bad\.json: .*{pattern}"):
        HeadPlan.load(path)


def test_files_that_are_missing_or_no_json_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"[" * 100_000)
    with pytest.raises(PlanError, match=r"plan\.json is not valid JSON"):
        HeadPlan.load(tmp_path / "plan.json")
    with pytest.raises(InputError, match=r"cannot read plan .*none\.json: No such file"):
        HeadPlan.load(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"cannot read plan .*: Is a directory"):
        HeadPlan.load(tmp_path)
    with pytest.raises(InputError, match=r"cannot write .*plan\.json"):
        HeadPlan.from_json(VALID).save(tmp_path / "absent" / "plan.json")


def test_lists_become_tuples() -> None:
    plan = HeadPlan("bert", 2, 4, [[[0, 1], [2]], [[1, 2, 3], [2]]], "taylor")
    assert plan == HeadPlan.from_json(VALID)
    assert (plan.same_heads(0), plan.same_heads(1), plan.fork) == (False, True, 0)


def test_values_that_json_lacks_are_saved(tmp_path: Path) -> None:
    """NaN becomes null; half of a surrogate pair, from a file name that is not UTF-8, is escaped."""
    plan = HeadPlan.from_json(changed(provenance={"score": float("nan"), "data": "\udcff.csv", "words": "Maße"}))
    plan.save(tmp_path / "plan.json")
    assert "NaN" not in (tmp_path / "plan.json").read_text(encoding="utf-8")
    again = HeadPlan.load(tmp_path / "plan.json").provenance
    assert again == {"score": None, "data": "\udcff.csv", "words": "Maße"}


def test_overlap_by_hand() -> None:
    members = (((0, 1), (0,)), ((1, 2, 3), (0,)), ((0, 1), (3,)))
    overlap = HeadPlan("bert", 2, 4, members, "random").overlap()
    # layer 0: 1/4, 1, 1/4; layer 1: 1, 0, 0; pairs 0-1, 0-2, 1-2
    assert overlap["pairs"] == pytest.approx({"0-1": 0.625, "0-2": 0.5, "1-2": 0.125})
    assert overlap["per_layer"] == pytest.approx([0.5, 1 / 3])
    assert overlap["mean"] == pytest.approx(1.25 / 3)
    assert overlap["identical"] == []


@settings(max_examples=100, deadline=None)
@given(plans())
def test_any_valid_plan_round_trips(plan: HeadPlan) -> None:
    again = HeadPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    overlap = plan.overlap()
    assert all(0 <= value <= 1 for value in (*overlap["pairs"].values(), *overlap["per_layer"]))
    assert again.provenance == plan.provenance
    assert again.head_counts() == [[len(heads) for heads in keep] for keep in plan.members]


def test_check_fits_accepts_its_own_shape_only() -> None:
    plan = HeadPlan.from_json(VALID)
    plan.check_fits("bert", 2, 4)
    for shape in (("vit", 2, 4), ("bert", 3, 4), ("bert", 2, 8)):
        with pytest.raises(PlanError, match=f"{shape[1]} layers of {shape[2]} heads; make a plan"):
            plan.check_fits(*shape)


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


def by_hand(model: torch.nn.Module, family: str, examples: Examples) -> np.ndarray:
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
    expected = by_hand(model, family, examples)
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
    assert group_counts(keep, 2, [Block("", "", 8, 8, 1, (), False)] * 3) == expected


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
        group_counts(keep, 2, [Block("", "", 8, 8, 1, (), False)] * 3)


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
