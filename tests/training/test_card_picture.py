"""Which pictures a card gets: how many images, with the dense twin or without, none published unseen."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import timm
from PIL import Image
from support.launching import small_digits, small_pairs
from torch import nn

from hf_px.data import Data, open_data
from hf_px.tickets.card import read_words
from hf_px.training.card_picture import card_picture, images_on_card
from hf_px.training.command_line import parse_options
from hf_px.training.config import Options, OutputOptions

IMAGES = {"input_size": (3, 32, 32), "mean": (0.5,) * 3, "std": (0.5,) * 3, "crop_pct": 1.0, "crop_mode": "squash"}


def options(*flags: object) -> Options:
    return parse_options("prune_finetune", "", list(map(str, flags)))


def net(seed: int = 0) -> nn.Module:
    return timm.create_model("test_resnet", num_classes=10).eval()


def words_of(tmp_path: Path, picture: bytes | None) -> list[str]:
    assert picture is not None
    (tmp_path / "p.png").write_bytes(picture)
    return read_words(tmp_path / "p.png")


@pytest.mark.parametrize(
    ("flags", "alarms", "dense"),
    [
        ([], [], True),
        (["--dense", "skip"], [], False),
        ([], ["The dense twin is at chance level: …"], False),
        ([], ["The ticket is at chance level: …"], True),
    ],
)
def test_a_dense_twin_that_is_no_baseline_is_not_shown(
    flags: list[str], alarms: list[str], dense: bool, tmp_path: Path
) -> None:
    results: dict[str, Any] = {"alarms": alarms}
    picture = card_picture(options(*flags), open_data("digits"), IMAGES, results, net(), net)
    lines = words_of(tmp_path, picture)
    assert len(lines) == 9 and all(("dense" in line, "ticket" in line) == (dense, True) for line in lines)


def test_a_twin_that_is_not_in_the_cache_is_not_shown(tmp_path: Path) -> None:
    picture = card_picture(options("--card-images", 3), open_data("digits"), IMAGES, {}, net(), lambda: None)
    lines = words_of(tmp_path, picture)
    assert len(lines) == 4 and not any("dense" in line for line in lines)


def test_no_images_no_picture() -> None:
    def never() -> nn.Module:
        raise AssertionError("nothing is to be shown, so nothing is to be loaded")

    assert card_picture(options("--card-images", 0), open_data("digits"), IMAGES, {}, net(), never) is None


def test_what_cannot_be_drawn_costs_the_picture_not_the_ticket(capsys: pytest.CaptureFixture[str]) -> None:
    ticket = net()
    nn.init.constant_(next(ticket.parameters()), float("nan"))
    assert card_picture(options(), open_data("digits"), IMAGES, {}, ticket, lambda: None) is None
    assert "warning: the card gets no picture of test images" in capsys.readouterr().out


def test_segmentation_has_as_many_rows_as_asked_for(tmp_path: Path) -> None:
    import hf_px.models.networks  # noqa: F401  (registers the architecture)

    data: Data = open_data(str(small_pairs(tmp_path)), task="segmentation")
    ticket = timm.create_model("deeplabv3plus_test_resnet", num_classes=len(data.classes)).eval()
    images = IMAGES | {"input_size": (3, 33, 33)}
    heights = []
    for rows in (1, 2):
        picture = card_picture(options("--card-images", rows), data, images, {}, ticket, lambda: None)
        assert picture is not None
        heights.append(Image.open(io.BytesIO(picture)).height)
    assert heights[1] > heights[0] + 100


def test_images_of_this_machine_are_not_pushed_unseen(tmp_path: Path) -> None:
    own, hub = small_digits(tmp_path / "scans"), ["--push-to-hub", "me/ticket"]
    mine = open_data(str(own))
    assert images_on_card(options("--data", own), mine, 8) == 8  # the card is on this machine
    assert images_on_card(options("--data", own, *hub), mine, 8) == 0
    assert images_on_card(options("--data", own, *hub, "--card-images", 5), mine, 8) == 5  # asked for
    public = open_data("digits")
    assert images_on_card(options("--data", "digits", *hub), public, 8) == 8
    assert images_on_card(options("--data", "digits", *hub, "--card-images", 0), public, 8) == 0


@pytest.mark.parametrize("count", [-1, 65])
def test_impossible_numbers_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"`card_images`.* {count}"):
        OutputOptions(card_images=count)
