"""load(name): a model by short name, timm name, Hub id, directory, weights file or URL.

    load("imagenet-resnet50", num_classes=10)                   a short name: `hf-px backbones` lists them
    load("timm/resnet50.tv_in1k"), load("resnet50d")            timm: trained weights with a tag, random ones without
    load("torchvision/resnet50"), load("torchvision/resnet50.imagenet1k_v2")      torchvision: random, or trained
    load("microsoft/resnet-18", revision="…")                   transformers and timm models on the Hub
    load("./my-vit")                                            a directory with such a model
    load("moco.pth.tar", architecture="mocov2-resnet50")        a file, an https:// URL, or a repo with one file
    load("deeplabv3plus-resnet50", backbone="mocov2-resnet50")  a segmenter with the weights of a classifier

Random weights (a new head, or all) depend on `seed` alone; torch's global generator is restored.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import timm
import torch
from timm.models import get_pretrained_cfg
from torch import nn

from ..core.errors import TicketError, first_line
from ..core.head import head_of
from .hub_repo import from_repo
from .load_weights import from_file
from .loaded_model import NO_WEIGHTS, LoadedModel, LoadOptions, open_branches_
from .names import check_name, kind_of, means_trained, on_hub, trained_names
from .networks import ARCHITECTURES, PREFIX, DeepLabV3Plus, encoder_of, kaiming_normal_
from .records import BackboneRecord, backbones
from .remote import Source
from .torchvision_models import check_hash, images_of, registered_name, weights_of
from .weights_file import fetch

__all__ = ["LoadedModel", "check_name", "load"]


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
) -> LoadedModel:
    """The model of that name; `num_classes` other than the source's gives it a new head.

    pretrained      None: trained weights, except for the bare name of an architecture
    revision        a commit, tag or branch on the Hub
    architecture    of a weights file: a name of timm, torchvision or ours, or a short name, whose files are converted
    backbone        of a segmenter: the classifier whose body becomes its encoder; pretrained, revision and architecture
                    are then the backbone's
    """
    check_name(name, pretrained=pretrained, architecture=architecture, backbone=backbone)
    if num_classes is not None and (type(num_classes) is not int or num_classes < 1):
        raise ValueError(f"`num_classes`: {num_classes!r} is not a number of classes; 1 or more")
    if backbone is not None:
        body = load(
            backbone, pretrained=pretrained, seed=seed, revision=revision, token=token, architecture=architecture
        )
        return _with_backbone(name, backbone, body, LoadOptions(num_classes, seed))
    kind, trained = kind_of(name), means_trained(name, pretrained)
    if revision is not None and not (trained and on_hub(name)):
        raise ValueError(f"{name}: does not come from the Hub and has no revisions; omit `revision`")
    record = backbones[name] if kind == "record" else None
    options = LoadOptions(num_classes, seed, revision, token)
    if architecture is not None:
        return from_file(name, kind, architecture, options)
    if kind in ("directory", "hub"):
        return from_repo(name, trained, options)
    if kind == "torchvision":
        return _load_torchvision(name, trained, options)
    if record is None or (trained and record.source is None):  # for example resnet50 with pretrained=True
        return _load_timm(name.removeprefix("timm/"), trained, options)
    if not trained:
        return LoadedModel(_random_weights(record, options))
    assert record.source is not None
    if record.source.startswith("timm/"):
        loaded = _load_timm(record.source.removeprefix("timm/"), True, options)
        # the record is what we document; timm's registry may change
        loaded.model.pretrained_cfg.update(asdict(record.images))  # type: ignore[operator, union-attr]
    else:
        loaded = from_file(record.source, "url", record.name, options)
    return replace(loaded, license=record.license, citation=record.citation)


def _load_torchvision(name: str, trained: bool, options: LoadOptions) -> LoadedModel:
    bare = name.partition(".")[0]
    if not trained:
        return _load_timm(registered_name(bare), False, options)
    weights = weights_of(name)
    check_hash(fetch(weights.url))
    loaded = from_file(weights.url, "url", bare, options)
    loaded.model.pretrained_cfg.update(images_of(bare, weights))  # type: ignore[operator, union-attr]
    return loaded


def _random_weights(record: BackboneRecord, options: LoadOptions) -> nn.Module:
    """W ~ N(0, 2 / fan_in), as in the paper; timm's own initialisation if the record has trained weights."""
    if record.architecture in ARCHITECTURES:
        return _own_network(record.architecture, options)
    overlay = {**NO_WEIGHTS, **asdict(record.images), "test_input_size": None, "test_crop_pct": None}
    with options.seeded():
        model = timm.create_model(
            record.architecture, pretrained_cfg_overlay=overlay, num_classes=options.num_classes or None
        )
    if record.source is None:
        kaiming_normal_(model, torch.Generator().manual_seed(options.seed))
    return open_branches_(model.eval())


