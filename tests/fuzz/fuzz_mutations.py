"""Trees and texts with something wrong in them."""

import copy
import random
from collections.abc import Callable
from typing import Any

Path = tuple[Any, ...]

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))

TEXTS = (
    "", " ", "x", "0", "-1", "1e400", "-1e400", "1e999999999", "1e-999999999", "nan", "inf", "8/0", "1/3", "8/255",
    "0x10", "linf:8/255", "linf:", ":", "linf:-1", "l2:1e99", "l1:1e-99", "l7:1", "linf:nan", "LINF:0.1",
    "linf:8/255:3", "../../x", "/", ".", "..", "~", "~nouser/x", "a/b", "a\\b", "a\0b", "a\nb", "\x1b[31m",
    "\u202e", "ℓ∞", "é", "\ufeff", "x" * 300, "x" * 5000, "9" * 5000, "$\\frac$", "[bold]x[/]", "{}", "[1", "'",
    '"', "!!int x", "*a", "&a", "<<", "%", "{x}", "rest", "global", "natural", "adversarial", "trades", "sgd",
    "adam", "cosine", "piecewise", "digits", "folder", "npz", "mnist", "resnet18", "small_cnn", "wrn-10-1",
    "wrn-99999-99999", "timm/x", "os:nothing", "cpu", "cuda", "meta", "auto", "mix", "recalibrate", "every_step",
    "never", "reset", "keep", "bf16", "float32", "last", "validation", "test", "digits-nt", "digits-generalist-t",
    "none", "data", "True", "null", "2020-01-01", "1:30", "0b1", "1_000", "٣",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 7, 100, 1000, 10_000, 1_000_000, 10_000_000, 10**12, 2**31, 2**63 - 1, 2**63, 2**64, 10**20,
    10**40, -(10**20), 0.0, -0.0, 0.5, 1.5, 0.999, 1e-320, 1e-30, 1e30, 1e308, -1e308, float("inf"), float("-inf"),
    float("nan"),
)  # fmt: skip


def nested(depth: int, *, of: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = of(value)
    return value


def nasty(random: random.Random) -> Any:
    """A value that a field may not expect."""
    kind = random.randrange(10)
    if kind < 4:
        return random.choice(TEXTS)
    if kind < 7:
        return random.choice(NUMBERS)
    if kind == 7:
        return random.choice([None, True, False])
    if kind == 8:
        return random.choice(
            [[], [[]], [1, 2], ["x"], [None], list(range(200)), ["linf:0.1"] * 50, nested(60, of=lambda v: [v])]
        )
    return random.choice(
        [{}, {"name": 3}, {"name": []}, {"name": "x"}, {"x": 1}, {1: 2}, {None: 1}, {"share": 0.5}, {"times": "1/2"},
         {"at": [0, 1], "values": [1, 0]}, {"at": 1, "values": 2}, {"at": [], "values": []}, {(1, 2): 3},
         {"modules": {"fc": 0.5}}, {"modules": {}}, {"modules": [1]}, {"modules": {"x": {"modules": {}}}},
         {"last": "1/4"}, {"depth": [0, 1]}, {"depth": []}, {"depth": [0, 1], "modules": {"fc": 1}}, {"last": "x"},
         {f"k{i}": i for i in range(200)}, nested(60, of=lambda v: {"a": v})]
    )  # fmt: skip


PLAUSIBLE: tuple[tuple[Any, ...], ...] = (
    (0, 1, 2, 3, 5, 0.1, 0.5, 0.9, 1e-12, 1e-6, 1e6, 1e30, 1_000_000, "1/2", "1/3", "8/255"),
    (True, False),
    ("linf:1e12", "l1:1e-12", "l2:1", "l1:3"),
    (
        "rest",
        0.3,
        {"share": 0.5},
        {"at": [0, "1/2", 1], "values": [0, 1, 0]},
        {"at": [0, "1/3"], "values": [0, 0]},
        {"depth": [0, 1]},
        {"depth": [1, 0, 1], "share": 0.5},
        {"depth": [0, 1], "at": ["4/5", 1], "values": [0, 0.5]},
        {"modules": {"fc": 0.5, "*": 0.1}},
        {"modules": {"conv5": "rest"}},
        {"modules": {"bn*": {"share": 0.5}}},
    ),
    ("keep", "reset", "recalibrate", "mix", "boundary", "every_step", "never", "test", "last", "none", "fp16", "bf16"),
    (
        "constant",
        "cyclic",
        "cosine",
        "adam",
        "adamw",
        "sgd",
        "natural",
        "trades",
        "adversarial",
        "mart",
        "rst",
        "score",
    ),
    ("meta", "cpu", "resnet18", "wrn-10-1", "preact_resnet18", "small_cnn"),
    (["linf:0.1", "l1:3"], [], [0, 0.5, 1], [1, 1, 0], [0.9, 0.99]),
    (None, "fc", "*", "conv9", ["conv5", "bn5", "fc"], ["*.weight"], {"last": "1/4"}, {"last": 0}, ["bn1", "bn1"]),
    (0, "1/3", "1/2", 0.8, "9/10", 1, "0/1"),
)
"""Values that some field does expect, those of a kind together."""


FIELDS = {"gamma": 3, "trains": 8, "starts": 9, "ends": 9}
"""The kind of values that a field takes, where the one that it has does not show it."""


def _kind(value: Any) -> int:
    """Which of the kinds above a value is of."""
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return 0
    if isinstance(value, str) and ":" in value:
        return 2
    return 7 if isinstance(value, list) else -1


def swapped_tree(tree: Any, random: random.Random) -> Any:
    """A copy with one or two leaves replaced by others of their kind; much of it is still a recipe."""
    tree = copy.deepcopy(tree)
    for _ in range(random.choice([1, 2])):
        path = random.choice([path for path in paths(tree) if not isinstance(_at(tree, path), dict)])
        inside, key = _at(tree, path[:-1]), path[-1]
        kind = FIELDS.get(key, _kind(inside[key])) if isinstance(key, str) else _kind(inside[key])
        inside[key] = copy.deepcopy(random.choice(PLAUSIBLE[kind] if kind >= 0 else random.choice(PLAUSIBLE[3:7])))
    return tree


def paths(tree: Any, here: Path = ()) -> list[Path]:
    """Where every value of a tree is, the tree itself left out."""
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path for key, value in inside for path in ((*here, key), *paths(value, (*here, key)))]


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def broken_tree(tree: Any, random: random.Random, *, times: int = 0) -> Any:
    """A copy with one to three places changed."""
    tree = copy.deepcopy(tree)
    for _ in range(times or random.choice([1, 1, 1, 2, 3])):
        everywhere = paths(tree)
        if not everywhere:
            return nasty(random)
        path = random.choice(everywhere)
        inside, key = _at(tree, path[:-1]), path[-1]
        kind = random.randrange(12)
        if kind < 6:
            inside[key] = nasty(random)
        elif kind == 6:
            del inside[key]
        elif kind == 7 and isinstance(inside, dict):
            name = random.choice([f"{key}x", str(key)[1:], str(key).upper(), "name", "extends", "threat", "x" * 500])
            inside[name] = inside.pop(key)
        elif kind == 8:
            inside[key] = copy.deepcopy(_at(tree, random.choice(everywhere)))
        elif kind == 9 and isinstance(inside, dict):
            inside[random.choice(["x", "name", "task", "steps", "in", "", 1, None])] = nasty(random)
        elif kind == 10:
            inside[key] = random.choice(
                [[inside[key]], {"name": inside[key]}, {str(key): inside[key]}, str(inside[key])]
            )
        elif isinstance(inside[key], list):
            inside[key] = inside[key] * random.choice([0, 2, 30])
        elif isinstance(inside[key], int | float) and not isinstance(inside[key], bool):
            inside[key] = inside[key] * random.choice([-1, 0, 0.5, 3, 1e6, 1e20])
        else:
            inside[key] = nasty(random)
    return tree


