"""Short names for backbones, a record each: source, licence, images, citation. One `_add` is one more."""

from __future__ import annotations

from ..core.registry import BackboneRecord, Images, backbones
from .convert_weights import dino, moco
from .networks import MODELS
from .networks.original_resnet import MEAN

# as torchvision, MoCo v2 and DINO evaluate: the short side to 256, 224 x 224 from the middle
IMAGENET = Images((3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = Images(
    (3, 224, 224), (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), "bicubic", crop_pct=0.9
)
VOC = Images((3, 513, 513), IMAGENET.mean, IMAGENET.std, crop_pct=1.0)
CHEN = "Chen et al., Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation, ECCV 2018"
HE = "He et al., Deep Residual Learning for Image Recognition, CVPR 2016"
KAIMING = "He et al., Delving Deep into Rectifiers, ICCV 2015"
DINO = "Caron et al., Emerging Properties in Self-Supervised Vision Transformers, ICCV 2021"


def _add(record: BackboneRecord) -> None:
    backbones.add(record.name, record)


def _own(name: str) -> Images:
    """What a network of ours says of itself."""
    import torch

    with torch.device("meta"):
        told = MODELS[name]().pretrained_cfg
    return Images(told["input_size"], told["mean"], told["std"], told["interpolation"], told["crop_pct"])


_add(
    BackboneRecord(
        "imagenet-resnet50",
        "ResNet-50 trained on ImageNet-1k by torchvision (its first weights)",
        "timm/resnet50.tv_in1k",
        "resnet50",
        "bsd-3-clause",
        IMAGENET,
        HE,
    )
)
_add(
    BackboneRecord(
        "mocov2-resnet50",
        "ResNet-50 trained on ImageNet without labels by MoCo v2, 800 epochs; no head",
        "https://dl.fbaipublicfiles.com/moco/moco_checkpoints/moco_v2_800ep/moco_v2_800ep_pretrain.pth.tar",
        "resnet50",
        "cc-by-nc-4.0",
        IMAGENET,
        "Chen et al., Improved Baselines with Momentum Contrastive Learning, arXiv 2003.04297, 2020",
        moco,
    )
)
_add(
    BackboneRecord(
        "clip-resnet50",
        "image tower of OpenAI's CLIP ResNet-50, attention pool kept; 1,024 outputs, its embedding",
        "timm/resnet50_clip.openai",
        "resnet50_clip",
        "mit",
        CLIP,
        "Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021",
    )
)
_add(
    BackboneRecord(
        "dino-resnet50",
        "ResNet-50 trained on ImageNet without labels by DINO; no head",
        "https://dl.fbaipublicfiles.com/dino/dino_resnet50_pretrain/dino_resnet50_pretrain.pth",
        "resnet50",
        "apache-2.0",
        IMAGENET,
        DINO,
        dino,
    )
)
_add(
    BackboneRecord(
        "dino-vit-s16",
        "ViT-S/16 trained on ImageNet without labels by DINO; no head",
        "timm/vit_small_patch16_224.dino",
        "vit_small_patch16_224",
        "apache-2.0",
        Images((3, 224, 224), IMAGENET.mean, IMAGENET.std, "bicubic", crop_pct=0.9),
        DINO,
    )
)
_add(
    BackboneRecord(
        "dinov2-vit-s14",
        "ViT-S/14 trained on LVD-142M without labels by DINOv2; no head; 518x518 images, 1,369 patches: slow",
        "timm/vit_small_patch14_dinov2.lvd142m",
        "vit_small_patch14_dinov2",
        "apache-2.0",
        Images((3, 518, 518), IMAGENET.mean, IMAGENET.std, "bicubic", crop_pct=1.0),
        "Oquab et al., DINOv2: Learning Robust Visual Features without Supervision, TMLR 2024",
    )
)
_add(
    BackboneRecord(
        "resnet20",
        "CIFAR ResNet-20, Kaiming-normal weights, 1x1-convolution shortcuts",
        None,
        "resnet20_cifar",
        None,
        _own("resnet20"),
        HE,
    )
)
_add(
    BackboneRecord(
        "vgg16-cifar",
        "CIFAR VGG-16 with batch norm and one linear head, Kaiming-normal weights",
        None,
        "vgg16_cifar",
        None,
        _own("vgg16-cifar"),
        "Simonyan and Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition, ICLR 2015",
    )
)
_add(
    BackboneRecord(
        "resnet18-tiny",
        "ResNet-18 for Tiny-ImageNet (3x3 stem, no max-pool), Kaiming-normal weights",
        None,
        "resnet18_tiny",
        None,
        _own("resnet18-tiny"),
        HE,
    )
)
_add(
    BackboneRecord(
        "resnet50-original",
        "ResNet-50 as first published (Caffe's, Keras's): it halves images in 1x1 convolutions; Kaiming-normal weights",
        None,
        "resnet50_original",
        None,
        Images((3, 224, 224), MEAN, (1 / 255,) * 3),
        HE,
    )
)
for _encoder in ("resnet18", "resnet34", "resnet50", "resnet101"):
    _add(
        BackboneRecord(
            f"deeplabv3plus-{_encoder}",
            f"DeepLabV3+ for segmentation on a {_encoder}, whose weights come from --backbone; output stride 16",
            None,
            f"deeplabv3plus_{_encoder}",
            None,
            VOC,
            CHEN,
        )
    )
_add(
    BackboneRecord(
        "resnet50",
        "ResNet-50 for ImageNet, Kaiming-normal weights, residual branches open",
        None,
        "resnet50",
        None,
        IMAGENET,
        KAIMING,
    )
)
