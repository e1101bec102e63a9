"""The loopback Hub against the real clients: what they send is understood, what it answers means the same to them."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from huggingface_hub import (
    CommitOperationAdd,
    CommitOperationDelete,
    HfApi,
    ModelCard,
    ModelCardData,
    hf_hub_download,
    snapshot_download,
)
from huggingface_hub.errors import (
    BadRequestError,
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import get_session

from support import places

httpx = importlib.import_module(type(get_session()).__module__)  # httpx2 since huggingface_hub 2, httpx before
REPO = "alice/tiny"
WEIGHTS = bytes(range(256)) * 40  # 10 240 bytes; *.safetensors is a large file by name
FILES = {"config.json": b'{"a": 1}', "model.safetensors": WEIGHTS, "sub/notes.txt": b"hello"}


@pytest.fixture
def alice(hub) -> HfApi:
    return HfApi(token="hf_alice")


@pytest.fixture
def bob(hub) -> HfApi:
    return HfApi(token="hf_bob")


@pytest.fixture
def anonymous(hub) -> HfApi:
    return HfApi(token=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, data in FILES.items():
        (tmp_path / "folder" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / path).write_bytes(data)
    return tmp_path / "folder"


def stored(hub, **where) -> dict[str, bytes]:
    """The files of alice/tiny without the one that the Hub adds."""
    return {path: data for path, data in hub.files(REPO, **where).items() if path != ".gitattributes"}


def statuses(hub, start: str) -> list[int | None]:
    """How the requests whose "METHOD /path" starts like this have ended, in order."""
    return [request.status for request in hub.requests if f"{request.method} {request.path}".startswith(start)]


def add(path: str, data: bytes | io.BufferedIOBase) -> CommitOperationAdd:
    return CommitOperationAdd(path_in_repo=path, path_or_fileobj=data)


# Repos and users


def test_create_repo(hub, alice):
    assert alice.create_repo(REPO).repo_id == REPO
    with pytest.raises(HfHubHTTPError, match="already created") as failed:
        alice.create_repo(REPO)
    assert failed.value.response.status_code == 409
    assert alice.create_repo(REPO, exist_ok=True).repo_id == REPO
    assert alice.create_repo("tiny2").repo_id == "alice/tiny2"  # the namespace defaults to the user's
    assert alice.create_repo(REPO, repo_type="dataset", private=True).repo_id == REPO  # types do not share names
    assert alice.dataset_info(REPO).private and not alice.model_info(REPO).private
    alice.delete_repo("alice/tiny2")
    assert not alice.repo_exists("alice/tiny2")
    alice.delete_repo("alice/tiny2", missing_ok=True)


def test_whoami(hub, alice):
    hub.add_user("carol", token="hf_read", orgs=["acme"], read_only=True)
    me = HfApi(token="hf_read").whoami()
    assert (me["name"], me["orgs"][0]["name"]) == ("carol", "acme")
    assert me["auth"]["accessToken"]["role"] == "read"
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        HfApi(token="hf_nobody").whoami()


def test_only_the_namespace_owner_writes(hub, alice, bob, anonymous):
    hub.put(REPO, FILES)
    with pytest.raises(HfHubHTTPError, match="403 Forbidden"):
        bob.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=REPO)
    with pytest.raises(HfHubHTTPError, match="403 Forbidden"):
        bob.create_repo("alice/mine")
    with pytest.raises(RepositoryNotFoundError, match="401"):  # that is how clients put "log in first"
        anonymous.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=REPO)
    hub.add_user("alice", token="hf_alice_read", read_only=True)
    with pytest.raises(HfHubHTTPError, match="write token"):
        HfApi(token="hf_alice_read").upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=REPO)
    hub.add_user("bob", token="hf_bob", orgs=["alice"])
    bob.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=REPO)
    assert hub.commits(REPO)[0].author == "bob"


def test_private_repo(hub, alice, bob, anonymous):
    hub.create_repo(REPO, private=True)
    hub.put(REPO, FILES)
    for api, status in [(anonymous, 401), (bob, 404)]:
        with pytest.raises(RepositoryNotFoundError) as failed:
            api.model_info(REPO)
        assert failed.value.response.status_code == status
        with pytest.raises(RepositoryNotFoundError):
            api.hf_hub_download(REPO, "config.json")
        with pytest.raises(RepositoryNotFoundError):  # a missing repo looks the same
            api.model_info("alice/missing")
    assert Path(alice.hf_hub_download(REPO, "model.safetensors")).read_bytes() == WEIGHTS
    with pytest.raises(HfHubHTTPError, match="Invalid credentials") as failed:
        HfApi(token="hf_nobody").model_info(REPO)
    assert failed.value.response.status_code == 401 and not isinstance(failed.value, RepositoryNotFoundError)
    alice.update_repo_settings(REPO, private=False)
    assert anonymous.model_info(REPO).private is False


def test_gated_repo(hub, alice, bob, anonymous):
    hub.create_repo(REPO, gated=True)
    hub.put(REPO, FILES)
    assert bob.model_info(REPO).gated == "auto"  # everyone may know that it is there
    for api, status in [(anonymous, 401), (bob, 403)]:
        with pytest.raises(GatedRepoError) as failed:
            api.hf_hub_download(REPO, "config.json")
        assert failed.value.response.status_code == status
    with pytest.raises(GatedRepoError):
        bob.auth_check(REPO)
    assert Path(alice.hf_hub_download(REPO, "config.json")).read_bytes() == FILES["config.json"]


# Uploads


@pytest.mark.parametrize("chunk_size", [None, 1000, 5120], ids=["basic", "multipart", "multipart-even"])
def test_upload_folder(hub, alice, folder, chunk_size):
    hub.chunk_size = chunk_size
    alice.create_repo(REPO)
    made = alice.upload_folder(repo_id=REPO, folder_path=folder, commit_message="first")
    assert stored(hub) == FILES
    assert (hub.commits(REPO)[0].id, hub.commits(REPO)[0].title) == (made.oid, "first")
    parts = 1 if chunk_size is None else -(-len(WEIGHTS) // chunk_size)
    assert statuses(hub, "PUT /cdn/") == [200] * parts
    info = alice.get_paths_info(REPO, ["model.safetensors", "config.json", "sub", "missing"])
    assert [entry.path for entry in info] == ["model.safetensors", "config.json", "sub"]
    assert info[0].lfs.sha256 == hashlib.sha256(WEIGHTS).hexdigest() and info[1].lfs is None
    # the oids are those that clients compute: nothing has changed, so nothing is committed
    again = alice.upload_folder(repo_id=REPO, folder_path=folder)
    assert again.oid == made.oid and len(hub.commits(REPO)) == 2


@pytest.mark.parametrize("chunk_size", [None, 3000], ids=["basic", "multipart"])
def test_create_commit(hub, alice, chunk_size):
    hub.chunk_size = chunk_size
    hub.put(REPO, {"old.txt": b"old", "dir/a.txt": b"a", "dir/b.txt": b"b", "big.bin": b"1"})
    alice.create_commit(
        REPO,
        [
            add("new.txt", b"new"),
            add("empty.bin", b""),  # clients never send an empty file to large file storage
            add("big.bin", io.BytesIO(WEIGHTS)),
            CommitOperationDelete("old.txt"),
            CommitOperationDelete("dir/"),
        ],
        commit_message="many things",
        commit_description="at once",
    )
    assert stored(hub) == {"new.txt": b"new", "empty.bin": b"", "big.bin": WEIGHTS}
    assert hub.commits(REPO)[0].message == "at once"
    with pytest.raises(EntryNotFoundError, match="doesn't exist"):
        alice.delete_file("old.txt", REPO)


def test_content_known_to_the_repo_is_not_sent_again(hub, alice):
    hub.put(REPO, {"a.bin": WEIGHTS})
    alice.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="b.bin", repo_id=REPO)
    assert stored(hub) == {"a.bin": WEIGHTS, "b.bin": WEIGHTS}
    assert statuses(hub, "PUT /cdn/") == []


def test_a_large_file_must_be_what_it_claims(hub, alice):
    hub.create_repo(REPO)
    wrong = add("a.bin", io.BytesIO(WEIGHTS))
    wrong.upload_info.sha256 = bytes(32)
    with pytest.raises(RuntimeError, match="Error while uploading") as failed:
        alice.create_commit(REPO, [wrong], commit_message="a lie")
    assert "sha256 is not" in str(failed.value.__cause__)
    assert stored(hub) == {}


def test_a_commit_on_an_old_parent_is_refused(hub, alice):
    old = hub.put(REPO, {"a.txt": b"1"})
    new = hub.put(REPO, {"a.txt": b"2"})
    with pytest.raises(HfHubHTTPError, match="A commit has happened since") as failed:
        alice.create_commit(REPO, [add("b.txt", b"b")], commit_message="late", parent_commit=old)
    assert failed.value.response.status_code == 412
    alice.create_commit(REPO, [add("b.txt", b"b")], commit_message="fresh", parent_commit=new)
    assert hub.commits(REPO)[0].parent == new


def test_of_two_commits_at_once_one_is_refused(hub, alice):
    hub.create_repo(REPO)
    slow = hub.fault("POST /api/models/alice/tiny/commit/", delay=0.5)
    errors = []

    def commit_slowly():
        try:
            alice.create_commit(REPO, [add("a.txt", b"a")], commit_message="slow")
        except HfHubHTTPError as error:
            errors.append(error.response.status_code)

    thread = threading.Thread(target=commit_slowly)
    thread.start()
    while not slow.hits:
        time.sleep(0.01)
    alice.create_commit(REPO, [add("b.txt", b"b")], commit_message="quick")
    thread.join()
    assert errors == [409] and stored(hub) == {"b.txt": b"b"}


# Revisions


def test_branches_tags_and_commits(hub, alice):
    first = hub.put(REPO, {"a.txt": b"1"}, message="one")
    alice.create_tag(REPO, tag="v1", tag_message="release")
    alice.create_branch(REPO, branch="feature/x", revision=first)
    alice.upload_file(path_or_fileobj=b"2", path_in_repo="a.txt", repo_id=REPO, revision="feature/x")
    hub.put(REPO, {"a.txt": b"3"}, message="three")

    def read(revision):
        return Path(hf_hub_download(REPO, "a.txt", revision=revision)).read_bytes()

    assert [read(rev) for rev in ("main", "v1", "feature/x", first)] == [b"3", b"1", b"2", b"1"]
    refs = alice.list_repo_refs(REPO)
    assert {ref.name for ref in refs.branches} == {"main", "feature/x"}
    assert [(ref.name, ref.target_commit) for ref in refs.tags] == [("v1", first)]
    assert [commit.title for commit in alice.list_repo_commits(REPO)] == ["three", "one", "initial commit"]
    with pytest.raises(HfHubHTTPError, match="409"):
        alice.create_tag(REPO, tag="v1")
    with pytest.raises(HfHubHTTPError, match="409"):
        alice.create_branch(REPO, branch="feature/x")
    alice.create_branch(REPO, branch="feature/x", exist_ok=True)
    alice.delete_tag(REPO, tag="v1")
    alice.delete_branch(REPO, branch="feature/x")
    for revision in ("v1", "feature/x"):
        with pytest.raises(RevisionNotFoundError):
            alice.model_info(REPO, revision=revision)
    with pytest.raises(RevisionNotFoundError):
        alice.delete_tag(REPO, tag="v1")
    with pytest.raises(RevisionNotFoundError):
        alice.upload_file(path_or_fileobj=b"", path_in_repo="a", repo_id=REPO, revision="feature/x")


def test_listings_come_in_pages(hub, alice):
    hub.page_size = 3
    sha = hub.put(REPO, {f"{folder}/{i}.txt": b"x" for folder in "ab" for i in range(5)}, message="all")
    found = list(alice.list_repo_tree(REPO, recursive=True, expand=True))
    assert len(found) == 13  # ten files, two folders, .gitattributes
    assert len(statuses(hub, "GET /api/models/alice/tiny/tree/")) == 5
    assert {entry.last_commit.oid for entry in found if entry.path.startswith("a")} == {sha}
    assert [entry.path for entry in alice.list_repo_tree(REPO)] == [".gitattributes", "a", "b"]
    assert [entry.path for entry in alice.list_repo_tree(REPO, "a")] == [f"a/{i}.txt" for i in range(5)]
    with pytest.raises(EntryNotFoundError):
        list(alice.list_repo_tree(REPO, "c"))


# Downloads


def test_snapshot_download(hub, tmp_path):
    sha = hub.put(REPO, FILES)
    path = Path(snapshot_download(REPO))
    assert path.name == sha
    assert {p: (path / p).read_bytes() for p in FILES} == FILES
    local = Path(snapshot_download(REPO, local_dir=tmp_path / "local", allow_patterns="*.json"))
    assert [p.name for p in local.iterdir() if p.is_file()] == ["config.json"]
    # a large file comes from the CDN, the Hub only says where it is
    assert set(statuses(hub, "GET /cdn/")) == {200}
    assert set(statuses(hub, "HEAD /alice/tiny/resolve/" + sha + "/model.safetensors")) == {302}


def test_a_missing_file_is_remembered_for_its_commit(hub):
    hub.put(REPO, FILES)
    for _ in range(2):
        with pytest.raises(EntryNotFoundError):
            hf_hub_download(REPO, "missing.json")
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    assert try_to_load_from_cache(REPO, "missing.json") is _CACHED_NO_EXIST
    with pytest.raises(RevisionNotFoundError):
        hf_hub_download(REPO, "config.json", revision="missing")


@pytest.mark.parametrize(
    ("asked", "status", "got", "content_range"),
    [
        ("bytes=0-3", 206, WEIGHTS[:4], "bytes 0-3/10240"),
        ("bytes=10000-", 206, WEIGHTS[10000:], "bytes 10000-10239/10240"),
        ("bytes=-5", 206, WEIGHTS[-5:], "bytes 10235-10239/10240"),
        ("bytes=10239-99999", 206, WEIGHTS[-1:], "bytes 10239-10239/10240"),
        ("bytes=10240-", 416, b"", "bytes */10240"),
        ("lines=1-2", 200, WEIGHTS, None),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.bin"])
def test_ranges(hub, name, asked, status, got, content_range):
    hub.put(REPO, {name: WEIGHTS})
    reply = get_session().get(f"{hub.url}/{REPO}/resolve/main/{name}", headers={"Range": asked})
    assert (reply.status_code, reply.content, reply.headers.get("Content-Range")) == (status, got, content_range)


def test_the_token_does_not_reach_the_cdn(hub):
    hub.put(REPO, FILES)
    oid = hashlib.sha256(WEIGHTS).hexdigest()
    headers = {"Authorization": "Bearer hf_alice"}
    assert get_session().get(f"{hub.cdn_url}/cdn/{oid}", headers=headers).status_code == 400
    # where the Hub redirects, the client drops it
    assert get_session().get(f"{hub.url}/{REPO}/resolve/main/model.safetensors", headers=headers).content == WEIGHTS


# Faults


def test_a_cut_download_resumes(hub):
    data = WEIGHTS * 1200  # 12 MB. Clients keep what came in units of 10 MB: a smaller file would start anew
    hub.put(REPO, {"big.bin": data})
    with hub.fault("GET /cdn/", cut=11 << 20) as fault:
        assert Path(hf_hub_download(REPO, "big.bin")).read_bytes() == data
    assert fault.hits == 1
    assert statuses(hub, "GET /cdn/") == [200, 206]


def test_a_reset_download_fails(hub):
    hub.put(REPO, FILES)
    # clients resume after an orderly close but not after a reset: the next attempt is the caller's
    with hub.fault("GET /cdn/", cut=100, reset=True), pytest.raises(httpx.ReadError):
        hf_hub_download(REPO, "model.safetensors")
    assert Path(hf_hub_download(REPO, "model.safetensors")).read_bytes() == WEIGHTS


def test_too_many_requests_then_success(hub):
    hub.put(REPO, FILES)
    with hub.fault("GET /cdn/", status=429, retry_after=1) as fault:
        start = time.monotonic()
        assert Path(hf_hub_download(REPO, "model.safetensors")).read_bytes() == WEIGHTS
    assert fault.hits == 1 and statuses(hub, "GET /cdn/") == [429, 200]
    assert time.monotonic() - start >= 1


@pytest.mark.parametrize("status", [500, 502, 503])
def test_an_upload_is_tried_again(hub, alice, status):
    hub.create_repo(REPO)
    with hub.fault("PUT /cdn/", status=status) as fault:
        alice.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="a.bin", repo_id=REPO)
    assert fault.hits == 1 and statuses(hub, "PUT /cdn/") == [status, 200]
    assert stored(hub) == {"a.bin": WEIGHTS}


def test_an_upload_cut_short_is_sent_again(hub, alice):
    hub.create_repo(REPO)
    hub.chunk_size = 6000
    with hub.fault("PUT /cdn/", nth=2, cut_request=1000) as fault:  # the second part
        alice.upload_file(path_or_fileobj=WEIGHTS, path_in_repo="a.bin", repo_id=REPO)
    assert fault.hits == 1 and statuses(hub, "PUT /cdn/") == [200, None, 200]
    assert stored(hub) == {"a.bin": WEIGHTS}


def test_half_a_request_changes_nothing(hub):
    oid = hashlib.sha256(WEIGHTS).hexdigest()
    with socket.create_connection(("127.0.0.1", int(hub.cdn_url.split(":")[-1]))) as client:
        client.sendall(f"PUT /cdn/{oid} HTTP/1.1\r\nHost: cdn\r\nContent-Length: 10240\r\n\r\n".encode() + WEIGHTS[:99])
        client.shutdown(socket.SHUT_WR)  # as a killed process would
        assert client.recv(1) == b""
    assert hub.requests == []


def test_slow_body(hub):
    hub.put(REPO, FILES)
    with hub.fault("GET /cdn/", rate=20_000):  # 10 kB in half a second
        start = time.monotonic()
        assert Path(hf_hub_download(REPO, "model.safetensors")).read_bytes() == WEIGHTS
    assert 0.4 < time.monotonic() - start < 5


def test_delay(hub, alice):
    hub.put(REPO, FILES)
    with hub.fault("GET /api/models/alice/tiny$", delay=30), pytest.raises(httpx.ReadTimeout):
        alice.model_info(REPO, timeout=0.2)
    hub.reset()  # ends what still waits, so that it does not turn up in another test
    assert hub.requests == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_reply_to_a_commit(hub, alice, when):
    hub.create_repo(REPO)
    with hub.fault("POST /api/models/alice/tiny/commit/", drop=when), pytest.raises(httpx.RemoteProtocolError):
        alice.upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id=REPO)
    assert stored(hub) == ({"x.txt": b"x"} if when == "after" else {})
    # a commit is not retried by the client; who tries again makes no second commit if the first one arrived
    alice.upload_file(path_or_fileobj=b"x", path_in_repo="x.txt", repo_id=REPO)
    assert stored(hub) == {"x.txt": b"x"} and len(hub.commits(REPO)) == 2


@pytest.mark.parametrize("status", [401, 403, 404, 409])
def test_errors_that_are_not_tried_again(hub, alice, status):
    hub.put(REPO, FILES)
    with hub.fault("GET /api/models/", status=status, times=None) as fault, pytest.raises(HfHubHTTPError) as failed:
        alice.model_info(REPO)
    assert failed.value.response.status_code == status and fault.hits == 1


def test_faults_choose_their_requests(hub):
    hub.put(REPO, FILES)
    url = f"{hub.url}/api/models/{REPO}"

    def ask(times: int) -> list[int]:
        return [get_session().get(url).status_code for _ in range(times)]

    with hub.fault("GET /api/models", nth=2, times=2, status=500) as fault:
        assert ask(5) == [200, 500, 500, 200, 200]
    assert fault.hits == 2
    hub.fault("GET /api/models", times=None, status=503)
    hub.fault("POST /", times=None, status=500)
    assert ask(3) == [503] * 3
    hub.clear_faults()
    assert ask(1) == [200]
    with pytest.raises(ValueError, match="before"):
        hub.fault("GET", drop="sometimes")


def test_requests_tell_who_asked(hub, alice):
    hub.put(REPO, FILES)
    alice.model_info(REPO)
    assert ("GET", "/api/models/alice/tiny", 200, "alice") in hub.requests
    hub.reset()
    assert hub.requests == []
    with pytest.raises(HfHubHTTPError):  # reset forgets users and repos too
        alice.model_info(REPO)


def test_a_hub_that_goes_away_and_comes_back(hub, anonymous):
    hub.put(REPO, FILES)
    anonymous.model_info(REPO)
    hub.stop()
    try:
        with pytest.raises(httpx.ConnectError):
            anonymous.model_info(REPO)
    finally:
        hub.start()
    assert anonymous.model_info(REPO).id == REPO


# Cards


def test_model_card(hub, alice):
    alice.create_repo(REPO)
    data = ModelCardData(license="mit", library_name="timm", tags=["pruning"], base_model="timm/resnet18.a1_in1k")
    ModelCard(f"---\n{data.to_yaml()}\n---\n\n# Tiny\n").push_to_hub(REPO, token="hf_alice")
    assert ModelCard.load(REPO).data.license == "mit"
    info = alice.model_info(REPO)
    assert (info.library_name, info.tags, info.card_data.license) == ("timm", ["pruning"], "mit")


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ("license: my-own", '"license" must be one of'),
        ("tags: [1, 2]", '"tags" must be'),
        ("base_model: not a repo", "is not a repo id"),
        ("tags: [a", "cannot be parsed"),
        ("- a list", "must be a mapping"),
        ("model-index:\n- name: x\n  results:\n  - metrics: []", r'"model-index\[0\].results\[0\].task" is required'),
    ],
)
def test_a_card_with_wrong_metadata_is_refused(hub, alice, metadata, complaint):
    hub.create_repo(REPO)
    text = f"---\n{metadata}\n---\n"
    with pytest.raises(ValueError, match=complaint):
        alice._validate_yaml(text)
    # uploads ask for the same check before anything is sent
    with pytest.raises(ValueError, match=complaint):
        alice.upload_file(path_or_fileobj=text.encode(), path_in_repo="README.md", repo_id=REPO)
    body = [{"key": "header", "value": {"summary": "by hand"}}]
    body.append({"key": "file", "value": {"path": "README.md", "content": "LS0tCnRhZ3M6IFthCi0tLQo="}})
    reply = get_session().post(
        f"{hub.url}/api/models/{REPO}/commit/main",
        content="\n".join(map(json.dumps, body)),
        headers={"Authorization": "Bearer hf_alice"},
    )
    assert reply.status_code == 400 and stored(hub) == {}


def test_pull_requests_are_refused_plainly(hub, alice):
    hub.create_repo(REPO)
    with pytest.raises(HfHubHTTPError, match="no pull requests"):
        alice.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=REPO, create_pr=True)


def test_malformed_commits(hub, alice):
    hub.create_repo(REPO)
    missing = add("a.bin", WEIGHTS)
    missing._upload_mode, missing._is_uploaded = "lfs", True  # as if it had been uploaded elsewhere
    missing._should_ignore, missing._remote_oid = False, None
    with pytest.raises(BadRequestError, match="does not exist"):
        alice.create_commit(REPO, [missing], commit_message="pointer to nothing")


# The libraries on top


def test_timm(hub, monkeypatch):
    import timm
    import torch

    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    pushed = timm.create_model("test_resnet", num_classes=3)
    pushed.pretrained_cfg["license"] = "apache-2.0"
    timm.models.push_to_hf_hub(pushed, REPO)
    assert {"config.json", "model.safetensors", "README.md"} <= stored(hub).keys()
    loaded = timm.create_model(f"hf-hub:{REPO}", pretrained=True)
    for name, value in pushed.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_transformers(hub, monkeypatch):
    import torch
    from transformers import AutoModelForImageClassification, ResNetConfig, ResNetForImageClassification

    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3)
    pushed = ResNetForImageClassification(config)
    pushed.push_to_hub(REPO, private=True)
    with pytest.raises(OSError, match="not a valid model identifier"):
        AutoModelForImageClassification.from_pretrained(REPO, token="hf_bob")
    loaded = AutoModelForImageClassification.from_pretrained(REPO)
    for name, value in pushed.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_datasets_parquet(hub, tmp_path):
    from datasets import Dataset, load_dataset

    rows = {"x": [1, 2, 3], "label": [0, 1, 0]}
    parquet = io.BytesIO()
    Dataset.from_dict(rows).to_parquet(parquet)
    hub.put("alice/digits", {"data/train-00000-of-00001.parquet": parquet.getvalue()}, type="dataset")
    loaded = load_dataset("alice/digits", split="train", cache_dir=str(tmp_path / "datasets"))
    assert loaded.to_dict() == rows
    streamed = load_dataset("alice/digits", split="train", streaming=True)
    assert [row["x"] for row in streamed] == rows["x"]


def test_datasets_push_and_imagefolder(hub, tmp_path, monkeypatch):
    from datasets import Dataset, load_dataset
    from PIL import Image

    monkeypatch.setenv("HF_TOKEN", "hf_alice")
    Dataset.from_dict({"x": [1, 2]}).push_to_hub("alice/pushed")
    assert load_dataset("alice/pushed", split="train", cache_dir=str(tmp_path / "pushed"))["x"][:] == [1, 2]

    pictures = {}
    for label, shade in [("cat", 0), ("dog", 255)]:
        png = io.BytesIO()
        Image.new("L", (4, 4), shade).save(png, "PNG")
        pictures[f"train/{label}/0.png"] = png.getvalue()
    hub.put("alice/pets", pictures, type="dataset")
    loaded = load_dataset("alice/pets", split="train", cache_dir=str(tmp_path / "pets"))
    assert loaded.features["label"].names == ["cat", "dog"]
    assert sorted(row["image"].getpixel((0, 0)) for row in loaded) == [0, 255]


# By hand


def test_in_the_foreground(tmp_path):
    script = str(Path(__file__).with_name("loopback.py"))
    server = subprocess.Popen(
        [sys.executable, script, "--port", "0", "--user", "carol:hf_carol"], stdout=subprocess.PIPE, text=True
    )
    try:
        exports = [server.stdout.readline() for _ in range(7)]
        env = dict(line.removeprefix("export ").strip().split("=", 1) for line in exports[:-1])
        assert env["HF_TOKEN"] == "hf_carol" and "HF_HOME=" in exports[-1]
        reply = httpx.get(env["HF_ENDPOINT"] + "/api/whoami-v2", headers={"Authorization": "Bearer hf_carol"})
        assert reply.json()["name"] == "carol"
        assert server.stdout.readline() == "200 GET /api/whoami-v2 (carol)\n"
    finally:
        server.terminate()
        server.wait()
    help_text = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, check=True)
    assert "hf-px push" in help_text.stdout
    wrong = subprocess.run([sys.executable, script, "--user", "carol"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "NAME:TOKEN" in wrong.stderr


def test_it_needs_nothing_but_the_standard_library():
    heavy = "{'torch', 'huggingface_hub', 'yaml', 'httpx', 'httpx2', 'numpy'}"
    code = f"import sys, support.loopback; assert not {heavy} & set(sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(places.REPO / "tests")}
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
