"""GPU backends on a machine without a GPU: the order of ``auto``, ONNX Runtime's providers, and CUDA."""

import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import onnxruntime
import pytest
from backends import OnCpu
from fake_tensorrt import Device, add_engine, make_library, text_profile
from hydrant import Bundle, load
from hydrant.engines.gpu import NO_GPU, this_gpu
from hydrant.engines.metadata import graph_digest
from hydrant.errors import BackendError, InputError
from hydrant.runtime.backends.backend_registry import ON_GPU, OPENERS
from hydrant.runtime.backends.ort import OnnxRuntimeBackend
from hydrant.runtime.backends.ort_gpu import OnnxRuntimeCudaBackend, OnnxRuntimeTensorRtBackend
from hydrant.runtime.backends.tensorrt import cuda
from hydrant.runtime.backends.tensorrt.engine import EngineBackend

TEXT = ("input_ids", "attention_mask", "token_type_ids")
PROFILE = text_profile((1, 2, 4), (4, 8, 16), TEXT)

without_gpu = pytest.mark.skipif(this_gpu() is not None, reason="this machine has a GPU")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that this machine has a GPU."""
    monkeypatch.setattr("hydrant.runtime.backends.backend_registry.this_gpu", lambda: "8.9")


@without_gpu
def test_without_a_gpu_its_backends_are_not_tried(text_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ON_GPU:
        monkeypatch.setitem(OPENERS, name, lambda *_: pytest.fail("was tried"))
    with load(text_bundle) as predictor:
        assert predictor.backend == "onnxruntime"
        assert predictor.fallbacks == [(name, NO_GPU) for name in ON_GPU]


def test_with_a_gpu_every_reason_is_recorded(
    text_bundle: Path, gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", make_library("tensorrt_rtx"))
    monkeypatch.setattr("hydrant.runtime.backends.tensorrt.engine.EngineBackend.__init__.__kwdefaults__", {
        "open_device": lambda _: Device(), "memory_kind": 1
    })  # fmt: skip
    with load(text_bundle) as predictor:
        reasons = dict(predictor.fallbacks)
    assert list(reasons) == list(ON_GPU)
    assert "tensorrt is not installed" in reasons["tensorrt"]
    assert "has no tensorrt-rtx engine" in reasons["tensorrt-rtx"]
    assert "has no TensorrtExecutionProvider" in reasons["onnxruntime-tensorrt"]
    assert "has no CUDAExecutionProvider" in reasons["onnxruntime-cuda"]
    assert all("\n" not in reason for reason in reasons.values())


def test_calls_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings: Any = MagicMock()
    monkeypatch.setattr(cuda, "require", lambda *_: bindings)
    results = {"GetDeviceCount": 1, "DeviceGetAttribute": 8, "HostAlloc": 77, "EventElapsedTime": 1.5, "MemcpyAsync": 0,
               "StreamBeginCapture": 0, "StreamEndCapture": 55, "GraphInstantiate": 99, "GraphDestroy": 0}  # fmt: skip
    bindings.configure_mock(**{f"cuda{name}.return_value": (0, result) for name, result in results.items()})
    bindings.cudaSetDevice.return_value = (0,)
    device = cuda.Cuda()
    assert device.compute_capability() == "8.8"
    assert device.allocate_host(16) == 77
    assert device.elapsed_ms(1, 2) == 1.5
    device.upload(1, 2, 3, 4)
    bindings.cudaMemcpyAsync.assert_called_with(1, 2, 3, bindings.cudaMemcpyKind.cudaMemcpyHostToDevice, 4)
    device.download(1, 2, 3, 4)
    bindings.cudaMemcpyAsync.assert_called_with(1, 2, 3, bindings.cudaMemcpyKind.cudaMemcpyDeviceToHost, 4)
    bindings.reset_mock()
    assert device.capture(bindings.work, 4) == 99
    steps = ["cudaStreamBeginCapture", "work", "cudaStreamEndCapture", "cudaGraphInstantiate", "cudaGraphDestroy"]
    assert [name for name, *_ in bindings.mock_calls] == steps
    bindings.cudaMalloc.return_value, bindings.cudaGetErrorString.return_value = (2, None), (0, b"out of memory")
    with pytest.raises(BackendError, match=r"cudaMalloc: .*out of memory.*smaller batches"):
        device.allocate(1)


def test_cuda_bindings_have_all_used_names() -> None:
    import re

    library = pytest.importorskip("cuda.bindings.runtime")
    source = Path(cuda.__file__).read_text()
    for name in set(re.findall(r'_(?:do|call)\("(cuda\w+)"|self\._cuda\.(cuda\w+)', source)):
        assert hasattr(library, "".join(name)), name


@without_gpu
def test_the_installed_library_fails_without_a_gpu(text_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    from hydrant.build import build_engine

    copy = Path(shutil.copytree(text_bundle, tmp_path / "bundle"))
    build_engine(copy, "tensorrt-rtx", "fp32", batch="1:2:4", sequence="4:8:16")
    with pytest.raises(BackendError, match=NO_GPU):
        load(copy, "tensorrt-rtx")
    with pytest.raises(BackendError, match=r"cannot load engine tensorrt-rtx-fp32: .*rebuild it with `hyd"):
        EngineBackend(Bundle.open(copy), "tensorrt-rtx", open_device=lambda _: Device())


def test_the_installed_library_has_all_used_names() -> None:
    trt = pytest.importorskip("tensorrt_rtx")
    used = {
        "Runtime": "deserialize_cuda_engine engine_host_code_allowed",
        "ICudaEngine": "num_io_tensors get_tensor_name get_tensor_dtype get_tensor_shape get_tensor_mode "
        "num_optimization_profiles get_tensor_profile_shape create_execution_context create_runtime_config",
        "IExecutionContext": "set_optimization_profile_async set_input_shape set_tensor_address execute_async_v3",
        "IRuntimeConfig": "create_runtime_cache set_runtime_cache cuda_graph_strategy",
        "IRuntimeCache": "serialize deserialize",
        "CudaGraphStrategy": "DISABLED WHOLE_GRAPH_CAPTURE",
        "Refitter": "refit_cuda_engine",
        "OnnxParserRefitter": "refit_from_file num_errors get_error",
        "DataType": "INT64 FLOAT",
        "TensorIOMode": "INPUT OUTPUT",
    }
    for name, attributes in used.items():
        assert set(attributes.split()) <= set(dir(getattr(trt, name))), name


@pytest.mark.filterwarnings("ignore:Duplicate provider")
def test_bound_inputs_and_outputs_change_no_result(
    text_bundle: Path, inputs: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, backend = OnnxRuntimeBackend(Bundle.open(text_bundle)), OnCpu(Bundle.open(text_bundle), threads=1)
    for size in (4, 3):
        monkeypatch.setattr(backend, "chunk", lambda _, size=size: size)
        expected, got = plain.run(inputs), backend.run(inputs)
        for name, array in expected.items():
            np.testing.assert_allclose(got[name], array, atol=1e-6)
    with pytest.raises(BackendError, match="ONNX Runtime failed on inputs of shape"):
        backend.run({**inputs, "input_ids": inputs["input_ids"][:, :3]})


@pytest.mark.filterwarnings("ignore:Duplicate provider")
def test_a_predictor_runs_device_tensors(
    text_bundle: Path, inputs: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OPENERS, "onnxruntime-cuda", lambda bundle, *_: OnCpu(bundle))
    with load(text_bundle, "onnxruntime") as plain:
        expected = plain.predict(inputs)
        with pytest.raises(BackendError, match="onnxruntime runs on the CPU"):
            plain.run_device(inputs)
    with load(text_bundle, "onnxruntime-cuda") as predictor:
        outputs = predictor.run_device(inputs)
        ones = {name: array[:1] for name, array in inputs.items()}
        with pytest.raises(InputError, match="same batch and sequence"):
            predictor.run_device({**inputs, "attention_mask": ones["attention_mask"]})
    for name in ("probabilities", "mutual_information"):
        np.testing.assert_allclose(np.from_dlpack(outputs[name]), getattr(expected, name), atol=1e-6)
    with pytest.raises(BackendError, match="the predictor was closed"):
        predictor.run_device(inputs)


@pytest.mark.parametrize("kind", [OnnxRuntimeCudaBackend, OnnxRuntimeTensorRtBackend])
def test_a_failed_provider_is_an_error_without_silent_fallback(
    kind: type[OnnxRuntimeCudaBackend], text_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    requested = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, model: str, options: Any, providers: list[Any], **_: Any) -> None:
            requested.extend(providers)
            super().__init__(model, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [kind.provider, "CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    with pytest.raises(BackendError, match=f"could not start {kind.provider}"):
        kind(Bundle.open(text_bundle))
    assert requested[0][0] == kind.provider
    assert dict(requested[:-1])["CUDAExecutionProvider"]["use_tf32"] == 0  # float32 stays float32
    assert requested[-1] == "CPUExecutionProvider"
    if kind is OnnxRuntimeTensorRtBackend:
        options = requested[0][1]
        assert Path(options["trt_engine_cache_path"]).is_relative_to(tmp_path)
        assert options["trt_profile_max_shapes"] == "input_ids:32x40,attention_mask:32x40,token_type_ids:32x40"
        assert not any("fp16" in key or "int8" in key or "bf16" in key for key in options)


@pytest.fixture
def short_of_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ONNX Runtime with both providers, on a GPU without memory for a session."""

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def _create_inference_session(self, providers: Any, *rest: Any) -> None:
            if "CPUExecutionProvider" not in providers[:1]:
                raise RuntimeError("CUDA failure 2: out of memory")
            super()._create_inference_session(providers, *rest)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    provided = [kind.provider for kind in (OnnxRuntimeCudaBackend, OnnxRuntimeTensorRtBackend)]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: provided)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    for library in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, library, None)


