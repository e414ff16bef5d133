import pytest
import torch

from generalist.core.rng import ImageStreams, derive, generator, normal_like, uniform_like


def test_streams_differ_by_every_part_of_their_name():
    keys = [("a", 1), ("a1",), ("a", "1"), (1, "a"), ("a", 1, 0)]
    assert len({derive(*key) for key in keys}) == len(keys)
    draws = [torch.rand(4, generator=generator(*key)).tolist() for key in keys]
    assert len({tuple(draw) for draw in draws}) == len(keys)


def test_an_image_draws_the_same_alone_and_in_any_company():
    everyone = ImageStreams("noise", 3, ids=torch.arange(10))
    first, second = everyone.uniform(2, 3), everyone.normal(5)
    some = ImageStreams("noise", 3, ids=torch.tensor([7, 2]))
    assert torch.equal(some.uniform(2, 3), first[[7, 2]])
    assert torch.equal(some.normal(5), second[[7, 2]])


def test_a_subset_goes_on_where_the_whole_was():
    whole, other = (ImageStreams("noise", ids=torch.arange(6)) for _ in range(2))
    whole.uniform(3)
    other.uniform(3)
    keep = torch.tensor([4, 0])
    assert torch.equal(whole[keep].uniform(3), other.uniform(3)[keep])


def test_draws_images_and_names_are_independent():
    streams = ImageStreams("noise", ids=torch.arange(200))
    a, b = streams.uniform(500), streams.uniform(500)
    c = ImageStreams("other", ids=torch.arange(200)).uniform(500)
    for other in (b, c, a.roll(1, 0), a.roll(1, 1)):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), other.flatten()]))[0, 1].item()) < 0.01


def test_uniform_and_normal_have_their_moments():
    streams = ImageStreams("moments", ids=torch.arange(1000))
    u, n = streams.uniform(300).double(), streams.normal(300).double()
    assert u.min() >= 0
    assert u.max() < 1
    assert u.mean().item() == pytest.approx(0.5, abs=2e-3)
    assert u.var().item() == pytest.approx(1 / 12, abs=1e-3)
    assert torch.histc(u.float(), 20).div(u.numel()).sub(0.05).abs().max() < 1e-3
    assert n.mean().item() == pytest.approx(0, abs=5e-3)
    assert n.var().item() == pytest.approx(1, abs=1e-2)
    assert (n**4).mean().item() == pytest.approx(3, abs=0.05)


@pytest.mark.parametrize("draw", [uniform_like, normal_like])
def test_either_source_gives_the_shape_and_type_asked_for(draw):
    x = torch.zeros(3, 1, 2, 2, dtype=torch.float64)
    for source in (ImageStreams(ids=torch.arange(3)), generator("x")):
        drawn = draw(x, source)
        assert drawn.shape == x.shape
        assert drawn.dtype == x.dtype


def test_the_global_generator_is_never_touched():
    before = torch.random.get_rng_state()
    ImageStreams(0, ids=torch.arange(3)).normal(4)
    normal_like(torch.zeros(3, 2), generator(1))
    assert torch.equal(before, torch.random.get_rng_state())
