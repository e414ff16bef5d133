"""Name → function or class. Its keyword-only signature is the schema of its recipe fields.

A name with a colon, `module:callable`, is imported: so a user's own package is used without being registered here.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from generalist.core.errors import LONGEST_VALUE, UserError, cut, shown, unknown
from generalist.core.user_code import find, first_line

F = TypeVar("F", bound=Callable[..., Any])


class Registry(Generic[F]):
    """The functions of one kind, by name.

    Args:
        kind: What the functions are, for messages: "attack".
        runtime: The keyword-only arguments that the caller, not the recipe, gives.
        called: How the caller calls a function, such as "model, x, y, *, threat, generator". What cannot be called so
            is refused.
        instances: Whether a class stands for its instances: it is made with its fields, and they are called.
        doc: What `help` shows.

    Example:
        >>> from generalist.core.registry import Registry
        >>> shapes = Registry("shape", called="side")
        >>> @shapes.register("square")
        ... def square(side: float, *, sides: int = 2) -> float:
        ...     return side**sides
        >>> shapes.names(), shapes.check("square", {}), shapes.bind("square", {"sides": 3})(2.0)
        (['square'], {'sides': 2}, 8.0)
    """

    def __init__(
        self,
        kind: str,
        *,
        runtime: Iterable[str] = (),
        called: str | None = None,
        instances: bool = False,
        doc: str = "",
    ) -> None:
        self.kind = kind
        self._runtime = frozenset(runtime)
        self._called, self._instances = called, instances
        self._entries: dict[str, F] = {}
        self._checks: dict[str, Callable[[Mapping[str, Any]], None]] = {}
        if doc:
            self.__doc__ = inspect.cleandoc(doc)

    def register(self, name: str, *, check: Callable[[Mapping[str, Any]], None] | None = None) -> Callable[[F], F]:
        """A decorator that adds a function or class under `name`.

        Args:
            name: Without a colon.
            check: Looks at all fields together and raises a UserError.

        Returns:
            The decorator; it gives the function back as it was.
        """

        def add(function: F) -> F:
            if name in self._entries:
                raise ValueError(f"{self.kind} {name!r} is registered twice")
            if ":" in name:
                raise ValueError(f"{self.kind} {name!r}: a registered name has no colon; module:callable is imported")
            self._require_callable_so(name, function)
            self._entries[name] = function
            if check is not None:
                self._checks[name] = check
            return function

        return add

    def names(self) -> list[str]:
        """The registered names, sorted."""
        return sorted(self._entries)

    def __contains__(self, name: object) -> bool:
        """Whether `name` is registered or has the form `module:callable`, which may still not be found."""
        return isinstance(name, str) and (name in self._entries or ":" in name)

    def get(self, name: str) -> F:
        """The function or class of a registered name or a `module:callable`."""
        if isinstance(name, str) and name in self._entries:
            return self._entries[name]
        if not isinstance(name, str) or ":" not in name:
            raise unknown(self.kind, name, self._entries)
        function: Any = find(self.kind, name)
        self._require_callable_so(name, function)
        return function

    def schema(self, name: str) -> type[BaseModel]:
        """The recipe fields of `name`, as a model that checks names, types and ranges."""
        try:
            return _schema(self.get(name), self._runtime)
        except UserError:
            raise
        except Exception as error:  # annotations that cannot be evaluated, names that pydantic reserves
            what = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"{self.kind} {name!r}: its signature cannot be a schema: {what}") from error

    def check(self, name: str, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options of `name`, checked and completed with their defaults."""
        schema = self.schema(name)
        for field in options:
            if field not in schema.model_fields:
                parameter = _parameters(self.get(name)).get(field)
                if parameter and parameter.default is not parameter.empty and field not in self._runtime:
                    raise UserError(f"{self.kind} {name!r}: {field} must be keyword-only to be a field; put it after *")
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

    def _require_callable_so(self, name: str, function: Callable[..., Any]) -> None:
        """Refuse a function that cannot be called as its caller will: before training, not after an hour of it."""
        if self._called is None:
            return
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            raise UserError(
                f"{self.kind} {name!r}: its signature cannot be read; wrap it in a Python function"
            ) from None
        made = self._instances and isinstance(function, type)
        given = [] if made else [word for part in self._called.split(",") if (word := part.strip())]
        at = given.index("*") if "*" in given else len(given)
        keywords = given[at + 1 :]
        kinds = {key: parameter.kind for key, parameter in signature.parameters.items()}
        fits = all(kinds.get(key) is inspect.Parameter.KEYWORD_ONLY for key in keywords if key not in self._runtime)
        required = (p for p in signature.parameters.values() if p.default is p.empty and p.kind is p.KEYWORD_ONLY)
        try:  # required fields are the recipe's to give
            signature.bind(*given[:at], **dict.fromkeys([*keywords, *(parameter.name for parameter in required)]))
        except TypeError:
            fits = False
        if not fits:
            how = "made with keyword-only fields" if made else f"called with ({self._called})"
            raise UserError(f"{self.kind} {name!r} takes {cut(str(signature), LONGEST_VALUE)}; it is {how}")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


@functools.cache
def _schema(function: Callable[..., Any], runtime: frozenset[str]) -> type[BaseModel]:
    annotated = function.__init__ if isinstance(function, type) else inspect.unwrap(function)  # type: ignore[misc]
    while isinstance(annotated, functools.partial):
        annotated = annotated.func
    hints = get_type_hints(annotated, include_extras=True)
    fields: dict[str, Any] = {
        name: (hints.get(name, Any), ... if parameter.default is inspect.Parameter.empty else parameter.default)
        for name, parameter in _parameters(function).items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and name not in runtime
    }
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True, protected_namespaces=())
    return create_model(getattr(function, "__name__", "Fields"), __config__=config, **fields)


def explain(error: ValidationError) -> str:
    """The first complaint of pydantic as one line: where, what was given, what would do."""
    first = error.errors(include_url=False)[0]
    where = cut(".".join(str(part) for part in first["loc"]), LONGEST_VALUE)
    said = first["type"] in ("missing", "value_error")  # our own errors say what was given
    given = "" if said else f", got {shown(first['input'])}"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}{given}" if where else first["msg"]
