"""Support for tests of Triton repositories: configuration messages, the Python backend, and a server."""

import contextlib
import ctypes.util
import json
import os
import re
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydrant
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

WHEELS = ("numpy==1.26.4", "nvidia-pytriton==0.7.0")
"""The newest server on a package index; its Python backend reads NumPy 1 only."""

KINDS = (
    *("INVALID", "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING", "BF16"),
)
MESSAGES = {
    "All": "",
    "Specific": "versions:1:int64*",
    "VersionPolicy": "all:2:All specific:3:Specific",
    "Shape": "shape:1:int64*",
    "Input": "name:1:string data_type:2:DataType dims:4:int64* reshape:5:Shape optional:8:bool",
    "Output": "name:1:string data_type:2:DataType dims:3:int64* reshape:5:Shape label_filename:4:string",
    "Batching": "max_queue_delay_microseconds:2:uint64",
    "Pair": "key:1:string value:2:string",
    "Step": "model_name:1:string model_version:2:int64 input_map:3:Pair* output_map:4:Pair*",
    "Ensembling": "step:1:Step*",
    "Group": "kind:4:Kind count:2:int32 profile:5:string*",
    "Parameter": "string_value:1:string",
    "Parameters": "key:1:string value:2:Parameter",
    "Sample": "data_type:1:DataType dims:2:int64* zero_data:3:bool input_data_file:5:string",
    "Samples": "key:1:string value:2:Sample",
    "Warmup": "name:1:string batch_size:2:uint32 inputs:3:Samples*",
    "Accelerator": "name:1:string parameters:2:Pair*",
    "Accelerators": "gpu_execution_accelerator:1:Accelerator*",
    "Optimization": "execution_accelerators:4:Accelerators",
    "ModelConfig": "name:1:string platform:2:string backend:17:string version_policy:3:VersionPolicy "
    "max_batch_size:4:int32 input:5:Input* output:6:Output* dynamic_batching:11:Batching "
    "ensemble_scheduling:15:Ensembling instance_group:7:Group* default_model_filename:8:string "
    "optimization:12:Optimization parameters:14:Parameters* model_warmup:16:Warmup*",
}
"""The used part of Triton's model_config.proto: field, number and type, with a star if repeated."""


