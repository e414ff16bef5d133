"""A user's own recipe: extends, task templates, overrides."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml

from generalist.core.errors import UserError
from generalist.core.files import fingerprint
from generalist.mixing import REST, ByName, OverDepth, Points, Share
from generalist.models.modules import LastShare, Patterns
from generalist.recipes.catalogue import load_recipe
from generalist.recipes.differences import decisive, first_difference, settings_between
from generalist.recipes.schema import Recipe, parse_recipe
from generalist.recipes.shipped import merge, recipe_names

Load = Callable[..., Recipe]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    monkeypatch.chdir(tmp_path)

    def write_and_load(text: str, *overrides: str, name: str = "mine.yaml", **others: str) -> Recipe:
        for path, content in {name: text, **others}.items():
            file = tmp_path / path.replace("__", "/").replace("_yaml", ".yaml")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        return load_recipe(name, overrides)

    return write_and_load


def test_a_file_extends_a_shipped_recipe(load: Load) -> None:
    recipe = load("extends: digits-generalist-t\ntraining: {epochs: 7}")
    shipped = load_recipe("digits-generalist-t")
    assert recipe.name == "mine"
    assert recipe.training.epochs == 7
    assert recipe.training.batch_size == shipped.training.batch_size
    assert recipe.learners == shipped.learners


def test_extends_is_relative_to_the_file(load: Load) -> None:
    recipe = load(
        "extends: ../base.yaml\nseed: 3", name="deep/mine.yaml", base_yaml="extends: digits-at\ntraining: {epochs: 9}"
    )
    assert (recipe.seed, recipe.training.epochs) == (3, 9)


def test_files_of_one_name_in_two_folders_are_no_circle(load: Load) -> None:
    recipe = load(
        "extends: sub/between.yaml",
        sub__between_yaml="extends: mine.yaml\nseed: 4",
        sub__mine_yaml="extends: digits-at\ntraining: {epochs: 5}",
    )
    assert (recipe.seed, recipe.training.epochs) == (4, 5)


def test_null_deletes(load: Load) -> None:
    recipe = load(
        "extends: digits-generalist-t\nlearners: {l2: null, natural: {gamma: rest}}\ndata: {validation: null}"
    )
    assert list(recipe.learners) == ["linf", "natural"]
    assert recipe.data.validation == 0.1


def test_a_component_of_another_name_replaces_the_whole(load: Load) -> None:
    recipe = load("extends: digits-at\nlearners: {linf: {optimizer: {name: adam}, schedule: {name: cosine}}}")
    learner = recipe.learners["linf"]
    assert learner.optimizer.name == "adam"
    assert learner.optimizer.options["lr"] == 1e-4
    assert "momentum" not in learner.optimizer.options
    assert learner.schedule.plain() == {"name": "cosine", "warmup": 0.0, "end": 0.0}


def test_a_component_of_the_same_name_keeps_what_is_not_said(load: Load) -> None:
    learner = load("extends: digits-at\nlearners: {linf: {optimizer: {lr: 0.3}}}").learners["linf"]
    assert learner.optimizer.options["lr"] == 0.3
    assert learner.optimizer.options["weight_decay"] == 5e-4


def test_a_component_can_be_just_its_name(load: Load) -> None:
    assert (
        load("extends: digits-at\nlearners: {linf: {schedule: constant}}").learners["linf"].schedule.name == "constant"
    )


def test_a_share_replaces_breakpoints_and_back(load: Load) -> None:
    changed = load("extends: digits-generalist-t\nlearners: {linf: {gamma: {share: 0.3}}}")
    assert changed.learners["linf"].gamma == Share(0.3)
    back = load("extends: digits-generalist-t\nlearners: {natural: {gamma: {at: [0, 1], values: [0, 0.1]}}}")
    assert back.learners["natural"].gamma.values == (0, 0.1)


def test_a_learner_of_any_name_takes_a_task_template(load: Load) -> None:
    recipe = load("extends: digits-generalist-d-natural\nlearners: {natural: null, second: {task: l2, gamma: rest}}")
    assert recipe.learners["second"].objective.plain()["threat"] == "l2:1"
    assert recipe.learners["second"].gamma == REST


def test_overrides_win_and_the_order_of_a_name_and_its_fields_does_not_matter() -> None:
    changes = ["learners.linf.optimizer.lr=0.2", "learners.linf.optimizer.name=adam", "data.root=/x", "data.name=npz"]
    for given in (changes, changes[::-1]):
        recipe = load_recipe("digits-at", given)
        assert recipe.learners["linf"].optimizer.options["lr"] == 0.2
        assert recipe.data.root == "/x"


def test_fractions_stay_exact(load: Load) -> None:
    recipe = load_recipe("digits-at", ["learners.linf.objective.threat=linf:7/255", "mixing.start=1/3"])
    again = load(recipe.to_yaml())
    assert str(again.learners["linf"].objective.options["threat"]) == "linf:7/255"
    assert again.mixing.start == recipe.mixing.start == pytest.approx(1 / 3)
    assert again.mixing.start.denominator == 3


def test_a_written_recipe_can_be_trained_again(load: Load) -> None:
    recipe = load_recipe("digits-generalist-t")
    assert load(recipe.to_yaml()) == recipe


def test_merging_leaves_its_arguments_alone() -> None:
    base: dict[str, Any] = {"a": {"b": 1, "c": 2}}
    assert merge(base, {"a": {"b": None, "d": 3}}) == {"a": {"c": 2, "d": 3}}
    assert base == {"a": {"b": 1, "c": 2}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("data.root=/elsewhere", None),
        ("training.checkpoint_minutes=1", None),
        ("training.epochs=7", "training.epochs is 7 here and 24 there"),
        ("learners.linf.objective.threat=linf:1/3", "linf:1/3' here and 'linf:3/20' there"),
    ],
)
def test_only_what_decides_results_makes_a_difference(change: str, said: str | None) -> None:
    found = first_difference(load_recipe("digits-at", [change]), load_recipe("digits-at"))
    assert found is None if said is None else said in str(found)


def test_a_recipe_says_which_field_of_a_later_init_is_wrong() -> None:
    with pytest.raises(UserError, match=r"init\.epoch must be below training\.epochs 24, got 60"):
        load_recipe("digits-at", ["init.from=x.pt", "init.epoch=60"])


def test_plain_is_plain() -> None:
    plain = load_recipe("digits-generalist-t").plain()
    assert yaml.safe_load(yaml.safe_dump(plain)) == plain


def test_where_data_lies_is_relative_to_the_file_that_says_it(load: Load, tmp_path: Path) -> None:
    text = "extends: ../base.yaml\ndata: {extra: {file: more.npz}}"
    base = "extends: digits-at\ndata: {name: folder, root: pictures}"
    recipe = load(text, name="deep/mine.yaml", base_yaml=base)
    assert recipe.data.root == str(tmp_path / "pictures")
    assert recipe.data.extra is not None
    assert recipe.data.extra.file == str(tmp_path / "deep" / "more.npz")
    assert load(text, "data.root=here", name="deep/mine.yaml", base_yaml=base).data.root == str(tmp_path / "here")
    again = load(recipe.to_yaml(), name="else/where.yaml")
    assert again.data == recipe.data


def test_extra_images_may_have_been_moved_but_not_exchanged() -> None:
    recipe = load_recipe("digits-at", ["data.extra={file: a/more.npz, share: 0.5}"])
    moved = load_recipe("digits-at", ["data.extra={file: b/more.npz, share: 0.5}"])
    other = load_recipe("digits-at", ["data.extra={file: a/other.npz, share: 0.5}"])
    assert first_difference(moved, recipe) is None
    assert "data.extra.file" in str(first_difference(other, recipe))


def test_a_file_that_extends_a_setting_works_with_every_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: digits\ntraining: {epochs: 7}\ntasks: {linf: {optimizer: {lr: 0.3}}}")
    methods = [name.removeprefix("digits-") for name in recipe_names() if name.startswith("digits-")]
    assert len(methods) > 20
    for method in methods:
        recipe, shipped = load_recipe(path, method=method), load_recipe(f"digits-{method}")
        assert recipe.name == f"mine-{method}"
        assert recipe.training.epochs == 7
        assert recipe.learners.keys() == shipped.learners.keys()
    assert load_recipe(path, method="at").learners["linf"].optimizer.options["lr"] == 0.3
    (tmp_path / "next.yaml").write_text("extends: mine.yaml\nname: own\nseed: 3")
    recipe = load_recipe(tmp_path / "next.yaml", method="at")
    assert (recipe.name, recipe.seed, recipe.training.epochs) == ("own-at", 3, 7)


def test_a_setting_itself_with_a_method_is_the_shipped_recipe() -> None:
    assert load_recipe("digits", method="generalist-t") == load_recipe("digits-generalist-t")


@pytest.mark.parametrize(
    ("text", "method", "said"),
    [
        ("extends: digits", None, r"mine\.yaml extends the setting 'digits', which needs a method: .*--method.* at,"),
        ("extends: digits", "att", "unknown method for digits: 'att'; did you mean"),
        ("extends: digits-at", "nt", "'digits-at' has its method already"),
        ("name: x", "nt", "extends no setting"),
    ],
)
def test_a_method_where_it_belongs(tmp_path: Path, text: str, method: str | None, said: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match=said):
        load_recipe(tmp_path / "mine.yaml", method=method)


def test_a_description_is_the_files_own(load: Load) -> None:
    assert load("extends: digits-generalist-t").description == "mine.yaml, extends digits-generalist-t"
    assert load("extends: digits-at\ndescription: pets").description == "pets"
    assert load_recipe("mine.yaml").description == "pets"
    load("extends: digits-at", name="plain.yaml")
    assert load("extends: mine.yaml", name="plain.yaml").description == "plain.yaml, extends mine.yaml"
    Path("mine.yaml").write_text("extends: digits\ndescription: pets")
    assert load_recipe("mine.yaml", method="at").description == "adversarial training, ℓ∞: pets"


@pytest.mark.parametrize(
    "changes",
    [
        ["training.epochs=3"],
        ["learners.linf.objective.threat=linf:1/3", "mixing.start=1/3", "training.clip_norm=2.5"],
        ["learners.linf.optimizer.name=adam", "learners.linf.gamma={at: [0, 1], values: [1, 0]}"],
    ],
)
def test_what_to_set_to_get_another_recipe(changes: list[str]) -> None:
    ours, theirs = load_recipe("digits-generalist-t"), load_recipe("digits-generalist-t", changes)
    found = settings_between(ours, theirs)
    assert first_difference(load_recipe("digits-generalist-t", found), theirs) is None
    assert len(found) >= len(changes)
    assert settings_between(load_recipe("digits-at"), theirs) == []


LATE = "digits-generalist-late-d"
NATURAL = "learners.natural"
FIELDS: dict[str, Any] = {
    "trains: fc": Patterns(("fc",)), "trains: [conv5, '*.bn?']": Patterns(("conv5", "*.bn?")),
    "trains: {last: 1/4}": LastShare(Fraction(1, 4)), "trains: {last: 0.1}": LastShare(Fraction(1, 10)),
    "trains: '*'": Patterns(("*",)), "starts: 1/3": Fraction(1, 3), "ends: 0.9": Fraction(9, 10),
    "gamma: {modules: {fc: 0.5, conv5: rest}}": ByName((("conv5", REST), ("fc", Points((Fraction(0),), (0.5,))))),
    "gamma: {modules: {fc: {share: 0.5}, '*': {at: [0, 1], values: [0, 1]}}}": ByName(
        (("*", Points((Fraction(0), Fraction(1)), (0.0, 1.0))), ("fc", Share(0.5)))
    ),
    "gamma: {depth: [0, 1], at: [0], values: [1]}": OverDepth((0.0, 1.0), Points((Fraction(0),), (1.0,))),
    "gamma: {depth: [0, 1/2, 1], share: 0.5}": OverDepth((0.0, 0.5, 1.0), Share(0.5)),
    "gamma: {depth: [1, 0], at: [0], values: [0.3]}": OverDepth((1.0, 0.0), Points((Fraction(0),), (0.3,))),
    "gamma: {depth: [1, 0], at: [0, 1], values: [0, 1]}": OverDepth(
        (1.0, 0.0), Points((Fraction(0), Fraction(1)), (0.0, 1.0))
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", FIELDS)
def test_modules_and_windows_are_read_written_and_read_again(load: Load, given: str) -> None:
    recipe = load(f"extends: {LATE}\nlearners: {{natural: {{{given}}}}}")
    assert getattr(recipe.learners["natural"], given.partition(":")[0]) == FIELDS[given]
    again = parse_recipe(yaml.safe_load(recipe.to_yaml()))
    assert again == recipe
    assert again.plain() == recipe.plain()
    assert fingerprint(decisive(again.plain())) == fingerprint(decisive(recipe.plain()))


def test_the_order_of_modules_is_of_no_account() -> None:
    """A mapping has none, and the digest of a recipe knows none."""
    modules = ("'*': 0.1, fc: 1", "fc: 1, '*': 0.1")
    first, second = (load_recipe(LATE, [f"{NATURAL}.gamma={{modules: {{{given}}}}}"]) for given in modules)
    assert first == second
    assert first.learners["natural"].gamma == second.learners["natural"].gamma


SHARE, POINTS = "{share: 0.5}", "{at: [4/5, 1], values: [0, 0.5]}"
DEPTH, MODULES = "{depth: [0, 1], share: 0.5}", "{modules: {fc: 0.5, layer4.1: 0.2}}"
GAMMAS = (SHARE, POINTS, DEPTH, MODULES, "{depth: [0, 1]}", "{depth: [1, 0], at: [0, 1], values: [0, 1]}", "0.5",
          "rest", "{modules: {conv5: {share: 0.25}}}")  # fmt: skip


@pytest.mark.parametrize("old", GAMMAS)
@pytest.mark.parametrize("new", GAMMAS)
def test_what_makes_one_recipe_of_another_is_told_for_every_kind_of_gamma(old: str, new: str) -> None:
    ours, theirs = (load_recipe(LATE, ["learners.linf.gamma=0.5", f"{NATURAL}.gamma={gamma}"]) for gamma in (old, new))
    changes = settings_between(ours, theirs)
    assert bool(changes) == (old != new)
    assert load_recipe(LATE, ["learners.linf.gamma=0.5", f"{NATURAL}.gamma={old}", *changes]) == theirs


def test_what_makes_one_recipe_of_another_is_told_for_modules_and_windows() -> None:
    ours, theirs = load_recipe(LATE), load_recipe(LATE, [f"{NATURAL}.trains=null", f"{NATURAL}.starts=1/2"])
    assert first_difference(ours, theirs) == f"{NATURAL}.trains is ['conv5', 'bn5', 'fc'] here and None there"
    assert load_recipe(LATE, settings_between(ours, theirs)) == theirs
    assert (
        load_recipe(LATE, [f"{NATURAL}.trains=null", f"{NATURAL}.starts=1/2", *settings_between(theirs, ours)]) == ours
    )


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [(DEPTH, "{share: 0.3}", OverDepth((0.0, 1.0), Share(0.3))),
     (SHARE, "{depth: [0, 1]}", OverDepth((0.0, 1.0), Share(0.5))),
     (MODULES, SHARE, Share(0.5)), (MODULES, "{depth: [0, 1], share: 0.5}", OverDepth((0.0, 1.0), Share(0.5))),
     (SHARE, "{modules: {fc: 0.5}}", ByName((("fc", Points((Fraction(0),), (0.5,))),))),
     (MODULES, "{modules: {fc: 0.5}}", ByName((("fc", Points((Fraction(0),), (0.5,))),)))],
)  # fmt: skip
def test_a_gamma_over_another_kind_replaces_it(old: str, new: str, kept: Any) -> None:
    found = load_recipe(LATE, [f"{NATURAL}.gamma={old}", f"{NATURAL}.gamma={new}"]).learners["natural"].gamma
    assert found == kept


def test_a_checkpoint_stands_for_the_epochs_before_the_first_late_start(tmp_path: Path) -> None:
    init = [f"init.from={tmp_path / 'x.safetensors'}"]
    found = load_recipe(LATE, ["training.epochs=12", *init])
    assert found.init is not None
    assert found.init.epoch == found.window("natural")[0] == 9
    for given in ([f"{NATURAL}.starts=0", "learners.linf.ends=1"], ["init.epoch=0"]):
        other = load_recipe(LATE, [*init, *given])
        assert other.init is not None
        assert other.init.epoch == 0


def test_a_method_with_other_modules_is_not_that_method() -> None:
    """A paper's value never stands beside a learner that trains a part of the network."""
    name = "digits-generalist-d-natural"
    assert load_recipe(name).method == "generalist-d-natural"
    assert load_recipe(name, [f"{NATURAL}.trains=[fc]"]).method is None
    assert load_recipe(name, ["learners.linf.ends=9/10"]).method is None
    assert load_recipe(LATE).method == "generalist-late-d"
