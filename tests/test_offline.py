"""Large predictions: shards, chunks, parts and merges, compared with a plain stream."""

import csv
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import hydrant
import pyarrow.parquet as pq
import pytest
from hydrant import Predictor
from hydrant.errors import InputError
from hydrant.runtime.offline.chunks import Chunks, open_chunks
from hydrant.runtime.offline.input_stream import Cursor, Sources, Survey
from hydrant.runtime.offline.offline_run import Division, local_engine, predict_part
from hydrant.runtime.offline.scoring import Scoring, answers, example_answer
from hydrant.runtime.offline.shard_parts import Part, Shard, manifest_of, merge_parts
from hypothesis import given, settings
from hypothesis import strategies as st
from support import run_cli, stdout_of

WORDS = ["hello", "world", "transfer", "money", "today", "what", "is", "the", "weather"]


@pytest.fixture(scope="module")
def predictor(text_bundle: Path) -> Iterator[Predictor]:
    with hydrant.load(text_bundle, "onnxruntime", threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def texts() -> list[str]:
    generator = random.Random(0)
    return [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(150)]


@pytest.fixture(scope="module")
def files(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The texts in three files of three formats."""
    folder = tmp_path_factory.mktemp("data")
    places = [folder / "a.csv", folder / "b.jsonl", folder / "c.parquet"]
    with places[0].open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts[:40])])
    places[1].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[40:90]))
    import pyarrow as pa

    pq.write_table(pa.table({"text": texts[90:]}), places[2])
    return places


def named(files: Iterable[Path], **settings: Any) -> Sources:
    return Sources.named([str(path) for path in files], **settings)


@pytest.fixture(scope="module")
def expected(predictor: Predictor, texts: list[str]) -> list[dict[str, Any]]:
    """The predictor's rows for all texts at once."""
    return predictor.rows(predictor.predict(texts), texts)


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def agree(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Assert equal rows up to rounding."""
    assert [row["index"] for row in rows] == [row["index"] for row in expected]
    for mine, theirs in zip(rows, expected, strict=True):
        assert list(mine) == list(theirs)
        for name, value in theirs.items():
            if isinstance(value, float):
                assert mine[name] == pytest.approx(value, abs=5e-6), name
            else:
                assert mine[name] == value, name


@given(st.integers(0, 10_000), st.integers(1, 60))
def test_shards_cover_all_rows_in_order_with_equal_sizes(total: int, count: int) -> None:
    shards = [Shard(index, count).rows(total) for index in range(1, count + 1)]
    assert [row for shard in shards for row in shard] == list(range(total))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@settings(max_examples=40, deadline=None)
@given(data=st.data(), counts=st.lists(st.integers(0, 7), min_size=1, max_size=5))
def test_a_cursor_reads_any_range_of_rows(
    data: st.DataObject, counts: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cursor")
    lines = iter(range(100))
    names = []
    for number, count in enumerate(counts):
        path = folder / f"{number}.csv"
        path.write_text("text\n" + "".join(f"row {next(lines)}\n" for _ in range(count)))
        names.append(str(path))
    sources = Sources.named(names)
    survey = sources.survey()
    assert survey.counts == tuple(counts)
    cursor = Cursor(sources, survey)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, survey.total))
        wanted = range(start, data.draw(st.integers(start, survey.total)))
        assert [row.input for row in cursor.rows(wanted)] == [f"row {index}" for index in wanted]


@pytest.mark.parametrize("text", ["text\na\nb\nc\n", "text\na\n"])
def test_a_file_that_grew_or_shrank_after_the_survey_is_rejected(text: str, tmp_path: Path) -> None:
    first, second = tmp_path / "1.csv", tmp_path / "2.csv"
    first.write_text("text\na\nb\n")
    second.write_text("text\nx\ny\n")
    sources = named([first, second])
    survey = sources.survey()
    first.write_text(text)
    with pytest.raises(InputError, match=r"1\.csv changed while it was read"):
        list(Cursor(sources, survey).rows(range(4)))
    assert [row.input for row in Cursor(sources, survey).rows(range(2, 4))] == ["x", "y"]


@pytest.mark.parametrize(("count", "chunk", "ending"), [(1, 64, ".jsonl"), (4, 7, ".csv"), (3, 16, ".parquet")])
def test_merged_parts_equal_one_run(
    predictor: Predictor, text_bundle: Path, files: list[Path], expected: list[dict[str, Any]], tmp_path: Path,
    count: int, chunk: int, ending: str,
) -> None:  # fmt: skip
    parts = []
    for index in range(1, count + 1):
        parts.append(tmp_path / f"part-{index}{ending}")
        division = Division(output=parts[-1], shard=Shard(index, count), chunk=chunk)
        predict_part(predictor, text_bundle, named(files), Scoring(), division)
        assert not list(tmp_path.glob("*.chunks"))
    merged = tmp_path / f"all{ending}"
    merge_parts(parts[::-1], merged)
    if ending == ".jsonl":
        agree(read(merged), expected)
    elif ending == ".parquet":
        agree(pq.read_table(merged).to_pylist(), expected)
    else:
        with merged.open(newline="") as file:
            rows = list(csv.DictReader(file))
        kinds = {"index": int, "input": str, "label": str}
        typed = [
            {name: None if cell == "" else kinds.get(name, float)(cell) for name, cell in row.items()} for row in rows
        ]
        agree(typed, expected)


def test_parts_from_python(
    predictor: Predictor, files: list[Path], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    parts = [
        hydrant.predict_files(predictor, files, tmp_path / f"{index}.jsonl", shard=f"{index}/2") for index in (1, 2)
    ]
    assert [(str(part.shard), part.total, part.failed) for part in parts] == [("1/2", 150, 0), ("2/2", 150, 0)]
    assert hydrant.predict_files(predictor, files, str(tmp_path / "2.jsonl"), shard="2/2").files == parts[1].files
    assert hydrant.merge_parts([str(part.path) for part in parts], str(tmp_path / "all.jsonl")) == parts
    agree(read(tmp_path / "all.jsonl"), expected)
    with pytest.raises(InputError, match="shard"):
        hydrant.predict_files(predictor, files, tmp_path / "x.jsonl", shard="5/4")
    (tmp_path / "link.csv").symlink_to(files[0])
    with pytest.raises(InputError, match="is one of the inputs"):
        hydrant.predict_files(predictor, files[0], tmp_path / "link.csv")


def test_an_interrupted_run_resumes_with_identical_bytes(
    predictor: Predictor, text_bundle: Path, files: list[Path], tmp_path: Path
) -> None:
    whole = Division(output=tmp_path / "whole.jsonl", chunk=16)
    predict_part(predictor, text_bundle, named(files), Scoring(), whole)
    cut_off = Division(output=tmp_path / "cut.jsonl", chunk=16)
    local = local_engine(predictor, named(files), Scoring())

    def failing(chunks: Chunks, missing: list[int], survey: Survey) -> Iterator[int]:
        for number, done in enumerate(local(chunks, missing, survey)):
            if number == 3:
                raise KeyboardInterrupt
            yield done

    with pytest.raises(KeyboardInterrupt):
        predict_part(predictor, text_bundle, named(files), Scoring(), cut_off, engine=failing)
    assert not cut_off.output.exists()
    folder = tmp_path / "cut.jsonl.chunks"
    damaged = folder / "chunk-000001.jsonl"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    predicted: list[int] = []

    def counting(chunks: Chunks, missing: list[int], survey: Survey) -> Iterable[int]:
        predicted.extend(missing)
        return local(chunks, missing, survey)

    outcome = predict_part(predictor, text_bundle, named(files), Scoring(), cut_off, engine=counting)
    assert predicted == [1, *range(4, 10)]
    assert (outcome.chunks, outcome.found) == (10, 3)
    assert cut_off.output.read_bytes() == whole.output.read_bytes()
    assert not folder.exists()
    again = predict_part(predictor, text_bundle, named(files), Scoring(), cut_off, engine=failing)
    assert again.made_before


def test_other_work_is_rejected(predictor: Predictor, text_bundle: Path, files: list[Path], tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    division = Division(output=output, shard=Shard(1, 2), chunk=16)

    def failing(chunks: Chunks, missing: list[int], survey: Survey) -> Iterator[int]:
        local = local_engine(predictor, named(files), Scoring())
        yield from local(chunks, missing[:begun], survey)
        raise KeyboardInterrupt

    for begun in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            predict_part(predictor, text_bundle, named(files), Scoring(), division, engine=failing)
        assert (tmp_path / "out.jsonl.chunks").exists() is bool(begun), "a folder without chunks is removed"
    for name, changed in (("shard", {"shard": Shard(2, 2)}), ("chunk", {"chunk": 17})):
        other = Division(**{"output": output, "shard": Shard(1, 2), "chunk": 16, **changed})
        with pytest.raises(InputError, match=f"with other {name}"):
            predict_part(predictor, text_bundle, named(files), Scoring(), other)
    relabelled = shutil.copytree(text_bundle, tmp_path / "relabelled")
    manifest = json.loads((relabelled / "hydrant.json").read_bytes())
    manifest["labels"].reverse()
    (relabelled / "hydrant.json").write_text(json.dumps(manifest))
    with pytest.raises(InputError, match="with other bundle;"):
        predict_part(predictor, relabelled, named(files), Scoring(), division)
    with pytest.raises(InputError, match="with other inputs, rows"):
        predict_part(predictor, text_bundle, named(files[:2]), Scoring(), division)
    first, second = (open_chunks(tmp_path / "a.jsonl", {}, range(3), 2) for _ in range(2))
    with first, pytest.raises(InputError, match="used by another process"), second:
        pass
    predict_part(predictor, text_bundle, named(files), Scoring(), division)
    with pytest.raises(InputError, match="differs in shard"):
        predict_part(predictor, text_bundle, named(files), Scoring(), Division(output=output, shard=Shard(2, 2)))


def test_failed_rows_go_to_a_separate_file(predictor: Predictor, text_bundle: Path, tmp_path: Path) -> None:
    lines = ["hello", "", "money", None, "what", " ", "the weather"]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in lines))
    sources = named([tmp_path / "x.jsonl"], missing=True)
    scoring = Scoring(skip_invalid=True)
    parts = []
    for index in (1, 2):
        parts.append(tmp_path / f"{index}.csv")
        division = Division(output=parts[-1], errors=tmp_path / f"bad-{index}.jsonl", shard=Shard(index, 2), chunk=2)
        predict_part(predictor, text_bundle, sources, scoring, division)
    with pytest.raises(InputError, match="--errors"):
        merge_parts(parts, tmp_path / "all.csv")
    with pytest.raises(InputError, match=r"errors\.csv"):
        merge_parts(parts, tmp_path / "all.csv", tmp_path / "errors.csv")
    merge_parts(parts, tmp_path / "all.csv", tmp_path / "bad.jsonl")
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["index"], row["input"]) for row in rows] == [("0", "hello"), ("2", "money"), ("4", "what"),
                                                              ("6", "the weather")]  # fmt: skip
    assert "error" not in rows[0]
    bad = read(tmp_path / "bad.jsonl")
    assert [row["index"] for row in bad] == [1, 3, 5]
    assert all(set(row) == {"index", "input", "error"} for row in bad)
    division = Division(output=tmp_path / "with.csv")
    predict_part(predictor, text_bundle, sources, scoring, division)
    with division.output.open(newline="") as file:
        assert [bool(row["error"]) for row in csv.DictReader(file)] == [not (text or "").strip() for text in lines]
    with pytest.raises(InputError, match=r"x\.jsonl, row 4"):
        predict_part(predictor, text_bundle, named([tmp_path / "x.jsonl"]), Scoring(), Division(output=tmp_path / "y"))
    assert not (tmp_path / "y.chunks").exists()


@pytest.fixture(scope="module")
def parts(
    predictor: Predictor, text_bundle: Path, files: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    folder = tmp_path_factory.mktemp("parts")
    paths = [folder / f"{index}.jsonl" for index in (1, 2, 3)]
    for index, path in enumerate(paths, start=1):
        predict_part(predictor, text_bundle, named(files[:2]), Scoring(), Division(output=path, shard=Shard(index, 3)))
    other = Division(output=folder / "other.jsonl", shard=Shard(3, 3))
    predict_part(predictor, text_bundle, named(files[1:]), Scoring(), other)
    return [*paths, other.output]


def test_a_merge_refuses_what_is_not_all_of_one_prediction(parts: list[Path], tmp_path: Path) -> None:
    one, two, three, other = parts
    output = tmp_path / "all.jsonl"
    for some, words in (
        ([], "no parts"),
        ([one, three], "2/3"),
        ([one, two, three, two], r"2\.jsonl, .*2\.jsonl"),
        ([one, two, other], "rows, inputs"),
        ([one, two, tmp_path / "absent.jsonl"], r"absent\.jsonl"),
        (str(one), r"1\.jsonl"),
    ):
        with pytest.raises(InputError, match=words):
            merge_parts(some, output)
    for place in (tmp_path / "all.csv", two):
        with pytest.raises(InputError, match=place.name):
            merge_parts([one, two, three], place)
    with pytest.raises(InputError, match="errors"):
        merge_parts([one, two, three], output, tmp_path / "errors.jsonl")
    copy = tmp_path / "2.jsonl"
    copy.write_bytes(two.read_bytes())
    with pytest.raises(InputError, match=r"2\.jsonl\.manifest\.json"):
        merge_parts([one, copy, three], output)
    manifest_of(copy).write_bytes(manifest_of(two).read_bytes())
    copy.write_bytes(b"".join(two.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match=r"2\.jsonl: missing or altered"):
        merge_parts([one, copy, three], output)
    manifest_of(copy).write_text('{"schema": 1}')
    with pytest.raises(InputError, match=r"manifest\.json"):
        merge_parts([one, copy, three], output)
    assert not output.exists()
    merge_parts([three, one, two], output)
    assert output.read_bytes() == one.read_bytes() + two.read_bytes() + three.read_bytes()
    assert Part.load(one).shard == Shard(1, 3)


def test_chunks_equal_a_stream_bit_for_bit(
    predictor: Predictor, text_bundle: Path, files: list[Path], tmp_path: Path
) -> None:
    scoring = Scoring(batch_size=2)
    division = Division(output=tmp_path / "x.jsonl", chunk=64)
    predict_part(predictor, text_bundle, named(files), scoring, division)
    stream = [row for window in answers(predictor, named(files).rows(), scoring) for row in window]
    assert read(division.output) == stream
    assert list(example_answer(predictor, scoring)) == list(stream[0])


def test_a_killed_command_resumes(text_bundle: Path, texts: list[str], tmp_path: Path) -> None:
    data, output = tmp_path / "x.csv", tmp_path / "part.jsonl"
    data.write_text("text\n" + "".join(f"{text}\n" for text in texts * 10))
    words = ["predict", text_bundle, "--input", data, "--shard", "2/2", "--chunk", "64", "--batch-size", "2",
             "--threads", "1", "--output", output]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "hydrant", *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/"
    )
    first = tmp_path / "part.jsonl.chunks/chunk-000001.jsonl"
    until = time.monotonic() + 120
    while not first.exists() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert first.exists()
    assert not output.exists()
    done = stdout_of(*words)
    assert "chunks existed already" in done
    assert "wrote 750 prediction(s) of 1500 (shard 2/2)" in done
    rows = read(output)
    assert [row["index"] for row in rows] == list(range(750, 1500))
    assert [row["input"] for row in rows] == (texts * 10)[750:]
    again = run_cli(*words)
    assert again.stdout == f"{output} exists already: shard 2/2, 750 of 1500 rows\n"


def test_commands_end_to_end(
    text_bundle: Path, files: list[Path], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    common = ["predict", text_bundle, "--input", *files, "--threads", "1"]
    parts = [tmp_path / f"part-{index}.csv" for index in (1, 2)]
    done = run_cli(*common, "--shard", "1/2", "--output", parts[0])
    assert done.stdout == f"wrote 75 prediction(s) of 150 (shard 1/2) to {parts[0]}\n"
    facts = json.loads(run_cli(*common, "--shard", "2/2", "--output", parts[1], "--json").stdout)
    assert {name: facts[name] for name in ("count", "failed", "shard", "total", "chunks", "found")} == {
        "count": 75, "failed": 0, "shard": "2/2", "total": 150, "chunks": 1, "found": 0}  # fmt: skip
    merged = run_cli("merge", *parts, "-o", tmp_path / "all.csv")
    assert merged.stdout == f"merged 2 parts, 150 rows, into {tmp_path / 'all.csv'}\n"
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["label"] for row in rows] == [row["label"] for row in expected]
    run_cli(*common, "--output", tmp_path / "plain.parquet", "--probabilities")
    table = pq.read_table(tmp_path / "plain.parquet")
    assert table.schema.field("index").type == "int64"
    assert table.schema.field("abstain").type == "bool"
    agree([{k: v for k, v in row.items() if k != "probabilities"} for row in table.to_pylist()], expected)
    assert sum(table["probabilities"][0].as_py().values()) == pytest.approx(1, abs=1e-5)
