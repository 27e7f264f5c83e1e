"""Rows that nobody reads: small graphs before and after, run by ONNX Runtime on tensors of several sizes."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hydrant.export.dead_rows import keep_first_rows
from onnx import TensorProto, helper

WIDTH, HEADS = 8, 2


class Sketch:
    """A graph under construction, over x [batch, tokens, 8] and a mask [batch, 1, 1, tokens]."""

    def __init__(self, tokens: int | str = "tokens") -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.infos: list[onnx.ValueInfoProto] = []
        self.tokens = tokens
        self.draw = np.random.default_rng(0)
        self.inputs = [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", tokens, WIDTH]),
            helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 1, 1, tokens]),
        ]

    def constant(self, array: np.ndarray | list[int]) -> str:
        name = f"constant{len(self.initializers)}"
        values = np.array(array)
        self.initializers.append(onnx.numpy_helper.from_array(values, name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.draw.standard_normal(shape).astype(np.float32))

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        names = [f"value{len(self.nodes)}.{place}" for place in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **attributes))
        return names[0] if outputs == 1 else " ".join(names)

    def told(self, name: str, *sizes: int) -> str:
        """Say, as torch's exporter does, that a value is [batch, tokens, sizes]."""
        self.infos.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", self.tokens, *sizes]))
        return name

    def heads(self, x: str) -> str:
        """[B, T, 8] → [B, 2, T, 4], the shape computed from that of x."""
        sizes = self.add("Shape", "x")
        both = self.add("Slice", sizes, self.constant([0]), self.constant([2]))
        shape = self.add("Concat", both, self.constant([HEADS, WIDTH // HEADS]), axis=0)
        parted = self.told(self.add("Reshape", x, shape), HEADS, WIDTH // HEADS)
        return self.add("Transpose", parted, perm=[0, 2, 1, 3])

    def attention(self, x: str) -> str:
        """One layer of attention with stacked projections, biases per pair of places, and a residual."""
        stacked = self.add("MatMul", x, self.weight(WIDTH, 3 * WIDTH))
        parts = self.add("Split", stacked, outputs=3, axis=-1, num_outputs=3).split()
        queries, keys, values = (self.heads(part) for part in parts)
        scores = self.add("MatMul", queries, self.add("Transpose", keys, perm=[0, 1, 3, 2]))
        places = self.add("Add", self.add("Cast", scores, to=TensorProto.FLOAT), "mask")
        weights = self.add("Softmax", places, axis=-1)
        states = self.add("Transpose", self.add("MatMul", weights, values), perm=[0, 2, 1, 3])
        flat = self.told(self.add("Reshape", states, self.constant([0, -1, WIDTH])), WIDTH)
        return self.add("Add", x, self.add("MatMul", flat, self.weight(WIDTH, WIDTH)))

    def maps(self, x: str) -> str:
        """A norm and two maps with a residual, with detours."""
        normed = self.add("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH), axis=-1)
        wide = self.add("Gelu", self.add("MatMul", normed, self.weight(WIDTH, 12)))
        detour = self.add("Squeeze", self.add("Unsqueeze", wide, self.constant([1])), self.constant([1]))
        mean = self.add("ReduceMean", detour, self.constant([-1]), keepdims=1)
        repeated = self.told(self.add("Expand", mean, self.add("Shape", "x")), WIDTH)
        both = self.add("Concat", detour, repeated, axis=-1)
        return self.add("Add", self.add("MatMul", both, self.weight(12 + WIDTH, WIDTH)), x)

    def made(self, *outputs: str) -> onnx.ModelProto:
        values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "sketch", self.inputs, values, self.initializers, value_info=self.infos)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def rewritten(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    inner = ir.from_proto(model)
    count = keep_first_rows(inner)
    return ir.to_proto(inner), count


def run(model: onnx.ModelProto, batch: int, tokens: int) -> list[np.ndarray]:
    draw = np.random.default_rng(tokens)
    mask = np.where(draw.random((batch, 1, 1, tokens)) < 0.7, 0, -1e4).astype(np.float32)
    given = {"x": draw.standard_normal((batch, tokens, WIDTH)).astype(np.float32), "mask": mask}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[np.ndarray] = session.run(None, given)
    return found


def rows_of(model: onnx.ModelProto, kind: str, tokens: int) -> list[int]:
    """How many tokens each operator of a kind gives, in order, for one input of so many."""
    seen = onnx.ModelProto.FromString(model.SerializeToString())
    names = [node.output[0] for node in seen.graph.node if node.op_type == kind]
    seen.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    return [int(array.shape[1]) for array in run(seen, 1, tokens)[len(model.graph.output) :]]


@pytest.mark.parametrize("choose", ["Gather", "Slice"])
def test_only_the_first_token_of_the_last_layer_is_computed(choose: str) -> None:
    sketch = Sketch()
    layer = sketch.maps(sketch.attention(sketch.maps(sketch.attention("x"))))
    final = sketch.add("LayerNormalization", layer, sketch.weight(WIDTH), sketch.weight(WIDTH), axis=-1)
    whole = [sketch.add("Constant", **{kind: value}) for kind, value in (("value_ints", [0]), ("value_int", 2**62))]
    end = sketch.add("Reshape", whole[1], sketch.constant([-1]))  # as torch's exporter writes x[:, 0]
    final = sketch.add("Slice", final, whole[0], end, sketch.constant([1]), sketch.constant([1]))
    first = sketch.constant(np.array(0))
    token = (
        sketch.add("Gather", final, first, axis=1)
        if choose == "Gather"
        else sketch.add("Slice", final, *map(sketch.constant, ([0], [1], [1])))
    )
    model = sketch.made(sketch.add("MatMul", token, sketch.weight(WIDTH, 3)))
    found, count = rewritten(model)
    assert count > 20
    assert rows_of(model, "LayerNormalization", 9) == [9, 9, 9]
    assert rows_of(found, "LayerNormalization", 9) == [9, 1, 1]
    assert rows_of(found, "Gelu", 9) == [9, 1]
    for batch, tokens in ((1, 1), (1, 9), (3, 5)):
        for one, other in zip(run(model, batch, tokens), run(found, batch, tokens), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)


def test_what_something_else_reads_whole_stays_whole() -> None:
    sketch = Sketch()
    layer = sketch.maps(sketch.attention("x"))
    token = sketch.add("Gather", layer, sketch.constant(np.array(0)), axis=1)
    model = sketch.made(token, sketch.add("ReduceMax", layer, sketch.constant([1]), keepdims=0))
    assert rewritten(model)[1] == 0
