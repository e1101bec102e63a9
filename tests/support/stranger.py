"""A stranger's script: load a ticket from the Hub in one line, test it on a data set there, in a process of its own.

python stranger.py ticket data way [way …]; prints {way: accuracy}. "transformers alone" is without hf_px, and without
other ways beside it.
"""

from __future__ import annotations

import json
import sys


def accuracy(way: str, ticket: str, data: str) -> float:
    import datasets
    import torch

    rows = datasets.load_dataset(data, split="test")
    if way == "transformers alone":
        sys.modules["hf_px"] = None  # type: ignore[assignment]  # as if it were not installed
    else:
        import hf_px
    if way == "hf_px":
        model = hf_px.from_pretrained(ticket)
    elif way == "timm":
        import timm

        model = timm.create_model(f"hf-hub:{ticket}", pretrained=True).eval()
    else:
        from transformers import AutoModelForImageClassification

        model = AutoModelForImageClassification.from_pretrained(ticket).eval()
    images = [row["image"].convert("RGB") for row in rows]
    if hasattr(model, "pretrained_cfg"):  # what a timm user does
        from timm.data import create_transform, resolve_model_data_config

        transform = create_transform(**resolve_model_data_config(model), is_training=False)
        pixels = torch.stack([transform(image) for image in images])
    else:  # what a transformers user does
        from transformers import AutoImageProcessor

        pixels = AutoImageProcessor.from_pretrained(ticket)(images, return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        answers = model(pixels)
    answers = getattr(answers, "logits", answers).argmax(1)
    return int((answers == torch.tensor(rows["label"])).sum()) / len(rows)


if __name__ == "__main__":
    ticket, data, *ways = sys.argv[1:]
    print(json.dumps({way: accuracy(way, ticket, data) for way in ways}))
