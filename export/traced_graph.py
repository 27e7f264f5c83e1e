"""Traced ensemble as one ONNX graph, with torch's exporter.

The exporter runs once for all members with the same numbers of heads. Its graph is copied for each of them,
with that member's tensors. Equal tensors, then equal nodes are merged, so that shared layers are computed once.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import Tensor, nn

from ..bundle.head_plan import HeadPlan
from ..bundle.traced import Traced
from ..data.audio import MOST_SECONDS
from ..errors import LARGEST, GateError, MissingExtraError, UnsupportedModelError, cut, require
from ..models.tracing.members import members_of, probes, run_member
from ..models.tracing.slices import differing
from ..version import __version__
from .distance_head import LAST
from .graph import FLOAT, IR_VERSION, Graph
from .onnx_file import open_file
from .task_heads import task_head, task_inputs, task_outputs

log = logging.getLogger(__name__)
OPSET = 20
FOLDED = 2**20  # elements of the largest folded constant: tables of relative positions, whose attention then fuses
LOGITS = "member_logits"  # value [M, B, C] of the graph; for tokens [M, B, T, C]
AGREE = 1e-4  # largest difference of logits between ONNX Runtime and PyTorch, relative to the largest logit
REMEDY = "run the bundle with PyTorch (--backend torch)"


def traced_network(
    model: nn.Module, architecture: Traced, plan: HeadPlan, facts: Mapping[str, str], opset: int = OPSET
) -> onnx.ModelProto:
    """Graph of the members without the task's head, compared with PyTorch if ONNX Runtime is installed."""
    require("onnxscript", "fuse", "export a traced model")
    import onnx_ir as ir

    members, longest = members_of(model, architecture, plan), architecture.max_sequence  # tokens, or samples
    if architecture.modality == "audio":
        prepared = json.loads(facts.get("hydrant.preprocessing", "null")) or {}
        longest = MOST_SECONDS * int(prepared.get("sampling_rate", 16_000))
    alike = differing(plan.members).values()
    parts = [(_exported(members[same[0]], architecture, longest, opset), same) for same in alike]
    weights: dict[str, Any] = {}
    slim = _simplified(_joined(parts, members, architecture, opset, weights), weights)
    _compare(slim, members, architecture)
    proto: onnx.ModelProto = ir.to_proto(slim)
    for value in slim.graph.initializers.values():
        value.const_value = None  # onnxscript's rules refer to the last graph
    return proto


def finished(network: onnx.ModelProto, architecture: Traced, members: int, temperature: float | Sequence[float],
             facts: Mapping[str, str], emit: bool, keep: bool = True) -> onnx.ModelProto:  # fmt: skip
    """The network with the task's head, outputs and metadata; a copy if ``keep`` is true."""
    model, graph = network, Graph()
    if keep:
        model = onnx.ModelProto()
        model.CopyFrom(network)
    task_head(graph, LOGITS, members, members, architecture, temperature, emit)
    graph.add_to(model.graph)
    _finish(model, architecture, members if emit else None, facts)
    return model


class _Member(nn.Module):
    """Member with tensors as inputs and outputs, for the exporter."""

    def __init__(self, member: nn.Module, architecture: Traced) -> None:
        super().__init__()
        self.member, self.architecture = member, architecture

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Logits [B, C], the classifier's input [B, d], and for tokens the layers' outputs [B, T, d]."""
        inputs = dict(zip(self.architecture.input_names, tensors, strict=True))
        logits, last, layers = run_member(self.member, self.architecture, inputs, self.architecture.tapped_layers)
        return logits, last, *layers


def _exported(
    member: nn.Module, architecture: Traced, longest: int, opset: int
) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """Export one member with torch's exporter, for inputs up to ``longest``; weights are apart."""
    from onnxscript.optimizer import fold_constants
    from torch.export import Dim, export

    from .dead_rows import keep_first_rows  # onnx_ir
    from .masked_writes import replace_masked_writes

    tensors = tuple(probes(architecture)[-1].values())
    free = dict.fromkeys([0] if architecture.fixed_shape else [0, 1], Dim.DYNAMIC)
    try:
        with _quiet(), torch.no_grad(), _batched_experts(member):
            shapes = {"tensors": tuple(dict(free) for _ in tensors)}
            program = export(_Member(member, architecture), tensors, dynamic_shapes=shapes, strict=False)
            for axis in free:
                _check_range(program, architecture, axis, longest if axis else LARGEST)
            written: Any = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False, opset_version=opset)
            fold_constants(written.model, should_fold=lambda _: False)  # by shapes and types: sequences become Split
            replace_masked_writes(written.model)
            fewer = keep_first_rows(written.model)
            parts = _apart(written.model)
    except UnsupportedModelError:
        raise
    except Exception as error:  # the exporter's stages raise many types
        problem = f"torch's exporter cannot write {architecture.model_class} as ONNX"
        raise UnsupportedModelError(f"{problem} ({type(error).__name__}: {cut(error, 200)}); {REMEDY}") from error
    log.info("%d operators of %s compute the first tokens alone", fewer, architecture.model_class)
    return parts


