"""Things go wrong: every error has a way out, and what was cut short is never taken for whole."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import _http
from support.makers import dense, expected_outputs, pruned, push_base, same, ticket
from support.readers import outputs, read, strangers

import hf_px
from hf_px.core.errors import TicketError

X = "alice/x"
FILES = {"README.md", "config.json", "density.svg"}


def files_of(ticket: hf_px.Ticket) -> set[str]:
    return FILES | ({"preprocessor_config.json"} if "model_type" in ticket.model_record() else set())


WEIGHTS = {
    "both": {"ticket.safetensors", "model.safetensors"},
    "packed": {"ticket.safetensors"},
    "dense": {"model.safetensors"},
    "mask-only": {"ticket.safetensors"},
}


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_alice")


@pytest.fixture
def waits(monkeypatch) -> list[float]:
    """The client waits half a minute before it gives up; here it only says for how long it would have waited."""
    found: list[float] = []
    clock = types.SimpleNamespace(**{name: getattr(time, name) for name in dir(time)})
    clock.sleep = found.append
    monkeypatch.setattr(_http, "time", clock)
    monkeypatch.setattr("huggingface_hub.file_download.time", clock)
    return found


def entries(hub, id: str = X) -> dict[str, bytes] | None:
    try:
        return hub.files(id)
    except KeyError:  # no such repo
        return None


# Errors with a way out


def test_a_repo_that_is_not_there(hub):
    for token in (None, False, "hf_bob"):
        with pytest.raises(
            TicketError, match=r"alice/nothing: no such repo .* private one .*check the spelling, log in"
        ):
            hf_px.from_pretrained("alice/nothing", token=token)


def test_a_wrong_token(hub):
    ticket("transformers").push_to_hub(X, private=True)
    for call in (hf_px.from_pretrained, ticket("transformers").push_to_hub):
        with pytest.raises(TicketError, match=r"alice/x: .*log in"):
            call(X, token="hf_wrong")


def test_a_gated_repo(hub):
    hub.create_repo(X, gated=True)
    ticket("transformers").push_to_hub(X)
    for token in (False, "hf_bob"):
        with pytest.raises(TicketError, match=r"alice/x: gated; ask for access on its page, then log in"):
            hf_px.from_pretrained(X, token=token)
    assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))


@pytest.mark.slow
def test_offline_by_the_environment(hub, tmp_path):
    """The environment variable is read when huggingface_hub is imported: a process of its own."""
    ticket("transformers").push_to_hub(X, layout="dense")
    hf_px.from_pretrained(X, cache_dir=tmp_path / "home" / "hub")  # once, with the Hub
    jobs = [{"how": "hf_px", "where": where} for where in ("alice/other", X)]
    other, known = strangers(jobs, hf_px=True, home=tmp_path / "home", HF_HUB_OFFLINE="1")
    assert other["kind"] == "TicketError" and "alice/other: HF_HUB_OFFLINE is set; unset it" in other["error"]
    assert known["outputs"] == pytest.approx(expected_outputs("transformers"), abs=1e-6)


def test_offline(hub, monkeypatch):
    ticket("transformers").push_to_hub(X, layout="dense")
    hf_px.from_pretrained(X)  # once, with the Hub
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for call in (hf_px.from_pretrained, ticket("transformers").push_to_hub):
        with pytest.raises(TicketError, match=r"alice/other: HF_HUB_OFFLINE is set; unset it"):
            call("alice/other")
    assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))


def test_a_name_is_a_string_or_a_path():
    with pytest.raises(TypeError, match="`repo_or_dir` is 3; expected owner/name on the Hub, or a directory"):
        hf_px.from_pretrained(3)


def test_a_repo_without_a_ticket(hub, tmp_path):
    hub.put("alice/empty", {"notes.txt": b""})
    dense("transformers").save_pretrained(tmp_path)
    hub.put("alice/model", {path.name: path.read_bytes() for path in tmp_path.iterdir()})
    for id in ("alice/empty", "alice/model"):
        with pytest.raises(TicketError, match=f"{id}: holds no ticket: neither ticket.safetensors nor"):
            hf_px.from_pretrained(id)
    with pytest.raises(TicketError, match="holds no ticket"):
        hf_px.from_pretrained(tmp_path)


def test_others_may_not_push(hub):
    for _ in ("a new repo", "one that exists"):
        with pytest.raises(TicketError, match=r"alice/x: the Hub answered 403 \(.*rights.*\); .*write access"):
            ticket("transformers").push_to_hub(X, token="hf_bob")
        assert entries(hub) is None or set(entries(hub)) == {".gitattributes"}
        hub._repos.clear() if entries(hub) else hub.create_repo(X)


def test_push_without_a_token(hub, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(TicketError, match=r"alice/x: .*log in"):
        ticket("transformers").push_to_hub(X)
    assert entries(hub) is None


@pytest.mark.parametrize(
    ("where", "status", "way"),
    [
        ("commit", 409, "another process is changing the repo; try again"),
        ("commit", 412, "the repo has changed in the meantime; try again"),
        ("commit", 403, "write access"),
        (
            "commit",
            429,
            "wait a few minutes and try again",
        ),  # the one request that the client does not repeat by itself
        ("preupload", 401, "log in"),
        ("preupload", 500, "try again later"),
        ("preupload", 503, "try again later"),
        (r"(alice/x\.git|.*/verify)", 500, "try again later"),
        ("PUT", 503, "try again later"),
        ("commit", 502, "try again later"),
        ("commit", 418, "injected by a test"),
    ],
)
def test_the_hub_refuses_a_push(hub, waits, where, status, way):
    ticket("transformers").push_to_hub(X)
    match = "PUT /cdn/" if where == "PUT" else f"POST /.*{where}"
    with hub.fault(match, status=status, times=None), pytest.raises(TicketError, match=f"alice/x: .*{status}.*{way}"):
        ticket("transformers", 1).push_to_hub(X)
    assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))


@pytest.mark.parametrize("status", [429, 500, 503, 403])
@pytest.mark.parametrize("where", ["HEAD /alice/x/resolve", "GET /cdn/"])
def test_the_hub_refuses_a_download(hub, waits, status, where):
    ticket("transformers").push_to_hub(X)
    with hub.fault(where, status=status, times=None), pytest.raises(TicketError, match=f"alice/x: .*answered {status}"):
        hf_px.from_pretrained(X)
    assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))


@pytest.mark.parametrize(
    "where", ["HEAD /alice/x/resolve", "GET /cdn/", "POST .*preupload", "POST .*/lfs/objects/batch", "PUT /cdn/"]
)
def test_too_many_requests_then_success(hub, waits, where):
    """429 with Retry-After: the client waits for as long as the header says, a second more, and goes on."""
    pull = where.startswith(("HEAD", "GET"))
    if pull:
        ticket("transformers").push_to_hub(X)
    asked = 3 if where.startswith("HEAD") else 2  # once before the download, for a repo that is not in the cache
    with hub.fault(where, status=429, retry_after=3, times=asked) as fault:
        if not pull:
            ticket("transformers").push_to_hub(X)
        assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))
    assert fault.hits == asked and 4.0 in waits


def test_the_wait_is_real(hub):
    ticket("transformers").push_to_hub(X)
    start = time.monotonic()
    with hub.fault("GET /cdn/", status=429, retry_after=1):
        assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))
    assert time.monotonic() - start >= 1


@pytest.mark.parametrize("layout", ["both", "dense"])
def test_a_hub_that_is_down(hub, waits, layout):
    ticket("transformers").push_to_hub(X, layout=layout)
    hub.stop()
    try:
        for call in (hf_px.from_pretrained, ticket("transformers", 1).push_to_hub):
            with pytest.raises(TicketError, match=r"alice/x: the connection failed .*try again"):
                call(X)
    finally:
        hub.start()
    assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))
    hub.stop()
    try:
        waits.clear()
        with pytest.raises(TicketError, match=r"failed .*; nor is there a directory nowhere/nope here$"):
            hf_px.from_pretrained("nowhere/nope")
        assert not waits  # what was never loaded is asked for once: it may be a typo
        # what has been loaded before is at hand
        assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))
    finally:
        hub.start()


def test_a_typo_in_a_path_is_told_from_a_missing_repo(hub, tmp_path, monkeypatch):
    (tmp_path / "out" / "digits").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    expected = r"no such repo .*; nor is there a directory out/digit here; out holds digits"
    with pytest.raises(TicketError, match=expected):
        hf_px.from_pretrained("out/digit")


def test_a_slow_hub(hub, waits, monkeypatch):
    ticket("transformers").push_to_hub(X)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    with (
        hub.fault("GET /cdn/", delay=30, times=None),
        pytest.raises(TicketError, match=r"alice/x: the connection failed"),
    ):
        hf_px.from_pretrained(X)
    with hub.fault("GET /cdn/", rate=20_000):  # slow but steady
        assert same(hf_px.Ticket.from_pretrained(X), ticket("transformers"))


@pytest.mark.parametrize(
    "id", ["x", "", "a/b/c", "alice/x y", "alice/..", "../x", "alice/.git", "-/x", "a" * 97 + "/x", "alice/x\n"]
)
def test_names_that_cannot_be(hub, id):
    for call in (hf_px.from_pretrained, ticket("transformers").push_to_hub):
        with pytest.raises(TicketError) as caught:
            call(id)
        assert id in str(caught.value)
    assert not hub.requests


@pytest.mark.parametrize("path", ["./nothing", "/nothing/here", "~/nothing", "nothing/at/all", "../nothing"])
def test_a_directory_that_is_not_there(hub, path):
    with pytest.raises(TicketError, match="no such directory; a ticket on the Hub is written owner/name"):
        hf_px.from_pretrained(path)
    assert not hub.requests


def test_files_and_directories_in_the_wrong_place(hub, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for call in (hf_px.from_pretrained, ticket("transformers").save_pretrained):
        with pytest.raises(TicketError, match=r"file: is a file; name (the|a) directory"):
            call(tmp_path / "file")
    monkeypatch.chdir(tmp_path)
    ticket("transformers").save_pretrained("alice/x")
    with pytest.raises(TicketError, match="has no revisions"):
        hf_px.from_pretrained("alice/x", revision="main")
    with pytest.raises(TicketError, match="is a local directory"):
        ticket("transformers").push_to_hub("alice/x")
    dense("transformers").save_pretrained("other")
    with pytest.raises(TicketError, match="holds the weights of another model"):
        ticket("transformers").save_pretrained("other")


# Disk full


def in_child(work: Callable[[], Any]) -> int:
    """Run it in a fork, where limits and a SIGKILL are its own; the exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # threads do not survive a fork
            work()
            code = 0
        except TicketError as error:
            code = 3 if "nothing was changed" in str(error) else 4
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("limit", [1, 1000, 5000, 100_000])
def test_a_limit_on_file_sizes(tmp_path, limit):
    ticket("test_resnet").save_pretrained(tmp_path)
    before = digest(tmp_path)

    def save():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        ticket("test_resnet", 1).save_pretrained(tmp_path)

    ticket("test_resnet", 1)
    assert in_child(save) == 3  # a TicketError that says that nothing was changed
    assert digest(tmp_path) == before
    assert not list(tmp_path.glob(".*"))


