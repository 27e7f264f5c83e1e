"""The verb ``export``, importable without ONNX for its help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..bundle.store import PROCESSOR, TOKENIZER_GRAPH, Bundle, resolve
from ..data.data_options import DataOptions
from ..errors import require
from ..metrics.gates import Precision
from ..progress import Progress, no_progress
from .graph_form import Export, GraphForm


def export_onnx(
    bundle: Bundle | str | Path,
    precision: Precision = "fp32",
    form: GraphForm = GraphForm(),
    *,
    data: Any = None,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    tokenizer: bool = False,
    progress: Progress = no_progress,
) -> Path:
    """Write the bundle's ONNX graph into the bundle, with the arguments of ``hydrant.export.export``.

    Returns:
        Path of the ONNX file.
    """
    return export(
        bundle, precision, form, data=data, reading=reading, seed=seed, tokenizer=tokenizer, progress=progress
    ).path


def export(
    bundle: Bundle | str | Path,
    precision: Precision = "fp32",
    form: GraphForm = GraphForm(),
    *,
    data: Any = None,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    tokenizer: bool = False,
    progress: Progress = no_progress,
) -> Export:
    """Write the bundle's ONNX graph into the bundle and return a report.

    Inputs, outputs and metadata are described in docs/reference/graph.md. The graph has passed
    ``onnx.checker`` with full shape inference, uses standard operators only, and is byte-identical
    when exported again.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        precision: precision of weights and activations.
        form: lowering, operators and outputs: ``GraphForm(member_outputs=True)``.
        data: calibration inputs for int8 (required) and fp16 (default: synthetic inputs). They calibrate and check
            int8; for fp16 activations are measured on them, and traced fp16 or bf16 graphs are checked on them. Files
            are .csv, .tsv, .jsonl, .parquet or .npz; also an image folder, hf:NAME:CONFIG:SPLIT or a URL. In Python
            also what ``data.examples.read_examples`` takes.
        reading: columns and number (256) of these inputs.
        seed: random seed for sampling, synthetic inputs and tokenizer test texts.
        tokenizer: also write tokenizer.onnx, so that the C++ runner can read texts. Fails if its ids, or for token
            classification its words, differ from the tokenizer's on any text of a fuzzed corpus.
        progress: display.

    Raises:
        InputError: unknown option, unusable data, or activations beyond FP16's range.
        GateError: INT8, or a traced graph of lower precision, fails a gate against FP32; nothing is written.
        UnsupportedModelError: a traced model's graph cannot be written, or ONNX Runtime cannot run it.
        MissingExtraError: onnx is missing; for FP16 and INT8 also onnxruntime.
        BundleError: a file of the bundle is missing, altered or inconsistent.
    """
    require("onnx", "fuse", "export a graph")
    from .exporter import exported

    if not tokenizer:
        return exported(bundle, precision, form, data, reading, seed, progress)
    from .tokenizer_onnx import made_tokenizer

    opened = resolve(bundle)
    unchanged = [name for name in opened.manifest["files"] if name.startswith(f"{PROCESSOR}/")]
    content, tokenizer_export = made_tokenizer(opened, seed)  # fails before anything is written
    report = exported(opened, precision, form, data, reading, seed, progress)
    opened.add({TOKENIZER_GRAPH: content}, unchanged=unchanged)
    return replace(report, tokenizer=tokenizer_export)
