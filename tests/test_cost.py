"""The cost model against counting the exported graph's own nodes."""

import math
import sys
from pathlib import Path

import onnx
import onnx_reference
import pytest
import torch
from hydrant import estimate_cost, export_onnx, fuse, save_bundle
from hydrant.export.random_model import PLAIN, random_model
from hydrant.models.family_registry import LAYOUTS, architecture_of
from hydrant.models.plan_cost import Cost
from support import FAMILIES, LAYERS, make_inputs, make_model, random_plan
from test_rewrites import forked

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import family_costs


def counted(model: onnx.ModelProto, inputs: dict[str, object]) -> tuple[int, int, int]:
    """FLOPs, parameters and bytes of a graph, from the shapes of the values of one run."""
    values = onnx_reference.all_values(model, {name: tensor.numpy() for name, tensor in inputs.items()})  # type: ignore[attr-defined]
    flops = numbers = 0
    for node in model.graph.node:
        if node.op_type == "MatMul":
            a, b, out = (list(values[name].shape) for name in (*node.input, *node.output))
            flops += 2 * math.prod(out) * a[-1]
            numbers += math.prod(a) + math.prod(b) + math.prod(out)
        if node.op_type == "Conv":
            weight, out = list(values[node.input[1]].shape), list(values[node.output[0]].shape)
            flops += 2 * math.prod(out) * math.prod(weight[1:])
            read = out[0] * math.prod(out[2:]) * math.prod(weight[1:])  # every patch once
            numbers += read + math.prod(weight) + math.prod(out)
    stored = [tensor for tensor in model.graph.initializer if not tensor.name.startswith("const.")]
    return flops, sum(math.prod(tensor.dims) for tensor in stored), 4 * numbers


def assert_cost(bundle: Path, inputs: dict[str, torch.Tensor]) -> Cost:
    """The cost model counts what the exported graph computes."""
    first = next(iter(inputs.values()))
    cost = estimate_cost(bundle, batch=len(first), sequence=first.shape[1] if "input_ids" in inputs else None)
    counts = counted(onnx.load(export_onnx(bundle)), inputs)
    assert counts == (cost.fused.flops, cost.fused.parameters, cost.fused.bytes)
    return cost


FORKS = [*((family, fork) for family in FAMILIES for fork in (1, LAYERS)), ("bert", 0), ("vit", 0), ("siglip", 1)]


@pytest.mark.parametrize(("family", "fork"), FORKS)
def test_figures_are_those_of_the_graph(family: str, fork: int, tmp_path: Path) -> None:
    model, plan, inputs = make_model(family), forked(family, fork), make_inputs(family, batch=3)
    save_bundle(fuse(model, plan), tmp_path / "bundle")
    cost = assert_cost(tmp_path / "bundle", inputs)
    singles = ((cost.single, PLAIN), (cost.single_rewritten, frozenset())) if fork == 1 else ()  # which have no fork
    for found, without in singles:
        graph = random_model(architecture_of(model), without=without)
        assert counted(graph, inputs) == (found.flops, found.parameters, found.bytes)
    assert cost.deep_ensemble.flops == 3 * cost.single.flops
    assert cost.fork == (fork if fork < LAYERS else LAYERS)
    assert estimate_cost(model, plan, batch=3, sequence=cost.sequence) == cost


PARTS = ("mlp", "norms", "embeddings", "classifier", "all", ())


@pytest.mark.parametrize(
    ("family", "separate"), [*(("bert", part) for part in PARTS), ("vit", "embeddings"), ("vit", "all")]
)
def test_several_checkpoints_and_separate_parts(family: str, separate: str, tmp_path: Path) -> None:
    models, inputs = [make_model(family, seed=seed) for seed in (1, 2, 3)], make_inputs(family, batch=2)
    save_bundle(fuse(models, random_plan(family, 3), keep_separate=separate), tmp_path / "bundle")
    assert assert_cost(tmp_path / "bundle", inputs).fork == 0


@pytest.mark.parametrize("family", ["vit", "deit"])
def test_projections_without_bias(family: str, tmp_path: Path) -> None:
    """The folded LayerNorms add one."""
    save_bundle(fuse(make_model(family, qkv_bias=False), random_plan(family, 3)), tmp_path / "bundle")
    assert_cost(tmp_path / "bundle", make_inputs(family))


def test_the_page_on_costs_is_what_the_program_writes() -> None:
    """The page lists every declared class, with current metrics."""
    page = family_costs.PAGE.read_text(encoding="utf-8")
    assert family_costs.table() in page
    assert all(f"`{layout.model_class}`" in page for layout in LAYOUTS)
