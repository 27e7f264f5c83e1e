"""Texts as words and tags: the word of each token, files of tagged words, and invalid tags."""

import json
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import transformers
from hydrant.data.data_options import DataOptions
from hydrant.data.examples import read_examples
from hydrant.data.label_encoding import IGNORED, batch_labels, labelled, token_labels, word_starts, word_tags
from hydrant.data.processor import from_transformers, load_processor
from hydrant.data.tensors import TensorProcessor
from hydrant.data.text import EncodedWords, WordProcessor
from hydrant.errors import InputError
from hydrant.models.family_registry import architecture_of
from token_support import TAGS, make_tagger, make_word_tokenizer

TEXT = "anna smith  lives in Paris."


@pytest.fixture(scope="module")
def processor(tmp_path_factory: pytest.TempPathFactory) -> WordProcessor:
    tokenizer = make_word_tokenizer(tmp_path_factory.mktemp("words"))
    processor = from_transformers(tokenizer, architecture_of(make_tagger()))
    assert isinstance(processor, WordProcessor)
    return processor


def encoded(processor: WordProcessor, *items: object) -> list[EncodedWords]:
    texts = processor.encode(items)
    assert all(isinstance(text, EncodedWords) for text in texts)
    return texts  # type: ignore[return-value]


def test_tokens_know_their_words_and_characters(processor: WordProcessor, tmp_path: Path) -> None:
    """Compared with transformers' tokenizer, for texts and lists of words."""
    tokenizer = make_word_tokenizer(tmp_path)
    words = ["anna", "anis", "paris."]  # one token, two tokens, and a word with a full stop
    of_text, of_words = encoded(processor, TEXT, words)
    for item, reference in ((of_text, tokenizer(TEXT)), (of_words, tokenizer(words, is_split_into_words=True))):
        assert item.ids == reference["input_ids"]
        assert [None if word < 0 else word for word in item.words] == reference.word_ids()
    parts = [TEXT[start:end] for start, end in of_text.offsets[1:-1]]
    assert parts == ["anna", "smith", "lives", "in", "Paris", "."]
    joined = " ".join(words)
    assert [joined[start:end] for start, end in of_words.offsets[1:-1]] == ["anna", "an", "is", "paris", "."]
    assert of_words.words == [-1, 0, 1, 1, 2, 2, -1]
    [long] = encoded(processor, ["anna"] * 60)
    assert (long.truncated, long.tokens, max(long.words)) == (True, 40, 37)


def test_a_tag_is_at_the_first_token_of_its_word(processor: WordProcessor) -> None:
    items = encoded(processor, ["anna", "anis", "rome"], ["in"])
    tensors = processor.collate(items)
    labels = np.array([[1, 0, 3], [0, IGNORED, IGNORED]])
    starts = word_starts(items, tensors["input_ids"].shape[1])
    assert starts.tolist() == [[-1, 0, 1, -1, 2, -1], [-1, 0, -1, -1, -1, -1]]
    expected = [[-100, 1, 0, -100, 3, -100], [-100, 0, -100, -100, -100, -100]]
    assert token_labels(starts, labels).tolist() == expected
    assert batch_labels(items, labels, tensors).tolist() == expected
    assert batch_labels(items, np.array([1, 0]), tensors).tolist() == [1, 0]
    logits = np.arange(2 * 2 * 6 * 1.0).reshape(2, 2, 6, 1)
    with_labels, tags = labelled(logits, np.array(expected))
    assert tags.tolist() == [1, 0, 3, 0]
    assert with_labels[1, :, 0].tolist() == [13, 14, 16, 19]


def test_every_real_token_of_ready_tensors_is_a_word(processor: WordProcessor) -> None:
    ready = TensorProcessor(architecture_of(make_tagger()))
    rows = [{"input_ids": np.array([5, 6, 0]), "attention_mask": np.array([1, 1, 0])}]
    items = ready.encode(rows)
    assert word_starts(items, 3).tolist() == [[0, 1, -1]]
    labels = word_tags(rows, [[0, 2, -100]], TAGS, ["here"])
    assert token_labels(word_starts(items, 2), labels).tolist() == [[0, 2]]
    assert word_tags([["a", "b", "c"]], [[0.0, 2.0, -100.0]], TAGS, ["here"]).tolist() == [[0, 2, -100]]
    with pytest.raises(InputError, match=r"tag '0\.5' at here is not a class of the model"):
        word_tags([["a"]], [[0.5]], TAGS, ["here"])
    with pytest.raises(InputError, match="'ner_tags'"):
        read_examples([{"tokens": "anna lives", "tags": [0, 1]}], TAGS, task="tokens")


