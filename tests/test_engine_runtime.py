"""Host logic of engines, with fakes of TensorRT and the GPU; no test here runs on a GPU."""

import gc
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_tensorrt import HOST, Device, add_engine, make_library, text_profile
from hydrant import Bundle, export_onnx
from hydrant.engines.metadata import engine_path, metadata_path
from hydrant.errors import BackendError, BundleError, InputError
from hydrant.runtime.backends.ort import OnnxRuntimeBackend
from hydrant.runtime.backends.tensorrt import lane as engine_lane
from hydrant.runtime.backends.tensorrt.choose import Machine, choose_engine, rebuild_command
from hydrant.runtime.backends.tensorrt.cuda import Resources
from hydrant.runtime.backends.tensorrt.engine import EngineBackend
from hydrant.runtime.backends.tensorrt.profiles import Part, Profiles
from hypothesis import given
from hypothesis import strategies as st

TEXT = ("input_ids", "attention_mask", "token_type_ids")
LATENCY = text_profile((1, 1, 1), (4, 8, 12), TEXT)
THROUGHPUT = text_profile((2, 4, 6), (4, 16, 24), TEXT)
IMAGES = {"pixel_values": ((2, 3, 12, 12), (2, 3, 12, 12), (4, 3, 12, 12))}


@pytest.fixture
def path(text_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_bundle, tmp_path / "bundle"))


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Fakes of both libraries, and a private cache folder."""
    fakes = {"tensorrt": make_library("tensorrt"), "tensorrt-rtx": make_library("tensorrt_rtx")}
    for library in fakes.values():
        monkeypatch.setitem(sys.modules, library.__name__, library)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return fakes


def open_engine(path: Path, device: Device | None = None, library: str = "tensorrt", **options: Any) -> EngineBackend:
    return EngineBackend(
        Bundle.open(path), library, open_device=lambda _: device or Device(), memory_kind=HOST, **options
    )


def text(rows: int, tokens: int, seed: int = 0) -> dict[str, np.ndarray]:
    """A batch with padding after the shorter texts."""
    rng = np.random.default_rng(seed)
    mask = (np.arange(tokens) < rng.integers(1, tokens + 1, (rows, 1))).astype(np.int64)
    return {
        "input_ids": rng.integers(5, 99, (rows, tokens)) * mask,
        "attention_mask": mask,
        "token_type_ids": rng.integers(0, 2, (rows, tokens)) * mask,
    }


def assert_same(got: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    assert set(got) == set(expected)
    for name, array in expected.items():
        assert got[name].dtype == np.float32
        np.testing.assert_allclose(got[name], array, atol=1e-5, err_msg=name)


CHOICES = [
    (1, 8, [Part(0, 0, 1, 1, 8)]),
    (1, 2, [Part(0, 0, 1, 1, 4)]),
    (1, 13, [Part(1, 0, 1, 2, 13)]),
    (7, 24, [Part(1, 0, 4, 4, 24), Part(1, 4, 7, 3, 24)]),
    (13, 3, [Part(1, 0, 5, 5, 4), Part(1, 5, 10, 5, 4), Part(1, 10, 13, 3, 4)]),
]


@pytest.mark.parametrize(("rows", "tokens", "expected"), CHOICES)
def test_the_smallest_adequate_profile_is_chosen(rows: int, tokens: int, expected: list[Part]) -> None:
    profiles = Profiles([LATENCY, THROUGHPUT], "hydrant build out")
    assert profiles.parts(rows, tokens) == expected
    assert profiles.largest(rows, tokens) == min(rows, 6)
    assert profiles.longest == 24
    assert Profiles([IMAGES], "").longest is None
    assert Profiles([THROUGHPUT, LATENCY], "").parts(1, 8) == [Part(1, 0, 1, 1, 8)], "the order does not matter"


@given(
    st.integers(1, 70),
    st.integers(1, 24),
    st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(1, 9), st.integers(0, 15)), min_size=1),
)
def test_every_row_runs_once_within_a_profile(rows: int, tokens: int, sizes: list[tuple[int, int, int, int]]) -> None:
    profiles = [
        text_profile((low, low, low + more), (short, short, 24 + longer), TEXT) for low, more, short, longer in sizes
    ]
    parts = Profiles(profiles, "").parts(rows, tokens)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
    for part in parts:
        least, _, most = profiles[part.profile]["input_ids"]
        assert least[0] <= part.rows <= most[0]
        assert part.tokens is not None
        assert least[1] <= part.tokens <= most[1]
        assert part.rows >= part.stop - part.start
        assert part.tokens >= tokens


@pytest.mark.parametrize(("rows", "tokens"), [(1, 2), (5, 24), (20, 9)])
def test_padding_and_splitting_change_no_result(rows: int, tokens: int, path: Path) -> None:
    add_engine(path, (LATENCY, THROUGHPUT))
    plain, backend = OnnxRuntimeBackend(Bundle.open(path)), open_engine(path)
    inputs = text(rows, tokens)
    for _ in range(3):
        assert_same(backend.run(inputs), plain.run(inputs))
    assert backend.chunk(inputs) == min(rows, 6)


def test_repeated_shapes_run_as_cuda_graphs(path: Path, libraries: dict[str, Any]) -> None:
    add_engine(path, (LATENCY, THROUGHPUT))
    device, plain = Device(), OnnxRuntimeBackend(Bundle.open(path))
    backend = open_engine(path, device)
    for turn in range(5):
        for inputs in (text(1, 8, turn), text(3, 8, turn), text(1, 13, turn)):
            assert_same(backend.run(inputs), plain.run(inputs))
    assert device.captures == 3, "each shape once, on its second use"
    assert device.launches == 9, "from its third use on"
    (engine,) = libraries["tensorrt"].engines
    assert len(engine.contexts) == 5, "one for each profile and each graph"
    for tokens in range(4, 4 + 2 * engine_lane.GRAPHS):
        for _ in range(3):
            assert_same(backend.run(text(3, tokens)), plain.run(text(3, tokens)))
    assert len(engine.contexts) == 2 + engine_lane.GRAPHS, "a graph's context goes with it"
    graphs = [handle for handle in device.live.values() if isinstance(handle, list) and callable(handle[0])]
    assert len(graphs) == engine_lane.GRAPHS
    backend.close()
    assert device.live == {}


@pytest.mark.parametrize("library", ["tensorrt", "tensorrt-rtx"])
def test_a_garbage_collected_backend_releases_everything(library: str, path: Path, libraries: dict[str, Any]) -> None:
    add_engine(path, (LATENCY, THROUGHPUT), library)
    device = Device()
    backend = open_engine(path, device, library)
    for _ in range(3):
        backend.run(text(2, 8))
    (engine,) = libraries[library].engines
    assert device.live
    del backend
    gc.collect()
    assert device.live == {}
    assert len(engine.contexts) == 0
    held = Resources(device)
    held.memory(16)
    del held
    assert device.live == {}


def test_a_failure_of_the_engine_is_reported_and_its_lane_discarded(path: Path, libraries: dict[str, Any]) -> None:
    add_engine(path, (LATENCY,))
    device = Device()
    backend = open_engine(path, device)
    (engine,) = libraries["tensorrt"].engines
    engine.failing = True
    with pytest.raises(BackendError, match="tensorrt failed to run: 'kernel 7 was lost'"):
        backend.run(text(1, 8))
    assert device.live == {}
    engine.failing = False
    backend.run(text(1, 8))
    engine.session = None
    with pytest.raises(BackendError, match=r"tensorrt failed: .*NoneType"):
        backend.run(text(1, 8))
    assert device.live == {}


def test_tensors_on_the_device_are_not_copied(path: Path) -> None:
    import torch

    add_engine(path, (LATENCY, THROUGHPUT))
    device, plain, inputs = Device(), OnnxRuntimeBackend(Bundle.open(path)), text(3, 9)
    backend = open_engine(path, device)
    expected = plain.run(inputs)
    backend.run(inputs)
    before = device.copies
    for tensors in (inputs, {name: torch.from_numpy(array) for name, array in inputs.items()}):
        outputs = backend.run_device(tensors)
        assert device.copies == before
        assert_same({name: np.from_dlpack(output) for name, output in outputs.items()}, expected)
        np.testing.assert_allclose(torch.from_dlpack(outputs["probabilities"]), expected["probabilities"], atol=1e-5)
    assert outputs["probabilities"].__cuda_array_interface__["shape"] == (3, 5)
    assert_same(backend.run(inputs), expected)
    probabilities = torch.from_dlpack(outputs["probabilities"])
    backend.close()
    del outputs
    gc.collect()
    np.testing.assert_allclose(probabilities, expected["probabilities"], atol=1e-5)
    assert len(device.live) == 1, "an exported array outlives the backend"
    del probabilities
    gc.collect()
    assert device.live == {}


def test_invalid_device_tensors_are_rejected(path: Path) -> None:
    add_engine(path, (LATENCY, THROUGHPUT))
    backend, inputs = open_engine(path), text(3, 9)
    gpu_only = EngineBackend(Bundle.open(path), "tensorrt", open_device=lambda _: Device())
    with pytest.raises(InputError, match=r"input_ids is on DLPack device \(1, 0\); expected \(2, 0\), the first GPU"):
        gpu_only.run_device(inputs)
    for change, message in (
        ({"input_ids": [[1]]}, "input_ids is a list"),
        ({"input_ids": inputs["input_ids"][:, ::2]}, "input_ids is not contiguous"),
        ({"input_ids": inputs["input_ids"].astype(np.int32)}, "int32 .*int64"),
        ({"attention_mask": inputs["attention_mask"][:2]}, "same batch and sequence"),
        (text(7, 9), "no profile of the engine"),
    ):
        with pytest.raises(InputError, match=message):
            backend.run_device({**inputs, **change})
    assert len(backend._idle) == 1, "bad tensors do not cost the lane"


@pytest.mark.parametrize("file", [engine_path("tensorrt-fp32"), metadata_path("tensorrt-fp32")])
def test_a_damaged_file_never_reaches_the_library(file: str, path: Path, libraries: dict[str, Any]) -> None:
    add_engine(path, (LATENCY,))
    data = bytearray((path / file).read_bytes())
    data[len(data) // 2] ^= 1
    (path / file).write_bytes(data)
    with pytest.raises(BundleError, match="was altered: its SHA-256"):
        open_engine(path)
    assert libraries["tensorrt"].loads == 0


MISFITS = [
    ({"version": "10.12.0"}, "was built with tensorrt '10.12.0' .*10.13.2 is installed"),
    ({"platform": "windows-amd64"}, "was built on 'windows-amd64'"),
    ({"compute_capabilities": ("8.0", "8.6")}, "built for compute capability 8.0, 8.6 .* GPU has 8.9"),
    ({"onnx_sha256": "0" * 64}, r"model\.fp32\.onnx has changed since engine tensorrt-fp32 was built from it"),
]


@pytest.mark.parametrize(("change", "message"), MISFITS, ids=[next(iter(change)) for change, _ in MISFITS])
def test_an_engine_that_does_not_fit_names_the_command(
    change: dict[str, Any], message: str, path: Path, libraries: dict[str, Any]
) -> None:
    add_engine(path, (LATENCY,), **change)
    with pytest.raises(BackendError, match=f"{message}.*`hydrant build {path} --backend tensorrt --precision fp32 .*`"):
        open_engine(path)
    assert libraries["tensorrt"].loads == 0


def test_the_rebuild_command_has_the_options_of_the_engine(path: Path) -> None:
    bundle = Bundle.open(path)
    start = f"hydrant build {path} --backend"
    for name, library, profiles, changes, expected in (
        ("a", "tensorrt", (LATENCY,), {}, "--batch 1:1:1 --sequence 4:8:12 --name a"),
        ("tensorrt-fp32", "tensorrt", (LATENCY, LATENCY), {"refittable": True},
         "--batch 1:1:1 --batch 1:1:1 --sequence 4:8:12 --refit"),
        ("tensorrt-fp32", "tensorrt", (LATENCY, THROUGHPUT), {"hardware_compatibility": "ampere+"},
         "--batch 1:1:1 --batch 2:4:6 --sequence 4:8:12 --sequence 4:16:24 --hardware-compatibility ampere+"),
        ("b", "tensorrt-rtx", (IMAGES,),
         {"compute_capabilities": ("8.9", "12.0"), "stripped": True, "refittable": True},
         "--batch 2:2:4 --name b --compute-capability 8.9 --compute-capability 12.0 --strip-weights"),
    ):  # fmt: skip
        facts = add_engine(path, profiles, library, name, **changes)
        assert rebuild_command(bundle, name, facts) == f"{start} {library} --precision fp32 {expected}"
    bundle.add({}, remove=[engine_path("a"), metadata_path("a")])
    add_engine(path, (LATENCY, THROUGHPUT))
    with pytest.raises(BackendError) as caught:
        open_engine(path).run(text(1, 30))
    expected = f"`{start} tensorrt --precision fp32 --batch 1:1:1 --batch 2:4:6 --sequence 4:24:30`"
    assert str(caught.value).endswith(expected)


def test_the_first_suitable_precision_is_chosen(path: Path) -> None:
    export_onnx(path, "fp16")
    add_engine(path, (LATENCY,), name="b")
    add_engine(path, (LATENCY,), name="a", precision="fp16", compute_capabilities=["12.0"])
    bundle, here = Bundle.open(path), Machine("tensorrt", "10.13.2", "8.9")
    assert choose_engine(bundle, here).name == "b", "the FP16 engine is for another GPU"
    assert choose_engine(bundle, Machine("tensorrt", "10.13.2", "12.0")).name == "a"
    assert choose_engine(bundle, Machine("tensorrt", "10.13.2", None)).name == "a", (
        "without a GPU, everything else must match"
    )
    with pytest.raises(BackendError, match=r"built for compute capability 12\.0"):
        choose_engine(bundle, here, "fp16")


def test_a_stripped_engine_takes_its_weights_from_the_graph(path: Path, libraries: dict[str, Any]) -> None:
    add_engine(path, (LATENCY,), stripped=True, refittable=True)
    backend, plain = open_engine(path), OnnxRuntimeBackend(Bundle.open(path))
    assert libraries["tensorrt"].refits == [str(path / "model.fp32.onnx")]
    assert_same(backend.run(text(1, 8)), plain.run(text(1, 8)))
    libraries["tensorrt"].refuse_weights = True
    with pytest.raises(BackendError, match="weights of another shape"):
        open_engine(path)


def test_rtx_captures_graphs_itself_and_caches_kernels(path: Path, libraries: dict[str, Any], tmp_path: Path) -> None:
    facts = add_engine(path, (LATENCY,), "tensorrt-rtx")
    device, plain = Device(), OnnxRuntimeBackend(Bundle.open(path))
    backend = open_engine(path, device, "tensorrt-rtx")
    for _ in range(4):
        assert_same(backend.run(text(1, 8)), plain.run(text(1, 8)))
    assert device.captures == 0
    first, config = libraries["tensorrt-rtx"].engines[0].configs
    assert first.cuda_graph_strategy == "DISABLED", "the first use of a shape"
    assert config.cuda_graph_strategy == "WHOLE_GRAPH_CAPTURE"
    assert first.cache is config.cache
    config.cache.data = b"kernels finished here"
    cache = tmp_path / "cache" / "hydrant" / f"{facts.engine_sha256}.cache"
    assert not cache.exists()
    backend.close()
    assert cache.read_bytes() == b"kernels finished here"
    assert cache.parent.stat().st_mode & 0o077 == 0, "kernels are code, which only the owner may write"
    again = open_engine(path, device, "tensorrt-rtx")
    again.run(text(1, 8))
    assert libraries["tensorrt-rtx"].engines[1].configs[0].cache.data == b"kernels finished here"
