"""ViLU: a small network that learns the errors of a frozen classifier (Lafon et al., ICCV 2025).

The network returns the logit that an answer ĉ is wrong, from the input x of the last linear map, the vector t_ĉ of the
answer and a mixture of the class vectors that x attends to:

    mixture = Σ_c a_c t_c,  a = softmax_c((Q x)ᵀ (K t_c) + b_c)

The class vectors are the rows of the last linear map, and b is its bias; for zero-shot CLIP they are the embeddings of
the prompts. Q and K start as identities, so a starts as the classifier's probabilities.
"""

from __future__ import annotations

from itertools import pairwise
from warnings import catch_warnings, simplefilter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from ..errors import InputError, require

MIN_WRONG = 30
"""Fewest wrong answers to learn from."""

MAX_ROWS = 20_000
"""Most examples to learn from; of more, as many are drawn by seed."""

FOLDS, ITERATIONS = 5, 50
HIDDEN = (512, 256, 128)
UPDATES, MAX_EPOCHS, BATCH, LEARNING_RATE = 1000, 100, 128, 1e-2
BLOCK = 4096  # examples scored at a time, to limit memory for their probabilities


class ErrorPredictor(nn.Module):
    """Logits that answers are wrong.

    ``vectors`` [N, d] are standardized by mean and spread of the training data, ``classes`` [C, d] by their spread.
    """

    def __init__(self, classes: Tensor, bias: Tensor, vectors: Tensor) -> None:
        super().__init__()
        self.classes, self.bias = classes, bias
        spread = vectors.std(dim=0)
        self.mean, self.spread = vectors.mean(dim=0), torch.where(spread > 1e-6, spread, 1)
        width = classes.shape[1]
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        for each in (self.query, self.key):
            nn.init.eye_(each.weight)
        sizes = (3 * width, *HIDDEN)
        layers = [part for pair in pairwise(sizes) for part in (nn.Linear(*pair), nn.ReLU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, vectors: Tensor, answers: Tensor) -> Tensor:
        """Map vectors [B, d] and answers [B] to logits [B]."""
        attention = torch.softmax(self.query(vectors) @ self.key(self.classes).T + self.bias, dim=-1)  # [B, C]
        values = self.classes / self.classes.std()
        parts = ((vectors - self.mean) / self.spread, values[answers], attention @ values)
        logits: Tensor = self.mlp(torch.cat(parts, dim=-1))[:, 0]
        return logits

    @torch.inference_mode()
    def scores(self, vectors: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """Logits [N] of vectors [N, d] and answers [N], higher for answers that are more likely wrong."""
        pairs = zip(*(torch.from_numpy(each).split(BLOCK) for each in (vectors, answers)), strict=True)
        return torch.cat([self(*pair) for pair in pairs]).numpy()


def learn_errors(weight: np.ndarray, bias: np.ndarray, vectors: np.ndarray, labels: np.ndarray, seed: int,
                 answers: np.ndarray | None = None) -> tuple[ErrorPredictor, str]:  # fmt: skip
    """Return the network for a last linear map [d, C] with its bias [C], and a description of what it learned from.

    ``answers`` [N] of a classifier that was not fitted on the rows; ``None``: a linear classifier answers in folds.
    """
    rows = np.sort(np.random.default_rng(seed).permutation(len(labels))[:MAX_ROWS])
    vectors, labels = vectors[rows], labels[rows]
    source = "a linear classifier in folds" if answers is None else "the model itself"
    answers = held_out_answers(vectors, labels, seed) if answers is None else answers[rows]
    wrong = answers != labels
    words = f"trained on {wrong.sum()} wrong and {(~wrong).sum()} right answers of {source}"
    return fitted(weight.T.copy(), bias, vectors, answers, wrong, seed), words


def held_out_answers(vectors: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    """Answers [N] of a linear classifier that was fitted on the other folds of vectors [N, d] and labels [N]."""
    modules = ("sklearn.linear_model", "sklearn.model_selection")
    linear, selection = (require(name, "report", "learn errors") for name in modules)
    classifier = linear.LogisticRegression(max_iter=ITERATIONS)
    folds = selection.KFold(FOLDS, shuffle=True, random_state=seed)
    try:
        with catch_warnings():
            simplefilter("ignore")  # the iterations suffice for the answers
            answers: np.ndarray = selection.cross_val_predict(classifier, vectors, labels, cv=folds)
    except ValueError as error:  # fewer examples than folds, or a fold without two classes
        raise InputError(f"{len(labels)} training examples cannot be answered in {FOLDS} folds: {error}") from error
    return answers


def fitted(classes: np.ndarray, bias: np.ndarray, vectors: np.ndarray, answers: np.ndarray, wrong: np.ndarray,
           seed: int) -> ErrorPredictor:  # fmt: skip
    """Train the network on vectors [N, d], answers [N] and whether they are wrong [N]; equal seeds train alike.

    Wrong answers have the weight −log(share of wrong answers), as in the paper.
    """
    if wrong.sum() < MIN_WRONG:
        raise InputError(
            f"{wrong.sum()} of {len(wrong)} training examples are answered wrong, too few to learn from; expected "
            f"{MIN_WRONG} or more, so give more examples (fit=… or --fit FILE)"
        )
    rows, weight = torch.from_numpy(vectors), -float(np.log(wrong.mean()))
    targets, choices = torch.from_numpy(wrong).float(), torch.from_numpy(answers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = ErrorPredictor(torch.from_numpy(classes), torch.from_numpy(bias), rows)
        optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9, weight_decay=5e-4)
        batches = -(-len(rows) // BATCH)
        epochs = min(MAX_EPOCHS, -(-UPDATES // batches))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
        for _ in range(epochs):
            for batch in torch.randperm(len(rows)).split(BATCH):
                target = targets[batch]
                weights = 1 + (weight - 1) * target
                loss = binary_cross_entropy_with_logits(model(rows[batch], choices[batch]), target, weights)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
    return model
