"""Choosing one of a bundle's ONNX graphs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...bundle.graphs import check_graph
from ...bundle.store import Bundle, onnx_name
from ...errors import BackendError, cut


def graph_file(bundle: Bundle, backend: str, runs: Sequence[str], precision: str | None) -> tuple[Path, str]:
    """Path and precision of the graph to run, after its digest and its metadata were checked."""
    if precision is not None and precision not in runs:
        raise BackendError(f"backend {backend} does not run precision {cut(precision)}; expected {', '.join(runs)}")
    found = next((kind for kind in ([precision] if precision else runs) if bundle.has(onnx_name(kind))), None)
    if found is None:
        wanted = precision or runs[0]
        raise BackendError(
            f"bundle {bundle.path} has no {onnx_name(wanted)}; "
            f"make it with `hydrant export {bundle.path}{'' if wanted == 'fp32' else f' --precision {wanted}'}`"
        )
    path = bundle.file(onnx_name(found))
    check_graph(bundle, onnx_name(found))
    if bundle.has(f"{onnx_name(found)}.data"):
        bundle.file(f"{onnx_name(found)}.data")
    return path, found
