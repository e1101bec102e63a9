"""A Hugging Face Hub on 127.0.0.1, in memory, for tests: real clients, no network, faults on demand.

    from support.loopback import LoopbackHub      # `tests` is on pytest's pythonpath, `hub` is a namespace package

    with LoopbackHub() as hub:
        hub.add_user("alice", token="hf_alice")
        hub.put("alice/tiny", {"config.json": b"{}"})
        with hub.fault("GET /alice/tiny/resolve/", status=503):
            ...

Always import it as `hub.loopback`: pytest puts `tests/hub` on sys.path too, but a bare `import loopback` would be a
second module with classes of its own.

huggingface_hub reads HF_ENDPOINT when it is imported: set `hub.env` in os.environ before that, or hand it to a
subprocess. Two ports are open. The Hub redirects large files to the second, the "CDN", because clients treat a redirect
within one origin as the Hub's own (they look for Hub headers there and would send the token along), and the real CDN is
another host.

By hand: `python tests/support/loopback.py --help`.
"""

from __future__ import annotations

import argparse
import base64
import fnmatch
import hashlib
import json
import re
import shlex
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlencode

KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}
URL_PREFIX = {"model": "", "dataset": "datasets/", "space": "spaces/"}

# The Hub writes this file into every new repo, and it decides which uploads go to large file storage.
LARGE = (
    "7z arrow bin bz2 ckpt gz h5 joblib model msgpack npy npz onnx ot parquet pb pickle pkl pt pth rar safetensors "
    "tar tflite tgz wasm xz zip zst"
)
GITATTRIBUTES = "".join(f"*.{suffix} filter=lfs diff=lfs merge=lfs -text\n" for suffix in LARGE.split()).encode()


# What a repo is made of


@dataclass(frozen=True)
class Blob:
    """One version of one file."""

    data: bytes
    lfs: bool

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def oid(self) -> str:
        """What git would call the blob; for a large file git knows only the pointer."""
        stored = self.pointer if self.lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.data)}\n".encode()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid


@dataclass(frozen=True)
class Commit:
    id: str
    parent: str | None
    tree: Mapping[str, Blob]
    title: str
    message: str
    author: str
    date: str
    serial: int  # counts the commits of this hub, to tell which of two came first


@dataclass
class Repo:
    id: str
    type: str
    private: bool
    gated: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # large files by sha256, committed or not

    @property
    def namespace(self) -> str:
        return self.id.split("/")[0]

    def at(self, revision: str) -> Commit:
        name = revision.removeprefix("refs/heads/")
        commit = self.commits.get(self.branches.get(name) or self.tags.get(name) or name)
        if commit is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return commit

    def log(self, revision: str) -> list[Commit]:
        """The commits that led to `revision`, newest first."""
        found = [self.at(revision)]
        while found[-1].parent is not None:
            found.append(self.commits[found[-1].parent])
        return found


@dataclass(frozen=True)
class User:
    name: str
    orgs: tuple[str, ...] = ()
    read_only: bool = False

    def member_of(self, namespace: str) -> bool:
        return namespace == self.name or namespace in self.orgs


# What goes over the wire


