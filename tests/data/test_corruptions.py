"""Corruptions and perturbation sequences: what an image becomes depends on the image and the seed alone."""

import pytest
import torch
from torch import Tensor

from generalist import UserError
from generalist.core.rng import ImageStreams
from generalist.data.corruptions import COMMON, EXTRA, LEVELS, corrupt, corruption_names
from generalist.data.corruptions.noise import shot_noise
from generalist.data.corruptions.sequences import COMMON_SEQUENCES, LENGTHS, perturbed
from generalist.data.corruptions.weather import watered

NAMES = [*COMMON, *EXTRA]
RANDOM = {
    "gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog",
    "elastic_transform", "speckle_noise", "spatter",
}  # fmt: skip

GROWING = {
    "gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise", "gaussian_blur", "motion_blur", "zoom_blur",
    "brightness", "contrast",
}  # fmt: skip
"""Of these each step of the severity is a step away from the image; of the others by what a network sees."""


def pictures(count: int, channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    """Smooth coloured blobs with an edge, uint8."""
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    phase = torch.rand(count, channels, 4, 1, 1, generator=torch.Generator().manual_seed(seed)) * 6
    waves = torch.sin(phase[:, :, 0] + 6 * x) + torch.sin(phase[:, :, 1] + 5 * y) + (x + phase[:, :, 2] / 6 > y + 0.5)
    return ((waves + 2) / 5 * 255).clamp(0, 255).to(torch.uint8)


def test_fifteen_and_four() -> None:
    assert (len(COMMON), len(EXTRA)) == (15, 4)
    assert all(len(row) == len(LEVELS) for row in [*COMMON.values(), *EXTRA.values()])
    assert corruption_names(3) == NAMES
    assert corruption_names(1) == [name for name in NAMES if name != "saturate"]
    assert len(COMMON_SEQUENCES) == 10


@pytest.mark.parametrize("name", NAMES)
def test_an_image_becomes_the_same_in_any_batch_and_order(name: str) -> None:
    x = pictures(6)
    together = corrupt(x, name, 4, seed=3)
    assert torch.equal(together, corrupt(x, name, 4, seed=3))
    assert torch.equal(together.flip(0), corrupt(x.flip(0), name, 4, seed=3))
    assert torch.equal(together[2:3], corrupt(x[2:3], name, 4, seed=3))
    assert torch.equal(together, corrupt(x.float() / 255, name, 4, seed=3))
    assert torch.equal(together, corrupt(x, name, 4, seed=4)) == (name not in RANDOM)


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (3, 8, 8), (1, 28, 28), (3, 32, 32), (3, 24, 40), (2, 16, 16), (3, 64, 64)]
)
def test_gray_and_colour_from_8_pixels_up(shape: tuple[int, int, int]) -> None:
    x = pictures(2, *shape)
    for name in NAMES:
        for severity in (1, 5):
            out = corrupt(x, name, severity)
            assert out.shape == (2, *shape), name
            assert out.dtype == torch.float32
            assert out.min() >= 0, name
            assert out.max() <= 1, name
            assert torch.equal(out, (out * 255).round() / 255), name
    for name, frames in LENGTHS.items():
        found = list(perturbed(x, name))
        assert len(found) == frames, name
        assert all(frame.shape == x.shape and frame.min() >= 0 and frame.max() <= 1 for frame in found), name


@pytest.mark.parametrize("size", [8, 28, 32])
def test_images_change_more_with_the_severity(size: int) -> None:
    x = pictures(40, 3, size, size)
    change = torch.zeros(len(LEVELS))
    for name in NAMES:
        of_name = torch.stack([(corrupt(x, name, level) - x / 255).square().mean().sqrt() for level in LEVELS])
        assert of_name[-1] > 0.005, name
        if name in GROWING:
            assert (of_name.diff() >= 0).all(), (name, of_name)
        change += of_name
    assert (change.diff() > 0).all()


