from __future__ import annotations

import base64
import io
import json
import math
import os
import pickle
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import combinations
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pyarrow.parquet.encryption
import pytest
import torch
from hydrant.data import data_files as record_files
from hydrant.data.data_files import file_rows, stream_lines
from hydrant.data.data_options import DataOptions
from hydrant.data.examples import Examples, check_apart, random_parts, read_examples
from hydrant.data.label_encoding import label_index
from hydrant.data.python_inputs import given_inputs
from hydrant.errors import InputError
from PIL import Image

LABELS = ["apple", "pear", "plum"]
ROWS = [
    ("hello, world", "plum"),
    ("NA", "apple"),
    ("null", "pear"),
    ("007", "apple"),
    ('she said "no"', "plum"),
    ("two\nlines", "pear"),
    (" spaced ", "apple"),
    ("1e5", "plum"),
    ("True", "apple"),
    ("grüße 🙂", "pear"),
    ("2026-01-02T03:04:05Z", "plum"),
]
TEXTS, NAMES = [text for text, _ in ROWS], [name for _, name in ROWS]
INDICES = [LABELS.index(name) for name in NAMES]


def quoted(value: str) -> str:
    return '"' + value.replace('"', '""') + '"'


def write_csv(path: Path, separator: str = ",") -> None:
    lines = [f"text{separator}label", *(f"{quoted(text)}{separator}{name}" for text, name in ROWS)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_jsonl(path: Path) -> None:
    lines = [json.dumps({"text": text, "label": name}, ensure_ascii=False) for text, name in ROWS]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"text": TEXTS, "label": NAMES}), path)


def write_npz(path: Path) -> None:
    np.savez(path, x=np.array(TEXTS), y=np.array(NAMES))


def write_images(folder: Path, classes: tuple[str, ...] = ("apple", "pear"), each: int = 2) -> None:
    for index, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(each):
            pixels = np.full((5, 7, 3), 40 * index + number, np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def classes_of(examples: Examples) -> list[int]:
    assert examples.labels is not None
    assert examples.labels.dtype == np.int64
    return examples.labels.tolist()


# Readers


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("data.csv", write_csv),
        ("data.CSV", write_csv),
        ("data.tsv", lambda path: write_csv(path, "\t")),
        ("data.jsonl", write_jsonl),
        ("data.parquet", write_parquet),
        ("data.npz", write_npz),
        ("with space, [v1] & more*.csv", write_csv),
    ],
)
def test_file_is_read_word_for_word(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / name
    write(path)
    examples = read_examples(path, LABELS)
    assert list(examples.inputs) == TEXTS
    assert classes_of(examples) == INDICES
    assert len(examples) == len(ROWS)
    assert examples.source == str(path)
    assert [row.input for row in file_rows(str(path))] == TEXTS


def test_only_the_named_file_is_read(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"data{number}.csv").write_text(f"text,label\nrow {number},apple\n")
    (tmp_path / "data[12].csv").write_text("text,label\nbracketed,apple\n")
    assert list(read_examples(tmp_path / "data[12].csv", LABELS).inputs) == ["bracketed"]


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes("text,label\r\ngrün,pear\r\nrot,apple\r\n".encode("utf-8-sig"))
    examples = read_examples(path, LABELS)
    assert list(examples.inputs) == ["grün", "rot"]
    assert classes_of(examples) == [1, 0]


def test_other_columns_by_name(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("id,intent,utterance\n1,pear,hi\n2,plum,ho\n")
    examples = read_examples(path, LABELS, columns=DataOptions(text="utterance", label="intent"))
    assert list(examples.inputs) == ["hi", "ho"]
    assert classes_of(examples) == [1, 2]


def test_json_lines_text_that_looks_like_a_time_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"text": "2026-01-02T03:04:05Z", "label": 2}\n{"text": "2025-01-02T00:00:00+02:00", "label": 0}\n')
    examples = read_examples(path, LABELS)
    assert list(examples.inputs) == ["2026-01-02T03:04:05Z", "2025-01-02T00:00:00+02:00"]
    assert classes_of(examples) == [2, 0]


def test_image_folder(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    examples = read_examples(tmp_path / "images", LABELS)
    assert [Path(path).relative_to(tmp_path / "images").as_posix() for path in examples.inputs] == [
        "apple/0.png",
        "apple/1.png",
        "pear/0.png",
        "pear/1.png",
    ]
    assert classes_of(examples) == [0, 0, 1, 1]
    assert [row.label for row in file_rows(tmp_path / "images")] == ["apple", "apple", "pear", "pear"]


def test_image_folder_with_brackets_in_its_name(tmp_path: Path) -> None:
    write_images(tmp_path / "images [v1]")
    assert classes_of(read_examples(tmp_path / "images [v1]", LABELS)) == [0, 0, 1, 1]


def test_image_folder_of_one_class(tmp_path: Path) -> None:
    write_images(tmp_path / "images", ("pear",))
    assert classes_of(read_examples(tmp_path / "images", LABELS)) == [1, 1]


@pytest.mark.parametrize(
    ("classes", "pattern"), [(("car", "train"), ""), (("test", "other"), ""), (("train", "test"), "*/*")]
)
def test_class_named_like_a_split_is_a_class(classes: tuple[str, ...], pattern: str, tmp_path: Path) -> None:
    write_images(tmp_path / "images", classes)
    examples = read_examples(f"{tmp_path}/images/{pattern}", classes)
    assert Counter(classes_of(examples)) == {0: 2, 1: 2}


@pytest.mark.parametrize(
    "splits",
    [("train", "test"), ("Training", "val"), ("train2017", "val2017"), ("a/dev", "a/eval"), ("train", "test", "x")],
)
@pytest.mark.parametrize("url", [False, True])
def test_a_folder_of_splits_is_refused(splits: tuple[str, ...], url: bool, tmp_path: Path) -> None:
    """One of them is read."""
    folder = tmp_path / "images"
    for split in splits:
        write_images(folder / split)
    name = folder.as_uri() if url else folder
    for labels in (LABELS, None):
        with pytest.raises(InputError, match="splits") as refused:
            read_examples(name, labels)
        for split in splits[:2]:
            assert f"images/{split}" in str(refused.value)
    assert classes_of(read_examples(f"{name}/{splits[0]}", LABELS)) == [0, 0, 1, 1]


@pytest.mark.parametrize("hidden", [".cache", ".ipynb_checkpoints/apple", "apple/.thumbnails", "__MACOSX/apple/._"])
@pytest.mark.parametrize("url", [False, True])
def test_hidden_files_and_folders_are_not_read(hidden: str, url: bool, tmp_path: Path) -> None:
    folder = tmp_path / ".data" / "images"
    write_images(folder)
    place = folder / f"{hidden}{'' if hidden.endswith('._') else '/'}0.png"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes((folder / "pear" / "0.png").read_bytes())
    assert classes_of(read_examples(folder.as_uri() if url else folder, LABELS)) == [0, 0, 1, 1]


def test_image_folder_skips_files_that_are_no_images(tmp_path: Path) -> None:
    write_images(tmp_path / "images")
    (tmp_path / "images" / "apple" / "notes.txt").write_text("not an image")
    assert len(read_examples(tmp_path / "images", LABELS)) == 4


def test_npz_images_with_indices(tmp_path: Path) -> None:
    images = np.arange(2 * 4 * 5 * 3, dtype=np.uint8).reshape(2, 4, 5, 3)
    notes = np.array([{"of": "a camera"}, None], dtype=object)
    np.savez(tmp_path / "data.npz", x=images, y=np.array([2, 0]), notes=notes)  # which nobody asks for
    examples = read_examples(tmp_path / "data.npz", LABELS)
    assert all(np.array_equal(found, image) for found, image in zip(examples.inputs, images, strict=True))
    assert classes_of(examples) == [2, 0]


def test_dataset_of_texts() -> None:
    dataset = datasets.Dataset.from_dict({"text": TEXTS, "label": NAMES})
    examples = read_examples(dataset, LABELS)
    assert list(examples.inputs) == TEXTS
    assert classes_of(examples) == INDICES
    assert "text, label" in examples.source


def test_dataset_of_images() -> None:
    pictures = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    dataset = datasets.Dataset.from_dict({"image": pictures, "label": [0, 2]}).cast_column("image", datasets.Image())
    examples = read_examples(dataset, LABELS)
    assert [picture.size for picture in examples.inputs] == [(4, 4), (4, 4)]
    assert classes_of(examples) == [0, 2]


def test_class_names_of_a_dataset_are_matched_by_name() -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=LABELS[::-1])})
    dataset = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["plum", "apple"]}, features=features)
    assert dataset["label"][:] == [0, 2]
    assert classes_of(read_examples(dataset, LABELS)) == [2, 0]


