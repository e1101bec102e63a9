"""Save and push a ticket: a snapshot of the live model, checked in full before the first file is written."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import torch
from huggingface_hub import HfApi
from torch import Tensor, nn

from .. import __version__
from ..analysis.summary import summary
from ..core.errors import TicketError
from ..core.files import write_atomic
from ..core.mask import Mask
from ..models.config_marks import WIDTHS
from ..models.remote import Source, disk_error, hub_errors, is_commit
from ..sparse_training import violations
from .card import CARD, is_generated
from .directory import FILES_OF_LAYOUT, Layout, check_overwrite, write_ticket
from .exported_files import EXPORTED
from .image_processor import processor_file
from .provenance import overall_sparsity
from .stored_dtype import rounded_contents
from .ticket_file import DENSE, PACKED, Contents, ticket_file_chunks

if TYPE_CHECKING:
    from .ticket import Ticket


def save_ticket(
    ticket: Ticket,
    directory: str | os.PathLike[str],
    layout: str,
    files: Mapping[str, bytes],
    dtype: str | torch.dtype | None = None,
) -> None:
    if not os.fspath(directory):
        raise TicketError("`directory` is empty; '.' is the current one")
    directory = Path(directory).expanduser()
    contents = checked_contents(ticket, layout, dtype)
    if directory.exists() and not directory.is_dir():
        raise TicketError(f"{directory}: is a file; name a directory")
    check_overwrite(directory, layout)
    files = processor_file(ticket, directory) | dict(files)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for leftover in directory.glob(".*.json.*.tmp"):  # of a save that was killed
            leftover.unlink(missing_ok=True)
        for name, data in files.items():  # before the card, which shows predictions.png if it exists
            write_atomic(directory / name, data)
        write_ticket(directory, contents, layout)
    except OSError as error:
        raise disk_error(error, directory) from error


def push_ticket(
    ticket: Ticket,
    repo_id: str,
    *,
    private: bool | None,
    layout: str,
    dtype: str | torch.dtype | None,
    token: str | bool | None,
    revision: str | None,
    commit_message: str | None,
    files: Mapping[str, bytes],
) -> str:
    """Create the repo if needed and upload the ticket in one commit; returns the commit's URL."""
    contents = checked_contents(ticket, layout, dtype)
    check_repo_id(repo_id)
    api = HfApi(token=token, library_name="hf_px", library_version=__version__)
    with hub_errors(repo_id, revision):
        api.create_repo(repo_id, private=private, exist_ok=True)
        if private and not api.model_info(repo_id).private:
            raise TicketError(f"{repo_id}: exists and is public; make it private in its settings, or push elsewhere")
        if revision is not None:
            api.create_branch(repo_id, branch=revision, exist_ok=True)
    overall = overall_sparsity(contents.ticket.get("sparsity"), ticket.mask)
    files = processor_file(ticket) | dict(files)
    with staged(contents, layout, repo_id, files) as folder:
        if _has_edited_card(api, repo_id, revision):
            warnings.warn(f"{repo_id} has a card that was edited by hand; it is left unchanged", stacklevel=3)
            (folder / CARD).unlink()
        with hub_errors(repo_id, revision):
            commit = api.upload_folder(
                repo_id=repo_id,
                folder_path=folder,
                revision=revision,
                delete_patterns=deleted_files(layout, files),
                commit_message=commit_message or f"Add a ticket: {overall:.2%} sparse",
            )
    return str(commit.commit_url)


def check_repo_id(repo_id: str) -> None:
    """Refuse a name that cannot be a repo's, without the network."""
    if Path(repo_id).is_dir():
        raise TicketError(f"{repo_id}: is a local directory; use save_pretrained for it, a repo is owner/name")
    if repo_id.count("/") != 1:
        raise TicketError(f"{repo_id}: not the name of a repo, which is owner/name")
    Source.of(repo_id)


@contextmanager
def staged(contents: Contents, layout: str, repo_id: str, files: Mapping[str, bytes]) -> Iterator[Path]:
    """A temporary folder with all that a push uploads."""
    with tempfile.TemporaryDirectory(prefix="hf-px-push-") as folder:
        try:
            for name, data in files.items():  # before the card, which shows predictions.png if it exists
                (Path(folder) / name).write_bytes(data)
            write_ticket(Path(folder), contents, layout, repo_id)
        except OSError as error:
            raise disk_error(error) from error
        yield Path(folder)


def deleted_files(layout: str, files: Collection[str]) -> list[str]:
    """What a push of these `files` removes from the repo: weights of another layout, and exports of an older ticket."""
    exported = [name for names in EXPORTED.values() for name in names]
    return [name for name in (PACKED, DENSE, *exported) if name not in FILES_OF_LAYOUT[layout] and name not in files]


