"""repair on whole networks: by hand where a layer stands alone, by laws elsewhere."""

import copy
import json
import os
import warnings

import numpy as np
import pytest
import timm
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from support.common import state_of
from support.processes import together
from torch import nn

import hf_px
from hf_px.core.absorbed_means import absorbed_means
from hf_px.core.batches import Batch
from hf_px.core.mask import Mask
from hf_px.core.prunable import prunable
from hf_px.refit.repair import Repair, RepairReport
from recipes.architectures import ZOO

# their convolutions use weights that are computed from the stored ones, which no refit can reach
STANDARDISED = ("resnetv2_bit", "test_nfnet", "nf_resnet26")


def random_mask(model: nn.Module, density: float = 0.5, seed: int = 0) -> Mask:
    draw = torch.Generator().manual_seed(seed)
    return Mask({name: torch.rand(w.shape, generator=draw) < density for name, w in prunable(model).items()})


def small_net(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, dilation=2, padding=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip
    return settled(net, images())


def settled(model: nn.Module, batches: list[torch.Tensor]) -> nn.Module:
    """Stored statistics as training would leave them."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    with torch.no_grad():
        for x in batches:
            model(x)
    for norm in norms:
        norm.momentum = 0.1
    return model.eval()


def images(count: int = 4, seed: int = 1) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(6, 3, 12, 12, generator=draw) for _ in range(count)]


def lstsq_layer(x: np.ndarray, weight: np.ndarray, kept: np.ndarray, ridge: float) -> np.ndarray:
    """Kept weights of a layer with a bias, which takes up the mean: least squares on x - E[x]."""
    x = x - x.mean(0)
    weight_of_ridge = ridge * (x**2).mean(0).mean()
    out = np.zeros_like(weight)
    for row, at in enumerate(kept):
        if at.any():
            system = np.concatenate([x[:, at] / len(x) ** 0.5, weight_of_ridge**0.5 * np.eye(at.sum())])
            wanted = np.concatenate([x @ weight[row] / len(x) ** 0.5, weight_of_ridge**0.5 * weight[row, at]])
            out[row, at] = np.linalg.lstsq(system, wanted, rcond=None)[0]
    return out


def test_one_linear_layer_by_hand():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(7, 4)).double()
    x = torch.randn(90, 7, dtype=torch.float64) @ torch.randn(7, 7, dtype=torch.float64) + 3
    mask = random_mask(layer)
    found = hf_px.repair(layer, mask, [x[:40], x[40:]], ridge=0.02, progress=False)
    bits = mask.bits["0.weight"].numpy()
    wanted = lstsq_layer(x.numpy(), layer[0].weight.detach().numpy(), bits, 0.02)
    np.testing.assert_allclose(found[0].weight.detach().numpy(), wanted, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found(x).mean(0), layer(x).mean(0))  # the bias keeps the mean


def test_two_layers_see_the_dense_networks_inputs():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()
    x = torch.randn(80, 6, dtype=torch.float64)
    mask = random_mask(net)
    found = hf_px.repair(net, mask, [x], ridge=0.01, progress=False)
    hidden = net[:2](x).detach().numpy()
    wanted = lstsq_layer(hidden, net[2].weight.detach().numpy(), mask.bits["2.weight"].numpy(), 0.01)
    np.testing.assert_allclose(found[2].weight.detach().numpy(), wanted, rtol=1e-6, atol=1e-8)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))


def test_a_convolution_in_a_residual_block_by_unfold():
    torch.manual_seed(0)
    net = Residual().double()
    x = torch.randn(5, 4, 6, 6, dtype=torch.float64)
    mask = random_mask(net)
    found = hf_px.repair(net, mask, [x], ridge=0.02, progress=False)
    columns = nn.functional.unfold(x, 3, padding=1).transpose(1, 2).flatten(0, 1).numpy()
    dense, bits = net.a.weight.detach().flatten(1).numpy(), mask.bits["a.weight"].flatten(1).numpy()
    wanted = lstsq_layer(columns, dense, bits, 0.02)
    np.testing.assert_allclose(found.a.weight.detach().flatten(1).numpy(), wanted, rtol=1e-5, atol=1e-7)


def test_a_batch_norm_takes_up_the_mean_of_a_layer_without_bias():
    """Least squares on x - E[x], and the normalised outputs then have the dense network's mean."""
    torch.manual_seed(0)
    x = torch.randn(90, 7, dtype=torch.float64) @ torch.randn(7, 7, dtype=torch.float64) + 3
    net = settled(nn.Sequential(nn.Linear(7, 4, bias=False), nn.BatchNorm1d(4)).double(), [x])
    mask = random_mask(net)
    found = hf_px.repair(net, mask, [x], ridge=0.02, progress=False)
    wanted = lstsq_layer(x.numpy(), net[0].weight.detach().numpy(), mask.bits["0.weight"].numpy(), 0.02)
    np.testing.assert_allclose(found[0].weight.detach().numpy(), wanted, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(found(x).mean(0), net(x).mean(0))


@pytest.mark.parametrize("density", [0.0, 0.3])
def test_after_the_norm_each_channel_has_the_dense_mean_and_variance(density):
    """Stored statistics are off from those of the images, as for any other images; one channel has no weight."""
    torch.manual_seed(1)
    x = torch.randn(200, 7, dtype=torch.float64) @ torch.randn(7, 7, dtype=torch.float64) + 3
    net = settled(nn.Sequential(nn.Linear(7, 4, bias=False), nn.BatchNorm1d(4)).double(), [x])
    with torch.no_grad():
        net[1].running_mean += 0.5 * net[1].running_var.sqrt()
        net[1].running_var *= 1.7
        net[1].bias.uniform_(-1, 1)
    bits = torch.rand(4, 7) < density
    bits[1:] |= torch.eye(4, 7, dtype=torch.bool)[1:]  # the first channel is empty where the density is 0
    found = hf_px.repair(net, Mask({"0.weight": bits}), [x], progress=False)
    torch.testing.assert_close(found(x).mean(0), net(x).mean(0))
    live = bits.any(1)
    torch.testing.assert_close(found(x).std(0)[live], net(x).std(0)[live], rtol=1e-3, atol=1e-3)  # eps
    assert density > 0 or not live[0]


class NormAndOthers(nn.Module):
    """Of four layers without bias, the second is read by a sum as well, the third by nothing but a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 1, bias=False) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x):
        first, second, third, fourth = (layer(x) for layer in self.layers)
        return self.norms[0](first) + self.norms[1](second) + second + third + self.norms[2](fourth.mT)


def test_a_mean_that_something_else_reads_counts():
    net = NormAndOthers().eval()
    batch = Batch(torch.randn(2, 3, 4, 4), None)
    assert absorbed_means(net, prunable(net), batch) == {"layers.0.weight"}
    ours = absorbed_means(small_net(), prunable(small_net()), Batch(torch.randn(2, 3, 12, 12), None))
    assert ours == {"0.weight", "3.weight"}


def test_with_nothing_pruned_nothing_changes():
    net = small_net()
    found = hf_px.repair(net, random_mask(net, 2.0), images(), progress=False)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-6, atol=1e-6, msg=name)


@settings(max_examples=12, deadline=None)
@given(st.floats(0.1, 0.9), st.integers(0, 50))
def test_laws(density, seed):
    net, batches = small_net(seed), images(seed=seed)
    mask, before = random_mask(net, density, seed), state_of(net)
    measured = Repair(net, batches, progress=False)
    found, report = measured.repaired(mask)
    assert state_of(net) == before  # the model is not changed
    assert all(not w.detach()[~mask.bits[name]].any() for name, w in mask.tensors_of(found).items())
    assert all(after <= was * (1 + 1e-5) for was, after in report.errors.values())
    shuffled = hf_px.repair(net, mask, batches[::-1], progress=False)
    for name, value in found.state_dict().items():
        torch.testing.assert_close(shuffled.state_dict()[name], value, rtol=2e-3, atol=2e-4, msg=name)


def test_more_images_are_never_worse_on_the_images_of_the_fit():
    net, batches = small_net(), images(6)
    mask = random_mask(net, 0.4)
    errors = Repair(net, batches, images=36, progress=False)
    few = Repair(net, batches, images=6, progress=False).refitted(mask)[0]
    many = errors.refitted(mask)[0]

    def error(model):
        """Of the first layer, which has the same inputs in all networks, on all images."""
        return sum(float((model[0](x) - net[0](x)).detach().square().sum()) for x in batches)

    assert error(many) <= error(few) * (1 + 1e-6)


def test_repair_brings_the_output_back():
    net, batches = small_net(), images(8)
    mask = hf_px.prune(net, "magnitude", sparsity=0.5, keep_head=False, progress=False)
    x = torch.randn(40, 3, 12, 12, generator=torch.Generator().manual_seed(9))
    dense = net(x)
    pruned = (mask.apply_(copy.deepcopy(net))(x) - dense).norm()
    repaired = (hf_px.repair(net, mask, batches, progress=False)(x) - dense).norm()
    assert repaired < 0.7 * pruned


def test_half_precision_is_repaired_in_float32():
    net = small_net()
    mask = random_mask(net)
    found = hf_px.repair(copy.deepcopy(net).bfloat16(), mask, images(), progress=False)
    assert next(found.parameters()).dtype is torch.float32
    assert all(torch.isfinite(p).all() for p in found.parameters())


def test_bad_input_is_refused_before_work():
    net, batches = small_net(), images()
    mask = random_mask(net)
    nan = [batches[0], batches[1] * float("nan")]
    cases = {
        "is empty": (net, mask, []),
        "nan or inf": (net, mask, nan),
        "expected a Mask": (net, mask.bits, batches),
        "another model": (net, Mask({"stem.weight": torch.ones(3, 3, dtype=torch.bool)}), batches),
        "batch 1 has the shape": (net, mask, [batches[0], batches[1][:, :1]]),
        "does not run": (net, mask, [torch.randn(4, 2, 12, 12)]),
        "zero already": (mask.apply_(copy.deepcopy(net)), mask, batches),
        r"mask is \(2, 2\)": (net, Mask({**mask.bits, "0.weight": torch.ones(2, 2, dtype=torch.bool)}), batches),
        "single batch": (net, mask, batches[0]),
        "batch 0 is on the meta device": (net, mask, [batches[0].to("meta")]),
        "meta": (copy.deepcopy(net).to("meta"), mask, batches),
    }
    for text, (model, bits, data) in cases.items():
        with pytest.raises(ValueError, match=text):
            hf_px.repair(model, bits, data, progress=False)
    with pytest.raises(ValueError, match="ridge"):
        hf_px.repair(net, mask, batches, ridge=0.0)
    with pytest.raises(ValueError, match="images"):
        hf_px.repair(net, mask, batches, images=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(mode):
    net, batches = small_net(), images()
    wanted, choices = hf_px.compress(net, batches, 0.6, progress=False), {"rounds": 2, "progress": False}
    with mode():
        found = hf_px.compress(net, batches, 0.6, progress=False)
        repaired = hf_px.repair(net, found.mask, batches, progress=False)
    assert found.mask.digest() == wanted.mask.digest()
    assert torch.equal(repaired.state_dict()["0.weight"], wanted.to_model().state_dict()["0.weight"])
    assert hf_px.compress(net, batches, scope="2:4", exclude=["0.weight"], **choices).mask.sparsity == 0.5


def test_statistics_that_do_not_fit_the_images_are_named():
    net = small_net()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hf_px.repair(net, random_mask(net), images(), progress=False)  # its own images
    for norm in net.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_var *= 1000
    with pytest.warns(UserWarning, match="the stored statistics do not fit these images; are the weights trained"):
        hf_px.repair(net, random_mask(net), images(), progress=False)


def repaired_by_a_process(output: str) -> None:
    torch.set_num_threads(1)
    world = int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo")
    net = small_net()
    found, report = Repair(net, images(13), images=1000, progress=False).repaired(random_mask(net))
    rank = dist.get_rank() if world > 1 else 0
    values = {name: value.double().flatten().tolist() for name, value in found.state_dict().items()}
    with open(f"{output}.{world}.{rank}", "w") as file:
        json.dump({"values": values, "report": report.to_dict()}, file)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def test_one_process_and_two_give_the_same_weights(tmp_path):
    together(2, repaired_by_a_process, str(tmp_path / "out"))
    together(1, repaired_by_a_process, str(tmp_path / "out"))
    alone, first, second = (json.loads((tmp_path / f"out.{name}").read_text()) for name in ("1.0", "2.0", "2.1"))
    assert first["report"]["images"] == alone["report"]["images"] == 78
    for name, values in alone["values"].items():
        assert first["values"][name] == second["values"][name], name
        np.testing.assert_allclose(first["values"][name], values, rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.filterwarnings("ignore:.*not refitted:UserWarning")
@pytest.mark.parametrize("arch", [pytest.param(a, id=a.name.replace(" ", "-")) for a in ZOO])
def test_every_network_of_the_zoo(arch):
    model, batches = arch.model(), arch.batches()
    mask, before = random_mask(model, 0.6), state_of(model)
    found, report = Repair(model, batches, progress=False).repaired(mask)
    assert state_of(model) == before
    assert all(torch.isfinite(p).all() for p in found.parameters())
    assert all(not w.detach()[~mask.bits[name]].any() for name, w in mask.tensors_of(found).items())
    assert set(report.errors) | set(report.left_out) == set(mask.bits)
    assert bool(report.left_out) == (arch.name in STANDARDISED)
    assert all(after <= was * (1 + 1e-4) + 1e-9 for was, after in report.errors.values())
    before_mean, after_mean = report.mean_error
    assert after_mean < before_mean


def test_weights_that_cannot_be_refitted_are_named():
    (arch,) = (a for a in ZOO if a.name == "test_nfnet")
    model = arch.model()
    with pytest.warns(UserWarning, match=r"conv.*weight.*not refitted"):
        hf_px.repair(model, random_mask(model), arch.batches(), progress=False)


def test_attention_thirds_are_refitted():
    """timm's qkv, torch's packed in_proj_weight: every row of the weight is seen."""
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    mask = random_mask(model)
    _, report = Repair(model, [torch.randn(6, 9, 16)], progress=False).repaired(mask)
    assert report.left_out == ()
    assert all(after < before for before, after in report.errors.values())


def test_report_as_data():
    report = RepairReport(3, {"a": (0.5, 0.25), "b": (0.1, 0.05)}, ("c",))
    assert report.mean_error == pytest.approx((0.3, 0.15))
    assert report.to_dict() == {"images": 3, "errors": {"a": [0.5, 0.25], "b": [0.1, 0.05]}, "left_out": ["c"]}


def test_compress_gives_a_ticket_that_loads(tmp_path):
    torch.manual_seed(0)
    batches = [torch.randn(8, 3, 32, 32) for _ in range(3)]
    model = settled(timm.create_model("resnet10t", num_classes=7), batches)
    before = state_of(model)
    ticket = hf_px.compress(model, batches, sparsity=0.7, rounds=2, progress=False)
    assert state_of(model) == before
    assert ticket.mask.sparsity == pytest.approx(0.7, abs=1e-4)
    ticket.save_pretrained(tmp_path / "t", layout="packed")
    loaded = hf_px.from_pretrained(tmp_path / "t")
    torch.testing.assert_close(loaded(batches[0]), ticket.to_model()(batches[0]))
    assert hf_px.Ticket.from_pretrained(tmp_path / "t").provenance["repair"]["images"] == 24
    card = (tmp_path / "t" / "README.md").read_text()
    assert "refitted by least squares on 24 images" in card
    assert "error before repair" in card
    assert "head" not in ticket.provenance["settings"]


def test_rounds_beat_one_cut():
    net, batches = small_net(), images(8)
    x = torch.cat(images(8, seed=5))
    off = {
        rounds: float(
            (hf_px.compress(net, batches, 0.7, rounds=rounds, progress=False).to_model()(x) - net(x)).detach().norm()
        )
        for rounds in (1, 5)
    }
    assert off[5] < 1.1 * off[1]  # on a small random network they are close; model_cards/RESULTS.md has a real one
