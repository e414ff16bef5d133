import json

import pytest
import safetensors.torch
import torch
from torch import nn

from generalist.core.errors import UserError
from generalist.core.files import SEAL, sealed
from generalist.models import load_model, load_weights, read_extra, save_model
from model_cases import NAMES, disturb_, images, narrow


def same(a: nn.Module, b: nn.Module) -> bool:
    left, right = a.state_dict(), b.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


def told(caught: pytest.ExceptionInfo[UserError], *parts: str) -> None:
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_is_exact(name, tmp_path):
    model = narrow(name, seed=3, mean=[0.1, 0.2, 0.3], std=[0.3, 0.2, 0.1])
    disturb_(model)
    save_model(model, tmp_path / "deep" / "model")
    loaded = load_model(tmp_path / "deep" / "model")
    assert same(model, loaded)
    assert loaded.spec == model.spec
    assert not loaded.training
    assert model.training
    assert loaded.network.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(loaded(images()), model.eval()(images()))


@pytest.mark.parametrize("suffix", ["", ".safetensors", ".json"])
def test_any_of_the_names_will_do(tmp_path, suffix):
    model = narrow("small_cnn")
    weights = save_model(model, tmp_path / f"epoch.10{suffix}", extra={"epoch": 10})
    assert weights == tmp_path / "epoch.10.safetensors"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch.10.json", "epoch.10.safetensors"]
    assert same(load_model(tmp_path / f"epoch.10{suffix}"), model)
    assert read_extra(tmp_path / "epoch.10") == {"epoch": 10}


def test_float64_comes_back_as_float64(tmp_path):
    model = narrow("small_cnn").double()
    disturb_(model)
    save_model(model, tmp_path / "m")
    assert same(load_model(tmp_path / "m"), model)


def test_saving_leaves_the_global_generator_alone(tmp_path):
    before = torch.get_rng_state()
    save_model(narrow("small_cnn"), tmp_path / "m")
    load_model(tmp_path / "m")
    assert torch.equal(torch.get_rng_state(), before)


def test_only_what_was_built_here_is_saved(tmp_path):
    with pytest.raises(UserError) as caught:
        save_model(nn.Linear(2, 2), tmp_path / "m")
    told(caught, "Linear", "build_model")


def test_what_is_not_json_is_refused_before_writing(tmp_path):
    with pytest.raises(TypeError):
        save_model(narrow("small_cnn"), tmp_path / "m", extra={"x": object()})
    assert not list(tmp_path.iterdir())


def test_damage_is_told(tmp_path):
    weights = save_model(narrow("small_cnn"), tmp_path / "m")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(UserError) as caught:
        load_model(weights)
    told(caught, "m.safetensors", "sha256")


@pytest.mark.parametrize("missing", ["m.safetensors", "m.json"])
def test_a_missing_file_is_told(tmp_path, missing):
    save_model(narrow("small_cnn"), tmp_path / "m")
    (tmp_path / missing).unlink()
    with pytest.raises(UserError) as caught:
        load_model(tmp_path / "m")
    told(caught, missing, "does not exist")


@pytest.mark.parametrize(
    ("card", "part"), [("{", "not readable JSON"), ("[]", "not a mapping"), ('{"spec": 1}', "describe")]
)
def test_a_bad_card_is_told(tmp_path, card, part):
    save_model(narrow("small_cnn"), tmp_path / "m")
    (tmp_path / "m.json").write_text(card)
    with pytest.raises(UserError) as caught:
        load_model(tmp_path / "m")
    told(caught, "m.json", part)


def resealed(card: dict) -> dict:
    return sealed({key: value for key, value in card.items() if key != SEAL})


@pytest.mark.parametrize(
    "change",
    [
        ('"mean": null', '"mean": [0.1]'),
        ('"score": 71.5', '"score": 171.5'),
        ('"format_version": 2', '"format_version": 1'),
        ('"digest": "', '"digest": "0'),
        ('"digest"', '"dygest"'),
    ],
)
def test_an_edited_card_is_refused(tmp_path, change):
    save_model(narrow("small_cnn"), tmp_path / "m", extra={"selection": {"score": 71.5}})
    card = (tmp_path / "m.json").read_text()
    assert change[0] in card
    (tmp_path / "m.json").write_text(card.replace(*change))
    for read in (load_model, read_extra):
        with pytest.raises(UserError, match=r"m.json was changed since the model was saved"):
            read(tmp_path / "m")


def test_a_card_of_an_older_version_is_read_with_a_warning(tmp_path):
    save_model(narrow("small_cnn"), tmp_path / "m")
    card = json.loads((tmp_path / "m.json").read_text())
    old = {key: value for key, value in card.items() if key != SEAL} | {"format_version": 1}
    (tmp_path / "m.json").write_text(json.dumps(old))
    with pytest.warns(UserWarning, match="older version"):
        load_model(tmp_path / "m")