def _model_config() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="hydrant_model_config.proto", package="t", syntax="proto3")
    for name, words in {"DataType": [f"TYPE_{kind}" for kind in KINDS],
                        "Kind": ["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]}.items():  # fmt: skip
        enum = file.enum_type.add(name=name)
        for number, word in enumerate(words):
            enum.value.add(name=word, number=number)
    plain = {"string": 9, "int64": 3, "int32": 5, "uint64": 4, "uint32": 13, "bool": 8}
    for name, text in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in text.split():
            key, number, kind = field.split(":")
            many, kind = (3 if kind.endswith("*") else 1), kind.rstrip("*")
            added = message.field.add(name=key, number=int(number), label=many)
            added.type = plain.get(kind) or (14 if kind in ("DataType", "Kind") else 11)
            if kind not in plain:
                added.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.ModelConfig"))


ModelConfig = _model_config()


def read_config(folder: Path) -> Any:
    """A model's ``config.pbtxt``; raises for fields that Triton's description lacks."""
    return text_format.Parse((folder / "config.pbtxt").read_text(), ModelConfig())


def tensors(entries: Any) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Datatype and dims of inputs or outputs by name."""
    return {entry.name: (KINDS[entry.data_type], tuple(entry.dims)) for entry in entries}


class Tensor:
    """``triton_python_backend_utils.Tensor``."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class TritonError(Exception):
    """``triton_python_backend_utils.TritonError``."""

    INTERNAL, INVALID_ARG, CANCELLED = 1, 3, 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        super().__init__(message)
        self.code = code


class Request:
    """A request as the Python backend passes it."""

    def __init__(self, arrays: dict[str, Any], outputs: Sequence[str] = (), cancelled: bool = False) -> None:
        self.arrays = {name: np.asarray(array) for name, array in arrays.items()}
        self._outputs, self._cancelled = list(outputs), cancelled

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def is_cancelled(self) -> bool:
        return self._cancelled


class Response:
    """A model's response."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self.arrays = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}
        self.error = error


UTILS = SimpleNamespace(
    Tensor=Tensor,
    TritonError=TritonError,
    InferenceResponse=Response,
    get_input_tensor_by_name=lambda request, name: (
        Tensor(name, request.arrays[name]) if name in request.arrays else None
    ),
)
"""Replaces ``triton_python_backend_utils``, which only Triton's stub process has."""


def started(folder: Path, version: int = 1) -> Any:
    """The ``model.py`` of a version, initialized as Triton does; needs ``triton_python_backend_utils``."""
    config = read_config(folder)
    names: dict[str, Any] = {}
    code = (folder / str(version) / "model.py").read_text()
    exec(compile(code, "model.py", "exec"), names)
    model = names["TritonPythonModel"]()
    facts = {
        "input": [{"name": entry.name} for entry in config.input],
        "output": [{"name": entry.name} for entry in config.output],
        "parameters": {entry.key: {"string_value": entry.value.string_value} for entry in config.parameters},
    }
    model.initialize(
        {"model_config": json.dumps(facts), "model_repository": str(folder), "model_version": str(version)}
    )
    return model


def strings(*items: str | bytes) -> np.ndarray:
    """A tensor of strings, [B, 1]."""
    return np.array([[item.encode() if isinstance(item, str) else item] for item in items], object)


def make_environment(folder: Path) -> Path:
    """An environment with a real ``tritonserver`` and NumPy 1; other packages are those of the tests."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, capture_output=True)
    packages = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--retries", "0"]
    pip.append("--only-binary=:all:")  # NumPy 1 has no wheels for Python 3.13 and takes minutes to compile
    done = subprocess.run([*pip, "--target", packages, *WHEELS], check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the package index has no Triton: {done.stderr.strip().splitlines()[-1]}")
    places = [Path(hydrant.__file__).parents[1], *site.getsitepackages()]
    (packages / "rest.pth").write_text("".join(f"{place}\n" for place in places))
    server = packages / "pytriton/tritonserver"
    stub = server / f"python_backend_stubs/{sys.version_info[0]}.{sys.version_info[1]}/triton_python_backend_stub"
    if not stub.is_file():
        pytest.skip(f"this Triton has no stub for Python {sys.version.split()[0]}")
    library = f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"
    library_path = Path(str(sysconfig.get_config_var("LIBDIR"))) / library
    if not library_path.is_file() and ctypes.util.find_library(library[3:].removesuffix(".so.1.0")) is None:
        pytest.skip(f"Triton's Python backend needs {library}, which this Python does not have")
    (server / "backends/python" / stub.name).write_bytes(stub.read_bytes())
    for program in (server / "bin/tritonserver", server / "backends/python" / stub.name):
        program.chmod(0o755)
    return packages


@contextlib.contextmanager
def running(packages: Path, repository: Path, log: Path) -> Iterator[int]:
    """Run a ``tritonserver`` with these models on 127.0.0.1 during the block; yields its HTTP port."""
    server, http = packages / "pytriton/tritonserver", free_port()
    words: list[Any] = [server / "bin/tritonserver", f"--model-repository={repository}", "--allow-metrics=false"]
    words += [f"--backend-directory={server / 'backends'}", f"--http-port={http}", "--allow-grpc=false"]
    words += ["--http-address=127.0.0.1", "--exit-timeout-secs=5"]
    words += ["--model-control-mode=explicit", "--load-model=*"]
    libraries = f"{packages / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as log_file:
        process = subprocess.Popen(words, env=environment, stdout=log_file, stderr=log_file, start_new_session=True)
    try:
        end = time.monotonic() + 240
        while not ready(http):
            if process.poll() is not None or time.monotonic() > end:
                pytest.fail(f"tritonserver did not start:\n{log.read_text()[-6000:]}")
            time.sleep(0.1)
        yield http
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ready(port: int) -> bool:
    """Return True if a server answers and all its models are ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def load_model(port: int, name: str) -> None:
    """Make a server load a model again."""
    place = f"http://127.0.0.1:{port}/v2/repository/models/{name}/load"
    with urllib.request.urlopen(urllib.request.Request(place, b"{}"), timeout=120) as answer:
        assert answer.status == 200


def free_port() -> int:
    """A free port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def infer(port: int, model: str, inputs: dict[str, list[Any]], version: str = "", outputs: Sequence[str] = ()) -> Any:
    """One request as JSON over HTTP: outputs by name, flat; or the text of the error."""
    body: dict[str, Any] = {
        "inputs": [
            {"name": name, "datatype": "BYTES", "shape": [len(texts), 1], "data": texts}
            for name, texts in inputs.items()
        ]
    }
    if outputs:
        body["outputs"] = [{"name": name} for name in outputs]
    place = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
    request = urllib.request.Request(f"http://127.0.0.1:{port}{place}", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return {entry["name"]: entry["data"] for entry in json.load(answer)["outputs"]}
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]


SHIM = '''"""The graph step in Python: the same inputs, outputs and batching as the ONNX Runtime backend."""

from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as triton


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self.session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def execute(self, requests):
        parts = [
            {name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self.names}
            for request in requests
        ]
        print("BATCH", len(parts), parts[0][self.names[0]].shape[1:], flush=True)
        joined = {name: np.concatenate([part[name] for part in parts]) for name in self.names}
        arrays = self.session.run(self.outputs, joined)
        ends = np.cumsum([len(part[self.names[0]]) for part in parts])[:-1]
        pieces = [np.split(array, ends) for array in arrays]
        return [
            triton.InferenceResponse(
                [triton.Tensor(name, np.ascontiguousarray(piece[place])) for name, piece in zip(self.outputs, pieces)]
            )
            for place in range(len(parts))
        ]
'''


def put_shim(model: Path, environment: Path) -> None:
    """Make the Python backend run a graph step for ONNX Runtime on a GPU."""
    config = (model / "config.pbtxt").read_text()
    changes = {
        r'backend: "onnxruntime"': 'backend: "python"',
        "KIND_GPU": "KIND_CPU",
        r"default_model_filename.*\n": "",
    }
    for old, new in changes.items():
        config, count = re.subn(old, new, config)
        assert count == 1
    config += f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}\n'
    (model / "config.pbtxt").write_text(config)
    for version in model.glob("[0-9]*"):
        (version / "model.py").write_text(SHIM)
