"""The README of a generated model: what to install, how to start Triton, how to ask, how to measure and roll back."""

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

PYTHON_BACKEND = "24.12"
"""First release of Triton whose Python backend reads NumPy 2 and has Python 3.12."""


def readme(source: Source, models: Sequence[Model], version: int, engine: Engine | None) -> bytes:
    """The page of a model, which stands beside its ``config.pbtxt``.

    Args:
        source: the bundle.
        models: of the repository; the last is what clients ask.
        version: that was written.
        engine: that runs the graph, if one does.
    """
    asked = models[-1]
    parts = [_head(asked, models), _install(models, engine), _start(models), _ask(source, asked)]
    return "\n".join([*parts, _measure(source, asked), _versions(asked, models, version)]).encode()


def _head(asked: Model, models: Sequence[Model]) -> str:
    steps = [model.name for model in models[:-1]]
    form = (
        "the whole predictor in Triton's Python backend"
        if not steps
        else f"an ensemble of {', '.join(f'`{step}`' for step in steps)}, which stand beside it"
    )
    return f"""# {asked.name}

Written by `hydrant triton` of hydrant {__version__}: {form}.
"""


def _install(models: Sequence[Model], engine: Engine | None) -> str:
    whole = len(models) == 1
    extra = "[onnxruntime]" if whole else ""
    what = "hydrant and ONNX Runtime" if whole else "hydrant's core (tokenizer, images, decisions)"
    graph = {"onnxruntime": "Triton's ONNX Runtime backend", "tensorrt": "Triton's TensorRT backend"}
    runs = [graph[model.config["backend"]] for model in models if model.part == "graph"]
    text = f"""## Install

- Triton {PYTHON_BACKEND} or later with {" and ".join(["its Python backend", *runs])}. Earlier ones cannot read NumPy 2, which hydrant uses.
- For the Python of its Python backend (3.12), {what}: in the image of Triton, from a checkout of hydrant of this version,
  `pip install '.{extra}'`. Or in an environment of its own, named in `config.pbtxt` (`hydrant triton --environment FOLDER`):
  `parameters {{ key: "{ENVIRONMENT}" value {{ string_value: "/opt/hydrant" }} }}`. PYTHONPATH is not read there.
"""
    if engine is not None:
        text += f"""- `model.plan` is the engine {engine.name}: TensorRT {engine.facts.version}, {engine.facts.precision}, compute capability \
{", ".join(engine.facts.compute_capabilities)}. It runs in a Triton with the same
  TensorRT{_compatible(engine)}; else build it again with `hydrant build` in that image, and write the model again.
"""
    return text


def _compatible(engine: Engine) -> str:
    if not engine.facts.version_compatible:
        return ""
    return ", or a later one of the same major release with `--backend-config=tensorrt,version-compatible=true`"


def _start(models: Sequence[Model]) -> str:
    loaded = "" if len(models) == 1 else " An ensemble is ready when its steps are."
    return f"""## Start

Servers of Triton listen on all interfaces unless they are told not to:

```sh
tritonserver --model-repository=.. --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1
```

(`..` is the folder above this one.) The model is ready once its warm-up requests were answered.{loaded}
"""


def _ask(source: Source, asked: Model) -> str:
    names = [spec.name for spec in asked.outputs]
    told = f"Outputs: {', '.join(f'`{name}`' for name in names)}. A request that names some of them gets these alone."
    if "image" in {spec.name for spec in asked.inputs}:
        how = "`image` is the content of an image file (BYTES), one for each row of the batch; clients send it as binary data.\n"
    else:
        how = f"""```sh
curl -s http://127.0.0.1:8000/v2/models/{asked.name}/infer -d {shlex.quote(json.dumps(_request(source, asked)))}
```
"""
    return f"""## Ask

{how}
{told}
What is wrong with a request is told to it alone, in one line; requests that shared its batch are answered. A request holds at most
`max_batch_size` inputs.
"""


def _request(source: Source, asked: Model) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    if source.raw:
        for spec in asked.inputs:
            if not spec.optional or source.pairs:
                rows.append({"name": spec.name, "datatype": "BYTES", "shape": [1, 1], "data": [SHORT]})
        return {"inputs": rows}
    for spec in asked.inputs:
        dims = [TOKENS if size < 0 else size for size in spec.dims]
        count = 1
        for size in dims:
            count *= size
        kind = spec.datatype.removeprefix("TYPE_")
        values: list[float] = [int("mask" in spec.name)] * count if kind == "INT64" else [0.0] * min(count, 4)
        rows.append({"name": spec.name, "datatype": kind, "shape": [1, *dims], "data": values})
    return {"inputs": rows}


def _measure(source: Source, asked: Model) -> str:
    del source
    return f"""## Measure

With `perf_analyzer`, which is in Triton's SDK image (`perf.json` stands beside this file):

```sh
perf_analyzer -m {asked.name} -i grpc -u 127.0.0.1:8001 --input-data perf.json --concurrency-range 1:32
```
"""


def _versions(asked: Model, models: Sequence[Model], version: int) -> str:
    if len(models) == 1:
        back = (
            "All versions are served; requests that name none go to the largest. To roll back, ask for the older one, or remove the\n"
            "folder of the newer one and load the model again."
        )
    else:
        back = (
            f"Steps serve all their versions, the ensemble the one that its `config.pbtxt` names ({version}), since its steps are named there. Each\n"
            f"version's folder has the `config.pbtxt` of its ensemble: to roll back, copy `1/config.pbtxt` over `config.pbtxt` and load\n"
            f"`{asked.name}` again (`POST /v2/repository/models/{asked.name}/load` with `--model-control-mode=explicit`)."
        )
    return f"""## Versions

`hydrant triton … --version {version + 1}` writes the next one beside this. {back}
"""
