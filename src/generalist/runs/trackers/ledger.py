"""What a tool was told already. Its own records cannot be cut back to a checkpoint, so nothing is told twice."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from generalist.core.errors import RunError, UserError
from generalist.core.files import read_json, seal_holds, sealed, write_json
from generalist.core.user_code import first_line


class Tool(Protocol):
    """An open run of a tool that keeps whatever it is told."""

    def log(self, values: Mapping[str, float], *, step: int) -> None: ...
    def close(self, *, completed: bool) -> None: ...


class Ledger:
    """By what name the tool knows this run, and the last step that it was told of each kind of record.

    A ledger that was damaged or edited is begun anew with a warning, and so is the run in the tool.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.name: str | None = None
        self._told: dict[str, int] = {}
        if path.is_file():
            try:
                self._read()
            except (UserError, KeyError, TypeError, ValueError):
                self.name, self._told = None, {}
                warnings.warn(f"{path} is damaged: the tool begins a new run", stacklevel=2)

    @classmethod
    def beside(cls, folder: Path) -> "Ledger":
        """The ledger in the folder of a tool's own files."""
        return cls(folder / "told.json")

    def _read(self) -> None:
        found = read_json(self._path)
        if seal_holds(found) is not True:
            raise ValueError("changed since it was written")
        self.name = str(found["name"])
        self._told = {str(kind): int(step) for kind, step in found["told"].items()}

    def begin(self, name: str) -> None:
        """The tool calls the run so from now on."""
        self.name = name
        self._write()

    def news(self, values: Mapping[str, float], *, step: int) -> dict[str, float]:
        """The values whose kind was not told up to this step; the kind is the first part of a name."""
        return {name: value for name, value in values.items() if step > self._told.get(_kind(name), -1)}

    def told(self, values: Mapping[str, float], *, step: int) -> None:
        self._told |= {_kind(name): step for name in values}
        self._write()

    def _write(self) -> None:
        write_json(self._path, sealed({"name": self.name, "told": self._told}))


def _kind(name: str) -> str:
    return name.partition("/")[0]


class ToldOnce:
    """A tool as a tracker: it hears everything once. If it fails, the run goes on without it and says so."""

    def __init__(self, name: str, tool: Tool, ledger: Ledger) -> None:
        self._name, self._ledger = name, ledger
        self._tool: Tool | None = tool

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        news = self._ledger.news(values, step=step)
        if self._tool is None or not news:
            return
        try:
            self._tool.log(news, step=step)
            self._ledger.told(news, step=step)
        except Exception as error:
            self._failed(error)

    def close(self, *, completed: bool) -> None:
        if self._tool is None:
            return
        try:
            self._tool.close(completed=completed)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, RunError):  # a full disk: the run itself is about to say the same
            raise error
        self._tool = None
        warnings.warn(f"{self._name} failed ({first_line(error)}); the run goes on without it", stacklevel=3)
