"""A ticket is the model, the true mask and where they come from, before and after the disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import timm
import torch
from support.tickets import RESULT, own_ticket, pruned, same_state, timm_ticket, transformers_ticket
from torch import nn

import hf_px
from hf_px.core.errors import TicketError
from hf_px.core.mask import Mask
from hf_px.tickets import ticket_file

LAYOUTS = ("both", "packed", "dense", "mask-only")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
MAKERS = {"timm": timm_ticket, "hf_px": own_ticket, "transformers": transformers_ticket}


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("layout", LAYOUTS[:3])
@pytest.mark.parametrize("maker", MAKERS)
def test_what_is_saved_is_loaded(tmp_path: Path, maker: str, layout: str) -> None:
    model, mask = MAKERS[maker]()
    hf_px.Ticket(model, mask, scorer="random", results=[RESULT]).save_pretrained(tmp_path, layout=layout)
    ticket = hf_px.Ticket.from_pretrained(tmp_path)
    loaded = hf_px.from_pretrained(tmp_path)
    assert ticket.mask == mask  # true masks survive: `pruned` puts a kept zero into every tensor
    assert list(ticket.mask.bits) == list(mask.bits)  # in the order of the model
    assert type(loaded) is type(model) and same_state(loaded, model)
    assert not loaded.training
    assert ticket.config["scorer"] == "random" and ticket.config["results"] == [RESULT]
    side = 32 if maker == "hf_px" else 64
    x = torch.randn(2, 3, side, side)
    a, b = model(x), loaded(x)
    assert torch.equal(getattr(a, "logits", a), getattr(b, "logits", b))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("maker", MAKERS)
def test_save_load_save_gives_the_same_bytes(tmp_path: Path, maker: str, layout: str) -> None:
    model, mask = MAKERS[maker]()
    provenance = {"base": "org/base", "base_revision": COMMIT, "scorer": "px", "settings": {"seed": 0, "rounds": 3}}
    hf_px.Ticket(model, mask, **provenance, results=[RESULT]).save_pretrained(tmp_path / "a", layout=layout)
    hf_px.Ticket.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b", layout=layout)
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert not any(name.startswith(".") for name in files(tmp_path / "a"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_half(tmp_path: Path, dtype: torch.dtype) -> None:
    model, mask = timm_ticket()
    model = model.to(dtype)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    assert same_state(hf_px.from_pretrained(tmp_path), model)


def test_layouts_hold_what_they_say(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    ticket = hf_px.Ticket(model, mask, base="org/base", base_revision=COMMIT)
    weights = {}
    for layout in LAYOUTS:
        ticket.save_pretrained(tmp_path / layout, layout=layout)
        weights[layout] = {n for n in files(tmp_path / layout) if n.endswith(".safetensors")}
    packed, dense = {"ticket.safetensors"}, {"model.safetensors"}
    assert weights == {"both": packed | dense, "packed": packed, "dense": dense, "mask-only": packed}
    assert (
        len(files(tmp_path / "packed")["ticket.safetensors"]) < len(files(tmp_path / "dense")["model.safetensors"]) / 3
    )
    assert len(files(tmp_path / "mask-only")["ticket.safetensors"]) < mask.total / 8 + 20_000


def test_another_layout_in_the_same_place_leaves_no_stale_weights(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    for layout in ("both", "packed", "dense", "both", "dense"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout=layout)
        found = {name for name in files(tmp_path) if name.endswith(".safetensors")}
        assert found == set(_expected(layout))
        assert same_state(hf_px.from_pretrained(tmp_path), model)


def _expected(layout: str) -> list[str]:
    return {
        "both": [ticket_file.PACKED, ticket_file.DENSE],
        "packed": [ticket_file.PACKED],
        "dense": [ticket_file.DENSE],
    }[layout]


def test_tied_tensors_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)
            self.second = nn.Linear(6, 6)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(torch.relu(self.first(x)))

    model = Tied()
    bits = torch.rand(6, 6) < 0.5
    mask = Mask({"first.weight": bits, "second.weight": bits})
    mask.apply_(model)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    ticket = hf_px.Ticket.from_pretrained(tmp_path)
    assert ticket.mask == mask
    again = ticket.to_model(into=Tied())
    assert same_state(again, model) and again.first.weight is again.second.weight
    parts = ticket_file.read_header(tmp_path / ticket_file.PACKED)["parts"]
    assert [name for name, *_ in parts] == ["first.weight", "first.bias", "second.bias"]
    with pytest.raises(TicketError, match=r"second\.weight: the same tensor as first\.weight, with another mask"):
        hf_px.Ticket(model, Mask({"first.weight": bits, "second.weight": ~bits})).save_pretrained(tmp_path)


@pytest.mark.parametrize("names", [["first.weight"], ["second.weight"], ["second.weight", "first.weight"]])
def test_a_mask_of_tied_tensors_names_what_it_named(tmp_path: Path, names: list[str]) -> None:
    model = nn.Sequential()
    model.first, model.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    model.second.weight = model.first.weight
    bits = torch.rand(4, 4) < 0.5
    mask = Mask(dict.fromkeys(names, bits))
    hf_px.Ticket(mask.apply_(model), mask).save_pretrained(tmp_path)
    found = hf_px.Ticket.from_pretrained(tmp_path).mask
    assert found == mask and found.digest() == mask.digest()


def test_a_module_of_your_own(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model, mask = pruned(model, 0.5)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    ticket = hf_px.Ticket.from_pretrained(tmp_path)
    with pytest.raises(TicketError, match=r"torch\.nn.*Sequential.*into=module"):
        ticket.to_model()
    assert same_state(ticket.to_model(into=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))), model)
    with pytest.raises(TicketError, match="does not fit this Linear"):
        ticket.to_model(into=nn.Linear(4, 8))


@pytest.mark.parametrize("maker", MAKERS)
def test_another_number_of_classes_draws_the_head_anew_and_nothing_else(tmp_path: Path, maker: str) -> None:
    model, mask = MAKERS[maker]()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    with pytest.warns(UserWarning, match="newly initialised for 9 classes"):
        other = hf_px.from_pretrained(tmp_path, num_classes=9)
    old, new = model.state_dict(), other.state_dict()
    changed = {name for name in old if old[name].shape != new[name].shape}
    assert len(changed) == 2 and all(len(new[name]) == 9 for name in changed)
    assert all(torch.equal(old[name], new[name]) for name in old if name not in changed)
    ticket = hf_px.Ticket.from_pretrained(tmp_path)
    rest = ticket.mask_for(other)
    assert set(mask.bits) - set(rest.bits) == {name for name in changed if name.endswith("weight")}
    hf_px.keep_zeros(other, rest, torch.optim.SGD(other.parameters(), lr=0.1)).remove()


def test_as_many_classes_as_before_is_no_new_head(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    model, mask = timm_ticket(num_classes=5)
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    assert same_state(hf_px.from_pretrained(tmp_path, num_classes=5), model)
    assert not [w for w in recwarn if "newly initialised" in str(w.message)]


def test_a_violated_mask_is_not_saved(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    ticket = hf_px.Ticket(model, mask)
    ticket.save_pretrained(tmp_path)
    before = files(tmp_path)
    pruned_at = tuple((~mask.bits["layer4.0.conv1.weight"]).nonzero()[3])
    with torch.no_grad():
        model.get_parameter("layer4.0.conv1.weight")[pruned_at] = 1e-30
    for layout in ("both", "packed", "dense"):
        with pytest.raises(TicketError, match=r"layer4\.0\.conv1\.weight: 1 pruned weights are not zero"):
            ticket.save_pretrained(tmp_path, layout=layout)
    assert files(tmp_path) == before


def test_a_ticket_saves_its_model_as_it_is_now(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    ticket = hf_px.Ticket(model, mask)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    hf_px.keep_zeros(model, mask, optimizer)
    model(torch.randn(4, 3, 64, 64)).square().sum().backward()
    optimizer.step()
    ticket.save_pretrained(tmp_path)
    assert same_state(hf_px.from_pretrained(tmp_path), model)


def test_loaded_weights_can_be_trained_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    before = files(tmp_path)
    loaded = hf_px.from_pretrained(tmp_path)
    assert all(p.requires_grad for p in loaded.parameters())
    with torch.no_grad():
        for tensor in (*loaded.parameters(), *loaded.buffers()):
            tensor.add_(1)  # a tensor that still lies in the file would write to it, or fail
    assert files(tmp_path) == before
    assert same_state(hf_px.from_pretrained(tmp_path), model)


def test_wrapped_models_are_saved_as_what_they_wrap(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    hf_px.Ticket(torch.compile(model), mask).save_pretrained(tmp_path)
    assert same_state(hf_px.from_pretrained(tmp_path), model)


def test_a_timm_model_with_arguments_of_its_own(tmp_path: Path) -> None:
    args = {"embed_dim": 32, "num_heads": 2}
    model, mask = pruned(timm.create_model("test_vit", **args))
    with pytest.raises(TicketError, match=r"here, .* in a new test_vit; pass `model_args`"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    assert not any(tmp_path.iterdir())
    hf_px.Ticket(model, mask, model_args=args).save_pretrained(tmp_path)
    assert same_state(hf_px.from_pretrained(tmp_path), model)
    assert same_state(timm.create_model(f"local-dir:{tmp_path}", pretrained=True), model)
    with pytest.raises(TicketError, match="model_args"):
        hf_px.Ticket(model, mask, model_args=args | {"act_layer": nn.ReLU}).save_pretrained(tmp_path)


@pytest.mark.parametrize("channels", [1, 4])
def test_other_than_three_channels(tmp_path: Path, channels: int) -> None:
    model, mask = pruned(timm.create_model("test_resnet", in_chans=channels, zero_init_last=False))
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    assert same_state(hf_px.from_pretrained(tmp_path), model)
    assert same_state(timm.create_model(f"local-dir:{tmp_path}", pretrained=True), model)


def test_nothing_of_yours_is_lost(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    (tmp_path / "model.safetensors").write_bytes(_plain(model))
    with pytest.raises(TicketError, match="weights of another model, which would be lost"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == _plain(model)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(TicketError, match=r"config\.json: belongs to another model"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(TicketError, match="is empty"):
        hf_px.Ticket(model, mask).save_pretrained("")
    (tmp_path / "README.md").write_text("my own words")
    (tmp_path / "notes.txt").write_text("more of them")
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "my own words"
    assert (tmp_path / "notes.txt").read_text() == "more of them"
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(TicketError, match="is a file; name a directory"):
        hf_px.Ticket(model, mask).save_pretrained(file)


def _plain(model: nn.Module) -> bytes:
    from safetensors.torch import save

    return save(model.state_dict())


def test_a_dense_copy_that_was_saved_anew_is_noticed(tmp_path: Path) -> None:
    model, mask = transformers_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    other = hf_px.from_pretrained(tmp_path)
    with torch.no_grad():
        other.resnet.embedder.embedder.normalization.bias.add_(1)
    other.save_pretrained(tmp_path)
    with pytest.raises(TicketError, match=r"model\.safetensors was saved again.*remove the one"):
        hf_px.from_pretrained(tmp_path)
    (tmp_path / "ticket.safetensors").unlink()
    assert same_state(hf_px.from_pretrained(tmp_path), other)


@pytest.mark.parametrize(
    ("provenance", "complaint"),
    [
        ({"results": [{"metric": "accuracy", "value": 1.0}]}, "`results`: dataset is missing"),
        ({"results": [{"dataset": "x", "metric": "accuracy", "value": float("nan")}]}, "value is nan"),
        ({"results": [{"dataset": "x", "metric": "accuracy", "value": "good"}]}, "value is 'good'"),
        ({"results": [{"dataset": "x", "metric": "accuracy", "value": 1, "speed": 2}]}, "unknown key 'speed'"),
        ({"settings": {"model": object()}}, "`settings` and `results` hold numbers"),
    ],
)
def test_invalid_provenance_is_refused_at_once(provenance: dict, complaint: str) -> None:
    model, mask = timm_ticket()
    with pytest.raises(TicketError, match=complaint):
        hf_px.Ticket(model, mask, **provenance)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"mask": {}}, "a module and a Mask, got ResNet and dict"),
        ({"model": {}}, "a module and a Mask, got dict and Mask"),
        ({"settings": ["a"]}, "`settings`: expected a dict"),
        ({"settings": {3: 4}}, "`settings`: expected a dict"),
        ({"results": {"accuracy": 0.9}}, "`results`: expected a list of dicts"),
        ({"results": ["accuracy 0.9"]}, "`results`: expected a list of dicts"),
        ({"base": "/home/me/secret"}, "not owner/name on the Hub"),
        ({"base": "timm/res net"}, "not owner/name on the Hub"),
        ({"base": 3}, "not owner/name on the Hub"),
    ],
)
def test_arguments_of_the_wrong_kind(change: dict, complaint: str) -> None:
    model, mask = timm_ticket()
    with pytest.raises((TypeError, TicketError), match=complaint):
        hf_px.Ticket(**({"model": model, "mask": mask} | change))
    with pytest.raises(TypeError, match="a Mask, not a dict"):
        hf_px.keep_zeros(model, {}, torch.optim.SGD(model.parameters()))  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [0, -1, "10", 2.0, True])
def test_a_number_of_classes_that_is_none(tmp_path: Path, wrong: object) -> None:
    hf_px.Ticket(*timm_ticket()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"`num_classes`: {wrong!r} is not a number of classes"):
        hf_px.from_pretrained(tmp_path, num_classes=wrong)  # type: ignore[arg-type]


def test_mask_only_removes_no_weights(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    ticket = hf_px.Ticket(model, mask, base="org/base", base_revision=COMMIT)
    for layout in ("both", "packed", "dense"):
        ticket.save_pretrained(tmp_path / layout, layout=layout)
        before = files(tmp_path / layout)
        with pytest.raises(TicketError, match="holds weights, which mask-only would remove"):
            ticket.save_pretrained(tmp_path / layout, layout="mask-only")
        assert files(tmp_path / layout) == before
    with pytest.warns(UserWarning, match="the weights are not saved; loading this ticket gives those of org/base"):
        ticket.save_pretrained(tmp_path / "new", layout="mask-only")


def test_mask_only_needs_a_base_that_cannot_move(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    with pytest.raises(TicketError, match=r"names no base on the Hub .*another `layout`"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="mask-only")
    with pytest.raises(TicketError, match=r"`base_revision`.*model_info\('org/base'\)\.sha"):
        hf_px.Ticket(model, mask, base="org/base", base_revision="main").save_pretrained(tmp_path, layout="mask-only")
    with pytest.raises(ValueError, match="choose one of both, packed, dense, mask-only"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="zip")
    assert not any(tmp_path.iterdir())


def test_a_mask_of_another_model_is_refused() -> None:
    model, _ = timm_ticket()
    with pytest.raises(ValueError, match="the model has no such parameter"):
        hf_px.Ticket(model, own_ticket()[1])


def test_a_ticket_for_another_architecture(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    contents = ticket_file.read_ticket_file(tmp_path / ticket_file.PACKED)
    contents.model["architecture"] = "test_vit"
    ticket_file.write_ticket_file(tmp_path / ticket_file.PACKED, contents)
    with pytest.raises(TicketError, match="another architecture"):
        hf_px.from_pretrained(tmp_path)
    contents.model["architecture"] = "resnet_of_the_future"
    ticket_file.write_ticket_file(tmp_path / ticket_file.PACKED, contents)
    with pytest.raises(TicketError, match="has no model 'resnet_of_the_future'"):
        hf_px.from_pretrained(tmp_path)


def test_effective_sparsity_is_recorded(tmp_path: Path) -> None:
    model, mask = own_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    sparsity = hf_px.Ticket.from_pretrained(tmp_path).config["sparsity"]
    table = hf_px.summary(model, mask)
    assert sparsity["nominal"] == mask.sparsity and sparsity["effective"] == table.effective_sparsity
    assert sparsity["kept"] == mask.kept and sparsity["dead"] == table.dead


def test_config_json_is_the_hubs_own(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"] == "test_resnet" and config["num_classes"] == 5
    assert "hf_hub_id" not in config["pretrained_cfg"] and "url" not in config["pretrained_cfg"]


def test_what_is_not_a_ticket(tmp_path: Path) -> None:
    with pytest.raises(TicketError, match="holds no ticket"):
        hf_px.from_pretrained(tmp_path)
    model, _ = timm_ticket()
    (tmp_path / "model.safetensors").write_bytes(_plain(model))
    with pytest.raises(TicketError, match="holds no ticket"):
        hf_px.from_pretrained(tmp_path)
    with pytest.raises(TicketError, match="no such directory"):
        hf_px.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(TicketError, match="is a file; name the directory"):
        hf_px.from_pretrained(tmp_path / "model.safetensors")
    with pytest.raises(TicketError, match="has no revisions"):
        hf_px.from_pretrained(tmp_path, revision="main")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    model, mask = timm_ticket()
    tmp_path.chmod(0o500)
    with pytest.raises(TicketError, match="cannot be written to"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path / "new")
