"""Choice of the temperature's prior (σ) and least gain: small calibration sets of digits, cancer data and drawn logits.

    python benchmarks/temperature_prior.py

For each pair it prints how many sets end with a test NLL above T = 1's by more than max(2 %, .005), and the share of
sets that keep 80 % of the gain of a T fitted on many examples, where that gain exceeds .02: all, and from 60 rows on.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator

import numpy as np
from hydrant.calib.decisions import temperature as fitting
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier

Rows = tuple[np.ndarray, np.ndarray]
SETS = 300


def learnt(rng: np.random.Generator) -> Iterator[Rows]:
    """Log probabilities [N, 1, C] and labels of classifiers, timid to overconfident, of digits and cancer data."""
    pixels, digits = load_digits(return_X_y=True)
    cells, tumours = load_breast_cancer(return_X_y=True)
    tables = [(pixels / 16 + rng.normal(0, noise, pixels.shape), digits) for noise in (0, 0.4)]
    tables += [(tables[0][0], (digits == 3).astype(int)), ((cells - cells.mean(0)) / cells.std(0), tumours)]
    models = [LogisticRegression(C=c, max_iter=2000) for c in (0.01, 1, 1000)]
    models += [MLPClassifier(64, max_iter=300, alpha=1e-5, random_state=0), GaussianNB(var_smoothing=1e-2)]
    for (features, labels), model in itertools.product(tables, models):
        order = rng.permutation(len(labels))
        model.fit(features[order[:150]], labels[order[:150]])
        rest = order[150:]
        yield model.predict_log_proba(features[rest]).clip(-700)[:, None], labels[rest]


def drawn(rng: np.random.Generator) -> Rows:
    """Logits of 1 or 3 members, too sharp or too flat, and labels, some of them wrong."""
    classes, members = int(rng.choice([2, 3, 5, 10])), int(rng.choice([1, 3]))
    spread, scale = math.exp(rng.uniform(-0.4, 1.8)), math.exp(rng.uniform(-1.2, 1.4)) ** (rng.random() < 0.75)
    truth = rng.normal(0, spread, (2200, 1, classes)) + rng.normal(0, rng.choice([0, 2]), classes)
    labels = (truth[:, 0] + rng.gumbel(size=truth[:, 0].shape)).argmax(axis=1)
    wrong = rng.random(len(labels)) < rng.choice([0, 0.02, 0.1])
    labels[wrong] = rng.integers(0, classes, int(wrong.sum()))
    return scale * (truth + rng.normal(0, rng.uniform(0, 0.5) * spread, (len(truth), members, classes))), labels


def main() -> None:
    warnings.simplefilter("ignore")
    rng, few = np.random.default_rng(0), []
    pool = list(learnt(rng))
    for turn in range(SETS):
        logits, labels = pool[turn // 2 % len(pool)] if turn % 2 else drawn(rng)
        order = rng.permutation(len(labels))
        count = int(math.exp(rng.uniform(math.log(20), math.log(200))))
        few.append((logits, labels, order[:count], order[count:]))
    ideal = [fitting.fit_temperature(logits[rest], labels[rest]) for logits, labels, _, rest in few]
    print("sigma  least gain  harmed  kept 80 %  from 60 rows")
    for fitting.SIGMA, fitting.LEAST_GAIN in itertools.product((0.25, 0.5, 1.0), (0.01, 1.5, 2.5, 4.0)):
        harmed, kept = 0, []
        for (logits, labels, part, rest), best in zip(few, ideal, strict=True):
            fitted = fitting.fit_temperature(logits[part], labels[part])
            plain, ours, most = (fitting.averaged_nll(logits[rest], labels[rest], t) for t in (1.0, fitted, best))
            harmed += ours > plain + max(0.02 * plain, 0.005)
            if plain - most > 0.02:
                kept.append((len(part) >= 60, plain - ours >= 0.8 * (plain - most)))
        large, enough = np.array(kept).T
        shares = f"{enough.mean():9.3f}  {enough[large].mean():12.3f}"
        print(f"{fitting.SIGMA:5g}  {fitting.LEAST_GAIN:10g}  {harmed:6d}  {shares}", flush=True)


if __name__ == "__main__":
    main()
