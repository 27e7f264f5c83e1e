"""TensorRT and TensorRT-RTX: one interface, two libraries, and what each of them cannot do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType

from ..engines.metadata import MODULES
from ..errors import BackendError, InputError, cut, require

OLDEST = (10, 12)
"""TensorRT from which strongly typed networks build what earlier versions needed builder flags for."""


RTX_TARGETS = ("8.0", "8.6", "8.9", "12.0")
"""GPUs that a TensorRT-RTX engine is compiled for unless others are named: Ampere to Blackwell."""

TURING = "7.5"
"""A target of TensorRT-RTX without float32 products, which every graph of hydrant has: pooler and classifier. Version
1.4 still compiled graphs in FP16; what it made was never run on such a GPU, so that it is refused, too."""


def open_library(name: str) -> ModuleType:
    """Import a library."""
    other = "; --backend tensorrt-rtx builds without a GPU" if name == "tensorrt" else ""
    module = require(MODULES[name], name, f"build engines{other}")
    numbers = tuple(int(part) for part in re.findall(r"\d+", module.__version__)[:2])
    if name == "tensorrt" and numbers < OLDEST:
        raise BackendError(
            f"TensorRT {module.__version__} is installed; expected {OLDEST[0]}.{OLDEST[1]} or newer: "
            f"pip install --upgrade 'hydrant-uq[tensorrt]'"
        )
    return module


def compute_capabilities(trt: ModuleType, wanted: Sequence[str]) -> tuple[str, ...]:
    """The GPUs that TensorRT-RTX compiles for: those named, or :data:`RTX_TARGETS`."""
    wanted = [wanted] if isinstance(wanted, str) else wanted
    known = {name[2:-1] + "." + name[-1] for name in trt.ComputeCapability.__members__ if name.startswith("SM")}
    targets = ", ".join(sorted(known - {TURING}, key=lambda target: [int(part) for part in target.split(".")]))
    if TURING in wanted:
        raise InputError(
            f"compute capability {TURING} (Turing) runs no engine of hydrant: TensorRT-RTX (1.7; here is "
            f"{trt.__version__}) compiles no float32 products for it, and those of pooler and classifier are float32 "
            f"in every precision; expected {targets}; on a Turing GPU run the graph with --backend onnxruntime-cuda"
        )
    unknown = [target for target in wanted if target not in known]
    if unknown:
        hopper = " (9.0 is Hopper, a data-centre GPU: use --backend tensorrt on it)" if "9.0" in unknown else ""
        raise InputError(
            f"compute capability {cut(unknown[0])} is no target of TensorRT-RTX {trt.__version__}{hopper}; "
            f"expected {targets}"
        )
    return tuple(dict.fromkeys(wanted)) or tuple(target for target in RTX_TARGETS if target in known)
