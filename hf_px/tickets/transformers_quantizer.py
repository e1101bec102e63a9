"""transformers integration: after `import hf_px`, `AutoModel….from_pretrained` loads tickets and keeps their mask.

A ticket is a quantisation method named hf_px. A weight conversion unpacks packed tensors during loading. The mask stays
with the model, and `model.save_pretrained` writes it into the header of model.safetensors after checking that pruned
weights are still zero.

This module is imported during the import of transformers itself (see hf_px/__init__.py), so other imports are local
to the functions that need them.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import warnings
import weakref
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
from ..models.config_marks import NOT_FOR_TIMM, TICKET, WIDTHS
from ..sparse_training import violations
from .file_parts import JOINED, MASK, VALUES
from .mask_codec import decode, mask_to_base64
from .ticket_file import PACKED, Contents, header_json, read_header, read_ticket_file, separate_chunks


@register_quantization_config(TICKET)
class TicketConfig(QuantizationConfigMixin):
    """`quantization_config` in config.json: whether to load the packed or the dense file."""

    def __init__(self, layout: str = "dense", **_: Any) -> None:
        self.quant_method = TICKET  # type: ignore[assignment]
        self.layout = layout


@register_quantizer(TICKET)
class TicketQuantizer(HfQuantizer):
    """Loads a ticket's weights as ordinary dense parameters, and keeps its mask."""

    requires_calibration = False
    quantization_config: TicketConfig

    def __init__(self, quantization_config: TicketConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.mask = Mask({})
        self.ticket: dict[str, Any] = {}
        self._shapes: dict[str, torch.Size] = {}
        self._unpacked: dict[str, Tensor] = {}  # masks of the unpacked tensors, under the model's names

    # the only hook that sees the config before transformers looks for weight files
    def update_attn_implementation(self, config: Any) -> Any:
        if getattr(config, WIDTHS, None) is not None:
            raise TicketError(
                "this ticket is a network with fewer channels than its architecture, which transformers cannot build; "
                "hf_px.from_pretrained loads it"
            )
        if self.pre_quantized and self.quantization_config.layout == "packed":
            config.transformers_weights = PACKED
            if isinstance(name := getattr(config, "architecture", None), str):
                config.architecture = name.removesuffix(NOT_FOR_TIMM)
        return config

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **kwargs: Any
    ) -> None:
        self._shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        self._files = list(checkpoint_files or [])
        self._contents = _read_contents(checkpoint_files)
        self._loaded = checkpoint_files or []
        if self._contents is not None and (read_header(self._files[0]) or {})["version"] == JOINED:
            self._loaded[0] = self._separate_copy(self._files[0])

    def _separate_copy(self, path: str) -> str:
        """A copy of a joined file with a tensor for each part, in which transformers finds its tensors by name."""
        from ..models.remote import disk_error

        folder = tempfile.mkdtemp(prefix="hf-px-")
        self._remove_copy = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # if loading fails, too
        copy = Path(folder) / PACKED
        try:
            with open(copy, "wb") as file:
                file.writelines(separate_chunks(path))
        except OSError as error:
            raise disk_error(error) from error
        return str(copy)

    def get_weight_conversions(self) -> list[WeightConverter]:
        return [WeightConverter([VALUES, MASK], "", operations=[_Unpack(self)])]

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any = None) -> list[Any]:
        return [*weight_conversions, *self.get_weight_conversions()]

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        # _Unpack verifies checksums of the stored bytes, so it converts the dtype itself, afterwards
        return None if isinstance(converter, WeightConverter) else dtype

    def param_needs_quantization(self, model: PreTrainedModel, param_name: str, **kwargs: Any) -> bool:
        """True: from transformers 5.23 on this leaves shape checks to the quantizer (_replace_head_)."""
        return True

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        # transformers would try to revert the unpacking when it saves
        model._weight_conversions = [
            step
            for step in getattr(model, "_weight_conversions", None) or []
            if not any(isinstance(op, _Unpack) for op in getattr(step, "operations", ()))
        ]
        _check_names(model, self._files, self._loaded, self._contents)
        if self._loaded != self._files:
            self._remove_copy()
        new_head = self._replace_head_(model)
        bits = dict(self._unpacked)
        if self._contents is not None:
            self.ticket = self._contents.ticket
            if not bits:  # a dense file has its mask in the header
                own = {name: own for own, name in checkpoint_names(model).items()}
                bits = {own[name]: b for name, b in self._contents.mask.bits.items() if name in own}
                bits |= _without_prefix(model, self._contents.mask.bits, own)
        bits = {name: b for name, b in bits.items() if name not in new_head}
        # a new head, or tensors that the ticket leaves out
        self.mask = Mask(bits, tuple(Mask(bits).left_out(model)))
        # after unpacking, pruned weights are zero by construction
        for name, count in violations(dict(model.state_dict()), self.mask).items() if not self._unpacked else ():
            raise TicketError(f"{self._files[0]}: {name}: {count:,} pruned weights are not zero; the file is damaged")
        self.quantization_config.layout = "dense"  # the layout that save_pretrained writes
        return model

    def _replace_head_(self, model: PreTrainedModel) -> list[str]:
        """Initialise a head of another size; with a quantizer transformers does not check shapes itself."""
        own = dict(model.named_parameters(remove_duplicate=False))
        new_head = [name for name, p in own.items() if name in self._shapes and p.shape != self._shapes[name]]
        for name, buffer in model.named_buffers():
            if name in self._shapes and buffer.shape != self._shapes[name]:
                raise self._misfit(name, buffer)
        for name in new_head:
            want = tuple(self._shapes[name])
            if tuple(own[name].shape[1:]) != want[1:] or want[0] != getattr(model.config, "num_labels", None):
                raise self._misfit(name, own[name])
            module = model.get_submodule(name.rpartition(".")[0])
            fresh = torch.empty(want, dtype=own[name].dtype, device=own[name].device)
            setattr(module, name.rpartition(".")[2], nn.Parameter(fresh))
        for name in sorted({name.rpartition(".")[0] for name in new_head}):
            module = model.get_submodule(name)
            module.reset_parameters()  # type: ignore[operator]
        if new_head:
            warnings.warn(
                f"{', '.join(new_head)} newly initialised for {model.config.num_labels} classes: train the head before "
                "use; it is not pruned",
                stacklevel=2,
            )
        return new_head

    def _misfit(self, name: str, stored: Tensor) -> TicketError:
        have, want = tuple(stored.shape), tuple(self._shapes[name])
        return TicketError(f"{name}: {have} in the ticket, {want} in the model; is it for another architecture?")

    def get_state_dict_and_metadata(self, model: PreTrainedModel) -> tuple[None, dict[str, str]]:
        """Called by save_pretrained: the default state_dict, and the mask for the file's header."""
        for name, count in violations(dict(model.state_dict()), self.mask).items():
            raise TicketError(
                f"{name}: {count:,} pruned weights are not zero; train with hf_px.keep_zeros(model, mask, optimizer) "
                "or Trainer(callbacks=[hf_px.KeepZeros()])"
            )
        return None, _header(model, self.mask, self.ticket)

    def is_serializable(self, *_: Any, **__: Any) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True

    @property
    def is_qat_trainable(self) -> bool:
        return True  # otherwise Trainer asks for adapters

    @property
    def is_compileable(self) -> bool:
        return True


