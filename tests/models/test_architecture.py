"""Our own networks are built without timm to be compared with; timm's registry would build, and refuse, the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch

from hf_px.core.errors import TicketError
from hf_px.models import architecture
from hf_px.models.networks import ARCHITECTURES, OLD_NAMES

OWN = sorted(name for name, builder in ARCHITECTURES.items() if not builder.uses_timm)


def record(name: str, classes: int = 7, channels: int = 3) -> dict[str, Any]:
    args = {} if channels == 3 else {"in_chans": channels}
    return architecture.describe(timm.create_model(name, num_classes=classes, **args), args)


def outcome(build: Any, given: dict[str, Any]) -> Any:
    """What a build gives: types of modules and shapes of tensors, or its refusal."""
    try:
        with torch.device("meta"):
            model = build(copy.deepcopy(given), None)
    except TicketError:
        return "refused"
    kinds = {name: type(module) for name, module in model.named_modules()}
    return kinds, {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("name", [*OWN, *OLD_NAMES])
def test_it_is_the_network_of_timms_registry(name: str, channels: int) -> None:
    given = record(OLD_NAMES.get(name, name), channels=channels) | {"architecture": name}
    assert outcome(architecture.on_meta, given) == outcome(architecture._module, given) != "refused"
    assert architecture._own_network(given, None) is not None
    assert architecture.on_meta(given, 12).state_dict()["fc.weight"].shape[0] == 12


CHANGES: list[dict[str, Any]] = [
    {"num_classes": value} for value in (0, -1, None, "7", 7.0, True, 2**40)
] + [
    {"model_args": value}
    for value in (None, [], "x", {"in_chans": 2}, {"in_chans": 0}, {"in_chans": 2**40}, {"in_chans": 2**18},
                  {"pretrained": True},
                  {"global_pool": "avg"}, {"global_pool": "max"}, {"depth": 3}, {"in_chans": "3"}, {"in_chans": None})
] + [
    {"pretrained_cfg": value}
    for value in (None, [], {}, {"input_size": [1, 8, 8]}, {"input_size": [2**40, 8, 8]},
                  {"input_size": [2**18, 8, 8]}, {"input_size": 3},
                  {"odd": 1}, {"global_pool": "max"}, {"fixed_input_size": True}, {"crop_pct": 2**40})
] + [{"architecture": value} for value in ("resnet20 cifar", "vit_b_9", 3, ["resnet20_cifar"], None, "")]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_strange_record_is_built_or_refused_as_by_timm(change: dict[str, Any]) -> None:
    given = record("resnet20_cifar") | change
    assert outcome(architecture.on_meta, given) == outcome(architecture._module, given)


def test_networks_with_parts_of_timm_are_timms(capsys: pytest.CaptureFixture[str]) -> None:
    with_timm = sorted(ARCHITECTURES.keys() - set(OWN))
    assert "resnet50_original" in with_timm and len(with_timm) > 4
    assert all(architecture._own_network(record(name), None) is None for name in with_timm[:1])
