"""MIM, CW and PGD's restarts: what their names say, and no weaker than the same attacks of others."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

from generalist import Threat, UserError, build_model
from generalist.attacks import criteria, frozen, misclassified, pgd
from generalist.attacks.cw import cw
from generalist.attacks.mim import mim
from generalist.core.rng import ImageStreams
from oracles import robust_accuracy, robust_digits

THREATS = [Threat.parse(text) for text in ("linf:1/5", "l2:3/4", "l1:5/2")]
EUCLIDEAN = THREATS[:2]


def streams(count):
    return ImageStreams(0, ids=torch.arange(count))


def foolbox_pgd(model, x, y, *, threat, steps, restarts=1, criterion=None):
    """foolbox's PGD from the starts that ours draws, so that what differs is not luck; on a criterion if given one."""
    foolbox, ep = pytest.importorskip("foolbox"), pytest.importorskip("eagerpy")
    kind = {"linf": foolbox.attacks.LinfPGD, "l2": foolbox.attacks.L2PGD}[threat.norm]
    source = streams(len(x))

    class Attack(kind):
        def get_random_start(self, x0, epsilon):
            return ep.astensor(threat.random_start(x0.raw, source))

        def get_loss_fn(self, model, labels):
            if criterion is None:
                return super().get_loss_fn(model, labels)
            return lambda inputs: ep.astensor(criterion(model(inputs).raw, labels.raw).sum())

    attack = Attack(rel_stepsize=0.25, steps=steps)
    attack = attack.repeat(restarts) if restarts > 1 else attack
    return attack(foolbox.PyTorchModel(model, bounds=(0, 1), device="cpu"), x, y, epsilons=threat.radius)[1]


@pytest.mark.parametrize("threat", EUCLIDEAN, ids=str)
def test_pgd_with_restarts_is_as_strong_as_foolbox(threat):
    model, x, y = robust_digits(threat.norm).first(512)
    options = {"threat": threat, "steps": 15, "restarts": 3}
    ours = robust_accuracy(model, pgd(model, x, y, **options, generator=streams(512)), y)
    once = robust_accuracy(model, pgd(model, x, y, **options | {"restarts": 1}, generator=streams(512)), y)
    assert ours < once
    assert ours <= robust_accuracy(model, foolbox_pgd(model, x, y, **options), y) + 0.5


@pytest.mark.parametrize("threat", EUCLIDEAN, ids=str)
def test_cw_is_as_strong_as_foolbox_on_the_same_margin(threat):
    model, x, y = robust_digits(threat.norm).first(512)

    def hinge(logits, y):
        own = logits[torch.arange(len(y)), y]
        others = (logits - 1e6 * F.one_hot(y, logits.shape[1])).amax(1)
        return -(own - others + 50).clamp_min(0)

    others = foolbox_pgd(model, x, y, threat=threat, steps=30, criterion=hinge)
    ours = cw(model, x, y, threat=threat, generator=streams(512))
    assert robust_accuracy(model, ours, y) <= robust_accuracy(model, others, y) + 0.5


@pytest.mark.parametrize("threat", EUCLIDEAN, ids=str)
def test_mim_is_as_strong_as_that_of_art(threat):
    """Both start at the image, so there is no luck in it."""
    evasion = pytest.importorskip("art.attacks.evasion")
    estimators = pytest.importorskip("art.estimators.classification")
    model, x, y = robust_digits(threat.norm).first(512)
    classifier = estimators.PyTorchClassifier(
        copy.deepcopy(model), loss=torch.nn.CrossEntropyLoss(), input_shape=(1, 8, 8), nb_classes=10, clip_values=(0, 1)
    )
    options = {"norm": {"linf": "inf", "l2": 2}[threat.norm], "eps": threat.radius, "eps_step": threat.radius / 4}
    attack = evasion.MomentumIterativeMethod(
        classifier, decay=1.0, max_iter=20, batch_size=512, verbose=False, **options
    )
    others = torch.from_numpy(attack.generate(x.numpy(), y=F.one_hot(y, 10).numpy()))
    ours = mim(model, x, y, threat=threat)
    assert robust_accuracy(model, ours, y) <= robust_accuracy(model, others, y) + 0.5
    if threat.norm == "linf":  # in ℓ2 theirs clips and projects in another order
        assert ((ours - others).flatten(1).abs().amax(1) < 1e-3).float().mean() > 0.8


