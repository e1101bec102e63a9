"""transformers loads tickets by itself after `import hf_px`, trains them, saves them and loads them again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from support.tickets import pruned, same_state, transformers_ticket

import hf_px
from hf_px.core.errors import TicketError
from hf_px.sparse_training import violations

RESNET = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=4)
VIT = transformers.ViTConfig(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
)
DINO = transformers.Dinov2Config(
    hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=28, patch_size=14
)
TIMM = transformers.TimmWrapperConfig(architecture="test_resnet", num_labels=5)
# class of the ticket, its config, class that loads it
CASES = {
    "ResNetForImageClassification": (RESNET, transformers.AutoModelForImageClassification),
    "ResNetModel": (RESNET, transformers.AutoModel),
    "ResNetBackbone": (RESNET, transformers.ResNetBackbone),
    "ViTForImageClassification": (VIT, transformers.AutoModelForImageClassification),
    "Dinov2ForImageClassification": (DINO, transformers.AutoModelForImageClassification),
    "TimmWrapperForImageClassification": (TIMM, transformers.AutoModelForImageClassification),
    "TimmWrapperModel": (TIMM, transformers.AutoModel),
}


def load(auto: Any, directory: Path, **kwargs: Any) -> Any:
    """LoadedModel, with no key missing, unexpected, mismatched or in error."""
    model, info = auto.from_pretrained(directory, output_loading_info=True, **kwargs)
    assert not any(info.values()), info
    return model


@pytest.mark.parametrize("layout", ["both", "packed", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_load_save_and_load_again(tmp_path: Path, name: str, dtype: torch.dtype, layout: str) -> None:
    config, auto = CASES[name]
    torch.manual_seed(0)
    model, mask = pruned(getattr(transformers, name)(config).to(dtype))
    hf_px.Ticket(model, mask, scorer="random").save_pretrained(tmp_path / "a", layout=layout)
    loaded = load(auto, tmp_path / "a")
    assert type(loaded) is type(model) and same_state(loaded, model)
    assert hf_px.mask_of(loaded) == mask
    loaded.save_pretrained(tmp_path / "b")
    again = load(auto, tmp_path / "b")
    assert same_state(again, model) and hf_px.mask_of(again) == mask
    ticket = hf_px.Ticket.from_pretrained(tmp_path / "b")
    assert ticket.mask == mask and ticket.config["scorer"] == "random"
    assert same_state(ticket.to_model(), model)


class BodyTrainer(transformers.Trainer):
    """For models without a head, which compute no loss."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        features = outputs.feature_maps[-1] if hasattr(outputs, "feature_maps") else outputs.last_hidden_state
        loss = (features.float().flatten(1).mean(1) - labels).square().mean()
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "ResNetForImageClassification",
        "ResNetModel",
        "ResNetBackbone",
        "TimmWrapperForImageClassification",
        "TimmWrapperModel",
    ],
)
def test_trainer_takes_steps_and_zeros_stay_zero(tmp_path: Path, name: str, bf16: bool) -> None:
    config, auto = CASES[name]
    torch.manual_seed(0)
    dtype = torch.bfloat16 if bf16 else torch.float32
    model, mask = pruned(getattr(transformers, name)(config).to(dtype))
    hf_px.Ticket(model, mask, results=[{"dataset": "x", "metric": "accuracy", "value": 1.0}]).save_pretrained(
        tmp_path / "a", layout="packed"
    )
    loaded = load(auto, tmp_path / "a")
    data = [{"pixel_values": torch.randn(3, 64, 64, dtype=dtype), "labels": i % 4} for i in range(8)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "run"),
        max_steps=3,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=0.1,
        weight_decay=0.1,
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    kind = transformers.Trainer if name.endswith("Classification") else BodyTrainer
    trainer = kind(loaded, arguments, train_dataset=data, callbacks=[hf_px.KeepZeros()])
    trainer.train()
    assert violations(dict(loaded.state_dict()), mask) == {}
    assert not same_state(loaded, model)  # it did train
    trainer.save_model(str(tmp_path / "b"))
    again = load(auto, tmp_path / "b")
    assert same_state(again, loaded) and hf_px.mask_of(again) == mask
    config = hf_px.Ticket.from_pretrained(tmp_path / "b").config
    assert "results" not in config  # they were measured on other weights


