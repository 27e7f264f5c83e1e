"""Products of a traced graph that INT8 quantises: those of activations with a stored matrix."""

from __future__ import annotations

import onnx
from onnx import helper

from .half_precision import Rank, named, parsed, ranks_of
from .traced_islands import head_values


def separate_additions(network: onnx.ModelProto) -> None:
    """Replace each Gemm with a stored matrix by a MatMul, and an Add if it has a bias."""
    stored = {tensor.name for tensor in network.graph.initializer}
    nodes = list(network.graph.node)
    del network.graph.node[:]
    for node in nodes:
        settings = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        plain = all(settings.get(name, default) == default for name, default in GEMM.items())
        if node.op_type != "Gemm" or node.input[1] not in stored or not plain:
            network.graph.node.append(node)
            continue
        bias = list(node.input[2:])
        product = f"{node.output[0]}.product" if bias else node.output[0]
        network.graph.node.append(helper.make_node("MatMul", node.input[:2], [product], name=product))
        if bias:
            network.graph.node.append(helper.make_node("Add", [product, *bias], node.output[:], name=node.output[0]))


GEMM = {"alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0}  # settings under which a Gemm is a product and a sum


def linear_products(network: onnx.ModelProto, logits: str) -> list[onnx.NodeProto]:
    """MatMul operators with a stored matrix below the classifiers, named as the finished graph names them."""
    graph = parsed(network).graph
    ranks, head = ranks_of(graph), head_values(graph, logits)
    halves = {named(value) for value, rank in ranks.items() if rank == Rank.HALF} - set(head)
    matrices = {tensor.name for tensor in network.graph.initializer if len(tensor.dims) == 2}
    chosen = []
    for node in network.graph.node:
        if node.op_type == "MatMul" and node.output[0] in halves and node.input[1] in matrices:
            chosen.append(helper.make_node("MatMul", node.input, node.output, name=node.output[0]))
    return chosen
