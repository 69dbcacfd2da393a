"""Digests of the files, by which a state or another rank recognises them.

Files count by their paths below the roots, their sizes, and their etags or times of change. Local
files may be copied, or downloaded again: a second digest has a tag of their content in place of the
time. A tag is a hash of 16 samples of a file and of its footer, if it is Parquet, ORC or Arrow.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import takewhile

from headrace.model import FileList
from headrace.plan import Fingerprint, Planner
from headrace.sources.source import Discovered

_SAMPLES = 16
_SAMPLE_BYTES = 4 << 10
_MANY_FILES = 10_000
"""Number of files from which on only the head and the tail of each are read."""
_THREADS = 8
_AT_ONCE = 256
"""Number of files that a thread reads one after the other."""
_FOOTERS = {b"PAR1": 8, b"PARE": 8, b"ROW1": 10}
"""The last four bytes of formats that store the length of their footer, and how many bytes from the
end of the file it is stored."""


def fingerprint_of(found: Discovered, planner: Planner) -> Fingerprint:
    """Return the fingerprint of some data in some order."""
    files, order = found.files, planner.order
    paths = paths_below(files, found.roots)
    digest = hashlib.sha256()
    for path, size, etag in zip(paths, files.sizes.tolist(), files.etags, strict=True):
        digest.update(f"{path}\0{size}\0{etag}\n".encode(errors="surrogateescape"))
    if found.version is not None:  # a file of a table may have other rows left in another version
        digest.update(files.counts.tobytes())
    # The text of a filter leaves out the middle of a long list.
    keep = found.filter
    filters = "" if keep is None else hashlib.sha256(pickle.dumps(keep)).hexdigest()[:8]
    made = Fingerprint(
        digest.hexdigest()[:12],
        filters,
        order.describe(),
        order.seed,
        found.version,
        splits=cache(planner.splits_digest),
    )
    if found.reader.store.local and found.version is None and None not in files.etags:
        return replace(made, content=cache(partial(content_digest, files, found.roots)))
    return made


def paths_below(files: FileList, roots: Sequence[str]) -> list[str]:
    """Return the paths below the roots; without roots, below their common folder."""
    paths = files.paths
    if not roots and paths:
        pairs = zip(min(paths), max(paths), strict=False)
        common = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        roots = [common.rpartition("/")[0]]
    longest_first = sorted(roots, key=len, reverse=True)
    if len(longest_first) == 1:  # the usual case, of maybe a million paths
        return [path.removeprefix(longest_first[0]) for path in paths]
    return [path.removeprefix(next(filter(path.startswith, longest_first), "")) for path in paths]


def content_digest(files: FileList, roots: Sequence[str]) -> str:
    """Return a digest of the paths below the roots, sizes and content of local files.

    Their etags must be their times of change.
    """
    sizes = files.sizes.tolist()
    samples = 2 if len(files) > _MANY_FILES else _SAMPLES

    def tags(start: int) -> list[bytes]:
        part = slice(start, start + _AT_ONCE)
        columns = (files.paths[part], sizes[part], files.etags[part])
        return [_tag(*file, samples) for file in zip(*columns, strict=True)]

    digest = hashlib.sha256()
    for path, size in zip(paths_below(files, roots), sizes, strict=True):
        digest.update(f"{path}\0{size}\n".encode(errors="surrogateescape"))
    with ThreadPoolExecutor(_THREADS) as threads:
        for some in threads.map(tags, range(0, len(files), _AT_ONCE)):
            digest.update(b"".join(some))
    return digest.hexdigest()[:12]


def _tag(path: str, size: int, etag: str | None, samples: int) -> bytes:
    """Return a hash of samples and of the footer of a file.

    A file that has changed since it was found gets a tag that no other file has, because rows of it
    may have been read before the change.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if (found.st_size, f"{found.st_mtime_ns:x}") != (size, etag):
                return hashlib.sha256(f"changed {path} {etag}".encode(errors="replace")).digest()
            return hashlib.sha256(_sampled(descriptor, size, samples)).digest()
        finally:
            os.close(descriptor)
    except OSError:
        return hashlib.sha256(f"unreadable {path} {etag}".encode(errors="replace")).digest()


def _sampled(descriptor: int, size: int, samples: int) -> bytes:
    if size <= samples * _SAMPLE_BYTES:
        return os.pread(descriptor, size, 0)
    last = size - _SAMPLE_BYTES
    starts = [last * number // (samples - 1) for number in range(samples)]
    parts = [os.pread(descriptor, _SAMPLE_BYTES, start) for start in starts]
    footer = min(_footer_bytes(parts[-1]), size)
    if footer > _SAMPLE_BYTES:
        parts.append(os.pread(descriptor, footer, size - footer))
    return b"".join(parts)


def _footer_bytes(tail: bytes) -> int:
    """Return the number of bytes of the footer at the end of a file; 0 if it has none."""
    stored = _FOOTERS.get(tail[-4:])
    if stored is not None:
        return int.from_bytes(tail[-stored : 4 - stored], "little") + stored
    if tail[-4:-1] != b"ORC":
        return 0
    # The last byte is the length of the postscript, whose first field is the length of the footer.
    postscript, length, shift = tail[-1 - tail[-1] : -1], 0, 0
    for byte in postscript[1:]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return length + len(postscript) + 1
