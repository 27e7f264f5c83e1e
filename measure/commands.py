"""The commands of the field's own tools that measure what ``profile`` measures."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from ..bundle.store import Bundle, onnx_name
from ..bundle.traced import AnyArchitecture
from ..engines.metadata import LIBRARIES, engine_path
from ..runtime.backends.tensorrt.choose import engine_here
from ..runtime.backends.tensorrt.profiles import Profiles
from .report import Case
from .settings import Settings
from .subjects import FUSED

Shapes = Mapping[str, Sequence[int]]


def equivalent_commands(
    bundle: Bundle, architecture: AnyArchitecture, cases: Sequence[Case], settings: Settings
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
        if case.backend in LIBRARIES:
            commands.append(_of_engine(bundle, architecture, case, settings))
        else:
            inputs = _shapes(architecture, case.batch, case.sequence)
            commands.append(polygraphy(onnx_name(case.precision), case.backend, inputs, settings))
    return commands


def trtexec(engine: str, profile: int, shapes: Shapes, settings: Settings, rtx: bool = False) -> str:
    """Times of an engine: 200 ms of warm-up, then at least the seconds and iterations of the settings.

    Args:
        engine: its file.
        profile: index of the profile that runs.
        shapes: of the inputs; the profile must take them.
        settings: of the measurement.
        rtx: whether it is an engine of TensorRT-RTX.
    """
    joined = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
    rules = settings.rules
    words = [
        "tensorrt_rtx" if rtx else "trtexec", f"--loadEngine={engine}", f"--useProfile={profile}",
        f"--shapes={joined}", f"--warmUp={rules.warm_up * 1e3:.0f}", f"--duration={rules.seconds:g}",
        f"--iterations={rules.iterations}",
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


def _shapes(architecture: AnyArchitecture, batch: int, sequence: int) -> dict[str, tuple[int, ...]]:
    image = (batch, architecture.channels, architecture.image_height, architecture.image_width)
    other = (batch, *(architecture.spectrogram or (sequence,)))
    return dict.fromkeys(architecture.input_names, image if architecture.modality == "image" else other)


def _of_engine(bundle: Bundle, architecture: AnyArchitecture, case: Case, settings: Settings) -> str:
    """The command for the engine that ran, in the profile and the shapes of its first run: batches are padded or split.

    Raises:
        BackendError, BundleError: the bundle's engines changed meanwhile.
    """
    chosen = engine_here(bundle, case.backend, case.precision)
    tokens = case.sequence if architecture.modality == "text" else None
    part = Profiles(chosen.facts.profiles, chosen.rebuild).parts(case.batch, tokens)[0]
    inputs = _shapes(architecture, part.rows, part.tokens or case.sequence)
    return trtexec(engine_path(chosen.name), part.profile, inputs, settings, rtx=case.backend == "tensorrt-rtx")
