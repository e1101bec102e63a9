"""Tickets go to the Hub and come back, for hf_px, transformers and timm, with and without hf_px installed."""

from __future__ import annotations

import json
import warnings

import pytest
import timm
import torch
from huggingface_hub import HfApi, ModelCard
from PIL import Image
from support.makers import dense, expected_outputs, model_args, pruned, push_base, same, ticket
from support.readers import outputs, strangers
from support.tickets import deeplab_ticket, segformer_ticket
from transformers import AutoModelForImageClassification

import hf_px
from hf_px.cli import main
from hf_px.core.errors import TicketError
from hf_px.data import data_config
from hf_px.models.image_config import from_processor
from hf_px.tickets.predict import class_shares, read_image, segment

KINDS = ("test_resnet", "transformers", "resnet20")
WEIGHTS = {
    "both": {"ticket.safetensors", "model.safetensors"},
    "packed": {"ticket.safetensors"},
    "dense": {"model.safetensors"},
    "mask-only": {"ticket.safetensors"},
}
BESIDE = {".gitattributes", "config.json", "README.md", "density.svg"}
X = "alice/x"
PROCESSOR = {"size": 48, "image_mean": [0.4] * 3, "image_std": [0.3] * 3}


@pytest.fixture(autouse=True)
def token(monkeypatch):
    """alice is logged in."""
    monkeypatch.setenv("HF_TOKEN", "hf_alice")


@pytest.fixture
def nobody(monkeypatch, token):
    monkeypatch.delenv("HF_TOKEN")


def fetched(hub) -> set[str]:
    """Names of the files that were downloaded, not only asked for."""
    return {
        entry.path.rpartition("/")[2] for entry in hub.requests if entry.method == "GET" and "/resolve/" in entry.path
    }


# Push


@pytest.mark.parametrize("private", [None, False, True])
def test_push_to_a_new_repo(hub, private):
    address = ticket("test_resnet").push_to_hub(X, private=private)
    assert HfApi().model_info(X).private is bool(private)
    assert set(hub.files(X)) == WEIGHTS["both"] | BESIDE
    new, initial = hub.commits(X)  # one commit beside the Hub's own
    assert address == f"{hub.url}/{X}/commit/{new.id}" and initial.title == "initial commit"
    assert new.title == "Add a ticket: 80.00% sparse"
    assert b"<svg" in hub.files(X)["density.svg"]
    card = ModelCard.load(X)
    card.validate()
    assert card.data.library_name == "timm" and f'hf_px.from_pretrained("{X}")' in card.text
    assert same(hf_px.Ticket.from_pretrained(X), ticket("test_resnet"))


def test_push_to_a_repo_that_exists(hub):
    hub.put(X, {"notes.txt": b"mine"})
    ticket("test_resnet").push_to_hub(X, commit_message="a first try")
    ticket("test_resnet", 1).push_to_hub(X)
    assert [commit.title for commit in hub.commits(X)][1] == "a first try"
    assert hub.files(X)["notes.txt"] == b"mine"
    assert same(hf_px.Ticket.from_pretrained(X), ticket("test_resnet", 1))
    ticket("test_resnet", 1).push_to_hub(X)  # nothing has changed: the same bytes, so no file is sent again
    assert hub.files(X, hub.commits(X)[0].id) == hub.files(X, hub.commits(X)[1].id) or len(hub.commits(X)) == 4


@pytest.mark.parametrize("kind", ["test_resnet", "transformers"])
def test_each_layout_replaces_the_one_before_in_one_commit(hub, kind, tmp_path):
    made = hf_px.Ticket(*pruned(kind), base="alice/base", base_revision=push_base(hub, kind, tmp_path / "base"))
    hub.create_repo(X)
    for count, layout in enumerate(["both", "packed", "dense", "mask-only", "dense", "both", "mask-only", "packed"], 2):
        made.push_to_hub(X, layout=layout)
        processor = {"preprocessor_config.json"} if kind == "transformers" else set()
        assert set(hub.files(X)) == WEIGHTS[layout] | BESIDE | processor, layout
        assert len(hub.commits(X)) == count, layout
        assert same(hf_px.Ticket.from_pretrained(X), made), layout
        expected = kind.replace("test_resnet", "timm") if layout in ("both", "dense") else "hf_px"
        assert ModelCard.load(X).data.library_name == expected


