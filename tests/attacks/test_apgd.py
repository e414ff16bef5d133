"""APGD: as strong as its authors' own code, exact where the answer is known, the same for an image in any company."""

import copy
import importlib
import warnings
from fractions import Fraction
from functools import partial

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from generalist import Threat, UserError, build_model
from generalist.attacks import criteria, misclassified
from generalist.attacks.apgd import apgd, apgd_ce, apgd_dlr, apgd_t
from generalist.attacks.ascent import Ascent, checkpoints_of, sparse_sign
from generalist.core.rng import ImageStreams, image_ids
from oracles import natural_digits, robust_accuracy, robust_digits

LOSSES = ("ce", "dlr", "targeted")
THREATS = [Threat.parse(text) for text in ("linf:1/5", "l2:3/4", "l1:5/2")]
THEIR_NORM = {"linf": "Linf", "l2": "L2", "l1": "L1"}


def start(ball, x, seed=0):
    """On the surface of the ball; the same for an image whoever asks."""
    far = noise(x, seed)
    return ball.project(x + (far if ball.norm == "l1" else ball.radius * ball.steepest(far)), x)


def noise(x, seed=0):
    return ImageStreams(seed, ids=image_ids(x)).normal(*x.shape[1:])


def theirs(model, threat, *, loss, seed=0, **options):
    """The authors' implementation as AutoAttack's standard version configures it, from `start`."""
    base = pytest.importorskip("pyautoattack.autopgd_base")
    kind = base.APGDAttack_targeted if loss == "targeted" else base.APGDAttack

    class FromStart(kind):
        def attack_single_run(self, x, y, x_init=None):
            return super().attack_single_run(x, y, x_init=start(threat, x, seed) if x_init is None else x_init)

        def decr_eps_pgd(self, x, y, epss, iters):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(torch, "randn_like", partial(noise, seed=seed))
                return super().decr_eps_pgd(x, y, epss, iters)

    options |= {} if loss == "targeted" else {"loss": loss}
    options |= {"norm": THEIR_NORM[threat.norm], "eps": threat.radius, "device": "cpu"}
    return FromStart(model, use_largereps=threat.norm == "l1", **options)


@pytest.mark.filterwarnings("ignore:there are")  # points without a gradient, of which theirs warns
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_as_strong_as_the_authors_own(threat, loss, monkeypatch):
    """The same images, budget and starts; eight of them in ℓ1, where a start is worth two points (targeted: three,
    for ours is six points ahead there).

    Theirs compares the first loss with zero, not with that of the start. So budgets of a few steps, where each window
    is one step, begin with another step size in ℓ∞ and ℓ2: 20 steps do not.
    """
    few = loss == "targeted" and threat.norm == "l1"
    model, x, y = robust_digits(threat.norm).first(512 if few or loss != "targeted" else 256)
    steps = 8 if few else 20 if loss == "targeted" else 30
    seeds = range(3 if few else 8 if threat.norm == "l1" else 1)
    module, scores = importlib.import_module("generalist.attacks.apgd"), []
    for seed in seeds:
        monkeypatch.setattr(module, "_start", lambda ball, x, _, seed=seed: start(ball, x, seed))
        x_adv = apgd(model, x, y, threat=threat, loss=loss, steps=steps)
        with torch.random.fork_rng():
            others = theirs(model, threat, loss=loss, seed=seed, n_iter=steps).perturb(x, y)
        scores.append([robust_accuracy(model, attacked, y) for attacked in (x_adv, others)])
    ours, reference = torch.tensor(scores).mean(0).tolist()
    assert ours <= reference + 0.5
    assert ours < robust_accuracy(model, x, y) - 20  # the models are neither trivial nor beyond attack