def _own_network(architecture: str, options: LoadOptions) -> nn.Module:
    generator = torch.Generator().manual_seed(options.seed)
    return ARCHITECTURES[architecture](num_classes=options.num_classes, generator=generator).eval()


def _with_backbone(name: str, backbone: str, body: LoadedModel, options: LoadOptions) -> LoadedModel:
    """A segmenter whose encoder is the body of a classifier; its other weights are random."""
    encoder = encoder_of(name)
    assert encoder is not None  # by check_name
    model: Any = _own_network(f"{PREFIX}{encoder}", options)
    assert isinstance(model, DeepLabV3Plus)
    own, theirs = model.backbone.state_dict(), body.model.state_dict()
    misfits = [key for key in own if key not in theirs or theirs[key].shape != own[key].shape]
    # any tensor besides the head means another network: resnet50d differs from ResNet-50 only in its stem
    heads = tuple(f"{key.rpartition('.')[0]}." for key in head_of(body.model))
    misfits += [key for key in theirs if key not in own and not (heads and key.startswith(heads))]
    if misfits:
        raise ValueError(
            f"`backbone` {backbone}: {misfits[0]} does not fit; {name} needs timm's {encoder}, for example "
            f"{trained_names(encoder)}"
        )
    model.backbone.load_state_dict({key: theirs[key] for key in own})
    images = getattr(body.model, "pretrained_cfg", {})
    model.pretrained_cfg |= {key: tuple(images[key]) for key in ("mean", "std") if key in images}
    new = [key for key, _ in model.named_parameters() if not key.startswith("backbone.")]
    return replace(body, model=model, new_head=tuple(new))


def _load_timm(name: str, trained: bool, options: LoadOptions) -> LoadedModel:
    if not trained:
        if name in ARCHITECTURES:
            return LoadedModel(_own_network(name, options))
        with options.seeded():
            return LoadedModel(open_branches_(timm.create_model(name, num_classes=options.num_classes).eval()))
    config = get_pretrained_cfg(name)
    assert config is not None  # a name with weights
    source = Source(config.hf_hub_id or "", options.revision, options.token)
    overlay: dict[str, Any] = {}
    try:
        if source.name and not config.custom_load:
            # downloaded here, because timm takes neither revision nor token
            named = config.hf_hub_filename
            overlay = {"file": str(source.weights([named]) if named else source.weights())}
        # with the source's own head: timm loads strictly only then
        with options.seeded():
            model: Any = timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    except (OSError, TicketError) as error:
        raise ValueError(f"{name}: no pretrained weights from the Hub: {first_line(error)}") from error
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{name}: its weights do not load: {' '.join(str(error).split())[:300]}") from error
    model.pretrained_cfg.pop("file", None)
    return LoadedModel(
        model,
        base=source.name or (config.url if isinstance(config.url, str) else None) or None,
        revision=source.revision if overlay else None,
        license=config.license,
        trained=True,
        new_head=options.with_head_(model),
    )
