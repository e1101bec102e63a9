"""describe(model) → a record, build(record) → the module without its weights: what config.json says of a ticket.

The record is the Hub's own: a transformers config, or timm's (architecture, num_classes, model_args, pretrained_cfg),
so that readers without hf_px understand it. It comes from strangers: names are looked up among what timm, transformers
and hf_px have, never imported; arguments are numbers and words, never files to read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import timm
import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from ..core.errors import TicketError
from ..core.forward import input_shape
from . import timm_register as _registered  # noqa: F401  # timm knows our networks too
from .networks import OLD_NAMES

# where timm would fetch weights from, and what it would do to a checkpoint of its own that a ticket's has behind it
_NOT_OURS = {"url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "custom_load", "label_offset"}
# no side, depth or count of a vision model is larger, nor an argument of timm's: libraries make lists of so many things
_MAX_NUMBER, _MAX_ARGUMENT = 2**20, 2**17
# steps in which an architecture may be built, for each tensor that the ticket has; the most that one of timm's needs is
# a fifth of this
_ROOM, _EACH = 5_000, 250
# what transformers would fetch code or settings for, at whatever depth of its config
_NOT_SETTINGS = {"auto_map", "quantization_config"}
# arguments of timm.create_model that read files or the network
_NOT_ARGUMENTS = {
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "checkpoint_path",
    "cache_dir",
    "features_only",
}


def describe(model: nn.Module, model_args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The record of a model; `model_args` are what a timm model was created with beyond its name and num_classes."""
    if isinstance(model, transformers.PreTrainedModel):
        record = json.loads(model.config.to_json_string(use_diff=True))
        for key in ("quantization_config", "transformers_weights", "auto_map"):
            record.pop(key, None)
        name = type(model).__name__
        if getattr(transformers, name, None) is type(model):
            _check_numbers(record)  # now rather than when it is loaded
            return record | {"architectures": [name], "dtype": str(model.dtype).removeprefix("torch.")}
        return _custom(model)
    config = getattr(model, "pretrained_cfg", None)
    known = config.get("architecture") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not (isinstance(known, str) and timm.is_model(known)):
        return _custom(model)
    kept = {
        k: v for k, v in config.items() if k not in _NOT_OURS and (v is not None or k in ("first_conv", "classifier"))
    }
    kept.pop("architecture")
    args = dict(model_args or {})
    channels = (input_shape(model) or (3,))[0]
    if channels != 3:
        args.setdefault("in_chans", channels)
        kept["first_conv"] = None  # or timm takes the stored weights for a three-channel stem, and changes them
    record = {"architecture": known, "num_classes": getattr(model, "num_classes", 0), "pretrained_cfg": kept}
    if hasattr(model, "num_features"):
        record["num_features"] = model.num_features
    if args:
        record["model_args"] = args
    try:
        record = json.loads(json.dumps(record))  # tuples become lists now, not after a round trip
    except (TypeError, ValueError) as error:
        raise TicketError(f"model_args: {error}; a ticket stores numbers, words and lists of them") from error
    _compare(model, record)
    return record


def _custom(model: nn.Module) -> dict[str, Any]:
    return {"custom": f"{type(model).__module__}.{type(model).__qualname__}"}


def _compare(model: nn.Module, record: dict[str, Any]) -> None:
    """See that the record leads back to this model, before anything is written."""
    own = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    try:
        built = shapes(record)
    except TicketError as error:
        raise TicketError(f"the model cannot be built from what it says of itself: {error}") from error
    odd = sorted(name for name in own.keys() | built.keys() if own.get(name) != built.get(name))
    if odd:
        raise TicketError(
            f"{odd[0]}: {own.get(odd[0], 'missing')} here, {built.get(odd[0], 'missing')} in a new "
            f"{record['architecture']}; pass model_args=, the keyword arguments it was created with"
        )


def shapes(
    record: Mapping[str, Any], num_classes: int | None = None, tensors: int | None = None
) -> dict[str, tuple[int, ...]]:
    """{state_dict name: shape} of the module that the record stands for; takes no memory.

    `tensors`, if the ticket's number of them is known, is how many it may have, roughly.
    """
    with torch.device("meta"), _at_most(tensors):
        return {name: tuple(t.shape) for name, t in _module(record, num_classes).state_dict().items()}