@pytest.mark.parametrize("loss", ["ce", "targeted"])
@pytest.mark.parametrize("threat", [Threat.parse("linf:3/16"), Threat.parse("l2:3/4")], ids=str)
def test_takes_the_path_of_the_authors_own(threat, loss):
    """In float64. Theirs counts the first step after a return to the best point otherwise, so not all paths agree."""
    oracle = robust_digits(threat.norm).first(100)
    model, x, y = copy.deepcopy(oracle.model).double(), oracle.x.double(), oracle.y
    same, gained = [], []
    for seed in (0, 1):
        attack = theirs(model, threat, loss=loss, seed=seed, n_iter=100)
        target = attack.y_target = model(x).scatter(1, y[:, None], -torch.inf).argmax(1)
        attack.init_hyperparam(x)
        best, _, best_loss, _ = attack.attack_single_run(x, y)
        ascent = Ascent(x, y, target, start(threat, x, seed), torch.full(y.shape, 2 * threat.radius))
        towards = criteria.targeted_dlr if loss == "targeted" else lambda _: criteria.cross_entropy
        ascent.climb_(model, threat=threat, steps=100, towards=towards, survivors=None)
        same.append((ascent.best - best).flatten(1).abs().amax(1) < 1e-6)
        gained.append(ascent.best_loss - best_loss)
    assert torch.cat(same).float().mean() > 0.7
    assert torch.cat(gained).mean() > -0.01


