"""Token classification of texts in C++: words and offsets from ``tokenizer.onnx``, spans in C++."""

import io
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
from conftest import made_once
from cpp import alike, inputs_of, lines, refused, run
from cpp_server import binary_outputs, ids_body, infer_body, serving
from golden import middle, write_calibration, write_density
from hydrant import Bundle
from hydrant.bundle.calibration import Calibration, Threshold
from hydrant.bundle.store import TOKENIZER_GRAPH
from hydrant.data.data_files import stream_lines
from hydrant.data.text import WordProcessor
from hydrant.errors import InputError
from hydrant.export.tokenizer_onnx import made_tokenizer
from hydrant.serving.oip import outputs_of
from support import feeds, named, predicted, random_plan
from test_tokenizer_graph import TEXTS, bytes_tokenizer, letters_tokenizer, read_once  # noqa: F401 (a fixture)
from token_support import TAGS, make_tagger, sentences

LISTS = [["Anna", "lives", "in", "New-York", "."], ["日本", "cafe\u0301", "\u200d", "[SEP]x"], *sentences(5)[0]]
ALL = [*TEXTS, *map(" ".join, LISTS), "a\u200db [MASK] \u0301c — 日本語"]
UNUSUAL = ["O", "E-PER", "S-LOC", "I", "NOUN", "L-PER", "U-LOC", "M"]


