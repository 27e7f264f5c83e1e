"""Sentence-pair classifiers, from reading pairs to predicting them, against Hugging Face's tokenizers and models."""

import json
import shutil
from pathlib import Path
from typing import Any

import datasets
import hydrant
import numpy as np
import oracle
import pytest
import transformers
from hydrant import Reading
from hydrant.cli.main import main
from hydrant.data.data_options import DataOptions
from hydrant.data.examples import read_examples
from hydrant.data.processor import from_transformers
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_model, load_processor
from hydrant.models.family_registry import architecture_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support import make_model, make_tokenizer, named, predicted, run_cli, stdout_of

PAIRS = [
    ("hello world", "transfer money"), ("what is the weather", "the money today is what the world is"),
    ("money " * 50, "hello"), ("today", "weather " * 50), ("hello world " * 20, "transfer money " * 20),
    ("hello " * 20, "money " * 20),
]  # fmt: skip
COLUMNS: dict[str, Any] = {"text": "premise", "text_pair": "hypothesis"}
OPTIONS = ("--text-column", "premise", "--text-pair-column", "hypothesis")


def make_roberta_tokenizer() -> Any:
    """RoBERTa's tokenizer with a vocabulary of letters."""
    words = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "Ġ", *"abcdefghijklmnopqrstuvwxyz0123456789.,!?", "th", "he"]
    vocabulary = {word: index for index, word in enumerate(words)}
    return transformers.RobertaTokenizer(vocab=vocabulary, merges=[("t", "h"), ("h", "e")], model_max_length=512)


def tokenizer_of(family: str, folder: Path) -> Any:
    return make_roberta_tokenizer() if family == "roberta" else make_tokenizer(folder / "source")


@pytest.fixture(scope="module", params=["bert", "roberta"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny classifier of pairs, with its tokenizer."""
    folder = tmp_path_factory.mktemp("pairs") / request.param
    make_model(request.param, **named("abcde")).save_pretrained(folder)
    tokenizer_of(request.param, folder.parent).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Labelled pairs, in columns of other names than usual."""
    path = tmp_path_factory.mktemp("data") / "pairs.jsonl"
    rows = [
        {"premise": first, "hypothesis": second, "label": "abcde"[index % 5]}
        for index, (first, second) in enumerate(PAIRS[:4] * 6)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Planned and fused of the checkpoint, and exported."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    plan = hydrant.plan_heads(checkpoint, table, keep=2, reading=Reading(**COLUMNS))
    hydrant.save_bundle(hydrant.fuse(checkpoint, plan), folder, load_processor(checkpoint, "text"))
    hydrant.export_onnx(folder)
    return folder


WORDS = st.lists(
    st.sampled_from(["hello", "World", "money", "the", "unheard", "a.", "the [SEP]", "world,"]), min_size=1
)
TEXTS = st.one_of(WORDS.map(" ".join), st.sampled_from(["money " * 60, "hello " * 21, "what is " * 30]))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_tokens_of_pairs_are_the_tokenizers(family: str, side: str, tmp_path: Path) -> None:
    tokenizer_of(family, tmp_path).save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "truncation_side": side}))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    architectures = {
        longest: architecture_of(make_model(family, max_position_embeddings=longest + 2 * (family == "roberta")))
        for longest in (6, 7, 20, 40)
    }
    processors = {longest: from_transformers(tokenizer, spec) for longest, spec in architectures.items()}

    @settings(max_examples=15, deadline=None)
    @given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4), st.sampled_from(sorted(processors)))
    def agree(pairs: list[tuple[str, str]], longest: int) -> None:
        first, second = (list(texts) for texts in zip(*pairs, strict=True))
        expected = tokenizer(
            first, second, truncation="longest_first", max_length=longest, padding=True, return_tensors="np",
            return_token_type_ids=True,
        )  # fmt: skip
        uncut = tokenizer(first, second)["input_ids"]
        items = processors[longest].encode(pairs)
        tensors = processors[longest].collate(items)
        assert set(tensors) == set(architectures[longest].input_names)
        for name, array in tensors.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)
        assert [item.truncated for item in items] == [len(ids) > longest for ids in uncut]

    agree()


READ = [("NA", "007"), ("a, b", "héllo")]


