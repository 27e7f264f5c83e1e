"""Learning from teachers: the loss, the teachers' logits, members of every task, and what is refused."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
import transformers
from hydrant import Bundle, HeadPlan, Jointly, Reading, fuse, load_ensemble, save_bundle
from hydrant.errors import InputError
from hydrant.fusion import FusedClassifier
from hydrant.models.checkpoint import load_model, load_processor
from hydrant.tuning import Taught, taught_source, tune
from hydrant.tuning.distillation import distillation_loss, soft_targets
from hydrant.tuning.job import shared_form
from hypothesis import given
from hypothesis import strategies as st
from support import LAYERS, make_inputs, make_model, random_plan, run_cli, save_checkpoint
from task_support import FILLERS, make_case
from task_support import KINDS as KINDS_OF_TASKS
from test_cost import assert_cost
from token_support import first_tokens
from token_support import sentences as tagged_sentences
from test_tune import NO_DROPOUT, interrupted_after, pictures, same, sentences, state, weights, write_csv
from torch.nn.functional import binary_cross_entropy, kl_div, mse_loss
from traced_support import DEBERTA_V3

KINDS = ("classes", "labels", "scores")
TASKS = ("text", "pair", "image", "regression", "relevance", "multi_label", "tokens")
MEMBERS, ROWS, REPEATS = 3, 40, 8
LEARNING: dict[str, Any] = {"epochs": 4, "learning_rate": 3e-3}
READING = Reading(batch_size=16)


def plain_loss(kind: str, logits: torch.Tensor, targets: torch.Tensor, softening: float) -> torch.Tensor:
    """The loss of members [M, B, C] and targets of the same shape, by PyTorch's own functions, one member at a time."""
    losses = []
    for member, target in zip(logits, targets, strict=True):
        if kind == "scores":
            losses.append(mse_loss(member, target))
        elif kind == "labels":
            entropy = binary_cross_entropy(target, target)
            losses.append(softening**2 * (binary_cross_entropy((member / softening).sigmoid(), target) - entropy))
        else:
            log_probabilities = (member / softening).log_softmax(dim=-1)
            losses.append(softening**2 * kl_div(log_probabilities, target, reduction="batchmean"))
    return torch.stack(losses).mean()


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0]), st.booleans())
def test_the_loss_and_its_gradients_are_those_of_pytorch(
    kind: Any, members: int, batch: int, classes: int, softening: float, mean: bool
) -> None:
    shape = (members, batch, 1 if kind == "scores" else classes)
    torch.manual_seed(members + batch + classes)
    ours, teachers = (3 * torch.randn(shape, dtype=torch.float64) for _ in range(2))
    theirs = ours.clone().requires_grad_()
    ours.requires_grad_()
    targets = soft_targets(teachers, "sigmoid", kind=kind, softening=softening, mean=mean)
    loss = distillation_loss(ours, targets, "sigmoid", kind=kind, softening=softening)
    soft = (teachers / softening).softmax(-1) if kind == "classes" else (teachers / softening).sigmoid()
    soft = teachers.sigmoid() if kind == "scores" else soft
    soft = soft.mean(dim=0).expand(shape) if mean else soft
    expected = plain_loss(kind, theirs.sigmoid() if kind == "scores" else theirs, soft, softening)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_tokens_without_a_target_teach_nothing() -> None:
    """The loss of tags is that of the words alone; padding and pieces of words have NaN in place of logits."""
    torch.manual_seed(0)
    ours, teachers = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    words = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    teachers[:, ~words] = torch.nan
    targets = soft_targets(teachers, "identity", kind="classes", softening=2.0, mean=False)
    loss = distillation_loss(ours, targets, "identity", kind="classes", softening=2.0)
    torch.testing.assert_close(loss, plain_loss("classes", ours[:, words], targets[:, words], 2.0))


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_a_fork_whose_teacher_is_the_model_learns_nothing(family: str) -> None:
    """Loss and gradients are zero up to rounding, so that no learning rate changes a weight."""
    model, inputs = make_model(family).double(), make_inputs(family)
    inputs = {name: tensor.double() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()}
    ensemble = fuse(make_model(family), members=2)
    module = FusedClassifier(ensemble.architecture, ensemble.plan, ensemble.state_dict(), ensemble.labels).double()
    with torch.no_grad():
        teachers = model(**inputs).logits.expand(2, -1, -1)
    targets = soft_targets(teachers, "identity", kind="classes", softening=2.0, mean=False)
    loss = distillation_loss(module.eval()(**inputs).member_logits, targets, "identity", kind="classes", softening=2.0)
    loss.backward()
    assert abs(float(loss.detach())) < 1e-12
    assert max(float(each.grad.abs().max()) for each in module.parameters() if each.grad is not None) < 1e-12


