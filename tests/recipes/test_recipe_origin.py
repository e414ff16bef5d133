"""What a recipe was composed of: stored, never guessed from its name, and no part of what decides results."""

from pathlib import Path

import pytest

from generalist.core.errors import UserError
from generalist.core.files import fingerprint
from generalist.recipes.catalogue import load_recipe, method_of
from generalist.recipes.differences import RUNTIME_FIELDS, decisive, first_difference
from generalist.recipes.schema import Recipe, parse_recipe
from generalist.recipes.shipped import recipe_names


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    (folder / name).write_text(text)
    return folder / name


def without_origin(recipe: Recipe) -> dict[str, object]:
    """As recipes were written before they stored it."""
    return {key: value for key, value in recipe.plain().items() if key not in ("setting", "method")}


def test_every_shipped_recipe_stores_its_setting_and_method() -> None:
    for name in recipe_names():
        recipe = load_recipe(name)
        assert f"{recipe.setting}-{recipe.method}" == name
        assert method_of(parse_recipe(without_origin(recipe))) == recipe.method


def test_a_file_that_extends_a_setting_or_a_recipe(tmp_path: Path) -> None:
    path = written(tmp_path, "extends: digits\ntraining: {epochs: 7}")
    recipe = load_recipe(path, method="at")
    assert (recipe.name, recipe.setting, recipe.method) == ("mine-at", "digits", "at")
    next_path = written(tmp_path, "extends: mine.yaml\nname: own", "next.yaml")
    recipe = load_recipe(next_path, ["learners.linf.optimizer.lr=0.3"], method="at")
    assert (recipe.name, recipe.setting, recipe.method) == ("own-at", "digits", "at")
    recipe = load_recipe(written(tmp_path, "extends: digits-trades\nlearners: {linf: {objective: {steps: 7}}}"))
    assert (recipe.name, recipe.setting, recipe.method) == ("mine", "digits", "trades")


@pytest.mark.parametrize(
    "change",
    [
        "learners.linf.objective.name=trades",
        "learners.linf.objective.beta=0.5",
        "learners.linf.weight_perturbation=0.01",
    ],
)
def test_with_another_objective_it_is_no_longer_the_method(change: str) -> None:
    recipe = load_recipe("digits-at", [change])
    assert (recipe.setting, recipe.method) == ("digits", None)
    assert method_of(recipe) is None
    assert method_of(parse_recipe(without_origin(recipe))) is None


@pytest.mark.parametrize("name", ["mine-at", "at", "generalist-d-trades", "digits-at-2"])
def test_a_name_that_only_ends_like_a_method_says_nothing(name: str) -> None:
    raw = without_origin(load_recipe("digits-at")) | {"name": name}
    assert method_of(parse_recipe(raw)) is None


def test_it_decides_no_result() -> None:
    recipe = load_recipe("digits-at")
    old = parse_recipe(without_origin(recipe))
    assert (old.setting, old.method) == (None, None)
    assert first_difference(old, recipe) is None
    assert fingerprint(decisive(recipe.plain())) == fingerprint(decisive(without_origin(recipe)))


@pytest.mark.parametrize("field", ["setting", "method"])
def test_nobody_gives_it_by_hand(tmp_path: Path, field: str) -> None:
    path = written(tmp_path, f"extends: digits-at\n{field}: trades")
    with pytest.raises(UserError, match=rf"mine\.yaml: {field} .*--method"):
        load_recipe(path)
    with pytest.raises(UserError, match=f"{field}.*--method"):
        load_recipe("digits-at", [f"{field}=trades"])


def test_the_fields_that_decide_no_result_are_marked_where_they_are_declared() -> None:
    assert set(RUNTIME_FIELDS) == {
        ("description",), ("setting",), ("method",), ("track",), ("data", "root"), ("data", "unreadable"),
        ("data", "workers"), ("training", "device"),
        ("training", "checkpoint_epochs"), ("training", "checkpoint_minutes"),
    }  # fmt: skip
    plain = load_recipe("digits-generalist-t").plain()
    kept = decisive(plain)
    assert set(plain) - set(kept) == {"description", "setting", "method", "track"}
    assert set(plain["data"]) - set(kept["data"]) == {"root", "unreadable", "workers"}
    assert kept["learners"] == plain["learners"]
