import io
import json
import os
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from hydrant.data import data_files
from hydrant.data.data_files import file_rows, stream_lines
from hydrant.data.examples import Examples, random_parts, read_examples
from hydrant.data.python_inputs import given_inputs
from hydrant.errors import InputError
from PIL import Image

LABELS = ["apple", "pear", "plum"]
ROWS = [
    ("hello, world", "plum"), ("NA", "apple"), ("null", "pear"), ("007", "apple"), ('she said "no"', "plum"),
    ("two\nlines", "pear"), (" spaced ", "apple"), ("1e5", "plum"), ("True", "apple"), ("grüße 🙂", "pear"),
    ("2026-01-02T03:04:05Z", "plum"),
]  # fmt: skip
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
    assert examples.labels.dtype == np.int64
    return examples.labels.tolist()


@pytest.mark.parametrize(("name", "write"), [
    ("data.CSV", write_csv),
    ("data.tsv", lambda path: write_csv(path, "\t")),
    ("data.jsonl", write_jsonl),
    ("data.parquet", write_parquet),
    ("data.npz", write_npz),
    ("with space, [v1] & more*.csv", write_csv),
])  # fmt: skip
def test_file_is_read_word_for_word(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / name
    write(path)
    examples = read_examples(path, LABELS)
    assert list(examples.inputs) == TEXTS
    assert classes_of(examples) == INDICES
    assert len(examples) == len(ROWS)
    assert examples.source == str(path)
    assert [row.input for row in file_rows(str(path))] == TEXTS


@pytest.mark.parametrize("splits", [("train2017", "val2017"), ("a/dev", "a/eval")])
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


FORMATS = [None, "numpy", "torch", "pandas", "arrow", "polars"]


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


def polars_like(columns: dict[str, list[Any]]) -> Any:
    """What a polars table offers, for an environment without polars."""
    methods = {"columns": list(columns), "get_column": lambda _, name: pandas.Series(columns[name], dtype=object)}
    return type("DataFrame", (), {**methods, "__module__": "polars.dataframe.frame"})()


TABLES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pandas.DataFrame,
    "polars": polars_like,
    "pyarrow": pyarrow.table,
    "pyarrow batch": pyarrow.record_batch,
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
    for column in (None, "title"):
        with pytest.raises(InputError, match="sentence, note"):
            given_inputs(make({"sentence": ["a"], "note": ["b"]}), "text", column)
    with pytest.raises(InputError, match=r"label.*'text'"):
        given_inputs(make({"label": ["a"]}), "text")


def test_texts_of_an_npz_file_that_are_no_characters_are_refused(tmp_path: Path) -> None:
    texts = np.array(["ab", "cd"])
    texts.view(np.uint32)[1] = 0x7FFFFFFF
    for wrong in (texts, texts.astype(">U2")):
        np.savez(tmp_path / "data.npz", x=wrong)
        with pytest.raises(InputError, match=r"cannot read .*data\.npz: 'its texts are not of Unicode characters'"):
            list(file_rows(tmp_path / "data.npz"))
    np.savez(tmp_path / "data.npz", x=np.array(["", "\U0010ffff"], ">U2"), y=np.array(["", ""]))
    assert [row.input for row in file_rows(tmp_path / "data.npz")] == ["", "\U0010ffff"]


@pytest.mark.parametrize(("name", "start", "words"), [
    ("data.csv", "text\na\n", "line 3 has"),
    ("data.jsonl", '{"text": "a"}\n', "line 2 has"),
    ("data.conll", "a O\n", "line 2 has"),
])  # fmt: skip
def test_a_line_without_an_end_does_not_fill_the_memory(
    name: str, start: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a link to ``/dev/zero``."""
    monkeypatch.setattr(data_files, "LONGEST", 1000)
    (tmp_path / name).write_text(start + "b" * 1001)
    with pytest.raises(InputError, match=rf"data .*{words} more than 1000 characters"):
        list(file_rows(tmp_path / name))

    with pytest.raises(InputError, match="line 2 of standard input has more than 1000"):
        list(stream_lines(io.BytesIO(b"a\n" + b"b" * 1001)))
    assert [row.input for row in stream_lines(io.BytesIO(b"a\n" + b"b" * 1000))] == ["a", "b" * 1000]
    marked = "\ufeffa\n\ufeffb\n".encode()
    assert [row.input for row in stream_lines(io.BytesIO(marked))] == ["a", "\ufeffb"], "a mark at the beginning alone"


def test_classes_called_by_numbers_are_the_same_as_texts_and_numbers() -> None:
    """Ambiguous numbers, each the name of one class and the index of another, are refused."""
    stars, codes = ["1", "2", "3", "4", "5"], sorted(map(str, range(12)))
    for given, names in (([1, 5, 3], stars), ([9, 0, 3], list("0123456789")), ([-1, 1, 0], ["-1", "0", "1"])):
        for form in (given, list(map(str, given))):
            assert classes_of(read_examples((["x"] * 3, form), names)) == [names.index(str(code)) for code in given]
    for names, given in ((codes, [0, 1, 2, 11]), (stars, [1, 2])):
        texts = ["x"] * len(given)
        assert classes_of(read_examples((texts, list(map(str, given))), names)) == [names.index(str(c)) for c in given]
        with pytest.raises(InputError, match=r"label [12] at example \d .* '(10|2)'"):
            read_examples((texts, given), names)


@pytest.mark.parametrize(("task", "label", "name"), [
    ("classification", "\tPositive\u00a0", "positive"),
    ("multi_label", "cafe\u0301", "caf\u00e9"),
    ("tokens", "bank transfer", "Bank Transfer "),
])  # fmt: skip
def test_a_label_in_another_spelling_is_read_and_logged(
    task: str, label: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    labels = ["positive", "caf\u00e9", "Bank Transfer ", "other"]
    texts, given = ["x", "y"], [label, "other"]
    if task != "classification":
        texts, given = ([["x", "y"]], [given]) if task == "tokens" else (texts, [[each] for each in given])
    read_labels = np.asarray(read_examples((texts, given), labels, task=task).labels)
    assert (read_labels.argmax(axis=1) if task == "multi_label" else read_labels.ravel()).tolist() == [
        labels.index(name),
        3,
    ]
    (message,) = caplog.messages
    assert " as " in message


REFUSED: dict[str, tuple[str, str | bytes, str]] = {
    "no file": ("absent.csv", "", "absent"),
    "another encoding": ("data.csv", "text,label\ngrün,pear\n".encode("latin-1"), "UTF-8"),
    "no text": ("data.csv", "sentence,label\na,pear\n", "'text'"),
    "no label in one row": ("data.csv", "text,label\na,pear\nb,\n", "row 2"),
    "an unknown label": ("data.csv", "text,label\na,pearr\n", "'pearr' at .*row 1.*'pear'"),
    "a comma too many": ("data.csv", "text,label\na,pear\na,b,pear\n", "row 2 has 3"),
    "a quote that swallows rows": ("data.tsv", 'text\tlabel\n"a\tpear\nb\tpear\nc"\tpear\n', "row 1"),
    "no JSON": ("data.jsonl", '{"text": "a", "label": "pear"}\n{"text"\n', "line 2"),
    "an archive that is none": ("data.npz", b"not an archive", "data.npz"),
    "no Parquet": ("data.parquet", b"no Parquet", "footer"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_files_that_cannot_be_read_are_refused(kind: str, tmp_path: Path) -> None:
    name, content, message = REFUSED[kind]
    if kind != "no file":
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=message):
        read_examples(tmp_path / name, LABELS)


@pytest.mark.parametrize("name", ["data.npz", "data.parquet"])
def test_a_pipe_is_refused_where_a_file_is_read_from_its_end(name: str, tmp_path: Path) -> None:
    """Nobody writes into it, so that it would be waited for without end."""
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match=name):
        read_examples(tmp_path / name, LABELS)


@pytest.mark.parametrize("shape", [(3, 9, 8), (9, 8, 4)])
def test_arrays_that_may_be_one_image_or_many(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="inputs is an array of uint8"):
        given_inputs(np.zeros(shape, np.uint8), "image")


def test_hidden_files_and_folders_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / ".data" / "images"
    write_images(folder)
    for hidden in (".cache", "apple/.thumbnails"):
        (folder / hidden).mkdir()
        (folder / hidden / "0.png").write_bytes((folder / "pear" / "0.png").read_bytes())
    for name in (folder, folder.as_uri()):
        assert classes_of(read_examples(name, LABELS)) == [0, 0, 1, 1]


def test_a_class_below_0_is_none(tmp_path: Path) -> None:
    table, path = unlabelled([2, -1, 0]), tmp_path / "data.parquet"
    table.to_parquet(path)
    for data in (table, path):
        assert read_examples(data, LABELS, need_labels=False).labels is None
        with pytest.raises(InputError, match="row 2"):
            read_examples(data, LABELS)
    assert [row.label for row in file_rows(path)] == ["plum", None, "apple"]


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


def test_a_parquet_file_that_lacks_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"]}), path)
    path.write_bytes(path.read_bytes().replace(b"\x16\x04\x19", b"\x16\x06\x19"))  # their number in the footer
    with pytest.raises(InputError, match=r"data\.parquet.*2 rows.* say 3"):
        list(file_rows(path))


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("pickled code ran",))


def test_pickled_npz_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([Trap()], dtype=object), y=np.arange(1))
    with pytest.raises(InputError, match=r"cannot read .*data\.npz.*allow_pickle=False"):
        read_examples(tmp_path / "data.npz", LABELS)


RANKINGS = [((f"query {query}", f"document {row}"), float(row == query)) for row in range(7) for query in range(40)]
"""Of each query one row in forty, so that none stands together."""


def test_rankings_are_sampled_and_parted_whole() -> None:
    """Pairs with one first text are ranked against each other; a share of them is another ranking."""

    def drawn(limit: int, seed: int) -> Examples:
        return read_examples(RANKINGS, ["score"], task="score", limit=limit, seed=seed)

    whole = read_examples(RANKINGS, ["score"], task="score")
    sample = drawn(70, 3)
    queries = [first for first, _ in sample.inputs]
    assert {queries.count(query) for query in queries} == {7}
    assert len(sample) == 70
    places = [whole.inputs.index(pair) for pair in sample.inputs]  # type: ignore[attr-defined]
    assert places == sorted(places)
    assert drawn(75, 3).inputs == sample.inputs != drawn(70, 4).inputs
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
    essays = [(("one prompt", f"essay {row}"), 0.5) for row in range(1000)]
    sample = read_examples(essays, ["score"], task="score", limit=30, seed=5)
    places = [int(essay.split()[1]) for _, essay in sample.inputs]
    assert len(places) == 30
    assert places == sorted(places)
    assert places[-1] > 500, "of a lone first text any of its pairs"


def test_sample_is_uniform() -> None:
    draws, seen = 2000, Counter[str]()
    for seed in range(draws):
        drawn = read_examples(([str(i) for i in range(10)], [i % 3 for i in range(10)]), LABELS, limit=4, seed=seed)
        assert sorted(set(drawn.inputs)) == drawn.inputs, "in order, without repeats"
        assert classes_of(drawn) == [int(text) % 3 for text in drawn.inputs]
        seen.update(drawn.inputs)
    # each of 10 is drawn with probability 0.4: standard deviation 0.011, and 0.055 is five of them
    assert all(abs(seen[str(i)] / draws - 0.4) < 0.055 for i in range(10))
