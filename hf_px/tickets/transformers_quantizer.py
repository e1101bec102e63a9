"""transformers loads tickets by itself: `AutoModel….from_pretrained` after `import hf_px`, and saves their mask too.

To transformers a ticket is a quantisation method named hf_px. Packed tensors become whole ones while they are loaded,
by a conversion; the mask goes along with the model, and `model.save_pretrained` writes it into the header of
model.safetensors, after it has seen that the zeros are still zeros.

This file is imported in the midst of transformers' own imports (see hf_px/__init__.py): what it needs beyond those is
imported where it is used.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps, WeightConverter, revert_weight_conversion
from transformers.modeling_utils import PreTrainedModel
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..core.errors import TicketError
from ..core.mask import Mask
from ..keep_zeros import violations
from ..models.config_marks import NOT_FOR_TIMM, TICKET
from . import ticket_file
from .ticket_file import MASK, PACKED, VALUES, Contents


@register_quantization_config(TICKET)
class TicketConfig(QuantizationConfigMixin):
    """`quantization_config` in config.json: which of a ticket's files to load."""

    def __init__(self, layout: str = "dense", **_: Any) -> None:
        self.quant_method = TICKET  # type: ignore[assignment]
        self.layout = layout


@register_quantizer(TICKET)
class TicketQuantizer(HfQuantizer):
    """Loads a ticket's weights into a model that stays an ordinary one, and keeps its mask."""

    requires_calibration = False
    quantization_config: TicketConfig

    def __init__(self, quantization_config: TicketConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.mask = Mask({})
        self.ticket: dict[str, Any] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._found: dict[str, Tensor] = {}  # by the model's own names, as the conversions meet them

    # transformers passes the config through here on the way to the files, before it has looked for any
    def update_attn_implementation(self, config: Any) -> Any:
        if self.pre_quantized and self.quantization_config.layout == "packed":
            config.transformers_weights = PACKED
            if isinstance(name := getattr(config, "architecture", None), str):
                config.architecture = name.removesuffix(NOT_FOR_TIMM)
        return config

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        self._shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        self._files = checkpoint_files or []
        self._contents = _told_by(checkpoint_files)

    def get_weight_conversions(self) -> list[WeightConverter]:
        return [WeightConverter([VALUES, MASK], "", operations=[_Unpack(self)])]

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any = None) -> list[Any]:
        return [*weight_conversions, *self.get_weight_conversions()]

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        # _Unpack checks bytes as they were stored, and converts what it makes of them
        return None if isinstance(converter, WeightConverter) else dtype

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **kwargs: Any) -> bool:
        """Yes, which from 5.23 on means: shapes are this quantizer's to look at, as they were before; see below."""
        return True

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        # an unpacking cannot be undone by transformers, which would try when it saves
        model._weight_conversions = [
            step
            for step in getattr(model, "_weight_conversions", None) or []
            if not any(isinstance(op, _Unpack) for op in getattr(step, "operations", ()))
        ]
        _check_names(model, self._files, self._contents)
        drawn = self._draw_new_head_(model)
        bits = dict(self._found)
        if self._contents is not None:
            self.ticket = self._contents.ticket
            if not bits:  # the dense copy: its mask is in the header
                own = {name: own for own, name in checkpoint_names(model).items()}
                bits = {own[name]: b for name, b in self._contents.mask.bits.items() if name in own}
                bits |= _without_prefix(model, self._contents.mask.bits, own)
        self.mask = Mask({name: b for name, b in bits.items() if name not in drawn})
        # unpacked, they cannot be anything else
        for name, count in violations(dict(model.state_dict()), self.mask).items() if not self._found else ():
            raise TicketError(f"{self._files[0]}: {name}: {count:,} pruned weights are not zero; the file is damaged")
        self.quantization_config.layout = "dense"  # as which save_pretrained will write it
        return model

    def _draw_new_head_(self, model: PreTrainedModel) -> list[str]:
        """With a quantizer at work transformers does not look at shapes: a new head would get the old one's weights."""
        own = dict(model.named_parameters(remove_duplicate=False))
        drawn = [name for name, p in own.items() if name in self._shapes and p.shape != self._shapes[name]]
        for name, buffer in model.named_buffers():
            if name in self._shapes and buffer.shape != self._shapes[name]:
                have, want = tuple(buffer.shape), tuple(self._shapes[name])
                raise TicketError(f"{name}: {have} in the ticket, {want} in the model; is it for another architecture?")
        for name in drawn:
            have, want = tuple(own[name].shape), tuple(self._shapes[name])
            if have[1:] != want[1:] or want[0] != getattr(model.config, "num_labels", None):
                raise TicketError(f"{name}: {have} in the ticket, {want} in the model; is it for another architecture?")
            module = model.get_submodule(name.rpartition(".")[0])
            fresh = torch.empty(want, dtype=own[name].dtype, device=own[name].device)
            setattr(module, name.rpartition(".")[2], nn.Parameter(fresh))
        for name in sorted({name.rpartition(".")[0] for name in drawn}):
            module = model.get_submodule(name)
            module.reset_parameters()  # type: ignore[operator]
        if drawn:
            warnings.warn(
                f"{', '.join(drawn)} drawn anew for {model.config.num_labels} classes: train the head before use; it "
                "is not pruned",
                stacklevel=2,
            )
        return drawn

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[None, dict[str, str]]:
        """Asked by save_pretrained: the weights as they are, and the mask for the header."""
        _check(model, self.mask)
        return None, _header(model, self.mask, self.ticket)

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True

    @property
    def is_qat_trainable(self) -> bool:
        return True  # or Trainer asks for adapters: the weights are ordinary ones

    @property
    def is_compileable(self) -> bool:
        return True


