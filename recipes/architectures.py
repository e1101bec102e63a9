"""What works: every scorer on 54 architectures of timm and transformers, made narrow, as a Markdown table.

    python recipes/architectures.py                       the table of hf_px/scorers/README.md
    python recipes/architectures.py --only resnet vit     architectures whose name contains one of these words
    python recipes/architectures.py --random 20 --seed 0  20 families of timm at random, by the methods that use paths

A tick means finite scores, exactly as many weights as asked for, and a model that is bit for bit unchanged. A new
architecture is one line in ZOO, which tests/laws/test_sweep.py reads too.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import timm
import torch
from timm.models import byobnet, levit, maxxvit, metaformer, mlp_mixer, regnet, resnetv2, vgg
from torch import Tensor, nn
from tqdm.auto import tqdm

import hf_px
from hf_px.core.errors import HfPxError, UnsupportedModelError, first_line
from hf_px.core.registry import scorers

CLASSES = 5


@dataclass(frozen=True)
class Architecture:
    name: str
    build: Callable[[], nn.Module]
    size: int  # of the images; batch norm needs several positions in the last feature map

    def model(self) -> nn.Module:
        """The network at seeded random weights, in training mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return fill_zeros_(self.build()).train()

    def batches(self, count: int = 1, samples: int = 4) -> list[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(1)
        shape = (samples, 3, self.size, self.size)
        labels = torch.arange(samples) % CLASSES
        return [(torch.randn(shape, generator=generator), labels) for _ in range(count)]


@torch.no_grad()
def fill_zeros_(model: nn.Module) -> nn.Module:
    """Small random values for parameters that start at zero.

    In many networks a last batch norm, a layer scale or a head of zeros cuts off all paths behind it, which is a
    NoSignalError. The first training step changes them; here a random draw does.
    """
    generator = torch.Generator().manual_seed(2)
    for p in model.parameters():
        if p.numel() and not p.any():
            p.copy_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def _timm(name: str, **changes: Any) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=CLASSES, **changes)


def _vgg(**options: Any) -> nn.Module:
    plan = [8, "M", 16, "M", 16, 16, "M", 32, 32, "M", 32, 32, "M"]  # VGG-11, an eighth as wide or less
    return vgg.VGG(plan, num_classes=CLASSES, mlp_ratio=1 / 64, **options)


def _regnet(**options: Any) -> nn.Module:
    plan = regnet.RegNetCfg(depth=6, w0=8, wa=8.0, wm=2.0, group_size=8, stem_width=8, **options)
    return regnet.RegNet(plan, num_classes=CLASSES, zero_init_last=False)


def _byob(like: str, width: int, depth: int, size: int, **changes: Any) -> Callable[[], nn.Module]:
    """A bring-your-own-blocks network of timm, its stages `width` times narrower and at most `depth` deep."""
    plan = byobnet.model_cfgs[like]
    blocks = tuple(dataclasses.replace(b, c=b.c // width, d=min(b.d, depth)) for b in plan.blocks)
    plan = dataclasses.replace(plan, blocks=blocks, **changes)
    return lambda: byobnet.ByobNet(plan, num_classes=CLASSES, img_size=size, zero_init_last=False)


def _maxxvit(like: str, size: int) -> Callable[[], nn.Module]:
    plan = dataclasses.replace(
        maxxvit.model_cfgs[like], embed_dim=(32, 32, 64, 64), depths=(1, 1, 1, 1), stem_width=(16, 32)
    )
    return lambda: maxxvit.MaxxVit(plan, img_size=size, num_classes=CLASSES)


def _mixer(**options: Any) -> nn.Module:
    return mlp_mixer.MlpMixer(CLASSES, img_size=32, patch_size=8, num_blocks=2, embed_dim=32, **options)


def _levit(**options: Any) -> nn.Module:
    shape = {"embed_dim": (32, 48, 64), "key_dim": 8, "depth": (1, 1, 1), "num_heads": (2, 3, 4)}
    return levit.Levit(img_size=64, num_classes=CLASSES, down_op="subsample", **shape, **options)


def _metaformer(**options: Any) -> nn.Module:
    return metaformer.MetaFormer(num_classes=CLASSES, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), **options)


def _transformers(name: str, **config: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        plan = getattr(transformers, f"{name}Config")(num_labels=CLASSES, **config)
        return getattr(transformers, f"{name}ForImageClassification")(plan)

    return build


_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 3}
_SWIN = {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 4)}
_RESNET = {"channels": (8, 8, 16, 16), "zero_init_last": False}
_HF_VIT = {"image_size": 32, "patch_size": 8, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}