class Logged(NamedTuple):
    """One request as it ended; `status` is None if no reply was sent, `path` is without the query."""

    method: str
    path: str
    status: int | None
    user: str | None


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str]
    headers: Mapping[str, str]
    body: bytes
    serial: int  # of the newest commit when the request arrived
    user: User | None = None

    def json(self) -> Any:
        return json.loads(self.body or b"{}")

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() in ("1", "true")


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class HubError(Exception):
    """Becomes a reply with the error headers of the Hub."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: Mapping[str, str] | None = None):
        super().__init__(message)
        self.reply = as_json({"error": message}, status, {"X-Error-Message": message, **(headers or {})})
        if code is not None:
            self.reply.headers["X-Error-Code"] = code


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})


def as_file(call: Call, data: bytes, headers: Mapping[str, str]) -> Reply:
    """`data`, or the part of it that the Range header asks for."""
    headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes", **headers}
    asked = re.fullmatch(r"bytes=(\d*)-(\d*)", call.headers.get("Range", ""))
    if asked is None or asked.groups() == ("", ""):
        return Reply(200, data, headers)
    first, last = asked.groups()
    start = int(first) if first else max(0, len(data) - int(last))
    stop = min(int(last) + 1, len(data)) if first and last else len(data)
    if start >= stop:
        return Reply(416, b"", {**headers, "Content-Range": f"bytes */{len(data)}"})
    return Reply(206, data[start:stop], {**headers, "Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"})


@dataclass(eq=False)  # two faults may look the same
class Fault:
    """A misbehaviour of some requests; see `LoopbackHub.fault`."""

    hub: LoopbackHub
    match: re.Pattern[str]
    nth: int
    times: int | None
    status: int | None
    headers: dict[str, str]
    delay: float
    rate: int | None
    cut: int | None
    cut_request: int | None
    drop: str | None
    reset: bool
    seen: int = 0
    hits: int = 0

    def strikes(self, request: str) -> bool:
        if not self.match.match(request):
            return False
        self.seen += 1
        strikes = self.seen >= self.nth and (self.times is None or self.hits < self.times)
        self.hits += strikes
        return strikes

    def __enter__(self) -> Fault:
        return self

    def __exit__(self, *_: object) -> None:
        self.hub.clear_faults(self)


class LoopbackHub:
    """The server and everything it stores. Tests may set `chunk_size`, `page_size` and `lfs_threshold`."""

    def __init__(self, port: int = 0, echo: bool = False):
        self.echo = echo  # print every request, for a person who watches
        self._lock = threading.RLock()
        self._ended = threading.Event()  # set when requests under way are no longer of interest
        self._servers: list[_Server] = []
        self._ports = [port, 0]  # kept when the server stops, so that it can come back where clients look for it
        self.reset()

    # Life

    def start(self) -> LoopbackHub:
        self._ended = threading.Event()
        for i, handler in enumerate((_HubHandler, _CdnHandler)):
            server = _Server(("127.0.0.1", self._ports[i]), handler)
            server.hub = self
            self._ports[i] = server.server_address[1]
            self._servers.append(server)
            # poll_interval: how long stop() may take
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self) -> None:
        """Close the ports and every open connection. What is stored stays; start() opens the same ports again."""
        self._ended.set()
        while self._servers:
            self._servers.pop().close()

    def __enter__(self) -> LoopbackHub:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def reset(self) -> None:
        """Forget repos, users, faults, requests and settings, as if just started, and requests that still wait."""
        with self._lock:
            self._ended.set()
            self._ended = threading.Event()
            self.chunk_size: int | None = None  # large files above it are uploaded in parts of this size
            self.page_size = 1000  # entries per page of a listing
            self.lfs_threshold = 10 << 20  # bytes from which any file is a large file
            self._repos: dict[tuple[str, str], Repo] = {}
            self._tokens: dict[str, User] = {}
            self._uploads: dict[str, bytes] = {}  # sent to storage, not yet verified
            self._parts: dict[str, dict[int, bytes]] = {}
            self._faults: list[Fault] = []
            self._requests: list[Logged] = []
            self._serial = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._ports[0]}"

    @property
    def cdn_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def env(self) -> dict[str, str]:
        """What a client needs in its environment, before it imports huggingface_hub."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HUB_DISABLE_XET": "1",  # this Hub speaks only LFS
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        }

    # What tests set up and look at

    def add_user(self, name: str, token: str, orgs: Iterable[str] = (), read_only: bool = False) -> None:
        """Let `token` speak for `name`, who may write to their own namespace and to those of `orgs`."""
        self._tokens[token] = User(name, tuple(orgs), read_only)

    def create_repo(self, id: str, type: str = "model", private: bool = False, gated: bool = False) -> None:
        with self._lock:
            if (type, id) in self._repos:
                raise ValueError(f"{type} {id} exists already")
            repo = self._repos[type, id] = Repo(id, type, private, gated)
            self._commit(repo, "main", {".gitattributes": Blob(GITATTRIBUTES, lfs=False)}, "initial commit", "system")

    def put(
        self,
        id: str,
        files: Mapping[str, bytes],
        type: str = "model",
        message: str = "put",
        revision: str = "main",
    ) -> str:
        """Commit `files` on top of a branch and return the commit hash. Creates the repo if it is missing."""
        with self._lock:
            if (type, id) not in self._repos:
                self.create_repo(id, type)
            repo = self._repos[type, id]
            head = repo.at(revision)
            new = {path: Blob(data, self._is_large(head, path, len(data))) for path, data in files.items()}
            repo.objects.update({blob.sha256: blob.data for blob in new.values() if blob.lfs})
            return self._commit(repo, revision, {**head.tree, **new}, message, repo.namespace).id

    def files(self, id: str, revision: str = "main", type: str = "model") -> dict[str, bytes]:
        """Every file of a revision; `.gitattributes`, which the Hub adds, is one of them."""
        return {path: blob.data for path, blob in self._repos[type, id].at(revision).tree.items()}

    def commits(self, id: str, revision: str = "main", type: str = "model") -> list[Commit]:
        """Newest first; the last is the Hub's own initial commit."""
        return self._repos[type, id].log(revision)

    @property
    def requests(self) -> list[Logged]:
        with self._lock:
            return list(self._requests)

    def fault(
        self,
        match: str,
        *,
        nth: int = 1,
        times: int | None = 1,
        status: int | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        delay: float = 0,
        rate: int | None = None,
        cut: int | None = None,
        cut_request: int | None = None,
        drop: str | None = None,
        reset: bool = False,
    ) -> Fault:
        """Spoil requests whose "METHOD /path" starts with the regex `match`: `times` of them (None: all), from the nth.

        status, retry_after, headers: reply with this error instead of doing what was asked
        delay: seconds until the request is handled
        rate: bytes per second of the reply's body
        cut: close the connection after so many bytes of the reply's body
        cut_request: close it after reading so many bytes of the request's body; nothing is applied
        drop: "before": close it without applying the request; "after": apply it, then close without a reply
        reset: close with a TCP reset, as a crash would, rather than an orderly end of stream
        """
        if drop not in (None, "before", "after"):
            raise ValueError(f'drop={drop!r}: say "before" or "after" the request is applied')
        headers = dict(headers or {})
        if retry_after is not None:
            headers["Retry-After"] = str(retry_after)
        fault = Fault(self, re.compile(match), nth, times, status, headers, delay, rate, cut, cut_request, drop, reset)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear_faults(self, *faults: Fault) -> None:
        """Remove these faults, or all."""
        with self._lock:
            self._faults = [fault for fault in self._faults if faults and fault not in faults]

    # Used by the routes below

    def _commit(self, repo: Repo, branch: str, tree: Mapping[str, Blob], title: str, author: str, message: str = ""):
        self._serial += 1
        parent = repo.branches.get(branch)
        # the hash depends on content and order alone: a test sees the same hashes in every run
        what = [repo.type, repo.id, parent, sorted((p, b.oid) for p, b in tree.items()), title, message, self._serial]
        id = hashlib.sha1(json.dumps(what).encode()).hexdigest()
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        repo.commits[id] = Commit(id, parent, MappingProxyType(dict(tree)), title, message, author, date, self._serial)
        repo.branches[branch] = id
        return repo.commits[id]

    def _is_large(self, head: Commit, path: str, size: int) -> bool:
        attributes = head.tree.get(".gitattributes")
        lines = attributes.data.decode().splitlines() if attributes else []
        patterns = [line.split()[0] for line in lines if "filter=lfs" in line]
        by_name = any(fnmatch.fnmatch(path, p) or fnmatch.fnmatch(path.split("/")[-1], p) for p in patterns)
        return size > 0 and (by_name or size >= self.lfs_threshold)

    def _readable(self, call: Call, kind: str | None, id: str, content: bool = False) -> Repo:
        """The repo, if the caller may know of it and, for `content`, may have its files."""
        repo = self._repos.get((KINDS[kind or "models"], id))
        member = repo is not None and call.user is not None and call.user.member_of(repo.namespace)
        if repo is None or (repo.private and not member):
            # the same answer for both: nobody shall learn the names of private repos
            raise _repo_not_found(call)
        if content and repo.gated and not member:
            status = 401 if call.user is None else 403
            raise HubError(status, f"Access to {repo.type} {id} is restricted.", "GatedRepo")
        return repo

    def _writable(self, call: Call, kind: str | None, id: str) -> Repo:
        repo = self._readable(call, kind, id)
        if call.user is None:
            raise _repo_not_found(call)
        self._check_rights(call.user, repo.namespace)
        return repo

    def _check_rights(self, user: User, namespace: str) -> None:
        if user.read_only:
            raise HubError(403, "Forbidden: you must use a write token.")
        if not user.member_of(namespace):
            raise HubError(403, f'You don\'t have the rights to write under the namespace "{namespace}".')

    def _accept(self, repo: Repo, oid: str) -> bytes:
        """A large file that the repo has, or that lies in storage and is what it claims to be."""
        if oid not in repo.objects and oid in self._uploads:
            data = self._uploads.pop(oid)
            if hashlib.sha256(data).hexdigest() != oid:
                raise HubError(400, f"Uploaded {len(data)} bytes whose sha256 is not {oid}")
            repo.objects[oid] = data
        if oid not in repo.objects:
            raise HubError(400, f"LFS pointer pointed to a file that does not exist: {oid}")
        return repo.objects[oid]

    def _strike(self, request: str) -> Fault | None:
        with self._lock:
            return next((fault for fault in self._faults if fault.strikes(request)), None)

    def _answer(self, routes: list[Route], call: Call) -> Reply:
        with self._lock:
            try:
                self._authenticate(call)
                for method, pattern, handler in routes:
                    # HEAD is answered like GET; the body is left out when it is sent
                    found = pattern.fullmatch(call.path) if method == call.method.replace("HEAD", "GET") else None
                    if found:
                        return handler(self, call, **{k: v and unquote(v) for k, v in found.groupdict().items()})
                raise HubError(404, "Sorry, we can't find the page you are looking for.")
            except HubError as error:
                return error.reply
            except Exception as error:
                # ours, not the client's. 501, because clients would retry a 500 for half a minute
                return HubError(501, f"loopback Hub: {type(error).__name__}: {error}".replace("\n", " ")).reply

    def _authenticate(self, call: Call) -> None:
        token = call.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self._tokens:
            raise HubError(401, "Invalid credentials in Authorization header")
        call.user = self._tokens.get(token)

    def _record(self, call: Call, status: int | None) -> None:
        entry = Logged(call.method, call.path, status, call.user and call.user.name)
        with self._lock:
            self._requests.append(entry)
        if self.echo:
            print(f"{entry.status or 'drop'} {entry.method} {entry.path} ({entry.user or 'anonymous'})", flush=True)


