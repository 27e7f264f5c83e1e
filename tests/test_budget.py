"""Plans under a budget of operations: candidates, objective, choice; and a fork set by hand."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from hydrant import Budget, HeadPlan, Taylor, estimate_cost, plan_heads
from hydrant.calib.heads import candidates as budgets
from hydrant.calib.heads.candidates import Candidate, find_candidates
from hydrant.calib.heads.selection import choose_heads, split_examples
from hydrant.calib.heads.trials import HeldOut, Trial, choose, measure
from hydrant.data.examples import Examples
from hydrant.errors import InputError
from hydrant.fusion.ensemble import whole_model
from hydrant.models.family_registry import architecture_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FAMILIES, HEADS, LAYERS, ReadyTensors, examples_of, make_model, model_type

FULL = tuple(range(HEADS))
ARCHITECTURES = {family: architecture_of(make_model(family)) for family in FAMILIES}


def random_scores(members: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).gamma(1.0, size=(members, LAYERS, HEADS))


@settings(deadline=None, max_examples=25)
@given(
    family=st.sampled_from(FAMILIES), members=st.integers(2, 4), budget=st.floats(0.5, 4.5), seed=st.integers(0, 50),
    tokens=st.integers(1, 30),
)  # fmt: skip
def test_every_candidate_fits_the_budget(family: str, members: int, budget: float, seed: int, tokens: int) -> None:
    architecture, sequence = ARCHITECTURES[family], None if family in ("vit", "deit") else tokens
    try:
        candidates = find_candidates(
            architecture, random_scores(members, seed), budget, forks=range(LAYERS), sequence=sequence
        )
    except InputError as error:
        assert "cannot be reached" in str(error)
        return
    assert len({candidate.members for candidate in candidates}) == len(candidates)
    for candidate in candidates:
        plan = HeadPlan(model_type(family), LAYERS, HEADS, candidate.members, "test")
        assert plan.fork == candidate.fork
        assert candidate.ratio == estimate_cost(ARCHITECTURES[family], plan, sequence=sequence).ratio <= budget
        for keep in candidate.members:
            assert all(heads == FULL for heads in keep[: candidate.fork])
            assert tuple(map(len, keep)) == candidate.counts


@pytest.mark.parametrize(("forks", "least"), [(range(LAYERS), LAYERS - 1), ([1], 1)])
def test_budget_below_every_plan_is_refused(forks: Any, least: int) -> None:
    architecture, scores = ARCHITECTURES["bert"], random_scores(3, 2)
    message = rf"budget 0\.2 cannot be reached: the cheapest plan of 3 members costs .*\(fork at layer {least}\)"
    with pytest.raises(InputError, match=message):
        find_candidates(architecture, scores, 0.2, forks=forks, sequence=9)
    with pytest.raises(InputError, match=message) as refused:
        budgets.check_reachable(architecture, 3, 0.2, forks=forks, sequence=9)
    least = float(str(refused.value).split("members costs ")[1].split()[0])
    budgets.check_reachable(architecture, 3, least, forks=forks, sequence=9)
    with pytest.raises(InputError, match="cannot be reached"):
        budgets.check_reachable(architecture, 3, least - 0.002, forks=forks, sequence=9)


@pytest.mark.parametrize(("total", "held_out"), [(24, 12), (128, 64), (400, 100), (4000, 512)])
def test_held_out_part(total: int, held_out: int) -> None:
    examples = Examples([f"text {i}" for i in range(total)], np.arange(total), "test")
    scoring, selection = split_examples(examples, 3)
    assert (len(scoring), len(selection)) == (total - held_out, held_out)
    assert sorted([*scoring.inputs, *selection.inputs]) == sorted(examples.inputs)
    assert [f"text {label}" for label in selection.labels] == list(selection.inputs)
    assert list(split_examples(examples, 4)[1].labels) != list(selection.labels), "drawn at random"


@pytest.mark.parametrize("family", FAMILIES)
def test_objective_is_that_of_the_original_model_with_silenced_heads(family: str) -> None:
    count, model = 13, make_model(family).train()
    examples, processor = examples_of(family, count), ReadyTensors(padding=1 if family == "roberta" else 0)
    inputs = {name: torch.from_numpy(array) for name, array in processor.collate(examples.inputs).items()}
    sequence = None if family in ("vit", "deit") else 9
    architecture, scores = ARCHITECTURES[family], random_scores(3, 5)
    candidates = find_candidates(architecture, scores, 2.5, forks=range(LAYERS), sequence=sequence)
    assert {candidate.fork for candidate in candidates} == set(range(LAYERS))
    trials = measure(whole_model(model), candidates, HeldOut(examples, processor, architecture, batch_size=4))
    assert model.training
    model.eval()
    for candidate, trial in zip(candidates, trials, strict=True):
        assert trial.candidate is candidate
        logits = np.stack([oracle.member_logits(model, keep, HEADS, inputs) for keep in candidate.members])
        losses = {}
        for step in range(17):
            temperature = 0.25 * 2 ** (step / 4)
            mean = oracle.softmax(logits / temperature).mean(axis=0)
            losses[temperature] = -np.log(mean[np.arange(count), examples.labels])
        best = min(losses, key=lambda temperature: losses[temperature].mean())
        assert trial.temperature == pytest.approx(best)
        np.testing.assert_allclose(trial.losses, losses[best], atol=1e-4)
        facts = oracle.uncertainty(oracle.softmax(logits / best))
        assert trial.accuracy == (facts["probabilities"].argmax(axis=1) == examples.labels).mean()
        assert trial.mutual_information == pytest.approx(facts["mutual_information"].mean(), abs=1e-5)
        assert trial.nll == trial.losses.mean()


def trial(losses: list[float], diversity: float, ratio: float = 1.0) -> Trial:
    return Trial(Candidate(0, (1,), (), ratio), 1.0, np.array(losses), 1.0, diversity)


def test_among_plans_as_good_the_most_diverse_is_chosen() -> None:
    best = trial([0.1, 0.1, 0.1, 0.1], 0.001)
    level = trial([0.1, 0.1, 0.3, 0.0], 0.02)  # mean .125: +.025 above the best, standard error .055
    worse = trial([0.2, 0.21, 0.2, 0.19], 0.9)  # +.1 everywhere: surely worse
    assert choose([best, level, worse]) is level
    assert choose([worse, best]) is best
    assert choose([worse]) is worse
    hardly = trial([0.104, 0.104, 0.104, 0.104], 0.01)  # surely worse, but by 0.004 nats only
    assert choose([best, hardly]) is hardly
    assert choose([best, trial([0.106, 0.106, 0.106, 0.106], 0.01)]) is best


def test_members_to_be_tuned_keep_few_heads_from_the_earliest_layer_that_fits() -> None:
    sizes = {"layers": 6, "heads": 12, "head_width": 32, "width": 384, "mlp_width": 1536}
    shape = dataclasses.replace(ARCHITECTURES["bert"], **sizes)
    scores = np.random.default_rng(0).gamma(1.0, size=(3, 6, 12))
    forks: list[int] = []
    for budget in (1.05, 1.2, 1.5, 3.0):
        (candidate,) = find_candidates(shape, scores, budget, forks=range(6), sequence=12, to_tune=True)
        assert candidate.ratio <= budget
        assert set(candidate.counts[: candidate.fork]) <= {12}
        (count,) = set(candidate.counts[candidate.fork :])
        assert 1 <= count <= 4
        for fork, most in [(earlier, 4) for earlier in range(candidate.fork)] + [(candidate.fork, 5)]:
            for keep in range(1 if fork < candidate.fork else count + 1, most):
                dearer = tuple(choose_heads(table, [12] * fork + [keep] * (6 - fork)) for table in scores)
                plan = HeadPlan("bert", 6, 12, dearer, "test")
                assert estimate_cost(shape, plan, sequence=12).ratio > budget, (fork, keep)
        forks.append(candidate.fork)
    assert forks == sorted(forks, reverse=True)
    assert forks[-1] < forks[0]
    with pytest.raises(InputError, match=r"budget 0\.1 cannot be reached"):
        find_candidates(shape, scores, 0.1, forks=range(6), sequence=12, to_tune=True)


@pytest.mark.parametrize(("budget", "options"), [
    (1.0, {}), (1.0, {"method": "random"}), (1.6, {"method": Taylor("bootstrap")}), (1.5, {"fork_from": 1}),
])  # fmt: skip
def test_plan_is_the_choice_among_its_candidates(
    budget: float, options: dict[str, Any], bert_checkpoint: Path, text_csv: Path
) -> None:
    plan = plan_heads(bert_checkpoint, text_csv, keep=Budget(budget), seed=2, **options)
    facts = plan.provenance["budget"]
    assert (facts["limit"], facts["sequence"], plan.provenance["examples"], facts["examples_held_out"]) == (
        budget, 5, 24, 12,
    )  # fmt: skip
    cost = estimate_cost(ARCHITECTURES["bert"], plan, sequence=facts["sequence"])
    assert cost.ratio <= facts["ratio"] <= cost.ratio + 0.001
    assert cost.ratio <= budget
    assert cost.fork == facts["fork"]
    assert plan.head_counts() == [facts["counts"]] * 3
    assert all(keep[layer] == FULL for keep in plan.members for layer in range(facts["fork"]))
    if "fork_from" in options:
        assert {row["fork"] for row in facts["candidates"]} == {options["fork_from"]}
    losses = [row["nll"] for row in facts["candidates"]]
    assert losses == sorted(losses)
    chosen = {name: facts[name] for name in facts["candidates"][0]}
    assert chosen in facts["candidates"]
    assert chosen["mutual_information"] >= facts["candidates"][0]["mutual_information"]
    assert HeadPlan.from_json(json.loads(json.dumps(plan.to_json()))).provenance == plan.provenance