class _Unpack(ConversionOps):
    """NAME:values, NAME:mask → the dense tensor NAME."""

    def __init__(self, quantizer: TicketQuantizer) -> None:
        self.hf_quantizer = quantizer

    def __deepcopy__(self, memo: dict[int, Any]) -> _Unpack:
        return self  # transformers copies a conversion for each tensor; the masks go into one quantizer

    def convert(  # type: ignore[override]
        self, input_dict: dict[str, Any], full_layer_name: str = "", model: Any = None, **kwargs: Any
    ) -> dict[str, Tensor]:
        parts = {key: value[0] if isinstance(value, list) else value for key, value in input_dict.items()}
        if set(parts) != {VALUES, MASK}:
            raise TicketError(f"{full_layer_name}: lacks its mask or its values; the file is damaged")
        values, stream = parts[VALUES], parts[MASK]
        own = model.get_parameter_or_buffer(full_layer_name)
        try:
            # not own.numel() alone: a new head may be smaller than the stored one
            decoded = decode(stream.cpu(), values.cpu(), limit=max(own.numel(), 2**26))
        except TicketError as error:
            raise TicketError(f"{full_layer_name}: {error}") from error
        self.hf_quantizer._unpacked[full_layer_name] = decoded.bits()
        return {full_layer_name: decoded.weight(values).to(values.device, own.dtype)}

    @property
    def reverse_op(self) -> ConversionOps:
        raise NotImplementedError("transformers saves a ticket as dense tensors with their zeros, never packed")


