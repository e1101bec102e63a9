import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

import hf_px
from hf_px.cli import main
from hf_px.data import load_pruning_set
from hf_px.models.load import load
from hf_px.models.networks import resnet20
from hf_px.prune_config import DEFAULT_SCORER
from hf_px.tickets.mask_file import load_mask

QUICK = ["--data", "random", "--batch-size", "4", "--rounds", "2"]


def _fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a wrong command ends with; its exit code is 2 and nothing else is said."""
    try:
        code = main(argv)
    except SystemExit as stop:  # argparse's own
        code = stop.code
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert err.startswith("hf-px: error: ")
    assert err.count("\n") == 1
    assert not re.search(r"`\w+`", err)  # flags, not Python arguments
    return err


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny transformers model with three classes, as save_pretrained leaves it."""
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = ViTConfig(**tiny, image_size=32, patch_size=8, id2label={0: "ant", 1: "bee", 2: "cat"})
    path = tmp_path_factory.mktemp("models") / "tiny-vit"
    ViTForImageClassification(config).save_pretrained(path)
    return path


# a user at the terminal


def test_help_is_instant_and_teaches() -> None:
    code = """if 1:
        import sys
        from hf_px.cli import main
        try:
            main(["prune", "--help"])
        except SystemExit as stop:
            print("code", stop.code)
        print("loaded", [name for name in ("torch", "timm", "transformers", "numpy") if name in sys.modules])
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "code 0" in run.stdout
    assert "loaded []" in run.stdout  # what makes it instant
    assert "hf-px prune --demo" in run.stdout
    assert "Gaussian noise" in run.stdout


def test_the_command_runs_and_fails_like_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "hf_px.cli"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"hf-px {hf_px.__version__}\n"
    wrong = subprocess.run([*command, "scorers", "--loud"], capture_output=True, text=True)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("hf-px: error: unrecognized arguments: --loud") and "Traceback" not in wrong.stderr
    assert main(["prune", "--demo", "--scorer", "pz"]) == 2
    assert capsys.readouterr().err.startswith("hf-px: error: unknown scorer 'pz'; did you mean px")
    with pytest.raises(ValueError, match="unknown scorer 'pz'"):
        main(["prune", "--demo", "--scorer", "pz", "--traceback"])


def test_a_closed_pipe_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)  # as `| head` does once it has seen enough
    run = subprocess.run(
        [sys.executable, "-m", "hf_px.cli", "scorers"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_terminal_without_greek_letters_is_served() -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = subprocess.run([sys.executable, "-m", "hf_px.cli", "scorers"], env=env, capture_output=True, check=True)
    assert b"magnitude" in run.stdout


def test_scorers_lists_every_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scorers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "needs", "rounds", "score", "paper"]
    rows = {line.split()[0]: line for line in lines[1 : lines.index("")]}
    assert list(rows) == hf_px.list_scorers()
    assert rows["px"].split()[1:3] == ["inputs", "100"]
    assert "CVPR 2024" in rows["px"]


def test_the_demo(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With fewer rounds; the mask is the one that Python gives."""
    assert main(["prune", "--demo", "--rounds", "2", "--output", str(tmp_path / "demo")]) == 0
    out = capsys.readouterr().out
    assert "blocks.8.conv2.weight" in out
    assert "live units" in out
    assert "kept 4,876 of 270,896" in out  # round(0.018 · 270,896)
    assert f"{DEFAULT_SCORER} on resnet20: 2 rounds in " in out
    assert "peak memory" in out
    model = resnet20(generator=torch.Generator().manual_seed(0))
    mask = hf_px.prune(model, sparsity=0.982, batches=load_pruning_set("digits", model), rounds=2, progress=False)
    assert load_mask(tmp_path / "demo/mask.safetensors")[0] == mask


# what is written


TICKET = ["README.md", "config.json", "density.svg", "ticket.safetensors"]


