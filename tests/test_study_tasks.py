"""The study of tasks in benchmarks/: its data, its training, its tables, and one whole miniature run."""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
import transformers

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import study_tasks
import tasks_data
import tasks_rows
import tasks_table
from clinc150_domains import DOMAIN_OF, DOMAINS
from hydrant.data.examples import Examples, read_examples
from hydrant.data.label_encoding import IGNORED
from study import Data
from study_rows import DEEP, SINGLE
from support import make_model
from tasks_data import Sizes, TaskData

SIZES = Sizes(train=40, validation=20, calibration=20, test=30, ood_test=12)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """CLINC150 in small: four queries of every intent in each split, and some out of scope."""
    folder = tmp_path_factory.mktemp("shared") / "data/clinc150"
    folder.mkdir(parents=True)
    for split in ("train", "val", "test", "oos_test"):
        intents = ["oos"] * 10 if split == "oos_test" else DOMAIN_OF
        rows = [(f"{split} {intent} {place} {n}", intent) for place, intent in enumerate(intents) for n in range(4)]
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    return folder


@pytest.fixture(scope="module")
def snips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SNIPS benchmark in small: twenty-five requests of every intent and one that all have."""
    folder = tmp_path_factory.mktemp("snips")
    for intent in (*tasks_data.KNOWN, *tasks_data.STRANGE):
        rows = [
            {"data": [{"text": "what is the "}, {"text": f"{intent} number {place}", "entity": "artist"}]}
            for place in range(25)
        ]
        rows.append({"data": [{"text": "Transfer money."}]})
        (folder / intent).mkdir()
        for name, part in ((f"train_{intent}_full.json", rows[:-4]), (f"validate_{intent}.json", rows[-4:])):
            text = json.dumps({intent: part} | ({"x": "é"} if "validate" in name else {}), ensure_ascii=False)
            (folder / intent / name).write_bytes(text.encode("latin-1"))
    return folder


def test_domains_are_ten_of_fifteen_intents() -> None:
    assert Counter(DOMAIN_OF.values()) == dict.fromkeys(DOMAINS, 15)


def test_domains_know_every_intent_of_clinc150(shared: Path) -> None:
    assert {intent for _, intent in tasks_data.read_queries(shared / "data/clinc150/train.csv")} == set(DOMAIN_OF)


def test_requests_of_several_domains_have_the_labels_of_their_parts(queries: Path) -> None:
    known = tasks_data.several_domains(queries, SIZES)
    again = tasks_data.several_domains(queries, SIZES)
    assert known.data.train.inputs == again.data.train.inputs
    sizes = []
    for split, name in (("train", "train"), ("test", "test")):
        examples: Examples = getattr(known.data, split)
        assert examples.labels is not None
        for text, labels in zip(examples.inputs, examples.labels, strict=True):
            parts = [part.split() for part in text.split(" and ")]
            assert {part[0] for part in parts} == {name}
            domains = [DOMAIN_OF[part[1]] for part in parts]
            assert len(set(domains)) == len(domains)
            assert {known.labels[place] for place in np.flatnonzero(labels)} == set(domains)
            sizes.append(len(parts))
    assert set(sizes) == {1, 2, 3}
    assert {text.count(" and ") for text in known.data.ood_test.inputs} == {0, 1, 2}
    assert known.data.ood_test.labels is None


def test_no_query_is_calibrated_on_that_epochs_are_judged_on(queries: Path) -> None:
    splits = tasks_data.clinc150(queries)
    judged, calibrated = ({text for text, _ in splits[name]} for name in ("validation", "calibration"))
    assert judged and calibrated and not judged & calibrated


def test_documents_are_of_the_intent_of_its_domain_and_of_others(queries: Path) -> None:
    known = tasks_data.query_pairs(queries, SIZES)
    for split, mix in (("train", tasks_data.LEARNED), ("test", tasks_data.RANKED)):
        examples: Examples = getattr(known.data, split)
        assert examples.labels is not None
        groups: dict[str, list[tuple[str, float]]] = {}
        for (query, document), label in zip(examples.inputs, examples.labels, strict=True):
            groups.setdefault(query, []).append((document, label))
        assert len(groups) == getattr(SIZES, split)
        for query, documents in groups.items():
            intent = query.split()[1]
            kinds = [document.split()[1] for document, _ in documents]
            near = sum(kind != intent and DOMAIN_OF[kind] == DOMAIN_OF[intent] for kind in kinds)
            assert (kinds.count(intent), near, sum(mix) - kinds.count(intent) - near) == mix
            assert [label == 1 for _, label in documents] == [kind == intent for kind in kinds]
            assert query not in dict(documents)
            assert len(dict(documents)) == sum(mix)
    places = [place % 10 for place, label in enumerate(known.data.test.labels) if label]  # type: ignore[arg-type]
    assert len(set(places)) > 5, "what is relevant stands anywhere"
    assert len(known.data.ood_test) == SIZES.ood_test * 10


def test_slots_are_tags_of_words() -> None:
    parts = [{"text": "add "}, {"text": "clem burke", "entity": "artist"}, {"text": "'s song."}]
    words, tags = tasks_data.tagged_words(parts)
    assert words == ["add", "clem", "burke", "'", "s", "song", "."]
    assert tags == ["O", "B-artist", "I-artist", "O", "O", "O", "O"]


def test_no_request_stands_in_two_splits(snips: Path) -> None:
    known = tasks_data.slots(snips, SIZES)
    data = known.data
    splits = [data.train, data.validation, known.calibration, data.test, data.ood_test]
    texts = [" ".join(words).lower() for part in splits for words in part.inputs]
    assert len(set(texts)) == len(texts)
    assert known.labels == ("O", "B-artist", "I-artist")
    assert not any(intent in text for text in texts[: -SIZES.ood_test] for intent in ("ratebook", "searchcreative"))
    assert len(texts) == 40 + 20 + 20 + 30 + SIZES.ood_test


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six layers of a tiny BERT, and a tokenizer that splits words."""
    folder = tmp_path_factory.mktemp("base")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "what", "is", "the", "number", "add", "##book", "rate", "t"]
    words += ["##ransfer", "money", ".", *"0123456789", *(f"##{digit}" for digit in range(10))]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=40).save_pretrained(folder)
    make_model("bert", num_hidden_layers=6).bert.save_pretrained(folder)
    return folder


