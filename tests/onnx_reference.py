"""Executors of graphs: ONNX's reference implementation, which supports BF16, and ONNX Runtime on the CPU."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx.reference import ReferenceEvaluator


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the graph by name; floating-point inputs of an operator must have one type, as in TensorRT."""
    onnx.checker.check_model(model, full_check=True)
    return _run(model, [output.name for output in model.graph.output], inputs)


def run_ort(path: Path, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of the graph by name, on ONNX Runtime's CPU provider."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


def all_values(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values of the graph by name."""
    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output]
    del whole.graph.output[:]
    whole.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return {**stored, **inputs, **_run(whole, names, inputs)}


def _run(model: onnx.ModelProto, names: list[str], inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return dict(zip(names, ReferenceEvaluator(model).run(None, inputs), strict=True))
