"""Studies from their file to the table and the figure: every shipped one, killed ones, shared ones."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from generalist.core.errors import RunError, UserError
from generalist.core.names import OOD
from generalist.recipes.studies import load_study, study_names
from generalist.report.console import Silent
from generalist.report.study_table import StudyTable
from generalist.runs.folder import Run
from generalist.runs.studies import worker
from generalist.runs.studies.cost import Seconds
from generalist.runs.studies.ledger import Job, Ledger
from generalist.runs.studies.plan import make_plan
from generalist.runs.studies.study import StudyFiles, parse_budget, prepare, run_study
from generalist.runs.studies.trial import pack, unpack
from run_cases import exit_code, forked, killed_at
from study_cases import TINY, small_study, tiny_suite


def figures(table: StudyTable) -> list[Any]:
    """All that does not depend on the clock."""
    clocked = ("minutes", "memory MiB")
    return [
        (row.label, row.group, {name: dict(of) for name, of in row.figures.items() if name not in clocked}, row.classes)
        for row in table.rows
    ]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All studies share it, so that each recipe is trained once."""
    return tmp_path_factory.mktemp("studies")


@pytest.mark.parametrize("name", study_names())
def test_every_shipped_study_makes_its_table_and_figure(name: str, place: Path) -> None:
    suite = OOD if name == "table-4" else tiny_suite(place)
    images = 2 if name == "table-4" else 8
    study = load_study(name, setting="digits", seeds=1, overrides=TINY, suite=suite, images=images)
    table = run_study(study, out=place)
    assert [row.label for row in table.rows] == [row.label for row in study.rows]
    assert table.finished, [row.missing for row in table.rows if row.missing]
    assert {column.name for column in table.columns} <= set(table.rows[0].figures)
    files = StudyFiles(place / study.name)
    assert files.figure("png").read_bytes()[:4] == b"\x89PNG"
    assert b"<svg" in files.figure("svg").read_bytes()[:500]
    for ending in ("md", "csv", "tex"):
        text = files.table(ending).read_text()
        assert all(row.label.split("(")[0].strip("{}β=λ ")[:6] in text for row in table.rows), ending
    assert json.loads(files.table("json").read_text())["rows"][0]["label"] == table.rows[0].label


