"""A pass in patches gives what a whole pass gives. In float64, where the least change of a pixel shows."""

import operator
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from generalist.fastpass import patches
from generalist.fastpass.folding import folded
from generalist.fastpass.locality import fill_around
from generalist.fastpass.patches import Patchable
from model_cases import disturb_, images, narrow


class Residual(nn.Module):
    """Strides that pass over pixels, a padded max-pooling, groups, dilation, two branches of different reach."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, (5, 3), padding=(2, 0))
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.wide = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4)
        self.narrow = nn.Conv2d(8, 8, 1)
        self.thin = nn.Conv2d(8, 8, 1, stride=2)
        self.smooth = nn.AvgPool2d(2, stride=1, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)
        self.register_buffer("shift", torch.full((8, 1, 1), 0.3))

    def forward(self, x):
        x = torch.tanh(self.pool(-torch.sigmoid(self.stem(2 * x - 1))) - self.shift)
        x = self.wide(x) + self.narrow(x)
        x = self.norm(self.smooth(self.thin(x).relu()))
        return self.head(x.mean((2, 3)))


class Noisy(nn.Module):
    """Traced, its noise would be the same for ever."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3)) + torch.randn(5)


class Overwriting(nn.Module):
    """What comes after the first convolution is changed in place, one way or another; the second reads it then."""

    def __init__(self, way):
        super().__init__()
        self.conv, self.same, self.relu = nn.Conv2d(3, 5, 3), nn.Identity(), nn.ReLU(inplace=True)
        self.after, self._way = nn.Conv2d(5, 5, 3, padding=1), way

    def forward(self, x):
        x = self.conv(x)
        y = self._way(self, x)
        return (self.after(x) + y).mean((2, 3))


SHOWN = {
    "a module under another name": lambda net, x: net.relu(net.same(x)),
    "a name given by keyword": lambda net, x: net.relu(net.same(input=x)),
    "a method": lambda net, x: x.relu_(),
    "a function": lambda net, x: torch.relu_(x),
    "an operator": lambda net, x: operator.imul(x, 2),
}
HIDDEN = {
    "a function under another name": lambda net, x: net.relu(F.dropout(x, 0.5, False)),
    "a view": lambda net, x: x.view(x.shape).relu_(),
}


MODELS = {
    "resnet18": lambda: narrow("resnet18", width=8),
    "imagenet_stem": lambda: narrow("resnet18", width=8, stem="imagenet"),
    "resnet50": lambda: narrow("resnet50", width=4),
    "preact_resnet18": lambda: narrow("preact_resnet18", width=8),
    "wrn-10-1": lambda: narrow("wrn-10-1"),
    "small_cnn": lambda: narrow("small_cnn", width=8),
    "residual": Residual,
}


@pytest.fixture(params=[0.3, 0.7, 1.0])
def always(request, monkeypatch):
    """Patches wherever they are possible, up to some share of a map."""
    monkeypatch.setattr(patches, "WORTHWHILE", (1.0, 0.0))
    monkeypatch.setattr(patches, "MOST_OF_A_MAP", request.param)


@cache
def built(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]().eval()
    disturb_(model)
    return folded(model.double())


def shadow(name: str) -> nn.Module:
    """Not to be changed: it is made once. What is drawn after it is always the same."""
    model = built(name)
    torch.manual_seed(0)
    return model


def changed(known: torch.Tensor, corners: torch.Tensor, side: int) -> torch.Tensor:
    changed = known.clone()
    for image, (row, column) in zip(changed, corners.tolist(), strict=True):
        image[:, row : row + side, column : column + side] = torch.rand(len(image), side, side, dtype=known.dtype)
    return changed


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12 * expected.abs().max().item())


def corners_of(height: int, width: int, side: int, count: int) -> torch.Tensor:
    """The four corners of the image and others."""
    down, across = height - side, width - side
    drawn = torch.stack([torch.randint(0, n + 1, (count - 4,)) for n in (down, across)], 1)
    return torch.cat([torch.tensor([[0, 0], [0, across], [down, 0], [down, across]]), drawn])


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("side", [1, 2, 5, 9])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_the_logits_are_those_of_a_whole_pass(name, side):
    model = shadow(name)
    known = images(12).double()[:, :, :, : 29 if name == "residual" else 32]
    around = Patchable.of(model, known).around(known, side)
    assert around is not None
    corners, rows = corners_of(*known.shape[2:], side, 24), torch.arange(24) % 12
    asked = changed(known[rows], corners, side)
    whole = model(asked)
    close(around(asked, rows, corners), whole)
    assert (whole - model(known)[rows]).abs().amax(1).median() > 1e-9  # a patch that is lost would show


