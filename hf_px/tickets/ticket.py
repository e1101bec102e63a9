"""Ticket: θ ⊙ M, the true M, and where both come from; in a directory or on the Hub."""

from __future__ import annotations

import copy
import json
import os
import platform
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import torch
from huggingface_hub import HfApi
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from torch import Tensor, nn
from transformers.modeling_utils import PreTrainedModel

from .. import __version__
from ..analysis import summary
from ..core.errors import HfPxError, TicketError
from ..core.files import write_atomic
from ..core.mask import Mask
from ..core.shareable import shareable
from ..keep_zeros import bare, violations
from ..models import architecture
from ..models.remote import Source, explained, full, is_commit
from . import card, ticket_file
from . import directory as ticket_directory
from .base_weights import load_base
from .directory import KIND, Layout
from .ticket_file import DENSE, PACKED, Contents
from .transformers_quantizer import attach_, checkpoint_names


class Ticket:
    """A pruned model made shareable.

    base, base_revision   the Hub id it was cut from, and the commit; license: the base's
    scorer, settings      the method by name, and what it was given: rounds, seed, data, …
    results               measured, as dicts: dataset, metric, value; also dense (the unpruned model's), split, task,
                          by_class and dense_by_class ({class: value, or None if the test set has none of it})
    command               the exact command, if one made it
    model_args            what a timm model was created with beyond its name and num_classes
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
    ) -> None:
        if not isinstance(model, nn.Module) or not isinstance(mask, Mask):
            raise TypeError(f"Ticket(model, mask): a module and a Mask, not {_kinds(model, mask)}")
        if not isinstance(settings or {}, Mapping) or not all(isinstance(key, str) for key in settings or {}):
            raise TypeError(f"settings: a dict of words to values, not {settings!r:.100}")
        if isinstance(results, (str, Mapping)) or not all(isinstance(result, Mapping) for result in results):
            raise TypeError(f"results: a list of dicts with dataset, metric and value, not {results!r:.100}")
        if base is not None:
            _check_base(base)
        model = bare(model, mask)
        mask.tensors_of(model)  # an error where they do not fit
        self._model: nn.Module | None = model
        self._own_mask: Mask | None = mask
        self._contents: Contents | None = None
        self._args = model_args
        self._where: dict[str, Any] = {}  # how the ticket was fetched, and its base is
        told = {
            "base": base,
            "base_revision": base_revision,
            "license": license,
            "scorer": scorer,
            "settings": dict(settings or {}),
            "results": [card.checked_result(result) for result in results],
            "command": command,
            "versions": {
                "hf-px": __version__,
                "python": platform.python_version(),
                **{name: metadata.version(name) for name in ("torch", "timm", "transformers", "huggingface-hub")},
            },
        }
        try:
            self._told = json.loads(
                ticket_file.as_json(shareable({key: value for key, value in told.items() if value}))
            )
        except (TypeError, ValueError) as error:
            raise TicketError(f"settings and results hold numbers, words, and lists of them: {error}") from error

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
        """Read and check a ticket; from the Hub, the packed file alone is fetched where there is one."""
        source = Source.of(
            repo_or_dir, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
        )
        ticket = cls._of(ticket_directory.read(source))
        ticket._where = {"token": token, "cache_dir": cache_dir, "local_files_only": local_files_only}
        return ticket

    @classmethod
    def _of(cls, contents: Contents) -> Ticket:
        ticket = cls.__new__(cls)
        ticket._model, ticket._own_mask, ticket._args = None, None, None
        ticket._contents, ticket._told, ticket._where = contents, contents.ticket, {}
        return ticket

    @property
    def mask(self) -> Mask:
        """The true mask, by the model's own names."""
        if self._own_mask is None:
            assert self._contents is not None
            with self._named():
                self._own_mask = self._contents.own_mask()
        return self._own_mask

    @property
    def config(self) -> dict[str, Any]:
        """Where the ticket comes from, and how to build its model: what was said when it was made, and no more."""
        record = self._contents.model if self._contents else architecture.describe(self._live(), self._args)
        return copy.deepcopy({**self._told, "model": record})

    def __repr__(self) -> str:
        method = self._told.get("scorer")
        return f"Ticket({self.mask!r}{f', scorer {method}' if method else ''})"

    def to_model(self, *, num_classes: int | None = None, into: nn.Module | None = None) -> nn.Module:
        """The module with its zeros, in eval mode; with `num_classes` of another number, its head is drawn anew.

        `into` takes a module of your own, for architectures that neither timm, transformers nor hf_px can build.
        """
        if num_classes is not None and (type(num_classes) is not int or num_classes < 1):
            raise ValueError(f"num_classes: {num_classes!r} is not a number of classes; 1 or more")
        if into is not None and num_classes is not None:
            raise ValueError("into= takes the module as it is; give it the head you want, without num_classes=")
        if self._contents is None:
            if num_classes is not None or into is not None:
                raise ValueError("this ticket holds its model already; save it and load it to get another")
            return self._live()
        with self._named():
            if into is not None:
                return self._fill_(into)
            if self._contents.tensors is None:
                return self._from_base(num_classes)
            return self._built(num_classes)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Errors of what a ticket file says, with the name of the file."""
        path = self._contents.path if self._contents is not None else ""
        try:
            yield
        except TicketError as error:
            text = str(error)
            if path in text:
                raise
            raise TicketError(f"{path}: {text}") from error

    def _built(self, num_classes: int | None) -> nn.Module:
        contents = self._contents
        assert contents is not None
        if contents.weights == "dense":  # a packed file cannot hold anything where the mask is 0
            for name, count in violations(contents.tensors or {}, contents.mask).items():
                raise TicketError(f"{name}: {count:,} pruned weights are not zero; the file is damaged")
        state = contents.state_dict()
        drawn = architecture.new_head(contents.model, state, num_classes)
        if not drawn and not contents.tied:
            return self._marked(architecture.filled(contents.model, state))
        model = architecture.build(contents.model, num_classes)
        architecture.check_kinds(model, state)
        # copied, not assigned: two names of one tensor would part
        model.to(next((t.dtype for t in state.values() if t.is_floating_point()), torch.float32))
        fresh = model.state_dict()
        model.load_state_dict(state | {name: fresh[name] for name in drawn})
        if drawn:
            _say_new_head(drawn, num_classes)
        return self._marked(model)

    def _marked(self, model: nn.Module) -> nn.Module:
        """A transformers model carries its mask along, so that its own save_pretrained keeps it."""
        assert self._contents is not None
        own = dict(model.named_parameters(remove_duplicate=False))
        if odd := [name for name in self._contents.masked() if name not in own]:
            raise TicketError(f"{odd[0]}: has a mask, but is no parameter of the model; the file is damaged")
        if isinstance(model, PreTrainedModel):
            attach_(model, self.mask_for(model), self._told)
        return model

    def mask_for(self, model: nn.Module) -> Mask:
        """The mask without the tensors whose shape the model has changed: a new head is not pruned."""
        own = dict(model.named_parameters(remove_duplicate=False))
        return Mask({n: b for n, b in self.mask.bits.items() if n not in own or own[n].shape == b.shape})

    def _live(self) -> nn.Module:
        assert self._model is not None
        return self._model

    def _fill_(self, model: nn.Module) -> nn.Module:
        contents = self._contents
        assert contents is not None
        try:
            if contents.tensors is not None:
                model.load_state_dict(contents.state_dict())
            return self.mask.apply_(model)
        except (RuntimeError, ValueError) as error:
            raise TicketError(f"the ticket does not fit this {type(model).__name__}: {error}") from error

    def _from_base(self, num_classes: int | None) -> nn.Module:
        contents = self._contents
        assert contents is not None
        base, revision = self._told.get("base"), self._told.get("base_revision")
        if not isinstance(base, str) or not is_commit(revision):
            raise TicketError("a mask without weights, and it names no base to take them from; the file is damaged")
        # before anything is fetched: what the record says is a stranger's. A mask has no biases, so there are more
        expected = architecture.shapes(contents.model, num_classes, tensors=10 * len(self.mask.bits))
        for name in self.mask.bits:
            if name not in expected:
                raise TicketError(f"{name}: has a mask, but no place in the architecture; is it for another one?")
        try:
            source = Source.of(base, revision=revision, **self._where)
            model, drawn = load_base(contents.model, source, num_classes)
        except HfPxError as error:
            raise TicketError(
                f"the weights of this ticket are those of {base} at commit {revision}, which cannot be had: {error}"
            ) from error
        except Exception as error:  # what is found on the Hub is not ours, and goes to the libraries that read it
            raise TicketError(
                f"the weights of this ticket are those of {base} at commit {revision}, which cannot be loaded: {error}"
            ) from error
        if drawn:
            _say_new_head(drawn, num_classes)
        mask = self.mask_for(model)
        if set(self.mask.bits) - set(mask.bits) - set(drawn):
            odd = sorted(set(self.mask.bits) - set(mask.bits) - set(drawn))
            raise TicketError(f"{odd[0]}: the mask does not fit {base}; is the ticket one for another architecture?")
        try:
            mask.apply_(model)
        except ValueError as error:
            raise TicketError(f"{base} is not the base of this ticket: {error}") from error
        return self._marked(model)

    def save_pretrained(
        self,
        directory: str | os.PathLike[str],
        *,
        layout: Layout = "both",
        files: Mapping[str, bytes] | None = None,
    ) -> None:
        """Write the ticket's home: all files beside their places first, then each into its place in one step.

        A reader finds the old ticket or the new one, whenever this is interrupted. `files` as in push_to_hub.
        """
        if not os.fspath(directory):
            raise TicketError("the name of the directory is empty; '.' is this one")
        directory = Path(directory).expanduser()
        contents = self._checked(layout)
        if directory.exists() and not directory.is_dir():
            raise TicketError(f"{directory}: is a file; name a directory")
        ticket_directory.check(directory, layout)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for name, data in (files or {}).items():  # first: the card shows a picture that is there
                write_atomic(directory / name, data)
            ticket_directory.write(directory, contents, layout)
        except OSError as error:
            raise full(error, directory) from error

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        layout: Layout = "both",
        token: str | bool | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
        files: Mapping[str, bytes] | None = None,
    ) -> str:
        """Create the repo if need be, put the ticket there in one commit, card included; the commit's address.

        `files` go along, by name: results.json of a recipe, for one; the card shows predictions.png.
        """
        contents = self._checked(layout)
        if Path(repo_id).is_dir():
            raise TicketError(f"{repo_id}: is a directory here; save_pretrained writes to it, a repo is owner/name")
        if repo_id.count("/") != 1:
            raise TicketError(f"{repo_id}: not the name of a repo, which is owner/name")
        Source.of(repo_id)
        api = HfApi(token=token, library_name="hf_px", library_version=__version__)
        with explained(repo_id, revision):
            api.create_repo(repo_id, private=private, exist_ok=True)
            if private and not api.model_info(repo_id).private:
                raise TicketError(
                    f"{repo_id}: exists and is public; make it private in its settings, or push elsewhere"
                )
            if revision is not None:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="hf-px-push-") as folder:
            try:
                for name, data in (files or {}).items():  # first: the card shows a picture that is there
                    (Path(folder) / name).write_bytes(data)
                ticket_directory.write(Path(folder), contents, layout, repo_id)
            except OSError as error:
                raise full(error) from error
            if _has_own_card(api, repo_id, revision):
                warnings.warn(f"{repo_id} has a card of its own; it is left as it is", stacklevel=2)
                (Path(folder) / card.NAME).unlink()
            stale = [name for name in (PACKED, DENSE) if name not in KIND[layout]]
            with explained(repo_id, revision):
                commit = api.upload_folder(
                    repo_id=repo_id,
                    folder_path=folder,
                    revision=revision,
                    delete_patterns=stale,
                    commit_message=commit_message or f"Add a ticket: {self.mask.sparsity:.2%} sparse",
                )
        return str(commit.commit_url)

    def _checked(self, layout: str) -> Contents:
        """All that can be wrong with a ticket before it is written, found before anything is."""
        if layout not in get_args(Layout):
            raise ValueError(f"layout {layout!r}: choose one of {', '.join(get_args(Layout))}")
        contents = self._contents if self._contents is not None else self._snapshot()
        if layout == "mask-only":
            base, revision = contents.ticket.get("base"), contents.ticket.get("base_revision")
            if not isinstance(base, str) or base.count("/") != 1:
                raise TicketError("mask-only stores no weights: say base=, the Hub id (owner/name) that has them")
            if not is_commit(revision):
                raise TicketError(
                    f"mask-only needs base_revision=, a commit that cannot move: "
                    f"huggingface_hub.model_info({base!r}).sha is today's"
                )
            if contents.tensors is not None:
                warnings.warn(
                    f"mask-only: the weights are not saved; who loads this gets those of {base} at {revision[:8]}, "
                    "without any training since",
                    stacklevel=3,
                )
        elif contents.tensors is None:
            whole = Ticket(self.to_model(), self.mask, model_args=contents.model.get("model_args"))
            contents = whole._snapshot(told=contents.ticket)
        assert layout == "mask-only" or contents.tensors is not None
        for name, count in violations(contents.tensors or {}, contents.mask).items() if contents.tensors else ():
            raise TicketError(
                f"{name}: {count:,} pruned weights are not zero; call mask.apply_(model), and hf_px.keep(model, mask, "
                "optimizer) before training"
            )
        return contents

    def _snapshot(self, told: dict[str, Any] | None = None) -> Contents:
        """The live model as it is now."""
        model, mask = self._live(), self.mask
        names = checkpoint_names(model)
        state = model.state_dict()
        tied_to = _tied(state, mask)
        tied = {names[alias]: names[own] for alias, own in tied_to.items()}
        bits: dict[str, Tensor] = {}
        for own, b in mask.bits.items():
            name = names[tied_to.get(own, own)]
            if name in bits and not torch.equal(bits[name], b.cpu()):
                raise TicketError(f"{own}: the same tensor as {name}, with another mask; give both the same")
            bits[name] = b.cpu()
        found = Mask(bits)
        return Contents(
            weights="packed",
            tensors={names[own]: tensor for own, tensor in state.items() if own not in tied_to},
            model=architecture.describe(model, self._args),
            ticket=self._told | {"sparsity": _sparsity(model, mask)} if told is None else told,
            make_mask=lambda: found,
            tied=tied,
            renamed={name: own for own, name in names.items() if name != own},
            aliases=tuple(names[own] for own in mask.bits if own in tied_to),
        )


def _kinds(*values: Any) -> str:
    return " and ".join(type(value).__name__ for value in values)


def _check_base(base: Any) -> None:
    try:
        validate_repo_id(base)
        good = base.count("/") == 1 and not Path(base).is_absolute()
    except (HFValidationError, TypeError):
        good = False
    if not good:
        raise TicketError(f"base: {base!r:.100} is not owner/name on the Hub; for local or random weights leave it out")


def _tied(state: Mapping[str, Tensor], mask: Mask) -> dict[str, str]:
    """{alias: name}: names of one tensor, by the first of them that the mask has, or else the first."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for name, tensor in state.items():
        if tensor.numel():
            where = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            groups.setdefault(where, []).append(name)
    found: dict[str, str] = {}
    for names in groups.values():
        stored = next((name for name in names if name in mask.bits), names[0])
        found |= {name: stored for name in names if name != stored}
    return found