def test_private_is_not_promised_of_a_public_repo(hub):
    hub.create_repo(X)
    with pytest.raises(TicketError, match=r"alice/x: exists and is public; make it private"):
        ticket("test_resnet").push_to_hub(X, private=True)
    assert len(hub.commits(X)) == 1
    assert not [entry for entry in hub.requests if "preupload" in entry.path or entry.method == "PUT"]


def test_a_card_written_by_hand_is_kept(hub):
    mine = b"---\nlicense: mit\n---\n# Mine\n"
    hub.put(X, {"README.md": mine})
    with pytest.warns(UserWarning, match="alice/x has a card that was edited by hand"):
        ticket("test_resnet").push_to_hub(X)
    assert hub.files(X)["README.md"] == mine and set(hub.files(X)) == WEIGHTS["both"] | BESIDE


def test_a_card_written_by_hand_is_kept_though_the_cache_has_ours(hub):
    ticket("test_resnet").push_to_hub(X)
    ticket("test_resnet", 1).push_to_hub(X)  # has looked at the card, which was ours
    mine = b"---\nlicense: mit\n---\n# Mine\n"
    hub.put(X, {"README.md": mine})
    with (
        hub.fault("HEAD /alice/x/resolve", status=503),
        pytest.warns(UserWarning, match="card that was edited"),
    ):
        ticket("test_resnet").push_to_hub(X)
    assert hub.files(X)["README.md"] == mine


def test_our_own_card_is_written_anew(hub):
    ticket("test_resnet").push_to_hub(X)
    first = hub.files(X)["README.md"]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ticket("test_resnet", 1).push_to_hub(X)
    assert ticket("test_resnet", 1).mask.digest().encode() in hub.files(X)["README.md"] != first


def test_branches_and_commits(hub):
    ticket("test_resnet").push_to_hub(X)
    ticket("test_resnet", 1).push_to_hub(X, revision="v2")
    ticket("test_resnet", 2).push_to_hub(X, revision="v2")
    assert same(hf_px.Ticket.from_pretrained(X), ticket("test_resnet"))
    assert same(hf_px.Ticket.from_pretrained(X, revision="v2"), ticket("test_resnet", 2))
    commit = hub.commits(X, "v2")[1].id
    assert same(hf_px.Ticket.from_pretrained(X, revision=commit), ticket("test_resnet", 1))
    assert outputs(hf_px.from_pretrained(X, revision=commit)) == pytest.approx(
        expected_outputs("test_resnet", 1), abs=1e-6
    )
    with pytest.raises(TicketError, match=r"alice/x: has no revision 'v3'"):
        hf_px.from_pretrained(X, revision="v3")


def test_a_private_ticket_is_for_its_owner(hub, nobody):
    ticket("test_resnet").push_to_hub(X, private=True, token="hf_alice")
    assert same(hf_px.Ticket.from_pretrained(X, token="hf_alice"), ticket("test_resnet"))
    for token in (False, "hf_bob"):
        with pytest.raises(TicketError, match=r"alice/x: no such repo on the Hub, or a private one.*hf auth login"):
            hf_px.from_pretrained(X, token=token, cache_dir="elsewhere")


# Pull