def _repo_not_found(call: Call) -> HubError:
    # The real Hub sends no code with this 401. Clients read a 401 of an https URL as RepoNotFound, but we are http.
    if call.user is None:
        return HubError(401, "Invalid username or password.", "RepoNotFound")
    return HubError(404, "Repository not found", "RepoNotFound")


# Routes. Groups of the pattern become arguments, unquoted. An id of one word is legal, and never exists here.

Route = tuple[str, re.Pattern[str], Callable[..., Reply]]
HUB_ROUTES: list[Route] = []
CDN_ROUTES: list[Route] = []

API = r"/api/(?P<kind>models|datasets|spaces)/(?P<id>[^/]+(?:/[^/]+)?)"
WEB = r"/(?:(?P<kind>models|datasets|spaces)/)?(?P<id>[^/]+(?:/[^/]+)?)"


def route(method: str, pattern: str, routes: list[Route] = HUB_ROUTES) -> Callable:
    def add(handler: Callable[..., Reply]) -> Callable[..., Reply]:
        routes.append((method, re.compile(pattern), handler))
        return handler

    return add


@route("GET", "/api/whoami-v2")
def whoami(hub: LoopbackHub, call: Call) -> Reply:
    if call.user is None:
        raise HubError(401, "Invalid username or password.")
    role = "read" if call.user.read_only else "write"
    return as_json(
        {
            "type": "user",
            "id": call.user.name,
            "name": call.user.name,
            "fullname": call.user.name,
            "orgs": [{"type": "org", "name": org} for org in call.user.orgs],
            "auth": {"type": "access_token", "accessToken": {"displayName": "loopback", "role": role}},
        }
    )


