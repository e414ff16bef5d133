"""Name → function or class. Its keyword-only signature is the schema of its recipe fields."""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from generalist.core.errors import LONGEST_VALUE, UserError, cut, shown, unknown

F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[F]):
    """The functions of one kind. `runtime` names the keyword-only arguments that the caller, not the recipe, gives."""

    def __init__(self, kind: str, *, runtime: Iterable[str] = ()) -> None:
        self.kind = kind
        self._runtime = frozenset(runtime)
        self._entries: dict[str, F] = {}
        self._checks: dict[str, Callable[[Mapping[str, Any]], None]] = {}

    def register(self, name: str, *, check: Callable[[Mapping[str, Any]], None] | None = None) -> Callable[[F], F]:
        """`check` looks at all fields together and raises a UserError."""

        def add(function: F) -> F:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            self._entries[name] = function
            if check is not None:
                self._checks[name] = check
            return function

        return add

    def names(self) -> list[str]:
        return sorted(self._entries)

    def get(self, name: str) -> F:
        if not isinstance(name, str) or name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def schema(self, name: str) -> type[BaseModel]:
        """The recipe fields of `name`, as a model that checks names, types and ranges."""
        return _schema(self.get(name), self._runtime)

    def check(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of `name`, checked and completed with their defaults."""
        schema = self.schema(name)
        for field in options:
            if field not in schema.model_fields:
                raise unknown(f"field of {self.kind} {name!r}:", field, schema.model_fields)
        try:
            checked = schema.model_validate(dict(options))
        except ValidationError as error:
            raise UserError(f"{self.kind} {name!r}: {explain(error)}") from None
        complete = {field: getattr(checked, field) for field in schema.model_fields}
        if name in self._checks:
            self._checks[name](complete)
        return complete

    def bind(self, name: str, options: Mapping[str, Any]) -> Callable[..., Any]:
        """`name` with its recipe fields bound; what remains to give are the runtime arguments."""
        return functools.partial(self.get(name), **self.check(name, options))


@functools.cache
def _schema(function: Callable[..., Any], runtime: frozenset[str]) -> type[BaseModel]:
    annotated = vars(function)["__init__"] if isinstance(function, type) else function
    hints = get_type_hints(annotated, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in runtime
    }
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True)
    return create_model(function.__name__, __config__=config, **fields)


def explain(error: ValidationError) -> str:
    """The first complaint of pydantic as one line: where, what was given, what would do."""
    first = error.errors(include_url=False)[0]
    where = cut(".".join(str(part) for part in first["loc"]), LONGEST_VALUE)
    said = first["type"] in ("missing", "value_error")  # our own errors say what was given
    given = "" if said else f", got {shown(first['input'])}"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}{given}" if where else first["msg"]