def test_simple_ones_are_what_they_say() -> None:
    x = torch.tensor([[0, 100], [200, 255]], dtype=torch.uint8).repeat_interleave(4, 0).repeat_interleave(4, 1)
    gray = x[None, None]
    mean = gray.float().mean() / 255
    assert torch.allclose(corrupt(gray, "contrast", 5), mean + 0.15 * (gray / 255 - mean), atol=1 / 255)
    assert torch.allclose(corrupt(gray, "brightness", 2), (gray / 255 + 0.1).clamp(max=1), atol=1 / 255)
    assert torch.equal(corrupt(gray, "saturate", 5), gray / 255)
    colour = torch.tensor([200, 100, 100], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 8, 8)
    paler = corrupt(colour, "saturate", 1)[0, :, 0, 0] * 255  # value 200, saturation ½ → 0.15
    assert torch.allclose(paler, torch.tensor([200.0, 170, 170]), atol=1.01)
    black = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    assert torch.allclose(corrupt(black, "brightness", 5), torch.tensor(0.3), atol=1 / 255)


def test_shot_noise_is_poisson() -> None:
    x = torch.full((40, 1, 32, 32), 100 / 255)
    counts = 50 * shot_noise(x, 50, ImageStreams(0, ids=torch.arange(40)), 1.0)
    expected = 50 * 100 / 255
    assert torch.allclose(counts, counts.round(), atol=1e-4)
    assert counts.mean().item() == pytest.approx(expected, rel=0.01)
    assert counts.var().item() == pytest.approx(expected, rel=0.03)
    assert shot_noise(torch.zeros(1, 1, 8, 8), 50, ImageStreams(0, ids=torch.arange(1)), 1.0).max() == 0


def test_no_drops_leave_the_image() -> None:
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(watered(x, torch.zeros(2, 1, 32, 32), 0.5), x)


def test_frames_move_little_by_little() -> None:
    x = pictures(3)
    plain = x / 255
    for name in ("rotate", "tilt", "scale", "brightness", "shear"):
        frames = list(perturbed(x, name))
        middle = frames[15]
        assert (middle - plain).abs().max() <= 1.01 / 255, name
        far = (frames[0] - plain).abs().mean(), (frames[-1] - plain).abs().mean()
        near = (frames[14] - plain).abs().mean(), (frames[16] - plain).abs().mean()
        assert max(near) < min(far), name
    shifted = list(perturbed(x, "translate"))
    assert (shifted[7] - plain).abs().max() <= 1.01 / 255
    assert (shifted[10][..., 3:] - plain[..., :-3]).abs().max() <= 1.01 / 255  # three pixels to the right
    assert shifted[10][..., :3].max() == 0
    for name in ("gaussian_noise", "shot_noise", "speckle_noise"):
        frames = list(perturbed(x, name))
        assert torch.equal(frames[0], plain)
        assert not torch.equal(frames[1], frames[2])


@pytest.mark.parametrize("name", LENGTHS)
def test_a_sequence_is_the_same_in_any_batch_and_order(name: str) -> None:
    x = pictures(3, 1, 16, 16)
    together = torch.stack(list(perturbed(x, name, seed=5)))
    alone = torch.stack(list(perturbed(x[1:2], name, seed=5)))
    assert torch.equal(together[:, 1:2], alone)
    assert torch.equal(together.flip(1), torch.stack(list(perturbed(x.flip(0), name, seed=5))))


def test_mistakes_are_told() -> None:
    x = pictures(1)
    with pytest.raises(UserError, match="unknown corruption 'fogg'; did you mean 'fog'"):
        corrupt(x, "fogg", 1)
    with pytest.raises(UserError, match="severity must be 1 to 5, got 6"):
        corrupt(x, "fog", 6)
    with pytest.raises(UserError, match="at least 8 × 8 pixels, got"):
        corrupt(x[..., :7], "fog", 1)
    with pytest.raises(UserError, match="unknown perturbation 'rotat'; did you mean 'rotate'"):
        list(perturbed(x, "rotat"))