class _Unpack(ConversionOps):
    """NAME:values, NAME:mask → TICKET."""

    def __init__(self, quantizer: TicketQuantizer) -> None:
        self.hf_quantizer = quantizer

    def __deepcopy__(self, memo: dict[int, Any]) -> _Unpack:
        return self  # transformers copies a conversion for each tensor; the mask is gathered in one place

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], full_layer_name: str = "", model: Any = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        parts = {key: value[0] if isinstance(value, list) else value for key, value in input_dict.items()}
        if set(parts) != {VALUES, MASK}:
            raise TicketError(f"{full_layer_name}: lacks its mask or its values; the file is damaged")
        values, stream = parts[VALUES], parts[MASK]
        own = model.get_parameter_or_buffer(full_layer_name)
        try:
            # a new head may be smaller than the stored one
            found = ticket_file.decode(stream.cpu(), values.cpu(), limit=max(own.numel(), 2**26))
        except TicketError as error:
            raise TicketError(f"{full_layer_name}: {error}") from error
        self.hf_quantizer._found[full_layer_name] = found.bits()
        return {full_layer_name: found.weight(values).to(values.device, own.dtype)}

    @property
    def reverse_op(self) -> ConversionOps:
        raise NotImplementedError("a ticket is saved with its zeros, never packed under transformers' own file name")


def mask_of(model: nn.Module) -> Mask:
    """The mask that a transformers model was loaded with."""
    quantizer = getattr(model, "hf_quantizer", None)
    if not isinstance(quantizer, TicketQuantizer):
        raise ValueError(
            f"this {type(model).__name__} carries no mask: only transformers models loaded from a ticket do; "
            "Ticket.from_pretrained(…).mask has it for all others"
        )
    return quantizer.mask


def attach_(model: PreTrainedModel, mask: Mask, ticket: Mapping[str, Any]) -> None:
    """Let a transformers model carry its mask, as one that transformers has loaded from a ticket does."""
    config = TicketConfig()
    quantizer = TicketQuantizer(config, pre_quantized=True)
    quantizer.mask, quantizer.ticket = mask, dict(ticket)
    model.config.quantization_config = config
    for name, value in (("hf_quantizer", quantizer), ("is_quantized", True), ("quantization_method", TICKET)):
        setattr(model, name, value)


def checkpoint_names(model: nn.Module) -> dict[str, str]:
    """{state_dict name: name in a saved file}: transformers saves some models under other names than they have."""
    state = model.state_dict()
    if not isinstance(model, PreTrainedModel):
        return {name: name for name in state}
    marks = {name: torch.empty(0, i) for i, name in enumerate(state)}  # known again by their shape
    saved = revert_weight_conversion(model, dict(marks))
    names = {list(marks)[mark.shape[1]]: name for name, mark in saved.items() if mark.dim() == 2}
    if names.keys() != state.keys():
        odd = sorted(state.keys() - names.keys())
        raise TicketError(f"{odd[0]}: transformers saves it merged with others, which a mask cannot follow")
    return names


def _without_prefix(model: PreTrainedModel, bits: Mapping[str, Tensor], own: Mapping[str, str]) -> dict[str, Tensor]:
    """AutoModel from the ticket of a classifier, or the other way: the names differ by the base model's prefix."""
    prefix = f"{model.base_model_prefix}."
    found = {}
    for name, b in bits.items():
        for other in (name.removeprefix(prefix), prefix + name):
            if name not in own and other in own:
                found[own[other]] = b
    return found


def _told_by(files: list[str] | None) -> Contents | None:
    """What the checkpoint says of itself; None for one that is not a ticket's, such as a later one without its mask."""
    if not files or len(files) != 1 or Path(files[0]).suffix != ".safetensors" or ticket_file.told_by(files[0]) is None:
        return None
    return ticket_file.read(files[0], weights=False)


def _check_names(model: PreTrainedModel, files: list[str], contents: Contents | None) -> None:
    """A tensor that the files lack is drawn at random by transformers, which only mentions it.

    That is right for the head of another task; a model of the class that was saved has all its tensors.
    """
    if type(model).__name__ not in (model.config.architectures or ()):
        return
    there = set(contents.tied) if contents is not None else set()
    for path in files:
        if Path(path).suffix != ".safetensors":
            return
        with safe_open(path, framework="pt") as file:
            there |= {name.removesuffix(VALUES) for name in file.offset_keys()}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    may_lack = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_missing", None) or ()]
    for own, name in checkpoint_names(model).items():
        if name not in there and own not in tied and not any(pattern.search(own) for pattern in may_lack):
            raise TicketError(f"{files[0]}: lacks {name}; it is damaged, or config.json is another model's")


def _check(model: nn.Module, mask: Mask) -> None:
    for name, count in violations(dict(model.state_dict()), mask).items():
        raise TicketError(
            f"{name}: {count:,} pruned weights are not zero; train with hf_px.keep(model, mask, optimizer) or "
            "Trainer(callbacks=[hf_px.KeepZeros()])"
        )


def _header(model: PreTrainedModel, mask: Mask, ticket: Mapping[str, Any]) -> dict[str, str]:
    from ..models import architecture

    names = checkpoint_names(model)
    bits = Mask({names[name]: b for name, b in mask.bits.items()})
    renamed = {name: own for own, name in names.items() if name != own}
    record = architecture.describe(model)
    # results were measured on other weights than these
    told = {key: value for key, value in ticket.items() if key not in ("results", "command")}
    contents = Contents("dense", None, record, told, lambda: bits, renamed=renamed)
    return {"hf_px": ticket_file.header(contents, {}, {name: ticket_file.text_of(b) for name, b in bits.bits.items()})}
