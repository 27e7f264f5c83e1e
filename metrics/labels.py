"""Metrics of a multi-label model, from independent probabilities [N, C] of labels."""

from __future__ import annotations

import numpy as np

from .class_metrics import calibration_error
from .uncertainty import blocks, highest_entropy


def label_pairs(logits: np.ndarray) -> np.ndarray:
    """The logits of "does not apply" and "applies", [..., C, 2], from those of labels [..., C]."""
    return np.stack([np.zeros_like(logits), logits], axis=-1)


def summarise_labels(member_logits: np.ndarray, temperatures: np.ndarray) -> dict[str, np.ndarray]:
    """Float32 outputs of the label head from member logits [N, M, C] and temperatures [C] or [1]."""
    parts = [_summarised(member_logits[part].astype(np.float64), temperatures) for part in blocks(member_logits)]
    return {name: np.concatenate([part[name] for part in parts]).astype(np.float32) for name in parts[0]}


def _summarised(logits: np.ndarray, temperatures: np.ndarray) -> dict[str, np.ndarray]:
    members = sigmoid(logits / temperatures)  # [n, M, C]
    mean = members.mean(axis=1)
    highest, together = highest_entropy(2), highest_entropy(2, logits.shape[-1])
    expected = np.clip(label_entropy(members).mean(axis=1), 0, highest)
    total = np.maximum(np.minimum(label_entropy(mean), highest), expected)
    return {
        "probabilities": mean,
        "predictive_entropy": np.minimum(total.sum(axis=1), together),
        "expected_entropy": np.minimum(expected.sum(axis=1), together),
        "mutual_information": np.minimum((total - expected).sum(axis=1), together),
        "energy": -np.logaddexp(0.0, logits).sum(axis=2).mean(axis=1),
    }


def sigmoid(values: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(−z)), float64."""
    with np.errstate(over="ignore"):
        probabilities: np.ndarray = 1 / (1 + np.exp(-values.astype(np.float64)))
    return probabilities


def label_entropy(probabilities: np.ndarray) -> np.ndarray:
    """−p log p − (1 − p) log(1 − p), nats; 0·log 0 = 0."""
    precise, tiny = probabilities.astype(np.float64), np.finfo(np.float64).tiny
    terms = [part * np.log(np.maximum(part, tiny)) for part in (precise, 1 - precise)]
    nats: np.ndarray = 0.0 - (terms[0] + terms[1])
    return nats


def label_logit_scores(logits: np.ndarray) -> dict[str, np.ndarray]:
    """Post-hoc scores of one model's logits [N, C], [N] float64 each; higher means less like its data.

    With p = 1 / (1 + exp(−z)) of each label:

    - ``max_logit``: −max_c z_c (Hendrycks et al. 2022, also for multi-label models);
    - ``predictive_entropy``: −Σ_c p_c log p_c + (1 − p_c) log(1 − p_c), nats;
    - ``energy``: −Σ_c log(1 + exp z_c), nats (JointEnergy, Wang et al. 2021).
    """
    precise = logits.astype(np.float64)
    return {
        "max_logit": -precise.max(axis=1),
        "predictive_entropy": label_entropy(sigmoid(precise)).sum(axis=1),
        "energy": -np.logaddexp(0.0, precise).sum(axis=1),
    }


def joint_losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """−log of the probability of all labels [N, C] of an example, their sum, nats, [N]; below 1e-12 counts as 1e-12."""
    chosen = np.where(labels, probabilities.astype(np.float64), 1 - probabilities.astype(np.float64))
    losses: np.ndarray = -np.log(np.maximum(chosen, 1e-12)).sum(axis=1)
    return losses


def label_errors(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Expected calibration error of each label's probability, [C]."""
    columns = zip(probabilities.T, labels.T, strict=True)
    return np.array([calibration_error(values, having) for values, having in columns])


def label_f1(counts: np.ndarray, assigned: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    """``exact_match``, ``micro_f1`` and ``macro_f1`` of assigned labels [N, C] bool, [R] each; NaN without any."""
    drawn = counts.astype(np.float64)
    hits, chosen, having = (drawn @ part.astype(np.float64) for part in (assigned & labels, assigned, labels))  # [R, C]
    with np.errstate(invalid="ignore", divide="ignore"):
        micro = 2 * hits.sum(axis=1) / (chosen + having).sum(axis=1)
        each = np.where(having > 0, 2 * hits / np.maximum(chosen + having, 1), 0.0)
        macro = each.sum(axis=1) / (having > 0).sum(axis=1)
    exact = drawn @ (assigned == labels).all(axis=1) / drawn.sum(axis=1)
    return {"exact_match": exact, "micro_f1": micro, "macro_f1": macro}


def best_f1_threshold(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """The threshold of the best F1, half way between two of the probabilities [N]; higher ones assign the label."""
    order = np.argsort(-probabilities, kind="stable")
    ordered, hits = probabilities[order], np.cumsum(labels[order])
    ends = np.flatnonzero(np.append(ordered[1:] != ordered[:-1], True))  # the last of each tie
    scores = 2 * hits[ends] / (ends + 1 + labels.sum())
    best = int(ends[scores.argmax()])  # on a tie, the fewest assigned
    low = ordered[best + 1] if best + 1 < len(ordered) else np.float32(0)
    middle = np.float32((float(low) + float(ordered[best])) / 2)
    return float(str(middle if low <= middle < ordered[best] else low))  # shortest decimal of this float32