def test_pairs_of_other_sources(tmp_path: Path) -> None:
    first, second = (list(texts) for texts in zip(*READ, strict=True))
    dataset = datasets.Dataset.from_dict({"a": first, "b": second, "label": ["x", "y"]})
    assert list(read_examples(dataset, ["x", "y"], columns=DataOptions(text="a", text_pair="b")).inputs) == READ
    with pytest.raises(InputError, match="the table has the columns a, b, label; expected one column 'c'"):
        read_examples(dataset, ["x", "y"], columns=DataOptions(text="a", text_pair="c"))
    assert list(read_examples((READ, [0, 1]), ["x", "y"]).inputs) == READ
    np.savez(tmp_path / "pairs.npz", x=np.array(READ), y=np.array([0, 1]))
    assert list(read_examples(tmp_path / "pairs.npz", ["x", "y"]).inputs) == READ
    np.savez(tmp_path / "triples.npz", x=np.array([["a", "b", "c"]]), y=np.array([0]))
    with pytest.raises(InputError, match=r"triples\.npz .*\[1, 3\]"):
        read_examples(tmp_path / "triples.npz", ["x", "y"])
    with pytest.raises(InputError, match=r"pairs\.npz has no column 'b'"):
        read_examples(tmp_path / "pairs.npz", ["x", "y"], columns=DataOptions(text_pair="b"))


@pytest.mark.parametrize("backend", ["torch", "onnxruntime"])
def test_predictions_of_pairs_are_those_of_the_original(backend: str, checkpoint: Path, bundle: Path) -> None:
    model, tokenizer = load_model(checkpoint), transformers.AutoTokenizer.from_pretrained(checkpoint)
    first, second = (list(texts) for texts in zip(*PAIRS, strict=True))
    longest = architecture_of(model).max_sequence
    tokens = tokenizer(first, second, truncation=True, max_length=longest, padding=True, return_tensors="pt")
    expected = oracle.ensemble([model], hydrant.Bundle.open(bundle).plan(), dict(tokens))
    with hydrant.load(bundle, backend) as predictor:
        prediction = predictor.predict(PAIRS, batch_size=2)
        for name in ("probabilities", "predictive_entropy", "mutual_information"):
            np.testing.assert_allclose(getattr(prediction, name), expected[name], atol=2e-5, err_msg=name)
        assert np.ptp(prediction.probabilities, axis=0).max() > 0.01
        one = predictor.predict(PAIRS[1])
        np.testing.assert_allclose(one.probabilities, prediction.probabilities[1:2], atol=1e-5)
        assert len(predictor.predict(list(PAIRS[1]))) == 2  # a list of texts is as many texts


def test_a_tokenizer_without_token_types_gives_none(tmp_path: Path) -> None:
    """As one of no class of its own: transformers hands models ids and mask, which take type 0 for both texts."""
    own = make_tokenizer(tmp_path / "source")
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own.backend_tokenizer, **names)
    model = make_model("bert")
    model.save_pretrained(tmp_path / "checkpoint")
    tokenizer.save_pretrained(tmp_path / "checkpoint")
    pairs = PAIRS[:2]
    given = tokenizer([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
    assert "token_type_ids" not in given
    plan = hydrant.HeadPlan.all_heads("bert", 3, 4)
    hydrant.save_bundle(hydrant.fuse(model, plan), tmp_path / "out", load_processor(tmp_path / "checkpoint", "text"))
    prediction = predicted(tmp_path / "out", pairs, "torch")
    np.testing.assert_allclose(prediction.probabilities, model(**given).logits.detach().softmax(dim=1), atol=1e-6)
    typed = own([a for a, _ in pairs], [b for _, b in pairs], padding=True, return_tensors="pt")
    assert np.abs(prediction.probabilities - model(**typed).logits.detach().softmax(dim=1).numpy()).max() > 1e-3
    processor = from_transformers(tokenizer, architecture_of(model))
    assert processor.settings() != from_transformers(own, architecture_of(model)).settings()
    stored = json.loads((tmp_path / "out/processor/tokenizer_config.json").read_text())
    assert stored["model_input_names"] == ["input_ids", "attention_mask"]


def test_command_line_with_pairs(bundle: Path, table: Path, tmp_path: Path, undrawn: None) -> None:
    out, page = Path(shutil.copytree(bundle, tmp_path / "out")), tmp_path / "page.html"
    evaluating = ("evaluate", out, "--data", table, "--bootstrap", 0, "--corruptions", "--html", page, *OPTIONS)
    assert main([*map(str, evaluating), "--force"]) == 0
    assert any(" | ".join(pair) in page.read_text() for pair in PAIRS[:4]), "an error"
    given = run_cli("predict", out, "--pair", *PAIRS[0], "--pair", *PAIRS[1], "--json")
    rows = json.loads(given.stdout)["predictions"]
    assert [row["input"] for row in rows] == [list(pair) for pair in PAIRS[:2]]
    read = stdout_of("predict", out, "--input", table, *OPTIONS)
    lines = [json.loads(line) for line in read.splitlines()]
    assert [row["input"] for row in lines] == [list(pair) for pair in PAIRS[:4] * 6]
    for one, other in zip(rows, lines, strict=False):
        assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)
    both = run_cli("predict", out, "hello", "--pair", *PAIRS[0])
    assert both.returncode == 2
    assert "--pair" in both.stderr