def linear(classes, seed=0, size=4):
    """A linear model in float64 and images in the middle of the box, all classified right."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(size * size, classes, dtype=torch.float64))
    x = 0.4 + 0.2 * torch.rand(40, 1, size, size, dtype=torch.float64, generator=generator)
    with torch.no_grad():
        model[1].weight.copy_(torch.randn(classes, size * size, generator=generator))
        model[1].bias.copy_(-model[1].weight.sum(1) / 2)
        return model, x, model(x).argmax(1)


@pytest.mark.parametrize(("loss", "classes"), [("ce", 2), ("dlr", 2), ("targeted", 3), ("targeted", 6)])
@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.filterwarnings("ignore:.*DLR is undefined")
def test_finds_the_least_perturbation_of_a_linear_model(norm, loss, classes):
    """min_t (z_y − z_t)/‖w_y − w_t‖ in the dual norm while the box is far: those above eps fall, those below do not."""
    model, x, y = linear(classes)
    weight, logits = model[1].weight.detach(), model(x).detach()
    gaps = (weight[y][:, None] - weight[None]).norm(p={"linf": 1, "l2": 2, "l1": torch.inf}[norm], dim=2)
    least = (logits.gather(1, y[:, None]) - logits).div(gaps).scatter(1, y[:, None], torch.inf).amin(1)
    for eps in least[(least > 0.01) & (least < 0.3)].sort().values[::15] * 1.01:
        x_adv = apgd(model, x, y, threat=Threat(norm, Fraction(eps.item())), loss=loss)
        far = (least / eps - 1).abs() > 0.005
        assert far.sum() > 30
        assert torch.equal(misclassified(model, x_adv, y)[far], (least < eps)[far])


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_more_steps_restarts_or_radius_never_help_the_model(threat):
    model, x, y = robust_digits(threat.norm).first(160)

    def accuracy(ball=threat, **options):
        return robust_accuracy(model, apgd(model, x, y, threat=ball, **{"steps": 10} | options), y)

    by_restarts = [accuracy(restarts=count) for count in (1, 2, 4)]
    by_steps = [accuracy(steps=steps) for steps in (1, 5, 40)]
    by_radius = [accuracy(Threat(threat.norm, threat.eps * factor)) for factor in (Fraction(1, 2), 1, 3)]
    for values in (by_restarts, by_steps, by_radius):
        assert values == sorted(values, reverse=True)
        assert values[-1] < values[0]
    assert by_radius[-1] < 5


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_what_every_attack_promises(threat, loss):
    """In the ball and the box, the model as it was, the same again, one image as good as many."""
    oracle = robust_digits(threat.norm).first(24)
    model, x, y = copy.deepcopy(oracle.model).train(), oracle.x, oracle.y
    state, before = copy.deepcopy(model.state_dict()), x.clone()
    options = {"threat": threat, "loss": loss, "steps": 5, "targets": 2}
    x_adv = apgd(model, x, y, **options)
    assert model.training
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(state[key], value) for key, value in model.state_dict().items())
    assert torch.equal(x, before)
    assert (threat.size(x_adv - x) <= threat.radius * (1 + 1e-5)).all()
    assert x_adv.min() >= 0
    assert x_adv.max() <= 1
    assert x_adv.dtype == x.dtype
    assert torch.equal(x_adv, apgd(model, x, y, **options))
    again = [apgd(model, x, y, **options, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(*again)
    assert not torch.equal(again[0], x_adv)
    torch.testing.assert_close(apgd(model, x[:1], y[:1], **options), x_adv[:1], atol=1e-4, rtol=0)
    assert apgd(model, x[:0], y[:0], **options).shape == (0, 1, 8, 8)


@pytest.mark.parametrize(("threat", "loss"), list(zip(THREATS, ("targeted", "ce", "dlr"), strict=True)), ids=str)
def test_a_verdict_does_not_depend_on_the_company(threat, loss):
    """Batches of 1, 7 and 500, and another order; with streams by id and with those of the pixels."""
    model, x, y = robust_digits(threat.norm).first(500)
    options = {"threat": threat, "loss": loss, "steps": 6, "restarts": 2, "targets": 2}

    def verdicts(rows):
        generator = ImageStreams(5, ids=rows) if loss == "dlr" else None
        return misclassified(model, apgd(model, x[rows], y[rows], **options, generator=generator), y[rows])

    rows = torch.arange(500)
    whole = verdicts(rows)
    assert 50 < whole.sum() < 450
    assert torch.equal(torch.cat([verdicts(part) for part in rows[:70].split(7)]), whole[:70])
    assert torch.equal(torch.cat([verdicts(part) for part in rows[:8].split(1)]), whole[:8])
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    assert torch.equal(verdicts(order), whole[order])


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
def test_few_classes_raise_the_margin_and_say_so(norm):
    threat = Threat(norm, Fraction(1, 10))
    for classes in (2, 3):
        model = build_model("small_cnn", classes=classes, channels=1, size=8, width=4)
        x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        y = torch.arange(6) % classes
        with pytest.warns(UserWarning, match=f"targeted DLR is undefined for {classes} classes"):
            assert apgd_t(model, x, y, threat=threat, steps=4).shape == x.shape
        if classes == 2:
            with pytest.warns(UserWarning, match="DLR is undefined for 2 classes"):
                apgd_dlr(model, x, y, threat=threat, steps=4)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                apgd_dlr(model, x, y, threat=threat, steps=4)
                apgd_ce(model, x, y, threat=threat, steps=4)


class Counted(nn.Module):
    """Counts the rows it is asked about."""

    def __init__(self, model):
        super().__init__()
        self.model, self.rows = model, 0

    def forward(self, x):
        self.rows += len(x) if isinstance(x, torch.Tensor) else 0
        return self.model(x)


@pytest.mark.parametrize("text", ["linf:1/4", "l2:3/2", "l1:5"])
def test_a_fooled_image_stops_costing_anything(text):
    threat, (natural, x, y) = Threat.parse(text), natural_digits().first(200)
    for loss in ("ce", "targeted"):
        model = Counted(natural)
        model.register_forward_hook(lambda *_: None)  # no folding: the attack asks the very model that counts
        assert misclassified(natural, apgd(model, x, y, threat=threat, loss=loss), y).all()
        # in ℓ1 only the balls of 3 and 2 eps, 30 steps each, are paid for; all of it would be 100, or 900
        assert model.rows < (65 if threat.norm == "l1" else 20) * 200


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_for_training_every_image_takes_every_step_and_ends_where_the_loss_was_highest(threat):
    oracle = robust_digits(threat.norm).first(64)
    model = Counted(oracle.model)
    model.register_forward_hook(lambda *_: None)
    options = {"threat": threat, "steps": 10, "stop_when_wrong": False, "random_start": False, "wider_first": False}
    x_adv = apgd(model, oracle.x, oracle.y, **options)
    assert model.rows == 64 * (10 + 2)  # the steps, the start and a look at the clean image
    assert (threat.size(x_adv - oracle.x) <= threat.radius * (1 + 1e-5)).all()
    short = apgd(model, oracle.x, oracle.y, **options | {"steps": 1})
    with torch.no_grad():
        clean, one, ten = (criteria.cross_entropy(oracle.model(point), oracle.y) for point in (oracle.x, short, x_adv))
    assert (ten >= clean - 1e-4).all()
    assert ten.mean() > one.mean() > clean.mean()


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_for_training_the_device_is_never_waited_for(threat):
    """Fake tensors have no values: whatever asks for one, as a wait for the device does, fails."""
    with FakeTensorMode():
        model = nn.Sequential(nn.Flatten(), nn.Linear(16, 10))
        x, y = torch.rand(5, 1, 4, 4), torch.zeros(5, dtype=torch.long)
        x_adv = apgd(model, x, y, threat=threat, steps=5, stop_when_wrong=False, generator=ImageStreams(0, ids=y))
        assert x_adv.shape == x.shape


class Broken(nn.Module):
    """Right logits for ten classes, but a gradient that is not a number."""

    def forward(self, x):
        flat = x.flatten(1)[:, :10]
        return flat + (flat * 0).sqrt() * 0


@pytest.mark.parametrize("threat", THREATS, ids=str)
def test_a_gradient_that_is_no_number_makes_no_point_that_is_none(threat):
    x = robust_digits("linf").x[:8]
    assert apgd(Broken(), x, Broken()(x).argmax(1), threat=threat, steps=5).isfinite().all()


def test_checkpoints_and_sparse_steps():
    linf, _, l1 = THREATS
    assert list(checkpoints_of(linf, 100)) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert list(checkpoints_of(linf, 10)) == [2, *range(3, 11)]
    assert list(checkpoints_of(l1, 100)) == list(range(4, 101, 4))
    assert list(checkpoints_of(linf, 1)) == [1]
    gradient = torch.tensor([[3.0, -2.0, 1.0, 0.0], [3.0, -2.0, 1.0, 0.0]])
    expected = torch.tensor([[1.0, 0, 0, 0], [1 / 3, -1 / 3, 1 / 3, 0]])
    torch.testing.assert_close(sparse_sign(gradient, torch.tensor([0, 4])), expected)


def test_criteria_by_hand_and_as_the_authors_have_them():
    logits = torch.tensor([[4.0, 1.0, 3.0, -2.0, 0.0], [0.5, 4.0, 1.0, 3.0, -2.0]])
    y, target = torch.tensor([0, 3]), torch.tensor([1, 0])
    torch.testing.assert_close(criteria.margin(logits, y), torch.tensor([-1.0, 1.0]))
    torch.testing.assert_close(criteria.dlr(logits, y), torch.tensor([-1 / 3, 1 / 3]))
    torch.testing.assert_close(criteria.targeted_margin(target)(logits, y), torch.tensor([-3.0, -2.5]))
    torch.testing.assert_close(criteria.targeted_dlr(target)(logits, y), torch.tensor([-3 / 3.5, -2.5 / 3.25]))
    torch.testing.assert_close(criteria.cw()(logits, y), torch.tensor([-51.0, -49.0]))
    torch.testing.assert_close(criteria.cw(0.5)(logits, y), torch.tensor([-1.5, 0.0]))
    p = logits.flip(1).softmax(1)
    expected = (p * (p.log() - logits.log_softmax(1))).sum(1)
    torch.testing.assert_close(criteria.kl(p)(logits, y), expected)
    with pytest.raises(UserError, match="made for 2 images"):
        criteria.kl(p)(logits[:1], y[:1])
    with pytest.raises(UserError, match="made for 2 images"):
        criteria.targeted_dlr(target)(logits[:1], y[:1])
    base = pytest.importorskip("pyautoattack.autopgd_base")
    many, labels = torch.randn(50, 10, generator=torch.Generator().manual_seed(0)), torch.arange(50) % 10
    attack = base.APGDAttack_targeted(None, eps=0.1)
    attack.y_target = (labels + 3) % 10
    torch.testing.assert_close(criteria.dlr(many, labels), attack.dlr_loss(many, labels))
    towards = criteria.targeted_dlr(attack.y_target)
    torch.testing.assert_close(towards(many, labels), attack.dlr_loss_targeted(many, labels))


def test_mistakes_are_told():
    model, x, y = robust_digits("linf").first(2)
    with pytest.raises(UserError, match="did you mean 'dlr'"):
        apgd(model, x, y, threat=THREATS[0], loss="drl")
    with pytest.raises(UserError, match="at least 1"):
        apgd(model, x, y, threat=THREATS[0], steps=0)


def test_the_named_ones_are_apgd_with_that_loss():
    model, x, y = robust_digits("linf").first(40)
    for named, loss in ((apgd_ce, "ce"), (apgd_dlr, "dlr"), (apgd_t, "targeted")):
        streams = [ImageStreams(0, ids=image_ids(x)) for _ in range(2)]
        short = {"threat": THREATS[0], "steps": 5}
        ours = named(model, x, y, generator=streams[0], **short)
        assert torch.equal(ours, apgd(model, x, y, loss=loss, generator=streams[1], **short))
