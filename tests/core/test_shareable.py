"""What may leave the machine: paths inside the working directory relative to it, others by their last part."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.places import REPO

from hf_px.core.shareable import command_line, shareable, shareable_command, short_name


def test_a_path_is_relative_inside_the_working_directory_and_its_last_part_outside(here: Path) -> None:
    cases = {
        str(here / "data" / "scans"): "data/scans",
        "data/scans": "data/scans",
        "data/../data/scans": "data/scans",
        str(here): ".",
        str(here.parent): "..",  # its name is the user's
        "~": "..",
        "~/project/x.pth": "x.pth",
        "~/clients/acme/scans": "scans",
        "../clients/acme/scans/": "scans",
        "/srv/acme/My Scans": "My Scans",
        r"C:\Users\anna\scans": "scans",
        "file:///srv/acme/weights.pth": "weights.pth",
        "https://anna:secret@example.org/w.pth?signature=1#x": "https://example.org/w.pth",
        "taken from /srv/acme/scans, twice": "taken from scans, twice",
        "trained on /srv/Anna Zwölf's/acme/scans": "trained on scans",
        "see ~/my files/acme/x": "see x",
        "data:/srv/acme/scans": "data:scans",
        "anna@server:/srv/acme/scans": "scans",
    }
    for private, public in cases.items():
        assert shareable(private) == public
        assert shareable(public) == public  # once is enough
    assert shareable(here / "x") == "x"
    assert shareable("/home/bob") == "~"


@pytest.mark.parametrize(
    "text",
    ["resnet20", "timm/resnet50.tv_in1k", "uoft-cs/cifar10", "https://example.org/a/b.pth", "1/2 of the images",
     "~10 epochs", "2:4", "conv1.weight", "and/or", "s3://bucket/x", "", "θ² / σ²"],
)  # fmt: skip
def test_all_other_text_stays_as_it_is(text: str, here: Path) -> None:
    assert shareable(text) == text


@pytest.mark.parametrize("text", ["x" * 10**6, "a@" * 10**5, "/" * 10**5, "~/" * 10**5, "../" * 10**5])
def test_a_long_text_takes_no_longer_than_its_length(text: str) -> None:
    """A ticket from elsewhere may hold one; quadratic time would be minutes."""
    start = time.process_time()
    shareable(text)
    assert time.process_time() - start < 5


def test_records_are_copied_and_their_keys_kept(here: Path) -> None:
    record = {"data": "/srv/acme/scans", "by_class": {"/m/01g317": 0.5}, "exclude": ["a.weight", "~/x/y"], "seed": 0}
    assert shareable(record) == {
        "data": "scans", "by_class": {"/m/01g317": 0.5}, "exclude": ["a.weight", "y"], "seed": 0
    }  # fmt: skip
    assert record["data"] == "/srv/acme/scans"


def test_a_command_is_changed_word_by_word(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["python", str(here / "recipes/x.py"), "--data=/srv/My Clients/a b", "--model", "me/net", "--out", "../o"]
    public = "python recipes/x.py '--data=a b' --model me/net --out o"
    assert shareable_command(words) == public
    assert shareable({"command": "python /srv/x/y.py --data '/srv/My Clients/a b'"}) == {
        "command": "python y.py --data 'a b'"
    }
    assert shareable({"command": "run --data '/srv/My Clients/x"}) == {"command": "run …"}  # no end to the quote
    assert shareable_command(["run", "note=/srv/My Clients/k"]) == "run note=k"
    untouched = {"command": 'hf-px prune "resnet20"  --demo'}
    assert shareable(untouched) == untouched
    monkeypatch.setattr(sys, "argv", ["/usr/local/bin/hf-px", "prune", "/srv/acme/net"])
    assert command_line() == "hf-px prune net"


def test_a_folder_has_a_name_that_tells_nothing_of_where_it_lies(here: Path) -> None:
    assert [short_name(path) for path in ("/srv/acme/scans", "data/scans", ".", "..", "~", "/")] == [
        "scans", "scans", "local", "local", "local", "local"
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["/", "above home"])
def test_where_a_relative_path_would_tell_all_it_is_the_last_part(
    where: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "scans").mkdir()
    monkeypatch.chdir("/" if where == "/" else here.parents[1])
    assert shareable(str(here / "scans")) == shareable(os.path.relpath(here / "scans")) == "scans"
    assert shareable("me/flowers") == "me/flowers"
    assert shareable_command(["run", f"--data={here / 'scans'}"]) == "run --data=scans"


parts = st.lists(st.from_regex(r"[a-zA-Z][\w .-]{0,8}[a-z]", fullmatch=True), min_size=2, max_size=5)


@given(parts)
def test_no_part_but_the_last_of_a_path_elsewhere_is_left(names: list[str]) -> None:
    path = "/odd-root/" + "/".join(names)
    assert shareable({"x": [path]}) == {"x": [names[-1]]}
    assert shareable({"command": shareable_command(["run", f"--data={path}"])}) == {
        "command": shareable_command(["run", f"--data={names[-1]}"])
    }


# a word before it makes it a URL or the end of a relative path; tests make paths up
MACHINE = re.compile(rb"(?<![\w.~/:-])/(?:home|Users|root|work|tmp|mnt)/[\w.-]+|(?<![\w/])[A-Z]:\\Users\\")


def test_no_tracked_file_holds_a_path_of_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPO, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = [name for name in listed.stdout.decode().split("\0") if name and (REPO / name).is_file()]
    assert "model_cards/RESULTS.md" in names
    own = [os.fsencode(path) for path in (REPO, Path.home()) if len(path.parts) > 2]
    found = []
    for name in names:
        data = (REPO / name).read_bytes()
        made_up = name.startswith("tests/") and name.endswith(".py")
        if any(path in data for path in own) or (not made_up and MACHINE.search(data)):
            found.append(name)
    assert found == []


def test_the_search_sees_such_a_path() -> None:
    for text in ("run /home/anna/x", '"/work/runs/1"', json.dumps({"a": "/root/x"}), "`/tmp/a1`"):
        assert MACHINE.search(text.encode()), text
    for text in ("https://x.org/home/anna", "my/home/x", "/data/cifar10"):
        assert not MACHINE.search(text.encode()), text
