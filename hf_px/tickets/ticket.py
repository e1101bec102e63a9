"""Ticket: θ ⊙ M, the exact M, and where both come from; in a directory or on the Hub."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.mask import Mask
from ..models.remote import Source
from ..sparse_training import bare
from .directory import Layout, mask_for, naming_file, read_ticket
from .stored_dtype import DtypeName, contents_to_load
from .ticket_file import Contents


class Ticket:
    """A pruned model that can be saved, pushed and loaded.

    base, base_revision   Hub id and commit of the model that was pruned; license: the base's
    scorer, settings      name of the method, and its settings: rounds, seed, data, …
    results               measurements, as dicts: dataset, metric, value; also dense (the unpruned model's), split,
                          task, by_class and dense_by_class ({class: value, or None if the test set has none of it})
    command               the exact command line, if one made the ticket
    repair                what a repair did: RepairReport.to_dict()
    shrunk                what a shrink removed: Removal.to_dict()
    class_names           names of the classes in order, where the model has none or has others
    datasets              Hub ids of the data that it was pruned and trained with
    model_args            arguments that a timm model was created with, besides its name and num_classes
    """

    def __init__(
        self,
        model: nn.Module,
        mask: Mask,
        *,
        base: str | None = None,
        base_revision: str | None = None,
        license: str | None = None,
        scorer: str | None = None,
        settings: Mapping[str, Any] | None = None,
        results: Iterable[Mapping[str, Any]] = (),
        command: str | None = None,
        model_args: Mapping[str, Any] | None = None,
        repair: Mapping[str, Any] | None = None,
        shrunk: Mapping[str, Any] | None = None,
        class_names: Sequence[str] | None = None,
        datasets: Iterable[str] = (),
    ) -> None:
        from .class_names import check_class_names
        from .provenance import provenance  # here: loading a ticket does not need it

        if not isinstance(model, nn.Module) or not isinstance(mask, Mask):
            types = f"{type(model).__name__} and {type(mask).__name__}"
            raise TypeError(f"Ticket(model, mask): expected a module and a Mask, got {types}")
        self.provenance = provenance(
            base, base_revision, license, scorer, settings, results, command, repair, shrunk, datasets
        )
        self._class_names = check_class_names(class_names, model)
        model = bare(model, mask)
        mask.check_covers(model)
        self.contents: Contents | None = None  # of the file that the ticket was loaded from
        self._model: nn.Module | None = model
        self._mask: Mask | None = mask
        self._model_args = model_args
        self.source: Source | None = None  # where the ticket was loaded from
        self._download: dict[str, Any] = {}  # token, cache_dir and local_files_only, also for the base

    @classmethod
    def from_pretrained(
        cls,
        repo_or_dir: str | os.PathLike[str],
        *,
        revision: str | None = None,
        token: str | bool | None = None,
        cache_dir: str | Path | None = None,
        local_files_only: bool = False,
    ) -> Ticket:
        """Read and check a ticket. From the Hub, only the packed file is downloaded if there is one."""
        download: dict[str, Any] = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        ticket = cls.__new__(cls)
        ticket.source = Source.of(repo_or_dir, revision=revision, **download)
        ticket.contents = read_ticket(ticket.source)
        ticket.provenance = ticket.contents.ticket
        ticket._model = ticket._mask = ticket._model_args = ticket._class_names = None
        ticket._download = download
        return ticket

    @property
    def mask(self) -> Mask:
        """The exact mask, under the model's names."""
        if self._mask is None:
            assert self.contents is not None
            with naming_file(self.contents):
                self._mask = self.contents.model_mask()
        return self._mask

    @property
    def config(self) -> dict[str, Any]:
        """The ticket's provenance, and under "model" the record that its model is built from."""
        return copy.deepcopy({**self.provenance, "model": self.model_record()})

    def model_record(self) -> dict[str, Any]:
        if self.contents is not None:
            return self.contents.model
        from ..models import architecture  # here: timm and transformers take seconds, and hf-px info needs neither
        from .class_names import with_class_names

        assert self._model is not None
        return with_class_names(architecture.describe(self._model, self._model_args), self._class_names)

    def __repr__(self) -> str:
        scorer = self.provenance.get("scorer")
        return f"Ticket({self.mask!r}{f', scorer {scorer}' if scorer else ''})"

    def to_model(
        self,
        *,
        num_classes: int | None = None,
        into: nn.Module | None = None,
        dtype: DtypeName | torch.dtype | None = None,
    ) -> nn.Module:
        """The module with its zeros, in eval mode. Another `num_classes` gives it a newly initialised head.

        `into` is a module of your own, for architectures that neither timm, transformers nor hf_px can build. By
        default a ticket saved with `dtype` is float32, any other has the dtype of the model that was saved.
        """
        from .to_model import build_from_base, build_from_contents, fill_

        if num_classes is not None and (type(num_classes) is not int or num_classes < 1):
            raise ValueError(f"`num_classes`: {num_classes!r} is not a number of classes; 1 or more")
        if into is not None and num_classes is not None:
            raise ValueError("`into` keeps the head of the module; give it the head you want, without `num_classes`")
        if into is not None and dtype is not None:
            raise ValueError("`into` keeps the dtype of the module; convert the module, without `dtype`")
        if self.contents is None:
            if num_classes is not None or into is not None or dtype is not None:
                raise ValueError("this ticket holds a live model; save and load it to get another one")
            assert self._model is not None
            return self._model
        with naming_file(self.contents):
            if into is not None:
                return fill_(into, self.contents)
            contents, target = contents_to_load(self.contents, dtype)
            if contents.tensors is None:
                model = build_from_base(contents, num_classes, self._download)
            else:
                model = build_from_contents(contents, num_classes)
        # also tensors that the constructor computes; transformers' own `to` refuses models with a quantizer
        return model if target is None else nn.Module.to(model, target)

    def shrink(
        self, *, input_size: Sequence[int] | None = None, batches: Iterable[Any] | None = None, progress: bool = True
    ) -> Ticket:
        """The same function as a smaller ticket, without the channels that the mask has made superfluous.

        The arguments are those of hf_px.shrink.
        """
        from .shrunk_ticket import shrink_ticket  # here: loading a ticket does not need it

        smaller, removal = shrink_ticket(self, input_size=input_size, batches=batches)
        if progress:
            print(f"shrink: {removal}")
        return smaller

    def mask_for(self, model: nn.Module) -> Mask:
        """The mask without tensors whose shape differs in the model: a new head is not pruned."""
        return mask_for(self.mask, model)

    def save_pretrained(
        self,
        directory: str | os.PathLike[str],
        *,
        layout: Layout = "both",
        dtype: DtypeName | torch.dtype | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write the ticket: all files under temporary names first, then each is renamed into place.

        If this is interrupted, a reader finds the old ticket or the new one. `dtype` float16 or bfloat16 rounds the
        weights, so that they take half the bytes (see stored_dtype.py); the model itself stays as it is. `files` as in
        push_to_hub.
        """
        from .save import save_ticket  # here: the card and its chart are not needed to load a ticket

        save_ticket(self, directory, layout, files or {}, dtype)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        layout: Layout = "both",
        dtype: DtypeName | torch.dtype | None = None,
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> str:
        """Create the repo if needed and upload the ticket with its card in one commit; returns the commit's URL.

        `dtype` as in save_pretrained. `files` ({name: bytes}) are uploaded with it, for example a recipe's
        results.json; the card shows predictions.png.
        """
        from .save import push_ticket

        return push_ticket(
            self,
            repo_id,
            private=private,
            layout=layout,
            dtype=dtype,
            token=token,
            revision=revision,
            commit_message=commit_message,
            files=files or {},
        )
