"""describe(model) → the record in a ticket's config.json, build(record) → the module without the ticket's weights.

The record has the Hub's own format: a transformers config, or timm's (architecture, num_classes, model_args,
pretrained_cfg), so that other libraries understand it. Records are untrusted: names are looked up among those of timm,
transformers and hf_px, never imported; arguments are numbers and strings, never files to read. A network that `shrink`
cut has its widths in the record, and is cut again when it is built.
"""

from __future__ import annotations

import importlib.metadata
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from ..channels.widths import Widths, widths_of
from ..core.errors import TicketError, first_line
from .config_marks import OF_TORCHVISION, WIDTHS
from .networks import ARCHITECTURES, OLD_NAMES, SEGMENTERS

# entries of pretrained_cfg that locate timm's own weights, or change them when timm loads them
_WEIGHTS_KEYS = {"url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "custom_load", "label_offset"}
# upper bounds of sizes, depths and counts of vision models, and of timm's arguments: libraries allocate lists this long
_MAX_NUMBER, _MAX_ARGUMENT = 2**20, 2**17
# budget of steps to build an architecture: a constant plus this many per tensor; timm's models need a fifth of it
_BASE_STEPS, _STEPS_PER_TENSOR = 5_000, 250
# keys of a transformers config, at any depth, that make it fetch code or settings
_FETCHING_KEYS = {"auto_map", "quantization_config"}
# entries of pretrained_cfg, besides those of our networks, that change no tensor
_ORDINARY = {"crop_mode", "label_names", "fixed_input_size"}
# arguments of timm.create_model that read files or the network
_READING_ARGUMENTS = {
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
    "checkpoint_path",
    "cache_dir",
    "features_only",
}


def describe(model: nn.Module, model_args: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The record of a model; `model_args` are a timm model's arguments besides its name and num_classes."""
    record, widths = _describe(model, model_args), widths_of(model)
    if widths is not None:
        if "custom" in record:
            raise TicketError(
                f"{record['custom']}: was cut by shrink, and neither timm, transformers nor hf_px builds it"
            )
        record[WIDTHS] = widths.to_dict()
    if "architecture" in record:
        _compare(model, record)
    return record


def _describe(model: nn.Module, model_args: Mapping[str, Any] | None) -> dict[str, Any]:
    import timm
    import transformers

    from ..core.forward import input_shape  # here: loading a ticket does not need it

    if isinstance(model, transformers.PreTrainedModel):
        record = json.loads(model.config.to_json_string(use_diff=True))
        for key in ("quantization_config", "transformers_weights", "auto_map"):
            record.pop(key, None)
        name = type(model).__name__
        if getattr(transformers, name, None) is type(model):
            _check_numbers(record)  # now rather than when the ticket is loaded
            return record | {"architectures": [name], "dtype": str(model.dtype).removeprefix("torch.")}
        return _custom(model)
    config = getattr(model, "pretrained_cfg", None)
    known = config.get("architecture") if isinstance(config, Mapping) else None
    if not isinstance(config, Mapping) or not (isinstance(known, str) and timm.is_model(known)):
        return _custom(model)
    kept = {
        k: v
        for k, v in config.items()
        if k not in _WEIGHTS_KEYS and (v is not None or k in ("first_conv", "classifier"))
    }
    kept.pop("architecture")
    args = dict(model_args or {})
    channels = (input_shape(model) or (3,))[0]
    if channels != 3:
        args.setdefault("in_chans", channels)
        kept["first_conv"] = None  # otherwise timm converts the stored weights as if they had three channels
    record = {"architecture": known, "num_classes": getattr(model, "num_classes", 0), "pretrained_cfg": kept}
    if hasattr(model, "num_features"):
        record["num_features"] = model.num_features
    if args:
        record["model_args"] = args
    try:
        record = json.loads(json.dumps(record))  # tuples become lists now, not after a round trip
    except (TypeError, ValueError) as error:
        raise TicketError(f"`model_args`: {error}; a ticket stores numbers, strings and lists of them") from error
    return record


def _custom(model: nn.Module) -> dict[str, Any]:
    return {"custom": f"{type(model).__module__}.{type(model).__qualname__}"}


def _compare(model: nn.Module, record: dict[str, Any]) -> None:
    """Check that the record builds a model of the same shapes, before anything is written."""
    own = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    try:
        built = shapes(record)
    except TicketError as error:
        raise TicketError(f"the model cannot be built from its own record: {error}") from error
    odd = sorted(name for name in own.keys() | built.keys() if own.get(name) != built.get(name))
    if odd:
        raise TicketError(
            f"{odd[0]}: {own.get(odd[0], 'missing')} here, {built.get(odd[0], 'missing')} in a new "
            f"{record['architecture']}; pass `model_args`, the keyword arguments it was created with"
        )


def shapes(
    record: Mapping[str, Any], num_classes: int | None = None, tensors: int | None = None
) -> dict[str, tuple[int, ...]]:
    """{state_dict name: shape} of the record's module, built on the meta device without memory.

    `tensors`, if known, is the ticket's number of tensors, which limits how large the module may be.
    """
    return {name: tuple(t.shape) for name, t in on_meta(record, num_classes, tensors).state_dict().items()}


def on_meta(record: Mapping[str, Any], num_classes: int | None = None, tensors: int | None = None) -> nn.Module:
    """The record's module without memory for its tensors; `tensors` as in shapes."""
    with torch.device("meta"), _step_budget(tensors):
        own = _own_network(record, num_classes)
        return _module(record, num_classes) if own is None else _cut_(own, record)


def _own_network(record: Mapping[str, Any], num_classes: int | None) -> nn.Module | None:
    """One of our networks as timm's registry would build it, without the seconds that timm's import takes.

    None for any record out of the ordinary, which timm then builds, or refuses.
    """
    name, args, config = record.get("architecture"), record.get("model_args", {}), record.get("pretrained_cfg", {})
    builder = ARCHITECTURES.get(OLD_NAMES.get(name, name)) if isinstance(name, str) else None
    if builder is None or builder.uses_timm or record.keys() & {"model_type", "custom"}:
        return None
    if not isinstance(args, dict) or not isinstance(config, dict) or args.keys() - {"in_chans"}:
        return None
    size, count = config.get("input_size"), record.get("num_classes") if num_classes is None else num_classes
    channels = args.get("in_chans", size[0] if isinstance(size, list) and size else None)
    if type(channels) is not int or type(count) is not int or min(channels, count) < 1:
        return None
    if config.keys() - builder.pretrained_cfg().keys() - _ORDINARY or config.get("fixed_input_size"):
        return None
    _check_numbers(record)
    _check_numbers(args, _MAX_ARGUMENT)
    return builder.make(count, channels)  # without its random weights, for which torch imports its compiler


@contextmanager
def _step_budget(tensors: int | None) -> Iterator[None]:
    """Stop building an architecture that is too large: one large `depth` can keep a constructor busy for hours."""
    if tensors is None:
        yield
        return
    left, thread = _BASE_STEPS + _STEPS_PER_TENSOR * tensors, threading.get_ident()

    def spend(steps: int) -> None:
        nonlocal left
        left -= steps if threading.get_ident() == thread else 0  # hooks are global, also for other threads
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
    """The module, newly initialised; check its `shapes` first."""
    return _module(record, num_classes).eval()


def filled(record: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
    """The module with these tensors assigned as its weights; those on the meta device stay there.

    Built on the meta device, because most of the time to load a model goes into random weights that are overwritten.
    Models that compute further tensors in their constructor are built in full.
    """
    with torch.device("meta"):
        model = _module(record, None).eval()
    check_kinds(model, state)
    model.load_state_dict(state, assign=True)
    given = {id(t) for name, t in model.state_dict(keep_vars=True).items() if state[name].is_meta}
    if any(t.is_meta and id(t) not in given for module in model.modules() for t in _held_tensors(module)):
        model = build(record)
        model.load_state_dict(state, assign=True)
    return model


def full_width(record: Mapping[str, Any]) -> nn.Module | None:
    """The architecture of a network that shrink has cut, before the cut, at random weights; None if it is not cut."""
    return build({key: value for key, value in record.items() if key != WIDTHS}) if WIDTHS in record else None


def full_shapes(record: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """{state_dict name: shape} before the cut; empty if it is not cut."""
    return shapes({key: value for key, value in record.items() if key != WIDTHS}) if WIDTHS in record else {}


def check_kinds(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Floating-point tensors must be floating point in the ticket, integers integers; widths may differ."""
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() != state[name].is_floating_point():
            raise TicketError(f"{name}: {state[name].dtype} in the ticket, {tensor.dtype} in the architecture")


def _held_tensors(module: nn.Module) -> Iterator[Tensor]:
    """Parameters, buffers, and tensors in attributes of the module or in a list or dict of its attributes."""
    for value in (*module._parameters.values(), *module._buffers.values(), *vars(module).values()):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        yield from (tensor for tensor in inner if isinstance(tensor, Tensor))


def _module(record: Mapping[str, Any], num_classes: int | None) -> nn.Module:
    if "custom" in record:
        raise TicketError(
            f"the model is a {record['custom']!r:.100}, which neither timm, transformers nor hf_px can build; "
            "build it yourself and call Ticket.from_pretrained(…).to_model(into=module)"
        )
    try:
        _check_numbers(record)
        if "model_type" in record:
            return _cut_(_build_transformers(record, num_classes), record)
        if "architecture" in record:
            return _cut_(_build_timm(record, num_classes), record)
    except TicketError:
        raise
    except Exception as error:  # constructors may raise anything on untrusted arguments
        name = record.get("architecture") or record.get("model_type")
        reason = f"{first_line(error):.200}"
        raise TicketError(f"config.json: {name!r:.100} cannot be built with these settings ({reason})") from error
    raise TicketError("config.json has neither model_type nor architecture; does it belong to a model?")


def _cut_(model: nn.Module, record: Mapping[str, Any]) -> nn.Module:
    """The model at the widths of its record, if it has any."""
    if WIDTHS not in record:
        return model
    shapes = {name: tuple(t.shape) for name, t in (*model.named_parameters(), *model.named_buffers())}
    return Widths.from_dict(record[WIDTHS], shapes).cut_(model)


def transformers_class(record: Mapping[str, Any], num_classes: int | None) -> tuple[Any, Any]:
    """(model class, config) of a transformers record, both defined by transformers itself."""
    import transformers

    kind, names = record["model_type"], record.get("architectures")
    if kind not in transformers.CONFIG_MAPPING:
        raise TicketError(f"config.json: transformers {transformers.__version__} has no model type {kind!r:.100}")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    cls = getattr(transformers, name, None)
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise TicketError(f"config.json: transformers {transformers.__version__} has no model {names!r:.100}")
    config = transformers.CONFIG_MAPPING[kind].from_dict(_harmless({k: v for k, v in record.items() if k != WIDTHS}))
    if num_classes is not None:
        config.num_labels = num_classes
    return cls, config


def _harmless(settings: Any) -> Any:
    """A transformers config and its nested ones, without keys that fetch code; raises if it names another model."""
    import timm

    if isinstance(settings, list):
        return [_harmless(value) for value in settings]
    if not isinstance(settings, Mapping):
        return settings
    if settings.get("use_pretrained_backbone"):
        raise TicketError("config.json: use_pretrained_backbone would download other weights than the ticket's")
    kind, backbone = settings.get("model_type"), settings.get("backbone")
    if kind == "timm_wrapper":
        check_timm(settings)
    # only in timm_backbone, and only for timm's own names, is this an architecture; otherwise it is a repo on the Hub
    known = isinstance(backbone, str) and backbone.isidentifier() and timm.is_model(backbone)
    if backbone is not None and not (kind == "timm_backbone" and known):
        raise TicketError(f"config.json: the backbone {backbone!r:.100} would be downloaded from the Hub; refused")
    # attn_implementation may name a repo on the Hub whose kernel code is executed
    dropped = {key for key in settings if key in _FETCHING_KEYS or str(key).endswith("_implementation")}
    return {key: _harmless(value) for key, value in settings.items() if key not in dropped}


def _check_numbers(value: Any, most: int = _MAX_NUMBER) -> None:
    if isinstance(value, int) and abs(value) > most:
        raise TicketError(f"config.json: {value!r:.100} is too large for a size, depth or count of a vision model")
    for inner in value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ():
        _check_numbers(inner, most)


def _build_transformers(record: Mapping[str, Any], num_classes: int | None) -> nn.Module:
    cls, config = transformers_class(record, num_classes)
    dtype = record.get("dtype")
    return cls._from_config(config, dtype=getattr(torch, dtype) if dtype in ("float16", "bfloat16") else torch.float32)


def _build_timm(record: Mapping[str, Any], num_classes: int | None) -> nn.Module:
    import timm

    args = check_timm(record)
    name = OLD_NAMES.get(record["architecture"], record["architecture"])
    count = record.get("num_classes") if num_classes is None else num_classes
    if not isinstance(count, int) or count < 0:
        raise TicketError(f"config.json: num_classes is {count!r:.100}, not a number of classes")
    config = {k: v for k, v in record.get("pretrained_cfg", {}).items() if k not in _WEIGHTS_KEYS}
    return timm.create_model(name, num_classes=count, pretrained_cfg=config | {"architecture": name}, **args)


def check_timm(record: Mapping[str, Any]) -> dict[str, Any]:
    """Check an untrusted timm record; returns its model_args."""
    import timm

    name, args, config = record.get("architecture"), record.get("model_args") or {}, record.get("pretrained_cfg", {})
    if not isinstance(name, str) or not (name in OLD_NAMES or (name.isidentifier() and timm.is_model(name))):
        library, version = "timm", timm.__version__
        if isinstance(name, str) and name.startswith(OF_TORCHVISION):
            library, version = "torchvision", importlib.metadata.version("torchvision")
            name = name.removeprefix(OF_TORCHVISION)
        raise TicketError(f"config.json: {library} {version} has no model {name!r:.100}; is a newer {library} needed?")
    if not isinstance(args, dict) or not isinstance(config, dict):
        raise TicketError("config.json: model_args and pretrained_cfg must be objects; the file is damaged")
    if odd := sorted(_READING_ARGUMENTS & args.keys()):
        raise TicketError(f"config.json: model_args may not set {odd[0]}, which would read other files; refused")
    _check_numbers(args, _MAX_ARGUMENT)
    return args


def new_head(record: Mapping[str, Any], state: Mapping[str, Tensor], num_classes: int | None) -> list[str]:
    """Names of the tensors that `num_classes` other than the ticket's replaces; raises for any other misfit."""
    expected = shapes(record, num_classes, tensors=len(state))
    if odd := sorted(state.keys() ^ expected.keys()):
        where = "the architecture" if odd[0] in expected else "the ticket"
        raise TicketError(f"{odd[0]}: only {where} has this tensor; is the ticket for another architecture?")
    misfits = [name for name, tensor in state.items() if tuple(tensor.shape) != expected[name]]
    for name in misfits:
        have, want = tuple(state[name].shape), expected[name]
        # a head differs only in its first dimension, the classes
        if num_classes is None or have[1:] != want[1:] or want[0] != num_classes:
            raise TicketError(f"{name}: {have} in the ticket, {want} in the architecture; is it for another one?")
    return misfits


def pipeline_task(record: Mapping[str, Any]) -> str | None:
    """The Hub's pipeline_tag of a record's model: image-segmentation, image-classification, or None."""
    names = record.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if record.get("architecture") in SEGMENTERS or name.endswith("ForSemanticSegmentation"):
        return "image-segmentation"
    if record.get("num_classes") or name.endswith("ForImageClassification"):
        return "image-classification"
    return None