SNIPPETS = (
    "!!int x", "!!float y", "!!bool z", "!!binary =", "!!python/none x", "!!timestamp 2020-99-99", "&a [*a]",
    "*nothing", "<<: 3", "<<: [1]", "\t", "\0", "\ufeff", "---\n", "...\n", "%YAML 9\n", "{", "[", "]", "}", '"',
    "'", "? ", ": ", "- ", "| \n", "> \n", "#", "[" * 3000, "{a: " * 3000, "a: " * 100, "- " * 3000, "9" * 5000,
    "\n" * 3000, "\x85", "\u2028", BOMB,
)  # fmt: skip


def broken_text(text: str, random: random.Random) -> bytes:
    """The text with letters, lines or bytes changed."""
    content = text.encode(errors="surrogatepass")
    for _ in range(random.choice([1, 1, 2, 4])):
        place = random.randrange(len(content) + 1)
        lines = content.splitlines(keepends=True) or [b""]
        kind = random.randrange(9)
        if kind == 0:
            content = content[:place]
        elif kind == 1:
            content = content[:place] + bytes([random.randrange(256)]) + content[place + 1 :]
        elif kind == 2:
            content = content[:place] + random.choice(SNIPPETS).encode() + content[place:]
        elif kind == 3:
            lines.insert(random.randrange(len(lines)), random.choice(lines))
            content = b"".join(lines)
        elif kind == 4:
            del lines[random.randrange(len(lines))]
            content = b"".join(lines)
        elif kind == 5:
            content = content[:place] + content[place + random.randrange(1, 40) :]
        elif kind == 6:
            content = content[:place] + content[place : place + 20] * random.choice([2, 500]) + content[place:]
        elif kind == 7:
            line = random.choice(lines).rstrip(b"\n")
            content = content.replace(line, line + b" " + random.choice(SNIPPETS).encode(), 1)
        else:
            old, new = (random.choice(content.split() or [b"x"]) for _ in range(2))
            content = content.replace(old, new, random.choice([1, -1]))
    return content[:300_000]
