"""Tiny random models of transformers' classes for :mod:`census`."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "emb_dim", "embed_dim", "attention_hidden_size"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers", "num_layers", "num_blocks"), 2
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 4
    ),
    **dict.fromkeys(
        ("intermediate_size", "hidden_dim", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner", "d_ff"), 128
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    "num_key_value_heads": 2, "vocab_size": 300, "image_size": 32, "patch_size": 8, "head_dim": 16, "d_head": 16,
    "d_kv": 16, "attention_window": 8, "embedding_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "sliding_window": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "rotary_dim": 16, "entity_vocab_size": 50, "entity_emb_size": 32,
}  # fmt: skip
"""Sizes for every configuration with these fields; heads are 16 wide, since fused kernels need 12."""

OWN: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16,
                   "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False},
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    "falcon": {"num_kv_heads": 4, "new_decoder_architecture": True, "head_dim": None},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3, "vocab_size": 300},
    "esmc": {"num_key_value_heads": 4},
    "xlnet": {"max_position_embeddings": None},
    "squeezebert": {"embedding_size": 64},
    "gemma3": {
        "text_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                        "head_dim": 16, "intermediate_size": 128, "vocab_size": 300, "sliding_window": 16,
                        "max_position_embeddings": 128, "query_pre_attn_scalar": 16},
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128,
                          "image_size": 32, "patch_size": 8},
        "mm_tokens_per_image": 16, "boi_token_index": 290, "eoi_token_index": 291, "image_token_index": 292,
    },
    "ministral": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "funnel": {"num_blocks": None, "num_hidden_layers": None, "block_sizes": [1, 1], "block_repeats": None,
               "num_decoder_layers": 1},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global"], 2]], "window_size": 16},
    "gptj": {"rotary_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16}, "hunyuan_v1_moe": {"head_dim": 16},
    "layoutlmv3": {"coordinate_size": 11, "shape_size": 10}, "lilt": {"channel_shrink_ratio": 4, "hidden_size": 96},
    "beit": {"use_relative_position_bias": True},
    "data2vec-vision": {"use_relative_position_bias": True},
    "cvt": {"image_size": 64, "embed_dim": [32, 64, 64], "num_heads": [2, 4, 4], "depth": [1, 1, 1],
            "patch_size": None},
    "levit": {"image_size": 64, "patch_size": 16, "hidden_sizes": [64, 64, 64], "num_attention_heads": [4, 4, 4],
              "depths": [1, 1, 1], "key_dim": [16, 16, 16]},
    "hiera": {"image_size": [32, 32], "patch_size": [7, 7], "embed_dim": 32, "depths": [1, 1, 1, 1],
              "num_heads": [2, 4, 8, 8]},
    "mobilevit": {"image_size": 64, "hidden_sizes": [32, 48, 64], "patch_size": 2, "num_attention_heads": 4},
    "mobilevitv2": {"image_size": 64, "patch_size": 2},
}  # fmt: skip
"""Additional or different fields by model type."""

LATENT = {"head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "kv_lora_rank": 16,
          "q_lora_rank": 16, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
          "qk_head_dim": 16}  # fmt: skip
"""Fields for attention with latent keys and values."""

OWN |= dict.fromkeys(("deepseek_v2", "deepseek_v3", "axk1", "axk2", "minicpm3", "mistral4"), LATENT)

WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
PYRAMID = {"image_size": 64, "hidden_sizes": [16, 32, 32, 64], "num_attention_heads": [1, 2, 2, 4],
           "depths": [1, 1, 1, 1]}  # fmt: skip
VISION = {"vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                            "intermediate_size": 128, "image_size": 32, "patch_size": 8}}  # fmt: skip
OWN |= dict.fromkeys(("swin", "swinv2", "donut-swin"), WINDOWS)
OWN |= dict.fromkeys(("pvt", "pvt_v2"), PYRAMID) | {"segformer": {**PYRAMID, "patch_sizes": [7, 3, 3, 3]}}
OWN |= dict.fromkeys(("siglip", "clip", "metaclip_2"), VISION)

SOUND = {"conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 8), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 24}  # fmt: skip
"""Fields for waveform models."""

OWN |= dict.fromkeys(("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "sew", "sew-d"), SOUND)
OWN |= {
    "data2vec-audio": {**SOUND, "conv_pos_kernel_size": 9},
    "wav2vec2-conformer": SOUND,
    "wav2vec2-bert": {"conv_depthwise_kernel_size": 7},
    "whisper": {"num_mel_bins": 16, "max_source_positions": 40},
    "audio-spectrogram-transformer": {"max_length": 64, "num_mel_bins": 16},
}

LARGEST = 6e7  # Maximum parameters of a built model


def build(kind: str, model_type: str, class_name: str) -> Any:
    """Build a tiny random model of a class, with nonzero biases and tables."""
    configuration = CONFIG_MAPPING[model_type]
    usual = configuration()
    sizes = {
        name: size
        for name, size in SMALL.items()
        if hasattr(usual, name)
        and isinstance(getattr(usual, name), int | None)
        and (getattr(usual, name) is not None or name in ("num_key_value_heads", "pad_token_id"))
    }
    if kind == "image" and isinstance(getattr(usual, "num_heads", None), list | tuple):
        sizes = {"image_size": 64}
    own = {**sizes, **OWN.get(model_type, {}), "num_labels": 5}
    config = configuration(**{name: size for name, size in own.items() if size is not None})
    if getattr(config, "layer_types", None) and len(config.layer_types) > 2 and hasattr(config, "num_hidden_layers"):
        config.layer_types = config.layer_types[: config.num_hidden_layers]
    cls = getattr(transformers, class_name)
    with torch.device("meta"):
        parameters = sum(weight.numel() for weight in cls(config).parameters())
    if parameters > LARGEST:
        raise ValueError(f"too large: {parameters / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = cls(config).eval().float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.03)
    return model