def test_runs_are_shared_by_recipe_and_nothing_is_done_twice(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(small_study(suite=tiny_suite(place)))
    first = run_study(study, out=place)
    monkeypatch.setattr(worker, "run_trial", lambda *_, **__: pytest.fail("it was done already"))
    assert figures(run_study(study, out=place)) == figures(first)
    plan, _ = prepare(study, out=place)
    other, _ = prepare(load_study(small_study(name="other", suite=tiny_suite(place))), out=place)
    assert [trial.folder for trial in plan.trials.values()] == [trial.folder for trial in other.trials.values()]


def test_a_killed_study_goes_on_and_loses_nothing(tmp_path: Path) -> None:
    study = load_study(small_study(seeds=2, suite=tiny_suite(tmp_path)))
    alone = run_study(study, out=tmp_path / "alone")
    killed_at("step", 9, lambda: run_study(study, out=tmp_path / "killed"), told="the steps of four trials")
    plan, files = prepare(study, out=tmp_path / "killed")
    states = [job.state for job in Ledger(str(files.storage), study.name).jobs(plan.trials).values()]
    assert states.count("running") == 1
    assert figures(run_study(study, out=tmp_path / "killed")) == figures(alone)
    attempts = [job.attempts for job in Ledger(str(files.storage), study.name).jobs(plan.trials).values()]
    assert sorted(attempts) == [1, 1, 1, 2]


@pytest.mark.parametrize("kind", ["journal", "sqlite"])
def test_two_workers_of_which_one_is_killed_make_the_same_table(kind: str, tmp_path: Path) -> None:
    study = load_study(small_study(seeds=2, suite=tiny_suite(tmp_path)))
    alone = run_study(study, out=tmp_path / "alone")
    storage = str(tmp_path / "shared.journal") if kind == "journal" else f"sqlite:///{tmp_path}/shared.db"
    shared: dict[str, Any] = {"out": tmp_path / "both", "storage": storage}
    doomed = forked(lambda: killed_in_its_second_trial(lambda: run_study(study, **shared)))
    table = run_study(study, **shared)
    assert exit_code(doomed) == -signal.SIGKILL
    assert figures(table) == figures(alone)
    plan, _ = prepare(study, out=tmp_path / "both")
    jobs = Ledger(storage, study.name).jobs(plan.trials)
    assert {job.state for job in jobs.values()} == {"done"}
    folders = [Path(job.result["folder"]) for job in jobs.values()]
    for folder in folders:  # no epoch was trained by two workers
        epochs = [row["epoch"] for row in Run(folder).metrics if row["kind"] == "epoch"]
        assert epochs == [1, 2]


def killed_in_its_second_trial(function: Callable[[], object]) -> None:
    """Kills this process where a worker begins its second trial."""
    run_trial, begun = worker.run_trial, 0

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal begun
        begun += 1
        if begun == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_trial(*args, **options)

    worker.run_trial = counted  # type: ignore[assignment]
    function()


def test_worker_processes_make_the_same_table(tmp_path: Path) -> None:
    study = load_study(small_study(suite=tiny_suite(tmp_path)))
    said: list[str] = []

    class Told(Silent):
        def say(self, text: str) -> None:
            said.append(text)

    table = run_study(study, out=tmp_path / "two", workers=2, reporter=Told())
    assert figures(table) == figures(run_study(study, out=tmp_path / "one"))
    assert "2 trials, 0 of them done" in said[0]
    assert "with 2 workers" in said[0]
    assert len([line for line in said if "natural" in line]) == 2


def test_workers_that_all_die_are_an_error_and_not_the_end(tmp_path: Path) -> None:
    study = load_study(small_study(suite=tiny_suite(tmp_path)))

    class Murderer(Silent):
        def advance(self, done: float, total: int, *, share: float | None = None) -> None:
            for child in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)

    with pytest.raises(RunError, match="all workers have ended"):
        run_study(study, out=tmp_path / "s", workers=2, reporter=Murderer())
    assert run_study(study, out=tmp_path / "s").finished


def test_a_failed_trial_is_shown_and_can_be_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(small_study(suite=tiny_suite(tmp_path), baseline="c = 2"))
    run_trial = worker.run_trial

    def failing(trial: Any, **options: Any) -> Any:
        if "c = 1" in trial.label:
            raise RunError("learner 'linf' diverged")
        return run_trial(trial, **options)

    monkeypatch.setattr(worker, "run_trial", failing)
    table = run_study(study, out=tmp_path)
    assert table.rows[0].missing == {0: "failed: learner 'linf' diverged"}
    assert not table.rows[1].missing
    assert "failed: c = 1, seed 0: learner 'linf' diverged" in str(table)
    assert "failed" in StudyFiles(tmp_path / "small").table("md").read_text()
    monkeypatch.setattr(worker, "run_trial", run_trial)
    assert not run_study(study, out=tmp_path).finished
    again = run_study(study, out=tmp_path, retry=True)
    assert again.finished
    assert again.rows[0].changes["natural"].margin is not None


def test_a_trial_whose_folder_is_in_use_is_left_to_its_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from generalist.training.guards import sole_owner

    study = load_study(small_study(suite=tiny_suite(tmp_path)))
    plan, _ = prepare(study, out=tmp_path)
    first = next(iter(plan.trials.values()))
    naps = []

    def nap(seconds: float) -> None:
        naps.append(seconds)
        held.__exit__(None, None, None) if len(naps) == 2 else None

    held = sole_owner(first.folder / ".lock")
    held.__enter__()
    monkeypatch.setattr(worker.time, "sleep", nap)
    assert run_study(study, out=tmp_path).finished
    assert naps