@dataclass(frozen=True)
class School:
    """A model, its teachers, and data: ROWS inputs, repeated, with labels drawn from the teachers' mean."""

    model: Path
    teachers: list[Path]
    inputs: list[Any]
    labels: list[Any]
    kind: Any

    def bundle(self, path: Path, plan: HeadPlan | None = None, members: int = MEMBERS) -> Path:
        processor = load_processor(self.model, "image" if isinstance(self.inputs[0], np.ndarray) else "text")
        return save_bundle(fuse(self.model, plan, members=members if plan is None else None), path, processor).path

    def distances(self, logits: torch.Tensor) -> np.ndarray:
        """The loss [M, M] of each member's logits [M, N, C] against each teacher."""
        theirs = [soft_targets(each[None], "identity", kind=self.kind, softening=1.0, mean=False)
                  for each in self.taught]  # fmt: skip
        loss = partial(distillation_loss, activation="identity", kind=self.kind, softening=1.0)
        return np.array([[float(loss(member[None], targets)) for targets in theirs] for member in logits])

    @property
    def taught(self) -> torch.Tensor:
        return torch.stack([logits_of(load_model(each), each, self.inputs[:ROWS]) for each in self.teachers])


def logits_of(model: Any, checkpoint: Path, inputs: list[Any]) -> torch.Tensor:
    """Logits [N, C] or [M, N, C] of a Hugging Face model or a fused one, input by input; one row a word for words."""
    processor, rows = load_processor(checkpoint, "image" if isinstance(inputs[0], np.ndarray) else "text"), []
    for item in inputs:
        places = None
        if isinstance(item, list):
            tensors, places = first_tokens(processor, item)
        elif isinstance(item, np.ndarray):
            tensors = processor(images=item, return_tensors="pt")
        else:
            tensors = processor(*([item] if isinstance(item, str) else item), return_tensors="pt")
        with torch.no_grad():
            out = model(**tensors)
        logits = out.member_logits if hasattr(out, "member_logits") else out.logits
        rows.append(logits if places is None else logits[..., 0, :, :][..., places, :])
    return torch.cat(rows, dim=-2)


def taught_by(model: Path, folder: Path, count: int) -> list[Path]:
    """Checkpoints that differ from a model in their classifiers."""
    folders = []
    for seed in range(count):
        folders.append(Path(shutil.copytree(model, folder / f"teacher-{seed}")))
        teacher = load_model(model)
        torch.manual_seed(seed)
        with torch.no_grad():
            teacher.classifier.weight.add_(0.5 * torch.randn_like(teacher.classifier.weight))
        teacher.save_pretrained(folders[-1])
    return folders


