"""Zero-shot classification with CLIP: class prompts become a frozen classifier behind the image tower.

``logits = exp(logit_scale) · cos(image embedding, class embedding)``; a class embedding is the mean of its prompts'
unit embeddings, of unit length again (Radford et al. 2021, section 3.1.4).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError, cut
from ..progress import Progress, no_progress
from .checkpoint import load_dual_encoder, load_processor, quiet
from .functions import POOLERS
from .prompts import Prompts, read_prompts

BATCH = 64


class ZeroShotClassifier(nn.Module):
    """The image tower of a ``CLIPModel``, whose parameters it shares, with a frozen classifier of embeddings [C, P]."""

    def __init__(self, clip: Any, embeddings: Tensor, prompts: Prompts) -> None:
        super().__init__()
        self.config = copy.deepcopy(clip.config)
        self.config.id2label = dict(enumerate(prompts.classes))
        self.config.label2id = {name: index for index, name in enumerate(prompts.classes)}
        self.config.problem_type = None  # prompts exclude each other, whatever the tower's previous task
        self.name_or_path = clip.name_or_path
        self.prompts = prompts
        self.vision_model = clip.vision_model
        self.visual_projection = clip.visual_projection
        classifier = nn.Linear(embeddings.shape[1], embeddings.shape[0], bias=False, device=embeddings.device)
        classifier.weight = nn.Parameter(clip.logit_scale.detach().exp() * embeddings, requires_grad=False)
        self.classifier = classifier

    def forward(self, pixel_values: Tensor) -> Any:
        """[B, channels, height, width] → an output whose ``logits`` are [B, C]."""
        from transformers.modeling_outputs import ImageClassifierOutput

        pooled = self.vision_model(pixel_values=pixel_values).pooler_output  # [B, d]
        return ImageClassifierOutput(logits=self.classifier(POOLERS["unit"](self.visual_projection(pooled))))


def load_zero_shot(
    source: Any,
    classes: Any,
    templates: str | Sequence[str] | None = None,
    *,
    tokenizer: Any = None,
    progress: Progress = no_progress,
) -> ZeroShotClassifier:
    """A zero-shot classifier, for ``plan_heads`` and ``fuse``; nothing is trained.

    Args:
        source: a CLIP checkpoint folder or hub name, or a ``CLIPModel``.
        classes: class names, or prompts (``models.prompts.read_prompts``).
        templates: texts in which ``{}`` is replaced by the name; ``None`` for ``"a photo of a {}."``.
        tokenizer: of a ``CLIPModel``; a checkpoint brings its own.
        progress: display.

    Returns:
        The classifier in evaluation mode, in float32 on the CPU for a checkpoint.

    Raises:
        InputError: unusable classes, templates or checkpoint; a prompt longer than the text tower reads.
        UnsupportedModelError: the architecture is not supported.
    """
    prompts = read_prompts(classes, templates)
    if isinstance(source, str | Path):
        clip = load_dual_encoder(source)
        tokenizer = load_processor(source, "text") if tokenizer is None else tokenizer
    elif type(source).__name__ != "CLIPModel":
        wrong = f"source is a {type(source).__name__}"
        raise InputError(f"{wrong}; expected a CLIPModel, a checkpoint folder or a hub name")
    elif tokenizer is None:
        raise InputError("a CLIPModel needs its tokenizer; pass tokenizer=…")
    else:
        clip = source
    return ZeroShotClassifier(clip, _class_embeddings(clip, tokenizer, prompts, progress), prompts).eval()


def _class_embeddings(clip: Any, tokenizer: Any, prompts: Prompts, progress: Progress) -> Tensor:
    """[C, P], unit length: the mean of each class's unit embeddings, normalized again."""
    rows = _token_ids(clip, tokenizer, [text for own in prompts.texts for text in own])
    steps = progress(range(0, len(rows), BATCH), -(-len(rows) // BATCH), "reading class prompts")
    training = clip.training
    clip.eval()
    try:
        vectors = torch.cat([_embed(clip, tokenizer, rows[start : start + BATCH]) for start in steps])
    finally:
        clip.train(training)
    parts = vectors.split([len(own) for own in prompts.texts])
    embeddings = torch.stack([POOLERS["unit"](part.mean(dim=0)) for part in parts])
    if not bool(torch.isfinite(embeddings).all()):
        raise InputError("the text tower returns non-finite embeddings (NaN or infinity); repair the checkpoint")
    return embeddings


def _token_ids(clip: Any, tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of every prompt, checked against the limits of the text tower."""
    config = clip.config.text_config
    with quiet():
        rows: list[list[int]] = tokenizer(list(texts)).input_ids
    for text, row in zip(texts, rows, strict=True):
        longest, end = config.max_position_embeddings, config.eos_token_id
        if len(row) > longest:
            raise InputError(f"prompt {cut(text)} has {len(row)} tokens; the text tower reads {longest}; shorten it")
        wrong = f"has token id {max(row)} of {config.vocab_size}" if max(row) >= config.vocab_size else ""
        if end != 2 and end not in row:  # 2: old files, which mean the largest id
            wrong = wrong or f"ends without the token {end}"
        if wrong:
            raise InputError(f"prompt {cut(text)} {wrong}; use the tokenizer that the model was trained with")
    return rows


@torch.no_grad()
def _embed(clip: Any, tokenizer: Any, rows: Sequence[list[int]]) -> Tensor:
    """Unit embeddings [N, P] of N prompts."""
    batch = tokenizer.pad({"input_ids": list(rows)}, padding_side="right", return_tensors="pt").to(clip.device)
    features = clip.get_text_features(input_ids=batch.input_ids, attention_mask=batch.attention_mask).pooler_output
    return POOLERS["unit"](features.float())