def from_pretrained(
    repo_or_dir: str | os.PathLike[str],
    *,
    num_classes: int | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> nn.Module:
    """The model of a ticket, zeros kept: a timm, transformers or hf_px module, in eval mode.

    `num_classes` other than the ticket's gives it a new head, drawn at random, and says so.
    """
    ticket = Ticket.from_pretrained(
        repo_or_dir, revision=revision, token=token, cache_dir=cache_dir, local_files_only=local_files_only
    )
    return ticket.to_model(num_classes=num_classes)


def _sparsity(model: nn.Module, mask: Mask) -> dict[str, Any]:
    found: dict[str, Any] = {"nominal": mask.sparsity, "kept": mask.kept, "total": mask.total}
    try:
        table = summary(model, mask)
    except Exception as error:  # a model that does not run on what it says it takes: its ticket is as good without
        warnings.warn(f"effective sparsity is unknown: the model did not run ({error})", stacklevel=2)
        return found
    if table.effective_sparsity is not None:
        found |= {"effective": table.effective_sparsity, "dead": table.dead, "collapsed": table.collapsed}
    return found


def _say_new_head(drawn: list[str], num_classes: int | None) -> None:
    warnings.warn(
        f"{', '.join(drawn)} drawn anew for {num_classes} classes: train the head before use; it is not pruned, "
        "ticket.mask_for(model) is the mask of the rest",
        stacklevel=3,
    )


def _has_own_card(api: HfApi, repo_id: str, revision: str | None) -> bool:
    """Is there a card that somebody wrote by hand?"""
    with explained(repo_id, revision):
        now = api.model_info(repo_id, revision=revision).sha
    # at this very commit: while the Hub stumbles, a cache would answer for a branch with the card of last week
    path = Source(repo_id, now, api.token).file(card.NAME)
    return path is not None and not card.is_ours(path)