def make_school(task: str, folder: Path, vit: Path) -> School:
    """A tiny model and its teachers for a task."""
    rng = np.random.default_rng(0)
    inputs: list[Any] = [" ".join(rng.choice(FILLERS, rng.integers(2, 7))) for _ in range(ROWS)]
    if task in ("relevance", "pair"):
        inputs = [(text, " ".join(rng.choice(FILLERS, 3))) for text in inputs]
    if task == "image":
        inputs, model = pictures(ROWS, 0)[0], vit
    elif task == "tokens":
        inputs = tagged_sentences(ROWS)[0]
    if task in KINDS_OF_TASKS:
        original = load_model(model := make_case(task, folder).checkpoint)
        original.config.update(NO_DROPOUT)
        original.save_pretrained(model)
    elif task != "image":
        model = save_checkpoint(folder / "model", **NO_DROPOUT)
    kind = {"regression": "scores", "relevance": "labels", "multi_label": "labels"}.get(task, "classes")
    school = School(model, taught_by(model, folder, MEMBERS), inputs, [], kind)
    mean = soft_targets(school.taught, "identity", kind=school.kind, softening=1.0, mean=True)[0].repeat(REPEATS, 1)
    names, labels = np.array(list(load_model(model).config.id2label.values())), mean[:, 0].tolist()
    if kind == "labels":
        drawn = torch.bernoulli(mean)
        labels = drawn[:, 0].int().tolist() if task == "relevance" else [names[row > 0].tolist() for row in drawn]
    elif kind == "classes":
        labels = names[torch.multinomial(mean, 1)[:, 0]].tolist()
    inputs = inputs * REPEATS
    if task == "tokens":
        ends = np.cumsum([len(words) for words in inputs])
        labels = [labels[end - len(words) : end] for end, words in zip(ends, inputs, strict=True)]
    return replace(school, inputs=inputs, labels=labels)


@pytest.mark.parametrize("task", TASKS)
def test_each_member_comes_nearest_to_its_own_teacher(task: str, vit_checkpoint: Path, tmp_path: Path) -> None:
    school = make_school(task, tmp_path, vit_checkpoint)
    bundle, data = school.bundle(tmp_path / "bundle"), (school.inputs, school.labels)
    how = Taught(teachers=school.teachers, **LEARNING)
    report = tune(bundle, data, how, validation=data, reading=READING)
    assert report.improved
    before = school.distances(logits_of(fuse(school.model, members=MEMBERS), school.model, school.inputs[:ROWS]))
    after = school.distances(logits_of(load_ensemble(bundle), school.model, school.inputs[:ROWS]))
    print(task, report.best_epoch, before.diagonal(), after)
    assert after.argmin(axis=1).tolist() == list(range(MEMBERS))
    assert (after.diagonal() < 0.5 * before.diagonal()).all()


