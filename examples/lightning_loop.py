"""Generalist-D in Lightning's loop: the learners keep their optimizers, Lightning does the rest."""

from functools import partial

import lightning
import torch
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from generalist import Batch, Learner, Mix, MixPlan, attacks, build_model, load_dataset
from generalist.mixing import REST, Points
from generalist.objectives import make_objective

THREAT, digits = "linf:1/10", load_dataset("digits")
x, y = digits.train.images / 255, digits.train.labels
loader = DataLoader(TensorDataset(x, y, torch.arange(len(x))), batch_size=64, shuffle=True, drop_last=True)
new = partial(build_model, "small_cnn", classes=10, channels=1, size=8, width=8, seed=0)
tasks = {
    "linf": make_objective("adversarial", {"threat": THREAT, "steps": 5}),
    "natural": make_objective("natural", {}),
}
gammas = {"linf": Points((0, 1), (1.0, 0.5)), "natural": REST}  # ℓ∞ alone at first, half and half in the end
plan = MixPlan(gammas, epochs=6, steps_per_epoch=len(loader), decay_limit=0.98, start_epoch=2, every_epochs=2)


class GeneralistD(lightning.LightningModule):
    automatic_optimization = False

    def __init__(self) -> None:
        super().__init__()
        self.model, self.networks = new(), torch.nn.ModuleDict({name: new() for name in tasks})

    def on_fit_start(self) -> None:  # the networks are on their device by now
        sgd, fields = partial(SGD, lr=0.1, momentum=0.9), {"lr": 0.1, "schedule": lambda progress: 1.0}
        self.learners = {name: Learner(name, self.networks[name], tasks[name], sgd, **fields) for name in tasks}
        self.trees = {name: learner.mixed for name, learner in self.learners.items()}
        self.mix = Mix(self.trees["linf"], list(self.learners))

    def training_step(self, batch, index):
        step = self.current_epoch * len(loader) + index
        for name, learner in self.learners.items():
            terms = learner.step(Batch(*batch), progress=plan.progress(step), key=(name, step))
            self.log(f"loss/{name}", terms.total)
        self.mix.accumulate_(self.trees, weights=plan.weights(step), decay=plan.decay(step))
        for name in plan.receivers(step):
            self.learners[name].reset_(self.mix.state(self.trees), momentum=True, averages=True)

    def on_train_end(self) -> None:
        self.model.load_state_dict(self.mix.state(self.trees))

    def configure_optimizers(self) -> None:
        """The learners have them."""


quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
lightning.Trainer(max_epochs=plan.epochs, **quiet).fit(module := GeneralistD(), loader)
model, x_test, y_test = module.model.cpu().eval(), digits.test.images[:100] / 255, digits.test.labels[:100]
x_adv = attacks.pgd(model, x_test, y_test, threat=THREAT, steps=20)
for name, images in (("natural", x_test), (THREAT, x_adv)):
    print(f"{name}: {(model(images).argmax(1) == y_test).float().mean():.2f}")
