"""Who does which trial: a study in an Optuna storage that any number of processes and machines share.

A job is known by its key. Each attempt at it is a trial of Optuna's. Only one process can turn a waiting trial into a
running one, or a running one into a failed one, and whichever does owns what follows. Should two processes add the same
attempt, the one with the lower number counts for everybody, and the other is closed.
"""

import fcntl
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from generalist.core.errors import UserError, one_line, shown
from generalist.core.files import process_lives, user_path

if TYPE_CHECKING:
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

GRACE_SECONDS = 60.0
"""A worker that has given no sign for so long is taken for dead; on the same machine it is seen at once."""
MOST_KILLS = 3
"""After so many workers that were killed without getting any further, a job counts as failed."""
State = Literal["waiting", "running", "done", "failed"]

_KEY, _LABEL, _ATTEMPT, _KILLS, _BEAT, _RESULT, _ERROR, _GIVEN_UP = (
    "key", "label", "attempt", "kills", "beat", "result", "error", "given_up",
)  # fmt: skip
KILLED, STOPPED, TWICE = "killed", "stopped", "twice"
"""Why an attempt was given up: its worker died, it was asked to stop, or another process had added it too."""


@dataclass(frozen=True)
class Job:
    """How a job stands. `share` is how much of it is done, 0 to 1; `result` is what its worker handed in."""

    key: str
    state: State = "waiting"
    share: float = 0.0
    worker: str = ""
    result: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    attempts: int = 0


class Ledger:
    """The jobs of one study.

    Args:
        storage: A journal file, or the URL of a database: `sqlite:///study.db`, `postgresql+psycopg://…`.
        name: Of the study; several may share a storage.
        objectives: How many values a trial has.
        grace_seconds: How long a worker may be silent.
    """

    def __init__(self, storage: str, name: str, *, objectives: int = 2, grace_seconds: float = GRACE_SECONDS) -> None:
        self.name, self._lock = name, lock_file(storage)
        with self.exclusive():  # two processes must not make the tables at once
            self.storage = open_storage(storage)
        self._grace = grace_seconds
        self._seen: dict[int, tuple[Any, float]] = {}
        self._study = self._study_id(objectives)

    def _study_id(self, objectives: int) -> int:
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        with self.exclusive(), suppress(DuplicatedStudyError):
            return self.storage.create_new_study([StudyDirection.MAXIMIZE] * objectives, self.name)
        known = self.storage.get_study_id_from_name(self.name)
        if len(self.storage.get_study_directions(known)) != objectives:
            raise UserError(f"the storage has a study {self.name!r} with other objectives; give another storage")
        return known

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """SQLite has no row locks, so that processes take turns by a lock on a file; the others have their own."""
        if self._lock is None:
            yield
            return
        try:
            file = open(self._lock, "a")  # noqa: SIM115 - closed below
        except OSError as error:
            raise UserError(f"the storage {self._lock.with_suffix('')} cannot be used: {error.strerror}") from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def add(self, labels: Mapping[str, str]) -> None:
        """Jobs by key; those that are there already stay as they are."""
        with self.exclusive():
            known = self._latest()
            for key, label in labels.items():
                if key not in known:
                    self._create({_KEY: key, _LABEL: label, _ATTEMPT: 0, _KILLS: 0})

    def _create(self, attributes: dict[str, Any]) -> None:
        from optuna.trial import TrialState, create_trial

        self.storage.create_new_trial(self._study, create_trial(state=TrialState.WAITING, user_attrs=attributes))

    def _latest(self) -> "dict[str, FrozenTrial]":
        """The trial that counts for each key: of its last attempt, the one with the lowest number."""
        from optuna.trial import TrialState

        found: dict[str, FrozenTrial] = {}
        for trial in self.storage.get_all_trials(self._study, deepcopy=False):
            attributes = trial.user_attrs
            if _KEY not in attributes or attributes.get(_GIVEN_UP) == TWICE:
                continue
            known = found.get(attributes[_KEY])
            if known is None or attributes[_ATTEMPT] > known.user_attrs[_ATTEMPT]:
                found[attributes[_KEY]] = trial
            elif attributes[_ATTEMPT] == known.user_attrs[_ATTEMPT] and trial.state == TrialState.WAITING:
                self.close(trial, TWICE)
        return found

    def close(self, trial: "FrozenTrial", why: str) -> bool:
        """Give an attempt up; False where another process was faster."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self.storage.set_trial_user_attr(trial._trial_id, _GIVEN_UP, why)
            return self.storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
        except UpdateFinishedTrialError:
            return False

    def jobs(self, keys: Iterable[str]) -> dict[str, Job]:
        """How each of them stands now."""
        latest = self._latest()
        return {key: _job(key, latest.get(key)) for key in keys}

    def claim(self, keys: Sequence[str]) -> "Claim | None":
        """The first of these jobs that waits, for this process alone; None where none does."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with self.exclusive():
            latest = self._latest()
            if self._close_dead(latest, keys):
                latest = self._latest()
            for key in keys:
                trial = latest.get(key)
                if trial is None or _job(key, trial).state != "waiting":
                    continue
                if trial.state == TrialState.FAIL:  # given up
                    self._create(_next_attempt(trial))
                    trial = self._latest()[key]
                with suppress(UpdateFinishedTrialError):
                    if self.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                        claim = Claim(self, key, trial._trial_id)
                        claim.beat(0.0)
                        return claim
        return None

    def retry(self, keys: Iterable[str]) -> None:
        """Jobs that failed wait again."""
        with self.exclusive():
            latest = self._latest()
            for key in keys:
                if key in latest and _job(key, latest[key]).state == "failed":
                    self._create({**_next_attempt(latest[key]), _KILLS: 0})

    def _close_dead(self, latest: "Mapping[str, FrozenTrial]", keys: Sequence[str]) -> bool:
        """Attempts whose worker is gone are given up, and wait again; whether there were any."""
        running = [latest[key] for key in keys if key in latest and _job(key, latest[key]).state == "running"]
        dead = [trial for trial in running if self.is_dead(trial)]
        for trial in dead:
            self.close(trial, KILLED)
        return bool(dead)

    def is_dead(self, trial: "FrozenTrial") -> bool:
        """By its process, if that was on this machine; else by its silence, on our own clock."""
        beat = trial.user_attrs.get(_BEAT)
        if beat and beat["machine"] == this_machine() and _is_gone(beat["process"]):
            return True
        last, since = self._seen.get(trial._trial_id, (None, 0.0))
        now = time.monotonic()
        if trial._trial_id not in self._seen or last != beat:
            self._seen[trial._trial_id] = beat, now
            return False
        return now - since > self._grace


