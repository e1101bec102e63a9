"""What test_metrics.py and test_mean_iou.py run on two processes: gather a known test set, and write the result."""

import json

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

from hf_px.core.forward import IGNORE
from hf_px.training.metrics import MeanIoU, classification_metrics, confusion, ranked


def known(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels of which the first three are right: repeated at the end, they would raise the accuracy."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(count, 10, generator=generator)
    first, labels = logits.argmax(1), torch.randint(10, (count,), generator=generator)
    labels = torch.where(labels == first, (labels + 1) % 10, labels)
    labels[:3] = first[:3]
    return logits, labels


def known_masks(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Predictions and labels of 4x5 pixels in 3 classes; the first pictures are all right, as above."""
    generator = torch.Generator().manual_seed(0)
    called, labels = (torch.randint(3, (count, 4, 5), generator=generator) for _ in range(2))
    labels[:3] = called[:3]
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = IGNORE
    return called, labels


def main(output: str, count: int, batch_size: int, masks: bool) -> None:
    accelerator = Accelerator(cpu=True)
    dataset = TensorDataset(*(known_masks if masks else known)(count))
    loader = accelerator.prepare(DataLoader(dataset, batch_size=batch_size))
    found = {"world": accelerator.num_processes, "rank": accelerator.process_index, "results": []}
    metrics = MeanIoU(3) if masks else classification_metrics(10)
    for _ in range(2):  # the second must not remember the first
        seen = 0
        for x, y in loader:
            if masks:
                matrices = accelerator.gather_for_metrics(confusion(x, y, 3))
                seen += len(matrices)
                metrics.add_counts(matrices)
                continue
            predictions, references = accelerator.gather_for_metrics((ranked(x), y))
            seen += len(references)
            metrics.add_batch(predictions=predictions, references=references)
        found["results"].append({"seen": seen, **metrics.compute()})
    with open(f"{output}.{found['rank']}", "w") as file:
        json.dump(found, file)
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
