"""Generalist-D in a loop of one's own: two learners, their running mix, and a hand-back every two epochs."""

from functools import partial

import torch
from torch.optim import SGD

from generalist import Batch, Learner, Mix, MixPlan, attacks, build_model, load_dataset
from generalist.mixing import REST, Points
from generalist.objectives import make_objective

EPOCHS, SIZE, THREAT = 6, 64, "linf:1/10"
digits = load_dataset("digits")
x, y = digits.train.images / 255, digits.train.labels
new = partial(build_model, "small_cnn", classes=10, channels=1, size=8, width=8, seed=0)
tasks = {
    "linf": make_objective("adversarial", {"threat": THREAT, "steps": 5}),
    "natural": make_objective("natural", {}),
}
sgd, constant = partial(SGD, lr=0.1, momentum=0.9), lambda progress: 1.0
learners = {name: Learner(name, new(), task, sgd, lr=0.1, schedule=constant) for name, task in tasks.items()}
gammas = {"linf": Points((0, 1), (1.0, 0.5)), "natural": REST}  # ℓ∞ alone at first, half and half in the end
plan = MixPlan(gammas, epochs=EPOCHS, steps_per_epoch=len(x) // SIZE, decay_limit=0.98, start_epoch=2, every_epochs=2)
trees = {name: learner.mixed for name, learner in learners.items()}
mix = Mix(trees["linf"], list(learners))

for step in range(plan.steps):
    ids = torch.randperm(len(x))[:SIZE]
    for name, learner in learners.items():
        learner.step(Batch(x[ids], y[ids], ids), progress=plan.progress(step), key=(name, step))
    mix.accumulate_(trees, weights=plan.weights(step), decay=plan.decay(step))
    for name in plan.receivers(step):
        learners[name].reset_(mix.state(trees), momentum=True, averages=True)

model = new()
model.load_state_dict(mix.state(trees))
x_test, y_test = digits.test.images[:100] / 255, digits.test.labels[:100]
x_adv = attacks.pgd(model.eval(), x_test, y_test, threat=THREAT, steps=20)
for name, images in (("natural", x_test), (THREAT, x_adv)):
    print(f"{name}: {(model(images).argmax(1) == y_test).float().mean():.2f}")
