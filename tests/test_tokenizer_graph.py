"""``tokenizer.onnx`` and texts in the C++ runner, compared with Hugging Face's tokenizers and Python's predictions."""

import json
import re
import shutil
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hydrant
import onnx
import pytest
import transformers
from conftest import made_once
from cpp import lines, refused, run
from hydrant import Bundle
from hydrant.bundle.store import TOKENIZER_GRAPH
from hydrant.errors import InputError
from hydrant.export import wordpiece
from hydrant.export.tokenizer_onnx import made_tokenizer
from hydrant.export.wordpiece import _read
from support import WORDS, make_model, make_tokenizer, random_plan, run_cli
from token_support import make_tagger

COUNT = 150
"""Random texts, besides the fixed ones."""

PAIRS = [("hello world", "transfer money"), ("Wie geht's?", "naïve " * 30), ("money " * 30, "日本 a")]
TEXTS = ["Transfer 100 € to Zoë, please!", "hello, world", "ΣΊΣΥΦΟΣ 안녕 \U0001f600", "x" * 120, "money " * 60]


def letters_tokenizer(folder: Path, lower: bool) -> Any:
    """WordPiece tokenizer with every ASCII character as a piece, at the start of words and within."""
    folder.mkdir(parents=True, exist_ok=True)
    marks = [each for each in string.printable if not each.isspace()] + ["é", "日", "σ", "ς", "ᄋ", "ᅡ"]
    words = [*dict.fromkeys([*WORDS, *marks]), *(f"##{each}" for each in marks), "##ing", "##er"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return transformers.BertTokenizer(
        vocab=str(folder / "vocab.txt"), model_max_length=40, do_lower_case=lower, strip_accents=None
    )


def bytes_tokenizer() -> Any:
    """Byte-level BPE tokenizer, as RoBERTa's."""
    from tokenizers.pre_tokenizers import ByteLevel

    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *sorted(ByteLevel.alphabet()), "th", "he", "Ġt", "<mask>"]
    merges = [("t", "h"), ("h", "e"), ("Ġ", "t")]
    ids = {word: index for index, word in enumerate(vocabulary)}
    return transformers.RobertaTokenizer(vocab=ids, merges=merges, model_max_length=36)


def make_bundles(folder: Path) -> None:
    """Write bundles ``uncased`` and ``bytes`` of two families, with their tokenizers as graphs."""
    for name, family, tokenizer in (
        ("uncased", "bert", letters_tokenizer(folder / "uncased-source", lower=True)),
        ("bytes", "roberta", bytes_tokenizer()),
    ):
        model = make_model(family, vocab_size=400)
        ensemble = hydrant.fuse(model, random_plan(family, 2))
        bundle = hydrant.save_bundle(ensemble, folder / name, processor=tokenizer)
        hydrant.export_onnx(bundle)
        bundle = Bundle.open(bundle.path)
        content, report = made_tokenizer(bundle, 0, COUNT)
        assert report.texts >= 100
        assert report.bytes == len(content)
        bundle.add({TOKENIZER_GRAPH: content})


KNOWN: dict[tuple[Any, ...], dict[int, str]] = {}
"""Steps of a tokenizer and a range of characters → their mapping."""


def read_by_steps(tokenizer: Any, points: range, changes: dict[int, str]) -> None:
    """Cached ``hydrant.export.wordpiece._read``, by steps and characters."""
    if len(points) < wordpiece.CHUNK:
        return _read(tokenizer, points, changes)
    steps = (tokenizer.normalizer, tokenizer.pre_tokenizer)
    key = (*(step if step is None else step.__getstate__() for step in steps), points)
    if key not in KNOWN:
        KNOWN[key] = {}
        _read(tokenizer, points, KNOWN[key])
    return changes.update(KNOWN[key])


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """Map all Unicode characters once for each kind of tokenizer, which takes seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wordpiece, "_read", read_by_steps)
        yield


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Bundle]:
    """Bundles of two families with their tokenizers as graphs."""
    folder = made_once(tmp_path_factory, "tokenizers", make_bundles)
    return {name: Bundle.open(folder / name) for name in ("uncased", "bytes")}


def test_the_graph_is_deterministic_and_names_its_tokenizer(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test texts do not change the graph."""
    bundle = bundles["bytes"]
    stored = bundle.file(TOKENIZER_GRAPH).read_bytes()
    monkeypatch.setattr("hydrant.export.tokenizer_onnx.fuzzed_texts", lambda *_: TEXTS)
    assert made_tokenizer(bundle, 7, 10)[0] == stored
    model = onnx.load_from_string(stored)
    digest = bundle.manifest["files"]["processor/tokenizer.json"]["sha256"]
    facts = {each.key: each.value for each in model.metadata_props}
    assert facts["hydrant.tokenizer"].split()[0] == digest
    assert facts["hydrant.unread"].split("\n") == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def test_a_tokenizer_with_other_ids_is_rejected(tmp_path: Path) -> None:
    """The vocabulary lacks single letters, so partly known words occur; the operator treats them differently."""
    model = make_model("bert")
    bundle = hydrant.save_bundle(
        hydrant.fuse(model, random_plan("bert", 2)), tmp_path / "bundle", processor=make_tokenizer(tmp_path / "source")
    )
    before = bundle.digests()
    with pytest.raises(InputError, match="other ids"):
        hydrant.export_onnx(bundle, tokenizer=True)
    assert Bundle.open(bundle.path).digests() == before
    steps = json.loads((bundle.path / "processor/tokenizer.json").read_bytes())
    steps["post_processor"]["pair"][0]["SpecialToken"]["id"] = "[NONE]"  # the tokenizers library panics on it
    bundle.add({"processor/tokenizer.json": json.dumps(steps).encode()})
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        hydrant.export_onnx(bundle, tokenizer=True)