def started_study(folder: Path, **changes: Any) -> dict[str, Any]:
    """Two rows that start from the run of the first one."""
    first = {"name": "AT", "recipe": "digits-at"}
    grid = {"learners.natural.trains": [["conv4"], ["conv5"]]}
    late = {"name": "late {}", "recipe": "digits-generalist-late-d", "after": "AT", "grid": grid}
    return small_study(variants=[first, late], figure={"kind": "bars"}, suite=tiny_suite(folder), **changes)


def test_rows_that_start_from_another_rows_run(tmp_path: Path) -> None:
    study = load_study(started_study(tmp_path), seeds=[3])
    table = run_study(study, out=tmp_path / "one")
    assert table.finished
    plan, _ = prepare(study, out=tmp_path / "one")
    at, *late = plan.trials.values()
    start = Run(at.folder).model().state_dict()
    for trial in late:
        run = Run(trial.folder)
        assert [row["epoch"] for row in run.metrics if row["kind"] == "epoch"] == [2], "the second of two epochs"
        linf, natural = (run.model(name).state_dict() for name in ("linf", "natural"))
        assert all(bool((linf[name] == start[name]).all()) for name in start)
        moved = {name.split(".")[-2] for name in start if bool((natural[name] != start[name]).any())}
        assert trial.label == f"late {' '.join(moved)}, seed 3"
    elsewhere, _ = prepare(study, out=tmp_path / "two")
    assert list(elsewhere.trials) == list(plan.trials), "the same trials wherever they are kept"
    other = forked(lambda: run_study(study, out=tmp_path / "two"))
    assert figures(run_study(study, out=tmp_path / "two")) == figures(table), "by two processes, one of which waits"
    assert exit_code(other) == 0


def test_a_trial_waits_for_the_run_it_starts_from(tmp_path: Path) -> None:
    plan, _ = prepare(load_study(started_study(tmp_path)), out=tmp_path)
    at, *late = plan.trials
    task = worker.Work("unused", "small", plan.trials, {key: Seconds(1, 1, 1) for key in plan.trials})
    waiting = {key: Job(key) for key in plan.trials}
    assert task.may_begin(waiting) == [at]
    assert task.may_begin({**waiting, at: Job(at, "running")}) == [at]
    assert task.may_begin({**waiting, at: Job(at, "done")}) == [at, *late]


def test_what_a_failed_row_was_the_start_of_fails_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(started_study(tmp_path))
    run_trial = worker.run_trial

    def failing(trial: Any, **options: Any) -> Any:
        raise RunError("diverged")

    monkeypatch.setattr(worker, "run_trial", failing)
    table = run_study(study, out=tmp_path)
    late = "failed: it starts from AT, seed 0, which failed"
    assert [row.missing[0] for row in table.rows] == ["failed: diverged", late, late]
    monkeypatch.setattr(worker, "run_trial", run_trial)
    assert run_study(study, out=tmp_path, retry=True).finished


def test_a_start_that_is_not_on_this_machine_is_trained_here(tmp_path: Path) -> None:
    """As on a second machine that shares the storage and no disk."""
    study = load_study(started_study(tmp_path))
    plan, _ = prepare(study, out=tmp_path / "ours")
    at, *_ = plan.trials.values()
    storage = str(tmp_path / "shared.journal")
    run_study(load_study(started_study(tmp_path) | {"variants": started_study(tmp_path)["variants"][:1]}),
              out=tmp_path / "theirs", storage=storage)  # fmt: skip
    assert run_study(study, out=tmp_path / "ours", storage=storage).finished
    assert at.folder.is_dir()


def test_a_start_must_be_a_row_before(tmp_path: Path) -> None:
    first, late = started_study(tmp_path)["variants"]
    with pytest.raises(UserError, match=r"'AT' \(after\) is not a row before; those before: none"):
        load_study(small_study(variants=[late, first]))
    with pytest.raises(UserError, match=r"'At' .* those before: AT"):
        load_study(small_study(variants=[first, late | {"after": "At"}]))
    without = load_study(started_study(tmp_path), overrides={"init": None})
    with pytest.raises(UserError, match="starts from another row's run, so init cannot be taken out"):
        prepare(without, out=tmp_path)


