"""Files in a directory or on the Hub, and errors of the Hub and the disk with a way out."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from huggingface_hub import (
    _CACHED_NO_EXIST,
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.file_download import repo_folder_name
from huggingface_hub.utils import validate_repo_id

from ..core.errors import TicketError, first_line
from ..core.files import disk_shortage
from ..core.text import name_list

_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass
class Source:
    """A directory, or a repo at one revision: from the first download on, at the commit of that file."""

    name: str
    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    local_files_only: bool = False

    @classmethod
    def of(cls, repo_or_dir: str | os.PathLike[str], **where: str | bool | os.PathLike[str] | None) -> Source:
        if not isinstance(repo_or_dir, (str, os.PathLike)):
            raise TypeError(f"`repo_or_dir` is {repo_or_dir!r:.40}; expected owner/name on the Hub, or a directory")
        source = cls(os.fspath(repo_or_dir), **where)  # type: ignore[arg-type]
        if source.is_dir:
            if source.revision is not None:
                raise TicketError(f"{source.name} is a directory and has no revisions; omit `revision`")
            return source
        path = Path(source.name).expanduser()
        if path.exists():
            raise TicketError(f"{path}: is a file; name the directory that holds the ticket")
        if source.name.count("/") != 1 or source.name.startswith((".", "/", "~")):
            raise TicketError(f"{source.name}: no such directory; a ticket on the Hub is written owner/name")
        try:
            validate_repo_id(source.name)
        except HFValidationError as error:
            raise TicketError(f"{source.name}: neither a directory nor a name on the Hub ({error})") from error
        return source

    @property
    def path(self) -> Path:
        return Path(self.name).expanduser()

    @property
    def is_dir(self) -> bool:
        return self.path.is_dir()

    def file(self, name: str) -> Path | None:
        """Local path of the file, downloaded if needed; None if the source does not have it."""
        if self.is_dir:
            path = self.path / name
            return path if path.is_file() else None
        try:
            with hub_errors(self.name, self.revision):
                self._check_connection(name)
                path = Path(
                    hf_hub_download(
                        self.name,
                        name,
                        revision=self.revision,
                        token=self.token,
                        cache_dir=self.cache_dir,
                        local_files_only=self.local_files_only,
                        library_name="hf_px",
                    )
                )
        except RemoteEntryNotFoundError:
            return None
        except TicketError as error:
            # offline: the cache remembers which files a repo does not have, and most layouts lack one
            cached = try_to_load_from_cache(self.name, name, cache_dir=self.cache_dir, revision=self.revision)
            if cached is _CACHED_NO_EXIST:
                return None
            cause = error.__cause__
            unknown = isinstance(cause, RepositoryNotFoundError) and not isinstance(cause, GatedRepoError)
            no_answer = (HTTPError, ConnectionError, TimeoutError, LocalEntryNotFoundError)
            if not unknown and (isinstance(cause, HfHubHTTPError) or not isinstance(cause, no_answer)):
                raise
            raise TicketError(f"{error}; nor is there a directory {self.name} here{self._beside()}") from error
        if is_commit(path.parent.name):
            self.revision = path.parent.name  # the repo may change between two downloads
        return path

    def _check_connection(self, name: str) -> None:
        """Ask once for a repo that is not in the cache: huggingface_hub would try for half a minute, for a typo too."""
        cache = Path(self.cache_dir or constants.HF_HUB_CACHE, repo_folder_name(repo_id=self.name, repo_type="model"))
        if self.local_files_only or (cache / "refs").is_dir() or (cache / "snapshots").is_dir():
            return
        with suppress(HfHubHTTPError):  # an answer: the download handles it, and notes files that do not exist
            get_hf_file_metadata(hf_hub_url(self.name, name, revision=self.revision), token=self.token)

    def _beside(self) -> str:
        """What the directory holds that a misspelled path begins with, for an error."""
        parent = self.path.parent
        held = sorted(path.name for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
        return f"; {parent} holds {name_list(held)}" if held else ""

    def weights(self, names: Sequence[str] = ("model.safetensors", "pytorch_model.bin")) -> Path:
        """The first of these files that the source has."""
        for name in names:
            if (path := self.file(name)) is not None:
                return path
        at = f" at {self.revision}" if self.revision else ""
        raise TicketError(f"{self.name}: has no weights{at}: no {' or '.join(names)}")


def is_commit(revision: object) -> TypeGuard[str]:
    """True for a commit hash, which unlike a branch or a tag never moves."""
    return isinstance(revision, str) and _SHA.fullmatch(revision) is not None


@contextmanager
def hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Turn errors of the Hub into a TicketError that says what to do; a missing file is left to the caller."""
    try:
        yield
    except RemoteEntryNotFoundError:
        raise
    except GatedRepoError as error:
        raise TicketError(f"{repo}: gated; ask for access on its page, then log in with `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise TicketError(f"{repo}: has no revision {revision!r}; its page lists branches, tags and commits") from error
    except RepositoryNotFoundError as error:
        raise TicketError(
            f"{repo}: no such repo on the Hub, or a private one that you may not see; check the spelling, log in "
            "with `hf auth login`, or pass a token"
        ) from error
    except OfflineModeIsEnabled as error:
        raise TicketError(f"{repo}: HF_HUB_OFFLINE is set; unset it, or name a local directory") from error
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, (HTTPError, OfflineModeIsEnabled)):
            with hub_errors(repo, revision):  # the cause says why the request failed
                raise error.__cause__ from None
        raise TicketError(
            f"{repo}: not in the local cache, and the Hub is disabled or did not answer; check the network and "
            "HF_HUB_OFFLINE"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        advice = {
            401: "log in with `hf auth login`, or pass a token",
            403: "the token has no permission; to push, it needs write access to this repo",
            409: "another process is changing the repo; try again",
            412: "the repo has changed in the meantime; try again",
            429: "too many requests; wait a few minutes and try again",
        }.get(status, "try again later" if status >= 500 else "see the message above")
        raise TicketError(
            f"{repo}: the Hub answered {status} ({error.server_message or first_line(error)}); {advice}"
        ) from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise TicketError(
            f"{repo}: the connection failed ({first_line(error)}); check the network and try again"
        ) from error
    except RuntimeError as error:
        if not isinstance(error.__cause__, (HTTPError, OSError)):
            raise
        with hub_errors(repo, revision):  # huggingface_hub hides why a large file was not uploaded in the cause
            raise error.__cause__ from None
    except OSError as error:
        if error.errno is None:  # raised by the client, for example for a download of the wrong size
            raise TicketError(f"{repo}: {first_line(error)}; try again") from error
        raise disk_error(error) from error


def disk_error(error: OSError, directory: Path | None = None) -> Exception:
    """A TicketError with advice if the disk is full or not writable; any other OSError unchanged."""
    if directory is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
        return TicketError(f"{directory}: cannot be written to ({error.strerror}); name another directory")
    unchanged = "nothing was changed: "
    if (shortage := disk_shortage(error, unchanged, "try again")) is not None:
        return TicketError(shortage)
    return error
