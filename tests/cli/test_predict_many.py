"""hf-px predict on several images and folders: each as if it came alone, files of them all, damaged ones named."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.tickets import deeplab_ticket, timm_ticket

import hf_px
from hf_px.cli import main


@pytest.fixture
def ticket(tmp_path: Path) -> Path:
    hf_px.Ticket(*timm_ticket()).save_pretrained(tmp_path / "ticket", layout="packed")
    return tmp_path / "ticket"


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Five images of different sizes in photos/ and photos/more/, in the order of their names."""
    random, found = np.random.default_rng(0), []
    for name in ("a.jpg", "b.PNG", "c.webp", "more/a.png", "more/z.bmp"):
        (path := tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (4, 5 + len(found), 3), np.uint8)
        Image.fromarray(pixels).resize((70 + len(found), 60), Image.Resampling.BICUBIC).save(path)
        found.append(path)
    (tmp_path / "photos" / "notes.txt").write_text("mine")
    (tmp_path / "photos" / ".hidden.png").write_text("not an image")
    return found


def run(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> tuple[str, str]:
    assert main(["predict", *map(str, argv)]) == code
    return capsys.readouterr()


def alone(capsys: pytest.CaptureFixture[str], ticket: Path, photo: Path, *flags: object) -> list[dict[str, object]]:
    return json.loads(run(capsys, ticket, photo, "--json", *flags)[0])["classes"]


@pytest.mark.parametrize("size", [1, 2, 32])
def test_a_folder_is_its_images_one_by_one(
    ticket: Path, photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    files = ["--csv", tmp_path / "x.csv", "--json", tmp_path / "x.json", "--batch-size", size, "--top", 3]
    out, err = run(capsys, ticket, tmp_path / "photos", *files)
    answers = json.loads((tmp_path / "x.json").read_text())
    assert [answer["image"] for answer in answers] == [str(path) for path in photos] and err == ""
    rows = list(csv.DictReader((tmp_path / "x.csv").open()))
    for i, (photo, answer, line) in enumerate(zip(photos, answers, out.splitlines(), strict=True)):
        true = alone(capsys, ticket, photo, "--top", 3)
        assert [one["class"] for one in answer["classes"]] == [one["class"] for one in true]
        for one, other, row in zip(answer["classes"], true, rows[3 * i : 3 * i + 3], strict=True):
            assert one["probability"] == pytest.approx(other["probability"], rel=1e-4)
            assert row["image"] == str(photo) and row["class"] == one["class"]
            assert float(row["probability"]) == one["probability"]
        assert line.startswith(f"{photo} ") and f"  {true[0]['class']} {true[0]['probability']:.2%}, " in line


def test_files_and_folders_together(
    ticket: Path, photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = run(capsys, ticket, photos[2], tmp_path / "photos" / "more", photos[0], "--json")
    answers = json.loads(out)
    assert [answer["image"] for answer in answers] == [str(photos[i]) for i in (2, 3, 4, 0)]
    assert all(len(answer["classes"]) == 1 for answer in answers)  # the best alone


def test_a_damaged_image_is_named_and_the_others_go_on(
    ticket: Path, photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos[1].write_bytes(photos[1].read_bytes()[:60])
    photos[3].write_text("hello")
    files = ["--csv", tmp_path / "x.csv", "--json", tmp_path / "x.json", "--batch-size", 2]
    out, err = run(capsys, ticket, tmp_path / "photos", *files, code=1)
    assert [line.split()[0] for line in out.splitlines()] == [str(photos[i]) for i in (0, 2, 4)]
    first, second, last = err.splitlines()
    assert first.startswith(f"hf-px: error: {photos[1]}: ") and second.startswith(f"hf-px: error: {photos[3]}: not an")
    assert last == "hf-px: 2 of 5 images could not be read"
    answers = json.loads((tmp_path / "x.json").read_text())
    assert [i for i, answer in enumerate(answers) if "error" in answer] == [1, 3]
    assert {row["image"] for row in csv.DictReader((tmp_path / "x.csv").open())} == {str(photos[i]) for i in (0, 2, 4)}
    for path in photos:
        path.write_text("hello")
    out, err = run(capsys, ticket, tmp_path / "photos", code=1)
    assert out == "" and "5 of 5 images could not be read" in err
    assert run(capsys, ticket, photos[0], code=2)[1].startswith(f"hf-px: error: {photos[0]}: not an image")


def test_a_segmenter_draws_each_image(
    photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hf_px.Ticket(*deeplab_ticket()).save_pretrained(ticket := tmp_path / "seg", layout="packed")
    monkeypatch.chdir(tmp_path)
    err = run(capsys, ticket, "photos", code=2)[1]
    assert "photos/a.jpg and photos/more/a.png: both would be drawn to a-segmented.png" in err
    photos[3].rename(photos[3].with_name("d.png"))
    out, _ = run(capsys, ticket, "photos", "--output", "drawn", "--csv", "x.csv", "--batch-size", 2)
    names = [f"{letter}-segmented.png" for letter in "abcdz"]
    assert sorted(path.name for path in (tmp_path / "drawn").iterdir()) == names
    assert [line.rpartition("; wrote ")[2] for line in out.splitlines()] == [f"drawn/{name}" for name in names]
    run(capsys, ticket, photos[0], "--output", "one.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "drawn" / names[0]).read_bytes()
    assert next(csv.DictReader((tmp_path / "x.csv").open())).keys() == {"image", "rank", "class", "share"}
    assert "drawn/a-segmented.png: exists" in run(capsys, ticket, "photos", "--output", "drawn", code=2)[1]
    run(capsys, ticket, "photos", "--output", "drawn", "--force")
    assert "name a directory for the drawings" in run(capsys, ticket, "photos", "--output", "x.png", code=2)[1]


def test_what_cannot_be_done_is_refused_first(
    ticket: Path, photos: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    before = photos[0].read_bytes()
    for argv, complaint in (
        ((tmp_path / "empty",), "empty: no image in it or below it"),
        ((photos[0], tmp_path / "gone.png"), "gone.png: no such file"),
        (("--json", photos[0], photos[1]), "a.jpg: name a file that ends in .json"),
        ((photos[1], "--csv", photos[0]), "a.jpg: name a file that ends in .csv"),
        ((photos[1], "--csv", tmp_path / "no" / "x.csv"), "make it first"),
        ((photos[1], photos[2], "--output", tmp_path / "x"), "is a classifier, which makes no image"),
    ):
        out, err = run(capsys, ticket, *argv, code=2)
        assert out == "" and complaint in err and len(err.splitlines()) == 1, argv
    assert photos[0].read_bytes() == before