class Claim:
    """A job that this process works on."""

    def __init__(self, ledger: Ledger, key: str, trial: int) -> None:
        self._ledger, self.key, self._trial, self._beats = ledger, key, trial, 0

    def beat(self, share: float) -> None:
        """Show that the worker lives, and how far it is."""
        self._beats += 1
        beat = {
            "machine": this_machine(),
            "host": socket.gethostname(),
            "process": os.getpid(),
            "count": self._beats,
            "share": round(share, 4),
        }
        self._ledger.storage.set_trial_user_attr(self._trial, _BEAT, beat)

    def finish(self, result: Mapping[str, Any], *, values: tuple[float, float]) -> None:
        """Hand the result in. If another process took the job over meanwhile, its own counts."""
        self._end("COMPLETE", _RESULT, dict(result), values)

    def fail(self, error: str) -> None:
        self._end("FAIL", _ERROR, error)

    def give_up(self, why: str = STOPPED) -> None:
        """Somebody else may go on with it."""
        self._end("FAIL", _GIVEN_UP, why)

    def _end(self, state: str, attribute: str, value: Any, values: Sequence[float] | None = None) -> None:
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        with suppress(UpdateFinishedTrialError):
            self._ledger.storage.set_trial_user_attr(self._trial, attribute, value)
            self._ledger.storage.set_trial_state_values(self._trial, TrialState[state], values)


def _next_attempt(trial: "FrozenTrial") -> dict[str, Any]:
    attributes = trial.user_attrs
    kept = {name: attributes[name] for name in (_KEY, _LABEL)}
    share = _share(trial)
    return {**kept, _ATTEMPT: attributes[_ATTEMPT] + 1, _KILLS: _kills(trial), "from": share}