def test_words_without_a_leading_space_are_read_as_by_transformers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """ModernBERT's byte-level tokenizer adds no space; RoBERTa's tokenizers for token classification do."""
    letters = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *"abc", "Ġ", "Ġa"]
    vocabulary, texts = {letter: at for at, letter in enumerate(letters)}, [["a", "b"], ["ba", "a", "a"]]
    for added in (False, True):
        original = transformers.RobertaTokenizer(vocab=vocabulary, merges=[("Ġ", "a")], add_prefix_space=added)
        original.save_pretrained(tmp_path)
        ours = load_processor(tmp_path, architecture_of(make_tagger("roberta")))
        caplog.clear()
        wanted = original(texts, is_split_into_words=True)
        for row, item in enumerate(ours.encode(texts) + ours.encode(texts)):
            assert item.ids == wanted["input_ids"][row % 2]
            assert [None if word < 0 else word for word in item.words] == wanted.word_ids(row % 2)
        warned = [record for record in caplog.records if "add_prefix_space=False" in record.getMessage()]
        assert len(warned) == (0 if added else 1)


JSON = [
    {"tokens": ["anna", "lives"], "tags": ["B-PER", "O"]},
    {"tokens": ["in", "rome", "."], "tags": ["O", "B-LOC", None]},
]
EXPECTED = [[1, 0, -100], [0, 3, -100]]


def test_files_of_tagged_words(tmp_path: Path) -> None:
    numbers = [{"tokens": row["tokens"], "ner_tags": tags} for row, tags in zip(JSON, EXPECTED, strict=True)]
    numbers[0]["ner_tags"] = [1, 0]
    renamed = [{"words": row["tokens"], "pos": row["tags"]} for row in JSON]
    for name, rows in (("a", JSON), ("b", numbers), ("c", renamed)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    conll = "-DOCSTART- -X- O\n\nanna NNP B-PER\nlives VB O\n\nin IN O\nrome NN B-LOC\n. . O\n\n\n"
    (tmp_path / "d.conll").write_text(conll)
    (tmp_path / "e.bio").write_text("anna\tB-PER\nlives\tO\n\nin\tO\nrome\tB-LOC\n.\tO")
    for name in "abcde":
        [path] = tmp_path.glob(f"{name}.*")
        columns = DataOptions("words", "pos") if name == "c" else DataOptions()
        examples = read_examples(path, TAGS, columns=columns, task="tokens")
        assert examples.inputs == [["anna", "lives"], ["in", "rome", "."]]
        labels = np.array(EXPECTED)
        if name in "de":
            labels[1, 2] = 0
        np.testing.assert_array_equal(examples.labels, labels)


def test_tables_and_lists_of_tagged_words() -> None:
    inputs, tags = [row["tokens"] for row in JSON], [row["tags"] for row in JSON]
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "ner_tags": datasets.List(datasets.ClassLabel(names=TAGS[::-1])),
        }
    )
    backwards = [[3, 4], [4, 1, -100]]
    table = datasets.Dataset.from_dict({"tokens": inputs, "ner_tags": backwards}, features=features)
    for data in ((inputs, tags), pd.DataFrame({"tokens": inputs, "tags": tags}), table):
        examples = read_examples(data, TAGS, task="tokens")
        assert [list(words) for words in examples.inputs] == inputs
        np.testing.assert_array_equal(examples.labels, EXPECTED)


@pytest.mark.parametrize(("inputs", "tags", "message"), [
    ([["anna"]], [["O", "O"]], "has 2 tags for 1 words"),
    ([["anna"]], ["O"], "expected a list with a tag for each word"),
    (["anna lives"], [["O", "O"]], "expected a list of words"),
    ([["anna"]], [[7]], "tag '7' at example 0 is not a class"),
    ([["anna"]], [[True]], "tag 'True'"),
    ([["anna"]], [[-100]], "no word has a tag"),
])  # fmt: skip
def test_invalid_tags_are_rejected(inputs: list[object], tags: list[object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_examples((inputs, tags), TAGS, task="tokens")
