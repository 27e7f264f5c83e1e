"""Plans whose members are chosen by different methods, circuits that keep the accuracy, and data made for circuits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydrant import Circuit, HeadPlan, Random, Taylor, plan_heads
from hydrant.calib.heads.plan_search import looser
from hydrant.data.corruptions import synthetic_ood
from hydrant.data.examples import Examples
from hydrant.errors import InputError
from hypothesis import given
from hypothesis import strategies as st
from support import LAYERS, run_cli

ANY = 100
"""Points of accuracy that circuits may lose where nothing is held out."""


@pytest.fixture(scope="module")
def ood_csv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ood") / "ood.csv"
    path.write_text("text\nweather weather\nis is the\ntoday\nthe money the money\nwhat the\nhello hello hello\n")
    return path


# A method for each member


def test_members_keep_what_their_own_method_says(bert_checkpoint: Path, text_csv: Path, ood_csv: Path) -> None:
    circuit = Circuit(ood=ood_csv, max_accuracy_loss=ANY)
    methods = [Taylor(), circuit, Random(), circuit]
    mixed = plan_heads(bert_checkpoint, text_csv, methods, members=4, keep=2, seed=3)
    assert mixed.method == "taylor,circuit,random,circuit"
    alone = plan_heads(bert_checkpoint, text_csv, Taylor(), members=1, keep=2, seed=3)
    assert mixed.members[0] == alone.members[0], "one member gets the plain mean"
    circuits = plan_heads(bert_checkpoint, text_csv, circuit, members=2, keep=2, seed=3)
    assert (mixed.members[1], mixed.members[3]) == circuits.members
    drawn = plan_heads(bert_checkpoint, method="random", members=4, keep=2, seed=3)
    assert mixed.members[2] == drawn.members[2]
    facts = mixed.provenance
    assert facts["methods"] == ["taylor", "circuit", "random", "circuit"]
    assert facts["circuit"] == {name: circuits.provenance[name] for name in facts["circuit"]}
    assert facts["taylor"]["scores"] == alone.provenance["scores"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("taylor,random", "2 entries 'taylor,random' for 3 members"),
        ("taylor,magic,random", "'magic'"),
        (["taylor", "random", Circuit(objective="nll", average=True)], "average is given with a method for each"),
        (["random", Circuit(ood="a.csv"), Circuit(ood="b.csv")], "name different out-of-distribution data"),
    ],
)
def test_wrong_mixes_are_refused(method: Any, message: str, bert_checkpoint: Path, text_csv: Path) -> None:
    with pytest.raises(InputError, match=message):
        plan_heads(bert_checkpoint, text_csv, method, keep=2)


# Circuits that keep the accuracy


def answers(checkpoint: Path, texts: list[str]) -> list[int]:
    """What the model itself says, so that it is always right."""
    import torch
    from transformers import AutoModelForSequenceClassification, BertTokenizerFast

    model = AutoModelForSequenceClassification.from_pretrained(checkpoint).eval()
    with torch.no_grad():
        inputs = BertTokenizerFast.from_pretrained(checkpoint)(texts, padding=True, return_tensors="pt")
        return [int(label) for label in model(**inputs).logits.argmax(dim=-1)]


@given(st.integers(1, 12), st.integers(1, 8), st.data())
def test_looser_counts_keep_more(heads: int, layers: int, data: st.DataObject) -> None:
    counts = data.draw(
        st.lists(st.lists(st.integers(1, heads), min_size=layers, max_size=layers), min_size=1, max_size=3)
    )
    tried = list(looser(counts, heads))
    assert tried[0] == counts
    for attempt in tried[1:]:
        assert all(new >= old for rows in zip(attempt, counts, strict=True) for new, old in zip(*rows, strict=True))
        assert all((new == heads) or (new <= heads - 1) for row in attempt for new in row)
    assert len({json.dumps(attempt) for attempt in tried}) == len(tried), "nothing is searched twice"
    assert len(tried) <= 2 * (layers.bit_length() + 1)


def test_circuits_that_lose_too_much_keep_more_or_fork_later(
    bert_checkpoint: Path, ood_csv: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = [
        f"{a} {b}" for a in ("hello", "money", "weather", "today", "what") for b in ("the", "is", "money", "today")
    ]
    data = texts * 3, answers(bert_checkpoint, texts * 3)

    def make(points: float, **options: Any) -> HeadPlan:
        how = Circuit(ood=ood_csv, max_accuracy_loss=points)
        return plan_heads(bert_checkpoint, data, how, keep=1, members=2, **options)

    taken = make(99)
    first = taken.provenance["margin"]["attempts"][0]
    assert taken.head_counts() == first["counts"] == [[1] * LAYERS] * 2
    assert not caplog.records or "lost" not in caplog.text
    lost = 100 * (first["single_accuracy"] - first["accuracy"])
    assert lost > 0, "the fixture's circuits of one head must lose something"
    stricter = make(lost - 0.1)
    attempts = stricter.provenance["margin"]["attempts"]
    assert len(attempts) > 1
    assert stricter.head_counts() == attempts[-1]["counts"] != first["counts"]
    losses = [100 * (one["single_accuracy"] - one["accuracy"]) for one in attempts]
    assert losses[-1] <= lost - 0.1 < min(losses[:-1])
    assert f"circuits as asked for lost {lost:.1f} points of accuracy on 30 held-out examples" in caplog.text


# Out-of-distribution inputs made of the data

WORDS = st.lists(st.sampled_from(["play", "the", "song", "book", "a", "Table"]), min_size=1, max_size=6)


@given(st.lists(WORDS, min_size=2, max_size=12), st.integers(0, 9))
def test_made_texts(sentences: list[list[str]], seed: int) -> None:
    texts = [" ".join(words) for words in sentences]
    known = Examples(texts, None, "train.csv")
    made = synthetic_ood(known, "text", seed)
    assert made.inputs == synthetic_ood(known, "text", seed).inputs
    assert len(made) == len(texts)
    assert made.labels is None
    for index, (text, new) in enumerate(zip(texts, made.inputs, strict=True)):
        words = text.split()
        if index % 3 == 0 and len(set(words)) > 1:
            assert sorted(new.split()) == sorted(words)
        elif index % 3 == 1 and len(words) > 1 and new.split()[0].isascii():  # else both halves are its own
            assert new.split()[: len(words) // 2] == words[: len(words) // 2]
        else:
            assert len(new.split()) == len(words)
            assert not any(letter.isascii() and letter.isalpha() for letter in new)


def test_made_images() -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (6, 20, 17, 3), dtype=np.uint8))
    made = synthetic_ood(Examples(images, None, "x"), "image").inputs
    assert made[0].shape == (20, 16, 3), "four patches of four columns"

    def patches(image: np.ndarray) -> list[bytes]:
        return sorted(image[r : r + 5, c : c + 4].tobytes() for r in range(0, 20, 5) for c in range(0, 16, 4))

    assert patches(made[0]) == patches(images[0][:20, :16])
    assert not np.array_equal(made[0], images[0][:, :16])
    np.testing.assert_array_equal(made[1][:, :8], images[1][:, :8])
    assert any(np.array_equal(made[1][:, 8:], image[:, 8:]) for image in images[2:] + images[:1])
    assert made[2].shape == images[2].shape
    assert not np.array_equal(made[2], images[2])


def test_command_line(bert_checkpoint: Path, text_csv: Path, tmp_path: Path) -> None:
    command = ("plan", bert_checkpoint, "--data", text_csv, "-o", tmp_path / "plan.json", "--keep", "[1, 2, 3]")
    done = run_cli(*command, "--method", "circuit,random,circuit", "--ood", "auto", "--max-accuracy-loss", 100)
    assert done.returncode == 0, done.stderr
    assert "has 24 out-of-distribution examples; circuits searched on fewer" in done.stderr
    plan = HeadPlan.load(tmp_path / "plan.json")
    assert plan.head_counts() == [[1, 2, 3]] * 3
    assert plan.provenance["circuit"]["ood"] == "inputs made of train.csv"
    refused = run_cli(*command, "--method", "random,taylor,random", "--ood", "auto")
    assert refused.returncode == 2
    assert "--ood is given for --method random,taylor,random" in refused.stderr