def test_strangers_load_it_in_every_way(hub, tmp_path, nobody):
    """One process with hf_px and one without, caches empty; all get the outputs that the model had at home."""
    for kind in KINDS:
        for layout in ("both", "packed", "dense"):
            ticket(kind).push_to_hub(f"alice/{kind}-{layout}", layout=layout, token="hf_alice")
    auto = "AutoModelForImageClassification"
    loaded, refused = [], []
    for layout in ("both", "dense"):
        loaded += [("timm", f"hf-hub:alice/test_resnet-{layout}"), (auto, f"alice/test_resnet-{layout}")]
        loaded += [(auto, f"alice/transformers-{layout}")]
    refused += [("timm", "hf-hub:alice/test_resnet-packed"), (auto, "alice/test_resnet-packed")]
    refused += [(auto, "alice/transformers-packed"), ("timm", "hf-hub:alice/resnet20-both")]
    jobs = [{"how": how, "where": where} for how, where in loaded + refused]
    found = strangers(jobs, hf_px=False, home=tmp_path / "without")
    for (_, where), answer in zip(loaded, found):
        kind = where.partition("/")[2].rpartition("-")[0]
        assert answer.get("outputs") == pytest.approx(expected_outputs(kind), abs=1e-6), (where, answer)
    for (_, where), answer in zip(refused, found[len(loaded) :]):
        assert answer["error"], where
    assert "hf_px.from_pretrained" in found[len(loaded)]["error"]  # timm says what to do
    assert "ticket.safetensors" not in fetched(hub)

    ways = [("hf_px", f"alice/{kind}-{layout}") for kind in KINDS for layout in ("both", "packed", "dense")]
    ways += [(auto, f"alice/{kind}-{layout}") for kind in KINDS[:2] for layout in ("both", "packed", "dense")]
    found = strangers([{"how": how, "where": where} for how, where in ways], hf_px=True, home=tmp_path / "with")
    for (how, where), answer in zip(ways, found):
        kind = where.partition("/")[2].rpartition("-")[0]
        assert answer.get("outputs") == pytest.approx(expected_outputs(kind), abs=1e-6), (how, where, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_hf_px_fetches_the_packed_file_and_no_other(hub, kind):
    ticket(kind).push_to_hub(X)
    before = len(hub.requests)
    assert same(hf_px.Ticket.from_pretrained(X), ticket(kind))
    assert {entry.path.rpartition("/")[2] for entry in hub.requests[before:] if "/resolve/" in entry.path} == {
        "ticket.safetensors"
    }


def test_what_was_loaded_once_loads_without_the_hub(hub):
    for layout in ("both", "dense"):  # of the dense one it must be remembered that there is no packed file
        ticket("test_resnet").push_to_hub(f"alice/{layout}", layout=layout)
        hf_px.Ticket.from_pretrained(f"alice/{layout}")
    before = len(hub.requests)
    for layout in ("both", "dense"):
        found = hf_px.Ticket.from_pretrained(f"alice/{layout}", local_files_only=True)
        assert same(found, ticket("test_resnet"))
    assert len(hub.requests) == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", ["both", "dense"])
def test_another_head(hub, kind, layout):
    ticket(kind).push_to_hub(X, layout=layout)
    whole = hf_px.from_pretrained(X).state_dict()
    with pytest.warns(UserWarning, match=r"newly initialised for 7 classes: train the head"):
        model = hf_px.from_pretrained(X, num_classes=7)
    assert len(outputs(model)) == 7
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, whole[name])}
    heads = {"test_resnet": {"fc.weight", "fc.bias"}, "transformers": {"classifier.1.weight", "classifier.1.bias"}}
    assert changed == heads.get(kind, changed) and len(changed) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        hf_px.from_pretrained(X, num_classes=len(expected_outputs(kind)))  # as many as it has: nothing to draw


def test_a_ticket_from_the_hub_goes_back_as_it_came(hub, tmp_path):
    ticket("transformers").push_to_hub(X)
    hf_px.Ticket.from_pretrained(X).push_to_hub("alice/y")
    for name in ("ticket.safetensors", "model.safetensors", "config.json", "density.svg"):
        assert hub.files(X)[name] == hub.files("alice/y")[name]


def test_transformers_saves_what_it_loaded_and_hf_px_reads_it(hub, tmp_path):
    ticket("transformers").push_to_hub(X, layout="packed")
    model = AutoModelForImageClassification.from_pretrained(X)
    model.push_to_hub("alice/y")
    assert same(hf_px.Ticket.from_pretrained("alice/y"), ticket("transformers"))


# mask-only


@pytest.mark.parametrize("kind", ["test_resnet", "test_resnet-grey", "transformers"])
def test_the_weights_are_those_of_the_base_at_its_commit(hub, kind, tmp_path):
    commit = push_base(hub, kind, tmp_path / "base")
    model, mask = pruned(kind)
    made = hf_px.Ticket(model, mask, base="alice/base", base_revision=commit, model_args=model_args(kind))
    made.push_to_hub(X, layout="mask-only")
    if kind != "transformers":  # whose header is larger than its weights
        assert len(hub.files(X)["ticket.safetensors"]) < mask.total / 4  # a bit per weight and the header
    push_base(hub, kind, tmp_path / "moved", seed=1)
    found = hf_px.Ticket.from_pretrained(X)
    assert found.mask == mask and found.config["base_revision"] == commit
    assert same(found, made)
    with pytest.warns(UserWarning, match="newly initialised for 7 classes"):
        assert len(outputs(found.to_model(num_classes=7), 1 if "grey" in kind else 3)) == 7
    found.push_to_hub("alice/whole", layout="both")  # from now on it has weights of its own
    assert same(hf_px.Ticket.from_pretrained("alice/whole"), made)


