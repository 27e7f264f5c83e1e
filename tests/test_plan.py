from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydrant import HeadPlan
from hydrant.errors import InputError, PlanError
from hypothesis import given, settings
from hypothesis import strategies as st

VALID: dict[str, Any] = {
    "schema": 1,
    "family": "bert",
    "layers": 2,
    "heads": 4,
    "members": [{"keep": [[0, 1], [2]]}, {"keep": [[1, 2, 3], [2]]}],
    "method": "taylor",
    "provenance": {"seed": 3, "nested": {"scores": [0.5, 1.25]}},
}


def changed(**keys: Any) -> dict[str, Any]:
    return {**VALID, **keys}


def keeping(*keep: Any) -> dict[str, Any]:
    return changed(members=[VALID["members"][0], {"keep": list(keep)}])


@st.composite
def plans(draw: st.DrawFn) -> HeadPlan:
    layers, heads = draw(st.integers(1, 4)), draw(st.integers(1, 7))
    layer_heads = st.sets(st.integers(0, heads - 1), min_size=1).map(lambda indices: tuple(sorted(indices)))
    member = st.tuples(*[layer_heads] * layers)
    members = draw(st.lists(member, min_size=1, max_size=4))
    facts = draw(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5) | st.none(), max_size=3))
    return HeadPlan(
        draw(st.sampled_from(["bert", "vit"])), layers, heads, tuple(members), draw(st.text(max_size=8)), facts
    )


def test_saved_bytes_survive_load_and_save(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    HeadPlan.from_json(VALID).save(first)
    HeadPlan.load(first).save(str(second))
    assert first.read_bytes() == second.read_bytes()
    assert json.loads(first.read_bytes()) == VALID
    bare = {key: value for key, value in VALID.items() if key != "provenance"}
    assert HeadPlan.from_json(bare) == HeadPlan.load(first), "provenance is not compared"


@pytest.mark.parametrize(("data", "pattern"), [
    (keeping([0, 4], [2]), r"member 1, layer 0 .*\[0, 4\]"),
    (keeping([0], [1.0]), r"members\[1\]\.keep\[1\]"),
    (keeping([0], []), r"member 1, layer 1 .*\[\]"),
    (keeping([0]), r"member 1 .*1 layers; expected 2"),
    (changed(members=[]), "0 members"),
    (changed(layers=0, members=[{"keep": []}]), "0 layers"),
    (changed(schema=2), r"schema '2'.*a newer hydrant wrote it"),
    (None, "schema"),
])  # fmt: skip
def test_invalid_plan_is_refused(data: Any, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=pattern):
        HeadPlan.from_json(data)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(data))
    with pytest.raises(PlanError, match=rf"bad\.json: .*{pattern}"):
        HeadPlan.load(path)


def test_files_that_are_missing_or_no_json_are_refused(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(b"[" * 100_000)
    with pytest.raises(PlanError, match=r"plan\.json is not valid JSON"):
        HeadPlan.load(tmp_path / "plan.json")
    with pytest.raises(InputError, match=r"cannot read plan .*none\.json: No such file"):
        HeadPlan.load(tmp_path / "none.json")
    with pytest.raises(InputError, match=r"cannot read plan .*: Is a directory"):
        HeadPlan.load(tmp_path)
    with pytest.raises(InputError, match=r"cannot write .*plan\.json"):
        HeadPlan.from_json(VALID).save(tmp_path / "absent" / "plan.json")


def test_lists_become_tuples() -> None:
    plan = HeadPlan("bert", 2, 4, [[[0, 1], [2]], [[1, 2, 3], [2]]], "taylor")
    assert plan == HeadPlan.from_json(VALID)
    assert (plan.same_heads(0), plan.same_heads(1), plan.fork) == (False, True, 0)


def test_values_that_json_lacks_are_saved(tmp_path: Path) -> None:
    """NaN becomes null; half of a surrogate pair, from a file name that is not UTF-8, is escaped."""
    plan = HeadPlan.from_json(changed(provenance={"score": float("nan"), "data": "\udcff.csv", "words": "Maße"}))
    plan.save(tmp_path / "plan.json")
    assert "NaN" not in (tmp_path / "plan.json").read_text(encoding="utf-8")
    again = HeadPlan.load(tmp_path / "plan.json").provenance
    assert again == {"score": None, "data": "\udcff.csv", "words": "Maße"}


def test_overlap_by_hand() -> None:
    members = (((0, 1), (0,)), ((1, 2, 3), (0,)), ((0, 1), (3,)))
    overlap = HeadPlan("bert", 2, 4, members, "random").overlap()
    # layer 0: 1/4, 1, 1/4; layer 1: 1, 0, 0; pairs 0-1, 0-2, 1-2
    assert overlap["pairs"] == pytest.approx({"0-1": 0.625, "0-2": 0.5, "1-2": 0.125})
    assert overlap["per_layer"] == pytest.approx([0.5, 1 / 3])
    assert overlap["mean"] == pytest.approx(1.25 / 3)
    assert overlap["identical"] == []


@settings(max_examples=100, deadline=None)
@given(plans())
def test_any_valid_plan_round_trips(plan: HeadPlan) -> None:
    again = HeadPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan
    overlap = plan.overlap()
    assert all(0 <= value <= 1 for value in (*overlap["pairs"].values(), *overlap["per_layer"]))
    assert again.provenance == plan.provenance
    assert again.head_counts() == [[len(heads) for heads in keep] for keep in plan.members]


def test_check_fits_accepts_its_own_shape_only() -> None:
    plan = HeadPlan.from_json(VALID)
    plan.check_fits("bert", 2, 4)
    for shape in (("vit", 2, 4), ("bert", 3, 4), ("bert", 2, 8)):
        with pytest.raises(PlanError, match=f"{shape[1]} layers of {shape[2]} heads; make a plan"):
            plan.check_fits(*shape)