@contextmanager
def _at_most(tensors: int | None) -> Iterator[None]:
    """Give up on an architecture that goes on and on: a depth is one number in a record, and hours in a constructor."""
    if tensors is None:
        yield
        return
    left, thread = _ROOM + _EACH * tensors, threading.get_ident()

    def spend(steps: int) -> None:
        nonlocal left
        left -= steps if threading.get_ident() == thread else 0  # the hooks are for all threads
        if left < 0:
            raise TicketError(f"config.json: a far larger model than the ticket's {tensors} tensors; is it damaged?")

    class Steps(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            spend(1)
            return func(*args, **(kwargs or {}))

    hooks = (register_module_parameter_registration_hook, register_module_module_registration_hook)
    handles = [register(lambda *_: spend(10)) for register in hooks]
    try:
        with Steps():
            yield
    finally:
        for handle in handles:
            handle.remove()


def build(record: Mapping[str, Any], num_classes: int | None = None) -> nn.Module:
    """The module, with weights as a new one has them; for a record whose `shapes` are as expected."""
    return _module(record, num_classes).eval()


def filled(record: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
    """The module around these weights, which become its own.

    Most of the time to load a model goes into random weights that nobody wants: build it without any, if that is all
    it lacks then. Some have tensors besides, computed when they are built: those are built in full.
    """
    with torch.device("meta"):
        model = _module(record, None).eval()
    check_kinds(model, state)
    model.load_state_dict(state, assign=True)
    if any(tensor.is_meta for module in model.modules() for tensor in _tensors(module)):
        model = build(record)
        model.load_state_dict(state, assign=True)
    return model


def check_kinds(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Whole numbers for whole numbers, weights for weights; of what width is the ticket's affair."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() != state[name].is_floating_point():
            raise TicketError(f"{name}: {state[name].dtype} in the ticket, {tensor.dtype} in the architecture")


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers, and what else is a tensor in the module itself or in a list or dict that it has."""
    for value in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from (tensor for tensor in inner if isinstance(tensor, Tensor))


def _module(record: Mapping[str, Any], num_classes: int | None) -> nn.Module:
    if "custom" in record:
        raise TicketError(
            f"this ticket is of a {_short(record['custom'])}, which neither timm, transformers nor hf_px can build; "
            "build it yourself and call Ticket.from_pretrained(…).to_model(into=module)"
        )
    try:
        _check_numbers(record)
        if "model_type" in record:
            return _from_transformers(record, num_classes)
        if "architecture" in record:
            return _from_timm(record, num_classes)
    except TicketError:
        raise
    except Exception as error:  # what a stranger's numbers do to a constructor can be anything
        name = _short(record.get("architecture") or record.get("model_type"))
        raise TicketError(f"config.json: {name} cannot be built with these settings ({_brief(error)})") from error
    raise TicketError("config.json names neither a model_type nor an architecture; is this a model's?")


def transformers_class(record: Mapping[str, Any], num_classes: int | None) -> tuple[Any, Any]:
    """(model class, config) of a transformers record; both are transformers' own."""
    kind, names = record["model_type"], record.get("architectures")
    if kind not in transformers.CONFIG_MAPPING:
        raise TicketError(f"config.json: transformers {transformers.__version__} knows no model type {_short(kind)}")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise TicketError(f"config.json: transformers {transformers.__version__} has no model {_short(names)}")
    config = transformers.CONFIG_MAPPING[kind].from_dict(_harmless(record))
    if num_classes is not None:
        config.num_labels = num_classes
    return cls, config


def _harmless(settings: Any) -> Any:
    """A transformers config, and those within it, without what fetches code; an error where it names other models."""
    if isinstance(settings, list):
        return [_harmless(value) for value in settings]
    if not isinstance(settings, Mapping):
        return settings
    if settings.get("use_pretrained_backbone"):
        raise TicketError("config.json: use_pretrained_backbone would fetch other weights; a ticket brings its own")
    kind, backbone = settings.get("model_type"), settings.get("backbone")
    if kind == "timm_wrapper":
        check_timm(settings)
    # a name that timm has builds a module; any other, and any at all elsewhere, is looked up on the Hub
    known = isinstance(backbone, str) and backbone.isidentifier() and timm.is_model(backbone)
    if backbone is not None and not (kind == "timm_backbone" and known):
        raise TicketError(f"config.json: the backbone {_short(backbone)} would be fetched; a ticket brings its own")
    # attention by the name of a repo is a kernel, that is code, on the Hub
    dropped = {key for key in settings if key in _NOT_SETTINGS or str(key).endswith("_implementation")}
    return {key: _harmless(value) for key, value in settings.items() if key not in dropped}


def _check_numbers(value: Any, most: int = _MAX_NUMBER) -> None:
    if isinstance(value, int) and abs(value) > most:
        raise TicketError(f"config.json: {_short(value)} is no size, depth or count of a vision model")
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _check_numbers(inner, most)


def _from_transformers(record: Mapping[str, Any], num_classes: int | None) -> nn.Module:
    cls, config = transformers_class(record, num_classes)
    dtype = record.get("dtype")
    return cls._from_config(config, dtype=getattr(torch, dtype) if dtype in ("float16", "bfloat16") else torch.float32)


def _from_timm(record: Mapping[str, Any], num_classes: int | None) -> nn.Module:
    args = check_timm(record)
    name = OLD_NAMES.get(record["architecture"], record["architecture"])
    count = record.get("num_classes") if num_classes is None else num_classes
    if not isinstance(count, int) or count < 0:
        raise TicketError(f"config.json: num_classes is {_short(count)}, not a number of classes")
    config = {k: v for k, v in record.get("pretrained_cfg", {}).items() if k not in _NOT_OURS}
    return timm.create_model(name, num_classes=count, pretrained_cfg=config | {"architecture": name}, **args)


def check_timm(record: Mapping[str, Any]) -> dict[str, Any]:
    name, args, config = record.get("architecture"), record.get("model_args") or {}, record.get("pretrained_cfg", {})
    if not isinstance(name, str) or not (name in OLD_NAMES or (name.isidentifier() and timm.is_model(name))):
        raise TicketError(f"config.json: timm {timm.__version__} has no model {_short(name)}; is a newer timm needed?")
    if not isinstance(args, dict) or not isinstance(config, dict):
        raise TicketError("config.json: model_args and pretrained_cfg must be objects; the file is damaged")
    if odd := sorted(_NOT_ARGUMENTS & args.keys()):
        raise TicketError(f"config.json: model_args may not set {odd[0]}, which would read other files; refused")
    _check_numbers(args, _MAX_ARGUMENT)
    return args


def new_head(record: Mapping[str, Any], state: Mapping[str, Tensor], num_classes: int | None) -> list[str]:
    """Tensors of `state` that a module with `num_classes` classes draws anew; a TicketError for any other misfit."""
    expected = shapes(record, num_classes, tensors=len(state))
    if odd := sorted(state.keys() ^ expected.keys()):
        where = "the architecture" if odd[0] in expected else "the ticket"
        raise TicketError(f"{odd[0]}: only {where} has this tensor; is the ticket one for another architecture?")
    misfits = [name for name, tensor in state.items() if tuple(tensor.shape) != expected[name]]
    for name in misfits:
        have, want = tuple(state[name].shape), expected[name]
        # a head differs in its first side alone, the classes
        if num_classes is None or have[1:] != want[1:] or want[0] != num_classes:
            raise TicketError(f"{name}: {have} in the ticket, {want} in the architecture; is it for another one?")
    return misfits


def _short(value: Any) -> str:
    """As an error shows it: a stranger's value may be anything, at any length."""
    text = repr(value)
    return text if len(text) <= 100 else text[:100] + "…"


def _brief(error: BaseException) -> str:
    return " ".join((str(error).strip() or type(error).__name__).split())[:200]