def file_sizes(ticket: Ticket, layout: str) -> dict[str, int]:
    """{file: bytes} of the weights as save_ticket and push_ticket write them in this layout."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # save and push show them
        contents = checked_contents(ticket, layout)
    sizes = {}
    for name, weights in FILES_OF_LAYOUT[layout].items():
        pair = "0" * 64 if layout == "both" and name == DENSE else ""
        written = replace(contents, weights=weights, tensors=None if weights == "base" else contents.tensors, pair=pair)
        sizes[name] = sum(map(len, ticket_file_chunks(written)))
    return sizes


def _has_edited_card(api: HfApi, repo_id: str, revision: str | None) -> bool:
    with hub_errors(repo_id, revision):
        commit = api.model_info(repo_id, revision=revision).sha
    # by commit: while the Hub has an outage, the cache would answer for a branch with an older card
    path = Source(repo_id, commit, api.token).file(CARD)
    return path is not None and not is_generated(path)


def checked_contents(ticket: Ticket, layout: str, dtype: str | torch.dtype | None = None) -> Contents:
    """The ticket's contents; raises for everything that would make a wrong ticket, before any file is written.

    With `dtype` they are rounded to it.
    """
    if layout not in get_args(Layout):
        raise ValueError(f"`layout` {layout!r}: choose one of {', '.join(get_args(Layout))}")
    contents = ticket.contents if ticket.contents is not None else snapshot(ticket)
    if layout == "mask-only":
        if dtype is not None:
            raise ValueError("`dtype` is that of stored weights, and `layout` mask-only stores none; omit one")
        _check_mask_only(contents)
        contents = replace(contents, ticket={k: v for k, v in contents.ticket.items() if k != "dtype"})
    elif contents.tensors is None:
        loaded = type(ticket)(ticket.to_model(), ticket.mask, model_args=contents.model.get("model_args"))
        contents = snapshot(loaded, contents.ticket)
    if contents.tensors is not None:
        for name, count in violations(contents.tensors, contents.mask).items():
            raise TicketError(
                f"{name}: {count:,} pruned weights are not zero; call mask.apply_(model), and "
                "hf_px.keep_zeros(model, mask, optimizer) before training"
            )
    return contents if dtype is None else rounded_contents(contents, dtype)


def _check_mask_only(contents: Contents) -> None:
    if WIDTHS in contents.model:
        raise TicketError(
            "mask-only stores no weights, and those of the base have all channels; choose another `layout`"
        )
    base, revision = contents.ticket.get("base"), contents.ticket.get("base_revision")
    if not isinstance(base, str) or base.count("/") != 1:
        raise TicketError(
            "mask-only stores no weights, and this ticket names no base on the Hub that has them; choose another "
            "`layout`"
        )
    if not is_commit(revision):
        raise TicketError(
            f"mask-only needs `base_revision`, a commit, because branches move: "
            f"huggingface_hub.model_info({base!r}).sha is the current one"
        )
    if contents.tensors is not None:
        warnings.warn(
            f"mask-only: the weights are not saved; loading this ticket gives those of {base} at {revision[:8]}, "
            "without any training since",
            stacklevel=5,
        )


def snapshot(ticket: Ticket, provenance: Mapping[str, Any] | None = None) -> Contents:
    """Current contents of the live model; `provenance` replaces the ticket's own."""
    from .transformers_quantizer import checkpoint_names  # here: converting a ticket does not need transformers

    model, mask = ticket.to_model(), ticket.mask
    names = checkpoint_names(model)
    state = model.state_dict()
    tied_to = _tied(state, mask)
    bits: dict[str, Tensor] = {}
    for own, b in mask.bits.items():
        name = names[tied_to.get(own, own)]
        if name in bits and not torch.equal(bits[name], b.cpu()):
            raise TicketError(f"{own}: the same tensor as {name}, with another mask; give both the same")
        bits[name] = b.cpu()
    excluded = None if mask.excluded is None else [names.get(tied_to.get(n, n), n) for n in mask.excluded]
    file_mask = Mask(bits, excluded)
    origin = ticket.provenance | {"sparsity": _sparsity(model, mask)} if provenance is None else dict(provenance)
    return Contents(
        weights="packed",
        tensors={names[own]: tensor for own, tensor in state.items() if own not in tied_to},
        model=ticket.model_record(),
        ticket=origin,
        make_mask=lambda: file_mask,
        tied={names[alias]: names[own] for alias, own in tied_to.items()},
        renamed={name: own for own, name in names.items() if name != own},
        aliases=tuple(names[own] for own in mask.bits if own in tied_to),
    )


def _tied(state: Mapping[str, Tensor], mask: Mask) -> dict[str, str]:
    """{alias: name} of tensors with several names: `name` is the first in the mask, or else the first of all."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in state.items():
        if tensor.numel():
            key = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            groups.setdefault(key, []).append(name)
    tied: dict[str, str] = {}
    for names in groups.values():
        stored = next((name for name in names if name in mask.bits), names[0])
        tied |= {name: stored for name in names if name != stored}
    return tied


def _sparsity(model: nn.Module, mask: Mask) -> dict[str, Any]:
    outside = sum(weight.numel() for weight in mask.left_out(model).values())
    sparsity: dict[str, Any] = {"kept": mask.kept, "total": mask.total} | ({"outside": outside} if outside else {})
    sparsity["nominal"] = overall_sparsity(sparsity, mask)
    try:
        table = summary(model, mask)
    except Exception as error:  # the effective sparsity is optional: a model may fail on its own declared input
        warnings.warn(f"effective sparsity is unknown: the model did not run ({error})", stacklevel=2)
        return sparsity
    if table.effective_sparsity is not None:
        sparsity |= {"effective": table.effective_sparsity, "dead": table.dead, "collapsed": table.collapsed}
    return sparsity