def test_without_keeping_the_zeros_it_is_not_saved(tmp_path: Path) -> None:
    model, mask = transformers_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path / "a")
    loaded = load(transformers.AutoModelForImageClassification, tmp_path / "a")
    with torch.no_grad():
        loaded.classifier[1].weight.add_(1)
    with pytest.raises(TicketError, match=r"classifier\.1\.weight: .* pruned weights are not zero.*KeepZeros"):
        loaded.save_pretrained(tmp_path / "b")
    assert not (tmp_path / "b" / "model.safetensors").exists()


def test_auto_model_takes_the_body_of_a_classifier(tmp_path: Path) -> None:
    model, mask = transformers_ticket()
    for layout in ("packed", "dense"):
        hf_px.Ticket(model, mask).save_pretrained(tmp_path / layout, layout=layout)
        body = transformers.AutoModel.from_pretrained(tmp_path / layout)
        assert same_state(body, model.resnet)
        of_body = {n.removeprefix("resnet."): b for n, b in mask.bits.items() if n.startswith("resnet.")}
        assert hf_px.mask_of(body) == hf_px.Mask(of_body)


@pytest.mark.parametrize("layout", ["packed", "dense"])
def test_a_new_head_is_drawn_anew(tmp_path: Path, layout: str) -> None:
    model, mask = transformers_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout=layout)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    config.num_labels = 7
    with pytest.warns(UserWarning, match=r"classifier\.1\.weight, classifier\.1\.bias newly initialised for 7 classes"):
        loaded = transformers.AutoModelForImageClassification.from_pretrained(
            tmp_path, config=config, ignore_mismatched_sizes=True
        )
    assert same_state(loaded.resnet, model.resnet)
    head = loaded.classifier[1].weight
    assert head.shape == (7, 16) and bool(torch.isfinite(head).all()) and float(head.detach().std()) > 0
    assert "classifier.1.weight" not in hf_px.mask_of(loaded).bits
    loaded.save_pretrained(tmp_path / "again")
    assert same_state(hf_px.from_pretrained(tmp_path / "again"), loaded)


@pytest.mark.parametrize("layout", ["both", "packed"])
def test_a_timm_ticket_through_the_wrapper(tmp_path: Path, layout: str) -> None:
    torch.manual_seed(0)
    model, mask = pruned(timm.create_model("test_resnet", num_classes=5, zero_init_last=False))
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout=layout)
    loaded = load(transformers.AutoModelForImageClassification, tmp_path)
    assert same_state(loaded.timm_model, model)
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(loaded(x).logits, model(x))
    assert hf_px.mask_of(loaded) == hf_px.Mask({f"timm_model.{n}": b for n, b in mask.bits.items()})


def test_loading_in_another_precision(tmp_path: Path) -> None:
    model, mask = transformers_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    loaded = load(transformers.AutoModelForImageClassification, tmp_path, dtype=torch.bfloat16)
    assert same_state(loaded, model.to(torch.bfloat16))


def test_a_damaged_packed_file_is_a_ticket_error(tmp_path: Path) -> None:
    model, mask = transformers_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    path = tmp_path / "ticket.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # of the values
    path.write_bytes(data)
    with pytest.raises(TicketError, match=r"ticket\.safetensors: .*checksum does not match"):
        transformers.AutoModelForImageClassification.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    "imports",
    ["import hf_px, transformers, timm", "from transformers import PreTrainedModel; import transformers, timm, hf_px"],
)
def test_either_may_be_imported_first(tmp_path: Path, imports: str) -> None:
    model, mask = transformers_ticket()
    hf_px.Ticket(model, mask).save_pretrained(tmp_path, layout="packed")
    code = (
        f"{imports}\n"
        f"model = transformers.AutoModelForImageClassification.from_pretrained({str(tmp_path)!r})\n"
        "timm.create_model('resnet20_cifar', num_classes=10)\n"
        "print(hf_px.mask_of(model).digest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == [mask.digest()]


def test_import_hf_px_stays_quick() -> None:
    code = "import hf_px, sys; print([m for m in ('torch', 'transformers', 'timm') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout.strip() == "[]"


def test_mask_of_a_model_without_one() -> None:
    with pytest.raises(ValueError, match="has no mask"):
        hf_px.mask_of(transformers.ResNetModel(RESNET))
