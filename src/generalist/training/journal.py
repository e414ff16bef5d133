"""The metrics of a run while it runs, as JSON lines."""

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generalist.core.files import SEAL, seal_holds, sealed, write_atomically

RUN = "run"
"""The field of a line that says which run wrote it."""


def read_journal(path: Path, *, run: str) -> list[dict[str, Any]]:
    """The intact lines of this run in a journal; damaged ones are left out, with a warning."""
    records, damaged = [], 0
    text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    for line in text.splitlines(keepends=True):
        record = _record(line, run)
        if record is not None:
            records.append(record)
        elif line.endswith("\n"):  # else it is the last one, cut short by a kill
            damaged += 1
    if damaged:
        warnings.warn(f"{path}: {damaged} damaged line(s) are left out", stacklevel=2)
    return records


def _record(line: str, run: str) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
        intact = seal_holds(record) if RUN in record else seal_holds(record) is not False  # both came together
        good = intact and isinstance(record["step"], int) and isinstance(record["kind"], str)
        good = good and record.get(RUN, run) == run
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return {key: value for key, value in record.items() if key not in (RUN, SEAL)} if good else None


class Journal:
    """A file of JSON lines. Lines that an interrupted run wrote after `step` are dropped when it is opened.

    Every line names its `run`.
    """

    def __init__(self, path: Path, *, run: str, step: int) -> None:
        self.path, self._run = path, run
        kept = [record for record in read_journal(self.path, run=run) if record["step"] <= step]
        write_atomically(self.path, "".join(map(self._line, kept)).encode())
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()

    def write(self, kind: str, step: int, record: Mapping[str, Any]) -> None:
        self._file.write(self._line({"kind": kind, "step": step, **record}))
        self._file.flush()

    def _line(self, record: Mapping[str, Any]) -> str:
        return json.dumps(sealed({**record, RUN: self._run})) + "\n"

    def close(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()


class NullJournal:
    """The journal of a rank that does not write."""

    def write(self, kind: str, step: int, record: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass
