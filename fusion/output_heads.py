"""From member logits to predictions and uncertainty scores: one head for each task.

Probabilities and scores are averaged, never logits. For classes, with p_m = softmax(z_m / T) and p̄ = mean_m p_m:

    predictive entropy   H(p̄)                      total uncertainty, nats
    expected entropy     mean_m H(p_m)              aleatoric part
    mutual information   H(p̄) − mean_m H(p_m) ≥ 0   epistemic part (Depeweg et al. 2018)
    disagreement         share of members whose argmax differs from that of p̄
    energy               −mean_m log Σ_c exp z_m,c  without T, nats (Liu et al. 2020)

For regression, with s_m = a(z_m) and a the model's own activation: the mean of s_m, and their variance around it
(Lakshminarayanan et al. 2017, without member variances).

For multi-label, with p_m,c = 1 / (1 + exp(−z_m,c / T_c)) and h(p) = −p log p −
(1 − p) log(1 − p): each label has h(p̄_c) and h(p̄_c) − mean_m h(p_m,c); an input has their sums over c. Its energy is
−mean_m Σ_c log(1 + exp z_m,c) without T (JointEnergy, Wang et al. 2021). Within one member, labels are independent, so
the expected entropy is exact; the members' mixture may correlate labels, so the other sums are upper bounds.

Entropies are clamped to [0, log C], or [0, C · log 2] for multi-label, since rounding can leave that range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..bundle.density_file import Density, has_length
from ..bundle.head_plan import HeadPlan
from ..bundle.traced import AnyArchitecture
from ..metrics.uncertainty import highest_entropy
from ..tasks import ScoreActivation


@dataclass(frozen=True)
class FusedOutput:
    """Output of the fused module: logits [M, B, C] before the temperature, and a ``Prediction``'s fields as tensors.

    The fields are [B], but probabilities [B, C] and [B, M, C]; for token classification all have an axis T after B.
    The distance is ``None`` until fitted; decisions always are, since the runtime applies thresholds.
    """

    member_logits: Tensor
    probabilities: Tensor
    label: Tensor
    confidence: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    disagreement: Tensor
    energy: Tensor
    member_probabilities: Tensor
    distance: Tensor | None = None
    length_deviation: Tensor | None = None
    abstain: None = None
    out_of_distribution: None = None


@dataclass(frozen=True)
class ScoreOutput:
    """Output for regression: logits [M, B, 1] before the activation, and scores [B] and [B, M]."""

    member_logits: Tensor
    score: Tensor
    score_variance: Tensor
    member_scores: Tensor
    distance: Tensor | None = None
    length_deviation: Tensor | None = None


@dataclass(frozen=True)
class LabelOutput:
    """Output for multi-label: as for classes, and nats of each label, [B, C]; other entropies are sums over labels."""

    member_logits: Tensor
    probabilities: Tensor
    label_entropy: Tensor
    label_mutual_information: Tensor
    predictive_entropy: Tensor
    expected_entropy: Tensor
    mutual_information: Tensor
    energy: Tensor
    member_probabilities: Tensor
    distance: Tensor | None = None
    length_deviation: Tensor | None = None


Output = FusedOutput | ScoreOutput | LabelOutput


def summarize_task(architecture: AnyArchitecture, member_logits: Tensor, temperatures: Sequence[float] = (1.0,),
                   distance: Tensor | None = None) -> Output:  # fmt: skip
    """Apply the head of a model's task in float32 to logits [M, B, C]; one temperature, or one for each label."""
    if architecture.task == "score":
        return summarize_scores(member_logits, architecture.score_activation, distance)
    if architecture.task == "multi_label":
        return summarize_labels(member_logits, temperatures, distance)
    return summarize(member_logits, temperatures[0], distance)


def summarize(member_logits: Tensor, temperature: float = 1.0, distance: Tensor | None = None) -> FusedOutput:
    """Apply the classification head to logits [M, B, C], or [M, B, T, C] for tokens."""
    logits = member_logits.float()
    members = torch.softmax((logits - logits.amax(dim=-1, keepdim=True)) / temperature, dim=-1)  # [M, B, C]
    mean = members.mean(dim=0)  # [B, C]
    highest = float(highest_entropy(logits.shape[-1]))
    expected = entropy(members).mean(dim=0).clamp(0.0, highest)  # [B]
    predictive = torch.maximum(entropy(mean).clamp_max(highest), expected)  # H(p̄) ≥ E[H] despite rounding
    confidence, label = mean.max(dim=-1)
    return FusedOutput(
        member_logits=member_logits, probabilities=mean, label=label, confidence=confidence,
        predictive_entropy=predictive, expected_entropy=expected, mutual_information=predictive - expected,
        disagreement=(members.argmax(dim=-1) != label).float().mean(dim=0),
        energy=-torch.logsumexp(logits, dim=-1).mean(dim=0),
        member_probabilities=members.transpose(0, 1), distance=distance,
    )  # fmt: skip


def entropy(probabilities: Tensor) -> Tensor:
    """Shannon entropy over the last axis, nats; 0·log 0 = 0."""
    return 0.0 - (probabilities * probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()).sum(dim=-1)


def summarize_scores(member_logits: Tensor, activation: ScoreActivation, distance: Tensor | None = None) -> ScoreOutput:
    """Apply the regression head to logits [M, B, 1]."""
    logits = member_logits.float()[..., 0]  # [M, B]
    members = torch.sigmoid(logits) if activation == "sigmoid" else logits
    mean = members.mean(dim=0)
    variance = (members - mean).square().mean(dim=0)
    return ScoreOutput(member_logits, mean, variance, members.transpose(0, 1), distance)


