"""Export of a bundle: fused weights → ``model.<precision>.onnx``; later calibrations rewrite the graph."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from ..bundle.calibration import Calibration
from ..bundle.density_file import Density
from ..bundle.staging import stage_in
from ..bundle.store import CALIBRATION, DENSITY, PLAN, WEIGHTS, Bundle, onnx_name, resolve
from ..bundle.traced import LACKS, AnyArchitecture, Traced
from ..data.check_inputs import model_inputs
from ..data.data_options import DataOptions
from ..errors import BundleError, InputError, UnsupportedModelError, check_choice, cut, require
from ..metrics.gates import PRECISIONS, Precision
from ..progress import Progress
from .distance_head import with_distance
from .graph_form import Export, GraphForm
from .islands import choose_islands
from .lowering import Form, choose_attention, lower
from .onnx_file import DENSITY_KEY, bundle_blocks, calibration_metadata, metadata, write_model
from .quantize import BATCH, products, search
from .rewrites import left_out, rewrite, unfit
from .task_heads import TEMPERATURE

log = logging.getLogger(__name__)
GRAPHS = tuple(onnx_name(precision) for precision in PRECISIONS)  # files that may hold a calibration
TRACED = "traced"  # the lowering of a traced graph, in reports and metadata


def exported(bundle: Bundle | str | Path, precision: Precision, form: GraphForm, data: Any, reading: DataOptions,
             seed: int, progress: Progress) -> Export:  # fmt: skip
    """Write the graph into the bundle; the arguments are those of :func:`graph_export.export`."""
    check_choice("precision", precision, PRECISIONS)
    bundle = resolve(bundle)
    inputs: dict[str, Any] = {"data": data, "examples": reading.limit(256), "seed": seed, "columns": reading}
    if precision == "int8":
        if data is None:
            raise InputError("INT8 needs real inputs for calibration and checks; pass data=… (--data)")
        # one half calibrates, the other half checks
        inputs |= {"examples": inputs["examples"] and 2 * inputs["examples"], "sizes": (BATCH,)}
    described = bundle.any_architecture()
    if data is not None and (precision == "fp32" or (precision == "bf16" and described.is_declared)):
        raise InputError(f"{precision.upper()} needs no data (only FP16 and INT8 do); omit --data")
    if not described.is_declared:
        return _exported_traced(bundle, described, precision, form, inputs, progress)
    lowering, why = choose_lowering(form.lowering, precision)
    architecture = bundle.architecture()
    operator, because = choose_attention(form.attention, precision, architecture)
    blocks, changes = rewrite(bundle_blocks(bundle, architecture), left_out(form.without, lowering, precision))
    facts = {"hydrant.precision": precision, "hydrant.lowering": lowering, "hydrant.attention": operator}
    facts |= metadata(bundle, architecture)
    islands = quantised = None
    if precision == "fp16":
        islands = choose_islands(blocks, precision, *model_inputs(bundle.processor(), architecture, **inputs), progress)
        for value, reason in islands.reasons.items():
            log.info("%s is computed in float32: %s", value, reason)
    elif precision == "bf16":
        islands = choose_islands(blocks, precision)
    trunk = "fp32" if precision == "int8" else precision
    lowered = Form(lowering, operator, trunk, islands.values if islands else frozenset(), form.member_outputs)
    model = lower(blocks, Calibration.of(bundle).temperatures, facts, lowered)
    with_distance(model, architecture, Density.of(bundle))
    if precision == "int8":
        nodes = products(model, architecture.layers - (1 if architecture.first_token_only else 0))
        quantised = search(model, nodes, *model_inputs(bundle.processor(), architecture, **inputs), progress)
        model = quantised.model
    path = _write(bundle, model, precision)
    reasons = {"lowering": why, "attention": because, **unfit(architecture)}
    return Export(path, precision, lowering, operator, reasons, changes, islands, quantised)


def _exported_traced(bundle: Bundle, architecture: Traced, precision: Precision, form: GraphForm,
                     inputs: dict[str, Any], progress: Progress) -> Export:  # fmt: skip
    """Write the graph of a traced bundle, which has one form."""
    if form.lowering != "auto" or form.attention != "auto" or form.without:
        problem = f"bundle {bundle.path} is traced ({architecture.model_class}); its graph has one form"
        raise InputError(f"{problem}; omit lowering, attention and without (unsupported: {LACKS})")
    require("onnxscript", "fuse", "export a traced model")
    from ..models.tracing.members import load_original
    from .traced_graph import LOGITS, OPSET, finished, traced_network
    from .traced_islands import half_graph
    from .traced_products import linear_products, separate_additions

    facts = {"hydrant.precision": precision, "hydrant.lowering": TRACED, "hydrant.attention": architecture.form}
    facts |= metadata(bundle, architecture)
    opset, temperatures = 22 if precision == "bf16" else OPSET, Calibration.of(bundle).temperatures
    network = traced_network(load_original(bundle, architecture), architecture, bundle.plan(), facts, opset)
    gc.collect()  # the original, which refers to itself
    density = Density.of(bundle)
    keep = precision != "fp32"  # the network beside the finished graph

    def finish(network: onnx.ModelProto) -> onnx.ModelProto:
        model = finished(network, architecture, bundle.members, temperatures, facts, form.member_outputs, keep)
        with_distance(model, architecture, density)
        return model

    islands = quantised = None
    try:
        if precision == "int8":
            prepared = model_inputs(bundle.processor(), architecture, **inputs)
            separate_additions(network)
            quantised = search(finish(network), linear_products(network, LOGITS), *prepared, progress)
            model = quantised.model
        elif precision == "fp32":
            model = finish(network)
        else:
            prepared = model_inputs(bundle.processor(), architecture, **inputs)
            model, islands = half_graph(network, precision, LOGITS, finish, *prepared, progress)
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        problem = f"ONNX Runtime cannot run the {precision.upper()} graph of {architecture.model_class}"
        raise UnsupportedModelError(f"{problem} ({cut(error, 200)}); nothing was written: export FP32") from error
    path = _write(bundle, model, precision)
    reasons = {"lowering": "traced: written by torch's exporter", "attention": f"members are {architecture.form}"}
    return Export(path, precision, TRACED, architecture.form, reasons, [], islands, quantised)


def choose_lowering(lowering: str, precision: str) -> tuple[str, str]:
    """Lowering for a precision, and the reason."""
    if precision == "int8" and lowering == "grouped":
        raise InputError("INT8 quantises 2-D products, which the grouped lowering does not have; use unrolled")
    if lowering != "auto":
        return lowering, "asked for"
    if precision in ("fp32", "int8"):
        return "unrolled", f"unrolled: {precision.upper()} runs on CPUs, which are faster on one 2-D product per member"
    return "grouped", f"grouped: {precision.upper()} runs on GPUs, where batched products compile to the fewest kernels"


def _write(bundle: Bundle, model: onnx.ModelProto, precision: Precision) -> Path:
    """Write a graph into the bundle, replacing an earlier one and its external data."""
    name = onnx_name(precision)
    with stage_in(bundle.path) as folder:
        files = write_model(model, folder / name)
        bundle.add(files, remove={f"{name}.data"} - set(files), unchanged=[CALIBRATION, DENSITY, WEIGHTS, PLAN])
    return bundle.path / name


def check_graphs(bundle: Bundle) -> list[str]:
    """Check the bundle's graphs and return their names; call it before long work."""
    names = [name for name in GRAPHS if bundle.has(name)]
    for name in names:
        _read(bundle.file(name))
    return names


