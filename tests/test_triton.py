"""``hydrant triton``: the written files, and the models as Triton's Python backend calls them."""

import itertools
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnxruntime
import pytest
from fake_tensorrt import add_engine, text_profile
from hydrant import Bundle, GraphForm, Prediction, TritonSettings, load, triton_repository
from hydrant.bundle import staging
from hydrant.bundle.calibration import Calibration, Threshold
from hydrant.bundle.store import CALIBRATION
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.errors import InputError
from hydrant.serving.triton import repository as writing
from hydrant.serving.triton.models import predicted
from support import random_plan
from token_support import make_tagger, make_word_tokenizer
from triton_support import KINDS, UTILS, Request, read_config, started, strings, tensors

TEXTS = ["hello world", "what is the weather today", "money", "transfer money " * 9, "the the the hello"]
NUMPY = {"FP32": "f", "INT64": "i", "BOOL": "b", "STRING": "O"}
SETTINGS = TritonSettings(threads=1)


@pytest.fixture(scope="module")
def bundles(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Calibrated bundles of every task, for texts, images and ready tensors."""
    folder = tmp_path_factory.mktemp("triton")
    cases = {"text": "bert", "scores": "scores-sigmoid", "labels": "labels", "images": "vit-images"}
    paths = {kind: golden / name / "bundle" for kind, name in cases.items()} | {"tokens": folder / "tagger"}
    tagger = hydrant.fuse(make_tagger(), random_plan("bert", 3))
    hydrant.save_bundle(tagger, paths["tokens"], make_word_tokenizer(folder / "words"))
    limits = Calibration(1.0, {"abstain": Threshold("confidence", 0.5)})
    Bundle.open(paths["tokens"]).add({CALIBRATION: to_json_bytes(limits.to_json())})
    hydrant.export_onnx(paths["tokens"], form=GraphForm(member_outputs=True))
    return paths


@pytest.fixture(autouse=True)
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", UTILS)  # type: ignore[arg-type]


def inputs_of(kind: str, bundle: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Inputs of a request to Triton, and the same inputs for the predictor."""
    if kind in ("text", "tokens"):
        return {"text": strings(*TEXTS)}, TEXTS
    if kind == "images":
        pictures = sorted((bundle.parent / "images").iterdir())[:4]
        return {"image": strings(*(picture.read_bytes() for picture in pictures))}, pictures
    ready = dict(np.load(bundle.parent / "inputs.npz"))
    ready = {name: array[:5] for name, array in ready.items()}
    return ready, ready


def assert_same(arrays: Mapping[str, np.ndarray], prediction: hydrant.Prediction, labels: list[str]) -> None:
    """Check that the arrays are every field of a prediction."""
    fields = prediction.arrays
    if "label" in fields:
        names = [[labels[index] if index >= 0 else "" for index in np.atleast_1d(row)] for row in fields["label"]]
        assert [[name.decode() for name in row] for row in arrays["label"]] == names
        fields["label_index"] = fields.pop("label")
    for name, expected in fields.items():
        got = arrays[name]
        assert got.dtype == expected.dtype, name
        same = got if got.shape == expected.shape else got[:, 0]
        if expected.dtype.kind == "f":
            np.testing.assert_allclose(same, expected, rtol=1e-5, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(same, expected, err_msg=name)
    assert set(arrays) - {"label", "spans"} == set(fields)


@pytest.mark.parametrize("kind", ["text", "scores", "labels", "images", "tokens"])
def test_the_whole_predictor_answers_as_without_triton(kind: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    """One request, and several of different sizes in one batch; outputs match the configuration."""
    written = triton_repository(bundles[kind], tmp_path / "repository", settings=SETTINGS, name=kind)
    place = tmp_path / "repository" / kind
    config, model = read_config(place), started(place)
    request, same = inputs_of(kind, bundles[kind])
    count = len(next(iter(request.values())))
    parts = [Request({name: array[at] for name, array in request.items()}) for at in rows_of(count)]
    answers = model.execute([Request(request), *parts])
    with hydrant.load(bundles[kind], "onnxruntime", threads=1) as predictor:
        for answer, rows in zip(answers, [range(count), *rows_of(count)], strict=True):
            inputs = (
                {name: array[rows] for name, array in same.items()}
                if isinstance(same, dict)
                else [same[row] for row in rows]
            )
            assert answer.error is None
            assert_same(answer.arrays, predictor.predict(inputs), predictor.labels)
        if kind == "tokens":
            spans_of_texts = [json.loads(spans) for spans in answers[0].arrays["spans"][:, 0]]
            assert spans_of_texts == [row["spans"] for row in predictor.rows(predictor.predict(TEXTS), TEXTS)]
    declared = tensors(config.output)
    assert set(declared) == set(answers[0].arrays) == set(written.outputs)
    for name, (datatype, dims) in declared.items():
        array = answers[0].arrays[name]
        assert NUMPY[datatype] == array.dtype.kind
        assert len(dims) == array.ndim - 1
        assert all(size in (-1, axis) for size, axis in zip(dims, array.shape[1:], strict=True))
    model.finalize()


def rows_of(count: int) -> list[list[int]]:
    """Rows of three requests, the last with two inputs."""
    return [[0], [2], [count - 1, 1]]


def test_an_invalid_request_fails_alone(bundles: dict[str, Path], tmp_path: Path) -> None:
    triton_repository(bundles["text"], tmp_path, settings=SETTINGS)
    model = started(tmp_path / "bundle")
    good, named = Request({"text": strings("money")}), Request({"text": strings("money")}, ["label", "abstain"])
    bad = [
        Request({"text": strings("hello", "  ")}),
        Request({"text": strings("hello", b"\xff")}),
        Request({"text": strings("hello")}, cancelled=True),
    ]
    answers = model.execute([bad[0], good, *bad[1:], named])
    with hydrant.load(bundles["text"], "onnxruntime", threads=1) as predictor:
        assert_same(answers[1].arrays, predictor.predict("money"), predictor.labels)
    assert set(answers[4].arrays) == {"label", "abstain"}
    assert [answers[place].error.code for place in (0, 2, 3)] == [3, 3, 7]
    assert all("input 1" in str(answers[place].error) for place in (0, 2))
    assert [answer.error.code for answer in model.execute([bad[2], bad[2]])] == [7, 7]


def test_settings_are_written_to_and_read_from_the_configuration(bundles: dict[str, Path], tmp_path: Path) -> None:
    chosen = TritonSettings(
        max_batch=7, queue_delay=500, instances=3, precision="fp32", threads=1, environment='/opt/my "env"', linked=True
    )
    triton_repository(bundles["text"], tmp_path / "a/b", settings=chosen, name="m.1", version=12)
    place = tmp_path / "a/b/m.1"
    config = read_config(place)
    assert (config.name, config.backend, config.max_batch_size) == ("m.1", "python", 7)
    assert config.dynamic_batching.max_queue_delay_microseconds == 500
    assert [(group.kind, group.count) for group in config.instance_group] == [(2, 3)]
    assert config.version_policy.HasField("all")
    assert {entry.key: entry.value.string_value for entry in config.parameters} == {
        "hydrant.backend": "auto",
        "hydrant.precision": "fp32",
        "hydrant.threads": "1",
        "EXECUTION_ENV_PATH": '/opt/my "env"',
    }
    assert (place / "labels.txt").read_text().split() == Bundle.open(bundles["text"]).labels
    assert not (place / "12/bundle").exists()
    model = started(place, 12)
    assert model._predictor.precision == "fp32"


@pytest.mark.parametrize(("device", "kind"), itertools.product(["cpu", "gpu"], ["text", "labels"]))
def test_models_answer_their_warm_up_requests(device: Any, kind: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    """Read as Triton does: raw data of one input, repeated for the batch."""
    triton_repository(bundles[kind], tmp_path, device, TritonSettings(max_batch=4), name="m")
    answered = 0
    for place in [folder for folder in sorted(tmp_path.iterdir()) if (folder / "config.pbtxt").is_file()]:
        config = read_config(place)
        for sample in config.model_warmup:
            arrays = {entry.key: warm_array(place, entry.value, sample.batch_size) for entry in sample.inputs}
            assert set(arrays) <= set(tensors(config.input))
            if (place / "1/model.py").is_file():
                [answer] = started(place).execute([Request(arrays)])
                assert answer.error is None
            else:
                session = onnxruntime.InferenceSession(str(place / "1/model.onnx"))
                assert all(np.isfinite(array).all() for array in session.run(None, arrays))
            answered += 1
        assert config.backend == "" or config.model_warmup or place.name.endswith("_decide")
    assert answered >= 2 if device == "gpu" else answered >= 1


def warm_array(place: Path, value: Any, batch: int) -> np.ndarray:
    datatype, shape = KINDS[value.data_type], tuple(value.dims)
    kind = {"INT64": "<i8", "FP32": "<f4"}.get(datatype)
    if value.zero_data:
        assert kind is not None
        return np.zeros((batch, *shape), kind)
    data = (place / "warmup" / value.input_data_file).read_bytes()
    if datatype == "STRING":
        assert int.from_bytes(data[:4], "little") == len(data) - 4
        return strings(*[data[4:]] * batch)
    return np.tile(np.frombuffer(data, kind).reshape(shape), (batch, 1))


@pytest.mark.parametrize("kind", ["text", "scores", "labels", "images"])
def test_the_steps_of_an_ensemble_equal_the_predictor(kind: str, bundles: dict[str, Path], tmp_path: Path) -> None:
    """Tensors pass from step to step, and the graph runs, as the configurations define."""
    written = triton_repository(bundles[kind], tmp_path, "gpu", name=kind, version=3)
    config = read_config(tmp_path / kind)
    assert [step.model_name for step in config.ensemble_scheduling.step] == list(written.models[:-1])
    assert (config.platform, list(config.version_policy.specific.versions)) == ("ensemble", [3])
    request, same = inputs_of(kind, bundles[kind])
    flow: dict[str, list[np.ndarray]] = {}
    requests = [[0], [3], [1, 2]]
    for name, array in request.items():
        flow[name] = [array[rows] for rows in requests]
    for step in config.ensemble_scheduling.step:
        place, taken = tmp_path / step.model_name, {entry.key: entry.value for entry in step.input_map}
        own = read_config(place)
        assert step.model_version == 3
        assert set(taken) >= {entry.name for entry in own.input if not entry.optional}
        requests_of_step = [
            {name: flow[key][at] for name, key in taken.items() if key in flow} for at in range(len(requests))
        ]
        answers = (
            graph_answers(place, own, requests_of_step)
            if own.backend == "onnxruntime"
            else python_answers(place, requests_of_step)
        )
        assert {entry.key for entry in step.output_map} == set(tensors(own.output)) == set(answers[0])
        flow |= {entry.value: [answer[entry.key] for answer in answers] for entry in step.output_map}
    declared = tensors(config.output)
    with hydrant.load(bundles[kind], "onnxruntime", threads=1) as predictor:
        for at, rows in enumerate(requests):
            some = {name: array[rows] for name, array in same.items()} if isinstance(same, dict) else None
            prediction = predictor.predict([same[row] for row in rows] if some is None else some)
            assert_same({name: flow[name][at] for name in declared}, prediction, predictor.labels)
    whole = triton_repository(bundles[kind], tmp_path / "whole", settings=SETTINGS, name=kind)
    assert (whole.inputs, whole.outputs) == (written.inputs, written.outputs)
    assert declared == tensors(read_config(tmp_path / "whole" / kind).output)


def python_answers(place: Path, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    answers = started(place, 3).execute([Request(arrays) for arrays in requests])
    assert all(answer.error is None for answer in answers)
    return [answer.arrays for answer in answers]


def graph_answers(place: Path, config: Any, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Outputs as of Triton's ONNX Runtime backend; checks the configuration against the graph."""
    session = onnxruntime.InferenceSession(str(place / "3" / config.default_model_filename))
    types = {"tensor(int64)": "INT64", "tensor(float)": "FP32"}
    served = [value for value in session.get_outputs() if value.name != "logits"]
    for entries, values in ((config.input, session.get_inputs()), (config.output, served)):
        assert [entry.name for entry in entries] == [value.name for value in values]
        for entry, value in zip(entries, values, strict=True):
            assert KINDS[entry.data_type] == types[value.type]
            graph = [size if isinstance(size, int) else -1 for size in value.shape[1:]]
            assert list(entry.reshape.shape if entry.HasField("reshape") else entry.dims) == graph
    assert [group.kind for group in config.instance_group] == [1], "on the GPU"
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    options = {pair.key: pair.value for pair in accelerator.parameters}
    assert (accelerator.name, options) == ("cuda", {"use_tf32": "0"}), "float32 stays float32"
    answers = []
    for arrays in requests:
        names = [value.name for value in session.get_outputs()]
        outputs = dict(zip(names, session.run(names, arrays), strict=True))
        answers.append({entry.name: outputs[entry.name].reshape(-1, *entry.dims) for entry in config.output})
    return answers


def test_ready_tensors_of_tokens_keep_their_shape_in_a_batch(bundles: dict[str, Path]) -> None:
    """Padding may be before and between tokens; each request keeps its shape."""
    ids = np.array([[5, 6, 7, 8, 9, 10, 11, 12]])
    masks = ([1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1], [1, 0, 1, 0, 1, 0, 1, 0])
    requests: list[Any] = [{"input_ids": ids, "attention_mask": np.array([mask])} for mask in masks]
    with load(bundles["tokens"], "onnxruntime") as predictor:
        alone = [predictor.predict(request) for request in requests]
        for prediction, expected in zip(predicted(predictor, requests), alone, strict=True):
            assert isinstance(prediction, Prediction)
            assert prediction.label.shape == (1, 8)
            np.testing.assert_array_equal(prediction.label, expected.label)


@pytest.fixture
def engined(bundles: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(bundles["text"], tmp_path / "engined"))


TEXT_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def test_an_engine_replaces_the_graph(engined: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With its profiles, and their limits of batch size and text length."""
    profiles = (text_profile((1, 1, 1), (20, 20, 24), TEXT_INPUTS), text_profile((1, 8, 16), (20, 24, 36), TEXT_INPUTS))
    add_engine(engined, profiles)
    profiles = (text_profile((1, 4, 8), (20, 20, 36), TEXT_INPUTS),)
    add_engine(engined, profiles, name="small", precision="fp32")
    written = triton_repository(engined, tmp_path / "r", "gpu", TritonSettings(graph_backend="tensorrt"), name="m")
    assert (written.runs, written.file) == ("tensorrt", "engines/small.engine")
    place = tmp_path / "r/m_graph"
    config = read_config(place)
    assert (config.backend, config.default_model_filename, config.max_batch_size) == ("tensorrt", "model.plan", 8)
    assert list(config.instance_group[0].profile) == ["0"]
    assert "logits" in {output.name for output in config.output}, "engines run with all their outputs"
    (step,) = (s for s in read_config(tmp_path / "r/m").ensemble_scheduling.step if s.model_name == "m_graph")
    mapped = {entry.key for entry in step.output_map}
    assert "logits" not in mapped and "probabilities" in mapped
    assert (place / "1/model.plan").read_bytes() == (engined / "engines/small.engine").read_bytes()
    assert "max_batch reduced to 8, the limit of engine small" in caplog.text
    model = started(tmp_path / "r/m_prepare")
    answers = model.execute([Request({"text": strings("hello " * count)}) for count in (1, 20, 99)])
    assert [answer.arrays["input_ids"].shape[1] for answer in answers] == [20, 32, 36]
    assert "TensorRT 10.13.2" in (tmp_path / "r/m/README.md").read_text()
    lengths = {entry.value.dims[0] for sample in config.model_warmup for entry in sample.inputs}
    assert lengths == {20, 36}
    add_engine(engined, (text_profile((1, 4, 16), (20, 20, 40), TEXT_INPUTS),), name="small", precision="fp32")
    with pytest.raises(InputError, match=r"m_prepare/1 has other limits than this bundle: .*36.*, not .*40"):
        triton_repository(engined, tmp_path / "r", "gpu", name="m", version=2)


@pytest.mark.parametrize(("changes", "reason"), [
    ({"stripped": True}, "has no weights"),
    ({"profiles": (text_profile((2, 4, 8), (4, 8, 16), TEXT_INPUTS),)}, "does not accept a batch of one"),
    (
        {"profiles": tuple(text_profile((1, 4, 8), (each, each, each), TEXT_INPUTS) for each in (40, 16))},
        "has no profile for texts of between 16 and 40 tokens",
    ),
])  # fmt: skip
def test_engines_that_triton_cannot_run(
    changes: dict[str, Any], reason: str, engined: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add_engine(engined, changes.pop("profiles", (text_profile((1, 4, 8), (4, 8, 16), TEXT_INPUTS),)), **changes)
    with pytest.raises(InputError, match=reason):
        triton_repository(engined, tmp_path / "r", "gpu", TritonSettings(graph_backend="tensorrt"))
    assert not (tmp_path / "r").exists()
    written = triton_repository(engined, tmp_path / "r", "gpu")
    assert written.runs == "onnxruntime"
    assert f"ONNX Runtime runs the graph: engine {changes.get('library', 'tensorrt')}-fp32 {reason}" in caplog.text


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_versions_are_written_side_by_side(device: Any, bundles: dict[str, Path], tmp_path: Path) -> None:
    triton_repository(bundles["text"], tmp_path, device, name="m")
    triton_repository(bundles["images"], tmp_path, device, name="other")
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match=r"m.*/1 exists; choose another version, or replace it with --force"):
        triton_repository(bundles["text"], tmp_path, device, name="m")
    assert snapshot(tmp_path) == before
    triton_repository(bundles["text"], tmp_path, device, name="m", version=2)
    after = snapshot(tmp_path)
    shared = {name for name in before if name.endswith(("config.pbtxt", "README.md")) and "/1/" not in name}
    assert {name: after[name] for name in set(before) - shared} == {name: before[name] for name in set(before) - shared}
    if device == "gpu":
        assert list(read_config(tmp_path / "m").version_policy.specific.versions) == [2]
        shutil.copy(tmp_path / "m/1/config.pbtxt", tmp_path / "m/config.pbtxt")  # as in its README
        rolled = read_config(tmp_path / "m")
        assert list(rolled.version_policy.specific.versions) == [1]
        assert {step.model_version for step in rolled.ensemble_scheduling.step} == {1}
    (tmp_path / "m_graph" if device == "gpu" else tmp_path / "m").joinpath("1/stale").write_text("x")
    triton_repository(bundles["text"], tmp_path, device, name="m", force=True)
    assert not list(tmp_path.rglob("stale"))


def test_versions_with_other_tensors_or_labels_are_refused(bundles: dict[str, Path], tmp_path: Path) -> None:
    triton_repository(bundles["text"], tmp_path, name="m")
    before = snapshot(tmp_path)
    with pytest.raises(InputError, match=r"m/1 has other inputs .*image"):
        triton_repository(bundles["images"], tmp_path, name="m", version=2)
    other = Path(shutil.copytree(bundles["text"], tmp_path / "uncalibrated"))
    Bundle.open(other).add({CALIBRATION: to_json_bytes(Calibration(0.9).to_json())})
    hydrant.export_onnx(other)
    with pytest.raises(InputError, match=r"m/1 has other outputs .*abstain"):
        triton_repository(other, tmp_path, name="m", version=2)
    shutil.rmtree(other)
    assert snapshot(tmp_path) == before
    triton_repository(bundles["images"], tmp_path, name="m", force=True)  # its only version
    assert list(tensors(read_config(tmp_path / "m").input)) == ["image"]
    assert not (tmp_path / "m/warmup/short").exists()


def test_a_failed_write_changes_nothing(
    bundles: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device: Any = "gpu"

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    repository = tmp_path / "new/repository"
    with monkeypatch.context() as patch, pytest.raises(InputError, match=r"cannot write into .*: No space left"):
        patch.setattr(writing.staging, "place_folders", full)
        triton_repository(bundles["text"], repository, device, name="m")
    assert not (tmp_path / "new").exists()
    triton_repository(bundles["text"], repository, device, name="m")
    before = snapshot(repository)
    with monkeypatch.context() as patch, pytest.raises(InputError, match=r"cannot write into .*: No space left"):
        patch.setattr(writing.staging, "place_folders", full)
        triton_repository(bundles["text"], repository, device, name="m", force=True)
    assert snapshot(repository) == before


def test_folders_are_restored_if_one_cannot_be_placed(tmp_path: Path) -> None:
    for name in ("a", "b", "new-a", "new-b", "new-c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    before, names = snapshot(tmp_path), ("a", "c", "b")
    with pytest.raises(OSError, match="missing"):
        staging.place_folders(
            {tmp_path / name: tmp_path / f"new-{name}" for name in names[:2]} | {tmp_path / "b": tmp_path / "missing"}
        )
    after = snapshot(tmp_path)
    assert {name: after[name] for name in ("a/file", "b/file")} == {name: before[name] for name in ("a/file", "b/file")}
    assert not (tmp_path / "c").exists()
    assert not list(tmp_path.glob(".*"))


def test_foreign_folders_are_not_replaced(bundles: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "m/1").mkdir(parents=True)
    (tmp_path / "m/1/model.onnx").write_text("somebody's")
    (tmp_path / "file").write_text("x")
    for name, problem in (("m", "was not written by"), ("file", "exists")):
        with pytest.raises(InputError, match=f"{name} {problem}"):
            triton_repository(bundles["text"], tmp_path, name=name, force=True)
    assert snapshot(tmp_path) == {"m/1/model.onnx": b"somebody's", "file": b"x"}
    with pytest.raises(InputError, match="inside the bundle"):
        triton_repository(bundles["text"], bundles["text"] / "repository")


@pytest.mark.parametrize(("options", "message"), [
    ({"device": "tpu"}, "device"),
    ({"name": "../m"}, "name"),
    ({"device": "gpu", "settings": TritonSettings(threads=2)}, "threads"),
    ({"settings": TritonSettings(graph_backend="tensorrt")}, "graph_backend"),
    ({"settings": TritonSettings(precision="fp16")}, "model.fp16.onnx"),
])  # fmt: skip
def test_options_that_cannot_be_used(
    options: dict[str, Any], message: str, bundles: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        triton_repository(bundles["text"], tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()