ZOO: list[Architecture] = [
    # timm's own miniatures
    *(Architecture(name, _timm(name), 48) for name in (
        "test_byobnet", "test_convnext", "test_convnext2", "test_convnext3", "test_efficientnet",
        "test_efficientnet_evos", "test_efficientnet_gn", "test_efficientnet_ln", "test_nfnet", "test_resnet",
    )),
    Architecture("test_mambaout", _timm("test_mambaout"), 48),
    *(Architecture(name, _timm(name, img_size=48), 48) for name in ("test_vit", "test_vit2", "test_vit3", "test_vit4")),
    # since timm 1.0.31
    *(Architecture(name, _timm(name), 160) for name in ("test_coatnet", "test_maxvit", "test_vit_relpos")
      if timm.is_model(name)),
    # convolutional families
    Architecture("resnet18", _timm("resnet18", **_RESNET), 48),
    Architecture("resnet50", _timm("resnet50", **_RESNET), 48),
    Architecture("resnet50_clip", _byob("resnet50_clip", 16, 2, 48, stem_chs=(4, 4, 8)), 48),
    Architecture("resnetv2_50", _timm("resnetv2_50", channels=(16, 16, 32, 32), stem_chs=8), 48),
    Architecture("resnetv2_bit", lambda: resnetv2.ResNetV2([1] * 4, (128,) * 4, CLASSES, stem_chs=32), 48),
    Architecture("nf_resnet26", _timm("nf_resnet26", channels=(32, 32, 48, 48), stem_chs=8), 48),
    Architecture("res2net50_14w_8s", _timm("res2net50_14w_8s", layers=(1, 1, 1, 1), **_RESNET), 48),
    Architecture("vgg11", _vgg, 32),
    Architecture("vgg11_bn", lambda: _vgg(norm_layer=nn.BatchNorm2d), 48),
    Architecture("repvgg_a0", _byob("repvgg_a0", 8, 2, 48, stem_chs=8), 48),
    Architecture("densenet121", _timm("densenet121", growth_rate=8, block_config=(2, 2, 2, 2)), 48),
    Architecture("regnetx", _regnet, 48),
    Architecture("regnety", lambda: _regnet(se_ratio=0.25), 48),
    Architecture("convnext", _timm("convnext_atto", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32)), 48),
    Architecture("convnextv2", _timm("convnextv2_atto", depths=(1, 1, 2, 1), dims=(8, 16, 24, 32)), 48),
    Architecture("tinynet_e", _timm("tinynet_e"), 48),
    Architecture("mobilenetv2_035", _timm("mobilenetv2_035"), 48),
    Architecture("mobilenetv3_small_050", _timm("mobilenetv3_small_050"), 48),
    Architecture("ghostnet_050", _timm("ghostnet_050"), 48),
    # attention and token mixing
    Architecture("vit", _timm("vit_tiny_patch16_224", **_VIT), 32),
    Architecture("vit_siglip", _timm("vit_base_patch16_siglip_224", **_VIT), 32),
    Architecture("deit_distilled", _timm("deit_tiny_distilled_patch16_224", **_VIT), 32),
    Architecture("swin", _timm("swin_tiny_patch4_window7_224", **_SWIN), 32),
    Architecture("swinv2", _timm("swinv2_tiny_window8_256", **_SWIN), 32),
    Architecture("mixer", _mixer, 32),
    Architecture("resmlp", lambda: _mixer(mlp_ratio=4, block_layer=mlp_mixer.ResBlock,
                                          norm_layer=mlp_mixer.Affine), 32),
    Architecture("gmlp", lambda: _mixer(mlp_ratio=4, block_layer=mlp_mixer.SpatialGatingBlock,
                                        mlp_layer=mlp_mixer.GatedMlp), 32),
    Architecture("levit", _levit, 64),
    Architecture("poolformer", lambda: _metaformer(mlp_act=nn.GELU, mlp_bias=True, use_mlp_head=False), 48),
    Architecture("poolformerv2", _metaformer, 48),
    Architecture("xcit", _timm("xcit_nano_12_p16_224", img_size=32, embed_dim=32, depth=2, num_heads=2), 32),
    Architecture("cait", _timm("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2), 32),
    Architecture("coatnet", _maxxvit("coatnet_nano_rw", 64), 64),
    # transformers
    Architecture("transformers ResNet", _transformers(
        "ResNet", embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1], layer_type="basic"), 48),
    Architecture("transformers ViT", _transformers("ViT", intermediate_size=96, **_HF_VIT), 32),
    Architecture("transformers Dinov2", _transformers("Dinov2", mlp_ratio=2, **_HF_VIT), 32),
]  # fmt: skip

