"""The README of a generated model: what to install, how to start Triton, how to ask, measure and roll back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from ...version import __version__
from .config import ENVIRONMENT, Model
from .engine import Engine
from .samples import SHORT, TOKENS
from .source import Source
from .whole import PERF

RELEASE = "24.12"
"""First release of Triton whose Python backend reads NumPy 2; its Python is 3.12."""

RUNS = {"onnxruntime": "its ONNX Runtime backend", "tensorrt": "its TensorRT backend"}


def readme(source: Source, models: Sequence[Model], version: int, engine: Engine | None) -> bytes:
    """The page of a model, which stands beside its ``config.pbtxt``."""
    asked = models[-1]
    parts = [_head(asked, models), _install(models, engine), _start(), _ask(source, asked), _measure(asked)]
    return "\n".join([*parts, _versions(asked, models, version)]).encode()


def _head(asked: Model, models: Sequence[Model]) -> str:
    steps = ", ".join(f"`{model.name}`" for model in models[:-1])
    form = f"an ensemble of {steps}, which stand beside it" if steps else "the whole predictor in its Python backend"
    return f"# {asked.name}\n\nA model of Triton, written by `hydrant triton` ({__version__}): {form}.\n"


def _install(models: Sequence[Model], engine: Engine | None) -> str:
    needs = ["its Python backend", *(RUNS[model.config["backend"]] for model in models if model.part == "graph")]
    extra, what = ("[onnxruntime]", "hydrant and ONNX Runtime") if len(models) == 1 else ("", "hydrant's core")
    lines = [
        "## Install\n",
        f"- Triton {RELEASE} or later with {' and '.join(needs)}. Before, that cannot read the NumPy 2 of hydrant.",
        f"- For the Python of that backend (3.12 in Triton's images) {what}: `pip install '.{extra}'` in a",
        f"  checkout of hydrant {__version__}. Or into a virtual environment of the same Python, which `config.pbtxt`",
        "  names (`hydrant triton --environment FOLDER` writes it; PYTHONPATH is not read):",
        f'  `parameters {{ key: "{ENVIRONMENT}" value {{ string_value: "/opt/hydrant" }} }}`',
    ]
    if engine is not None:
        facts = engine.facts
        later = " or later (`--backend-config=tensorrt,version-compatible=true`)" if facts.version_compatible else ""
        lines += [
            f"- `model.plan` is the engine {engine.name}, {facts.precision}: TensorRT {facts.version}{later},",
            f"  compute capability {', '.join(facts.compute_capabilities)}. For others, build it again with",
            "  `hydrant build` in that environment, and write the model again.",
        ]
    return "\n".join(lines) + "\n"


def _start() -> str:
    return """## Start

Triton listens on all interfaces unless it is told not to; `..` is the folder above this one.

```sh
tritonserver --model-repository=.. --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1
```

A model is ready once it has answered its warm-up requests.
"""


def _ask(source: Source, asked: Model) -> str:
    request = _request(source, asked)
    if request is None:
        how = "\n".join(f"- `{spec.name}`: {_told(spec.datatype, spec.dims)}" for spec in asked.inputs)
    else:
        address = f"http://127.0.0.1:8000/v2/models/{asked.name}/infer"
        how = f"```sh\ncurl -s {address} -d {shlex.quote(json.dumps(request))}\n```"
    outputs = "\n".join(f"- `{spec.name}`: {_told(spec.datatype, spec.dims)}" for spec in asked.outputs)
    return f"""## Ask

{how}

It answers, for each input (name the outputs that you want, and get these alone):

{outputs}

What is wrong with a request is told to that request alone. A request holds at most `max_batch_size` inputs.
"""


def _told(datatype: str, dims: Sequence[int]) -> str:
    kind = {"TYPE_STRING": "BYTES"}.get(datatype, datatype.removeprefix("TYPE_"))
    return f"{kind} [batch, {', '.join(map(str, dims))}]"


def _request(source: Source, asked: Model) -> dict[str, Any] | None:
    """A request as JSON, where it is short enough to be typed; ``None`` for images."""
    if source.architecture.modality == "image":
        return None
    if source.raw:
        given = [spec.name for spec in asked.inputs if not spec.optional or source.pairs]
        tensors = [{"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [SHORT]} for name in given]
    else:
        tensors = [
            {"name": spec.name, "datatype": "INT64", "shape": [1, TOKENS], "data": [int("mask" in spec.name)] * TOKENS}
            for spec in asked.inputs
        ]
    return {"inputs": tensors}


def _measure(asked: Model) -> str:
    data = PERF if PERF in asked.files else "zero"
    return f"""## Measure

With `perf_analyzer`, which is in the image of Triton's SDK, in this folder:

```sh
perf_analyzer -m {asked.name} -i grpc -u 127.0.0.1:8001 --input-data {data} --concurrency-range 1:32
```
"""


def _versions(asked: Model, models: Sequence[Model], version: int) -> str:
    if len(models) > 1:
        back = f"""The steps serve all their versions, the ensemble the one
that its `config.pbtxt` names, {version}. The folder of each version has the `config.pbtxt` of its ensemble: to roll
back, copy that of the older one over `config.pbtxt`, and load `{asked.name}` again."""
    else:
        back = """All versions are served, and requests that name
none go to the largest. To roll back, name the older one, or remove the folder of the newer one and load the model
again."""
    names = ", then ".join(f"`{model.name}`" for model in models)
    return f"""## Versions

`hydrant triton … --version {version + 1}` writes another one beside this. {back}

A Triton that was started with `--model-control-mode=explicit --load-model=*` loads it while it serves, by
`POST /v2/repository/models/NAME/load`, where NAME is {names}.
"""
