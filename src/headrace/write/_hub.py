"""``push_to_hub``: upload a folder to a repository of the Hugging Face hub, with resume."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import MissingExtraError, NothingFoundError, OptionError
from headrace.options import checked_keywords
from headrace.write._copier import Progress, Share, cut_tasks, ignore
from headrace.write._places import PathLike, writing

_COMMIT_FILES, _COMMIT_BYTES = 100, 5 << 30
"""Limits of one commit; the hub accepts about a hundred commits an hour."""
_READ_BYTES = 1 << 20
_UNFINISHED = (".partial", ".lock")


@dataclass(frozen=True, slots=True)
class _Upload:
    """A file to upload, and its path in the repository."""

    path: Path
    name: str
    size: int

    def equals(self, entry: Any) -> bool:
        """Return True if an entry of the hub has the same content."""
        if entry.size != self.size:
            return False
        if entry.lfs is not None:
            return bool(entry.lfs.sha256 == self._digest(hashlib.sha256()))
        return bool(entry.blob_id == self._digest(hashlib.sha1(b"blob %d\0" % self.size)))

    def _digest(self, digest: Any) -> str:
        with open(self.path, "rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
        return str(digest.hexdigest())


@checked_keywords
def push_to_hub(
    folder: PathLike,
    repo_id: str,
    *,
    path_in_repo: str = "",
    repo_type: str = "dataset",
    revision: str = "main",
    private: bool | None = None,
    token: str | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> str:
    """Upload a folder, such as one of tars with their indexes, to the Hugging Face hub.

    Files that the repository has already are left out, so that an upload that was interrupted is
    continued by running the same again. Files of the repository that are not in the folder stay.

    Args:
        folder: A folder of this machine. Hidden files and unfinished ones are left out.
        repo_id: The repository, such as ``"owner/name"``, which is made if it does not exist.
        path_in_repo: The folder of the repository that files go into.
        repo_type: ``"dataset"``, ``"model"`` or ``"space"``.
        revision: The branch.
        private: True to make a new repository private; None for the default of its owner.
        token: A token that may write; None for the one that huggingface_hub finds.
        endpoint: The address of the hub; None for that of huggingface_hub.
        progress: Called with a stage and the ``Share`` of it that is done.

    Returns:
        The URL to read the folder from, such as ``hf://datasets/owner/name``.

    Raises:
        OptionError: ``folder`` is not a folder.
        NothingFoundError: There is no file in it.
        WriteError: The hub cannot be reached, or refuses.

    Examples:
        ```py
        url = push_to_hub("tars/", "owner/name", private=True)
        loader, dataset = TarDataset.create_dataloader(url, batch_size=64)
        ```
    """
    try:
        import huggingface_hub
    except ImportError:
        raise MissingExtraError.for_extra("hub", "huggingface_hub") from None
    files = list(_files(Path(os.path.expanduser(folder)), path_in_repo.strip("/")))
    api: Any = huggingface_hub.HfApi(endpoint=endpoint, token=token)
    where = {"repo_id": repo_id, "repo_type": repo_type, "revision": revision}
    report = progress or ignore
    total = max(sum(file.size for file in files), 1)
    report("uploading", Share(0.0))
    # Errors of the hub may hold signed links.
    with writing(repo_id, ValueError, RuntimeError):
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True)
        entries = api.list_repo_tree(recursive=True, **where)
        there = {entry.path: entry for entry in entries if hasattr(entry, "size")}
        missing = [f for f in files if f.name not in there or not f.equals(there[f.name])]
        done = total - sum(file.size for file in missing)
        for task in cut_tasks((file.size for file in missing), _is_full):
            batch = missing[task.first : task.stop]
            report("uploading", Share(min(done / total, 0.999)))
            additions = [huggingface_hub.CommitOperationAdd(f.name, str(f.path)) for f in batch]
            message = f"Add {batch[0].name}" + (f" and {len(batch) - 1} more" if batch[1:] else "")
            api.create_commit(operations=additions, commit_message=message, **where)
            done += task.size_bytes
    report("uploading", Share(1.0))
    kind = "" if repo_type == "model" else f"{repo_type}s/"
    at = "" if revision == "main" else f"@{revision}"
    return "/".join(filter(None, [f"hf://{kind}{repo_id}{at}", path_in_repo.strip("/")]))


def _files(folder: Path, inside: str) -> Iterator[_Upload]:
    """Yield files in the order of their paths; markers, which say that all is there, come last."""
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder of this machine")
    found = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not hidden and not path.name.endswith(_UNFINISHED):
            found.append((path.name.startswith("_"), "/".join(parts), path))
    if not found:
        raise NothingFoundError(f"there is no file in {folder}")
    for _, name, path in sorted(found):
        yield _Upload(path, "/".join(filter(None, [inside, name])), path.stat().st_size)


def _is_full(held: int, count: int, more: int) -> bool:
    return count == _COMMIT_FILES or held + more > _COMMIT_BYTES