def test_weights_with_a_card_are_checked_against_it_wherever_they_are_loaded(tmp_path):
    model = narrow("small_cnn")
    save_model(model, tmp_path / "m")
    content = bytearray((tmp_path / "m.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "m.safetensors").write_bytes(content)
    for read in (lambda: load_model(tmp_path / "m"), lambda: load_weights(model, tmp_path / "m.safetensors")):
        with pytest.raises(UserError, match="its sha256 differs"):
            read()


def test_another_format_is_told(tmp_path):
    save_model(narrow("small_cnn"), tmp_path / "m")
    card = json.loads((tmp_path / "m.json").read_text())
    (tmp_path / "m.json").write_text(json.dumps(resealed({**card, "format_version": 99})))
    with pytest.raises(UserError, match="format 99"):
        load_model(tmp_path / "m")


def test_a_spec_that_does_not_fit_is_told(tmp_path):
    save_model(narrow("small_cnn"), tmp_path / "m")
    card = json.loads((tmp_path / "m.json").read_text())
    for change, parts in [({"width": 8}, ("shape", "conv1.weight")), ({"name": "resnet18"}, ("has no", "layer1"))]:
        spec = {**card["spec"], **change, "options": {}}
        (tmp_path / "m.json").write_text(json.dumps(resealed({**card, "spec": spec})))
        with pytest.raises(UserError) as caught:
            load_model(tmp_path / "m")
        told(caught, "m.safetensors", *parts)


def dress(state: dict, style: str) -> object:
    """A state_dict as the checkpoints of others have it."""
    bare = {name.removeprefix("network."): value for name, value in state.items()}
    return {
        "ours": state,
        "bare": bare,
        "parallel": {f"module.{name}": value for name, value in bare.items()},
        "nested": {"epoch": 3, "state_dict": {f"module.{name}": value for name, value in bare.items()}},
        "deep": {"model": {"model_state_dict": bare}},
        "net": {"net": state, "acc": 0.5},
        "old": {name: value for name, value in bare.items() if not name.endswith("num_batches_tracked")},
    }[style]


@pytest.mark.parametrize("style", ["ours", "bare", "parallel", "nested", "deep", "net", "old"])
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_foreign_checkpoints_load(tmp_path, style, suffix):
    source, model = narrow("resnet18", seed=1), narrow("resnet18")
    torch.save(dress(source.state_dict(), style), tmp_path / f"w{suffix}")
    load_weights(model, tmp_path / f"w{suffix}")
    assert same(source, model)
    assert model.network.conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_safetensors_and_bare_networks_load(tmp_path):
    source = narrow("resnet18", seed=1)
    state = {name: value.contiguous() for name, value in source.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / "w.safetensors")
    whole, bare = narrow("resnet18"), narrow("resnet18").network
    load_weights(whole, tmp_path / "w.safetensors")
    load_weights(bare, tmp_path / "w.safetensors")
    assert same(whole, source)
    assert same(bare, source.network)


class Payload:
    """What a pickle could run on being read."""


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("w.pt", lambda state: {**state, "network.fc2.weight": state["network.fc.weight"]}, ("fc2", "nearest")),
        ("w.pt", lambda state: {k: v for k, v in state.items() if k != "network.fc.bias"}, ("has no", "fc.bias")),
        ("w.pt", lambda state: {**state, "network.fc.bias": torch.zeros(9)}, ("fc.bias", "[9]", "[5]")),
        ("w.pt", lambda state: {"epoch": 3}, ("no state_dict",)),
        ("w.pt", lambda state: [1, 2], ("no state_dict",)),
        ("w.pt", lambda state: {"state_dict": state, "model": Payload()}, ("refused",)),
        ("w.txt", lambda state: state, (".safetensors, .pt, .pth, .ckpt",)),
    ],
)
def test_weights_that_do_not_fit_are_told_and_not_loaded(tmp_path, name, content, parts):
    model, untouched = narrow("small_cnn"), narrow("small_cnn")
    torch.save(content(narrow("small_cnn", seed=1).state_dict()), tmp_path / name)
    with pytest.raises(UserError) as caught:
        load_weights(model, tmp_path / name)
    told(caught, name, *parts)
    assert same(model, untouched)


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
def test_garbage_is_told(tmp_path, name):
    with pytest.raises(UserError, match="does not exist"):
        load_weights(narrow("small_cnn"), tmp_path / name)
    (tmp_path / name).write_bytes(b"not a checkpoint")
    with pytest.raises(UserError, match=name):
        load_weights(narrow("small_cnn"), tmp_path / name)