def _apart(model: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model without its weights, and the weights by name, which are not copied."""
    import onnx_ir as ir

    weights: dict[str, Any] = {}
    for name, value in model.graph.initializers.items():
        weights[name] = tensor = value.const_value
        value.const_value = ir.ExternalTensor(name, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=name)
    return ir.to_proto(model), weights


def _check_range(program: Any, architecture: Traced, axis: int, expected: int) -> None:
    """Raise :class:`UnsupportedModelError` if the exporter narrowed an axis that must be dynamic."""
    name = program.graph_signature.user_inputs[0]
    size = next(node for node in program.graph.nodes if node.name == name).meta["val"].shape[axis]
    held = None if isinstance(size, int) else program.range_constraints.get(size.node.expr)
    if held is None or held.upper < expected:
        unit = {"text": "tokens", "audio": "samples"}[architecture.modality] if axis else "inputs in a batch"
        most = "some numbers of" if held is None else f"up to {held.upper}"
        required = f"up to {expected}" if axis else "any number"
        problem = f"torch's exporter supports {architecture.model_class} for {most} {unit} only"
        raise UnsupportedModelError(f"{problem}; this bundle needs {required}; {REMEDY}")


@contextmanager
def _batched_experts(member: nn.Module) -> Iterator[None]:
    """Compute a mixture of experts by batched products, its only exportable form."""
    model: Any = member
    before = getattr(getattr(model, "config", None), "_experts_implementation", None)
    if before is not None:
        model.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        if before is not None:
            model.set_experts_implementation(before)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's messages; errors are still raised."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _joined(parts: Sequence[tuple[tuple[onnx.ModelProto, Mapping[str, Any]], list[int]]], members: Sequence[nn.Module],
            architecture: Traced, opset: int, weights: dict[str, Any]) -> onnx.ModelProto:  # fmt: skip
    """Copy all members into one graph; add their tensors to ``weights``, shared ones once."""
    graph = onnx.GraphProto(name=f"hydrant.{architecture.family}")
    outputs, shared = dict[int, list[str]](), dict[Any, str]()
    for (proto, constants), same in parts:
        for member in same:
            names = {value.name: name for value, name in zip(proto.graph.input, architecture.input_names, strict=True)}
            tensors = {**constants, **_state(members[member])}
            for entry in proto.graph.initializer:
                name, tensor = f"m{member}.{entry.name}", tensors[entry.name]
                names[entry.name] = shared.setdefault(_place(tensor), name)
                if names[entry.name] == name:
                    weights[name] = _contiguous(tensor)
                    graph.initializer.append(entry)
                    graph.initializer[-1].name = name
            graph.node.extend(proto.graph.node)  # copies
            for node in graph.node[-len(proto.graph.node) :]:
                _rename(node, names, f"m{member}.")
            outputs[member] = [names.get(output.name, f"m{member}.{output.name}") for output in proto.graph.output]
    added_nodes, each = Graph(), architecture.every_token
    order = [outputs[member] for member in range(len(members))]
    wanted = {LOGITS: [0], **({LAST: [0] if each else [0, 2]} if architecture.width else {})}
    for place, (name, axes) in enumerate(wanted.items()):
        added = added_nodes.shared(f"{name}.axes", np.array(axes, np.int64))
        rows = [added_nodes.node("Unsqueeze", [values[place], added], f"{name}.{m}") for m, values in enumerate(order)]
        added_nodes.node("Concat", rows, name, axis=0)
    layers = {f"layers.{layer}": order[0][2 + layer] for layer in architecture.tapped_layers}
    for name, value in layers.items():  # below the fork all members' layers are equal
        added_nodes.node("Unsqueeze", [value, added_nodes.shared(f"{LOGITS}.axes", np.array([0], np.int64))], name)
    added_nodes.add_to(graph)
    graph.input.extend(helper.make_tensor_value_info(name, *kind) for name, kind in task_inputs(architecture).items())
    shapes: dict[str, list[int | str]] = {
        LOGITS: [len(members), "batch", *(["sequence"] if each else []), architecture.classes],
        LAST: [len(members), "batch", "sequence" if each else 1, architecture.width],
        **{name: [1, "batch", "sequence", architecture.width] for name in layers},
    }
    graph.output.extend(helper.make_tensor_value_info(name, FLOAT, shapes[name]) for name in (*wanted, *layers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=IR_VERSION)


def _state(member: nn.Module) -> dict[str, Any]:
    """A member's parameters and buffers as tensors of onnx_ir."""
    from onnx_ir.tensor_adapters import TorchTensor

    state: dict[str, Tensor] = dict(member.named_parameters(prefix="member", remove_duplicate=False))
    state |= dict(member.named_buffers(prefix="member", remove_duplicate=False))
    return {name: TorchTensor(tensor.detach(), name) for name, tensor in state.items()}


def _place(tensor: Any) -> Any:
    """The memory of a tensor, which members share below the fork."""
    raw = tensor.raw
    return (raw.data_ptr(), raw.dtype, raw.shape, raw.stride()) if isinstance(raw, Tensor) else id(tensor)


def _contiguous(tensor: Any) -> Any:
    import onnx_ir as ir

    array = tensor.numpy()
    return tensor if array.flags.c_contiguous else ir.Tensor(np.ascontiguousarray(array))


def _rename(node: onnx.NodeProto, names: Mapping[str, str], prefix: str) -> None:
    """Prefix the values of a node and of its subgraphs."""

    def named(name: str) -> str:
        return names.get(name, f"{prefix}{name}") if name else ""

    node.input[:], node.output[:] = [named(name) for name in node.input], [named(name) for name in node.output]
    node.name = node.doc_string = ""
    del node.metadata_props[:]
    for inner in [graph for each in node.attribute for graph in ([each.g] if each.HasField("g") else each.graphs)]:
        for entry in (*inner.input, *inner.output, *inner.initializer, *inner.value_info):
            entry.name = named(entry.name)
        for part in inner.node:
            _rename(part, names, prefix)


def _simplified(model: onnx.ModelProto, weights: Mapping[str, Any]) -> Any:
    """Merge equal tensors, then equal nodes, fold constants, name layer norms (ONNX Runtime fuses them wrongly)."""
    import onnx_ir as ir
    from onnx_ir.passes import common
    from onnxscript import optimizer, rewriter

    inner = ir.from_proto(model)
    for name, tensor in weights.items():
        inner.graph.initializers[name].const_value = tensor
    passes = [common.CommonSubexpressionEliminationPass(size_limit=1024), common.RemoveUnusedNodesPass()]
    with _quiet():
        common.DeduplicateHashedInitializersPass()(inner)
        ir.passes.PassManager(passes, steps=4)(inner)
        _transpose(inner.graph)
        optimizer.optimize(inner, input_size_limit=FOLDED, output_size_limit=FOLDED)
        rewriter.rewrite(inner, rewriter.RewriteRuleSet(_layer_norms(), commute=True))
        _divide_queries(inner.graph)
        for value in inner.graph.initializers.values():
            if isinstance(value.const_value, ir.Tensor):  # a folded one may be a transposed view
                value.const_value = _contiguous(value.const_value)
        common.DeduplicateHashedInitializersPass()(inner)
        ir.passes.Sequential(*passes)(inner)
    return inner


def _layer_norms() -> list[Any]:
    """Rules for layer normalization, whose scale and bias are stored vectors; any other addend stays apart."""
    from onnxscript.rewriter.rules.fusion._layer_norm import LayerNormBiasFusion, LayerNormFusion

    def stored(value: Any) -> bool:
        return bool(value.is_initializer()) and value.shape.rank() == 1 and value.shape[0] != 1

    class Scaled(LayerNormFusion):
        def check(self, *args: Any, scale: Any, **others: Any) -> Any:  # type: ignore[override]
            return stored(scale) and super().check(*args, **others)

    class Biased(LayerNormBiasFusion):
        def check(self, *_: Any, bias: Any, **__: Any) -> Any:
            return stored(bias)

    return [each.rule() for each in (Scaled, Biased)]  # type: ignore[no-untyped-call]


def _divide_queries(graph: Any) -> None:
    """Divide the first factor of a product by a number instead of the second; TensorRT-RTX fuses the attention then."""
    import onnx_ir as ir

    for node in list(graph):
        division = node.inputs[1].producer() if node.op_type == "MatMul" else None
        if division is None or division.op_type != "Div" or not division.inputs[1].is_initializer():
            continue
        if division.inputs[1].shape.rank() == 0:
            divided = ir.node("Div", [node.inputs[0], division.inputs[1]])
            graph.insert_before(node, divided)
            node.replace_input_with(0, divided.outputs[0])
            node.replace_input_with(1, division.inputs[0])


def _transpose(graph: Any) -> None:
    """Replace transposed matrices by weights that are computed when read, named after their layer."""
    import onnx_ir as ir

    for node in list(graph):
        gemm = node.op_type == "Gemm" and node.attributes.get_int("transB", 0) == 1
        if not gemm and (node.op_type != "Transpose" or tuple(node.attributes.get_ints("perm", (1, 0))) != (1, 0)):
            continue
        weight = node.inputs[int(gemm)]
        if weight.is_initializer() and weight.shape is not None and weight.shape.rank() == 2:
            name, kind = f"{weight.name}.transposed", weight.dtype
            shape = ir.Shape([weight.shape[1], weight.shape[0]])

            def transposed(stored: Any = weight.const_value) -> Any:
                return ir.Tensor(np.ascontiguousarray(stored.numpy().T))

            tensor = ir.LazyTensor(transposed, dtype=kind, shape=shape, name=name)
            value = ir.Value(name=name, type=ir.TensorType(kind), shape=shape, const_value=tensor)
            matrix = graph.initializers.setdefault(name, value)
            if gemm:
                node.replace_input_with(1, matrix)
                node.attributes.pop("transB")
            else:
                node.outputs[0].replace_all_uses_with(matrix)
                graph.remove(node, safe=True)


def _finish(model: onnx.ModelProto, architecture: Traced, members: int | None, facts: Mapping[str, str]) -> None:
    """Set hydrant's outputs, metadata and producer; remove the exporter's."""
    shapes = task_outputs(architecture, members)
    outputs = [helper.make_tensor_value_info(name, *shape) for name, shape in shapes.items()]
    del model.graph.output[:], model.graph.value_info[:], model.metadata_props[:], model.graph.metadata_props[:]
    model.graph.output.extend(outputs)
    for entry in (*model.graph.node, *model.graph.initializer, *model.graph.input):
        entry.doc_string = ""
        del entry.metadata_props[:]
    for place, node in enumerate(model.graph.node):
        node.name = node.output[0] if node.output else f"node.{place}"
    model.producer_name, model.producer_version = "hydrant", __version__
    model.ir_version = IR_VERSION
    helper.set_model_props(model, dict(sorted(facts.items())))


def _compare(model: Any, members: Sequence[nn.Module], architecture: Traced) -> None:
    """Compare the members' graph with PyTorch, on other sizes than at export."""
    import onnx_ir as ir

    name, worst = architecture.model_class, 0.0
    try:
        with tempfile.TemporaryDirectory(prefix="hydrant.") as folder:
            ir.save(model, Path(folder) / "model.onnx", external_data="model.data")  # in memory only once, by mapping
            session = open_file(Path(folder) / "model.onnx", "compare the graph with PyTorch")
        for batch in probes(architecture)[:2]:
            with torch.no_grad():
                expected = torch.stack([run_member(member, architecture, batch)[0] for member in members]).numpy()
            logits = session.run([LOGITS], {key: tensor.numpy() for key, tensor in batch.items()})[0]
            apart = np.abs(logits - expected).max() if logits.shape == expected.shape else np.inf
            worst = np.maximum(worst, apart / max(1.0, np.abs(expected).max()))  # NaN stays
    except MissingExtraError as error:
        log.warning("the graph was not compared with PyTorch: %s", error)
    except Exception as error:  # ONNX Runtime's own errors
        problem = f"ONNX Runtime cannot run the graph of {name} ({cut(error, 200)})"
        raise UnsupportedModelError(f"{problem}; {REMEDY}") from error
    if not worst <= AGREE:
        problem = f"the logits of {name}'s graph differ by {worst:.1e} from PyTorch's (limit {AGREE:.0e})"
        raise GateError(f"{problem}; nothing was written: {REMEDY}")
