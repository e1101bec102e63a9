"""Files of a ticket, in a directory or on the Hub, and what to do when they cannot be had."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from huggingface_hub import _CACHED_NO_EXIST, hf_hub_download, try_to_load_from_cache
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
from huggingface_hub.utils import validate_repo_id

from ..core.errors import TicketError, first_line

_SHA = re.compile(r"[0-9a-f]{40}")


@dataclass
class Source:
    """A directory, or a repo at one revision: after the first file, at the very commit that the file came from."""

    name: str
    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    local_files_only: bool = False

    @classmethod
    def of(cls, repo_or_dir: str | os.PathLike[str], **where: str | bool | os.PathLike[str] | None) -> Source:
        source = cls(os.fspath(repo_or_dir), **where)  # type: ignore[arg-type]
        if source.is_dir:
            if source.revision is not None:
                raise TicketError(f"{source.name} is a directory and has no revisions; leave revision= out")
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
        """Where the file is on this machine, fetched if need be; None if the source has none."""
        if self.is_dir:
            path = self.path / name
            return path if path.is_file() else None
        try:
            with explained(self.name, self.revision):
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
        except TicketError:
            # without the Hub: it may have said, the last time, that there is no such file; most layouts lack one
            known = try_to_load_from_cache(self.name, name, cache_dir=self.cache_dir, revision=self.revision)
            if known is _CACHED_NO_EXIST:
                return None
            raise
        if is_commit(path.parent.name):
            self.revision = path.parent.name  # someone may push between two files
        return path


def is_commit(revision: object) -> TypeGuard[str]:
    """A commit's own name, which cannot move as a branch or a tag can."""
    return isinstance(revision, str) and _SHA.fullmatch(revision) is not None


@contextmanager
def explained(repo: str, revision: str | None = None) -> Iterator[None]:
    """The Hub's refusals as a TicketError that says what to do next; a missing file is the caller's affair."""
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
            f"{repo}: no such repo on the Hub, or a private one that you may not see; check the spelling, or log in "
            "with `hf auth login` or token="
        ) from error
    except OfflineModeIsEnabled as error:
        raise TicketError(f"{repo}: HF_HUB_OFFLINE is set; unset it, or name a local directory") from error
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, (HTTPError, OfflineModeIsEnabled)):
            with explained(repo, revision):  # why the Hub was not asked, or what it answered
                raise error.__cause__ from None
        raise TicketError(
            f"{repo}: not in the local cache, and the Hub was not asked or did not answer; check the network, "
            "HF_HUB_OFFLINE and local_files_only"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        way = {
            401: "log in with `hf auth login`, or pass token=",
            403: "the token may not do this; to push, it needs the right to write to this repo",
            409: "someone else is changing the repo; try again",
            412: "the repo has changed in the meantime; try again",
            429: "too many requests; wait a few minutes and try again",
        }.get(status, "try again later" if status >= 500 else "see the message above")
        raise TicketError(
            f"{repo}: the Hub answered {status} ({error.server_message or first_line(error)}); {way}"
        ) from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise TicketError(
            f"{repo}: the connection failed ({first_line(error)}); check the network and try again"
        ) from error
    except RuntimeError as error:
        if not isinstance(error.__cause__, (HTTPError, OSError)):
            raise
        with explained(repo, revision):  # huggingface_hub says of a large file only that it was not uploaded
            raise error.__cause__ from None
    except OSError as error:
        if error.errno is None:  # not the system's but a client's own: a download of another size than was told, …
            raise TicketError(f"{repo}: {first_line(error)}; try again") from error
        raise full(error) from error


def full(error: OSError, directory: Path | None = None) -> Exception:
    """Disk full or not ours to write to, said plainly; any other OSError as it is."""
    if directory is not None and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT):
        return TicketError(f"{directory}: cannot be written to ({error.strerror}); name another directory")
    if error.errno == errno.EFBIG:
        return TicketError(
            "a file of this size may not be written here (ulimit -f); nothing was changed: save elsewhere"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" at {error.filename}" if error.filename else ""
        return TicketError(f"no space left on the disk{where}; nothing was changed: free some and try again")
    return error
