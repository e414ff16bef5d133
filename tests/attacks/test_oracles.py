"""The cache of trained models: what they were trained from names their file."""

import copy

import torch

from generalist import Threat, build_model
from oracles import _key, robust_digits


def test_another_start_image_label_threat_or_network_is_another_file(monkeypatch):
    trained, x, y = robust_digits("linf").first(20)
    threat = Threat.parse("linf:0.15")
    started = copy.deepcopy(trained)
    with torch.no_grad():
        next(started.parameters()).mul_(2)
    x_other, y_other = x.clone(), y.clone()
    x_other[0, 0, 0, 0] += 0.5
    y_other[0] += 1
    wider = build_model("small_cnn", classes=10, channels=1, size=8, width=4)
    key = _key(trained, x, y, threat)
    assert key == _key(copy.deepcopy(trained), x.clone(), y.clone(), Threat.parse("linf:3/20"))
    others = [
        _key(started, x, y, threat),
        _key(wider, x, y, threat),
        _key(trained, x_other, y, threat),
        _key(trained, x, y_other, threat),
        _key(trained, x, y, Threat.parse("linf:0.1")),
        _key(trained, x, y, Threat.parse("l2:0.15")),
        _key(trained, x, y, None),
    ]
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "SSE41")
    others.append(_key(trained, x, y, threat))
    assert len({key, *others}) == 9
