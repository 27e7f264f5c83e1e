"""FP16 and BF16 graphs compile to TensorRT-RTX engines, on a machine without a GPU, with their attention fused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hydrant import export_onnx, fuse, save_bundle
from support import HEADS, LAYERS, make_model, random_plan

trt: Any = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

WIDE = {"hidden_size": 32 * HEADS, "intermediate_size": 64}
"""Head width 32: engines fuse attention from 16 on."""


def compiled(path: Path) -> list[str]:
    """Names of the layers of the engine for compute capability 8.9, from the builder's own log."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[tuple[str, str]] = []

        def log(self, severity: Any, message: str) -> None:
            self.lines.append((severity.name, message))

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(str(path)), [parser.get_error(i).desc() for i in range(parser.num_errors)]
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.num_compute_capabilities = 1
    assert config.set_compute_capability(trt.ComputeCapability.SM89, 0)
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        tensor = network.get_input(index)
        shapes = [
            tuple(dim if dim >= 0 else (batch if axis == 0 else tokens) for axis, dim in enumerate(tensor.shape))
            for batch, tokens in ((1, 4), (2, 16), (8, 32))
        ]
        profile.set_shape(tensor.name, *shapes)
    assert config.add_optimization_profile(profile) >= 0
    engine = builder.build_serialized_network(network, config)
    errors = [text for kind, text in log.lines if "ERROR" in kind and "catchCudaError" not in text]
    assert engine is not None, errors
    verbose = [part for kind, text in log.lines if kind == "VERBOSE" for part in text.splitlines()]
    return [found[1] for line in verbose if (found := re.match(r"^Name: (.*?), LayerType: \w+, ", line))]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("family", ["bert", "vit"])
def test_half_precision_graphs_compile_with_attention_fused(family: str, precision: str, tmp_path: Path) -> None:
    model = make_model(family, **WIDE)
    save_bundle(fuse(model, random_plan(family, 3)), tmp_path / "bundle")
    layers = compiled(export_onnx(tmp_path / "bundle", precision))
    fused = [name for name in layers if re.search(r"_(?:gemm|gemv)_mha_v\d+", name)]
    assert len(fused) == LAYERS, layers


@pytest.mark.parametrize("lowering", ["grouped", "unrolled"])
def test_float32_graphs_compile(lowering: str, tmp_path: Path) -> None:
    save_bundle(fuse(make_model("bert"), random_plan("bert", 3)), tmp_path / "bundle")
    assert compiled(export_onnx(tmp_path / "bundle", lowering=lowering))