@pytest.mark.parametrize("kind", ["test_resnet", "transformers"])
def test_a_base_that_cannot_be_had(hub, kind, tmp_path):
    commit = push_base(hub, kind, tmp_path / "base")
    provenance = {"base": "alice/base", "base_revision": commit}
    hf_px.Ticket(*pruned(kind), **provenance).push_to_hub("alice/good", layout="mask-only")
    gone = "0" * 40
    hf_px.Ticket(*pruned(kind), **provenance | {"base_revision": gone}).push_to_hub("alice/moved", layout="mask-only")
    with pytest.raises(TicketError, match=f"alice/base at commit {gone}, .*not available: .*no revision '{gone}'"):
        hf_px.from_pretrained("alice/moved")
    HfApi().delete_repo("alice/base")
    with pytest.raises(TicketError, match=f"alice/base at commit {commit}, which are not available: .*no such repo"):
        hf_px.from_pretrained("alice/good")
    hub.put("alice/base", {"notes.txt": b""})
    again = hub.commits("alice/base")[0].id
    hf_px.Ticket(*pruned(kind), **provenance | {"base_revision": again}).push_to_hub("alice/empty", layout="mask-only")
    with pytest.raises(TicketError, match=r"alice/base: has no config.json"):
        hf_px.from_pretrained("alice/empty")
    hub.put("alice/base", {"config.json": (tmp_path / "base" / "config.json").read_bytes()})
    again = hub.commits("alice/base")[0].id
    hf_px.Ticket(*pruned(kind), **provenance | {"base_revision": again}).push_to_hub("alice/empty", layout="mask-only")
    with pytest.raises(TicketError, match=r"alice/base at commit .* are not available"):
        hf_px.from_pretrained("alice/empty")


@pytest.mark.parametrize(
    ("kind", "other"),
    [("test_resnet", "test_vit"), ("transformers", "wide"), ("transformers", "test_resnet"), ("test_resnet", "wide")],
)
def test_a_base_of_another_architecture(hub, kind, other, tmp_path):
    commit = push_base(hub, other, tmp_path / "base")
    hf_px.Ticket(*pruned(kind), base="alice/base", base_revision=commit).push_to_hub(X, layout="mask-only")
    with pytest.raises(TicketError, match=r"alice/base"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hf_px.from_pretrained(X)


@pytest.mark.parametrize("kind", ["test_resnet", "transformers"])
def test_a_base_with_another_head_is_not_completed_at_random(hub, kind, tmp_path):
    commit = push_base(hub, kind, tmp_path / "base")
    torch.manual_seed(0)
    if kind == "transformers":
        model = AutoModelForImageClassification.from_config(
            type(dense(kind).config)(**{**dense(kind).config.to_dict(), "num_labels": 6})
        )
    else:
        model = timm.create_model(kind, num_classes=6)
    mask = hf_px.prune(model, "random", sparsity=0.5, progress=False)
    mask.apply_(model)
    hf_px.Ticket(model, mask, base="alice/base", base_revision=commit).push_to_hub(X, layout="mask-only")
    with pytest.raises(TicketError, match=r"alice/base"):
        hf_px.from_pretrained(X)


def test_a_deeper_base_is_another_architecture(hub, tmp_path):
    from transformers import ResNetConfig, ResNetForImageClassification

    deep = ResNetForImageClassification(
        ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], num_labels=4)
    )
    deep.save_pretrained(tmp_path)
    commit = hub.put("alice/base", {path.name: path.read_bytes() for path in tmp_path.iterdir()})
    hf_px.Ticket(*pruned("transformers"), base="alice/base", base_revision=commit).push_to_hub(X, layout="mask-only")
    with pytest.raises(TicketError, match=r"alice/base.*another architecture"):
        hf_px.from_pretrained(X)


@pytest.mark.parametrize(
    ("provenance", "message"),
    [
        ({}, "names no base on the Hub .*another `layout`"),
        ({"base": "alice/base"}, "needs `base_revision`"),
        ({"base": "x/y", "base_revision": "main"}, "commit"),
    ],
)
def test_mask_only_needs_a_base_that_cannot_move(hub, provenance, message):
    with pytest.raises(TicketError, match=message):
        hf_px.Ticket(*pruned("test_resnet"), **provenance).push_to_hub(X, layout="mask-only")
    assert not hub.requests


