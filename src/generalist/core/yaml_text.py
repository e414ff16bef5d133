"""YAML from anybody, read into text, numbers, lists and mappings; bounded in every direction before it is used."""

from typing import Any, ClassVar

import yaml

from generalist.core.errors import UserError, one_line, shown

LONGEST = 1_000_000
"""Characters of a document."""
DEEPEST = 50
"""Levels of nesting, aliases followed."""
MOST_VALUES = 20_000
"""Values of a document, aliases followed."""
LONGEST_NUMBER = 64
"""Characters of a number; Python takes a time that grows with their square to read one."""

_TAGS = ("str", "int", "float", "bool", "null", "seq", "map")
_PREFIX = "tag:yaml.org,2002:"
_MERGE = f"{_PREFIX}merge"


def parse_yaml(text: str, where: str) -> Any:
    """What a document says, or one line saying what is wrong with it and where."""
    if len(text) > LONGEST:
        raise UserError(f"{where} is not readable YAML: {len(text)} characters; at most {LONGEST} are read")
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        problem = "; ".join(part for part in (error.context, error.problem) if part)
    except yaml.YAMLError as error:
        line, problem = "", str(error)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError) as error:
        # PyYAML's constructors raise whatever `int`, `float` and the like do
        line, problem = "", f"a value does not fit its tag ({error})"
    raise UserError(f"{where} is not readable YAML: {one_line(line + problem)}") from None


class _Loader(yaml.SafeLoader):
    """The plain types alone, no dates; a key is text and given once; nothing is larger than the bounds above.

    All is checked while nodes are composed, before anything is made of them.
    """

    yaml_constructors: ClassVar = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (*(f"{_PREFIX}{name}" for name in _TAGS), None)
    }
    yaml_implicit_resolvers = {  # noqa: RUF012 - as the base class has it
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._level = self._composed = 0
        self._sizes: dict[int, tuple[int, int]] = {}
        """(values, levels) of every whole node; all nodes live as long as the document."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        mark, again = self.peek_event().start_mark, self.check_event(yaml.AliasEvent)
        self._level += 1
        self._composed += 1
        if self._level > DEEPEST or self._composed > MOST_VALUES:
            raise _refused(_too_much(self._composed, self._level), mark)
        node = super().compose_node(parent, index)
        self._level -= 1
        if again and id(node) not in self._sizes:
            raise _refused("a value that contains itself", mark)
        if not again and node is not None:
            self._sizes[id(node)] = self._measured(node, mark)
        return node

    def _measured(self, node: yaml.Node, mark: yaml.Mark) -> tuple[int, int]:
        if isinstance(node, yaml.ScalarNode):
            if node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
                raise _refused(f"a number of {len(node.value)} characters", mark)
            return 1, 1
        inside = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
        sizes = [self._sizes[id(part)] for part in inside]
        values, levels = 1 + sum(size for size, _ in sizes), 1 + max((depth for _, depth in sizes), default=0)
        if values > MOST_VALUES or levels > DEEPEST:
            raise _refused(_too_much(values, levels), mark)
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
        return values, levels


def _check_keys(node: yaml.MappingNode) -> None:
    given = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag not in (f"{_PREFIX}str", _MERGE):
            value = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            raise _refused(f"key {shown(value)} is not text; put it in quotes", key.start_mark)
        if key.value in given:
            raise _refused(f"key {shown(key.value)} is given twice", key.start_mark)
        given.add(key.value)


def _too_much(values: int, levels: int) -> str:
    if levels > DEEPEST:
        return f"nested more than {DEEPEST} levels deep"
    return f"more than {MOST_VALUES} values"


def _refused(problem: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.composer.ComposerError(None, None, problem, mark)