def _named_in_body(call: Call) -> tuple[str, str]:
    if call.user is None:
        raise HubError(401, "Invalid username or password.")
    asked = call.json()
    return asked.get("type") or "model", f"{asked.get('organization') or call.user.name}/{asked['name']}"


@route("POST", "/api/repos/create")
def create_repo(hub: LoopbackHub, call: Call) -> Reply:
    type, id = _named_in_body(call)
    hub._check_rights(call.user, id.split("/")[0])
    answer = {"url": f"{hub.url}/{URL_PREFIX[type]}{id}", "name": id}
    if (type, id) in hub._repos:
        error = f"You already created this {type} repo: {id}"
        return as_json({"error": error, **answer}, 409, {"X-Error-Message": error})
    asked = call.json()
    hub.create_repo(id, type, private=asked.get("visibility") == "private" or bool(asked.get("private")))
    return as_json(answer)


@route("DELETE", "/api/repos/delete")
def delete_repo(hub: LoopbackHub, call: Call) -> Reply:
    type, id = _named_in_body(call)
    hub._writable(call, f"{type}s", id)
    del hub._repos[type, id]
    return as_json({})


@route("PUT", API + "/settings")
def settings(hub: LoopbackHub, call: Call, kind: str, id: str) -> Reply:
    repo, asked = hub._writable(call, kind, id), call.json()
    if "visibility" in asked or "private" in asked:
        repo.private = asked.get("visibility") == "private" or bool(asked.get("private"))
    repo.gated = bool(asked.get("gated", repo.gated))
    return as_json({})


