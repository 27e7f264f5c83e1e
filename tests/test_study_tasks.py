"""The study of tasks in benchmarks/: its data, its training, its tables, and one whole miniature run."""

import csv
import json
import sys
from pathlib import Path

import pytest
import transformers

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import study_tasks
import tasks_data
import tasks_rows
from study_rows import DEEP
from support import make_model
from tasks_data import DOMAIN_OF, Sizes

SIZES = Sizes(train=40, validation=20, calibration=20, test=30, ood_test=12)


@pytest.fixture(scope="module")
def queries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small CLINC150: four queries of every intent in each split, and some out of scope."""
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
    """A small SNIPS benchmark: twenty-five requests of every intent, and one that all intents share."""
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


def test_domains_know_every_intent_of_clinc150(shared: Path) -> None:
    assert {intent for _, intent in tasks_data.read_queries(shared / "data/clinc150/train.csv")} == set(DOMAIN_OF)


def test_no_request_is_in_two_splits(snips: Path) -> None:
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


@pytest.fixture(scope="module")
def ran(snips: Path, queries: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Output folder of a whole miniature run."""
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