@pytest.mark.parametrize("kind", ["test_resnet", "transformers"])
def test_a_private_base(hub, kind, tmp_path, nobody):
    hub.create_repo("alice/base", private=True)
    commit = push_base(hub, kind, tmp_path / "base")
    made = hf_px.Ticket(*pruned(kind), base="alice/base", base_revision=commit)
    made.push_to_hub(X, layout="mask-only", token="hf_alice")
    with pytest.raises(TicketError, match=r"alice/base.* private one that you may not see"):
        hf_px.from_pretrained(X)
    where = {"token": "hf_alice", "cache_dir": tmp_path / "cache"}
    assert same(hf_px.Ticket.from_pretrained(X, **where), made)
    assert same(hf_px.Ticket.from_pretrained(X, cache_dir=tmp_path / "cache", local_files_only=True), made)


# Families of timm: what their checkpoints go through on the way in must not change a ticket's


@pytest.mark.parametrize(
    "kind",
    [
        "test_vit",
        "test_efficientnet",
        "test_convnext",
        "test_resnet-grey",
        "test_efficientnet-grey",
        "test_vit-grey",
        pytest.param("inception_v3.tf_in1k", marks=pytest.mark.slow),  # its own weights have a class too many
    ],
)
def test_timm_reads_the_dense_copy(hub, kind):
    channels, size = (1 if kind.endswith("-grey") else 3), 160
    ticket(kind).push_to_hub(X)
    model = timm.create_model(f"hf-hub:{X}", pretrained=True)
    assert outputs(model, channels, size) == pytest.approx(expected_outputs(kind, 0, channels, size), abs=1e-5)
    assert outputs(hf_px.from_pretrained(X), channels, size) == pytest.approx(
        expected_outputs(kind, 0, channels, size), abs=1e-5
    )
    own = ticket(kind).to_model().state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())


# predict


@pytest.mark.parametrize("kind", ["deeplab", "segformer"])
def test_a_ticket_on_the_hub_sees_a_picture(hub, tmp_path, monkeypatch, capsys, nobody, kind):
    """All from one commit: config.json, the weights, and what images a transformers model takes."""
    monkeypatch.chdir(tmp_path)
    Image.linear_gradient("L").convert("RGB").resize((40, 30)).save("photo.png")
    model, mask = deeplab_ticket() if kind == "deeplab" else segformer_ticket()
    beside = {"preprocessor_config.json": json.dumps(PROCESSOR).encode()} if kind == "segformer" else {}
    hf_px.Ticket(model, mask).push_to_hub(X, files=beside, token="hf_alice")
    before = len(hub.requests)
    assert main(["predict", X, "photo.png", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert {entry["class"] for entry in output["classes"]} and (tmp_path / "photo-segmented.png").is_file()
    asked = [entry.path.partition("/resolve/")[2] for entry in hub.requests[before:] if "/resolve/" in entry.path]
    assert asked[0] == "main/config.json"  # and from there on by the commit's own name, which cannot move
    commit = hub.commits(X)[0].id
    names = {"ticket.safetensors", *(["preprocessor_config.json"] if kind == "segformer" else [])}
    assert {path for path in asked if path.startswith(commit)} >= {f"{commit}/{name}" for name in names}
    assert {path for path in asked if not path.startswith(commit)} == {"main/config.json"}
    if kind == "segformer":
        model.image_config = from_processor(PROCESSOR)
    labels = segment(model, read_image("photo.png"), data_config(model))
    assert {one["class"]: one["share"] for one in output["classes"]} == {
        name: share for _, name, share in class_shares(labels, None)
    }


def test_output_of_a_classifier_is_refused_before_the_weights_are_fetched(hub, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (40, 30)).save("photo.png")
    for layout in ("both", "packed"):
        ticket("test_resnet").push_to_hub(f"alice/{layout}", layout=layout)
        before = len(hub.requests)
        assert main(["predict", f"alice/{layout}", "photo.png", "--output", "x.png"]) == 2
        assert "is a classifier" in capsys.readouterr().err
        asked = {entry.path.rpartition("/")[2] for entry in hub.requests[before:] if "/resolve/" in entry.path}
        assert asked == {"config.json"}
    assert main(["predict", "alice/both", "photo.png", "--revision", "v9"]) == 2
    assert "no revision 'v9'" in capsys.readouterr().err


def test_the_card_shows_a_picture_that_is_pushed_with_it(hub):
    ticket("test_resnet").push_to_hub(X, files={"predictions.png": b"pixels"})
    assert hub.files(X)["predictions.png"] == b"pixels" and b"](predictions.png)" in hub.files(X)["README.md"]
