"""Compile graphs with TensorRT-RTX, without a GPU: everything builds; in half precision all attention is fused."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import golden
import onnx
import pytest
from hydrant import GraphForm, HeadPlan, TensorRTForRTX, build_engine, export_onnx, fuse, save_bundle
from hydrant.build.builder_options import optimization_profiles
from hydrant.build.compiler import Messages, by_profile, compile_graph
from hydrant.bundle.architecture import Architecture
from hydrant.export.random_model import random_model
from hydrant.models.family_registry import LAYOUTS, architecture_of
from support import make_model
from transformers import AutoConfig

trt: ModuleType = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

MEMBERS = 3

SMALL_IDS = {"vocab_size": 3000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1,
             "sep_token_id": 2}  # fmt: skip

LAYER_COUNTS = {
    ("bert", "fp16", 2): 35, ("vit", "bf16", 2): 34, ("clip", "fp16", 2): 37, ("roberta", "fp16", 2): 37,
    ("electra", "fp16", 2): 36, ("modernbert", "fp16", 4): 55, ("dinov2", "fp16", 2): 36, ("siglip", "fp16", 2): 35,
}  # fmt: skip
"""Family, precision and compiled layers of ensembles of base width, with TensorRT-RTX 1.7.

Every layer compiles to the same ten, so a few layers suffice. A later version may need fewer, hardly more.
"""


def random_heads(shape: Architecture, keep: int) -> HeadPlan:
    return replace(golden.random_heads(shape.layers, shape.heads, keep, MEMBERS), family=shape.family)


def compiled(model: onnx.ModelProto, shape: Architecture, precision: str, folder: Path) -> tuple[int, int]:
    """(layers, fused attention blocks) of a graph."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    profiles, options = optimization_profiles(shape, ["1:2:8"], []), TensorRTForRTX(compute_capability=["8.9"])
    (counts,) = by_profile(compile_graph(trt, path, profiles, options, Messages()).layers, 1)
    return counts


@pytest.mark.parametrize(("family", "precision", "layers"), LAYER_COUNTS)
def test_base_sized_ensembles_are_fused(family: str, precision: str, layers: int, tmp_path: Path) -> None:
    base = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}  # the default is smaller
    few = {"vocab_size": 3000}
    more: dict[str, dict[str, Any]] = {"bert": few, "roberta": few, "electra": {**few, **base}}
    more["modernbert"] = SMALL_IDS  # in the first and last of four layers attention is global
    layout = next(each for each in LAYOUTS if each.family == family)  # sequence classification first
    depth: dict[str, Any] = {"num_hidden_layers": layers}
    if family in ("clip", "siglip"):
        depth = {"vision_config": depth}
    shape = layout.architecture(AutoConfig.for_model(family, num_labels=100, **more.get(family, {}), **depth))
    model = random_model(shape, random_heads(shape, 4), precision=precision, lowering="grouped")
    compiled_layers, fused = compiled(model, shape, precision, tmp_path)
    assert fused == shape.layers == layers
    expected = LAYER_COUNTS[family, precision, layers]
    if trt.__version__.startswith("1.7."):
        assert compiled_layers == expected
    assert compiled_layers <= 1.05 * expected


@pytest.mark.parametrize(("family", "precision", "width", "lowering"), [
    ("bert", "fp32", 64, "grouped"),
    ("vit", "fp32", 64, "unrolled"),
    ("vit", "fp16", 16, "unrolled"),
    ("bert", "bf16", 128, "grouped"),
])  # fmt: skip
def test_auto_attention_always_builds(family: str, width: int, precision: str, lowering: str, tmp_path: Path) -> None:
    """Text graphs have a mask, image graphs do not."""
    shape = architecture_of(make_model(family, hidden_size=4 * width, num_hidden_layers=2))
    plan = random_heads(shape, 2)
    layers, fused = compiled(
        random_model(shape, plan, precision=precision, lowering=lowering), shape, precision, tmp_path
    )
    assert layers > 0
    single_query = 1 if lowering == "grouped" else 0  # in the last layer, fused in every precision
    assert fused == (single_query if precision == "fp32" else 2)


@pytest.mark.parametrize(("precision", "width"), [("fp32", 16), ("fp16", 8), ("bf16", 16)])
def test_the_attention_operator_builds_too(width: int, precision: str, tmp_path: Path) -> None:
    """Attention that cannot be fused must decompose instead of failing."""
    model = make_model("bert", hidden_size=4 * width, num_hidden_layers=2)
    bundle = save_bundle(fuse(model, random_heads(architecture_of(model), 2)), tmp_path / "bundle")
    export_onnx(bundle, precision, form=GraphForm(attention="onnx"))
    built = build_engine(bundle.path, TensorRTForRTX(compute_capability=["8.9"]), precision, batch="1:2:4")
    assert built.facts.layers[0] > 0
