"""Exporting a bundle: its fused weights become ``model.<precision>.onnx`` inside it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnx

from ..bundle.architecture import Architecture
from ..bundle.calibration import Calibration
from ..bundle.density import Density
from ..bundle.journal import PURPOSE
from ..bundle.owned import owned_folder
from ..bundle.precision import PRECISIONS, Precision
from ..bundle.store import CALIBRATION, DENSITY, PLAN, WEIGHTS, Bundle, onnx_name, resolve
from ..bundle.traced import LACKS, Traced
from ..data.check_inputs import model_inputs
from ..data.data_options import Reading
from ..errors import InputError, cut
from ..progress import Progress
from .attention import choose_attention
from .blocks import Blocks
from .distance_head import with_distance
from .islands import Islands, choose_islands
from .lowering import Form, lower
from .onnx_file import bundle_blocks, metadata, write_model
from .options import GraphForm
from .quantize_search import BATCH, Quantised, search
from .report import Export
from .rewrites import FOR_PROCESSORS, rewrite, unfit

log = logging.getLogger(__name__)


USES_DATA = ("fp16", "int8")


EXAMPLES = 256
"""Inputs drawn where no number is given."""


def exported(
    bundle: Bundle | str | Path,
    precision: Precision,
    form: GraphForm,
    data: Any,
    reading: Reading,
    seed: int,
    progress: Progress,
) -> Export:
    """Write the graph into the bundle, and tell how; the arguments are those of :func:`run.export`."""
    if precision not in PRECISIONS:
        raise InputError(f"precision {cut(precision)} is unknown; expected {', '.join(PRECISIONS)}")
    bundle = resolve(bundle)
    if isinstance(traced := bundle.any_architecture(), Traced):
        return _exported_traced(bundle, traced, precision, form)
    chosen, why = choose_lowering(form.lowering, precision)
    if data is not None and precision not in USES_DATA:
        raise InputError(
            f"data was given, but {precision.upper()} needs none: activations are measured for FP16, and INT8 is "
            "calibrated; leave it (--data) out"
        )
    if precision == "int8" and data is None:
        raise InputError("INT8 is calibrated and checked on real inputs; give them with data=… (--data)")
    architecture = bundle.architecture()
    masked = architecture.modality == "text"
    operator, because = choose_attention(form.attention, precision, architecture.head_width, masked)
    for_cpus = chosen == "unrolled" and precision in ("fp32", "int8")
    left_out = {*form.without, *(() if for_cpus else FOR_PROCESSORS)}
    blocks, changes = rewrite(bundle_blocks(bundle, architecture), left_out)
    examples = reading.limit(EXAMPLES)
    facts = {"hydrant.precision": precision, "hydrant.lowering": chosen, "hydrant.attention": operator}
    facts |= metadata(bundle, architecture)
    inputs = {"data": data, "examples": examples, "seed": seed, "columns": reading}
    islands = _islands(bundle, blocks, precision, inputs, progress)
    trunk = "fp32" if precision == "int8" else precision
    lowered = Form(chosen, operator, trunk, islands.values if islands else frozenset(), form.member_outputs)
    model = lower(blocks, Calibration.of(bundle).temperatures, facts, lowered)
    quantised = None
    if precision == "int8":
        quantised = _quantised(bundle, architecture, model, inputs, progress)
        model = quantised.model
    with_distance(model, architecture, Density.of(bundle))
    name = onnx_name(precision)
    _write(bundle, model, name)
    reasons = {"lowering": why, "attention": because, **unfit(architecture)}
    return Export(bundle.path / name, precision, chosen, operator, reasons, changes, islands, quantised)


def _exported_traced(bundle: Bundle, architecture: Traced, precision: Precision, form: GraphForm) -> Export:
    """Write the graph of a traced bundle, which has one form."""
    if precision != "fp32" or form.lowering != "auto" or form.attention != "auto" or form.without:
        raise InputError(
            f"bundle {bundle.path} is traced ({architecture.model_class}), and its graph has one form: precision fp32, "
            f"as torch's exporter writes it; leave precision, lowering, attention and without out (a traced bundle "
            f"does without {LACKS})"
        )
    from ..tracing.stored import load_original
    from .traced import traced_graph

    facts = {"hydrant.precision": precision, "hydrant.lowering": TRACED, "hydrant.attention": architecture.form}
    facts |= metadata(bundle, architecture)
    original = load_original(bundle, architecture)
    temperatures = Calibration.of(bundle).temperatures
    model = traced_graph(original, architecture, bundle.plan(), temperatures, facts, form.member_outputs)
    with_distance(model, architecture, Density.of(bundle))
    name = onnx_name(precision)
    _write(bundle, model, name)
    reasons = {"lowering": "traced: written by torch's exporter", "attention": f"members are {architecture.form}"}
    return Export(bundle.path / name, precision, TRACED, architecture.form, reasons, [], None, None)


TRACED = "traced"
"""The lowering of a traced graph, in reports and metadata."""


def choose_lowering(asked: str, precision: str) -> tuple[str, str]:
    """The lowering for a precision, and why."""
    if precision == "int8" and asked == "grouped":
        raise InputError("INT8 quantises 2-D products, which the grouped lowering does not have; use unrolled")
    if asked != "auto":
        return asked, "asked for"
    if precision in ("fp32", "int8"):
        return "unrolled", f"unrolled: {precision.upper()} runs on CPUs, which are faster on one 2-D product per member"
    return "grouped", f"grouped: {precision.upper()} runs on GPUs, where batched products compile to the fewest kernels"


def _write(bundle: Bundle, model: onnx.ModelProto, name: str) -> None:
    """Put the graph into the bundle, in place of an earlier one and its external data."""
    try:
        with owned_folder(bundle.path, PURPOSE) as folder:
            files = write_model(model, folder / name)
            bundle.add(files, remove={f"{name}.data"} - set(files), unchanged=[CALIBRATION, DENSITY, WEIGHTS, PLAN])
    except OSError as error:
        raise InputError(f"cannot write into bundle {bundle.path}: {error.strerror or error}") from error


def _islands(
    bundle: Bundle, blocks: Blocks, precision: str, inputs: dict[str, Any], progress: Progress
) -> Islands | None:
    """What stays float32 in a half-precision graph."""
    if precision not in ("fp16", "bf16"):
        return None
    if precision == "bf16":
        return choose_islands(blocks, precision)
    batches, source = model_inputs(bundle.processor(), blocks.architecture, **inputs)
    islands = choose_islands(blocks, precision, batches, source, progress)
    for value, reason in islands.reasons.items():
        log.info("%s is computed in float32: %s", value, reason)
    return islands


def _quantised(
    bundle: Bundle, architecture: Architecture, model: onnx.ModelProto, inputs: dict[str, Any], progress: Progress
) -> Quantised:
    """The INT8 form of a float32 graph; as many inputs check it as calibrate it."""
    examples = inputs["examples"]
    wanted = {**inputs, "examples": None if examples is None else 2 * examples}
    batches, source = model_inputs(bundle.processor(), architecture, **wanted, sizes=(BATCH,))
    layers = architecture.layers - (1 if architecture.first_token_only else 0)
    return search(model, layers, batches, source, progress)
