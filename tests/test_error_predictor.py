"""The learned predictor of errors: its formula in float64, and what it learns."""

import numpy as np
import oracle
import pytest
import torch
from hydrant.errors import InputError
from hydrant.evaluation import error_predictor
from hydrant.evaluation.error_predictor import ErrorPredictor, learn_errors
from hydrant.metrics.class_metrics import auroc
from hydrant.metrics.uncertainty import logit_scores

pytest.importorskip("sklearn")

WIDTH, CLASSES = 8, 4


def made(count: int, seed: int, noisy: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Vectors [N, d] near their class, labels, and the true classes; labels are random where the last entry is high."""
    rng = np.random.default_rng(seed)
    classes = rng.integers(0, CLASSES, count)
    vectors = rng.normal(0, 0.3, (count, WIDTH)).astype(np.float32)
    vectors[np.arange(count), classes] += 2
    vectors[:, -1] = rng.normal(0, 1, count)
    labels = np.where(noisy & (vectors[:, -1] > 1), rng.integers(0, CLASSES, count), classes)
    return vectors, labels, classes


def last_map() -> tuple[np.ndarray, np.ndarray]:
    """A linear map to the classes that ignores the last entry."""
    return 3 * np.eye(WIDTH, CLASSES, dtype=np.float32), np.zeros(CLASSES, np.float32)


def test_forward_by_its_formula() -> None:
    rng = np.random.default_rng(0)
    train, classes = (rng.normal(1, 2, (count, WIDTH)) for count in (50, CLASSES))
    spread = np.array([1, *train[:, 1:].std(axis=0, ddof=1)])
    train[:, 0] = 1  # a constant is not scaled
    bias, vectors, answers = rng.normal(0, 1, CLASSES), rng.normal(0, 1, (9, WIDTH)), rng.integers(0, CLASSES, 9)
    model = ErrorPredictor(*(torch.from_numpy(each).float() for each in (classes, bias, train)))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    state = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}
    expected, scaled = [], classes / classes.std(ddof=1)
    for vector, answer in zip(vectors, answers, strict=True):
        query = state["query.weight"] @ vector
        attention = oracle.softmax(np.array([query @ (state["key.weight"] @ each) for each in classes]) + bias)
        mixture = sum(share * each for share, each in zip(attention, scaled, strict=True))
        x = np.concatenate([(vector - train.mean(axis=0)) / spread, scaled[answer], mixture])
        for layer in (0, 2, 4):
            x = np.maximum(state[f"mlp.{layer}.weight"] @ x + state[f"mlp.{layer}.bias"], 0)
        expected.append(state["mlp.6.weight"][0] @ x + state["mlp.6.bias"][0])
    np.testing.assert_allclose(model.scores(vectors.astype(np.float32), answers), expected, rtol=1e-4, atol=1e-3)


def test_learns_errors_that_entropy_does_not_show_and_alike_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(error_predictor, "UPDATES", 150)
    weight, bias = last_map()
    (vectors, labels, _), (query, truth, answers) = made(2000, 0), made(1000, 1)
    before = torch.get_rng_state()
    first, again = (learn_errors(weight, bias, vectors, labels, 0)[0] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    scores, wrong = first.scores(query, answers), answers != truth
    entropies = logit_scores(query @ weight + bias)["predictive_entropy"]
    assert auroc(scores[~wrong], scores[wrong]) > 0.9 > 0.6 > auroc(entropies[~wrong], entropies[wrong])
    np.testing.assert_array_equal(again.scores(query, answers), scores)


@pytest.mark.parametrize(("labels", "reason"), [(None, "of 300"), (0, "folds")])
def test_too_few_errors_or_one_class_are_refused(labels: int | None, reason: str) -> None:
    vectors, truth, _ = made(300, 0, noisy=False)
    with pytest.raises(InputError, match=reason):
        learn_errors(*last_map(), vectors, truth if labels is None else np.full(300, labels), 0)
