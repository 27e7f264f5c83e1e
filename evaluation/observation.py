"""What a model says about data, example by example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..bundle.tasks import DISTANCE, OUTPUTS, PER_CLASS
from ..data.examples import Examples
from ..metrics.gates import FURTHER_SCORES, SCORES
from ..metrics.uncertainty import pairwise_disagreement, pairwise_divergence
from ..progress import Progress, no_progress
from ..runtime import Prediction
from ..runtime.collect import collect, collect_words
from .models import Model


@dataclass(frozen=True)
class Observation:
    """A model's predictions on N inputs.

    Attributes:
        members: M.
        prediction: of all inputs; its classes in the order of the first model's.
        energy: [N], −log Σ_c exp(z_c), mean over members, before the temperature (Liu et al. 2020); ``None``
            where the backend gives no logits.
        divergence: [N], mean KL divergence between members, nats; ``None`` where it gives no member probabilities.
        pair_disagreement: [N], share of pairs of members whose labels differ; likewise.
        texts, words: of a model that tags tokens, whose inputs here are N words: index of each word's text, and of the
            word in it, [N]; otherwise ``None``.
    """

    members: int
    prediction: Prediction
    divergence: np.ndarray | None
    pair_disagreement: np.ndarray | None
    texts: np.ndarray | None = None
    words: np.ndarray | None = None

    def scores(self) -> dict[str, np.ndarray]:
        """Uncertainty scores by name, [N] each; higher means less certain. One member has nothing to disagree with."""
        prediction = self.prediction
        if prediction.score is not None:
            scores = {"score_variance": prediction.score_variance} if self.members > 1 else {}
            return scores | ({} if prediction.distance is None else {"distance": prediction.distance})
        found = {} if prediction.confidence is None else {"max_probability": -prediction.confidence}
        found["predictive_entropy"] = prediction.predictive_entropy
        if self.members > 1:
            found["mutual_information"] = prediction.mutual_information
        further = {name: getattr(prediction, name) for name in FURTHER_SCORES}
        return {**found, **{name: scores for name, scores in further.items() if scores is not None}}


def observe(
    model: Model,
    inputs: Sequence[Any],
    batch_size: int,
    progress: Progress = no_progress,
    title: str = "predicting",
) -> Observation:
    """Run a model on inputs."""

    def reduce(outputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if "score" in outputs:
            return {name: outputs[name] for name in (*OUTPUTS["score"], DISTANCE) if name in outputs}
        if "label_entropy" in outputs:
            kept = {name: outputs[name] for name in (*OUTPUTS["multi_label"], DISTANCE) if name in outputs}
            return kept | {name: kept[name][:, model.columns] for name in PER_CLASS}
        kept = {name: outputs[name] for name in (*SCORES, *FURTHER_SCORES) if name in outputs}
        kept["probabilities"] = outputs["probabilities"][:, model.columns]
        if "member_probabilities" in outputs:
            kept["divergence"] = pairwise_divergence(outputs["member_probabilities"])
            kept["pair_disagreement"] = pairwise_disagreement(outputs["member_probabilities"])
        return kept

    given = (model.runs, model.processor, model.architecture, inputs, reduce)
    how: dict[str, Any] = {"batch_size": batch_size, "progress": progress, "title": title}
    if model.architecture.every_token:
        of_words = collect_words(*given, **how)
        found, texts, words = of_words.outputs, of_words.texts, of_words.words
    else:
        found, texts, words = collect(*given, **how), None, None
    return Observation(
        len(model.plan.members),
        Prediction.from_outputs(found),
        found.get("divergence"),
        found.get("pair_disagreement"),
        texts,
        words,
    )


@dataclass(frozen=True)
class Evidence:
    """Examples and what every model says of them, for the pictures and example tables.

    Attributes:
        known, ood: labelled and out-of-distribution examples.
        seen, seen_ood: what each model says of them.
        labels: class names.
        images: whether inputs are images.
    """

    known: Examples
    ood: Examples | None
    seen: list[Observation]
    seen_ood: list[Observation | None]
    labels: list[str]
    images: bool
