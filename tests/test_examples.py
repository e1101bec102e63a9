"""The tickets under model_cards/examples are what their cards say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import hf_px
from hf_px.data import TestImages, data_config, open_data
from hf_px.hub.remote import Source
from hf_px.hub.verify import verify

EXAMPLES = sorted((Path(__file__).parents[1] / "model_cards" / "examples").iterdir())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_it_is_sound_and_its_card_is_up_to_date(example: Path, tmp_path: Path) -> None:
    assert list(verify(Source.of(example)))
    hf_px.Ticket.from_pretrained(example).save_pretrained(tmp_path, layout="packed")
    for path in example.iterdir():
        if path.name != "results.json":
            assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_numbers_on_the_card_are_those_of_the_run_and_are_measured_again(example: Path) -> None:
    told = json.loads((example / "results.json").read_text())
    ticket = hf_px.Ticket.from_pretrained(example)
    found = {r["metric"]: (r["value"], r["dense"]) for r in ticket.config["results"]}
    assert found == {m: (v, told["results"]["dense"][m]) for m, v in told["results"]["ticket"].items() if m != "loss"}
    assert told["finished"] and told["mask"]["digest"] == ticket.mask.digest()

    model = ticket.to_model()
    images = TestImages(open_data(told["settings"]["data"]), data_config(model))
    x, y = (torch.stack([torch.as_tensor(images[i][part]) for i in range(len(images))]) for part in (0, 1))
    with torch.no_grad():
        right = int((model(x).argmax(1) == y).sum())
    # one image either way: the last digits of a convolution differ between machines
    assert abs(right / len(y) - found["accuracy"][0]) <= 1.01 / len(y)