@pytest.mark.usefixtures("gpu", "short_of_memory")
def test_auto_skips_a_gpu_without_memory(text_bundle: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with load(text_bundle) as predictor:
        assert predictor.backend == "onnxruntime"
        reasons = dict(predictor.fallbacks)
    for name in ("onnxruntime-cuda", "onnxruntime-tensorrt"):
        assert "out of memory" in reasons[name]
        assert "export" not in reasons[name]
    assert capfd.readouterr().out == "", "onnxruntime prints its own fallbacks"


@pytest.mark.usefixtures("short_of_memory")
def test_a_cache_that_others_can_write_to_is_rejected(text_bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "hydrant" / "onnxruntime-tensorrt"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(BackendError, match=r"onnxruntime-tensorrt .*XDG_CACHE_HOME"):
        OnnxRuntimeTensorRtBackend(Bundle.open(text_bundle))
    folder.chmod(0o700)
    folder.parent.chmod(0o700)
    with pytest.raises(BackendError, match="out of memory"):
        OnnxRuntimeTensorRtBackend(Bundle.open(text_bundle))
    (cached,) = folder.iterdir()
    assert cached.name == f"{graph_digest(Bundle.open(text_bundle), 'model.fp32.onnx')}-{onnxruntime.__version__}"
    assert cached.stat().st_mode & 0o777 == 0o700


def test_texts_are_truncated_to_the_engine_maximum(
    text_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = Path(shutil.copytree(text_bundle, tmp_path / "bundle"))
    add_engine(out, (PROFILE,))
    monkeypatch.setitem(sys.modules, "tensorrt", make_library("tensorrt"))
    monkeypatch.setitem(OPENERS, "tensorrt", lambda bundle, *_: EngineBackend(
        bundle, "tensorrt", open_device=lambda _: Device()
    ))  # fmt: skip
    with load(out, "tensorrt") as predictor, load(out, "onnxruntime") as plain:
        got = predictor.predict(["hello " * 30, "hello"])
        np.testing.assert_allclose(got.probabilities, plain.predict(["hello " * 14, "hello"]).probabilities, atol=1e-6)
        assert "1 of 2 texts were truncated to the 16 tokens this bundle's tensorrt engine takes (first: input 0)" in (
            caplog.text
        )