def test_the_loss_of_tags_is_that_of_the_first_token_of_each_word(base: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    inputs = [["ratebook", "is", "transfer", "."], ["number", "12"]]
    tags = np.array([[1, 0, 2, 1], [0, 2, IGNORED, IGNORED]])
    examples = Examples(inputs, tags, "tags")
    known = TaskData("tokens", Data(examples, examples, None, examples, examples), examples, ("O", "B-x", "I-x"))
    (batch,) = tasks_rows.batches_of(known, tokenizer, 2)(np.random.default_rng(0))
    seen = []
    for ids, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        pieces = tokenizer.convert_ids_to_tokens(ids)
        begins = [not piece.startswith(("##", "[")) for piece in pieces]  # WordPiece marks what goes on
        assert (labels[~torch.tensor(begins)] == IGNORED).all()
        seen.append(labels[torch.tensor(begins)].tolist())
    assert sorted(seen) == [[0, 2], [1, 0, 2, 1]]
    assert batch["labels"].shape == batch["input_ids"].shape


def test_examples_of_tagged_words_may_be_given_again() -> None:
    examples = Examples([["a", "b"], ["c"]], np.array([[1, 0], [1, IGNORED]]), "tags")
    found = read_examples(examples, ["O", "B-x"], task="tokens")
    np.testing.assert_array_equal(found.labels, examples.labels)  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["cross-encoder", "several labels"])
def test_a_checkpoint_is_what_hydrant_takes_its_task_for(task: str, queries: Path, base: Path, tmp_path: Path) -> None:
    options = study_tasks.parsed([str(queries.parents[1]), "--base", str(base), "--tasks", task, "--fast"])
    options.work = tmp_path / "work"
    rows = study_tasks.study_of(options).rows(task)
    ensemble = hydrant.fuse(rows.checkpoint(0))
    assert ensemble.architecture.task == rows.known.task
    if task == "cross-encoder":
        assert ensemble.architecture.score_activation == "sigmoid"
    assert list(ensemble.labels) == list(rows.known.labels)