def test_seeds_give_a_mean_and_a_deviation_and_paired_differences(tmp_path: Path) -> None:
    study = load_study(small_study(suite=tiny_suite(tmp_path), baseline="c = 1"), seeds=2)
    table = run_study(study, out=tmp_path)
    natural = table.rows[1].figures["natural"]
    spread = table.rows[1].spread("natural")
    assert spread is not None
    assert spread.value == pytest.approx((natural[0] + natural[1]) / 2)
    assert spread.margin == pytest.approx(abs(natural[0] - natural[1]) / 2**0.5)
    base = table.rows[0].figures["natural"]
    change = table.rows[1].changes["natural"]
    assert change.value == pytest.approx(sum(natural[seed] - base[seed] for seed in (0, 1)) / 2)
    assert not table.rows[0].changes


def test_a_budget_leaves_the_rest_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(small_study(suite=tiny_suite(tmp_path)))
    with pytest.raises(UserError, match=r"a budget of \d+s is below one trial: the cheapest takes about"):
        run_study(study, out=tmp_path, budget_seconds=1e-6)
    assert not (tmp_path / "runs").exists()
    run_trial, clock = worker.run_trial, time.time()

    def slow(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(worker.time, "time", lambda: clock + 10_000)
        return run_trial(*args, **options)

    monkeypatch.setattr(worker, "run_trial", slow)
    table = run_study(study, out=tmp_path, budget_seconds=5000)
    assert [bool(row.missing) for row in table.rows] == [False, True]
    assert "not done yet: 1 of 2 trials" in table.notes


def test_what_takes_days_is_not_begun_by_accident(tmp_path: Path) -> None:
    study = load_study("communication", seeds=1)
    with pytest.raises(UserError, match=r"would take about \d+ days here"):
        run_study(study, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_interrupted_trials_are_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study(small_study(suite=tiny_suite(tmp_path)))

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(worker, "run_trial", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_study(study, out=tmp_path)
    plan, files = prepare(study, out=tmp_path)
    assert {job.state for job in Ledger(str(files.storage), study.name).jobs(plan.trials).values()} == {"waiting"}
    assert run_study(study, out=tmp_path).finished


def test_the_papers_values_stand_beside_ours() -> None:
    from generalist.runs.studies.ledger import Job
    from generalist.runs.studies.results import make_table

    study = load_study("table-1", seeds=1)
    plan = make_plan(study, Path("unused"))
    table = make_table(plan, {key: Job(key) for key in plan.trials})
    assert len(table.rows) == 15
    by_label = {row.label: row.paper for row in table.rows}
    assert by_label["AT"]["natural"] == 84.32
    assert by_label["Generalist-T (NT + ℓ∞ + ℓ2)"]["AA linf:8/255"] == 43.23
    assert by_label["RMC"]["PGD20 linf:8/255"] == 52.26
    assert all(len(row.paper) == 6 for row in table.rows)
    rates = load_study("learning-rates", seeds=1)
    plan = make_plan(rates, Path("unused"))
    rows = make_table(plan, {key: Job(key) for key in plan.trials}).rows
    assert [row.paper["AA linf:8/255"] for row in rows] == [46.37, 41.86, 43.55, 48.03, 42.98]


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("1.5d", 129600)]
)
def test_budgets(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 hours", "hh", "-1h"])
def test_bad_budgets(text: str) -> None:
    with pytest.raises(UserError, match="a budget is a time such as 2h"):
        parse_budget(text)


def test_verdicts_survive_packing() -> None:
    import torch

    verdicts = torch.rand(37, generator=torch.Generator().manual_seed(0)) > 0.5
    assert torch.equal(unpack(pack(verdicts), 37), verdicts)
