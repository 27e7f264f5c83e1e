"""Census of tracing: every classifier of texts, tokens, images and audio in transformers, as a tiny random model.

    python benchmarks/census.py            # examine classes missing in docs/reference/census.md, and update its tables

Each class is fused with ``traced=True``, exported, and run by ONNX Runtime. Each member is compared with the original
model whose output projections are 0 for the pruned heads. ``WRONG`` is an accepted class whose outputs differ.
"""

from __future__ import annotations

import copy
import logging
import random
import re
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import hydrant
import numpy as np
import onnxruntime
import torch
import transformers
from hydrant.errors import HydrantError
from hydrant.export.graph_form import GraphForm
from hydrant.models.tracing.members import probes, trace
from hydrant.models.tracing.traced_model import prepared, traceable
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
)

PAGE = harness.ROOT / "docs" / "reference" / "census.md"

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "dim", "n_embd", "emb_dim", "embed_dim", "attention_hidden_size"), 64),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layers", "n_layer", "encoder_layers", "decoder_layers", "num_layers", "num_blocks"), 2
    ),
    **dict.fromkeys(
        ("num_attention_heads", "n_heads", "n_head", "encoder_attention_heads", "decoder_attention_heads"), 8
    ),
    **dict.fromkeys(
        ("intermediate_size", "hidden_dim", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "d_inner", "d_ff"), 128
    ),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), 128),
    "num_key_value_heads": 4, "vocab_size": 300, "image_size": 32, "patch_size": 8, "head_dim": 8, "d_head": 8,
    "d_kv": 8, "attention_window": 8, "embedding_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "sliding_window": 16, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "rotary_dim": 8, "entity_vocab_size": 50, "entity_emb_size": 32,
}  # fmt: skip
"""Sizes for every configuration with these fields."""

OWN: dict[str, dict[str, Any]] = {
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16,
                   "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False},
    "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    "falcon": {"num_kv_heads": 8, "new_decoder_architecture": True, "head_dim": None},
    "esm": {"position_embedding_type": "rotary", "mask_token_id": 3, "vocab_size": 300},
    "esmc": {"num_key_value_heads": 8},
    "xlnet": {"max_position_embeddings": None},
    "squeezebert": {"embedding_size": 64},
    "gemma3": {
        "text_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
                        "head_dim": 8, "intermediate_size": 128, "vocab_size": 300, "sliding_window": 16,
                        "max_position_embeddings": 128, "query_pre_attn_scalar": 8},
        "vision_config": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 8, "intermediate_size": 128,
                          "image_size": 32, "patch_size": 8},
        "mm_tokens_per_image": 16, "boi_token_index": 290, "eoi_token_index": 291, "image_token_index": 292,
    },
    "ministral": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "funnel": {"num_blocks": None, "num_hidden_layers": None, "block_sizes": [1, 1], "block_repeats": None,
               "num_decoder_layers": 1},
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global"], 2]], "window_size": 16},
    "gptj": {"rotary_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8}, "hunyuan_v1_moe": {"head_dim": 8},
    "layoutlmv3": {"coordinate_size": 11, "shape_size": 10}, "lilt": {"channel_shrink_ratio": 4, "hidden_size": 96},
    "beit": {"use_relative_position_bias": True},
    "data2vec-vision": {"use_relative_position_bias": True},
    "cvt": {"image_size": 64, "embed_dim": [32, 64, 64], "num_heads": [2, 4, 8], "depth": [1, 1, 1],
            "patch_size": None},
    "levit": {"image_size": 64, "patch_size": 16, "hidden_sizes": [64, 64, 64], "num_attention_heads": [4, 4, 4],
              "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    "hiera": {"image_size": [32, 32], "patch_size": [7, 7], "embed_dim": 32, "depths": [1, 1, 1, 1],
              "num_heads": [2, 4, 8, 8]},
    "mobilevit": {"image_size": 64, "hidden_sizes": [32, 48, 64], "patch_size": 2, "num_attention_heads": 4},
    "mobilevitv2": {"image_size": 64, "patch_size": 2},
}  # fmt: skip
"""Additional or different fields by model type."""