@pytest.fixture(scope="module")
def ran(snips: Path, queries: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a whole miniature run leaves behind."""
    folder = tmp_path_factory.mktemp("ran")
    study_tasks.main(
        [str(queries.parents[1]), "--snips", str(snips), "--base", str(base), "--tasks", "tagger", "--fast",
         "--jobs", "1", "--work", str(folder / "work"), "-o", str(folder / "tasks.json"),
         "--document", str(folder / "tasks.md")]
    )  # fmt: skip
    return folder


def test_a_miniature_run_measures_every_row(ran: Path) -> None:
    report = json.loads((ran / "tasks.json").read_text())
    (one,) = report["measured"]
    assert list(one["rows"]) == list(tasks_rows.NAMES)
    assert one["rows"][DEEP]["members"] == one["rows"]["fork at 4, keep 2, tuned"]["members"] == 3
    assert one["rows"][DEEP]["costs"]["operations"] > 2.9
    for row in one["rows"].values():
        assert 0 <= row["figures"]["accuracy"]["value"] <= 1
    text = (ran / "tasks.md").read_text()
    assert all(f"| {name} | " in text for name in tasks_rows.NAMES)


def test_tables_are_written_again_from_the_file(ran: Path, tmp_path: Path) -> None:
    given = ["unused", "--render", str(ran / "tasks.json"), "--document", str(tmp_path / "again.md")]
    study_tasks.main(given)
    assert (tmp_path / "again.md").read_text() == (ran / "tasks.md").read_text()


def test_figures_are_those_of_evaluate(ran: Path, snips: Path) -> None:
    (one,) = json.loads((ran / "tasks.json").read_text())["measured"]
    data = tasks_data.slots(snips, study_tasks.SIZES["tagger"].scaled(0.01)).data
    bundle = ran / "work/tagger/calibrated/single-0/single-0"
    report = hydrant.evaluate(bundle, data.test, data.ood_test, figures=hydrant.Figures(bootstrap=0))
    for name in ("accuracy", "nll", "span_f1"):
        assert one["rows"][SINGLE]["figures"][name]["value"] == pytest.approx(
            report.models[0].figures[name].value, abs=1e-5
        )


def _row(f1: float, gap: tuple[float, float, float], operations: float = 1.0) -> dict[str, Any]:
    difference = dict(zip(("value", "low", "high"), gap, strict=True))
    return {
        "costs": {"operations": operations, "parameters": 1.0},
        "figures": {"span_f1": {"value": f1, "low": None, "high": None}, "nll": {"value": 0.2}},
        "differences": {"span_f1": difference, "nll": difference},
        "best_epoch": 2 if f1 > 0.9 else 0,
        "decisions": {"false_positive_rate": 0.05} | ({"true_positive_rate": 0.5} if f1 > 0.8 else {}),
    }


def test_tables_tell_means_ranges_and_in_how_many_seeds_a_difference_is_shown() -> None:
    gaps = [(0.01, 0.002, 0.02), (0.03, -0.01, 0.05), (-0.02, -0.03, -0.01)]
    seeds = [
        {"rows": {name: _row(f1, gap) for name in tasks_rows.NAMES}}
        for f1, gap in zip((0.9, 0.92, 0.94), gaps, strict=True)
    ]
    assert "| single | 1.00 | 1.00 | 92.0 % | – | 0.200 | – | 0, 2, 2 |" in tasks_table.quality_table(seeds, "tokens")
    assert "| single | 92.0 % (90.0 to 94.0) | 0.200 (0.200 to 0.200) | – |" in tasks_table.spread_table(
        seeds, "tokens"
    )
    told = tasks_table.difference_table(seeds, "tokens")
    assert "| single | +0.7 (1 / 1 of 3) | +0.007 (1 / 1 of 3) | – |" in told
    assert "fork at 4, keep 2, tuned" not in told
    assert "| single | – | – | 5.0 % / 50.0 % |" in tasks_table.finding_table(seeds, "tokens")


def test_a_tagger_without_its_corpus_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        study_tasks.parsed(["shared"])
    assert stopped.value.code == 2
    assert "--snips" in capsys.readouterr().err
