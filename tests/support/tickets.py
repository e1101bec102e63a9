"""Small real models with their masks, for the tests of tickets."""

from __future__ import annotations

from collections.abc import Sequence

import timm
import torch
from torch import nn

import hf_px
from hf_px.core.mask import Mask
from hf_px.models.networks import resnet20

RESULT = {"dataset": "uoft-cs/cifar10", "split": "test", "metric": "accuracy", "value": 0.9, "dense": 0.93}


def pruned(model: nn.Module, sparsity: float = 0.8) -> tuple[nn.Module, Mask]:
    """The model with its zeros, in eval mode, and a mask in which one kept weight of each tensor is exactly zero."""
    mask = hf_px.prune(model, "random", sparsity=sparsity, min_per_layer=8, keep_head=False, progress=False)
    with torch.no_grad():
        for name, weight in mask.tensors_of(model).items():
            weight[tuple(mask.bits[name].nonzero()[0])] = 0.0
    return mask.apply_(model).eval(), mask


def timm_ticket(num_classes: int = 5, seed: int = 0) -> tuple[nn.Module, Mask]:
    torch.manual_seed(seed)
    return pruned(timm.create_model("test_resnet", num_classes=num_classes, zero_init_last=False))


def own_ticket(seed: int = 0) -> tuple[nn.Module, Mask]:
    return pruned(resnet20(generator=torch.Generator().manual_seed(seed)))


def transformers_ticket(seed: int = 0, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Mask]:
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
    return pruned(ResNetForImageClassification(config).to(dtype))


def deeplab_ticket(seed: int = 0, side: int = 33, names: Sequence[str] = ()) -> tuple[nn.Module, Mask]:
    """A segmenter of five classes."""
    torch.manual_seed(seed)
    model = timm.create_model("deeplabv3plus_test_resnet", num_classes=5)
    model.pretrained_cfg |= {"input_size": (3, side, side), **({"label_names": list(names)} if names else {})}
    return pruned(model)


def segformer_ticket(seed: int = 0) -> tuple[nn.Module, Mask]:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    torch.manual_seed(seed)
    tiny = {"depths": [1] * 4, "hidden_sizes": [8] * 4, "num_attention_heads": [1] * 4, "decoder_hidden_size": 8}
    return pruned(SegformerForSemanticSegmentation(SegformerConfig(**tiny, image_size=64, num_labels=4)))


def same_state(one: nn.Module, other: nn.Module) -> bool:
    """Names, dtypes and bytes: -0.0 is not 0.0 here."""
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(
        a[n].dtype == b[n].dtype and a[n].shape == b[n].shape and torch.equal(_raw(a[n]), _raw(b[n])) for n in a
    )


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)
