"""A network and images of one's own, trained against ℓ∞ and ℓ2, attacked and dialled."""

import torch
from torch import nn

import generalist

images, labels = torch.rand(400, 1, 8, 8), torch.randint(3, (400,))
images[torch.arange(400), 0, 2 * labels + 1] += 0.5  # the class is the row that is bright
train, test = (images[:300].clamp(0, 1), labels[:300]), (images[300:].clamp(0, 1), labels[300:])
network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 3))

run = generalist.fit(network, train, test=test, threats=("linf:1/20", "l2:1/4"), epochs=10, batch_size=50, out="mine")
print(generalist.evaluate(run))
print(generalist.dial(run, points=6))
