"""Short names of backbones: one record each with source, licence, images and citation. Add a record to add a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..core.registry import Registry
from .convert_weights import convert_dino, convert_moco
from .image_config import ImageConfig
from .networks import MODELS

# evaluation of torchvision, MoCo v2 and DINO: the short side to 256, then a 224 x 224 centre crop
IMAGENET = ImageConfig((3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ImageConfig(
    (3, 224, 224), (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), "bicubic", crop_pct=0.9
)
DINO_VIT = ImageConfig((3, 224, 224), IMAGENET.mean, IMAGENET.std, "bicubic", crop_pct=0.9)
DINO_V2 = ImageConfig((3, 518, 518), IMAGENET.mean, IMAGENET.std, "bicubic", crop_pct=1.0)

CHEN = "Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation, ECCV 2018"
HE = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
KAIMING = "He et al., Delving Deep into Rectifiers, ICCV 2015"
DINO = "Caron et al., Emerging Properties in Self-Supervised Vision Transformers, ICCV 2021"
MOCO = "Chen et al., Improved Baselines with Momentum Contrastive Learning, arXiv 2003.04297, 2020"
RADFORD = "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021"
OQUAB = "Oquab et al., DINOv2: Learning Robust Visual Features without Supervision, TMLR 2024"
SIMONYAN = "Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015"


@dataclass(frozen=True)
class BackboneRecord:
    name: str
    summary: str  # one line
    architecture: str  # timm's name
    images: ImageConfig
    citation: str
    source: str | None = None  # Hub id or URL of the weights; None: random weights
    license: str | None = None  # licence of the weights, as the Hub spells it
    convert: Callable[..., Any] | None = None  # for checkpoints whose names differ from timm's


def _own(name: str, summary: str, citation: str) -> BackboneRecord:
    """The record of a network of ours, with random weights."""
    builder = MODELS[name]
    config = builder.pretrained_cfg()
    images = ImageConfig(**{key: config[key] for key in ("input_size", "mean", "std", "interpolation", "crop_pct")})
    return BackboneRecord(name, summary, builder.name, images, citation)


backbones: Registry[BackboneRecord] = Registry("backbone")
for _record in (
    BackboneRecord(
        "imagenet-resnet50",
        "ResNet-50 trained on ImageNet-1k by torchvision (its first weights)",
        "resnet50",
        IMAGENET,
        HE,
        "timm/resnet50.tv_in1k",
        "bsd-3-clause",
    ),
    BackboneRecord(
        "mocov2-resnet50",
        "ResNet-50 trained on ImageNet without labels by MoCo v2, 800 epochs; no head",
        "resnet50",
        IMAGENET,
        MOCO,
        "https://dl.fbaipublicfiles.com/moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
        "cc-by-nc-4.0",
        convert_moco,
    ),
    BackboneRecord(
        "clip-resnet50",
        "image tower of OpenAI's CLIP ResNet-50 with its attention pool; 1,024 outputs, the embedding",
        "resnet50_clip",
        CLIP,
        RADFORD,
        "timm/resnet50_clip.openai",
        "mit",
    ),
    BackboneRecord(
        "dino-resnet50",
        "ResNet-50 trained on ImageNet without labels by DINO; no head",
        "resnet50",
        IMAGENET,
        DINO,
        "https://dl.fbaipublicfiles.com/dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth",
        "apache-2.0",
        convert_dino,
    ),
    BackboneRecord(
        "dino-vit-s16",
        "ViT-S/16 trained on ImageNet without labels by DINO; no head",
        "vit_small_patch16_224",
        DINO_VIT,
        DINO,
        "timm/vit_small_patch16_224.dino",
        "apache-2.0",
    ),
    BackboneRecord(
        "dinov2-vit-s14",
        "ViT-S/14 trained on LVD-142M without labels by DINOv2; no head; 518x518 images, 1,369 patches: slow",
        "vit_small_patch14_dinov2",
        DINO_V2,
        OQUAB,
        "timm/vit_small_patch14_dinov2.lvd142m",
        "apache-2.0",
    ),
    BackboneRecord(
        "resnet50",
        "ResNet-50 for ImageNet, Kaiming-normal weights, residual branches open",
        "resnet50",
        IMAGENET,
        KAIMING,
    ),
    _own("resnet20", "CIFAR ResNet-20, Kaiming-normal weights, 1x1-convolution shortcuts", HE),
    _own("vgg16-cifar", "CIFAR VGG-16 with batch norm and one linear head, Kaiming-normal weights", SIMONYAN),
    _own("resnet18-tiny", "ResNet-18 for Tiny-ImageNet (3x3 stem, no max-pool), Kaiming-normal weights", HE),
    _own(
        "resnet50-original",
        "ResNet-50 as first published (Caffe, Keras): strides in 1x1 convolutions; Kaiming-normal weights",
        HE,
    ),
    *(
        _own(
            f"deeplabv3plus-{encoder}",
            f"DeepLabV3+ for segmentation on a {encoder}, whose weights come from --backbone; output stride 16",
            CHEN,
        )
        for encoder in ("resnet18", "resnet34", "resnet50", "resnet101")
    ),
):
    backbones.add(_record.name, _record)