FORMATS = [None, "numpy", "torch", "pandas", "arrow", "polars", "jax", "tensorflow"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_of_datasets_is_read(kind: str | None, stream: bool) -> None:
    """With the names that the data set has for its classes: the table, and its columns by themselves."""
    table = unlabelled([2, 0, 1])
    names = [table.features["label"].int2str(index) for index in table.with_format(None)["label"]]
    given = table.to_iterable_dataset() if stream else table
    try:
        given = given.with_format(kind)
    except ValueError:
        pytest.skip(f"{kind} is not installed")
    labels = LABELS[::-1]  # of the model: another order than that of the data set
    expected = [labels.index(name) for name in names]
    for data in (given, datasets.DatasetDict(test=given) if not stream else given):
        assert read_examples(data, labels).inputs == ["a", "b", "c"]
        assert classes_of(read_examples(data, labels)) == expected
        assert list(given_inputs(data, "text")) == ["a", "b", "c"]
    assert list(given_inputs(given["text"], "text")) == ["a", "b", "c"]
    read = read_examples((given["text"], given["label"]), labels)
    assert read.inputs == ["a", "b", "c"]
    if isinstance(given["label"], datasets.arrow_dataset.Column | datasets.iterable_dataset.IterableColumn):
        assert classes_of(read) == expected
    else:  # a column of pandas or Arrow, which knows no names
        assert kind in ("pandas", "arrow", "polars")
        assert classes_of(read) == [2, 0, 1]


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_slices_and_rows_of_a_formatted_data_set_are_read(kind: str) -> None:
    table = unlabelled([2, 0, 1]).with_format(kind)
    for data in (table[:], [table[index] for index in range(3)]):
        assert classes_of(read_examples(data, LABELS)) == [2, 0, 1]
        assert list(read_examples(data, LABELS).inputs) == ["a", "b", "c"]


@pytest.mark.parametrize(("kind", "name"), [("pandas", "pandas.DataFrame"), ("arrow", "pyarrow.Table")])
def test_rows_that_are_tables_are_refused(kind: str, name: str) -> None:
    table = unlabelled([2, 0, 1]).with_format(kind)
    with pytest.raises(InputError, match=name):
        read_examples([table[index] for index in range(3)], LABELS)


def test_what_a_transform_makes_is_read_and_what_it_leaves_out_is_named() -> None:
    table = unlabelled([2, 0, 1])
    upper = table.with_transform(lambda rows: {**rows, "text": [text.upper() for text in rows["text"]]})
    for data in (upper, (upper["text"], upper["label"])):
        assert read_examples(data, LABELS[::-1]).inputs == ["A", "B", "C"]
        assert classes_of(read_examples(data, LABELS[::-1])) == [0, 2, 1]
    with pytest.raises(InputError, match="'label'"):
        read_examples(table.with_transform(lambda rows: {"text": rows["text"]}), LABELS)
    named = table.with_transform(lambda rows: {**rows, "label": table.features["label"].int2str(rows["label"])})
    assert classes_of(read_examples(named, LABELS)) == [2, 0, 1]


def unlabelled(indices: list[int]) -> datasets.Dataset:
    """Texts with indices of LABELS, below 0 where there is none, as data have them whose labels are kept back."""
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=LABELS)})
    return datasets.Dataset.from_dict({"text": list("abcd")[: len(indices)], "label": indices}, features=features)


def test_a_class_below_0_is_none(tmp_path: Path) -> None:
    table, path = unlabelled([2, -1, 0]), tmp_path / "data.parquet"
    table.to_parquet(path)
    for data in (table, table.with_format("numpy"), path):
        assert read_examples(data, None).inputs == ["a", "b", "c"]
        assert read_examples(data, LABELS, need_labels=False).labels is None
        with pytest.raises(InputError, match=r"has no label at .*row 2; expected a column 'label'"):
            read_examples(data, LABELS)
    assert [row.label for row in file_rows(path)] == ["plum", None, "apple"]


def test_a_class_that_its_column_does_not_name_is_refused(tmp_path: Path) -> None:
    table, path = unlabelled([2, 0]), tmp_path / "data.parquet"
    table.to_parquet(path)
    stored = pyarrow.parquet.read_table(path)
    labels = pyarrow.array([1, 3], pyarrow.int64())
    pyarrow.parquet.write_table(stored.set_column(1, stored.schema.field("label"), labels), path)
    with pytest.raises(InputError, match="row 2 has the class 3; expected less than 3, since the column names apple, "):
        read_examples(path, LABELS)


@pytest.mark.parametrize(
    "labels",
    [
        ["plum", "apple"],
        [2, 0],
        np.array([2, 0]),
        ("2", "0"),
        np.array(["plum", "apple"]),
        [2.0, 0.0],
        np.array([2.0, 0.0]),
        ["2.0", "0.0"],
        torch.tensor([2, 0]),
        [torch.tensor(2), torch.tensor(0)],
        pandas.Series([2.0, 0.0]),
    ],
)
def test_pair_in_memory(labels: Any) -> None:
    examples = read_examples((["a", "b"], labels), LABELS)
    assert list(examples.inputs) == ["a", "b"]
    assert classes_of(examples) == [2, 0]
    assert classes_of(read_examples(examples, LABELS)) == [2, 0]


