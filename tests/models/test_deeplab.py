"""DeepLabV3+: shapes, names that trained backbones have, and every method on an output for each pixel."""

from __future__ import annotations

import math
import re
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import hf_px
from hf_px.core.batches import Batches
from hf_px.core.forward import IGNORE, cross_entropy, labelled_output
from hf_px.core.head import head_of, segments, silent_classes
from hf_px.core.prunable import prunable
from hf_px.models.architecture import build, describe
from hf_px.models.load import check_name, load
from hf_px.models.networks import MODELS, SEGMENTERS, DeepLabV3Plus, encoder_of

METHODS = ("px", "px-path", "snip", "synflow", "ntk-sap", "grasp", "magnitude", "random")
TINY = "deeplabv3plus_test_resnet"


def tiny(classes: int = 4, seed: int = 0) -> Any:
    return load(TINY, num_classes=classes, seed=seed).model


@pytest.fixture(scope="module")
def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 33, 33, generator=generator)
    y = torch.randint(4, (4, 33, 33), generator=generator)
    y[:, :5] = IGNORE
    return [(x, y)]


# the network


def test_it_answers_for_every_pixel_whatever_the_size() -> None:
    model = tiny(7)
    assert segments(model) and not segments(timm.create_model("test_resnet"))
    for size in ((33, 33), (65, 41), (64, 48)):
        assert model(torch.zeros(2, 3, *size)).shape == (2, 7, *size)


def test_it_is_the_papers_network() -> None:
    with torch.device("meta"):
        model: Any = MODELS["deeplabv3plus-resnet50"]().eval()
        low, high = model.backbone(torch.zeros(1, 3, 513, 513))
        assert model(torch.zeros(1, 3, 513, 513)).shape == (1, 21, 513, 513)
    assert low.shape == (1, 256, 129, 129) and high.shape == (1, 2048, 33, 33)  # output stride 16
    shapes = {name: tuple(w.shape) for name, w in prunable(model).items()}
    rates = [branch[0].dilation for branch in model.aspp.branches[:4]]
    assert rates == [(1, 1), (6, 6), (12, 12), (18, 18)]
    assert shapes["low.0.weight"] == (48, 256, 1, 1) and shapes["decoder.0.weight"] == (256, 304, 3, 3)
    assert shapes["aspp.project.0.weight"] == (256, 5 * 256, 1, 1) and shapes["classifier.weight"] == (21, 256, 1, 1)
    # by hand: a ResNet-50 without its head, five branches, their join, low-level features, decoder, head
    body = sum(w.numel() for n, w in prunable(timm.create_model("resnet50", num_classes=0)).items())
    pyramid = 2048 * 256 * (1 + 3 * 9 + 1) + 1280 * 256
    assert sum(w.numel() for w in prunable(model).values()) == body + pyramid + 256 * 48 + 304 * 256 * 9 + 256 * 21