@route("GET", API + "(?:/revision/(?P<rev>[^/]+))?")
def info(hub: LoopbackHub, call: Call, kind: str, id: str, rev: str | None) -> Reply:
    repo = hub._readable(call, kind, id)
    log = repo.log(rev or "main")
    card = log[0].tree.get("README.md")
    metadata = card_metadata(card.data.decode(errors="replace")) if card else None
    metadata = metadata if isinstance(metadata, dict) else {}
    siblings = []
    for path, blob in sorted(log[0].tree.items()):
        sibling: dict[str, Any] = {"rfilename": path}
        if call.flag("blobs"):
            sibling |= {"size": len(blob.data), "blobId": blob.oid}
            if blob.lfs:
                sibling["lfs"] = {"sha256": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
        siblings.append(sibling)
    answer = {
        "_id": id,
        "id": id,
        "author": repo.namespace,
        "sha": log[0].id,
        "lastModified": log[0].date,
        "createdAt": log[-1].date,
        "private": repo.private,
        "gated": "auto" if repo.gated else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "tags": metadata.get("tags") or [],
        "cardData": metadata,
        "siblings": siblings,
    }
    optional = {key: metadata[key] for key in ("library_name", "pipeline_tag") if key in metadata}
    # through str: YAML has dates, JSON does not
    return Reply(200, json.dumps(answer | optional, default=str).encode(), {"Content-Type": "application/json"})


@route("GET", API + "/auth-check(?P<write>/write)?")
def auth_check(hub: LoopbackHub, call: Call, kind: str, id: str, write: str | None) -> Reply:
    if write:
        hub._writable(call, kind, id)
    else:
        hub._readable(call, kind, id, content=True)
    return as_json({})


# Listings


def _entry(repo: Repo, commit: Commit, path: str, expand: bool) -> dict[str, Any] | None:
    """A file or folder as the tree endpoints describe it, or None if there is no such path."""

    def version(at: Commit) -> list[tuple[str, str]]:
        return [(p, b.oid) for p, b in sorted(at.tree.items()) if p == path or p.startswith(path + "/")]

    if not version(commit):
        return None
    blob = commit.tree.get(path)
    if blob is None:
        oid = hashlib.sha1(json.dumps(version(commit)).encode()).hexdigest()
        entry: dict[str, Any] = {"type": "directory", "oid": oid, "size": 0, "path": path}
    else:
        entry = {"type": "file", "oid": blob.oid, "size": len(blob.data), "path": path}
        if blob.lfs:
            entry["lfs"] = {"oid": blob.sha256, "size": len(blob.data), "pointerSize": len(blob.pointer)}
    if expand:
        last = commit
        while last.parent is not None and version(repo.commits[last.parent]) == version(commit):
            last = repo.commits[last.parent]
        entry["lastCommit"] = {"id": last.id, "title": last.title, "date": last.date}
    return entry


def _page(hub: LoopbackHub, call: Call, items: list[Any], describe: Callable[[Any], Any]) -> Reply:
    """The page that the cursor points at, with a Link header to the next."""
    start = int(call.query.get("cursor", 0))
    stop = start + min(hub.page_size, int(call.query.get("limit", hub.page_size)))
    headers = {}
    if stop < len(items):
        headers["Link"] = f'<{hub.url}{call.path}?{urlencode({**call.query, "cursor": stop})}>; rel="next"'
    return as_json([describe(item) for item in items[start:stop]], headers=headers)


@route("GET", API + "/tree/(?P<rev>[^/]+)(?:/(?P<path>.+))?")
def tree(hub: LoopbackHub, call: Call, kind: str, id: str, rev: str, path: str | None) -> Reply:
    repo = hub._readable(call, kind, id)
    commit = repo.at(rev)
    prefix = f"{path.strip('/')}/" if path else ""
    found = set()
    for name in commit.tree:
        if name.startswith(prefix):
            parts = name[len(prefix) :].split("/")
            found |= {prefix + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
    if prefix and not found:
        raise HubError(404, f"{path} does not exist on {rev!r}", "EntryNotFound")
    if not call.flag("recursive"):
        found = {name for name in found if "/" not in name[len(prefix) :]}
    return _page(hub, call, sorted(found), lambda name: _entry(repo, commit, name, call.flag("expand")))


@route("POST", API + "/paths-info/(?P<rev>[^/]+)")
def paths_info(hub: LoopbackHub, call: Call, kind: str, id: str, rev: str) -> Reply:
    repo = hub._readable(call, kind, id)
    commit = repo.at(rev)
    form = parse_qs(call.body.decode())
    expand = form.get("expand", ["false"])[0].lower() == "true"
    entries = [_entry(repo, commit, path.strip("/"), expand) for path in form.get("paths", [])]
    return as_json([entry for entry in entries if entry is not None])


@route("GET", API + "/commits/(?P<rev>[^/]+)")
def commits(hub: LoopbackHub, call: Call, kind: str, id: str, rev: str) -> Reply:
    def describe(commit: Commit) -> dict[str, Any]:
        return {
            "id": commit.id,
            "title": commit.title,
            "message": commit.message,
            "authors": [{"user": commit.author}],
            "date": commit.date,
        }

    return _page(hub, call, hub._readable(call, kind, id).log(rev), describe)


# Branches and tags


@route("GET", API + "/refs")
def refs(hub: LoopbackHub, call: Call, kind: str, id: str) -> Reply:
    repo = hub._readable(call, kind, id)

    def describe(names: dict[str, str], where: str) -> list[dict[str, str]]:
        return [{"name": n, "ref": f"refs/{where}/{n}", "targetCommit": c} for n, c in sorted(names.items())]

    branches, tags = describe(repo.branches, "heads"), describe(repo.tags, "tags")
    return as_json({"branches": branches, "tags": tags, "converts": [], "pullRequests": []})


@route("POST", API + "/branch/(?P<name>[^/]+)")
def create_branch(hub: LoopbackHub, call: Call, kind: str, id: str, name: str) -> Reply:
    repo = hub._writable(call, kind, id)
    if name in repo.branches:
        raise HubError(409, f"Reference already exists: refs/heads/{name}")
    repo.branches[name] = repo.at(call.json().get("startingPoint") or "main").id
    return as_json({})


@route("DELETE", API + "/branch/(?P<name>[^/]+)")
def delete_branch(hub: LoopbackHub, call: Call, kind: str, id: str, name: str) -> Reply:
    repo = hub._writable(call, kind, id)
    if name == "main":
        raise HubError(403, "Cannot delete the default branch")
    if repo.branches.pop(name, None) is None:
        raise HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")
    return as_json({})


@route("POST", API + "/tag/(?P<rev>[^/]+)")
def create_tag(hub: LoopbackHub, call: Call, kind: str, id: str, rev: str) -> Reply:
    repo, name = hub._writable(call, kind, id), call.json()["tag"]
    if name in repo.tags:
        raise HubError(409, f"Tag reference exists already: refs/tags/{name}")
    repo.tags[name] = repo.at(rev).id
    return as_json({})


@route("DELETE", API + "/tag/(?P<name>[^/]+)")
def delete_tag(hub: LoopbackHub, call: Call, kind: str, id: str, name: str) -> Reply:
    if hub._writable(call, kind, id).tags.pop(name, None) is None:
        raise HubError(404, f"Invalid rev id: {name}", "RevisionNotFound")
    return as_json({})


# Upload: preupload says how, LFS takes the large files, commit makes it visible


def _no_pull_requests(call: Call) -> None:
    if call.flag("create_pr"):
        raise HubError(501, "loopback Hub: there are no pull requests here")


@route("POST", API + "/preupload/(?P<rev>[^/]+)")
def preupload(hub: LoopbackHub, call: Call, kind: str, id: str, rev: str) -> Reply:
    _no_pull_requests(call)
    head = hub._writable(call, kind, id).at(rev)
    files = []
    for asked in call.json()["files"]:
        path = asked["path"]
        mode = "lfs" if hub._is_large(head, path, asked["size"]) else "regular"
        here = head.tree.get(path)  # its oid lets the client leave out what has not changed
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": here.etag if here else None})
    return as_json({"files": files})


@route("POST", WEB + r"\.git/info/lfs/objects/batch")
def lfs_batch(hub: LoopbackHub, call: Call, kind: str | None, id: str) -> Reply:
    repo, asked = hub._writable(call, kind, id), call.json()
    if asked["operation"] != "upload":
        raise HubError(501, "loopback Hub: large files are downloaded by /resolve/, not by the LFS API")
    base = f"{hub.url}/{URL_PREFIX[repo.type]}{id}.git/info/lfs"
    objects = []
    for wanted in asked["objects"]:
        oid, size = wanted["oid"], wanted["size"]
        described = {"oid": oid, "size": size}
        if oid not in repo.objects:
            upload: dict[str, Any] = {"href": f"{hub.cdn_url}/cdn/{oid}"}
            if hub.chunk_size is not None and size > hub.chunk_size and "multipart" in asked["transfers"]:
                parts = range(1, -(-size // hub.chunk_size) + 1)
                header = {"chunk_size": str(hub.chunk_size)}
                header |= {str(part): f"{hub.cdn_url}/cdn/{oid}/{part}" for part in parts}
                upload = {"href": f"{base}/complete", "header": header}
            described["actions"] = {"upload": upload, "verify": {"href": f"{base}/verify"}}
        objects.append(described)
    return as_json({"transfer": "basic" if hub.chunk_size is None else "multipart", "objects": objects})


@route("POST", WEB + r"\.git/info/lfs/complete")
def lfs_complete(hub: LoopbackHub, call: Call, kind: str | None, id: str) -> Reply:
    # clients send no token here: the real URL is signed
    asked = call.json()
    parts = hub._parts.pop(asked["oid"], {})
    sent = {part["partNumber"]: part["etag"] for part in asked["parts"]}
    if sent != {number: _part_etag(data) for number, data in parts.items()}:
        raise HubError(400, f"Parts of {asked['oid']} are missing or changed")
    hub._uploads[asked["oid"]] = b"".join(parts[number] for number in sorted(parts))
    return as_json({})


@route("POST", WEB + r"\.git/info/lfs/verify")
def lfs_verify(hub: LoopbackHub, call: Call, kind: str | None, id: str) -> Reply:
    repo, asked = hub._writable(call, kind, id), call.json()
    if len(hub._accept(repo, asked["oid"])) != asked["size"]:
        raise HubError(400, f"{asked['oid']} does not have {asked['size']} bytes")
    return as_json({})


@route("POST", API + "/commit/(?P<rev>[^/]+)")
def commit(hub: LoopbackHub, call: Call, kind: str, id: str, rev: str) -> Reply:
    _no_pull_requests(call)
    repo = hub._writable(call, kind, id)
    head = repo.at(rev)
    if rev not in repo.branches:
        raise HubError(400, f"Cannot commit to {rev}: it is not a branch")
    lines = [json.loads(line) for line in call.body.splitlines() if line]
    header = lines[0]["value"]
    if header.get("parentCommit") not in (None, head.id):
        raise HubError(412, "A commit has happened since. Please refresh and try again.")
    if head.serial > call.serial:  # another commit was applied while this one was on its way
        raise HubError(409, "Another commit to this branch is in progress. Please try again.")

    files = dict(head.tree)
    for line in lines[1:]:
        key, value = line["key"], line["value"]
        path = value["path"]
        if not path or any(part in ("", ".", "..", ".git") for part in path.rstrip("/").split("/")):
            raise HubError(400, f"Invalid path: {path!r}")
        if key == "file":
            files[path] = Blob(base64.b64decode(value["content"]), lfs=False)
        elif key == "lfsFile":
            files[path] = Blob(hub._accept(repo, value["oid"]), lfs=True)
        elif key == "deletedFile":
            if files.pop(path, None) is None:
                raise HubError(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        elif key == "deletedFolder":
            files = {name: blob for name, blob in files.items() if not name.startswith(path.rstrip("/") + "/")}
        else:
            raise HubError(400, f"Unknown operation {key!r}")

    card = files.get("README.md")
    if card is not None and card != head.tree.get("README.md"):
        errors, _ = check_card(card.data.decode(errors="replace"))
        if errors:
            raise HubError(400, f"Invalid metadata in README.md: {'; '.join(errors)}")
    made = hub._commit(repo, rev, files, header["summary"], call.user.name, header.get("description", ""))
    url = f"{hub.url}/{URL_PREFIX[repo.type]}{id}/commit/{made.id}"
    return as_json({"success": True, "commitOid": made.id, "commitUrl": url, "hookOutput": ""})


# Download


@route("GET", "/api/resolve-cache/(?P<kind>models|datasets|spaces)/(?P<id>[^/]+/[^/]+)/(?P<rev>[^/]+)/(?P<path>.+)")
@route("GET", WEB + "/resolve/(?P<rev>[^/]+)/(?P<path>.+)")
def resolve(hub: LoopbackHub, call: Call, kind: str | None, id: str, rev: str, path: str) -> Reply:
    repo = hub._readable(call, kind, id, content=True)
    commit = repo.at(rev)
    headers = {"X-Repo-Commit": commit.id}  # with a 404 too: clients remember which files a commit lacks
    blob = commit.tree.get(path)
    if blob is None:
        raise HubError(404, "Entry not found", "EntryNotFound", headers)
    headers["ETag"] = f'"{blob.etag}"'
    if not blob.lfs:
        return as_file(call, blob.data, headers)
    linked = {"X-Linked-Etag": f'"{blob.etag}"', "X-Linked-Size": str(len(blob.data))}
    return Reply(302, b"", {**headers, **linked, "Location": f"{hub.cdn_url}/cdn/{blob.sha256}"})


@route("GET", "/cdn/(?P<oid>[0-9a-f]{64})", CDN_ROUTES)
def cdn_get(hub: LoopbackHub, call: Call, oid: str) -> Reply:
    for repo in hub._repos.values():
        if oid in repo.objects:
            return as_file(call, repo.objects[oid], {"ETag": f'"{oid}"'})
    raise HubError(404, "Not found")


@route("PUT", "/cdn/(?P<oid>[0-9a-f]{64})(?:/(?P<part>[0-9]+))?", CDN_ROUTES)
def cdn_put(hub: LoopbackHub, call: Call, oid: str, part: str | None) -> Reply:
    # stored as it comes; whether it is what it claims to be is asked when it is verified or committed
    if part is None:
        hub._uploads[oid] = call.body
    else:
        hub._parts.setdefault(oid, {})[int(part)] = call.body
    return Reply(200, b"", {"ETag": _part_etag(call.body)})


def _part_etag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


# Cards

LICENSES = (
    "afl-3.0 agpl-3.0 apache-2.0 artistic-2.0 bsd bsd-2-clause bsd-3-clause bsl-1.0 cc cc0-1.0 cc-by-2.0 cc-by-3.0 "
    "cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 "
    "cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 creativeml-openrail-m epl-2.0 gfdl gpl gpl-2.0 gpl-3.0 isc lgpl lgpl-2.1 "
    "lgpl-3.0 mit mpl-2.0 odbl odc-by openrail openrail++ osl-3.0 pddl postgresql unknown unlicense wtfpl zlib other"
)
REPO_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def card_metadata(text: str) -> Any:
    """The YAML between two lines of `---` at the top of a card: parsed, None without one, an exception as its value."""
    import yaml  # only here: the server itself needs nothing but the standard library

    found = re.match(r"\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", text, re.DOTALL | re.MULTILINE)
    if found is None:
        return ValueError("YAML metadata has no closing ---") if re.match(r"\s*---[ \t]*\r?\n", text) else None
    try:
        return yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        return ValueError(f"YAML metadata cannot be parsed: {error}".replace("\n", " "))


def check_card(text: str) -> tuple[list[str], list[str]]:
    """Errors and warnings, for the mistakes in a card's metadata that are easily made."""
    metadata = card_metadata(text)
    if not metadata:
        return [], ["empty or missing yaml metadata in repo card"]
    if not isinstance(metadata, dict):
        return [str(metadata) if isinstance(metadata, ValueError) else "YAML metadata must be a mapping"], []

    errors = []
    for key in ("license", "base_model", "datasets", "tags", "metrics"):
        values = metadata.get(key)
        values = values if isinstance(values, list) else [] if values is None else [values]
        if not all(isinstance(value, str) for value in values):
            errors.append(f'"{key}" must be a string or a list of strings')
        elif key == "license":
            known = LICENSES.split()
            errors += [f'"license" must be one of {known}, not {value!r}' for value in values if value not in known]
        elif key in ("base_model", "datasets"):
            errors += [f'"{key}" with value {v!r} is not a repo id' for v in values if not REPO_ID.fullmatch(v)]
    if "model-index" in metadata:
        errors += _missing_keys(metadata["model-index"], "model-index", MODEL_INDEX)
    return errors, []


# What a model-index needs; a list stands for one or more of its element.
MODEL_INDEX = [
    {
        "name": str,
        "results": [
            {
                "task": {"type": str},
                "dataset": {"type": str, "name": str},
                "metrics": [{"type": str, "value": object}],
            }
        ],
    }
]


def _missing_keys(value: Any, where: str, schema: Any) -> list[str]:
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f'"{where}" must be an array']
        return [error for i, item in enumerate(value) for error in _missing_keys(item, f"{where}[{i}]", schema[0])]
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [f'"{where}" must be an object']
        absent = [f'"{where}.{key}" is required' for key in schema if value.get(key) is None]
        present = [key for key in schema if value.get(key) is not None]
        return absent + [error for key in present for error in _missing_keys(value[key], f"{where}.{key}", schema[key])]
    return [] if isinstance(value, schema) else [f'"{where}" must be a {schema.__name__}']


@route("POST", "/api/validate-yaml")
def validate_yaml(hub: LoopbackHub, call: Call) -> Reply:
    errors, warnings = check_card(call.json()["content"])
    if call.headers.get("Accept") == "text/plain":
        return Reply(400 if errors else 200, "\n".join(errors).encode(), {"Content-Type": "text/plain"})
    found = {"errors": [{"message": e} for e in errors], "warnings": [{"message": w} for w in warnings]}
    return as_json(found, 400 if errors else 200)


# The server


class _Server(ThreadingHTTPServer):
    hub: LoopbackHub
    request_queue_size = 64  # clients open many connections at once

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that hangs up is no news
            super().handle_error(request, client_address)

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        for connection in list(self.connections):
            try:
                connection.shutdown(socket.SHUT_RDWR)  # kept-alive connections would go on to be served
            except OSError:
                continue  # closed by its own thread just now


class _HubHandler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True  # headers and body are two packets: Nagle would hold the second for 40 ms
    routes = HUB_ROUTES

    def _serve(self) -> None:
        hub = self.server.hub
        path, _, query = self.path.partition("?")
        fields = {key: values[-1] for key, values in parse_qs(query).items()}
        call = Call(self.command, path, fields, self.headers, b"", hub._serial)
        fault, ended = hub._strike(f"{self.command} {path}"), hub._ended

        limit = None if fault is None else fault.cut_request
        call.body = self._read_body(limit)
        if fault is not None:
            if ended.wait(fault.delay):
                return self._hang_up(fault)
            if limit is not None or fault.drop == "before":
                hub._record(call, None)
                return self._hang_up(fault)
        if fault is not None and fault.status is not None:
            reply = HubError(fault.status, "injected by a test", headers=fault.headers).reply
        else:
            reply = self._answer(call)
        if fault is not None and fault.drop == "after":
            hub._record(call, None)
            return self._hang_up(fault)
        hub._record(call, reply.status)
        self._send(reply, fault, ended)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _serve

    def _answer(self, call: Call) -> Reply:
        return self.server.hub._answer(self.routes, call)

    def _read_body(self, limit: int | None) -> bytes:
        """The body of the request, or its first `limit` bytes."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            length = int(self.headers.get("Content-Length", 0))
            return self._read(length if limit is None else min(limit, length))
        body = b""
        while limit is None or len(body) < limit:
            length = int(self.rfile.readline().split(b";")[0] or b"0", 16)
            body += self._read(length if limit is None else min(limit - len(body), length))
            if len(body) != limit:
                self._read(len(b"\r\n"))
            if length == 0:
                break
        return body

    def _read(self, size: int) -> bytes:
        data = self.rfile.read(size)
        if len(data) < size:  # half a request must not be taken for a whole one
            raise ConnectionError("the client hung up")
        return data

    def _send(self, reply: Reply, fault: Fault | None, ended: threading.Event) -> None:
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        body = memoryview(b"" if self.command == "HEAD" else reply.body)
        cut, rate = (None, None) if fault is None else (fault.cut, fault.rate)
        body = body[:cut]
        step = len(body) if rate is None else max(1, rate // 20)
        for start in range(0, len(body), max(1, step)):
            self.wfile.write(body[start : start + step])
            if rate is not None and ended.wait(step / rate):
                return self._hang_up(fault)
        if cut is not None:
            self._hang_up(fault)

    def _hang_up(self, fault: Fault) -> None:
        self.close_connection = True
        if fault.reset:
            # lingering for 0 seconds makes close() send a reset. rfile first: it keeps the socket open
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.rfile.close()
            self.connection.close()

    def log_message(self, *_: Any) -> None:
        """Silent: `LoopbackHub.requests` is the log."""


class _CdnHandler(_HubHandler):
    routes = CDN_ROUTES

    def _answer(self, call: Call) -> Reply:
        if "Authorization" in call.headers:  # as S3 does; here it shows that a client leaks its token to other hosts
            return HubError(400, "Only one auth mechanism allowed").reply
        return super()._answer(call)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description="Run a Hugging Face Hub on this machine, in memory, until Ctrl-C. "
        "Paste the export lines that it prints into another terminal; there, hf-px push, hf upload, "
        "from_pretrained and load_dataset talk to it instead of huggingface.co.",
    )
    parser.add_argument("--port", type=int, default=8123, help="port of the Hub, 0 for any free one (default: 8123)")
    parser.add_argument(
        "--user",
        metavar="NAME:TOKEN",
        action="append",
        help="someone who may write to NAME/..., authenticated by TOKEN; may be repeated (default: alice:hf_alice)",
    )
    args = parser.parse_args(argv)
    users = [entry.partition(":") for entry in args.user or ["alice:hf_alice"]]
    if not all(name and token for name, _, token in users):
        parser.error("--user takes NAME:TOKEN, for example alice:hf_alice")
    with LoopbackHub(args.port, echo=True) as hub:
        for name, _, token in users:
            hub.add_user(name, token)
        for key, value in {**hub.env, "HF_TOKEN": users[0][2]}.items():
            print(f"export {key}={shlex.quote(value)}")
        print("export HF_HOME=$(mktemp -d)  # keeps what you download out of your own cache", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
