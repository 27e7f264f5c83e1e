"""The commands of the field's own tools that measure what ``profile`` measures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ..bundle import Bundle, onnx_name
from ..engine_file import LIBRARIES, engine_names, engine_path, read_twin
from ..families import Architecture
from .profile_report import Case
from .profile_settings import Settings
from .subjects import FUSED

Shapes = Mapping[str, Sequence[int]]


def equivalent_commands(
    bundle: Bundle, architecture: Architecture, cases: Sequence[Case], settings: Settings
) -> list[str]:
    """A ``trtexec`` or ``polygraphy`` command for every case of the bundle, to be run in its folder.

    Args:
        bundle: that was profiled.
        architecture: of the bundle.
        cases: measured; baselines, which were temporary files, and what these tools do not run are passed over.
        settings: of the measurement.
    """
    commands = []
    for case in cases:
        if case.model != FUSED or not (case.backend in LIBRARIES or case.backend.startswith("onnxruntime")):
            continue
        inputs = _shapes(architecture, case.batch, case.sequence)
        if case.backend in LIBRARIES:
            file = _engine(bundle, case)
            commands.append(trtexec(file, inputs, settings, rtx=case.backend == "tensorrt-rtx"))
        else:
            commands.append(polygraphy(onnx_name(case.precision), case.backend, inputs, settings))
    return commands


def trtexec(engine: str, shapes: Shapes, settings: Settings, rtx: bool = False) -> str:
    """Times of an engine: 200 ms of warm-up, then at least the seconds and iterations of the settings."""
    joined = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    rules = settings.rules
    words = [
        "tensorrt_rtx" if rtx else "trtexec", f"--loadEngine={engine}", f"--shapes={joined}",
        f"--warmUp={rules.warm_up * 1e3:.0f}", f"--duration={rules.seconds:g}", f"--iterations={rules.iterations}",
        "--useCudaGraph", "--percentile=50,90,95,99",
    ]  # fmt: skip
    return shlex.join(words)


def polygraphy(graph: str, backend: str, shapes: Shapes, settings: Settings) -> str:
    """Runs of a graph in ONNX Runtime."""
    providers = {"onnxruntime-cuda": "cuda", "onnxruntime-tensorrt": "tensorrt"}.get(backend, "cpu")
    sizes = [f"{name}:[{','.join(map(str, shape))}]" for name, shape in shapes.items()]
    words = ["polygraphy", "run", graph, "--onnxrt", "--providers", providers, "--input-shapes", *sizes]
    repeated = ["--sequential-runners", "--warm-up", "5", "--iterations", str(settings.rules.iterations)]
    return shlex.join([*words, *repeated])


def _shapes(architecture: Architecture, batch: int, sequence: int) -> dict[str, tuple[int, ...]]:
    image = (batch, architecture.channels, architecture.image_height, architecture.image_width)
    return dict.fromkeys(architecture.input_names, image if architecture.modality == "image" else (batch, sequence))


def _engine(bundle: Bundle, case: Case) -> str:
    """File of the bundle's engine of that library and precision."""
    for name in engine_names(bundle):
        facts = read_twin(bundle, name)
        if (facts.library, facts.precision) == (case.backend, case.precision):
            return engine_path(name)
    raise AssertionError(f"no engine of {case.backend} in {case.precision} although one was profiled")
