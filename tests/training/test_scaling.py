"""The cost model of many machines, against small cases done by hand."""

from dataclasses import replace

import pytest

from generalist.training.scaling import EFFICIENCY, LATENCY, Job, Machines, epoch, epoch_mixed_every_step

JOB = Job(passes={"natural": 1, "linf": 11}, parameters=1000, flops=1e6, batch_size=100, steps=390)
ONE = Machines(ranks=1, flops=1e12, bits=1e9)


def test_one_rank_does_all_the_passes_and_sends_nothing():
    alone = epoch(JOB, ONE)
    assert alone.work == pytest.approx(390 * 12 * 100 * 2e6 / (EFFICIENCY * 1e12))
    assert alone.exchange == alone.sent == 0
    assert epoch_mixed_every_step(JOB, ONE) == alone


def test_two_ranks_wait_for_the_adversarial_one():
    two = epoch(JOB, replace(ONE, ranks=2))
    assert two.work == pytest.approx(epoch(JOB, ONE).work * 11 / 12)
    mixing, checkpoint, validation = 1 / 5 * 8000, 12000, 2 / 5 * 4000
    assert two.sent == pytest.approx(2 * mixing + checkpoint + validation)
    assert two.exchange == pytest.approx(8e-9 * (mixing + checkpoint + validation) + LATENCY * (1 / 5 + 1 + 2 / 5))


def test_mixing_at_every_step_sends_the_parameters_at_every_step():
    two = epoch_mixed_every_step(JOB, replace(ONE, ranks=2))
    assert two.sent == pytest.approx(390 * 2 * 4000 + 12000)
    assert two.sent > 100 * epoch(JOB, replace(ONE, ranks=2)).sent


def test_gradients_cross_where_a_batch_is_split():
    assert epoch(JOB, replace(ONE, ranks=3)).sent > 390 * 2 * 4000  # two ranks share the ℓ∞ learner


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
def test_a_faster_link_or_device_is_never_slower(ranks):
    machines = replace(ONE, ranks=ranks)
    assert epoch(JOB, replace(machines, bits=1e10)).seconds <= epoch(JOB, machines).seconds
    assert epoch(JOB, replace(machines, flops=1e13)).seconds < epoch(JOB, machines).seconds
    assert epoch(JOB, machines).seconds <= epoch_mixed_every_step(JOB, machines).seconds