def make_bundle(folder: Path, tags: list[str], lower: bool) -> Bundle:
    """A bundle that predicts every tag, with distance, thresholds and tokenizer graph."""
    model: Any = make_tagger(vocab_size=400, **named(tags))
    tokenizer = letters_tokenizer(folder / "source", lower)
    with torch.no_grad():  # make all classes equally frequent
        inputs = tokenizer(ALL, padding=True, truncation=True, return_tensors="pt")
        members = hydrant.fuse(model, random_plan("bert", 3))(**inputs).member_logits
        logits = members.mean(0)[inputs["attention_mask"] > 0]
        model.classifier.weight /= logits.std(0)[:, None]
        model.classifier.bias -= logits.mean(0)
        model.classifier.bias /= logits.std(0)
    bundle = hydrant.save_bundle(hydrant.fuse(model, random_plan("bert", 3)), folder / "bundle", tokenizer)
    bundle = write_density(bundle, feeds("bert", 70))
    prediction = predicted(bundle, ALL, "torch")
    assert prediction.distance is not None
    limits = {"abstain": ("confidence", prediction.confidence), "ood": ("distance", prediction.distance)}
    thresholds = {name: Threshold(score, middle(values[prediction.mask])) for name, (score, values) in limits.items()}
    bundle = write_calibration(bundle, Calibration(1.0, thresholds))
    hydrant.export_onnx(bundle, form=hydrant.GraphForm(member_outputs=True))
    bundle = Bundle.open(bundle.path)
    content, report = made_tokenizer(bundle, 0, 150)
    assert (report.pairs, report.lists) == (0, (report.texts + 1) // 2)
    return bundle.add({TOKENIZER_GRAPH: content})


def make_bundles(folder: Path) -> None:
    """Bundles with ordinary and unusual tags, in ``usual`` and ``unusual``."""
    make_bundle(folder / "usual", TAGS, lower=True)
    make_bundle(folder / "unusual", UNUSUAL, lower=False)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    pytest.importorskip("onnxruntime_extensions")
    folder = made_once(tmp_path_factory, "taggers", make_bundles)
    return {name: Bundle.open(folder / name / "bundle") for name in ("usual", "unusual")}


@pytest.mark.parametrize(("name", "aggregation"), [("usual", "first"), ("usual", "mean"), ("unusual", "max")])
def test_words_and_spans_are_those_of_python(
    name: str, aggregation: Any, runner: Path, bundles: dict[str, Bundle], library: dict[str, str]
) -> None:
    path = bundles[name].path
    with hydrant.load(path, "onnxruntime") as predictor:
        prediction = predictor.predict(ALL)
        wanted = predictor.rows(prediction, ALL, probabilities=True, aggregation=aggregation)
    words = (*ALL, "--probabilities", "--aggregation", aggregation, "--batch-size", 4)
    alike(lines(run(runner, path, *words, **library)), wanted)
    spans = [span for row in wanted for span in row["spans"]]
    assert any(span["first_word"] < span["last_word"] for span in spans)
    assert {span["abstain"] for span in spans} == {span["out_of_distribution"] for span in spans} == {True, False}


@pytest.fixture
def with_library(library: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in library.items():
        monkeypatch.setenv(key, value)


def test_the_server_reads_texts_and_lists_of_words(
    runner: Path, bundles: dict[str, Bundle], with_library: None
) -> None:
    path = bundles["usual"].path
    with hydrant.load(path, "onnxruntime") as predictor:
        inputs = [*ALL[:4], *LISTS]
        wanted = predictor.rows(predictor.predict(inputs), inputs, aggregation="mean")
        texts = predictor.predict(ALL)
        first = predictor.predict(ALL[:1])
    with serving(runner, path) as server:
        body = {"inputs": [*ALL[:3], {"text": ALL[3]}, *LISTS[:-1], {"tokens": LISTS[-1]}], "aggregation": "mean"}
        status, reply, _ = server.ask("POST", "/predict", body)
        assert status == 200, reply
        alike(reply["predictions"], wanted)
        text = {"name": "text", "datatype": "BYTES", "shape": [len(ALL)], "data": ALL}
        status, reply, _ = server.ask("POST", "/v2/models/bundle/infer", {"inputs": [text]})
        assert status == 200, reply
        outputs = {each["name"]: each for each in reply["outputs"]}
        for name in ("words", "offsets", "mask", "label_index"):
            field: Any = getattr(texts, "label" if name == "label_index" else name)
            assert outputs[name]["shape"] == list(field.shape)
            assert outputs[name]["data"] == field.ravel().tolist(), name
        blank = np.array([np.nan if value is None else value for value in outputs["distance"]["data"]])
        np.testing.assert_allclose(blank, texts.distance.ravel(), atol=1e-5)  # type: ignore[union-attr]
        ids = {name: [[1] * first.mask.shape[1]] for name in ("input_ids", "attention_mask")}  # type: ignore[union-attr]
        for wrong in ([[]], [["a", " "]], [["a", 1]], [{"text_pair": "a"}]):
            assert server.refusal(400, "POST", "/predict", {"inputs": wrong})
        assert "'last'" in server.refusal(400, "POST", "/predict", {"inputs": ["a"], "aggregation": "last"})
        assert "aggregation" in server.refusal(400, "POST", "/predict", {"inputs": ids, "aggregation": "first"})
        assert server.ask("POST", "/predict", {"inputs": ids})[0] == 200


def test_long_texts_take_bounded_memory(runner: Path, bundles: dict[str, Bundle], with_library: None) -> None:
    """One endless word costs most; two requests run at once. The deployed unit may use 512 MiB."""
    most = 2**18
    with serving(runner, bundles["usual"].path) as server, ThreadPoolExecutor(2) as two:
        bodies = [{"inputs": [text]} for text in ("x" * most, ["hello"] * (most // 6))]
        assert list(two.map(lambda body: server.ask("POST", "/predict", body)[0], bodies)) == [200, 200]
        for long in ("x" * (most + 1), ["hello"] * (most // 6 + 1)):
            refusal = server.refusal(413, "POST", "/predict", {"inputs": ["a", long]})
            assert "input 1 has 2621" in refusal and refusal.endswith("262144")
        text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["é" * (most // 2 + 1)]}
        refusal = server.refusal(413, "POST", "/v2/models/bundle/infer", {"inputs": [text]})
        assert refusal.startswith("input 0 has 262146 bytes")
        memory = Path(f"/proc/{server.process.pid}/status").read_text()
        assert int(memory.split("VmHWM:")[1].split()[0]) < 400_000, "kB"


def test_lines_are_those_of_python(
    runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    content = b"\xef\xbb\xbfthe money\r\nhello\r\r\n\xef\xbb\xbfagain\na\rb\nthe\r"
    (tmp_path / "lines.txt").write_bytes(content)
    rows = lines(run(runner, bundles["usual"].path, "--input", tmp_path / "lines.txt", **library))
    assert [row["input"] for row in rows] == [row.input for row in stream_lines(io.BytesIO(content))]


def test_rows_before_a_refused_input_are_printed(
    runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "lines.txt").write_text("a text\n" * 5 + "\n" + "a text\n" * 5)
    words = (runner, bundles["usual"].path, "--input", tmp_path / "lines.txt", "--batch-size", 2)
    done = run(*words, **library)
    assert (done.returncode, len(done.stdout.splitlines())) == (2, 4)
    refused(run(*words, "--json", **library), "input 5 is an empty text")
    for wrong, name in ((["--pair", "a", "b"], "pair"), (["\u200d"], "no token"), (["a", "--aggregation", "x"], "'x'")):
        refused(run(*words[:2], *wrong, **library), name)


def test_a_graph_of_other_words_is_refused(bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer with other offsets represents a graph with other offsets."""
    monkeypatch.setattr("hydrant.export.tokenizer_onnx.fuzzed_texts", lambda *_: TEXTS)
    made = WordProcessor._truncated

    def later(*arguments: Any) -> Any:
        words: Any = made(*arguments)
        return replace(words, offsets=[(start, end + 1) for start, end in words.offsets])

    monkeypatch.setattr(WordProcessor, "_truncated", later)
    with pytest.raises(InputError, match="other offsets"):
        made_tokenizer(bundles["usual"], 0, 10)


BINARY = {"binary_data_output": True}


def test_the_server_answers_as_pythons(runner: Path, golden: Path) -> None:
    """Padding is null in JSON and NaN in binary form; the token axis ends at the longest text."""
    path = golden / "tokens/bundle"
    tensors = {name: np.pad(array[:9], ((0, 0), (0, 4))) for name, array in inputs_of(golden / "tokens").items()}
    with hydrant.load(path, "onnxruntime") as predictor:
        served: Any = type("Served", (), {"predictor": predictor})
        request: Any = type("Request", (), {"outputs": ()})
        expected = {each.name: each for each in outputs_of(predictor.predict(tensors), request, served)}
    longest = expected["mask"].data.shape[1]
    assert longest < tensors["input_ids"].shape[1]
    with serving(runner, path) as server:
        _, metadata, _ = server.ask("GET", "/v2/models/bundle")
        status, reply, _ = server.ask("POST", "/v2/models/bundle/infer", infer_body(tensors))
        assert status == 200, reply
        _, content, headers = server.ask_bytes("/v2/models/bundle/infer", *ids_body(tensors, parameters=BINARY))
        _, plain, _ = server.ask(
            "POST", "/predict", {"inputs": {name: each.tolist() for name, each in tensors.items()}}
        )
    shapes = {each["name"]: each["shape"] for each in metadata["outputs"]}
    assert (shapes["probabilities"], shapes["label"]) == ([-1, -1, len(TAGS)], [-1, -1])
    assert {each["name"]: each["datatype"] for each in reply["outputs"]} == {
        name: each.datatype for name, each in expected.items()
    }
    _, in_binary = binary_outputs(content, headers)
    for each in reply["outputs"]:
        wanted = expected[each["name"]].data
        assert each["shape"] == list(wanted.shape), each["name"]
        if each["datatype"] == "BYTES":
            assert each["data"] == [label.decode() for label in wanted.ravel()]
            continue
        values = np.array([np.nan if value is None else value for value in each["data"]])
        np.testing.assert_allclose(values, wanted.ravel().astype(float), atol=1e-6, err_msg=each["name"])
        np.testing.assert_allclose(
            in_binary[each["name"]].astype(float), wanted.astype(float), atol=1e-6, err_msg=each["name"]
        )
    assert [len(row["tokens"]) for row in plain["predictions"]] == tensors["attention_mask"].sum(axis=1).tolist()


def test_refusals(runner: Path, golden: Path, tmp_path: Path) -> None:
    inputs = golden / "tokens/inputs.npz"
    sets = {"conformal": {"method": "lac", "alpha": 0.1, "quantile": 0.5}}
    for name, change, words in (
        ("config.json", {"token_pooling": "mean"}, "token_pooling"),
        ("calibration.json", sets, "prediction sets"),
    ):
        bundle = Bundle.open(shutil.copytree(golden / "tokens/bundle", tmp_path / name, dirs_exist_ok=True))
        data = json.loads((bundle.path / name).read_bytes())
        bundle.add({name: json.dumps({**data, **change}).encode()})
        refused(run(runner, bundle.path, inputs), words)
        shutil.rmtree(bundle.path)