def summarize_labels(
    member_logits: Tensor, temperatures: Sequence[float] = (1.0,), distance: Tensor | None = None
) -> LabelOutput:
    """Apply the multi-label head to logits [M, B, C]."""
    logits = member_logits.float() / torch.tensor(temperatures, device=member_logits.device)
    members, without = torch.sigmoid(logits), torch.sigmoid(-logits)  # [M, B, C]
    highest, together = float(highest_entropy(2)), float(highest_entropy(2, logits.shape[-1]))
    expected = _label_entropy(members, without).mean(dim=0).clamp(0.0, highest)  # [B, C]
    mean = members.mean(dim=0)
    total = torch.maximum(_label_entropy(mean, without.mean(dim=0)).clamp_max(highest), expected)  # despite rounding
    return LabelOutput(
        member_logits=member_logits, probabilities=mean, member_probabilities=members.transpose(0, 1),
        label_entropy=total, label_mutual_information=total - expected, distance=distance,
        predictive_entropy=total.sum(dim=-1).clamp_max(together),
        expected_entropy=expected.sum(dim=-1).clamp_max(together),
        mutual_information=(total - expected).sum(dim=-1).clamp_max(together),
        energy=-torch.nn.functional.softplus(member_logits.float()).sum(dim=-1).mean(dim=0),
    )  # fmt: skip


def _label_entropy(probabilities: Tensor, without: Tensor) -> Tensor:
    """−p log p − q log q, nats; complements q are passed, since 1 − p would lose precision; 0·log 0 = 0."""
    terms = [part * part.clamp_min(torch.finfo(torch.float32).tiny).log() for part in (probabilities, without)]
    return 0.0 - (terms[0] + terms[1])


class FeatureDistance(nn.Module):
    """The fitted distance of a bundle; its tensors are non-persistent buffers, so ``state_dict`` lacks them."""

    def __init__(self, density: Density) -> None:
        super().__init__()
        self.density = density
        for name, array in density.arrays().items():
            self.register_buffer(name, torch.from_numpy(array.copy()), persistent=False)

    def forward(self, features: Tensor, lengths: Tensor | None = None) -> Tensor:
        """[K, B, d] → [B], or for tokens [K, B, T, d] → [B, T], in float32; texts have numbers of tokens [B]."""
        if features.ndim == 4:
            return self(features.flatten(1, 2)).unflatten(0, features.shape[1:3])
        rows = nn.functional.normalize(features.float(), dim=-1) - self.get_buffer("centre")[:, None]
        rows = rows @ self.get_buffer("whitening")  # [K, B, r]
        means = self.get_buffer("means")  # [K, R, r]
        closeness = rows @ means.transpose(1, 2) - means.square().sum(dim=-1)[:, None] / 2  # [K, B, R]
        chosen = means.gather(1, closeness.argmax(dim=-1)[..., None].expand(-1, -1, means.shape[-1]))
        squared = (rows - chosen).square().sum(dim=-1)  # the difference squared, not a difference of squares: [K, B]
        location, scale = self.get_buffer("location")[:, None], self.get_buffer("scale")[:, None]
        if lengths is not None and self.density.log_length is not None:
            location = location + self.get_buffer("location_slope")[:, None] / lengths
            scale = scale + self.get_buffer("scale_slope")[:, None] / lengths
        return ((squared - location) / scale).mean(dim=0)

    def deviation(self, lengths: Tensor) -> Tensor:
        """Standardised logarithms [B] of numbers of tokens."""
        mean, spread = self.get_buffer("log_length")
        return (lengths.log() - mean) / spread


class Ensemble(nn.Module):
    """A plan, class names, temperatures (one, or one for each label), and the distance if it is fitted."""

    architecture: Any

    def __init__(self, architecture: AnyArchitecture, plan: HeadPlan, labels: list[str], temperature: float = 1.0,
                 provenance: Mapping[str, Any] | None = None, density: Density | None = None,
                 label_temperatures: Sequence[float] | None = None) -> None:  # fmt: skip
        super().__init__()
        self.architecture, self.plan, self.labels, self.temperature = architecture, plan, labels, temperature
        self.label_temperatures = None if label_temperatures is None else tuple(label_temperatures)
        self.provenance = dict(provenance or {})
        self.distance = None if density is None else FeatureDistance(density)

    @property
    def members(self) -> int:
        """Number of members M."""
        return len(self.plan.members)

    @property
    def taps(self) -> Sequence[str]:
        """Names of the vectors that the distance reads; empty until it is fitted."""
        return () if self.distance is None else self.distance.density.taps

    def lengths(self, inputs: Mapping[str, Any]) -> Tensor | None:
        """Number of tokens [B] of texts that have one distance each, at least 1; ``None`` for others."""
        if not has_length(self.architecture):
            return None
        mask = inputs.get("attention_mask")
        counts = inputs["input_ids"].new_ones(inputs["input_ids"].shape) if mask is None else mask
        return counts.sum(dim=1).clamp_min(1).float()

    def answer(self, logits: Tensor, features: Tensor, inputs: Mapping[str, Any]) -> Output:
        """Apply the task's head to member logits and the vectors of :attr:`taps`."""
        temperatures = self.label_temperatures or (self.temperature,)
        if self.distance is None:
            return summarize_task(self.architecture, logits, temperatures)
        lengths = self.lengths(inputs)
        output = summarize_task(self.architecture, logits, temperatures, self.distance(features, lengths))
        if lengths is None or self.distance.density.log_length is None:
            return output
        return replace(output, length_deviation=self.distance.deviation(lengths))