def test_labels_may_be_absent_when_not_needed(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text\nhello\n")
    assert read_examples(path, LABELS, need_labels=False).labels is None
    assert read_examples((["a"], None), LABELS, need_labels=False).labels is None


def polars_like(columns: dict[str, list[Any]]) -> Any:
    """What a polars table offers, for an environment without polars."""
    methods = {"columns": list(columns), "get_column": lambda _, name: pandas.Series(columns[name], dtype=object)}
    return type("DataFrame", (), {**methods, "__module__": "polars.dataframe.frame"})()


TABLES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pandas.DataFrame,
    "polars": polars_like,
    "pyarrow": pyarrow.table,
    "pyarrow batch": pyarrow.record_batch,
    "datasets": datasets.Dataset.from_dict,
    "stream of datasets": lambda columns: datasets.Dataset.from_dict(columns).to_iterable_dataset(),
}


@pytest.mark.parametrize("kind", TABLES)
def test_tables_in_memory(kind: str) -> None:
    make = TABLES[kind]
    table = make({"id": [7, 8], "text": ["a", None], "label": [2, 0]})
    assert list(given_inputs(table, "text")) == ["a", None]
    assert classes_of(read_examples(table, LABELS)) == [2, 0]
    assert list(given_inputs(make({"sentence": ["a", "b"]}), "text")) == ["a", "b"]
    assert list(given_inputs(make({"sentence": ["a", "b"], "text": ["c", "d"]}), "text", "sentence")) == ["a", "b"]
    assert list(given_inputs(make({"text": ["a"], "image": ["a.png"]}), "image")) == ["a.png"]
    two = make({"sentence": ["a"], "note": ["b"]})
    for column, expected in ((None, "text"), ("title", "title")):
        message = f"the table has the columns sentence, note; expected one column '{expected}'"
        with pytest.raises(InputError, match=message):
            given_inputs(two, "text", column)
    with pytest.raises(InputError, match="the table has the columns sentence; expected one column 'text'"):
        given_inputs(make({"sentence": ["a"]}), "text", "text")


def test_labels_that_are_missing_in_a_data_frame() -> None:
    table = pandas.DataFrame({"text": ["a", "b"], "label": [1.0, None]})
    with pytest.raises(InputError, match="has no label at row 2"):
        read_examples(table, LABELS)


def test_a_column_given_twice_is_refused() -> None:
    table = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(InputError, match="the table has the columns text, text; expected one column 'text'"):
        given_inputs(table, "text")


@pytest.mark.parametrize(
    "given",
    [
        ["a", "b"],
        (text for text in "ab"),
        np.array(["a", "b"]),
        np.array(["a", "b"], dtype=object),
        pandas.Series(["a", "b"], index=[5, 3]),
        pandas.Index(["a", "b"]),
        pyarrow.array(["a", "b"]),
        pyarrow.chunked_array([["a"], ["b"]]),
        datasets.Dataset.from_dict({"text": ["a", "b"]})["text"],
        {"a": 0, "b": 1}.keys(),
    ],
    ids=lambda given: type(given).__name__,
)  # fmt: skip
def test_texts_in_any_ordered_form(given: Any) -> None:
    found = list(given_inputs(given, "text"))
    assert found == ["a", "b"]
    assert all(isinstance(text, str) for text in found)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"b", "a"}, "inputs is a set; expected texts, images, sounds, a table"),
        (b"hello", "inputs is a bytes; expected texts"),
        ({"sentence": ["a"]}, "inputs is a dict; expected texts"),
        (3, "inputs is a int; expected texts"),
        (np.array([b"a"]), r"inputs is an array of \|S1 \[1\]; expected one of str \[N\]"),
        (np.array([["a", "b"]]), r"inputs is an array of <U1 \[1, 2\]; expected one of str \[N\]"),
        (np.zeros((2, 4), int), r"inputs is an array of int64 \[2, 4\], but this model reads text; .*token ids in a"),
        (
            type("DataFrame", (), {"columns": ["text"], "__module__": "modin"})(),
            "modin.DataFrame, a table of an",
        ),
        (type("LazyFrame", (), {"collect_schema": 1, "__module__": "polars"})(), "what its collect"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_could_be_meant_in_several_ways_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        given_inputs(given, "text")
    with pytest.raises(InputError, match=r"text_column is 'a', but inputs is a .*; expected a table"):
        given_inputs(given, "text", "a")


@pytest.mark.parametrize(
    ("shape", "images"),
    [((5, 4), 1), ((5, 4, 3), 1), ((7, 5, 4, 3), 7), ((5, 9, 8), 5), ((1, 9, 8), 1), ((3, 9, 3), 1), ((4, 3, 9, 8), 4)],
)
def test_arrays_of_images(shape: tuple[int, ...], images: int) -> None:
    assert len(list(given_inputs(np.zeros(shape, np.uint8), "image"))) == images


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 9, 8), r"\[3, 9, 8\]: one image with its channels first, or 3 grey .*array\.transpose\(1, 2, 0\) gives"),
        (
            (9, 8, 1),
            r"\[9, 8, 1\]: one image with its channels last, or 9 grey ones; expected \[height, width, 3\] for",
        ),
        ((9, 8, 4), r"\[9, 8, 4\]: one image with its channels last, or 9 grey ones"),
        ((9,), r"\[9\]; expected images \[N, height, width, 3\]"),
    ],
)
def test_arrays_that_may_be_one_image_or_many(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=f"inputs is an array of uint8 {message}"):
        given_inputs(np.zeros(shape, np.uint8), "image")


def test_one_image_is_no_npz_of_many(tmp_path: Path) -> None:
    for shape in ((9, 8, 3), (3, 9, 8)):
        np.savez(tmp_path / "data.npz", x=np.zeros(shape, np.uint8))
        with pytest.raises(InputError, match=r"x of .*data\.npz is an array of uint8 .*: one image with its channels"):
            list(file_rows(tmp_path / "data.npz"))
    np.savez(tmp_path / "data.npz", x=np.zeros((3, 9, 8), np.uint8), y=np.zeros(3, int))  # three labels: three images
    assert len(read_examples(tmp_path / "data.npz", LABELS)) == 3


def test_texts_of_an_npz_file_that_are_no_characters_are_refused(tmp_path: Path) -> None:
    texts = np.array(["ab", "cd"])
    texts.view(np.uint32)[1] = 0x7FFFFFFF
    for wrong in (texts, texts.astype(">U2")):
        np.savez(tmp_path / "data.npz", x=wrong)
        with pytest.raises(InputError, match=r"cannot read .*data\.npz: 'its texts are not of Unicode characters'"):
            list(file_rows(tmp_path / "data.npz"))
    np.savez(tmp_path / "data.npz", x=np.array(["", "\U0010ffff"], ">U2"), y=np.array(["", ""]))
    assert [row.input for row in file_rows(tmp_path / "data.npz")] == ["", "\U0010ffff"]