def _share(trial: "FrozenTrial") -> float:
    return float(trial.user_attrs.get(_BEAT, {}).get("share", 0.0))


def _kills(trial: "FrozenTrial") -> int:
    """Of workers in a row that got no further."""
    attributes = trial.user_attrs
    if attributes.get(_GIVEN_UP) != KILLED:
        return int(attributes[_KILLS])
    further = _share(trial) > attributes.get("from", 0.0) + 0.01
    return 1 if further else int(attributes[_KILLS]) + 1


def _job(key: str, trial: "FrozenTrial | None") -> Job:
    from optuna.trial import TrialState

    if trial is None:
        return Job(key)
    attributes, beat = trial.user_attrs, trial.user_attrs.get(_BEAT, {})
    about: dict[str, Any] = {
        "worker": f"process {beat['process']} on {beat['host']}" if beat else "",
        "attempts": attributes[_ATTEMPT] + 1,
    }
    if trial.state == TrialState.COMPLETE:
        return Job(key, "done", 1.0, result=attributes[_RESULT], **about)
    if trial.state == TrialState.RUNNING:
        return Job(key, "running", _share(trial), **about)
    if _ERROR in attributes:
        return Job(key, "failed", error=attributes[_ERROR], **about)
    if trial.state == TrialState.FAIL and _kills(trial) >= MOST_KILLS:
        return Job(key, "failed", error=f"{MOST_KILLS} workers were killed in a row (out of memory?)", **about)
    return Job(key, "waiting", _share(trial), attempts=about["attempts"])


def _is_gone(process: int) -> bool:
    """Whether a process of this machine has ended; one that nobody has waited for yet has ended too."""
    if not process_lives(process):
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # not Linux
        return False
    return state == "Z"


@cache
def this_machine() -> str:
    """What tells apart where process numbers mean the same: host, boot and, in containers, namespace."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)


def is_url(storage: str) -> bool:
    return "://" in storage


def lock_file(storage: str) -> Path | None:
    """Beside the file of an SQLite database."""
    kind, _, path = storage.partition(":///")
    return Path(f"{path}.lock") if kind.partition("+")[0] == "sqlite" and path else None


def open_storage(storage: str) -> "BaseStorage":
    """A storage that can be written to, or one line saying why not."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if not is_url(storage):
        path = user_path(storage)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return optuna.storages.JournalStorage(JournalFileBackend(str(path)))
        except OSError as error:
            raise UserError(f"the storage {path} cannot be used: {error.strerror or error}") from None
    return _open_database(storage)


def _with_tables(url: str) -> "BaseStorage":
    """Where several processes make the tables at once, all but one of them fail, and find them the next time."""
    import optuna
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    for wait in (0.2, 0.5, 1.0, 2.0):
        try:
            return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})
        except (IntegrityError, ProgrammingError):
            time.sleep(wait)
        except OperationalError as error:
            if "exist" not in str(error):
                raise
            time.sleep(wait)
    return optuna.storages.RDBStorage(url, engine_kwargs={"pool_pre_ping": True})


_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}


def _open_database(url: str) -> "BaseStorage":
    import optuna
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import SQLAlchemyError

    try:
        parsed = make_url(url)
    except SQLAlchemyError:
        raise UserError(f"{shown(url.partition('://')[0])}://… is not the URL of a database") from None
    safe = parsed.render_as_string(hide_password=True)
    try:
        if parsed.host:  # drivers differ in how long they wait for a server that is not there
            port = parsed.port or _PORTS.get(parsed.get_backend_name(), 0)
            socket.create_connection((parsed.host, port), timeout=10).close()
        return _with_tables(url)
    except ImportError as error:
        driver = f"no driver for {parsed.drivername}: {error}"
        raise UserError(f"the storage {safe} cannot be used, {one_line(driver)}") from None
    except (SQLAlchemyError, OSError, RuntimeError, optuna.exceptions.OptunaError) as error:
        reason = (str(error.__cause__ or error).splitlines() or [""])[0]
        raise UserError(f"the storage {safe} cannot be reached: {one_line(reason)}") from None
