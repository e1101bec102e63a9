"""A recipe's pruning: the mask by hf_px.prune, and with repair the refitted weights.

A killed run continues after its last round. Where whole channels were pruned, the network is cut to those that stay,
and what is trained is the smaller one.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from ..channels.shrink import shrunk
from ..core.mask import Mask
from ..data import draw_images, test_transform
from ..pruning import prune
from ..refit.rounds import for_repair, prune_and_repair
from ..tickets.mask_file import load_mask, save_mask
from .before_training import fit_start_
from .experiment import Experiment
from .run_directory import check_agreed
from .tasks import CLASSIFICATION


def find_ticket(experiment: Experiment) -> tuple[nn.Module, Mask]:
    """(the pruned model, its mask), the same on every process; repaired if the options say so."""
    path, done = experiment.run.checkpoints / "mask.safetensors", None
    if path.is_file():
        found, notes = load_mask(path)
        done = int(notes["round"]), found
    check_agreed("the last round", done and done[0])
    if experiment.repairs:
        experiment.pruning = for_repair(experiment.pruning, bool(experiment.loaded.new_head))
    if done is not None:
        experiment.print(f"pruning: continues after round {done[0]} of {experiment.pruning.rounds}")

    def save(t: int, mask: Mask) -> None:
        if experiment.accelerator.is_main_process:
            path.parent.mkdir(parents=True, exist_ok=True)
            save_mask(mask, path, {"round": str(t)})

    data, task = experiment.options.data, experiment.task
    more: dict[str, Any] = {"resume_from": done, "on_round": save, "input_size": experiment.images["input_size"]}
    if experiment.pruning.record.needs != "weights":
        sizes = (data.per_class, data.prune_batch_size, experiment.seed)
        more["batches"] = task.pruning_set(experiment.data, experiment.images, *sizes)
    with experiment.timed("pruning"):
        if experiment.repairs:
            ticket, mask = _repaired(experiment, more)
        else:
            mask = prune(experiment.model, experiment.pruning, accelerator=experiment.accelerator, **more)
            mask = mask.to("cpu")
            ticket = mask.apply_(copy.deepcopy(experiment.model))
    experiment.record_mask(mask)
    if experiment.pruning.whole_channels:
        ticket, mask, removal = shrunk(ticket, mask, input_size=experiment.images["input_size"])
        experiment.run.results["shrunk"] = removal.to_dict()
        experiment.print(f"cut to the channels that stay: {removal}")
    fit_start_(experiment, "ticket", ticket, mask)
    return ticket, mask


def _repaired(experiment: Experiment, more: dict[str, Any]) -> tuple[nn.Module, Mask]:
    repair = experiment.options.repair
    assert repair is not None and repair.repair_images is not None
    count = repair.repair_images
    if experiment.task is CLASSIFICATION:
        transform = test_transform(experiment.data, experiment.images)
        images = draw_images(experiment.data.train, transform, count, experiment.seed)
    else:
        images = [x for x, _ in experiment.task.pruning_set(experiment.data, experiment.images, 10, 8, experiment.seed)]
    model, new_head = experiment.model.to(experiment.accelerator.device), bool(experiment.loaded.new_head)
    try:
        ticket, mask, report = prune_and_repair(
            model, experiment.pruning, images, most=count, new_head=new_head, **more
        )
    finally:
        model.cpu()
    experiment.run.results["repair"] = report.to_dict()
    before, after = report.mean_error
    experiment.print(f"repair: {report.images} images; error by layer, mean: {before:.1%} before, {after:.1%} after")
    return ticket.cpu(), mask.to("cpu")