@pytest.mark.parametrize("value", ["Infinity", "-Infinity", "1e999", "NaN"])
def test_a_number_that_is_none_is_no_text(value: str, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text(f'{{"text": {value}}}\n')
    with pytest.raises(InputError, match=r"row 1 has a float under text, '-?(inf|nan)'; expected a text"):
        list(file_rows(tmp_path / "data.jsonl"))


@pytest.mark.parametrize(
    ("name", "start", "words"),
    [
        ("data.csv", "text\na\n", "line 3 has"),
        ("data.csv", 'text,label\n"', "row 1 has"),
        ("data.jsonl", '{"text": "a"}\n', "line 2 has"),
        ("data.conll", "a O\n", "line 2 has"),
    ],
)
def test_a_line_without_an_end_does_not_fill_the_memory(
    name: str, start: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a link to ``/dev/zero``; a quoted text of a table that never ends likewise."""
    monkeypatch.setattr(record_files, "LONGEST", 1000)
    (tmp_path / name).write_text(start + ("b\n" * 501 if start.endswith('"') else "b" * 1001))
    with pytest.raises(InputError, match=rf"data .*{words} more than 1000 characters; expected shorter ones"):
        list(file_rows(tmp_path / name))

    with pytest.raises(InputError, match="line 2 of standard input has more than 1000 bytes"):
        list(stream_lines(io.BytesIO(b"a\n" + b"b" * 1001)))
    assert [row.input for row in stream_lines(io.BytesIO(b"a\n" + b"b" * 1000))] == ["a", "b" * 1000]
    marked = "\ufeffa\n\ufeffb\n".encode()
    assert [row.input for row in stream_lines(io.BytesIO(marked))] == ["a", "\ufeffb"], "a mark at the beginning alone"


def test_a_field_may_be_longer_than_csv_reads_by_default(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(f"text,label\n{'a' * 200_000},pear\n")
    assert [len(row.input) for row in file_rows(tmp_path / "data.csv")] == [200_000]


# Labels


@pytest.mark.parametrize(
    ("label", "labels", "index"),
    [
        ("pear", LABELS, 1),
        (2, LABELS, 2),
        (np.int32(2), LABELS, 2),
        ("10", ["10", "20"], 0),
        ("1", ["1", "0"], 0),
        (1, ["1", "0"], 1),
        (2.0, LABELS, 2),
        (np.float32(2), LABELS, 2),
        (torch.tensor(2), LABELS, 2),
        (torch.tensor(2.0), LABELS, 2),
        (1.0, ["2.0", "1.0"], 1),
    ],
)
def test_an_integer_is_an_index_and_a_text_a_name(label: Any, labels: list[str], index: int) -> None:
    assert label_index(label, labels, "row 1") == index


@pytest.mark.parametrize(
    "label",
    ["Pear", "peach", "3", "-1", -1, 3, 3.0, 1.5, math.nan, math.inf, True, torch.tensor(1.5), "1.0", "²", "", None],
)
def test_unknown_label_is_refused(label: Any) -> None:
    with pytest.raises(InputError, match=r"at row 7 is not a class of the model; its 3 classes are apple, pear, plum"):
        label_index(label, LABELS, "row 7")


@pytest.mark.parametrize(
    ("given", "classes"),
    [
        (np.arange(5), [0, 1, 2, 3, 4]),  # integers are indices, though every class name looks like one
        (["1", "2", "3", "4", "5"], [0, 1, 2, 3, 4]),
        (["5", "1"], [4, 0]),
    ],
)
def test_star_ratings(given: Any, classes: list[int]) -> None:
    stars = ["1", "2", "3", "4", "5"]
    assert classes_of(read_examples((["x"] * len(classes), given), stars)) == classes


def write_codes(path: Path, codes: list[int], names: list[str]) -> Path:
    """Texts with codes as labels: as a table of texts, or with the numbers that they are."""
    texts = [f"text {code}" for code in codes]
    if path.suffix == ".csv":
        path.write_text("text,label\n" + "".join(f"{text},{code}\n" for text, code in zip(texts, codes, strict=True)))
    elif path.suffix == ".jsonl":
        rows = ({"text": text, "label": code} for text, code in zip(texts, codes, strict=True))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": codes}), path)
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_classes_called_by_numbers_are_the_same_in_every_form(ending: str, tmp_path: Path) -> None:
    """Or are refused: numbers that are names and indices of all of them tell nothing."""
    stars, codes = ["1", "2", "3", "4", "5"], sorted(map(str, range(12)))
    path = tmp_path / f"data.{ending}"
    assert classes_of(read_examples(write_codes(path, [1, 5, 3], stars), stars)) == [0, 4, 2]
    assert classes_of(read_examples(write_codes(path, [9, 0, 3], list("0123456789")), list("0123456789"))) == [9, 0, 3]
    assert classes_of(read_examples(write_codes(path, [-1, 1, 0], ["-1", "0", "1"]), ["-1", "0", "1"])) == [0, 2, 1]
    for names, given in ((codes, [0, 1, 2, 11]), (stars, [1, 2])):
        write_codes(path, given, names)
        if ending == "csv":
            assert classes_of(read_examples(path, names)) == [names.index(str(code)) for code in given]
        else:
            message = (
                r"label [12] at .*, row \d is the name of one class and the index of another, '(10|2)', .* as texts"
            )
            with pytest.raises(InputError, match=message):
                read_examples(path, names)


def test_indices_of_classes_called_by_numbers() -> None:
    stars = ["1", "2", "3", "4", "5"]
    known = read_examples((["x"] * 2, ["1", "2"]), stars)
    assert classes_of(read_examples(known, stars)) == [0, 1], "which are encoded already"
    for given in ([0, 4], [0.0, 4.0], np.array([0, 4])):
        assert classes_of(read_examples((["x"] * 2, given), stars)) == [0, 4]
    for given in (["1.0", "5.0"], [1.0, 5.0], [Decimal("1.0"), Decimal("5.0")]):
        assert classes_of(read_examples((["x"] * 2, given), stars)) == [0, 4], "names, as some writers have them"
    with pytest.raises(InputError, match="label '5' at example 1 is not a class"):
        read_examples((["x"] * 2, [0, 5]), stars)


def test_texts_are_indices_only_when_none_is_a_name() -> None:
    assert classes_of(read_examples((["a", "b"], ["2", "0"]), LABELS)) == [2, 0]
    with pytest.raises(InputError, match="label '0' at example 1 is not a class"):
        read_examples((["a", "b"], ["plum", "0"]), LABELS)
    with pytest.raises(InputError, match=r"label '1\.5' at example 0 is not a class"):
        read_examples((["a", "b"], ["1.5", "1.0"]), LABELS)


def test_a_column_of_whole_floats_is_class_indices(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("text,label\na,2.0\nb,0.0\n")
    assert classes_of(read_examples(tmp_path / "data.csv", LABELS)) == [2, 0]


def test_unknown_label_names_its_row(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("text,label\na,pear\nb,peach\n")
    with pytest.raises(InputError, match=r"label 'peach' at .*data\.csv, row 2 is not a class"):
        read_examples(path, LABELS)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("Positive", "positive"),
        ("positive ", "positive"),
        ("\tpositive\u00a0", "positive"),
        ("POSITIVE", "positive"),
        ("cafe\u0301", "caf\u00e9"),
        ("CAFE\u0301 ", "caf\u00e9"),
        ("bank  transfer", "Bank Transfer "),
        ("bank transfer", "Bank Transfer "),
    ],
)
@pytest.mark.parametrize("task", ["classification", "multi_label", "tokens"])
def test_a_label_in_another_spelling_is_read_and_logged(
    task: str, label: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    labels = ["positive", "caf\u00e9", "Bank Transfer ", "other"]
    texts, given = ["x", "y"], [label, "other"]
    if task != "classification":
        texts, given = ([["x", "y"]], [given]) if task == "tokens" else (texts, [[each] for each in given])
    found = np.asarray(read_examples((texts, given), labels, task=task).labels)
    assert (found.argmax(axis=1) if task == "multi_label" else found.ravel()).tolist() == [labels.index(name), 3]
    (message,) = caplog.messages
    alike = label == "cafe\u0301"
    assert f"{ascii(label) if alike else repr(label)} as {ascii(name) if alike else repr(name)}" in message


@pytest.mark.parametrize(
    ("label", "labels", "shown"),
    [
        ("us", ["Us", "US", "uk"], ["'us'", "'Us'", "'US'"]),
        ("cafe\u0301", ["Cafe\u0301", "caf\u00e9"], [r"'cafe\u0301'", r"'caf\xe9'"]),
        ("Postive", ["positive", "negative"], ["'Postive'", "'positive'"]),
        ("neutral ", ["negative ", "positive"], ["'neutral '", "'negative '"]),
        ("neg", ["LABEL_0", "LABEL_1"], ["'neg'", "id2label"]),
    ],
)
def test_a_label_that_may_be_misspelled_is_shown_as_it_is(label: str, labels: list[str], shown: list[str]) -> None:
    with pytest.raises(InputError) as refused:
        read_examples((["x"], [label]), labels)
    assert all(part in str(refused.value) for part in shown)
    assert ("out-of-distribution" in str(refused.value)) == (label == "neutral ")


def test_many_classes_are_shortened_in_the_message() -> None:
    with pytest.raises(InputError, match=r"its 90 classes are c0, c1, c2, c3, c4, … \(90 in all\)"):
        label_index("x", [f"c{i}" for i in range(90)], "row 1")


@pytest.mark.parametrize("content", ["text\nhello\n", "text,label\nhello,\n"])
def test_missing_label_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text(content)
    with pytest.raises(InputError, match="has no label; expected a column 'label'"):
        read_examples(path, LABELS)


# What cannot be read


@pytest.mark.parametrize("name", ["data.csv", "data.tsv", "data.jsonl", "data.parquet"])
def test_empty_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InputError, match=rf"{name} is empty; expected"):
        read_examples(tmp_path / name, LABELS)


@pytest.mark.parametrize("name", ["data.csv", "data.tsv"])
def test_header_only(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("text,label\n".replace(",", "\t" if name.endswith("tsv") else ","))
    with pytest.raises(InputError, match="holds no rows; expected at least one example"):
        read_examples(tmp_path / name, LABELS)


@pytest.mark.parametrize("content", ["sentence,label\nhi,pear\n", "sentence,label\n"])
def test_missing_text_column_is_named(content: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(content)
    with pytest.raises(InputError, match=r"has the columns sentence, label; expected 'text'|holds no rows"):
        read_examples(tmp_path / "data.csv", LABELS)


def test_missing_text_column_of_other_forms(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"sentence": "hi", "label": 1}\n')
    with pytest.raises(
        InputError, match=r"has the columns sentence, label; expected 'text' \(choose with --text-column, "
    ):
        read_examples(tmp_path / "data.jsonl", LABELS)
    with pytest.raises(InputError, match="the table has the columns sentence; expected one column 'text' or 'image'"):
        read_examples(datasets.Dataset.from_dict({"sentence": ["hi"]}), LABELS)


def test_row_without_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "hi", "label": "pear"}\n{"text": null, "label": "pear"}\n')
    with pytest.raises(InputError, match=r"data\.jsonl, row 2 has no text; expected a text"):
        read_examples(tmp_path / "data.jsonl", LABELS)


@pytest.mark.parametrize("value", [["a", "b"], {"a": 1}, True])
def test_what_is_no_text_in_a_row_is_named(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in ("hi", 7, value)))
    with pytest.raises(InputError, match=f"row 3 has a {type(value).__name__} under text, .*; expected a text"):
        read_examples(path, None)
    assert [row.input for row in file_rows(path, missing=True)] == ["hi", "7", value]


def test_json_lines_may_lack_a_key(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"id": 1}\n{"text": "hi"}\n{"id": 3}\n')
    assert [row.input for row in file_rows(path, missing=True)] == [None, "hi", None]
    path.write_text('{"text": "hi"}\n{"id": 2}\n')
    with pytest.raises(InputError, match=r"row 2 has no text; expected a text"):
        list(file_rows(path))
    with pytest.raises(InputError, match=r"has the columns text; expected 'other' \(choose with --text-column, "):
        list(file_rows(path, DataOptions(text="other"), missing=True))
    path.write_text("{}\n")
    with pytest.raises(InputError, match="has the columns none; expected 'text'"):
        list(file_rows(path))


def test_a_number_that_no_float_holds_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text(f'{{"text": {10**400}}}\n')
    assert [row.input for row in file_rows(path)] == [str(10**400)]


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind("data.csv")
        with pytest.raises(InputError, match=r"cannot read data data\.csv: .*; expected \.csv"):
            list(file_rows("data.csv"))


def test_a_blank_line_of_one_column_is_an_empty_text(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("text\nhi\n\nyou\n")
    assert [row.input for row in file_rows(tmp_path / "data.csv")] == ["hi", "", "you"]


def test_repeated_column_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("text,text,label\na,b,pear\n")
    table = pyarrow.table([["a"], ["b"], ["pear"]], names=["text", "text", "label"])
    pyarrow.parquet.write_table(table, tmp_path / "data.parquet")
    for name in ("data.csv", "data.parquet"):
        with pytest.raises(InputError, match="has the columns text, text, label; expected every name once"):
            read_examples(tmp_path / name, LABELS)


def test_repeated_labels_of_a_table_are_refused() -> None:
    names = ["text", "label", "label"]
    for table in (pandas.DataFrame([["a", 0, 1]], columns=names), pyarrow.table([["a"], [0], [1]], names=names)):
        with pytest.raises(
            InputError, match=r"columns text, label, label; expected one column 'label' .*--label-column"
        ):
            read_examples(table, LABELS)
        assert list(given_inputs(table, "text")) == ["a"]


def test_decimals_are_numbers(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    labels = pyarrow.array([Decimal("1.00"), Decimal("2.00")], pyarrow.decimal128(5, 2))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "label": labels}), path)
    assert classes_of(read_examples(path, LABELS)) == [1, 2]
    assert np.asarray(read_examples(path, ["score"]).labels).tolist() == [1.0, 2.0]
    assert np.asarray(read_examples((["a"], [Decimal("1.5")]), ["score"]).labels).tolist() == [1.5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('text\tlabel\n"a\tpear\nb\tpear\nc"\tpear\nd\tpear\n', "row 1 has a quoted text of several lines with tabs"),
        ('label\ttext\npear\ta\npear\t"b\r\npear\tc"\r\n', "row 2 has a quoted text of several lines with tabs"),
        (
            'text\n"a\nb"\n',
            "row 1 has a quoted text of several lines, .* as .csv or .jsonl; or, where",
        ),
        ('text\tlabel\na\tpear\n"b" he said\tpear\n', "cannot read data .*, row 2: .* in quotes, with its own doubled"),
        ('text\tlabel\na\tpear\n\n\n"b" he said\tpear\n', "cannot read data .*, row 2: "),
        ('text\tlabel\na\tpear\n"b\tpear\nc\tpear\n', "cannot read data .*, row 2: unexpected end of data"),
    ],
)
def test_a_quote_at_the_beginning_of_a_text_swallows_no_rows(content: str, message: str, tmp_path: Path) -> None:
    """Where quotes were written as they stand, as many writers of .tsv do."""
    (tmp_path / "data.tsv").write_text(content, newline="")
    with pytest.raises(InputError, match=message):
        read_examples(tmp_path / "data.tsv", LABELS, need_labels=False)


@pytest.mark.parametrize(
    "content",
    ["text,label\nhello, world,pear\n", "text,label\nhello,pear\nhello, world,pear\n", "text,label\na,b,c,pear\n"],
)
def test_unquoted_comma_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(content)
    with pytest.raises(InputError):
        read_examples(tmp_path / "data.csv", LABELS, need_labels=False)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_bytes(b"text,label\ngr\xfcn,pear\n")
    with pytest.raises(InputError, match=r"cannot read data .*data\.csv"):
        read_examples(tmp_path / "data.csv", LABELS)


@pytest.mark.parametrize("name", ["data.txt", "data.xlsx", "data", "data.csv.bak"])
def test_unknown_ending(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("text,label\n")
    with pytest.raises(InputError, match=r"has the unknown ending '.*'; expected \.csv, \.tsv, \.jsonl"):
        read_examples(tmp_path / name, LABELS)


def test_nonexistent_path(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"data .*none\.csv does not exist; expected"):
        read_examples(tmp_path / "none.csv", LABELS)


@pytest.mark.parametrize("name", ["data.npz", "data.parquet"])
def test_a_pipe_is_refused_where_a_file_is_read_from_its_end(name: str, tmp_path: Path) -> None:
    """Nobody writes into it, so that it would be waited for without end."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(
        InputError, match=rf"{name} is no regular file but a folder, pipe or device; .*: write what comes .* to a file"
    ):
        read_examples(tmp_path / name, LABELS)


@pytest.mark.parametrize(("name", "line"), [("data.csv", "text,label\nhi,b\n"), ("data.jsonl", '{"text": "hi"}\n')])
def test_a_pipe_is_read_where_lines_are(name: str, line: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    writer = threading.Thread(target=(tmp_path / name).write_text, args=(line,))
    writer.start()
    assert [row.input for row in file_rows(tmp_path / name)] == ["hi"]
    writer.join()


MILLION = "x" * 10**6
LARGE: dict[str, Callable[[], dict[str, Any]]] = {
    "a dictionary": lambda: {"text": pyarrow.DictionaryArray.from_arrays(np.zeros(2000, np.int32), [MILLION])},
    "values of one length": lambda: {
        "text": ["x"] * 1000,
        "key": pyarrow.array([MILLION] * 1000, pyarrow.binary(10**6)),
    },
}
"""Columns of one or two gigabytes in files of a few kilobytes."""


@pytest.mark.parametrize("kind", LARGE)
def test_memory_of_parquet_is_bounded(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table(LARGE[kind]()), path, compression="zstd")
    assert path.stat().st_size < 10_000
    before = pyarrow.total_allocated_bytes()
    rows = file_rows(path)
    assert next(rows).input.startswith("x")
    assert pyarrow.total_allocated_bytes() - before < 150e6


def test_columns_of_types_that_datasets_does_not_have_are_read(tmp_path: Path) -> None:
    """Whether they matter or not."""
    columns = {
        "of": pyarrow.array([[("a", 1)], None], pyarrow.map_(pyarrow.string(), pyarrow.int8())),
        "text": ["x", "y"],
        "key": pyarrow.array([b"12", b"34"], pyarrow.binary(2)),
        "label": pyarrow.array(["no", "yes"], pyarrow.string_view()),
    }
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert [(row.input, row.label) for row in file_rows(path)] == [("x", "no"), ("y", "yes")]
    with pytest.raises(InputError, match="key"):
        next(file_rows(path, DataOptions(text="key")))


def test_a_large_group_of_parquet_is_not_read_whole(tmp_path: Path) -> None:
    """Nor its bytes in the file."""
    texts, path = [os.urandom(500).hex() for _ in range(20_000)], tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, compression="none", use_dictionary=False)
    assert pyarrow.parquet.read_metadata(path).num_row_groups == 1
    before, most = pyarrow.total_allocated_bytes(), 0
    for row, text in zip(file_rows(path), texts, strict=True):
        assert row.input == text
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert 0 < most < 8e6, "of 20 MB"


@pytest.mark.parametrize("dictionary", [True, False])
def test_groups_without_rows_are_read(dictionary: bool, tmp_path: Path) -> None:
    """A writer that is given nothing at first leaves one."""
    path, table = tmp_path / "data.parquet", pyarrow.table({"text": ["a", "b"], "label": ["c", "d"]})
    with pyarrow.parquet.ParquetWriter(path, table.schema, use_dictionary=dictionary) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(part)
    assert pyarrow.parquet.read_metadata(path).num_row_groups == 3
    assert [(row.input, row.label) for row in file_rows(path)] == [("a", "c"), ("b", "d")]
    pyarrow.parquet.write_table(table.slice(0, 0), path, use_dictionary=dictionary)
    assert list(file_rows(path)) == []


@pytest.mark.parametrize("plain", [True, False])
def test_encrypted_parquet_is_refused(plain: bool, tmp_path: Path) -> None:
    encryption = pyarrow.parquet.encryption
    wrap = {"wrap_key": lambda self, key, name: base64.b64encode(key)}
    keys = type("Keys", (encryption.KmsClient,), wrap)
    made = encryption.CryptoFactory(lambda settings: keys()).file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration("one", column_keys={"two": ["text"]}, plaintext_footer=plain),
    )
    path, table = tmp_path / "data.parquet", pyarrow.table({"text": ["a"], "label": ["b"]})
    with pyarrow.parquet.ParquetWriter(path, table.schema, encryption_properties=made) as writer:
        writer.write_table(table)
    with pytest.raises(InputError, match=r"data\.parquet.*crypt"):
        next(file_rows(path))