@pytest.fixture(scope="module")
def text(vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> School:
    return make_school("text", tmp_path_factory.mktemp("text"), vit_checkpoint)


def teach(school: School, bundle: Path, teachers: list[Path] | None = None, rows: int = ROWS, **options: Any) -> Any:
    """Tune by a school's first inputs; ``options`` are those of ``Taught``, and ``call`` those of ``tune``."""
    call = {"reading": READING, "validation": (school.inputs, school.labels), **options.pop("call", {})}
    how = Taught(teachers=school.teachers if teachers is None else teachers, **{**LEARNING, **options})
    return tune(bundle, (school.inputs[:rows], school.labels[:rows]), how, **call)


@pytest.mark.parametrize("members", [1, MEMBERS])
def test_the_mean_teaches_one_model(members: int, text: School, tmp_path: Path) -> None:
    """Several members of equal heads then stay one model."""
    bundle = text.bundle(tmp_path / "bundle", members=members)
    assert teach(text, bundle, rows=len(text.inputs), mean_of_teachers=members > 1).improved
    module = load_ensemble(bundle)
    assert {len(tensor) for tensor in shared_form(module.state_dict()).values()} == {1}
    mean = soft_targets(text.taught, "identity", kind="classes", softening=1.0, mean=True)
    before, after = (logits_of(each, text.model, text.inputs[:ROWS]) for each in (fuse(text.model), module))
    loss = partial(distillation_loss, targets=mean, activation="identity", kind="classes", softening=1.0)
    assert float(loss(after)) < 0.2 * float(loss(before))


@pytest.mark.parametrize("task", ["text", "image"])
def test_a_frozen_trunk_is_kept_and_its_members_learn(task: str, vit_checkpoint: Path, tmp_path: Path) -> None:
    """Its activations are those of the epoch's view."""
    school = make_school(task, tmp_path, vit_checkpoint)
    bundle = school.bundle(tmp_path / "bundle")
    before = weights(bundle)
    assert teach(school, bundle, rows=len(school.inputs), freeze=2).frozen == 2
    after = weights(bundle)
    fixed = [name for name in before if name.startswith(("embeddings", "layers.0", "layers.1"))]
    assert all(torch.equal(before[name], after[name]) for name in fixed)
    distances = school.distances(logits_of(load_ensemble(bundle), school.model, school.inputs[:ROWS]))
    assert distances.argmin(axis=1).tolist() == list(range(MEMBERS))


def test_images_move_by_an_eighth_with_reflected_edges() -> None:
    rng = np.random.default_rng(0)
    pixels, moves = rng.random((9, 3, 16, 24), np.float32), rng.integers(-8, 9, (9, 3))
    for before, after, (mirror, down, right) in zip(pixels, taught_source.moved(pixels, moves), moves, strict=True):
        top, left = 2 + round(down * 2 / 8), 3 + round(right * 3 / 8)
        part = np.pad(before, ((0, 0), (2, 2), (3, 3)), "reflect")[:, top : top + 16, left : left + 24]
        np.testing.assert_array_equal(after, part[..., ::-1] if mirror > 0 else part)


@pytest.mark.parametrize("task", ["text", "tokens", "image"])
def test_kept_logits_are_those_of_hugging_face(task: str, vit_checkpoint: Path, tmp_path: Path) -> None:
    """A file a teacher and view, a row an input or token; view 0 is unchanged, the others are moved."""
    school = make_school(task, tmp_path, vit_checkpoint)
    teach(school, school.bundle(tmp_path / "bundle"), epochs=1, views=2, teacher_outputs=tmp_path / "kept")
    files = sorted((tmp_path / "kept" / "teachers").iterdir())
    assert len(files) == MEMBERS * (2 if task == "image" else 1)
    for teacher in school.teachers:
        model, inputs = load_model(teacher), school.inputs[:ROWS]
        if task != "image":
            tokenizer, words = load_processor(teacher, "text"), task == "tokens"
            batches = [{**tokenizer(each, is_split_into_words=words, return_tensors="pt")} for each in inputs]
        else:
            pixels = load_processor(teacher, "image")(images=inputs, return_tensors="np")["pixel_values"]
            moves = np.random.default_rng(0).integers(-8, 9, (2, ROWS, 3))
            views = [pixels, taught_source.moved(pixels, moves[1])]
            batches = [{"pixel_values": torch.from_numpy(each)} for each in views]
        with torch.no_grad():
            logits = [model(**batch).logits.flatten(0, -2).numpy() for batch in batches]
        expected = logits if task == "image" else [np.concatenate(logits)]
        assert all(any(_close(np.load(file), each) for file in files) for each in expected)


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, atol=1e-4)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the teachers that ran, one a batch."""
    names: list[str] = []
    run = taught_source.TaughtSource._run

    def counted(source: Any, model: Any, teacher: Any, *rest: Any) -> Any:
        names.append(teacher.name)
        return run(source, model, teacher, *rest)

    monkeypatch.setattr(taught_source.TaughtSource, "_run", counted)
    return names


def test_teachers_run_once(text: School, runs: list[str], tmp_path: Path) -> None:
    """Neither another plan, seed nor batch size runs them again; other data or another teacher does."""
    kept = partial(teach, text, teacher_outputs=tmp_path / "kept", epochs=1)
    kept(text.bundle(tmp_path / "bundle"))
    assert len(runs) == MEMBERS * -(-ROWS // 16)
    files = state(tmp_path / "kept")
    kept(text.bundle(tmp_path / "again"), call={"reading": Reading(batch_size=3), "seed": 1})
    kept(text.bundle(tmp_path / "one", members=1), teachers=text.teachers[1:])
    assert len(runs) == MEMBERS * -(-ROWS // 16)
    kept(text.bundle(tmp_path / "same", members=1), teachers=[text.model])
    assert runs[-1] == text.model.name
    count = len(runs)
    kept(text.bundle(tmp_path / "other", members=1), teachers=text.teachers[:1], rows=ROWS - 1)
    assert runs[count:] == ["teacher-0"] * 3
    assert files.items() < state(tmp_path / "kept").items()


def test_an_interrupted_tuning_resumes(text: School, runs: list[str], tmp_path: Path) -> None:
    """In the teachers' pass and in the second epoch; each batch of a teacher runs once."""
    bundle = text.bundle(tmp_path / "bundle")
    expected = teach(text, bundle, epochs=2, call={"output": tmp_path / "whole"})
    count, before = len(runs), state(bundle)
    options: dict[str, Any] = {"epochs": 2, "state": tmp_path / "part"}
    for progress in (interrupted_after(4, "running"), interrupted_after(4, "epoch")):
        with pytest.raises(KeyboardInterrupt):
            teach(text, bundle, **options, call={"output": tmp_path / "out", "progress": progress})
        assert (tmp_path / "part" / "teachers").is_dir()
    assert teach(text, bundle, **options, call={"output": tmp_path / "out"}).history == expected.history
    assert len(runs) == 2 * count
    assert same(weights(tmp_path / "out"), weights(tmp_path / "whole"))
    assert state(bundle) == before
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize("task", ["text", "tokens"])
def test_unlabelled_rows_teach(task: str, vit_checkpoint: Path, tmp_path: Path) -> None:
    """Two labelled rows alone teach less about the others than with them, from a file without a label column."""
    school = make_school(task, tmp_path, vit_checkpoint)
    column = "tokens" if task == "tokens" else "text"
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps({column: each})}\n" for each in school.inputs))
    distances = []
    for name, file in (("few", None), ("all", tmp_path / "rows.jsonl")):
        bundle = school.bundle(tmp_path / name)
        report = teach(school, bundle, rows=2, unlabelled=file)
        distances.append(school.distances(logits_of(load_ensemble(bundle), school.model, school.inputs[:ROWS])))
    assert report.examples == 2 + len(school.inputs)
    few, every = distances
    assert every.argmin(axis=1).tolist() == list(range(MEMBERS))
    assert (every.diagonal() < 0.5 * few.diagonal()).all()