LATENT = {"head_dim": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "kv_lora_rank": 16,
          "q_lora_rank": 16, "num_key_value_heads": 8, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
          "qk_head_dim": 16}  # fmt: skip
"""Fields for attention with latent keys and values."""

OWN |= dict.fromkeys(("deepseek_v2", "deepseek_v3", "axk1", "axk2", "minicpm3", "mistral4"), LATENT)

WINDOWS = {"image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [4, 8], "window_size": 4}
PYRAMID = {"image_size": 64, "hidden_sizes": [16, 32, 32, 64], "num_attention_heads": [2, 4, 4, 8],
           "depths": [1, 1, 1, 1]}  # fmt: skip
VISION = {"vision_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
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


class Late(Exception):  # noqa: N818 - a timeout
    """Time limit of a class exceeded."""


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


def half(architecture: Any) -> hydrant.HeadPlan:
    """Plan of two members with all heads in the first half of the blocks, then half of them in whole groups."""
    draw, members = random.Random(0), []
    for _ in range(2):
        keep = []
        for place, block in enumerate(architecture.blocks):
            share = block.heads // block.groups
            count = block.groups if place < len(architecture.blocks) // 2 else max(1, block.groups // 2)
            groups = sorted(draw.sample(range(block.groups), count))
            keep.append(tuple(group * share + head for group in groups for head in range(share)))
        members.append(tuple(keep))
    return hydrant.HeadPlan(architecture.family, architecture.layers, architecture.heads, tuple(members), "random")


def without(model: Any, blocks: Any, keep: Any) -> Any:
    """Copy of the original with output projections 0 for the pruned heads."""
    pruned = copy.deepcopy(model)
    for block, heads in zip(blocks, keep, strict=True):
        linear = pruned.get_submodule(block.output)
        columns = linear.weight.data if isinstance(linear, torch.nn.Linear) else linear.weight.data.T
        for head in set(range(block.heads)) - set(heads):
            columns[:, head * block.head_width : (head + 1) * block.head_width] = 0
    return pruned


def through(model: Any, folder: Path) -> dict[str, Any]:
    """Fuse, export and compare one model; return form, blocks, heads and the largest difference of probabilities."""
    original, model = model, prepared(copy.deepcopy(model))
    architecture = trace(model)
    plan = half(architecture)
    ensemble = hydrant.fuse(model, plan, traced=True)
    bundle = hydrant.save_bundle(ensemble, folder, None, tensors_only=True)
    path = hydrant.export_onnx(bundle, form=GraphForm(member_outputs=True))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    originals = [without(original, architecture.blocks, keep) for keep in plan.members]
    for batch in probes(architecture):
        ours = session.run(["member_probabilities"], {name: tensor.numpy() for name, tensor in batch.items()})[0]
        real = batch["attention_mask"].numpy() > 0 if architecture.every_token else slice(None)
        for member, single in enumerate(originals):
            with torch.no_grad():
                expected = single(**batch).logits.softmax(-1).numpy()
            difference = np.abs(ours[:, member] - expected)[real].max()
            worst = max(worst, float(difference if np.isfinite(difference) else np.inf))
    block = architecture.blocks[-1]
    facts = {"form": ensemble.architecture.form, "blocks": architecture.layers, "heads": block.heads,
             "groups": block.groups, "distance": architecture.width > 0, "difference": worst}  # fmt: skip
    return {**facts, "result": "passes" if worst <= 1e-4 else "WRONG"}


def examine(kind: str, model_type: str, class_name: str, limit: int) -> dict[str, Any]:
    row = {"kind": kind, "type": model_type, "class": class_name}
    began = time.monotonic()
    signal.alarm(limit)
    try:
        try:
            model = build(kind, model_type, class_name)
        except Late:
            raise
        except Exception as error:  # configurations raise many types
            return {**row, "result": "not built", "why": _line(error)}
        with tempfile.TemporaryDirectory() as folder:
            return {**row, **through(model, Path(folder) / "out"), "seconds": round(time.monotonic() - began)}
    except Late:
        return {**row, "result": "late", "why": f"not finished after {limit} s"}
    except HydrantError as error:
        return {**row, "result": "refused", "why": _line(error)}
    except Exception as error:  # a fault of hydrant
        return {**row, "result": "FAULT", "why": _line(error)}
    finally:
        signal.alarm(0)


def _line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words}"[:300]


KINDS = {
    "text": ("Texts", MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES),
    "tokens": ("Tokens", MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES),
    "image": ("Images", MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
    "audio": ("Sounds", MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES),
}
"""Kind → heading in the page, and classes by model type."""

HEADER = ["class", "result", "members", "blocks × heads", "distance", "largest difference"]

Rows = dict[str, dict[str, list[str]]]  # kind → examined class → cells


def cells(row: dict[str, Any]) -> list[str]:
    """Cells of one class in the page."""
    if row["result"] not in ("passes", "WRONG"):
        return [f"{row['result']}: {re.sub(r'[][|<>`]', ' ', row['why'])[:150].strip()}", "", "", "", ""]
    groups = f" ({row['groups']} groups)" if row["groups"] != row["heads"] else ""
    return [
        row["result"], row["form"], f"{row['blocks']} × {row['heads']}{groups}", "yes" if row["distance"] else "no",
        f"{row['difference']:.0e}",
    ]  # fmt: skip


def table(rows_of: Rows, classes: dict[str, dict[str, str]]) -> str:
    """Markdown tables of the classes, with counts by result, and the classes not examined yet."""
    lines = []
    for kind, (title, _) in KINDS.items():
        examined = rows_of[kind]
        counts = Counter(row[0].split(":")[0] for row in examined.values())
        forms = Counter(row[1] for row in examined.values() if row[0] == "passes")
        summary = ", ".join(f"{count} {result}" for result, count in counts.most_common()) or "none examined"
        summary += f"; of those that pass {forms['sliced']} are sliced and {forms['masked']} masked"
        lines += [f"## {title}", "", f"{len(examined)} classes: {summary}.", ""]
        lines += [harness.table(HEADER, [[name, *examined[name]] for name in sorted(examined)]), ""]
        missing = [name for name in classes[kind] if name not in examined]
        lines += [f"Not examined yet: {', '.join(missing)}.", ""] if missing else []
    return "\n".join(lines)


def read(page: str, versions: str) -> Rows:
    """Rows of a page by kind; empty if the page is from other versions."""
    rows_of: Rows = {kind: {} for kind in KINDS}
    kinds = {f"## {title}": kind for kind, (title, _) in KINDS.items()}
    mine: dict[str, list[str]] = {}
    for line in page.splitlines() if versions in page else []:
        mine = rows_of[kinds[line]] if line in kinds else mine
        name, *row = [cell.strip() for cell in line.strip("|").split("|")]
        if len(row) == len(HEADER) - 1 and name.isidentifier() and [name, *row] != HEADER:
            mine[name] = row
    return rows_of


def main() -> None:
    """Examine the classes missing in the page, and update it after each."""
    parser = harness.parser(__doc__)
    parser.add_argument("--limit", type=int, default=180, help="seconds for each class")
    parser.add_argument("--kind", nargs="*", choices=KINDS, default=list(KINDS), help="only these kinds")
    parser.add_argument("--only", nargs="*", default=[], help="model types to examine, even if examined before")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, _late)
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    versions = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}."
    rows_of, classes = read(PAGE.read_text(), versions), {kind: _named(mapping) for kind, (_, mapping) in KINDS.items()}
    for kind in options.kind:
        for class_name, model_type in classes[kind].items():
            again = model_type in options.only
            if (class_name in rows_of[kind] and not again) or (options.only and not again):
                continue
            row = examine(kind, model_type, class_name, options.limit)
            print(kind, class_name, row["result"], row.get("form", row.get("why", "")), flush=True)
            rows_of[kind][class_name] = cells(row)
            harness.put_into(PAGE, f"{versions}\n\n{table(rows_of, classes)}".rstrip(), "census")


def _named(mapping: Any) -> dict[str, str]:
    """Model type of each class that tracing supports."""
    named = {names if isinstance(names, str) else names[0]: kind for kind, names in reversed(mapping.items())}
    supported = traceable()
    return {name: named[name] for name in sorted(named) if name in supported}


def _late(*_: object) -> None:
    raise Late


if __name__ == "__main__":
    main()