NO_COLUMNS = (
    b"PAR1\x15\x04\x19\xfc\x015\x00\x18\x06schema\x15\x00\x00\x16\x80\xc0\xa8\xca\x9a:\x19\xfc\x01\x19\xf5\x00\x16\x08"
    b"\x16\x80\xc0\xa8\xca\x9a:\x00\x00*\x00\x00\x00PAR1"
)
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "another form": (lambda content: b"not parquet at all", "footer"),
    "cut off": (lambda content: content[: len(content) // 2], "footer"),
    "a row that is not there": (lambda content: content.replace(b"\x16\x04\x19", b"\x16\x06\x19"), "2 rows.* say 3"),
    "longer pages": (lambda content: content.replace(b"\x15\x14\x15\x18", b"\x15\x14\x15\x1a"), "snappy"),
    "a trillion rows of no columns": (lambda content: NO_COLUMNS, "no columns"),
}
"""Changes of the bytes of a file of two rows, and a word of the cause."""


@pytest.mark.parametrize("kind", DAMAGES)
def test_damaged_parquet_is_refused_with_its_cause(kind: str, tmp_path: Path) -> None:
    path, (damage, cause) = tmp_path / "data.parquet", DAMAGES[kind]
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"]}), path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"data\.parquet.*{cause}"):
        list(file_rows(path))


NESTED = {
    "struct": pyarrow.array([{"a": "x"}]),
    "map": pyarrow.array([[("a", "b")]], pyarrow.map_(pyarrow.string(), pyarrow.string())),
    "list": pyarrow.array([[["a"], ["b"]]]),
    "structs": pyarrow.array([[{"a": "x"}]]),
}


@pytest.mark.parametrize("kind", NESTED)
def test_columns_of_nested_values_are_no_texts_and_no_labels(kind: str, tmp_path: Path) -> None:
    path, shown = tmp_path / "data.parquet", re.escape(str(NESTED[kind].to_pylist()[0])[:8])
    pyarrow.parquet.write_table(pyarrow.table({"text": NESTED[kind], "label": ["a"]}), path)
    with pytest.raises(InputError, match=rf"row 1 .*text.*{shown}"):
        list(file_rows(path))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["x"], "label": NESTED[kind]}), path)
    with pytest.raises(InputError, match=rf"label .*{shown}"):
        read_examples(path, LABELS)


