"""What an evaluation says while it runs: what each stage left, and the time left for all of them."""

from pathlib import Path

import pytest
import torch
from flawed import digits_model

from generalist import Threat, load_suite
from generalist.attacks.view import Passes
from generalist.data import ArraySplit
from generalist.evaluation import Stage, Standing, Suite, evaluate_suite
from generalist.evaluation.standing import Board, passes_per_image

LINF, L2 = Threat.parse("linf:1/10"), Threat.parse("l2:2/5")
TWO = (Stage("short", "pgd", {"steps": 5, "restarts": 1}), Stage("long", "square", {"queries": 40, "restarts": 1}))
CASCADE = Suite("two", TWO, {"two": ("short", "long")})


def test_every_stage_tells_what_it_left(tmp_path: Path) -> None:
    model, x, y = digits_model(tmp_path)
    told: list[Standing] = []
    result = evaluate_suite(
        model, ArraySplit(x, y), CASCADE, threats=[LINF, L2], limit=40, batch_size=15, progress=told.append
    )
    ended = [standing for standing in told if standing.ended]
    places = [(standing.threat, standing.stage, standing.number, standing.stages) for standing in ended]
    assert places == [
        ("", "natural", 0, 4), ("linf:1/10", "short", 1, 4), ("linf:1/10", "long", 2, 4),
        ("l2:2/5", "short", 3, 4), ("l2:2/5", "long", 4, 4),
    ]  # fmt: skip
    after = result.record()["after_stages"]
    for standing in ended[1:]:
        assert standing.ended is not None
        assert standing.ended.robust == after[standing.threat][standing.stage]
        assert standing.ended.left == pytest.approx(standing.ended.robust * 40 / 100, abs=0.01)
    assert ended[-1].seconds_left == 0
    running = [standing for standing in told if standing.number and not standing.ended]
    assert {standing.number for standing in running} == {1, 2, 3, 4}
    assert all(0 <= standing.done <= standing.total for standing in running)
    assert running[-1].seconds_left is not None


def test_stages_that_stand_alone_are_told_alone(tmp_path: Path) -> None:
    model, x, y = digits_model(tmp_path)
    told: list[Standing] = []
    alone = Suite("alone", TWO, {"short": ("short",), "long": ("long",)}, cascade=False)
    result = evaluate_suite(model, ArraySplit(x, y), alone, threats=[LINF], limit=30, progress=told.append)
    left = {standing.stage: standing.ended for standing in told if standing.ended}
    for label in ("short", "long"):
        ended = left[label]
        assert ended is not None
        assert (ended.robust, ended.left) == (result.table()["linf:1/10"][label], None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def attacked(board: Board, clock: Clock, stage: Stage, threat: Threat, images: int, *, second: float) -> None:
    """A stage in one batch that nobody falls to: all passes of the attack, each of so many seconds."""
    pace, passes = board.begin(stage, threat, total=images, done=0), Passes()
    with pace.batch(images, passes):
        passes.forward = round(images * passes_per_image(stage, 10))
        clock.now += passes.forward * second


def test_the_time_left_counts_every_stage_to_come() -> None:
    told: list[Standing] = []
    clock = Clock()
    natural = torch.tensor([True] * 10 + [False] * 5)
    board = Board(CASCADE, [LINF, L2], natural, 10, told.append, clock)
    assert told[-1].seconds_left is None
    attacked(board, clock, TWO[0], LINF, 10, second=0.01)
    short, long = (passes_per_image(stage, 10) * 10 * 0.01 for stage in TWO)
    assert told[-1].seconds_left == pytest.approx(long + short + long / 2)
    three = natural & (torch.arange(15) < 3)
    board.end(TWO[0], LINF, three, seconds=clock.now)
    assert told[-1].seconds_left == pytest.approx(0.3 * long + short + long / 2)
    attacked(board, clock, TWO[1], LINF, 3, second=0.01)
    board.end(TWO[1], LINF, three, seconds=1.0)
    assert told[-1].seconds_left == pytest.approx(short + long / 2)
    attacked(board, clock, TWO[0], L2, 10, second=0.01)
    assert told[-1].seconds_left == pytest.approx(long)
    attacked(board, clock, TWO[1], L2, 10, second=0.01)
    assert told[-1].seconds_left == 0


def test_images_that_fall_early_make_the_stage_shorter() -> None:
    told: list[Standing] = []
    clock, passes = Clock(), Passes()
    board = Board(Suite("one", TWO[:1], {"one": ("short",)}), [LINF], torch.ones(20).bool(), 10, told.append, clock)
    pace = board.begin(TWO[0], LINF, total=20, done=0)
    with pace.batch(10, passes):
        passes.forward = 30
        clock.now += 3
    assert told[-1].seconds_left == pytest.approx(3)


def test_the_passes_of_an_attack_come_from_its_budget() -> None:
    standard = {stage.label: passes_per_image(stage, 10) for stage in load_suite("autoattack").stages}
    assert standard == {"APGD_ce": 201, "APGD_t": 1801, "FAB_t": 2701, "Square": 5001}
    (targeted,) = (stage for stage in load_suite("autoattack").stages if stage.label == "APGD_t")
    assert passes_per_image(targeted, 3) == 401