@pytest.mark.parametrize("threat", EUCLIDEAN, ids=str)
def test_mim_equals_a_textbook_loop(threat):
    model, x, y = robust_digits(threat.norm).first(30)
    eps, x_adv, g = threat.radius, x.clone(), torch.zeros_like(x)
    with frozen(model):
        for _ in range(6):
            x_adv.requires_grad_()
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(x_adv), y, reduction="sum"), x_adv)
            g = 1.0 * g + gradient / gradient.abs().mean((1, 2, 3), keepdim=True)
            if threat.norm == "linf":
                x_adv = (x_adv.detach() + eps / 4 * g.sign()).clamp(min=x - eps, max=x + eps).clamp(0, 1)
            else:
                delta = x_adv.detach() + eps / 4 * g / g.flatten(1).norm(dim=1).view(-1, 1, 1, 1) - x
                x_adv = (x + delta * (eps / delta.flatten(1).norm(dim=1).clamp_min(eps)).view(-1, 1, 1, 1)).clamp(0, 1)
    ours = mim(model, x, y, threat=threat, steps=6)
    assert ((ours - x_adv).flatten(1).abs().amax(1) < 1e-4).float().mean() > 0.9  # a sign may turn on rounding


@pytest.mark.parametrize("threat", EUCLIDEAN, ids=str)
def test_mim_works_where_gradients_are_tiny(threat):
    """A sure model's gradients are far below 1e-12 and still say where to go."""
    model, x, y = robust_digits(threat.norm).first(200)
    faint = lambda logits, y: 1e-30 * criteria.cross_entropy(logits, y)  # noqa: E731
    plain, tiny = (
        robust_accuracy(model, mim(model, x, y, threat=threat, **kind), y) for kind in ({}, {"criterion": faint})
    )
    assert tiny == pytest.approx(plain, abs=2)


@pytest.mark.parametrize(
    "attack", [mim, cw, lambda *a, **k: pgd(*a, restarts=3, **k)], ids=["mim", "cw", "pgd-restarts"]
)
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_what_every_attack_promises(threat, attack):
    oracle = robust_digits(threat.norm).first(40)
    model, x, y = copy.deepcopy(oracle.model).train(), oracle.x, oracle.y
    state, before = copy.deepcopy(model.state_dict()), x.clone()
    x_adv = attack(model, x, y, threat=threat, steps=6)
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert torch.equal(x, before)
    assert (threat.size(x_adv - x) <= threat.radius * (1 + 1e-5)).all()
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert torch.equal(x_adv, attack(model, x, y, threat=threat, steps=6))
    assert misclassified(model, x_adv, y).sum() > misclassified(model, x, y).sum()
    whole = misclassified(model, x_adv, y)
    for size in (1, 7):
        parts = [attack(model, x[rows], y[rows], threat=threat, steps=6) for rows in torch.arange(14).split(size)]
        assert torch.equal(misclassified(model, torch.cat(parts), y[:14]), whole[:14])
    two = build_model("small_cnn", classes=2, channels=1, size=8, width=4)
    assert attack(two, x[:3], y[:3] % 2, threat=threat, steps=2).shape == (3, 1, 8, 8)


def test_more_restarts_never_help_the_model_and_the_first_is_the_only_one():
    model, x, y = robust_digits("linf").first(300)
    points = {r: pgd(model, x, y, threat=THREATS[0], steps=8, restarts=r) for r in (1, 2, 5)}
    fooled = {r: misclassified(model, point, y) for r, point in points.items()}
    assert (fooled[1] <= fooled[2]).all()
    assert (fooled[2] <= fooled[5]).all()
    assert fooled[5].sum() > fooled[1].sum()
    torch.testing.assert_close(points[2][fooled[1]], points[1][fooled[1]], atol=1e-4, rtol=0)
    right = ~fooled[5]
    with torch.no_grad():
        loss = {r: criteria.cross_entropy(model(point), y)[right] for r, point in points.items()}
    assert (loss[5] >= loss[2] - 1e-4).all()
    assert (loss[2] >= loss[1] - 1e-4).all()
    one, two = (pgd(model, x, y, threat=THREATS[0], steps=4, restarts=3, generator=streams(300)) for _ in range(2))
    assert torch.equal(one, two)


def test_restarts_are_spent_on_the_images_that_are_left():
    model, x, y = robust_digits("linf").first(100)
    asked = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pgd(model, x, y, threat=Threat.parse("linf:1/4"), steps=5, restarts=10, criterion=_noting(asked))
    assert asked[0] == 100
    assert sum(asked) < 0.5 * 100 * 10 * 6


def _noting(asked):
    def criterion(logits, y):
        asked.append(len(y))
        return criteria.cross_entropy(logits, y)

    return criterion


def test_mistakes_are_told():
    model, x, y = robust_digits("linf").first(4)
    with pytest.raises(UserError, match="without a random start"):
        pgd(model, x, y, threat=THREATS[0], random_start=False, restarts=2)
