"""Rows that nobody reads are not computed: of a graph that reads the first token alone, the last layer's other tokens.

The classifier of BERT and of most image models reads one token. What that token needs is followed backwards from where
it is chosen: through norms, maps and activations, which work on each token by itself, to the scores of its own query,
and up to the keys and values, which are of all tokens. Every operator on the way gets the first rows of its inputs in
place of all of them; that changes no number. An operator without a rule (``row_rules``) ends the way, and so does a
value that something else reads whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common

from .row_rules import Rows, Wish, chosen, needs

Way = Mapping[ir.Node, tuple[Rows, list[Wish]]]
"""Operators that are to compute less: the rows of their outputs, and what these need of each input."""


def keep_first_rows(model: ir.Model) -> int:
    """Have a graph compute of every value only the first rows where nobody reads others.

    Returns:
        Number of operators that compute less.
    """
    common.ShapeInferencePass()(model)
    nodes = list(model.graph)
    inner = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS
    if any(attribute.type in inner for node in nodes for attribute in node.attributes.values()):
        return 0  # a graph within may read any value
    wishes, way = _followed(model.graph, nodes)
    if way:
        _rewrite(model.graph, nodes, wishes, way)
        common.RemoveUnusedNodesPass()(model)
    return len(way)


def _followed(graph: ir.Graph, nodes: Sequence[ir.Node]) -> tuple[dict[ir.Value, Wish], Way]:
    """What is read of each value, and which operators are to compute less."""
    wishes: dict[ir.Value, Wish] = dict.fromkeys(graph.outputs)
    way: dict[ir.Node, tuple[Rows, list[Wish]]] = {}
    for node in reversed(nodes):
        asked = [wishes[output] for output in node.outputs if output in wishes]
        if not asked:
            continue
        rows = asked[0] if len(set(asked)) == 1 else None
        found = None if rows is None else needs(node, rows)
        if rows is not None and found is not None:
            way[node] = rows, found
        else:
            found = [chosen(node), *[None] * len(node.inputs)]
        for value, wish in zip(node.inputs, found, strict=False):
            if value is not None:
                wishes[value] = _both(wishes[value], wish) if value in wishes else wish
    return wishes, way


def _both(one: Wish, other: Wish) -> Wish:
    """What is read of a value that two operators read."""
    if one is None or other is None or one.axis != other.axis:
        return None
    return max(one, other, key=lambda rows: rows.count)


def _rewrite(graph: ir.Graph, nodes: Sequence[ir.Node], wishes: Mapping[ir.Value, Wish], way: Way) -> None:
    """Put operators that compute less in front of those that they replace, and have the choosing ones read them."""
    fewer: dict[ir.Value, ir.Value] = {}
    for node in nodes:
        if node in way:
            rows, wanted = way[node]
            inputs = [
                value if wish is None or value is None else _part(graph, node, value, wish, fewer, wishes)
                for value, wish in zip(node.inputs, wanted, strict=True)
            ]
            if node.op_type in ("Reshape", "Expand"):
                inputs[1] = _resized(graph, node, rows)
            made = ir.Node("", node.op_type, inputs, list(node.attributes.values()), num_outputs=len(node.outputs))
            graph.insert_before(node, made)
            fewer.update(zip(node.outputs, made.outputs, strict=True))
        elif node.inputs and node.inputs[0] in fewer and chosen(node) is not None:
            node.replace_input_with(0, fewer[node.inputs[0]])


def _part(
    graph: ir.Graph,
    before: ir.Node,
    value: ir.Value,
    rows: Rows,
    fewer: Mapping[ir.Value, ir.Value],
    wishes: Mapping[ir.Value, Wish],
) -> ir.Value:
    """The first rows of a value."""
    if value in fewer and wishes[value] == rows:
        return fewer[value]
    ends = [_constant(graph, before, [number]) for number in (0, rows.count, rows.axis)]
    return _add(graph, before, "Slice", [fewer.get(value, value), *ends])


def _resized(graph: ir.Graph, node: ir.Node, rows: Rows) -> ir.Value:
    """The shape that an operator is told, with another number at the rows' axis."""
    shape, made = node.inputs[1], node.outputs[0].shape
    assert shape is not None
    assert made is not None
    others, here = np.ones(len(made), np.int64), np.zeros(len(made), np.int64)
    others[rows.axis], here[rows.axis] = 0, rows.count
    left = _add(graph, node, "Mul", [shape, _constant(graph, node, others)])
    return _add(graph, node, "Add", [left, _constant(graph, node, here)])


def _constant(graph: ir.Graph, before: ir.Node, numbers: Sequence[int] | np.ndarray) -> ir.Value:
    made = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.array(numbers, np.int64)))])
    graph.insert_before(before, made)
    return made.outputs[0]


def _add(graph: ir.Graph, before: ir.Node, kind: str, inputs: Sequence[ir.Value]) -> ir.Value:
    made = ir.Node("", kind, inputs)
    graph.insert_before(before, made)
    return made.outputs[0]
