"""``push_to_hub``: upload a folder to a repository of the Hugging Face hub, with resume."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headrace.errors import MissingExtraError, NothingFoundError, OptionError
from headrace.options import checked_keywords
from headrace.write._copier import Progress, Share, cut_tasks, ignore
from headrace.write._places import PathLike, writing

_COMMIT_FILES, _COMMIT_BYTES = 100, 5 << 30
"""Limits of one commit; the hub accepts about a hundred commits an hour."""
_UNFINISHED = (".partial", ".lock")


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
    continued by running the same again. Files of the repository that the folder lacks are kept.

    Args:
        folder: A folder of this machine. Hidden files and unfinished ones are left out.
        repo_id: The repository, such as ``"owner/name"``; it is created if necessary.
        path_in_repo: The folder of the repository that files go into.
        repo_type: ``"dataset"``, ``"model"`` or ``"space"``.
        revision: The branch.
        private: True to make a new repository private; None for the default of its owner.
        token: A token with write access; None for the token that huggingface_hub finds.
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
    inside = path_in_repo.strip("/")
    files = _files(Path(os.path.expanduser(folder)), inside)
    api: Any = huggingface_hub.HfApi(endpoint=endpoint, token=token)
    report = progress or ignore
    sizes = [path.stat().st_size for _, path in files]
    done, total = 0, max(sum(sizes), 1)
    # Errors of the hub may hold signed links.
    with writing(repo_id, ValueError, RuntimeError):
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True)
        for task in cut_tasks(sizes, _is_full):
            report("uploading", Share(min(done / total, 0.999)))
            batch = files[task.first : task.stop]
            # Files that the hub already has are neither sent nor committed again.
            api.create_commit(
                repo_id,
                [huggingface_hub.CommitOperationAdd(name, path) for name, path in batch],
                commit_message=f"Add {batch[0][0]} to {batch[-1][0]}",
                repo_type=repo_type,
                revision=revision,
            )
            done += task.size_bytes
    report("uploading", Share(1.0))
    kind = "" if repo_type == "model" else f"{repo_type}s/"
    at = "" if revision == "main" else f"@{revision}"
    return "/".join(filter(None, [f"hf://{kind}{repo_id}{at}", inside]))


def _files(folder: Path, inside: str) -> list[tuple[str, Path]]:
    """Return names in the repository and files; the markers of complete copies come last."""
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder on this machine")
    found = []
    for path in folder.rglob("*"):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") for part in parts)
        if path.is_file() and not hidden and not path.name.endswith(_UNFINISHED):
            name = "/".join([inside, *parts] if inside else parts)
            found.append((path.name.startswith("_"), name, path))
    if not found:
        raise NothingFoundError(f"there is no file in {folder}")
    return [(name, path) for _, name, path in sorted(found)]


def _is_full(held: int, count: int, more: int) -> bool:
    return count == _COMMIT_FILES or held + more > _COMMIT_BYTES