def test_long_lists_of_parquet_are_read(tmp_path: Path) -> None:
    """Five minutes of silence, in few bytes, and a sound of 20 MB."""
    sounds = [np.zeros(300 * 16_000, np.float32), np.random.default_rng(0).standard_normal(5 * 10**6, np.float32)]
    pyarrow.parquet.write_table(pyarrow.table({"sound": sounds}), tmp_path / "data.parquet")
    (batch,) = record_files._arrow_batches(tmp_path / "data.parquet")
    assert [len(each) for each in batch["sound"]] == [len(each) for each in sounds]


def test_corrupt_json_lines(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"text": "hi", "label": 1}\n{"text": \n')
    with pytest.raises(InputError, match=r"cannot read data .*data\.jsonl"):
        read_examples(tmp_path / "data.jsonl", LABELS)


def npz_bytes(path: Path, compressed: bool = False) -> bytes:
    (np.savez_compressed if compressed else np.savez)(path, x=np.array(TEXTS * 50), y=np.array(NAMES * 50))
    return path.read_bytes()


def broken_npz(kind: str, path: Path) -> bytes:
    whole = npz_bytes(path, compressed=kind == "flipped deflate")
    if kind == "truncated":
        return whole[: len(whole) // 2]
    if kind == "text":
        return b"not an archive"
    if kind == "empty":
        return b""
    if kind == "pickle":
        return pickle.dumps({"x": [1], "y": [0]})
    if kind == "npy":
        np.save(path.with_suffix(".npy"), np.arange(3))
        return path.with_suffix(".npy").read_bytes()
    middle = 120
    return whole[:middle] + bytes(byte ^ 0xFF for byte in whole[middle : middle + 40]) + whole[middle + 40 :]


@pytest.mark.parametrize("kind", ["truncated", "text", "empty", "pickle", "npy", "flipped", "flipped deflate"])
def test_corrupt_npz(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(broken_npz(kind, path))
    with pytest.raises(InputError, match=r"cannot read .*data\.npz.*expected a \.npz file of arrays"):
        read_examples(path, LABELS)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("pickled code ran",))


@pytest.mark.parametrize("content", [["a", None], [Trap()]], ids=["objects", "code"])
def test_pickled_npz_is_refused(content: list[Any], tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array(content, dtype=object), y=np.arange(len(content)))
    with pytest.raises(InputError, match=r"cannot read .*data\.npz.*allow_pickle=False"):
        read_examples(tmp_path / "data.npz", LABELS)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"images": np.zeros((2, 4, 4), np.uint8), "y": np.zeros(2, int)},
            "has the arrays images, y; expected x and y",
        ),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.zeros(3, int)}, "has 2 inputs in x and 3 labels in y"),
        ({"x": np.zeros((0, 4, 4), np.uint8), "y": np.zeros(0, int)}, "holds no rows"),
        ({"x": np.uint8(3), "y": np.zeros(1, int)}, "x"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.int64(1)}, "y"),
        ({"x": np.zeros((2, 4, 4), np.uint8), "y": np.zeros((2, 3), int)}, "y"),
    ],
    ids=["names", "lengths", "none", "scalar x", "scalar y", "one-hot y"],
)
def test_npz_of_the_wrong_shape(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InputError, match=message):
        read_examples(tmp_path / "data.npz", LABELS)