def test_output_is_complete_and_can_be_written_again(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "a" / "b"
    command = ["prune", "resnet20", "--num-classes", "5", "--sparsity", "0.9", *QUICK, "--quiet", "--output", str(out)]
    assert main(command) == 0
    assert sorted(os.listdir(out)) == sorted([".cache", "mask.safetensors", "prune.json", *TICKET])
    record = json.loads((out / "prune.json").read_text())
    mask, notes = load_mask(out / "mask.safetensors")
    assert record["digest"] == mask.digest()
    assert record["kept"] == mask.kept == round(0.1 * mask.total)
    assert record["total"] == mask.total == 270_896 - 5 * 64
    wanted = {"model": "resnet20", "scorer": DEFAULT_SCORER, "sparsity": 0.9, "rounds": 2, "scope": "global"}
    wanted["norm"] = "batch"
    assert wanted.items() <= record["settings"].items()
    assert {k: notes[k] for k in ("model", "scorer", "rounds")} == {
        "model": "resnet20",
        "scorer": DEFAULT_SCORER,
        "rounds": "2",
    }
    assert sum(row["kept"] for row in record["summary"]["layers"]) == mask.kept
    assert record["summary"]["nominal_sparsity"] == pytest.approx(0.9, abs=1e-5)
    assert {"hf-px", "torch", "timm", "transformers"} <= set(record["versions"])
    assert record["seconds"] > 0
    assert record["peak_memory_bytes"] > 1e7

    assert main([*command, "--seed", "1"]) == 0  # our own directory: no --force needed
    assert load_mask(out / "mask.safetensors")[0] != mask
    assert json.loads((out / "prune.json").read_text())["settings"]["seed"] == 1


def test_a_directory_with_other_files_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    command = ["prune", "resnet20", "--scorer", "magnitude", "--quiet", "--output", str(tmp_path)]
    assert "holds other files" in _fails(capsys, *command)
    (tmp_path / "prune.json").write_text('{"written_by": "someone else"}')
    assert "holds other files" in _fails(capsys, *command)
    assert sorted(os.listdir(tmp_path)) == ["prune.json", "thesis.tex"]
    assert main([*command, "--force"]) == 0
    assert sorted(os.listdir(tmp_path)) == sorted([".cache", "mask.safetensors", "prune.json", "thesis.tex", *TICKET])
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert main(command) == 0  # ours now
    capsys.readouterr()
    assert "is a file" in _fails(capsys, *command[:-1], str(tmp_path / "thesis.tex"))
    assert "not a writable directory" in _fails(capsys, *command[:-1], str(tmp_path / "thesis.tex" / "deeper"))


def test_the_same_command_gives_the_same_mask(tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert main(["prune", "test_resnet", *QUICK, "--quiet", "--output", str(tmp_path / name)]) == 0
    one, two = (load_mask(tmp_path / name / "mask.safetensors")[0] for name in ("one", "two"))
    assert one == two


# models


def _mask(tmp_path: Path, *argv: str) -> hf_px.Mask:
    assert main(["prune", *argv, "--quiet", "--output", str(tmp_path)]) == 0
    return load_mask(tmp_path / "mask.safetensors")[0]


def test_timm_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = _mask(tmp_path, "test_resnet", "--num-classes", "7", "--sparsity", "0.5", *QUICK)
    assert plain.bits["fc.weight"].shape[0] == 7
    assert plain.kept == round(0.5 * plain.total)
    # timm starts the last scale of each branch at 0: left so, px would empty the branches
    assert "normalisation layers start with scale 0" in capsys.readouterr().err
    assert all(bool(bits.any()) for bits in plain.bits.values())
    assert _mask(tmp_path, "timm/test_resnet", "--num-classes", "7", "--sparsity", "0.5", *QUICK) == plain
    assert _mask(tmp_path, "test_vit", "--scorer", "synflow", "--sparsity", "0.5", *QUICK).sparsity == pytest.approx(
        0.5
    )


def test_transformers_models(vit: Path, tmp_path: Path) -> None:
    own = _mask(tmp_path, str(vit), "--scorer", "magnitude", "--sparsity", "0.5")
    assert own.bits["classifier.weight"].shape == (3, 16)
    saved = ViTForImageClassification.from_pretrained(vit)
    assert own == hf_px.prune(saved, "magnitude", sparsity=0.5, progress=False)  # its weights, not random ones
    fresh = _mask(tmp_path, str(vit), "--no-pretrained", "--scorer", "magnitude", "--sparsity", "0.5", "--seed", "5")
    assert fresh != own
    patches = "vit.embeddings.patch_embeddings.projection.weight"
    pairs = _mask(tmp_path, str(vit), "--scorer", "random", "--scope", "2:4", "--exclude", patches)
    assert patches not in pairs.bits
    assert all(bool((b.view(len(b), -1, 4).sum(2) == 2).all()) for b in pairs.bits.values())
    other = _mask(tmp_path, str(vit), "--num-classes", "10", "--scorer", "snip", "--sparsity", "0.5")
    assert other.bits["classifier.weight"].shape == (10, 16)


def test_options_reach_the_method(tmp_path: Path) -> None:
    layers = _mask(tmp_path, "resnet20", "--scorer", "magnitude", "--scope", "layer", "--sparsity", "0.75")
    assert all(float(b.float().mean()) == pytest.approx(0.25, abs=0.01) for b in layers.bits.values())
    floor = _mask(tmp_path, "resnet20", "--scorer", "random", "--sparsity", "0.999", "--min-per-layer", "9")
    assert min(int(b.sum()) for b in floor.bits.values()) >= 9
    args = ["resnet20", *QUICK, "--sparsity", "0.9"]
    assert _mask(tmp_path, *args, "--norm", "running") != _mask(tmp_path, *args, "--norm", "batch")
    once = _mask(tmp_path, "resnet20", *QUICK[:4], "--sparsity", "0.9", "--schedule", "one-shot")
    assert once != _mask(tmp_path, *args)
    assert json.loads((tmp_path / "prune.json").read_text())["settings"]["rounds"] == 2


def test_a_folder_of_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in range(3):
        (tmp_path / "data" / f"class{label}").mkdir(parents=True)
        for i in range(2):
            Image.effect_noise((32, 32), 50 + 40 * label).save(tmp_path / "data" / f"class{label}" / f"{i}.png")
    argv = ["resnet20", "--scorer", "snip", "--data", str(tmp_path / "data"), "--per-class", "2", "--num-classes", "3"]
    assert _mask(tmp_path / "out", *argv, "--sparsity", "0.9").sparsity == pytest.approx(0.9, abs=1e-5)
    capsys.readouterr()
    assert "no split 'foo'; it has train: set --split to" in _fails(capsys, "prune", *argv, "--split", "foo")


# wrong input: one line each, and before the model is looked for

NOWHERE = "nobody/no-such-model"  # would be an error of its own as soon as it is loaded


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        ([], "required"),
        (["prun"], "invalid choice: 'prun'"),
        (["prune"], "name a model, or try hf-px prune --demo"),
        (["prune", NOWHERE, "--demo"], "leave one of the two out"),
        (["prune", NOWHERE, "--sparsity", "98.2"], "did you mean 0.982?"),
        (["prune", NOWHERE, "--sparsity", "1"], "outside [0, 1)"),
        (["prune", NOWHERE, "--sparsity", "nan"], "outside [0, 1)"),
        (["prune", NOWHERE, "--sparsity", "much"], "invalid float value: 'much'"),
        (["prune", NOWHERE, "--scorer", "pxx"], "did you mean px"),
        (["prune", NOWHERE, "--scope", "globe"], "--scope 'globe' is unknown"),
        (["prune", NOWHERE, "--scope", "4:2"], "need 0 < n < m"),
        (["prune", NOWHERE, "--scope", "2:4", "--sparsity", "0.9"], "means sparsity 0.5, not 0.9"),
        (["prune", NOWHERE, "--schedule", "cosine"], "--schedule 'cosine' is unknown"),
        (["prune", NOWHERE, "--schedule", "one-shot", "--rounds", "5"], "one round, not 5"),
        (["prune", NOWHERE, "--rounds", "0"], "--rounds is 0; expected a positive integer"),
        (["prune", NOWHERE, "--rounds", "ten"], "argument --rounds: invalid int value: 'ten'"),
        (["prune", NOWHERE, "--per-class", "0"], "at least 1"),
        (["prune", NOWHERE, "--batch-size", "-1"], "at least 1"),
        (["prune", NOWHERE, "--num-classes", "0"], "at least 1"),
        (["prune", NOWHERE, "--min-per-layer", "-1"], "at least 0"),
        (
            ["prune", NOWHERE, "--scorer", "px", "--norm", "sideways"],
            "--norm sideways must be one of batch, flow, running, released for px",
        ),
        (["prune", NOWHERE, "--norm", "batch", "--scorer", "snip"], "snip has no such option"),
        (["prune", NOWHERE, "--device", "gpu"], "--device gpu: not usable here"),
        (["prune", NOWHERE, "--data", "digit"], "did you mean digits?"),
        (["prune", NOWHERE, "--data", "./nowhere"], "no such file or folder"),
        (["prune", NOWHERE, "--output", __file__], "is a file; name a directory"),
        (["prune", NOWHERE, "--spars", "0.9"], "unrecognized arguments"),
        (["prune", NOWHERE], "nobody/no-such-model: not loaded as an image classifier"),
        (["prune", "resnet05"], "did you mean resnet50"),
        (["prune", "resnet2O"], "resnet20"),
        (["prune", "resnet50.nonsense"], "resnet50.a1_in1k"),
        (["prune", "resnet18.a1_in1k", "--pretrained"], "resnet18.a1_in1k: no pretrained weights from the Hub"),
        (["prune", "./no/such/directory"], "no such directory"),
        (["prune", "resnet20", "--pretrained"], "no pretrained weights"),
        (["prune", "resnet20", "--num-classes", "3"], "labels go up to 9, but the model has 3 classes"),
        (["prune", "resnet20", "--per-class", "1000"], "class 0 has 142 examples"),
        (["prune", "resnet20", "--scope", "2:4", *QUICK], "conv.weight has 3 inputs"),
        (["prune", "resnet20", "--data", "/nope"], "--data '/nope': no such file or folder; built in are"),
        (["prune", "resnet20", "--scorer", "px:running"], "unknown scorer 'px:running'; there are"),
        (["prune", "resnet20", "--data", "digits", "--image-column", "zz"], "revisions; omit --image-column\n"),
    ],
)
def test_wrong_input_is_one_line(capsys: pytest.CaptureFixture[str], argv: list[str], complaint: str) -> None:
    assert complaint in _fails(capsys, *argv)


