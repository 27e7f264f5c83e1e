"""What tests of the traced path build on: tiny models of many classes, plans, inputs, and hooks of its own."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import oracle
import torch
import transformers
from hydrant import HeadPlan
from hydrant.bundle.traced import Traced

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
        "vocab_size": 99, "max_position_embeddings": 40, "num_labels": 3, "pad_token_id": 0}  # fmt: skip
GROUPED = {**TEXT, "num_key_value_heads": 2, "head_dim": 12, "bos_token_id": 1, "eos_token_id": 2}
RELATIVE = {**TEXT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
            "type_vocab_size": 0}  # fmt: skip
DEBERTA_V3 = {**RELATIVE, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
              "max_relative_positions": -1}  # fmt: skip
SIGMOID = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "image_size": 16, "patch_size": 4, "num_labels": 3}  # fmt: skip
SOUND = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
         "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "num_labels": 3,
         "classifier_proj_size": 24}  # fmt: skip
WINDOWS = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4],
           "window_size": 4, "num_labels": 3}  # fmt: skip

SHORT = {"num_hidden_layers": 1}
WHISPER = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "num_mel_bins": 16,
           "max_source_positions": 50, "num_labels": 3, "classifier_proj_size": 24, "decoder_layers": 1,
           "decoder_attention_heads": 2, "decoder_ffn_dim": 8, "vocab_size": 99, "pad_token_id": 0, "bos_token_id": 1,
           "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 40, "vocab_size": 99, "num_labels": 3,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
AST = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "max_length": 40,
       "num_mel_bins": 16, "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "num_labels": 3}  # fmt: skip
MINIMAX = {**GROUPED, "block_size": 32, "layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2,
           "num_experts_per_tok": 1}  # fmt: skip
LAYER_NORM = {**SOUND, **SHORT, "feat_extract_norm": "layer"}

MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "deberta": ("Deberta", "Sequence", {**RELATIVE, **SHORT}),
    "deberta-v3": ("DebertaV2", "Sequence", DEBERTA_V3),
    "deberta-v3-short": ("DebertaV2", "Sequence", {**DEBERTA_V3, **SHORT}),
    "deberta-v3-wide": ("DebertaV2", "Sequence", {**DEBERTA_V3, **SHORT, "hidden_size": 64}),
    "deberta-v3-score": (
        "DebertaV2", "Sequence", {**DEBERTA_V3, **SHORT, "num_labels": 1, "sentence_transformers": SIGMOID}
    ),
    "deberta-v3-labels": (
        "DebertaV2", "Sequence", {**DEBERTA_V3, **SHORT, "problem_type": "multi_label_classification"}
    ),
    "deberta-v3-tokens": ("DebertaV2", "Token", DEBERTA_V3),
    "deberta-v2": ("DebertaV2", "Sequence", {**RELATIVE, **SHORT}),
    "llama": ("Llama", "Sequence", {**GROUPED, **SHORT}),
    "gemma3": ("Gemma3Text", "Sequence", {**GROUPED, **SHORT}),
    "mpnet": ("MPNet", "Sequence", TEXT),
    "qwen3": ("Qwen3", "Sequence", GROUPED),
    "gemma": ("Gemma", "Sequence", GROUPED),
    "swin": ("Swin", "Image", WINDOWS),
    "swin-wide": (
        "Swin", "Image",
        {**WINDOWS, "image_size": 28, "embed_dim": 64, "depths": [1, 1], "num_heads": [4, 8], "window_size": 7},
    ),
    "beit": ("Beit", "Image", {**IMAGE, "use_relative_position_bias": True, "use_mean_pooling": True}),
    "mobilevit": (
        "MobileViT", "Image",
        {"image_size": 32, "hidden_sizes": [16] * 3, "neck_hidden_sizes": [8] * 5 + [16] * 2, "num_labels": 3},
    ),
    "gpt2": ("GPT2", "Sequence", GPT2),
    "wav2vec2": ("Wav2Vec2", "Sequence", {**LAYER_NORM, "do_stable_layer_norm": True}),
    "hubert": ("Hubert", "Sequence", SOUND),
    "minimax": ("MiniMax", "Token", MINIMAX),
    "wavlm": ("WavLM", "Sequence", {**LAYER_NORM, "num_buckets": 16}),
    "sew": ("SEW", "Sequence", {**SOUND, **SHORT}),
    "ast": ("AST", "Audio", AST),
    "whisper": ("Whisper", "Audio", WHISPER),
    "sew-d": ("SEWD", "Sequence", {**SOUND, "position_buckets": 16, "max_relative_positions": 16}),
    "albert": ("Albert", "Sequence", {**TEXT, "embedding_size": 16}),
}  # fmt: skip
"""Stem of the class in transformers, what it classifies, and its configuration."""


def build(name: str) -> Any:
    """A tiny model as transformers fills it."""
    stem, task, settings = MODELS[name]
    config = getattr(transformers, f"{stem}Config")(**settings)
    return getattr(transformers, f"{stem}For{task}Classification")(config)


def make(name: str) -> Any:
    """A tiny random model, whose biases and tables are not 0."""
    torch.manual_seed(0)
    model = build(name).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    return model


def plan_of(architecture: Traced, members: int = 2, fork: int = 1) -> HeadPlan:
    """A plan of half the groups of every block from the fork on, each member's its own."""
    chosen = []
    for member in range(members):
        keep = []
        for place, block in enumerate(architecture.blocks):
            size = block.heads // block.groups
            count = block.groups if place < fork else max(1, block.groups // 2)
            groups = sorted((member + step) % block.groups for step in range(count))
            keep.append(tuple(group * size + head for group in groups for head in range(size)))
        chosen.append(tuple(keep))
    return HeadPlan(architecture.family, architecture.layers, architecture.heads, tuple(chosen), "random")


OUTPUTS = {
    "deberta": "deberta.encoder.layer.{}.attention.output.dense",
    "deberta-v3": "deberta.encoder.layer.{}.attention.output.dense",
    "qwen3": "model.layers.{}.self_attn.o_proj",
    "gemma": "model.layers.{}.self_attn.o_proj",
    "wav2vec2": "wav2vec2.encoder.layers.{}.attention.out_proj",
    "hubert": "hubert.encoder.layers.{}.attention.out_proj",
}
"""Output projections, as transformers names them; found by their ends in the others."""


def by_hooks(name: str, model: Any, plan: HeadPlan, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """Member logits [M, B, C] of the untouched model with head outputs zeroed."""
    rows = []
    for keep in plan.members:
        with silenced(name, model, keep, plan.heads), torch.no_grad():
            rows.append(model(**inputs).logits.double().numpy())
    return np.stack(rows)


@contextmanager
def silenced(name: str, model: Any, keep: Any, most: int) -> Iterator[None]:
    """Within it the untouched model is one member, of ``most`` heads a block; names are this file's own."""
    output = next((output for start, output in OUTPUTS.items() if name.startswith(start)), None)
    if output is not None:
        modules = [model.get_submodule(output.format(layer)) for layer in range(len(keep))]
    else:
        ends = ("attention.o_proj", "attention.output.dense")
        modules = [module for at, module in model.named_modules() if at.endswith(ends)]
    assert len(modules) == len(keep)
    heads = [2, 4, 4] if name == "swin" else [most] * len(keep)
    handles = [oracle.silence(*each) for each in zip(modules, keep, heads, strict=True)]
    yield
    for handle in handles:
        handle.remove()


def without(model: Any, outputs: list[str], keep: Any, heads: int) -> Any:
    """A copy of an untouched model whose output projections have 0 in the columns of the heads that go."""
    made = copy.deepcopy(model)
    for name, kept in zip(outputs, keep, strict=True):
        weight = made.get_submodule(name).weight.data
        width = weight.shape[1] // heads
        for head in set(range(heads)) - set(kept):
            weight[:, head * width : (head + 1) * width] = 0
    return made


def inputs_of(architecture: Traced, batch: int, tokens: int) -> dict[str, torch.Tensor]:
    """Inputs of sizes that the exporter never saw; texts padded."""
    draw = torch.Generator().manual_seed(batch)
    if architecture.modality == "image":
        return {"pixel_values": torch.randn(batch, 3, 16, 16, generator=draw)}
    ids = torch.randint(3, 99, (batch, tokens), generator=draw)
    mask = torch.ones_like(ids)
    for row in range(1, batch):
        mask[row, max(2, tokens - 2 * row) :] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}