def test_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "images" / "apple").mkdir(parents=True)
    with pytest.raises(InputError, match="images"):
        read_examples(tmp_path / "images", LABELS)


def test_images_without_class_folders_have_no_label(tmp_path: Path) -> None:
    write_images(tmp_path, ("images",))
    assert read_examples(tmp_path / "images", LABELS, need_labels=False).labels is None
    with pytest.raises(InputError, match="has no label"):
        read_examples(tmp_path / "images", LABELS)


def test_unusable_objects() -> None:
    with pytest.raises(InputError, match=r"data is a int; expected a path .*a table \(pandas, .*\) or a pair"):
        read_examples(3, LABELS)
    with pytest.raises(InputError, match="data has 2 inputs and 1 labels; expected one label for each input"):
        read_examples((["a", "b"], [0]), LABELS)
    with pytest.raises(InputError, match="holds no rows"):
        read_examples(([], []), LABELS)
    with pytest.raises(InputError, match="data is a dict; expected a path"):
        read_examples({"text": "a", "label": 0}, LABELS)
    with pytest.raises(InputError, match=r"not equally long \(text 1, label 2\); expected one entry a row"):
        read_examples({"text": ["a"], "label": [0, 1]}, LABELS)
    for same in (pandas.DataFrame({"text": ["a"]}), ["a"]):
        with pytest.raises(InputError, match="given both as data and as ood"):
            check_apart(same, same)
    for pairs in ([("a", "apple")], zip("ab", ["apple", "pear"], strict=True)):
        with pytest.raises(
            InputError, match=r"a tuple of two texts is a pair: give .* as two lists, \(texts, labels\)"
        ):
            read_examples(pairs, LABELS)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text;label\na;apple\n", r"expected 'text' .*; \.csv is separated by commas, not ';'"),
        ("a.tsv", "text,label\na,apple\n", r"\.tsv is separated by tabs, not ','"),
        ("a.csv", "utterance\na\n", r"expected 'text' \(choose with --text-column, Reading\(…\)\)$"),
        ("a.csv", "text, label\na, apple\n", r"expected a column 'label' among text, ' label' \(choose"),
        ("a.csv", b"text,label\ncaf\xe9,apple\n", "it is not UTF-8 .* at byte 14.; save it as UTF-8"),
        ("a.jsonl", '{"text": NaN, "label": 0}', "row 1 has a float under text, 'nan'; expected a text"),
        ("a.parquet", b"PAR1 and no more", "cannot read data"),
    ],
)
def test_tables_that_are_written_otherwise(
    name: str, content: Any, message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message):
        read_examples(tmp_path / name, LABELS)
    assert not caplog.records  # no other library tells of it first


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (
            pyarrow.table({"a": ["x", "y"], "b": ["x", "y"]}),
            [0, 1],
            "the columns a, b; expected one column",
        ),
        ("hello", "abcde", "labels is a str; expected a list of classes"),
        ("hello", [0, 1, 2, 0, 1], "data has 1 inputs and 5 labels"),
        (("a", "b"), [0, 1], "a tuple of two strings, which are one pair or two inputs; expected a list"),
        (b"hello", [0] * 5, "inputs is a bytes; expected texts"),
        (["a"], 0, "labels is a int; expected a list of classes"),
        (["a"], pyarrow.table({"label": [0]}), "labels is a pyarrow.Table; expected a list of classes"),
        (np.zeros((3, 12, 12), np.uint8), [0, 1, 2], r"one image with its channels first, or 3 grey ones"),
    ],
    ids=repr,
)
def test_inputs_with_labels_that_could_be_meant_in_several_ways(inputs: Any, labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_examples((inputs, labels), LABELS)


@pytest.mark.parametrize("make", [pyarrow.table, pandas.DataFrame, lambda columns: (text for text in columns["text"])])
def test_tables_and_generators_with_labels(make: Any) -> None:
    examples = read_examples((make({"text": ["a", "b"]}), pyarrow.array([2, 0])), LABELS)
    assert list(examples.inputs) == ["a", "b"]
    assert classes_of(examples) == [2, 0]


# Sampling


def numbered(count: int) -> tuple[list[str], list[int]]:
    return [str(i) for i in range(count)], [i % 3 for i in range(count)]


def test_sample_is_in_order_without_repeats_and_keeps_labels() -> None:
    examples = read_examples(numbered(50), LABELS, limit=20, seed=1)
    drawn = [int(text) for text in examples.inputs]
    assert len(drawn) == len(set(drawn)) == 20
    assert drawn == sorted(drawn)
    assert classes_of(examples) == [i % 3 for i in drawn]


RANKINGS = [((f"query {query}", f"document {row}"), float(row == query)) for row in range(7) for query in range(40)]
"""Of each query one row in forty, so that none stands together."""


def test_rankings_are_sampled_and_parted_whole() -> None:
    """Pairs with one first text are ranked against each other; a share of them is another ranking."""

    def drawn(limit: int, seed: int) -> Examples:
        return read_examples(RANKINGS, ["score"], task="score", limit=limit, seed=seed)

    whole = read_examples(RANKINGS, ["score"], task="score")
    found = drawn(70, 3)
    queries = [first for first, _ in found.inputs]
    assert {queries.count(query) for query in queries} == {7}
    assert len(found) == 70
    places = [whole.inputs.index(pair) for pair in found.inputs]  # type: ignore[attr-defined]
    assert places == sorted(places)
    assert drawn(70, 3).inputs == found.inputs != drawn(70, 4).inputs
    assert len(drawn(75, 3)) == 70
    assert len(drawn(3, 3)) == 3, "of one ranking, which has more"
    counts = Counter(first for seed in range(300) for first, _ in drawn(70, seed).inputs)
    # each of 40 queries, 7 pairs, is drawn with probability 0.25: 75 of 300, standard deviation 7.5
    assert all(abs(counts[f"query {query}"] / 7 - 75) < 38 for query in range(40))
    parts = random_parts(whole, 3, 0, "score")
    assert sorted(map(len, parts)) == [91, 91, 98]
    firsts = [{first for first, _ in part.inputs} for part in parts]
    assert all(not one & other for one, other in combinations(firsts, 2))
    assert sorted(pair for part in parts for pair in part.inputs) == sorted(whole.inputs)
    few = whole.take(np.array(sorted([*range(0, 280, 40), *range(1, 280, 40)])))
    assert sorted(map(len, random_parts(few, 3, 0, "score"))) == [4, 5, 5], "two rankings make no three parts"
    mixed = Examples([*whole.inputs[:9], "no pair"], None, "x")
    assert sorted(map(len, random_parts(mixed, 2, 0, "score"))) == [5, 5]
    essays = [(("one prompt", f"essay {row}"), 0.5) for row in range(1000)]
    found = read_examples(essays, ["score"], task="score", limit=30, seed=5)
    places = [int(essay.split()[1]) for _, essay in found.inputs]
    assert len(places) == 30
    assert places == sorted(places)
    assert places[-1] > 500, "of a lone first text any of its pairs"
    assert sorted(map(len, random_parts(whole, 3, 0))) == [93, 93, 94], "classes of pairs have no rankings"


def test_sample_is_deterministic_for_a_seed() -> None:
    first, again, other = (read_examples(numbered(50), LABELS, limit=20, seed=seed).inputs for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("limit", [5, 6, None])
def test_limit_beyond_the_data_keeps_everything(limit: int | None) -> None:
    assert list(read_examples(numbered(5), LABELS, limit=limit).inputs) == list("01234")


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(InputError, match=f"the number of examples is {limit}; expected at least 1"):
        read_examples(numbered(5), LABELS, limit=limit)


def test_sample_is_uniform() -> None:
    draws = 2000
    seen = Counter(
        text for seed in range(draws) for text in read_examples(numbered(10), LABELS, limit=4, seed=seed).inputs
    )
    # each of 10 is drawn with probability 0.4: standard deviation 0.011, and 0.055 is five of them
    assert all(abs(seen[str(i)] / draws - 0.4) < 0.055 for i in range(10))