def test_a_directory_that_is_no_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "without config.json" in _fails(capsys, "prune", str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    assert "not loaded as an image classifier" in _fails(capsys, "prune", str(tmp_path))


def test_data_that_is_not_needed_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "resnet20", "--scorer", "magnitude", "--data", "./nowhere", "--quiet"]) == 0
    assert "magnitude needs no data; --data ./nowhere is not read" in capsys.readouterr().err


def test_classes_that_lose_their_weights_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """What px does to the demo's head in twenty rounds; with the head whole there is nothing to say."""
    words = [
        "prune",
        "--demo",
        "--scorer",
        "px",
        "--rounds",
        "20",
        "--per-class",
        "1",
        "--sparsity",
        "0.992",
        "--quiet",
        "--no-keep-head",
    ]
    assert main(words) == 0
    said = re.search(r"fc\.weight keeps no weight for (\d) class(?:es)? \(([\d, ]+)\)", capsys.readouterr().err)
    assert said is not None
    model = load("resnet20", seed=0).model
    batches = load_pruning_set("digits", model, 1, 100, 0)
    mask = hf_px.prune(model, "px", sparsity=0.992, rounds=20, batches=batches, keep_head=False, progress=False)
    lost = [i for i, row in enumerate(mask.bits["fc.weight"]) if not row.any()]
    assert said[2] == ", ".join(map(str, lost)) and int(said[1]) == len(lost)
    assert main([*words, "--exclude", "fc.weight"]) == 0
    assert "no weight for" not in capsys.readouterr().err