def test_gradients_reach_every_weight(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = tiny().train()
    (x, y), *_ = batches
    cross_entropy(model(x), y).backward()
    dead = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not dead


def test_a_head_of_another_number_of_classes() -> None:
    model = tiny(4)
    assert head_of(model) == ["classifier.weight"]
    model.reset_classifier(9)
    assert model(torch.zeros(1, 3, 33, 33)).shape[1] == 9 and model.num_classes == 9
    bits = {name: torch.ones_like(w, dtype=torch.bool) for name, w in prunable(model).items()}
    bits["classifier.weight"][[2, 5]] = False
    assert silent_classes(model, hf_px.Mask(bits)) == [2, 5]


def test_its_record_builds_it_again() -> None:
    model = tiny(5)
    record = describe(model)
    assert record["architecture"] == TINY and "custom" not in record
    again = build(record)
    again.load_state_dict(model.state_dict())
    x = torch.randn(1, 3, 33, 33)
    assert torch.equal(again(x), model(x))


def test_a_ticket_goes_round(tmp_path: Path) -> None:
    model = tiny(5)
    model.pretrained_cfg |= {"input_size": (3, 33, 33)}
    mask = hf_px.prune(model, "magnitude", sparsity=0.9)
    hf_px.Ticket(mask.apply_(model), mask).save_pretrained(tmp_path)
    again = hf_px.from_pretrained(tmp_path)
    x = torch.randn(1, 3, 33, 33)
    assert isinstance(again, DeepLabV3Plus) and torch.equal(again(x), model(x))
    assert hf_px.from_pretrained(tmp_path, num_classes=9)(x).shape == (1, 9, 33, 33)  # a new head
    assert torch.equal(timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(x), model(x))


# backbones


def test_every_encoder_has_a_short_name_but_the_one_for_tests() -> None:
    from hf_px.models.records import backbones

    assert {backbones[name].architecture for name in backbones if name.startswith("deeplab")} == SEGMENTERS - {TINY}
    assert encoder_of("deeplabv3plus-resnet50") == encoder_of("deeplabv3plus_resnet50") == "resnet50"
    assert encoder_of("resnet50") is None


def test_the_encoder_is_the_backbone_bit_for_bit(tmp_path: Path) -> None:
    body = timm.create_model("test_resnet", num_classes=3)
    nn.init.normal_(body.get_submodule("layer1.0.bn1").running_mean)
    save_file(body.state_dict(), tmp_path / "body.safetensors")
    found = load(TINY, backbone=str(tmp_path / "body.safetensors"), architecture="test_resnet", num_classes=4, seed=3)
    own: Any = found.model
    body.eval()
    x = torch.randn(2, 3, 33, 33)
    # the stem and the first stage are the same network; later ones are dilated
    assert torch.equal(own.backbone(x)[0], body.layer1(body.maxpool(body.act1(body.bn1(body.conv1(x))))))
    for name, tensor in own.backbone.state_dict().items():
        assert torch.equal(tensor, body.state_dict()[name]), name
    # all else comes from the seed
    fresh = tiny(4, seed=3).state_dict()
    assert set(found.new_head) == {n for n, _ in own.named_parameters() if not n.startswith("backbone.")}
    assert all(torch.equal(own.state_dict()[name], fresh[name]) for name in found.new_head)
    assert found.trained


@pytest.mark.parametrize(
    ("model", "backbone", "error"),
    [
        ("deeplabv3plus-resnet18", "resnet34", "`backbone` resnet34: layer1.2.conv1.weight does not fit"),
        ("deeplabv3plus-resnet18", "resnet18d", "`backbone` resnet18d: .* does not fit"),
        ("resnet20", "resnet18", "resnet20 has no separate backbone.*deeplabv3plus-resnet50"),
        ("deeplabv3plus-resnet18", "deeplabv3plus-resnet18", "is a segmenter itself; name a resnet18"),
        ("deeplabv3plus-resnet18", "resnet81", "unknown model 'resnet81'; did you mean resnet18"),
    ],
)  # fmt: skip
def test_a_backbone_that_does_not_fit(model: str, backbone: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        load(model, backbone=backbone)


def test_trained_weights_are_asked_for_by_the_backbone() -> None:
    with pytest.raises(ValueError, match=r"`backbone`: dino-resnet50, imagenet-resnet50, mocov2-resnet50"):
        check_name("deeplabv3plus-resnet50", pretrained=True)


# pixels without a label


def test_the_loss_is_the_mean_over_pixels_with_a_label() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (2, 4, 5), generator=generator)
    labels[0, :2], labels[1, 3, 4] = IGNORE, IGNORE
    log = logits.log_softmax(1)
    there = [(n, i, j) for n in range(2) for i in range(4) for j in range(5) if labels[n, i, j] != IGNORE]
    by_hand = -sum(float(log[n, int(labels[n, i, j]), i, j]) for n, i, j in there) / len(there)
    assert float(cross_entropy(logits, labels)) == pytest.approx(by_hand, rel=1e-12)
    assert float(cross_entropy(logits, torch.full_like(labels, IGNORE))) == 0.0
    # class 255 of a classifier is a class
    assert float(cross_entropy(torch.zeros(2, 1000), torch.tensor([255, 255]))) == pytest.approx(
        torch.tensor(1000.0).log()
    )
    small = logits[:, :, ::2, ::2]
    assert torch.isfinite(cross_entropy(small, labels))  # answers at another size are brought to the labels'


@pytest.mark.parametrize("method", ["px", "px-path", "snip", "grasp"])
def test_what_lies_at_pixels_without_a_label_does_not_matter(method: str, batches: list[tuple[Tensor, Tensor]]) -> None:
    """A 1x1 convolution: a pixel's answer depends on that pixel alone, so pixels without a label may hold anything."""
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    (x, y), *_ = batches
    other = torch.where((y == IGNORE).unsqueeze(1), 7 * torch.randn_like(x), x)
    assert not torch.equal(x, other)
    first, second = (hf_px.score(model, method, batches=[(inputs, y)]) for inputs in (x, other))
    for name in first:
        torch.testing.assert_close(first[name], second[name], rtol=1e-5, atol=1e-12)
    without = hf_px.score(model, method, batches=[(x, torch.where(y == IGNORE, 0, y))])
    assert any(not torch.allclose(first[name], without[name], rtol=1e-3) for name in first)


def test_seen_follows_the_size_of_the_answer() -> None:
    labels = torch.zeros(1, 4, 4, dtype=torch.long)
    labels[:, :2] = IGNORE
    assert labelled_output(torch.ones(1, 3, 4, 4), labels).sum() == 3 * 8
    assert labelled_output(torch.ones(1, 3, 2, 2), labels).tolist() == [[[[0, 0], [1, 1]]] * 3]
    whole = torch.ones(1, 3)
    assert labelled_output(whole, torch.zeros(1, dtype=torch.long)) is whole and labelled_output(whole, None) is whole


# every method


@pytest.mark.parametrize("method", METHODS)
def test_no_layer_is_lost_without_a_word_and_min_per_layer_keeps_all(
    method: str, batches: list[tuple[Tensor, Tensor]]
) -> None:
    model = tiny()
    before = {name: t.clone() for name, t in model.state_dict().items()}
    rounds = {"grasp": 1, "magnitude": 1, "random": 1, "snip": 1}.get(method, 2)

    def mask_of(**kwargs: Any) -> tuple[hf_px.Mask | None, list[str], str]:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                mask = hf_px.prune(
                    model, method, sparsity=0.982, batches=batches, rounds=rounds, progress=False, **kwargs
                )
            except hf_px.core.errors.CollapseError as error:
                return None, [], str(error)
        return mask, [n for n, b in mask.bits.items() if not b.any()], " ".join(str(w.message) for w in warned)

    mask, emptied, warned = mask_of()
    if mask is None:  # no path is left: an error, not a mask
        assert "no path from input to output is left" in warned and "min_per_layer" in warned
    else:
        assert mask.kept == round((1 - 0.982) * mask.total)
        lost = hf_px.summary(model, mask, input_size=(3, 33, 33)).collapsed
        assert set(emptied) <= set(lost) and bool(lost) == ("the network runs without them" in warned)
        assert all(name in warned for name in lost[:2])
    mask, emptied, _ = mask_of(min_per_layer=64)
    assert mask is not None and not emptied and mask.kept == round((1 - 0.982) * mask.total)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_every_score_is_finite_and_path_scores_are_positive(batches: list[tuple[Tensor, Tensor]]) -> None:
    for method in set(hf_px.list_scorers()) - {"phew"}:  # whose walks take a minute on two million weights
        options = {"steps": 1} if method == "prospr" else {}
        scores = hf_px.score(tiny(), method, batches=batches, **options)
        assert all(bool(torch.isfinite(s).all()) for s in scores.values()), method
        if method in ("px", "px-path", "synflow"):
            assert all(bool((s >= 0).all()) for s in scores.values()), method


# why px starves the shorter of two branches


class TwoBranches(nn.Module):
    """y = head([short(x), long(x)]): one normalised layer against `depth` of them."""

    def __init__(self, depth: int) -> None:
        super().__init__()

        def layer() -> list[nn.Module]:
            return [nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]

        self.stem = nn.Conv2d(3, 8, 1, bias=False)
        self.short = nn.Sequential(*layer())
        self.long = nn.Sequential(*(part for _ in range(depth) for part in layer()))
        self.head = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.head(torch.cat([self.short(x), self.long(x)], 1))


def share(depth: int, method: str, **options: Any) -> float:
    """Of what flows through the two branches, the part of the short one."""
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    scores = hf_px.score(TwoBranches(depth), method, batches=[x], **options)
    short, long = (float(scores[name].double().sum()) for name in ("short.0.weight", "long.0.weight"))
    return short / (short + long)


def test_each_normalised_layer_of_a_branch_multiplies_its_share() -> None:
    """By 1 / Var relu(z) in px, where all inputs of h are 1, by E relu(z)² / Var relu(z) in px-path; not by "flow"."""
    variance = 1 / 2 - 1 / (2 * math.pi)  # of relu(z), z ~ N(0, 1)
    for factor, method, options in (
        (1 / variance, "px", {}),
        (1 / 2 / variance, "px-path", {}),
        (1.0, "px", {"norm": "flow"}),
    ):
        shares = [share(depth, method, **options) for depth in (1, 5, 9, 13)]
        odds = [p / (1 - p) for p in shares]
        assert odds[0] == pytest.approx(1, abs=0.5)
        for a, b in pairwise(odds):  # four layers more
            assert factor**4 / 2 < a / b < factor**4 * 2


def test_px_by_its_own_flow_is_the_formula() -> None:
    """One pixel, W2 bn(W1 x): h = γ² at the norm, whatever W1 is; so S2 = G θ2² γ², and S1 shares Σ S2 out by θ1²."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Conv2d(5, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1)).double()
    w1, gamma, w2 = model[0].weight, model[1].weight, model[3].weight
    nn.init.uniform_(gamma, 0.5, 2.0, generator=generator)
    x = torch.randn(7, 5, 1, 1, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        z = x.flatten(1) @ w1.flatten(1).T
        active = ((z - z.mean(0)) > 0).double()  # β = 0
        paths = (active * x.square().flatten(1).sum(1, keepdim=True)).sum()  # G: the same for every output
        second = paths * w2.flatten(1).square() * gamma.square()
        first = second.sum(0)[:, None] * w1.flatten(1).square() / w1.flatten(1).square().sum(1, keepdim=True)
    found = hf_px.score(model, "px", batches=[x], norm="flow")
    for name, by_hand in (("0.weight", first), ("3.weight", second)):
        mine = found[name].flatten(1)
        torch.testing.assert_close(mine / mine.sum(), by_hand / by_hand.sum(), rtol=1e-9, atol=0)


def test_px_by_its_own_flow_empties_no_layer_where_others_lose_one(batches: list[tuple[Tensor, Tensor]]) -> None:
    model = tiny()
    prune = partial(hf_px.prune, model, "px", sparsity=0.982, batches=batches, rounds=10, progress=False)
    with pytest.warns(UserWarning, match=r"low\.0\.weight.*`norm` flow"):
        assert not prune(norm="batch").bits["low.0.weight"].any()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="of .* layers")
        mask = prune()  # flow is the default of px for a segmenter
    assert hf_px.summary(model, mask, input_size=(3, 33, 33)).collapsed == []


def test_labels_of_a_batch_reach_the_scorer_as_they_are(batches: list[tuple[Tensor, Tensor]]) -> None:
    batch = Batches(batches).first()
    assert batch.labels is not None and batch.labels.shape == (4, 33, 33) and batch.row().labels.shape == (1, 33, 33)


def test_an_unknown_segmenter_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=re.escape("did you mean deeplabv3plus-resnet50")):
        check_name("deeplabv3-resnet50")
