"""What objectives and BatchNorm exchange within a step: uneven parts of a batch give the result of the whole batch.

The ranks are threads. (Processes: tests/distributed/test_ranks.py.) Tracing is not safe in threads, so objectives,
which attack, are called before the threads start.
"""

import copy

import pytest
import torch
from thread_team import ThreadTeam, on_each
from torch import nn

from generalist import LossTerms
from generalist.core.types import step_context
from generalist.distributed.ranks import ALONE
from generalist.distributed.shared_batchnorm import SharedBatchNorm, statistics_over
from generalist.objectives import make_objective, perturbed_weights

COUNT = 12
WHOLE, PARTS = slice(0, COUNT), (slice(0, 7), slice(7, COUNT))
LINF = {"threat": "linf:1/10"}


def images():
    return torch.rand(COUNT, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(COUNT) % 3


def network(*layers):
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        model[-1].weight.copy_(torch.rand(3, 16, generator=torch.Generator().manual_seed(1)))
        model[-1].bias.zero_()
    return model


def context_of(rows, team=None):
    whole = step_context(
        "test", ids=torch.arange(COUNT), progress=0.9, team=team, share=(rows.stop - rows.start) / COUNT
    )
    return whole[rows]


def prepared(rows, team, name, options):
    """The objective, its context and its loss on these rows; a model and an objective of its own for each rank."""
    (x, y), model, objective = images(), network(), make_objective(name, options)
    objective.attach_(model)
    context = context_of(rows, team)
    return model, objective, context, objective(model, x[rows], y[rows], context=context)


def alone_and_as_a_team(finish, *case):
    """finish(model, objective, context, loss) for the whole batch, and on each of two ranks that share it."""
    team = ThreadTeam(len(PARTS))
    ranks = [prepared(rows, team, *case) for rows in PARTS]
    return finish(*prepared(WHOLE, None, *case)), on_each(team, lambda index: finish(*ranks[index]))


def test_a_mean_over_the_batch_counts_every_image_once():
    values = torch.arange(float(COUNT))
    team = ThreadTeam(len(PARTS))
    found = on_each(team, lambda i: context_of(PARTS[i], team).batch_mean([values[PARTS[i]].mean()])[0])
    assert [value.item() for value in found] == pytest.approx([values.mean().item()] * 2)


@pytest.mark.parametrize("team", [None, ALONE])
def test_a_rank_alone_exchanges_nothing(team):
    value = torch.rand(3)
    (found,) = context_of(WHOLE, team).batch_mean([value])
    assert found is value


def test_perturbed_weights_climb_the_loss_of_the_whole_batch():
    def finish(model, objective, context, loss):
        with perturbed_weights(model, loss, 0.1, context=context):
            return [p.detach().clone() for p in model.parameters()]

    alone, ranks = alone_and_as_a_team(finish, "adversarial", LINF)
    for found in ranks:
        torch.testing.assert_close(found, alone)


def test_agr_reconciles_the_gradients_of_the_whole_batch():
    def finish(model, objective, context, loss):
        loss().total.backward()
        return [p.grad for p in model.parameters()]

    alone, ranks = alone_and_as_a_team(finish, "agr", LINF)
    for found in ranks:
        torch.testing.assert_close(found, alone)


def test_e_at_counts_the_errors_of_the_whole_batch():
    def finish(model, objective, context, loss):
        loss()
        objective.step_ended_(usable=True, context=context)
        return objective.errors

    alone, ranks = alone_and_as_a_team(finish, "e-at", {"threats": ["linf:1/10", "l1:1/2"], "memory": 0.5})
    assert 0.5 < alone.min() < 1
    for found in ranks:
        torch.testing.assert_close(found, alone)


def test_fast_watches_the_accuracy_of_the_whole_batch():
    def finish(model, objective, context, loss):
        objective.step_ended_(usable=True, context=context)
        return objective.best

    alone, ranks = alone_and_as_a_team(finish, "fast", {"threat": "linf:1/100", "watch_every": 1})
    assert 0 < alone < 1
    for found in ranks:
        torch.testing.assert_close(found, alone)


def shared_network():
    return network(SharedBatchNorm(1))


def test_shared_batchnorm_normalises_by_the_whole_batch():
    x, y = images()

    def gradients(rows, team, share):
        model = shared_network()
        with statistics_over(team, model):
            loss = LossTerms(nn.functional.cross_entropy(model(x[rows]), y[rows]) * share)
        loss.total.backward()
        return [p.grad for p in model.parameters()], list(model.buffers())

    (alone, statistics), team = gradients(WHOLE, None, 1.0), ThreadTeam(len(PARTS))
    ranks = on_each(team, lambda i: gradients(PARTS[i], team, context_of(PARTS[i]).share))
    torch.testing.assert_close([a + b for a, b in zip(*(found for found, _ in ranks), strict=True)], alone)
    for _, found in ranks:
        torch.testing.assert_close(found, statistics)


def test_shared_batchnorm_in_half_precision_rounds_as_the_plain_one_does():
    """Statistics are float32 in both; an answer differs by a rounding of bf16 at the most."""
    x = torch.randn(COUNT, 3, 4, 4, generator=torch.Generator().manual_seed(2)).bfloat16()
    alone = nn.BatchNorm2d(3)
    expected = alone(x).float()
    norms, team = [SharedBatchNorm(3) for _ in PARTS], ThreadTeam(len(PARTS))

    def forward(index):
        with statistics_over(team, norms[index]):
            return norms[index](x[PARTS[index]]).float()

    found = torch.cat(on_each(team, forward))
    assert (found - expected).abs().max() <= 2**-7 * expected.abs().max()
    for norm in norms:
        torch.testing.assert_close(norm.running_mean, alone.running_mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(norm.running_var, alone.running_var, rtol=1e-4, atol=1e-5)


def test_rmc_measures_its_statistics_on_the_whole_batch():
    x, _ = images()
    ends = {name: shared_network() for name in ("first", "second")}

    def made():
        objective = make_objective("rmc", {"threats": ["linf:1/10"]}, networks=copy.deepcopy(ends))
        objective.attach_(shared_network())
        return objective

    def measured(objective, rows, team):
        objective._measure_(x[rows], context_of(rows, team))
        return objective._probe.network[0].running_mean

    team, ranks = ThreadTeam(len(PARTS)), [made() for _ in PARTS]
    for found in on_each(team, lambda i: measured(ranks[i], PARTS[i], team)):
        torch.testing.assert_close(found, measured(made(), WHOLE, None))