# scorers that run the same code, and so pass or fail together
GROUPS = {
    "px, px-path": ["px", "px-path"],
    "synflow, -l2, logsynflow": ["synflow", "synflow-l2", "logsynflow"],
    "phew": ["phew"],
    "ntk-sap": ["ntk-sap"],
    "snip, iter-snip, force": ["snip", "iter-snip", "force"],
    "grasp, prospr": ["grasp", "prospr"],
    "wanda, obs": ["wanda", "obs"],
    "magnitude, random": ["magnitude", "random"],
}
OPTIONS = {"phew": {"walks": 16, "walkers": 4}, "prospr": {"lr": 0.01}}


def families(count: int, seed: int) -> list[Architecture]:
    """The smallest network of each of `count` families (modules) of timm, at its own image size, or 256 if larger."""
    drawn = Random(seed).sample(timm.list_modules(), count)
    return [smallest(family) for family in sorted(drawn)]


def smallest(family: str) -> Architecture:
    """By its number of weights, counted without memory; names that cannot be built so are left out."""

    def count(name: str, **changes: Any) -> int:
        with torch.device("meta"):
            return sum(p.numel() for p in timm.create_model(name, **changes).parameters())

    sizes: dict[str, int] = {}
    for name in timm.list_models(module=family):
        try:
            sizes[name] = count(name)
        except (RuntimeError, NotImplementedError, TypeError):
            continue
    name = min(sizes, key=lambda name: (sizes[name], name))
    size = timm.get_pretrained_cfg(name).input_size[-1]
    if size <= 256:
        return Architecture(name, _timm(name), size)
    try:
        count(name, img_size=256)
    except TypeError:  # of any size
        return Architecture(name, _timm(name), 256)
    return Architecture(name, _timm(name, img_size=256), 256)


def cell(architecture: Architecture, names: list[str], sparsity: float) -> str:
    model, batches = architecture.model(), architecture.batches()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in names:
        try:
            options = OPTIONS.get(name, {})
            # one round of a method meant for a hundred may empty a layer of so narrow a network
            mask = hf_px.prune(
                model, name, sparsity=sparsity, batches=batches, rounds=1, min_per_layer=4, progress=False, **options
            )
        except UnsupportedModelError as error:
            found = re.search("the operation (.*?), so", str(error))
            return f"no: {found[1] if found else first_line(error)}"
        except (HfPxError, RuntimeError, ValueError) as error:
            return f"no: {type(error).__name__}, {first_line(error)}"
        same = all(tensor.equal(before[key]) for key, tensor in model.state_dict().items())
        if mask.kept != round((1 - sparsity) * mask.total) or not same:
            return f"{name}: wrong"
    return "✓"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="WORD", help="architectures whose name contains one of these words"
    )
    parser.add_argument("--random", type=int, metavar="N", help="instead of these: N families of timm, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default %(default)s)")
    parser.add_argument("--sparsity", type=float, default=0.3, help="(default %(default)s)")
    options = parser.parse_args()
    known = families(options.random, options.seed) if options.random else ZOO
    chosen = [a for a in known if any(word in a.name for word in options.only or [""])]
    if not chosen:
        parser.error(f"no architecture's name contains {' or '.join(options.only)}; see ZOO in this file")
    warnings.simplefilter("ignore")
    assert sorted(n for names in GROUPS.values() for n in names) == hf_px.list_scorers(), "a new scorer needs a column"
    columns = {name: group for name, group in GROUPS.items() if not options.random or scorers[group[0]].paths}
    rows: dict[tuple[str, ...], list[str]] = {}  # architectures with the same cells share a row
    for architecture in tqdm(chosen, unit="model"):
        cells = tuple(cell(architecture, names, options.sparsity) for names in columns.values())
        tqdm.write(f"{architecture.name}: {', '.join(cells)}", file=sys.stderr)
        rows.setdefault(cells, []).append(f"`{architecture.name}`")
    print("| architectures | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for cells, names in rows.items():
        print(f"| {', '.join(names)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
