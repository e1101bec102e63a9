"""Bad input to the recipe: one line that names the flag and the way out, before anything is fetched or written."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image
from support.launching import main, refusal, small_digits

QUICK = ["--image_size", "8", "--sparsity", "0.5", "--rounds", "1", "--per_class", "2", "--epochs", "1"]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_digits(tmp_path_factory.mktemp("digits"), train=64, test=20)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError(f"the network was asked for: {args}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def refused(flags: list[Any], match: str, tmp_path: Path) -> None:
    output = tmp_path / "run"
    before = sorted(output.rglob("*")) if output.is_dir() else None
    with refusal(match):
        main([*map(str, flags), *([] if "--output_dir" in flags else ["--output_dir", str(output)])])
    assert (sorted(output.rglob("*")) if output.is_dir() else None) == before


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["--model", "resnet21"], "resnet21.*did you mean.*resnet20"),
        (["--model", "timm/resnet50.tv_in2k"], "resnet50.tv_in2k.*resnet50.tv_in1k"),
        (["--model", "weights.pth"], "weights.pth"),
        (["--model", "./nowhere"], "nowhere"),
        (["--data", "cifar-10"], "cifar-10.*did you mean cifar10"),
        (["--data", "./nowhere"], "nowhere.*no such file or folder"),
        (["--scorer", "pxx"], "unknown scorer 'pxx'; did you mean px"),
        (["--sparsity", "98.2"], "did you mean 0.982"),
        (["--sparsity", "-0.1"], "outside"),
        (["--scope", "2of4"], "--scope '2of4' is unknown"),
        (["--scope", "2:4", "--sparsity", "0.9"], "2:4 means sparsity 0.5"),
        (["--schedule", "cubic"], "--schedule 'cubic' is unknown"),
        (["--rounds", "0"], "--rounds is 0"),
        (["--scorer", "snip", "--norm", "batch"], "--norm batch: snip has no such option"),
        (["--scorer", "px", "--norm", "bach"], "--norm bach must be one of batch, flow, running, released for px"),
        (["--lr", "0"], "--lr 0 must be positive"),
        (["--lr", "-1"], "--lr -1 must be positive"),
        (["--lr", "nan"], "--lr nan"),
        (["--epochs", "0"], "--epochs 0 is too small"),
        (["--batch_size", "0"], "--batch-size 0 is too small"),
        (["--momentum", "1"], r"--momentum 1 is outside \[0, 1\)"),
        (["--weight_decay", "-1"], "--weight-decay -1 is too small"),
        (["--per_class", "0"], "--per-class 0 is too small"),
        (["--lr_schedule", "step"], "needs the epochs of the drops"),
        (["--lr_drops", "5", "-1"], "--lr-drops -1 must be positive"),
        (["--seed", "99999999999999999999"], r"--seed 9+ is outside \[0, "),
        (["--resume", "--overwrite"], "use one of the two"),
        (["--label_column", "digit"], "data digits has no columns, configs or revisions; omit --label-column$"),
        (["--data_config", "foo"], "omit --data-config$"),
        (["--data_revision", "foo", "--image_column", "x"], "omit --image-column and --data-revision$"),
        (["--warmup_epochs", "12"], "there are only 12 epochs"),
        (["--distill", "0.5", "--dense", "skip"], "--distill needs the dense twin"),
        (["--layout", "mask-only"], "stores no weights"),
        (["--report_to", "tensorbord"], "--report-to tensorbord: accelerate knows"),
        (["--report_to", "clearml"], "--report-to clearml: not installed; pip install clearml"),
        (["--num_classes", "12"], "--num-classes 12: digits has 10 classes"),
        (["--min_per_layer", "-1"], "--min-per-layer -1 is too small"),
    ],
)
def test_without_network_or_work(flags: list[str], match: str, offline: None, tmp_path: Path) -> None:
    refused(flags, match, tmp_path)


@pytest.mark.parametrize(
    ("flags", "match"),
    [
        (["--per_class", "2", "--exclude", "nothing.weight"], "nothing.weight"),
        (["--per_class", "20"], r"class 0 \(digit 0\) has \d+ examples"),
        (["--image_column", "picture"], "'picture' is not in the data; it has image, label"),
        (["--test_split", "valid"], "no split 'valid'"),
        (["--model", "test_vit", "--image_size", "20"], "test_vit does not run on images of 3x20x20"),
        (
            ["--per_class", "2", "--keep_head", "true", "--sparsity", "0.999"],
            "--keep-head needs 640 weights for .*, but --sparsity 0.999 leaves 271 .*or prune the head, too",
        ),
    ],
)
def test_what_the_data_and_the_model_cannot_do(flags: list[str], match: str, digits: Path, tmp_path: Path) -> None:
    with refusal(match):
        main(["--data", str(digits), *flags, "--output_dir", str(tmp_path / "run")])


def test_data_without_labels(tmp_path: Path) -> None:
    image = Image.new("RGB", (8, 8))
    for split in ("train", "test"):
        rows = datasets.Dataset.from_dict({"image": [image] * 4, "caption": ["a b"] * 4})
        rows.cast_column("image", datasets.Image()).to_parquet(tmp_path / "data" / f"{split}.parquet")
    refused(["--data", tmp_path / "data"], "no label column found.*image, caption.*label-column", tmp_path)


def started(flags: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that came as far as its mask, and no further."""
    import hf_px.training.experiment

    def cut(*_: Any) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="power cut"):
        patch.setattr(hf_px.training.experiment.Experiment, "record", cut)
        main([*flags, *QUICK, "--output_dir", str(tmp_path / "run")])


def test_another_run_is_never_written_over_unasked(digits: Path, tmp_path: Path, monkeypatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "thesis.txt").write_text("mine")
    refused(["--data", digits], "holds other files, and no run of prune_finetune", tmp_path)
    refused(["--data", digits, "--overwrite"], "holds other files", tmp_path)
    (run / "thesis.txt").unlink()
    started([*map(str, ["--data", digits, "--scorer", "snip"])], tmp_path, monkeypatch)
    other = r"holds another run: scorer was 'snip', now 'px-path' \(and .* more\).*--overwrite"
    refused(["--data", digits, *QUICK], other, tmp_path)
    (tmp_path / "file").write_text("mine")
    refused(["--output_dir", tmp_path / "file"], "is a file; name a directory", tmp_path)


def test_an_unfinished_run_asks_what_to_do(digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--data", str(digits), *QUICK]
    started(flags, tmp_path, monkeypatch)
    refused(flags, "holds this run, unfinished; --resume continues it, --overwrite starts again", tmp_path)


def test_a_run_that_was_refused_is_not_in_the_way(digits: Path, tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="`per_class` is 20"):
        main(["--data", str(digits), *QUICK, "--per_class", "20", "--output_dir", str(tmp_path / "run")])
    started(["--data", str(digits)], tmp_path, monkeypatch)
