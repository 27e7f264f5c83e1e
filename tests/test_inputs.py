"""Inputs of all types: rows, bytes, tensors and data sets in Python; patterns, URLs and hub names."""

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import fsspec
import hydrant
import numpy as np
import pandas
import pytest
import torch
from hydrant import Figures
from hydrant.data.data_options import DataOptions
from hydrant.data.data_sources import check_named, hub_name, named_rows, shown
from hydrant.data.examples import read_examples
from hydrant.data.python_inputs import given_inputs
from hydrant.errors import InputError, MissingExtraError
from PIL import Image
from support import make_model

LABELS = list("abcde")
ROWS = [{"text": "hello world", "label": "a"}, {"text": "the money", "label": "c"}]
CSV = "text,label\nhello world,a\nthe money,c\n"
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 9, 11, 3), np.uint8)


def as_bytes(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


class Listed(torch.utils.data.Dataset[Any]):
    """A map-style torch data set, without an iterator."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


@pytest.mark.parametrize("make", [
    list,
    iter,
    Listed,
    lambda rows: [(row["text"], torch.tensor(LABELS.index(row["label"]))) for row in rows],
    lambda rows: ([{"text": row["text"]} for row in rows], [row["label"] for row in rows]),
    lambda rows: (Listed([row["text"] for row in rows]), torch.tensor([0, 2])),
    lambda rows: ([row["text"] for row in rows], ("0", "2")),
    lambda rows: ([row["text"] for row in rows], pandas.Series([0.0, 2.0])),
    lambda rows: datasets.DatasetDict(validation=datasets.Dataset.from_list(rows)),
    lambda rows: datasets.IterableDatasetDict({"x": datasets.Dataset.from_list(rows).to_iterable_dataset()}),
])  # fmt: skip
def test_labelled_data_of_all_types(make: Callable[[list[dict[str, Any]]], Any]) -> None:
    examples = read_examples(make(ROWS), LABELS)
    assert list(examples.inputs) == ["hello world", "the money"]
    assert examples.labels.tolist() == [0, 2]


def test_a_dict_of_columns_is_read_as_rows() -> None:
    table = datasets.Dataset.from_list(ROWS)
    for columns in (table[:2], {"text": [row["text"] for row in ROWS], "label": np.array([0, 2])}):
        examples = read_examples(columns, LABELS)
        assert examples.inputs == ["hello world", "the money"]
        assert np.asarray(examples.labels).tolist() == [0, 2]
        assert list(given_inputs(columns, "text")) == ["hello world", "the money"]
        assert list(given_inputs(columns, "text", "text")) == ["hello world", "the money"]
    assert list(given_inputs({"tokens": [["a", "b"], ["c"]]}, "text")) == [["a", "b"], ["c"]]
    assert list(given_inputs({"tokens": ["a", "b"]}, "text")) == [["a", "b"]]
    assert list(given_inputs({"audio": [0.5, 0.25]}, "audio")) == [[0.5, 0.25]]
    with pytest.raises(InputError, match="unequal lengths"):
        given_inputs({"text": ["a", "b"], "id": 3}, "text")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: [{"sentence": "a", "label": 0}], "input 0 .* sentence, label; expected 'text'"),
        (lambda: pandas.DataFrame({"text": ["a"], "intent": [0]}), "columns text, intent; expected 'label'"),
        (lambda: datasets.DatasetDict(a=datasets.Dataset.from_list(ROWS), b=datasets.Dataset.from_list(ROWS)),
         r"the data set has the splits a, b; expected one of them, as data\['a'\]"),
        (lambda: [{"text": ["a"], "label": 0}], "input 0 is a list"),
    ],
)  # fmt: skip
def test_errors_for_wrong_names_list_the_existing_ones(
    make: Callable[[], Any], message: str, text_bundle: Path
) -> None:
    with pytest.raises(InputError, match=message):
        hydrant.evaluate(text_bundle, make(), figures=Figures(bootstrap=0))


def test_rows_and_tables_of_pairs_are_predicted_as_pairs(text_bundle: Path) -> None:
    pairs = [("hello world", "money"), ("the", "what is the weather")]
    rows = [{"first": first, "second": second} for first, second in pairs]
    names: dict[str, Any] = {"text_column": "first", "text_pair_column": "second"}
    with hydrant.load(text_bundle) as predictor:
        expected = predictor.predict(pairs).probabilities
        for data in (rows, iter(rows), pandas.DataFrame(rows), datasets.Dataset.from_list(rows)):
            np.testing.assert_array_equal(predictor.predict(data, **names).probabilities, expected)
        usual = [{"text": first, "text_pair": second} for first, second in pairs]
        np.testing.assert_array_equal(predictor.predict(usual).probabilities, expected)
        np.testing.assert_allclose(predictor.predict(usual[0]).probabilities, expected[:1], atol=1e-6)
        for data in (pandas.DataFrame(rows), rows):
            with pytest.raises(InputError, match=r"first, second; expected .*'third'"):
                predictor.predict(data, text_column="first", text_pair_column="third")
        with pytest.raises(InputError, match=r"input 0 is a str; .* 'first'"):
            predictor.predict(["hello"], text_column="first")
        failed = predictor.predict([{"text": "hello"}, {"title": "hello"}], on_error="row")
        assert failed.error[0] is None
        assert failed.error[1].startswith("input 1 is a dict with the keys title")


def test_an_image_of_any_type_gives_the_same_prediction(image_bundle: Path) -> None:
    pixels = PIXELS[0]
    table = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(pixels)]}, datasets.Features({"image": datasets.Image()})
    )
    undecoded = table.cast_column("image", datasets.Image(decode=False))
    with hydrant.load(image_bundle) as predictor:
        expected = predictor.predict(pixels).probabilities
        tensor = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
        raw = (as_bytes(pixels), [bytearray(as_bytes(pixels))], tensor, tensor[None], Listed([{"image": tensor}]))
        tables = (table, undecoded, undecoded.to_pandas(), datasets.DatasetDict(test=table))
        for data in (*raw, *tables, {"image": Image.fromarray(pixels)}, {"image": pixels}):
            np.testing.assert_allclose(predictor.predict(data).probabilities, expected, atol=1e-6)
        with pytest.raises(InputError, match="input 0"):
            predictor.predict(b"no image")
        with pytest.raises(InputError, match="pixel_values"):
            predictor.predict([tensor / 255])
        ready = torch.zeros(2, 3, 12, 12, requires_grad=True)
        assert len(predictor.predict({"pixel_values": ready})) == 2


def test_equal_class_names_get_their_index(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    names = ["crane", "heron", "crane", "maillot", "stork"]
    ensemble = hydrant.fuse(make_model("vit", id2label=dict(enumerate(names))))
    labels = hydrant.save_bundle(ensemble, tmp_path / "bundle", tensors_only=True).labels
    assert labels == ["crane (0)", "heron", "crane (2)", "maillot", "stork"]
    assert "crane (2)" in caplog.text
    with pytest.raises(InputError, match=r"crane \(2\)"):
        read_examples((["a"], ["crane"]), labels)


@pytest.fixture
def memory() -> Iterator[Any]:
    """The in-memory file system of fsspec, emptied after the test."""
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/", recursive=True)


def texts(name: str | Path, columns: DataOptions = DataOptions()) -> list[Any]:
    return [(row.input, row.label) for row in named_rows(name, columns)]


def test_a_pattern_reads_its_files_in_order(tmp_path: Path) -> None:
    for name, word in (("part-2.csv", "second"), ("part-1.csv", "first"), ("other.csv", "no")):
        (tmp_path / name).write_text(f"text,label\n{word},a\n")
    assert texts(f"{tmp_path}/part-*.csv") == [("first", "a"), ("second", "a")]
    (tmp_path / "[x].csv").write_text("text,label\nitself,a\n")
    assert texts(f"{tmp_path}/[x].csv") == [("itself", "a")], "an existing file takes precedence"
    for name, pixels in (("cat/1.png", PIXELS[0]), ("dog/2.png", PIXELS[1])):
        (tmp_path / "pets" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "pets" / name)
    assert texts(f"{tmp_path}/pets/*/*.png") == texts(tmp_path / "pets")
    for read in (texts, check_named):
        with pytest.raises(InputError, match=r"none-\*.csv"):
            read(f"{tmp_path}/none-*.csv")


def test_files_behind_urls_are_read_as_files(tmp_path: Path, memory: Any) -> None:
    local = tmp_path / "a b.csv"
    local.write_text(CSV)
    assert texts(f"file://{local}") == texts(local)
    memory.pipe({"/data/1.csv": CSV.encode(), "/data/2.jsonl": json.dumps(ROWS[0]).encode()})
    assert texts("memory://data/1.csv") == texts(local)
    assert texts("memory://data/*") == [*texts(local), ("hello world", "a")]
    packed = io.BytesIO()
    np.savez(packed, x=np.array(["a", "b"]), y=np.array([0, 1]))
    memory.pipe("/data/3.npz", packed.getvalue())
    assert texts("memory://data/3.npz") == [("a", 0), ("b", 1)]
    pandas.DataFrame(ROWS).to_parquet(tmp_path / "x.parquet")
    memory.pipe("/data/4.parquet", (tmp_path / "x.parquet").read_bytes())
    assert texts("memory://data/4.parquet") == texts(local)
    memory.pipe({"/pets/cat/1.png": as_bytes(PIXELS[0]), "/pets/dog/2.png": as_bytes(PIXELS[1])})
    memory.pipe("/pets/notes.txt", b"no image")
    for name in ("memory://pets", "memory://pets/*/*.png"):
        assert texts(name) == [(as_bytes(PIXELS[0]), "cat"), (as_bytes(PIXELS[1]), "dog")]
        assert [row.where for row in named_rows(name)] == ["memory:///pets/cat/1.png", "memory:///pets/dog/2.png"]


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("memory://absent-*.csv", InputError, r"data memory://absent-\*.csv"),
        ("memory://data/bad.csv", InputError, r"memory:///data/bad.csv .*'text'"),
        ("memory://absent.csv?token=secret", InputError, "absent"),
        ("memory://data/row.csv", InputError, r"memory:///data/row.csv, row 2"),
        ("s3://bucket/train.csv", MissingExtraError, "s3fs"),
        ("nonsense://x.csv", InputError, "nonsense"),
    ],
)  # fmt: skip
def test_unreadable_urls(name: str, error: Any, message: str, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    files = {"bad.csv": b"sentence\nhello\n", "row.csv": b"text,label\na,b\nc\n"}
    memory.pipe({f"/data/{file}": content for file, content in files.items()})
    with pytest.raises(error, match=message) as caught:
        texts(name)
    assert "/tmp" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert shown("https://user:word@host:80/a/train.csv?X-Signature=abc#x") == "https://host:80/a/train.csv"


def test_names_of_the_hub() -> None:
    assert hub_name("hf:clinc/oos:plus") == ("clinc/oos", "plus", None)
    assert hub_name("hf:imdb::test") == ("imdb", None, "test")
    with pytest.raises(InputError, match="hf:a:b:c:d"):
        check_named("hf:a:b:c:d")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder like a hub repository with two configurations, of two splits and of one split."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "train.csv").write_text(CSV)
    (folder / "test.csv").write_text("text,label\nwhat is the weather,b\n")
    configs = [
        {"config_name": "plus", "data_files": [{"split": s, "path": f"{s}.csv"} for s in ("train", "test")]},
        {"config_name": "small", "data_files": [{"split": "test", "path": "test.csv"}]},
    ]
    (folder / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    return f"hf:{folder}"


def test_a_data_set_by_configuration_and_split(repository: str) -> None:
    assert texts(f"{repository}:plus:train") == [("hello world", "a"), ("the money", "c")]
    assert texts(f"{repository}:small") == [("what is the weather", "b")]
    (row,) = named_rows(f"{repository}:plus:test")
    assert row.where == f"{repository}:plus:test, row 1"
    for name in (f"{repository}:plus", f"{repository}:plus:validation"):
        with pytest.raises(InputError, match=r"train, test.*hf:.*:plus:train"):
            texts(name)
    with pytest.raises(InputError, match=r"plus.*small"):
        texts(repository)
    with pytest.raises(InputError, match="'sentence'"):
        texts(f"{repository}:small", DataOptions(text="sentence"))
