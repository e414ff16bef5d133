"""Jobs that processes share: each is done once, whoever dies."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from generalist.core.errors import UserError
from generalist.runs.studies import ledger as ledgers
from generalist.runs.studies.ledger import Ledger
from run_cases import exit_code, forked
from study_cases import postgres_binaries, postgres_server

RESULT = {"accuracy": {"natural": 50.0}}


@pytest.fixture(scope="module")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if postgres_binaries() is None:
        pytest.skip("PostgreSQL is not installed here (Debian's package postgresql)")
    with postgres_server(tmp_path_factory.mktemp("server")) as url:
        yield url


@pytest.fixture(params=["journal", "sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgresql"))
    return str(tmp_path / "jobs.journal") if request.param == "journal" else f"sqlite:///{tmp_path}/jobs.db"


def test_processes_share_the_jobs_and_do_each_once(storage: str, tmp_path: Path) -> None:
    keys = [f"job{number}" for number in range(6)]
    done = tmp_path / "done"
    done.mkdir()

    def work() -> None:
        ledger = Ledger(storage, "shared")
        ledger.add({key: key for key in keys})
        while claim := ledger.claim(keys):
            with open(done / claim.key, "x"):  # fails where another process was given the same job
                claim.finish(RESULT, values=(1.0, 2.0))

    children = [forked(work) for _ in range(3)]
    assert [exit_code(child) for child in children] == [0, 0, 0]
    assert sorted(path.name for path in done.iterdir()) == sorted(keys)
    jobs = Ledger(storage, "shared").jobs(keys)
    assert {job.state for job in jobs.values()} == {"done"}
    assert jobs["job3"].result == RESULT


def test_the_job_of_a_killed_worker_is_taken_over_at_once(storage: str) -> None:
    def doomed() -> None:
        ledger = Ledger(storage, "killed")
        ledger.add({"a": "first"})
        claim = ledger.claim(["a"])
        assert claim is not None
        claim.beat(0.4)
        os._exit(9)

    assert exit_code(forked(doomed)) == 9
    ledger = Ledger(storage, "killed")
    assert ledger.jobs(["a"])["a"].state == "running"
    claim = ledger.claim(["a"])
    assert claim is not None
    job = ledger.jobs(["a"])["a"]
    assert (job.state, job.attempts) == ("running", 2)
    assert f"process {os.getpid()}" in job.worker
    assert ledger.claim(["a"]) is None
    claim.finish(RESULT, values=(1.0, 1.0))
    assert ledger.jobs(["a"])["a"].state == "done"


def test_a_silent_worker_elsewhere_is_waited_for_and_then_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = str(tmp_path / "j")
    there = Ledger(storage, "s")
    there.add({"a": "a"})
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(ledgers, "this_machine", lambda: "another")
        theirs = there.claim(["a"])
    assert theirs is not None
    here = Ledger(storage, "s", grace_seconds=0.2)
    assert here.claim(["a"]) is None
    time.sleep(0.25)
    theirs.beat(0.5)  # it lives
    assert here.claim(["a"]) is None
    time.sleep(0.25)
    ours = here.claim(["a"])
    assert ours is not None
    theirs.finish({"accuracy": {"natural": 1.0}}, values=(0.0, 0.0))  # too late, and of no consequence
    assert here.jobs(["a"])["a"].state == "running"
    ours.finish(RESULT, values=(0.0, 0.0))
    assert here.jobs(["a"])["a"].result == RESULT


def test_failed_jobs_stay_failed_until_they_are_retried(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "j"), "s")
    ledger.add({"a": "a", "b": "b"})
    claim = ledger.claim(["a", "b"])
    assert claim is not None
    claim.fail("diverged")
    job = ledger.jobs(["a"])["a"]
    assert (job.state, job.error) == ("failed", "diverged")
    other = ledger.claim(["a", "b"])
    assert other is not None
    assert other.key == "b"
    other.give_up()
    ledger.add({"a": "a", "b": "b"})
    assert ledger.jobs(["b"])["b"].state == "waiting"
    again = ledger.claim(["a", "b"])
    assert again is not None
    assert again.key == "b"
    ledger.retry(["a", "b"])
    assert {job.state for job in ledger.jobs(["a"]).values()} == {"waiting"}


def test_a_job_that_kills_its_workers_counts_as_failed(tmp_path: Path) -> None:
    storage = str(tmp_path / "j")

    def doomed(share: float) -> None:
        claim = Ledger(storage, "s").claim(["a"])
        assert claim is not None
        claim.beat(share)
        os._exit(9)

    ledger = Ledger(storage, "s")
    ledger.add({"a": "a"})
    for share in (0.1, 0.3, 0.5):  # each gets further than the one before
        assert exit_code(forked(lambda share=share: doomed(share))) == 9
    for _ in range(ledgers.MOST_KILLS - 1):
        assert exit_code(forked(lambda: doomed(0.5))) == 9
    assert ledger.claim(["a"]) is None
    assert "killed in a row" in ledger.jobs(["a"])["a"].error


def test_an_attempt_that_was_added_twice_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (Ledger(str(tmp_path / "j"), "s") for _ in range(2))
    with monkeypatch.context() as blind:
        blind.setattr(Ledger, "_latest", lambda self: {})  # as if both looked before either wrote
        one.add({"a": "a"})
        two.add({"a": "a"})
    claim = one.claim(["a"])
    assert claim is not None
    assert two.claim(["a"]) is None
    claim.finish(RESULT, values=(1.0, 1.0))
    assert two.claim(["a"]) is None
    assert two.jobs(["a"])["a"].state == "done"


@pytest.mark.parametrize(
    ("storage", "complaint"),
    [
        ("postgresql+pg8000://u:secret@127.0.0.1:1/x", r"\*\*\*@127.0.0.1:1/x cannot be reached: .*refused"),
        ("sqlite:////nowhere/at/all.db", "nowhere/at/all.db cannot be used: No such file"),
        ("nonsense://x", "cannot be used, no driver|cannot be reached"),
        ("://", "not the URL of a database"),
        ("/proc/nowhere/jobs", "cannot be used"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line(storage: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as error:
        Ledger(storage, "s")
    assert "secret" not in str(error.value)
    assert "\n" not in str(error.value)


def test_another_number_of_objectives_is_refused(tmp_path: Path) -> None:
    Ledger(str(tmp_path / "j"), "s")
    with pytest.raises(UserError, match="other objectives"):
        Ledger(str(tmp_path / "j"), "s", objectives=3)