@pytest.mark.parametrize("name", ["uncased", "bytes"])
def test_texts_in_cpp_are_predicted_as_in_python(
    name: str, runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    bundle = bundles[name]
    (tmp_path / "lines.txt").write_text("\n".join([*TEXTS, "a\r"]) + "\n")
    with hydrant.load(bundle, "onnxruntime") as predictor:
        for words, inputs in (
            (TEXTS, TEXTS),
            (["--input", str(tmp_path / "lines.txt"), "--batch-size", "4"], [*TEXTS, "a"]),
            ([word for pair in PAIRS for word in ("--pair", *pair)], PAIRS),
        ):
            wanted = predictor.rows(predictor.predict(inputs), inputs)
            rows = lines(run(runner, bundle.path, *words, **library))
            for mine, theirs in zip(rows, wanted, strict=True):
                assert list(mine) == list(theirs)
                assert mine["input"] == (theirs["input"] if isinstance(theirs["input"], str) else list(theirs["input"]))
                for key in ("confidence", "predictive_entropy", "mutual_information"):
                    assert mine[key] == pytest.approx(theirs[key], abs=2e-6), key


def test_inputs_that_the_runner_rejects(
    runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    path = bundles["bytes"].path
    absent = {**library, "ORTEXTENSIONS_LIBRARY": "/no/library.so"}
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    refused(run(runner, path, "a text", **absent), "/no/library.so")
    for words, name in (
        (["a <s> b"], "'<s>'"),
        ([""], "empty"),
        (["--pair", "a"], "--pair"),
        (["--input", tmp_path / "latin.txt"], "UTF-8"),
        (["--input", tmp_path / "absent.txt"], "absent.txt"),
    ):
        refused(run(runner, path, *words, **library), name)


def test_a_graph_of_another_tokenizer_is_rejected_and_reported(
    runner: Path, bundles: dict[str, Bundle], library: dict[str, str], tmp_path: Path
) -> None:
    bundle = hydrant.Bundle.open(shutil.copytree(bundles["bytes"].path, tmp_path / "bundle"))
    done = run_cli("export", bundle.path, "--tokenizer")
    assert re.search(r"same ids as the tokenizer on \d{4} texts and \d{3} pairs", done.stdout), done.stderr
    bundle = hydrant.Bundle.open(bundle.path)
    assert "tokenizer.onnx: texts and pairs of texts" in run_cli("inspect", bundle.path).stdout
    config = json.loads((bundle.path / "processor/tokenizer_config.json").read_text())
    changed = json.dumps({**config, "model_max_length": 20}).encode()
    bundle.add({"processor/tokenizer_config.json": changed})
    refused(run(runner, bundle.path, "a text", **library), "was made from another tokenizer than processor/ holds")
    assert "OUTDATED: the tokenizer has changed since" in run_cli("inspect", bundle.path).stdout


@pytest.mark.parametrize("tags", [False, True])
def test_tokens_within_other_tokens(tags: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest token matches first, as in the tokenizer."""
    tokenizer = letters_tokenizer(tmp_path / "source", lower=True)
    tokenizer.add_special_tokens({"additional_special_tokens": [*(f"<t{n}>" for n in range(14)), "<e>", "<e>2"]})
    ensemble = hydrant.fuse((make_tagger if tags else make_model)("bert", vocab_size=400), random_plan("bert", 2))
    bundle = hydrant.save_bundle(ensemble, tmp_path / "bundle", processor=tokenizer)
    monkeypatch.setattr("hydrant.export.tokenizer_onnx.fuzzed_texts", lambda *_: [])  # special tokens only
    assert made_tokenizer(bundle, 0)[1].texts == 5  # texts after the first sixteen tokens