class Rows(nn.Module):
    """Views its maps as one row an image, which only contiguous ones allow."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 16 * 16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.max_pool2d(self.conv(x.contiguous()).relu(), 2)
        return self.fc(x.view(x.size(0), -1))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@torch.no_grad()
def test_a_tail_is_handed_maps_in_the_layout_of_the_model(layout):
    model, known, side = Rows().double().eval(), images(20).double().contiguous(memory_format=layout), 3
    around = Patchable.of(model, known).around(known, side)
    assert around is not None
    corners, rows = corners_of(32, 32, side, 20), torch.arange(20)
    asked = changed(known, corners, side)
    close(around(asked, rows, corners), model(asked))


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("name", ["resnet18", "residual"])
@torch.no_grad()
def test_what_is_taken_is_known_from_then_on_and_what_is_not_kept_is_gone(name):
    model, known, side, rows = shadow(name), images(20).double(), 3, torch.arange(20)
    around = Patchable.of(model, known).around(known, side)
    for turn in range(4):
        corners = corners_of(32, 32, side, len(rows))
        asked = changed(known, corners, side)
        close(around(asked, rows, corners), model(asked))
        taken = torch.randperm(len(rows))[: [1, 3, 0, 6][turn]]
        around.accept_(taken)
        known = known.clone()
        known[taken] = asked[taken]
        stay = torch.rand(len(rows)) < 0.9
        around.keep_(stay)
        known, rows = known[stay], torch.arange(int(stay.sum()))


@given(
    size=st.tuples(st.integers(4, 11), st.integers(4, 11)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    side=st.integers(1, 4),
    data=st.data(),
)
@torch.no_grad()
def test_every_geometry_of_a_convolution(size, kernel, stride, padding, dilation, side, data):
    if any(n + 2 * p < d * (k - 1) + 1 for n, k, p, d in zip(size, kernel, padding, dilation, strict=True)):
        return
    conv = nn.Conv2d(1, 2, kernel, stride, padding, dilation, dtype=torch.float64)
    known = torch.rand(4, 1, *size, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches, "WORTHWHILE", (0.0, 0.0))
        patch.setattr(patches, "MOST_OF_A_MAP", 1.0)
        around = Patchable.of(conv.eval(), known).around(known, side)
    corner = st.tuples(*(st.integers(0, n - side) for n in size))
    corners = torch.tensor([data.draw(corner) for _ in range(4)])
    asked = changed(known, corners, side)
    close(around(asked, torch.arange(4), corners), conv(asked))


@torch.no_grad()
def test_a_max_pooling_and_a_padded_convolution_of_one_map_do_not_get_in_each_others_way(monkeypatch):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.conv, self.pool = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 3, padding=1), nn.MaxPool2d(3, 1, 1)

        def forward(self, x):
            x = self.first(x)
            return (self.conv(x) - self.pool(x)).mean((2, 3))

    monkeypatch.setattr(patches, "WORTHWHILE", (1.0, 0.0))
    model, known = Both().eval().double(), images(16).double()
    able = Patchable.of(model, known)
    fills = [fill_around(node, able._traced) for node in able._traced.graph.nodes]
    assert -torch.inf in fills
    corners = corners_of(32, 32, 2, 16)
    asked = changed(known, corners, 2)
    close(able.around(known, 2)(asked, torch.arange(16), corners), model(asked))


@torch.no_grad()
def test_only_where_it_saves_enough():
    known = images(16)
    able = Patchable.of(narrow("resnet18", width=16).eval(), known)
    assert able.around(known, 3) is not None
    assert able.around(known, 28) is None
    assert Patchable.of(narrow("small_cnn", width=4).eval(), known).around(known, 3) is None


def test_models_that_would_not_be_the_same_are_refused():
    x = images(16)
    assert Patchable.of(Noisy().eval(), x) is None
    training = Residual()
    assert Patchable.of(training, x) is None
    assert Patchable.of(training.eval(), x) is not None
    training.stem.register_forward_hook(lambda module, args, out: out + 1)
    assert Patchable.of(training, x) is None


def test_a_model_that_cannot_be_traced_is_refused():
    class Moody(nn.Module):
        def forward(self, x):
            return x.mean((2, 3)) if x.sum() > 0 else -x.mean((2, 3))

    assert Patchable.of(Moody().eval(), images(16)) is None


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("way", [*SHOWN, *HIDDEN])
@torch.no_grad()
def test_a_model_that_changes_in_place_what_others_read_is_refused(way):
    """By its graph where that shows it, else by the test that patches have to stand."""
    torch.manual_seed(0)
    model, known = Overwriting((SHOWN | HIDDEN)[way]).eval(), images(20)
    able = Patchable.of(model, known)
    assert (able is None) == (way in SHOWN)
    assert able is None or able.around(known, 3) is None