@pytest.fixture
def small_disk(tmp_path):
    """2 MB; only root may mount one."""
    where = tmp_path / "disk"
    where.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", where], capture_output=True).returncode:
        pytest.skip("needs the right to mount a small disk")
    yield where
    subprocess.run(["umount", "-l", where], check=True)


def fill(filler: Path, leave: int) -> None:
    """Leave that many pages on the disk."""
    with open(filler, "ab") as file:
        try:
            while True:
                os.write(file.fileno(), bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC
        file.truncate(max(0, os.fstat(file.fileno()).st_size - 4096 * leave))


def test_a_full_disk(hub, small_disk, monkeypatch):
    """However few pages are left, a save that fails leaves what was there."""
    home, filler = small_disk / "ticket", small_disk / "filler"
    old, new = ticket("transformers"), ticket("wide")
    old.save_pretrained(home)
    before, failed = digest(home), 0
    for pages in range(30):
        fill(filler, pages)
        try:
            new.save_pretrained(home)
            break
        except TicketError as error:
            failed += 1
            assert "no space left on the disk" in str(error)
            assert digest(home) == before and not list(home.glob(".*"))
    assert 3 < failed < 30 and same(hf_px.Ticket.from_pretrained(home), new)

    new.push_to_hub(X)
    (small_disk / "cache").mkdir()
    fill(filler, 0)
    with pytest.raises(TicketError, match="no space left on the disk"):
        hf_px.from_pretrained(X, cache_dir=small_disk / "cache")
    monkeypatch.setattr("tempfile.tempdir", str(small_disk))
    with pytest.raises(TicketError, match="no space left on the disk"):
        old.push_to_hub(X)
    filler.unlink()
    assert same(hf_px.Ticket.from_pretrained(X, cache_dir=small_disk / "cache"), new)


# Interrupted on the way to the Hub and back

STAGES = [
    ("POST /api/repos/create", {"drop": "before"}),
    ("POST /api/repos/create", {"drop": "after"}),
    ("HEAD /alice/x/resolve", {"drop": "before"}),  # is there a card?
    ("POST /api/models/alice/x/preupload", {"drop": "before"}),
    ("POST /api/models/alice/x/preupload", {"cut_request": 10}),
    (r"POST /alice/x\.git/info/lfs/objects/batch", {"drop": "before"}),
    (r"POST /alice/x\.git/info/lfs/objects/batch", {"cut": 40}),
    ("PUT /cdn/", {"cut_request": 100}),
    ("PUT /cdn/", {"drop": "after"}),
    ("PUT /cdn/", {"nth": 2, "cut_request": 1000, "reset": True}),
    ("PUT /cdn/", {"nth": 2, "drop": "after"}),
    (r"POST /alice/x\.git/info/lfs/verify", {"drop": "before"}),
    (r"POST /alice/x\.git/info/lfs/verify", {"nth": 2, "drop": "before"}),
    ("POST /api/models/alice/x/commit", {"drop": "before"}),
    ("POST /api/models/alice/x/commit", {"cut_request": 500}),
    ("POST /api/models/alice/x/commit", {"drop": "after"}),
]


@pytest.mark.parametrize("old", [None, "both", pytest.param("packed", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("match", "how"), STAGES, ids=[f"{m.split('/')[-1]}-{'-'.join(h)}" for m, h in STAGES])
def test_an_upload_cut_short(hub, waits, match, how, old):
    first, second = ticket("transformers"), ticket("wide")
    if old:
        first.push_to_hub(X, layout=old)
    before = entries(hub)
    second.push_to_hub("alice/whole")
    whole = entries(hub, "alice/whole")
    with hub.fault(match, **{"times": None, **how}) as fault, pytest.raises(TicketError, match=r"alice/x: .*try again"):
        second.push_to_hub(X)
    assert fault.hits
    after = entries(hub)
    # the old one, all of it, or the new one, all of it
    assert after in (before, {".gitattributes": whole[".gitattributes"]} if before is None else before) or (
        set(after) == set(whole) and all(after[n] == whole[n] for n in WEIGHTS["both"] | {"config.json"})
    )
    try:
        found = hf_px.Ticket.from_pretrained(X)
        assert same(found, second if how == {"drop": "after"} and "commit" in match else first)
    except TicketError as error:
        assert old is None and ("holds no ticket" in str(error) or "no such repo" in str(error))
    second.push_to_hub(X)
    assert same(hf_px.Ticket.from_pretrained(X), second)
    assert entries(hub).keys() == whole.keys()


@pytest.mark.parametrize(
    ("layout", "share"),
    [("dense", 0.5), *(("both", share) for share in (0, 1e-9, 0.001, 0.01, 0.5, 0.999, 1 - 1e-9))],
)
@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
def test_a_download_cut_short(hub, waits, tmp_path, layout, share, reset):
    ticket("test_resnet").push_to_hub(X, layout=layout)
    name = "ticket.safetensors" if layout == "both" else "model.safetensors"
    size = len(hub.files(X)[name])
    at = min(size - 1, int(share * size) + (0 < share < 0.001))
    with (
        hub.fault("GET /cdn/", cut=at, reset=reset, times=None) as fault,
        pytest.raises(TicketError, match=r"alice/x: .*try again"),
    ):
        hf_px.from_pretrained(X, cache_dir=tmp_path)
    assert fault.hits
    assert not list(tmp_path.glob("models--*/snapshots/*/*.safetensors"))  # where a whole file would be
    with pytest.raises(TicketError):
        hf_px.from_pretrained(X, cache_dir=tmp_path, local_files_only=True)
    assert same(hf_px.Ticket.from_pretrained(X, cache_dir=tmp_path), ticket("test_resnet"))


def test_a_download_that_is_cut_goes_on_by_itself(hub, waits):
    ticket("test_resnet").push_to_hub(X)
    with hub.fault("GET /cdn/", cut=5000, times=3) as fault:
        assert same(hf_px.Ticket.from_pretrained(X), ticket("test_resnet"))
    assert fault.hits == 3


@pytest.mark.parametrize("kind", ["test_resnet", "transformers"])
def test_a_base_cut_short(hub, waits, kind, tmp_path):
    commit = push_base(hub, kind, tmp_path / "base")
    made = hf_px.Ticket(*pruned(kind), base="alice/base", base_revision=commit)
    made.push_to_hub(X, layout="mask-only")
    found = hf_px.Ticket.from_pretrained(X)
    for how in ({"cut": 100, "reset": True}, {"cut": 100}, {"status": 500}):
        with hub.fault("GET /cdn/", times=None, **how), pytest.raises(TicketError, match="alice/base at commit"):
            found.to_model()
    assert same(found, made)


# kill -9


def digest(directory: Path) -> str:
    """Of all files and their names, but for the process number in those of a killed save."""
    sha = hashlib.sha256()
    for path in sorted(directory.iterdir(), key=lambda path: path.name):
        name = ".".join(part for part in path.name.split(".") if not part.isdigit())
        sha.update(f"{name} {path.stat().st_size} ".encode() + path.read_bytes())
    return sha.hexdigest()


def at_each_step(directory: Path, do: Callable[[int], None]) -> None:
    """From now on, before this process opens, syncs, moves or removes a file of the directory: do(how many so far)."""
    seen, busy, sync = 0, False, os.fsync

    def count(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen, busy
        touches = event in ("open", "os.rename", "os.remove") and str(args[0]).startswith(str(directory))
        if not busy and (touches or event == "fsync"):
            seen, busy = seen + 1, True
            do(seen)
            busy = False

    def counted(file: int) -> None:
        count("fsync", ())
        sync(file)

    os.fsync = counted
    sys.addaudithook(count)  # it cannot be taken away: for a process that ends soon


def states(before: hf_px.Ticket | None, old: str, after: hf_px.Ticket, new: str, scratch: Path) -> list[Path]:
    """A copy of the directory at every step of a save of `after` over `before`: what a kill there would leave."""
    home = scratch / "home"
    home.mkdir(parents=True)
    if before is not None:
        before.save_pretrained(home, layout=old)

    def save() -> None:
        at_each_step(home, lambda step: shutil.copytree(home, scratch / f"step-{step}") and None)
        after.save_pretrained(home, layout=new)

    assert in_child(save) == 0
    left = scratch / "left"  # all that any of them leaves behind goes when the ticket is saved once more
    shutil.copytree(home, left)
    found = {}
    for copy in [*sorted(scratch.glob("step-*"), key=lambda path: int(path.name[5:])), home]:
        for path in copy.glob(".*"):
            shutil.move(path, left / path.name)  # readers do not look at hidden files
        found.setdefault(digest(copy), copy)
    assert len(list(left.glob(".*"))) >= 6
    after.save_pretrained(left, layout=new)
    # an image processor of the ticket before may be the user's own, so it stays
    assert set(os.listdir(left)) == WEIGHTS[new] | files_of(after) | (files_of(before) if before else set())
    return list(found.values())


def check_state(home: Path, before: hf_px.Ticket | None, after: hf_px.Ticket) -> None:
    """The old ticket or the new one, for hf_px; for timm and transformers too, or they refuse."""
    known = [one for one in (before, after) if one is not None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a save was interrupted
        try:
            found = hf_px.Ticket.from_pretrained(home)
            assert any(same(found, one) for one in known), home
        except TicketError as error:
            assert before is None and "holds no ticket" in str(error)
        for how in ("timm", "AutoModelForImageClassification"):
            try:
                got = outputs(read(how, f"local-dir:{home}" if how == "timm" else str(home)))
            except Exception:  # refused
                continue
            assert any(got == pytest.approx(outputs(one.to_model()), abs=1e-5) for one in known), (home, how)


@cache
def stored(kind: str, seed: int = 0) -> hf_px.Ticket:
    """Read from a file: quicker to save than a live model, and kills land in the writing."""
    with tempfile.TemporaryDirectory() as folder:
        ticket(kind, seed).save_pretrained(folder, layout="packed")
        return hf_px.Ticket.from_pretrained(folder)


LAYOUTS = ("both", "packed", "dense")
PAIRS = [
    ("test_resnet", "both", "test_resnet", "both"),
    ("transformers", "packed", "wide", "dense"),
    ("transformers", "dense", "test_resnet", "packed"),
]
KINDS = [
    ("transformers", "transformers"),
    ("test_resnet", "test_resnet"),
    ("transformers", "wide"),
    ("", "test_resnet"),
]
KINDS += [("transformers", "test_resnet"), ("test_resnet", "transformers"), ("resnet20", "test_resnet")]


def sweep(pairs: list[tuple[str, str, str, str]], scratch: Path) -> None:
    jobs, expected = [], []
    for i, (old, a, new, b) in enumerate(pairs):
        before, after = stored(old) if old else None, stored(new, 1)
        found = states(before, a, after, b, scratch / str(i))
        assert len(found) > 3
        for home in found:
            check_state(home, before, after)
            for how, where in (("timm", f"local-dir:{home}"), ("AutoModelForImageClassification", str(home))):
                jobs += [{"how": how, "where": where}]
                expected += [[expected_outputs(new, 1), *([expected_outputs(old)] if old else [])]]
                if how == "timm":  # with another head timm is less strict; the body must be one of the two all the same
                    jobs += [{"how": how, "where": where, "options": {"num_classes": 0}}]
                    expected += [[headless(new, 1), *([headless(old)] if old else [])]]
    answers = strangers(jobs, hf_px=False, home=scratch / "home")
    assert len([answer for answer in answers if "outputs" in answer]) > len(pairs)  # some do load
    for job, right, answer in zip(jobs, expected, answers):
        if "outputs" in answer:
            assert any(answer["outputs"] == pytest.approx(one, abs=1e-5) for one in right if one), job


def headless(kind: str, seed: int = 0) -> list[float]:
    """What the model says before its head; nothing for one that is not timm's."""
    model = pruned(kind, seed)[0]
    if not hasattr(model, "forward_head") or kind == "resnet20":
        return []
    model.reset_classifier(0)
    return outputs(model)


def test_killed_at_every_step(tmp_path):
    sweep(PAIRS, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), KINDS)
def test_killed_at_every_step_of_every_pair(tmp_path, old, new):
    sweep([(old, a, new, b) for a in LAYOUTS for b in LAYOUTS if old or a == "both"], tmp_path)


def test_mask_only_killed_at_every_step(hub, tmp_path):
    commit = push_base(hub, "transformers", tmp_path / "base")
    bare = hf_px.Ticket(*pruned("transformers"), base="alice/base", base_revision=commit)
    whole = ticket("transformers", 1)
    # not over weights, which it refuses to remove
    for before, a, after, b in [(bare, "mask-only", whole, "both"), (None, "nothing", bare, "mask-only")]:
        found = states(before, a, after, b, tmp_path / a)
        for home in found:
            check_state(home, before, after)


def test_killed_in_earnest(tmp_path):
    """The same with SIGKILL, at each step."""
    before, after, home = stored("transformers"), stored("wide"), tmp_path / "home"
    checked: list[dict[str, bytes]] = []
    for step in range(1, 100):
        before.save_pretrained(home)

        def save(step: int = step) -> None:
            at_each_step(home, lambda seen: os.kill(os.getpid(), signal.SIGKILL) if seen == step else None)
            after.save_pretrained(home)

        code = in_child(save)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        left = {path.name: path.read_bytes() for path in home.iterdir() if not path.name.startswith(".")}
        if left not in checked:
            check_state(home, before, after)
            checked.append(left)
    assert step > 20 and same(hf_px.Ticket.from_pretrained(home), after)


@pytest.mark.parametrize(("other", "layout", "kills"), [("test_resnet", "both", 16), ("transformers", "dense", 9)])
def test_killed_at_any_moment(tmp_path, other, layout, kills):
    """One save after another, of two tickets in turn, killed whenever it happens to be."""
    moments = random.Random(0)
    tickets = [stored("test_resnet"), stored(other, 1)]
    home, inside = tmp_path / "home", 0
    tickets[0].save_pretrained(home, layout=layout)
    for _ in range(kills):
        pid = os.fork()
        if pid == 0:
            try:
                torch.set_num_threads(1)
                for count in range(10_000):
                    tickets[(count + 1) % 2].save_pretrained(home, layout=layout)
            finally:
                os._exit(1)
        time.sleep(moments.uniform(0.02, 0.25))
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        left = {path.name for path in home.iterdir()}
        inside += left != WEIGHTS[layout] | files_of(tickets[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = hf_px.Ticket.from_pretrained(home)
        assert any(same(found, one) for one in tickets)
        try:
            model = read("timm", f"local-dir:{home}")
        except Exception:
            continue
        assert any(outputs(model) == pytest.approx(outputs(one.to_model()), abs=1e-5) for one in tickets)
    assert inside > kills / 4  # else nothing was tried
    tickets[1].save_pretrained(home, layout=layout)
    assert {path.name for path in home.iterdir()} == WEIGHTS[layout] | files_of(tickets[1])