@pytest.mark.parametrize(("task", "fork", "pruned"), [
    ("text", None, False), ("text", 1, False), ("text", None, True), ("image", 1, False), ("image", None, True),
])  # fmt: skip
def test_the_cost_of_own_linear_maps_is_the_graphs(
    task: str, fork: int | None, pruned: bool, vit_checkpoint: Path, tmp_path: Path
) -> None:
    """Members own them from the plan's fork, else the last layer, or the chosen one; the bundle tunes and exports on."""
    school, family = make_school(task, tmp_path, vit_checkpoint), "bert" if task == "text" else "vit"
    plan = random_plan(family, MEMBERS, fork=1) if pruned else None
    bundle, first = school.bundle(tmp_path / "bundle", plan), fork or (1 if pruned else LAYERS - 1)
    assert teach(school, bundle, fork_from=fork).improved
    assert assert_cost(bundle, make_inputs(family)).fork == first
    own = {name for name, tensor in shared_form(weights(bundle)).items() if len(tensor) == MEMBERS}
    assert {name.split(".")[1] for name in own if name.startswith("layers")} == set(map(str, range(first, LAYERS)))
    with hydrant.load(bundle) as graph, hydrant.load(bundle, backend="torch") as module:
        one, other = (each.predict(school.inputs).probabilities for each in (graph, module))
    np.testing.assert_allclose(one, other, atol=1e-5)
    tune(bundle, (school.inputs, school.labels), Jointly(epochs=1), reading=READING)
    hydrant.export_onnx(bundle, "fp16")
    assert hydrant.verify(bundle, reading=Reading(examples=8)).passed