def write_recalibrated(source: Path, target: Path, calibration: Calibration, architecture: AnyArchitecture,
                       density: Density | None, density_sha256: str | None) -> None:  # fmt: skip
    """Write the graph ``source`` with a new calibration; large weights stay in the file beside ``source``."""
    model = _read(source)
    for divisor in [tensor for tensor in model.graph.initializer if tensor.name == TEMPERATURE]:  # none for regression
        temperatures = np.asarray(calibration.temperatures, np.float32)  # one for each label in multi-label models
        values = np.broadcast_to(temperatures, list(divisor.dims))
        divisor.CopyFrom(numpy_helper.from_array(values.copy(), TEMPERATURE))
    with_distance(model, architecture, density)
    facts = {entry.key: entry.value for entry in model.metadata_props if entry.key != DENSITY_KEY}
    facts |= calibration_metadata(calibration, density_sha256)
    helper.set_model_props(model, dict(sorted(facts.items())))
    target.write_bytes(model.SerializeToString(deterministic=True))


def _read(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf raises several types
        raise BundleError(f"{path} is not an ONNX file ({error}); export it again with `hydrant export`") from error
    outputs = {output.name for output in model.graph.output}
    ranks = [len(tensor.dims) for tensor in model.graph.initializer if tensor.name == TEMPERATURE]
    if "score" not in outputs and (ranks != [1] or "energy" not in outputs):  # regression has no temperature
        raise BundleError(f"{path} has no temperature or no energy; export it again with `hydrant export`")
    return model
