"""One name, any source: short names, timm's, models on the Hub or on disk, weights files, their addresses.

    load("imagenet-resnet50", num_classes=10)                   a short name: `hf-px backbones` lists them
    load("timm/resnet50.tv_in1k"), load("resnet50d")            timm's: with a tag trained weights, without one random
    load("microsoft/resnet-18", revision="…")                   transformers' and timm's models on the Hub
    load("./my-vit")                                            a directory that holds one
    load("moco.pth.tar", architecture="mocov2-resnet50")        a file, an https:// address, or a repo of one file
    load("deeplabv3plus-resnet50", backbone="mocov2-resnet50")  a segmenter on any of these that fits

What is drawn at random (a new head, or all) comes from `seed` alone, and leaves torch's generator as it was.
"""

from __future__ import annotations

from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg
from torch import nn

from ..core.errors import TicketError, first_line
from ..core.head import head_of
from ..core.registry import BackboneRecord, backbones
from .hub_repo import from_repo
from .load_weights import from_file
from .loaded_model import NO_WEIGHTS, How, Loaded, open_branches_
from .names import check_name, kind_of, known_as, means_trained, on_hub
from .networks import ARCHITECTURES, PREFIX, DeepLabV3Plus, encoder_of, kaiming_normal_
from .remote import Source

__all__ = ["Loaded", "check_name", "load"]


def load(
    name: str,
    *,
    pretrained: bool | None = None,
    num_classes: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    token: str | bool | None = None,
    architecture: str | None = None,
    backbone: str | None = None,
) -> Loaded:
    """The backbone of that name; `num_classes` other than the source's gives it a new head.

    pretrained      None: trained weights where the name asks for them (all but bare architectures)
    revision        a commit, tag or branch on the Hub
    architecture    of a weights file: a timm name, one of ours, or a short name whose checkpoints are converted
    backbone        of a segmenter: the classifier whose body becomes its encoder; pretrained, revision and architecture
                    are then the backbone's
    """
    check_name(name, pretrained=pretrained, architecture=architecture, backbone=backbone)
    if num_classes is not None and (type(num_classes) is not int or num_classes < 1):
        raise ValueError(f"num_classes: {num_classes!r} is not a number of classes; 1 or more")
    if backbone is not None:
        body = load(
            backbone, pretrained=pretrained, seed=seed, revision=revision, token=token, architecture=architecture
        )
        return _on_backbone(name, backbone, body, How(num_classes, seed, None, None))
    kind, trained = kind_of(name), means_trained(name, pretrained)
    if revision is not None and not (trained and on_hub(name)):
        raise ValueError(f"{name}: does not come from the Hub and has no revisions; leave revision out")
    record = backbones[name] if kind == "record" else None
    how = How(num_classes, seed, revision, token)
    if architecture is not None:
        return from_file(name, kind, architecture, how)
    if kind in ("directory", "hub"):
        return from_repo(name, trained, how)
    if record is None or (trained and record.source is None):  # resnet50 with weights: timm's
        return _from_timm(name.removeprefix("timm/"), trained, how)
    if not trained:
        return Loaded(_random(record, how))
    assert record.source is not None
    if record.source.startswith("timm/"):
        found = _from_timm(record.source.removeprefix("timm/"), True, how)
        # the same in timm's registry today; the record is what we promise
        found.model.pretrained_cfg.update(record.images.config())  # type: ignore[operator, union-attr]
    else:
        found = from_file(record.source, "url", record.name, how)
    return Loaded(found.model, found.base, found.revision, record.license, record.citation, True, found.new_head)


def _random(record: BackboneRecord, how: How) -> nn.Module:
    """W ~ N(0, 2 / fan_in), as in the paper; of a record that has trained weights, as timm draws them."""
    if record.architecture in ARCHITECTURES:
        return _own(record.architecture, how)
    overlay = {**NO_WEIGHTS, **record.images.config(), "test_input_size": None, "test_crop_pct": None}
    with how.drawing():
        model = timm.create_model(
            record.architecture, pretrained_cfg_overlay=overlay, num_classes=how.num_classes or None
        )
    if record.source is None:
        kaiming_normal_(model, torch.Generator().manual_seed(how.seed))
    return open_branches_(model.eval())


def _own(architecture: str, how: How) -> nn.Module:
    head = {} if how.num_classes is None else {"num_classes": how.num_classes}
    return ARCHITECTURES[architecture](**head, generator=torch.Generator().manual_seed(how.seed)).eval()


def _on_backbone(name: str, backbone: str, body: Loaded, how: How) -> Loaded:
    """A segmenter whose encoder is the body of a classifier; the rest is drawn at random."""
    encoder = encoder_of(name)
    assert encoder is not None  # check_name has seen to it
    model: Any = _own(f"{PREFIX}{encoder}", how)
    assert isinstance(model, DeepLabV3Plus)
    own, theirs = model.backbone.state_dict(), body.model.state_dict()
    other = [key for key in own if key not in theirs or theirs[key].shape != own[key].shape]
    # more than a head would be another network: resnet50d, say, has all that a ResNet-50 has but in its stem
    heads = tuple(f"{key.rpartition('.')[0]}." for key in head_of(body.model))
    other += [key for key in theirs if key not in own and not (heads and key.startswith(heads))]
    if other:
        raise ValueError(
            f"backbone {backbone}: {other[0]} does not fit; {name} is built on timm's {encoder}, as {known_as(encoder)}"
        )
    model.backbone.load_state_dict({key: theirs[key] for key in own})
    images = getattr(body.model, "pretrained_cfg", {})
    model.pretrained_cfg |= {key: tuple(images[key]) for key in ("mean", "std") if key in images}
    drawn = [key for key, _ in model.named_parameters() if not key.startswith("backbone.")]
    return Loaded(model, body.base, body.revision, body.license, body.citation, body.trained, tuple(drawn))


def _from_timm(name: str, trained: bool, how: How) -> Loaded:
    if not trained:
        if name in ARCHITECTURES:
            return Loaded(_own(name, how))
        with how.drawing():
            return Loaded(open_branches_(timm.create_model(name, num_classes=how.num_classes).eval()))
    told = get_pretrained_cfg(name)
    assert told is not None  # a name with weights
    source = Source(told.hf_hub_id or "", how.revision, how.token)
    overlay: dict[str, Any] = {}
    try:
        if source.name and not told.custom_load:
            # fetched here, not by timm, which cannot be given a revision and a token
            files = [told.hf_hub_filename] if told.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
            path = next((path for file in files if (path := source.file(file)) is not None), None)
            if path is None:
                raise TicketError(f"{source.name} has neither of {', '.join(files)}")
            overlay = {"file": str(path)}
        # with the source's own head, since timm is strict with no other
        with how.drawing():
            model: Any = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    except (OSError, TicketError) as error:  # no network, no such file on the Hub
        raise ValueError(f"{name}: no pretrained weights from the Hub: {first_line(error)}") from error
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{name}: its weights do not load: {' '.join(str(error).split())[:300]}") from error
    model.pretrained_cfg.pop("file", None)
    return Loaded(
        model,
        base=source.name or (told.url if isinstance(told.url, str) else None) or None,
        revision=source.revision if overlay else None,
        license=told.license,
        trained=True,
        new_head=how.with_head_(model),
    )