def mask_of(model: nn.Module) -> Mask:
    """The mask that a transformers model was loaded with."""
    quantizer = getattr(model, "hf_quantizer", None)
    if not isinstance(quantizer, TicketQuantizer):
        raise ValueError(
            f"this {type(model).__name__} has no mask: only transformers models loaded from a ticket have one; "
            "for all others use Ticket.from_pretrained(…).mask"
        )
    return quantizer.mask


def attach_(model: PreTrainedModel, mask: Mask, ticket: Mapping[str, Any]) -> None:
    """Attach the mask to a transformers model, as if transformers had loaded the ticket itself."""
    config = TicketConfig()
    quantizer = TicketQuantizer(config, pre_quantized=True)
    quantizer.mask, quantizer.ticket = mask, dict(ticket)
    model.config.quantization_config = config
    for name, value in (("hf_quantizer", quantizer), ("is_quantized", True), ("quantization_method", TICKET)):
        setattr(model, name, value)


def checkpoint_names(model: nn.Module) -> dict[str, str]:
    """{state_dict name: name in a saved file}: transformers renames the tensors of some models when it saves."""
    state = model.state_dict()
    if not isinstance(model, PreTrainedModel):
        return {name: name for name in state}
    marks = {name: torch.empty(0, i) for i, name in enumerate(state)}  # the second side identifies the tensor
    saved = revert_weight_conversion(model, dict(marks))
    names = {list(marks)[mark.shape[1]]: name for name, mark in saved.items() if mark.dim() == 2}
    if names.keys() != state.keys():
        odd = sorted(state.keys() - names.keys())
        raise TicketError(
            f"{odd[0]}: transformers merges it with other tensors when saving, which masks do not support"
        )
    return names


def _without_prefix(model: PreTrainedModel, bits: Mapping[str, Tensor], own: Mapping[str, str]) -> dict[str, Tensor]:
    """Masks whose names differ by the base model's prefix: AutoModel on a classifier's ticket, or the reverse."""
    prefix = f"{model.base_model_prefix}."
    renamed = {}
    for name, b in bits.items():
        for other in (name.removeprefix(prefix), prefix + name):
            if name not in own and other in own:
                renamed[own[other]] = b
    return renamed


def _read_contents(files: list[str] | None) -> Contents | None:
    """Contents of the checkpoint; None if it is not a ticket, for example saved later without its mask."""
    if not files or len(files) != 1 or Path(files[0]).suffix != ".safetensors" or read_header(files[0]) is None:
        return None
    return read_ticket_file(files[0], weights=False)


def _check_names(model: PreTrainedModel, files: list[str], loaded: list[str], contents: Contents | None) -> None:
    """Refuse a file that lacks tensors of the saved model class; transformers would initialise them at random.

    `loaded` are the files that transformers has read, which may be copies.

    For another class that is right: its head is new.
    """
    if type(model).__name__ not in (model.config.architectures or ()):
        return
    stored = set(contents.tied) if contents is not None else set()
    for path in loaded:
        if Path(path).suffix != ".safetensors":
            return
        with safe_open(path, framework="pt") as file:
            stored |= {name.removesuffix(VALUES) for name in file.offset_keys()}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    optional = [re.compile(pattern) for pattern in getattr(model, "_keys_to_ignore_on_load_missing", None) or ()]
    for own, name in checkpoint_names(model).items():
        if name not in stored and own not in tied and not any(pattern.search(own) for pattern in optional):
            raise TicketError(f"{files[0]}: lacks {name}; it is damaged, or config.json belongs to another model")


def _header(model: PreTrainedModel, mask: Mask, ticket: Mapping[str, Any]) -> dict[str, str]:
    from ..models import architecture

    names = checkpoint_names(model)
    excluded = None if mask.excluded is None else [names.get(name, name) for name in mask.excluded]
    bits = Mask({names[name]: b for name, b in mask.bits.items()}, excluded)
    renamed = {name: own for own, name in names.items() if name != own}
    record = architecture.describe(model)
    # results were measured before these weights were trained further, which are stored in the model's own dtype
    origin = {key: value for key, value in ticket.items() if key not in ("results", "command", "dtype")}
    contents = Contents("dense", None, record, origin, lambda: bits, renamed=renamed)
    return {"hf_px": header_json(contents, {}, {name: mask_to_base64(b) for name, b in bits.bits.items()})}
