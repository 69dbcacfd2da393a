"""A folder served as an S3 bucket, for benchmarks: objects, ranges and listings, no check of keys.

`python -m servers.fast_s3 FOLDER` with tests/ on the path, or `FastS3Process`. The bucket has the
name of the folder unless another is given. Listings show the folder as it was at the start; objects
are looked up when they are requested.
"""

from __future__ import annotations

import argparse
import os
import threading
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from time import gmtime, strftime
from urllib.parse import parse_qsl, quote, unquote
from xml.sax.saxutils import escape

from servers.faults import error_xml
from servers.listening import Listener
from servers.processes import free_port, start_module
from servers.ranges import UnsatisfiableRange, parse_range
from servers.wire import Head, Wire, answer_bytes

PAGE_KEYS = 1000
# Beyond the largest character, so that all keys with a prefix sort before prefix + LAST.
LAST = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing: keys, common prefixes, and where the next page begins."""

    keys: list[str]
    prefixes: list[str]
    next_after: str | None


class FastS3Process:
    """Serve `folder` at `url` as `bucket`, until the end of the `with` block or `stop`."""

    key = "AKIATESTKEY"
    secret = "test-secret"
    region = "us-east-1"

    def __init__(self, folder: Path | str, *, bucket: str | None = None) -> None:
        self.bucket = bucket or Path(folder).name
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = [str(folder), f"--port={self.port}", f"--bucket={self.bucket}"]
        self._process = start_module("servers.fast_s3", *options)
        self._process.wait_until_answers(self.port)

    @property
    def storage_options(self) -> dict[str, object]:
        return {"key": self.key, "secret": self.secret, "endpoint_url": self.url}

    def stop(self) -> None:
        self._process.stop()

    def __enter__(self) -> FastS3Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class FolderBucket:
    """Answer requests for one bucket from a folder."""

    def __init__(self, folder: Path, *, bucket: str) -> None:
        self._folder = str(folder.resolve())
        self._root = f"/{bucket}"
        self._bucket = bucket
        self._stats = {
            os.path.relpath(os.path.join(place, name), self._folder): os.stat(
                os.path.join(place, name)
            )
            for place, _, names in os.walk(self._folder)
            for name in names
        }
        self._keys = sorted(self._stats)

    def serve(self, wire: Wire) -> None:
        try:
            while (head := wire.read_head()) is not None:
                self._answer(wire, head)
        except OSError:
            return
        finally:
            wire.finish()

    def _answer(self, wire: Wire, head: Head) -> None:
        method, target, _ = head.start_line.decode("latin-1").split(" ", 2)
        path, _, query = target.partition("?")
        path = unquote(path) if "%" in path else path
        if method not in ("GET", "HEAD"):
            wire.read_all(head)
            wire.sock.sendall(_error(405, "MethodNotAllowed"))
        elif path.startswith(self._root + "/") and len(path) > len(self._root) + 1:
            self._send_object(wire, head, path[len(self._root) + 1 :], whole=method == "GET")
        elif path.rstrip("/") == self._root:
            listing = self._list(dict(parse_qsl(query, keep_blank_values=True)))
            headers = {"Content-Type": "application/xml", "Content-Length": str(len(listing))}
            body = listing if method == "GET" else b""
            wire.sock.sendall(answer_bytes(200, headers, body))
        else:
            wire.sock.sendall(_error(404, "NoSuchBucket"))

    def _send_object(self, wire: Wire, head: Head, key: str, *, whole: bool) -> None:
        place = os.path.realpath(f"{self._folder}/{key}")
        if not place.startswith(self._folder + "/") or not os.path.isfile(place):
            wire.sock.sendall(_error(404, "NoSuchKey", with_body=whole))
            return
        descriptor = os.open(place, os.O_RDONLY)
        try:
            self._send_open(wire, head, descriptor, with_body=whole)
        finally:
            os.close(descriptor)

    def _send_open(self, wire: Wire, head: Head, descriptor: int, *, with_body: bool) -> None:
        stat = os.fstat(descriptor)
        wanted = head.value(b"if-match")
        if wanted is not None and wanted != "*" and _etag(stat) not in wanted:
            wire.sock.sendall(_error(412, "PreconditionFailed", with_body=with_body))
            return
        range_header, size = head.value(b"range"), stat.st_size
        try:
            part = parse_range(range_header, size) if range_header else None
        except UnsatisfiableRange:
            wire.sock.sendall(_error(416, "InvalidRange", with_body=with_body))
            return
        headers = _object_headers(stat)
        if part is not None:
            headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{size}"
        status, part = (206, part) if part is not None else (200, range(size))
        headers["Content-Length"] = str(len(part))
        _send(wire, answer_bytes(status, headers), descriptor, part if with_body else range(0))

    def _list(self, fields: dict[str, str]) -> bytes:
        prefix, delimiter = fields.get("prefix", ""), fields.get("delimiter", "")
        token = fields.get("continuation-token")
        after = bytes.fromhex(token).decode() if token else fields.get("start-after", "")
        limit = min(int(fields.get("max-keys", PAGE_KEYS)), PAGE_KEYS)
        page = self._page(prefix, delimiter, after, limit)
        encode = quote if fields.get("encoding-type") == "url" else escape
        parts = [
            '<?xml version="1.0" encoding="UTF-8"?>\n'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{self._bucket}</Name><Prefix>{encode(prefix)}</Prefix>"
            f"<KeyCount>{len(page.keys) + len(page.prefixes)}</KeyCount><MaxKeys>{limit}</MaxKeys>"
        ]
        if delimiter:
            parts.append(f"<Delimiter>{encode(delimiter)}</Delimiter>")
        if fields.get("encoding-type"):
            parts.append("<EncodingType>url</EncodingType>")
        parts.append(f"<IsTruncated>{str(page.next_after is not None).lower()}</IsTruncated>")
        if page.next_after is not None:
            token = page.next_after.encode().hex()
            parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        parts += [_contents(encode(key), self._stats[key]) for key in page.keys]
        parts += [
            f"<CommonPrefixes><Prefix>{encode(name)}</Prefix></CommonPrefixes>"
            for name in page.prefixes
        ]
        return "".join([*parts, "</ListBucketResult>"]).encode()

    def _page(self, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        """Return the keys and common prefixes after `after`, together at most `limit`."""
        keys = self._keys
        end = bisect_right(keys, prefix + LAST)
        place = max(bisect_left(keys, prefix), bisect_right(keys, after))
        page = Page([], [], None)
        last = after
        while place < end and len(page.keys) + len(page.prefixes) < limit:
            key = keys[place]
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                page.keys.append(key)
                last, place = key, place + 1
                continue
            shared = key[: cut + len(delimiter)]
            page.prefixes.append(shared)
            last = shared + LAST
            place = bisect_right(keys, last)
        return page if place >= end else Page(page.keys, page.prefixes, last)


def _send(wire: Wire, head: bytes, descriptor: int, part: range) -> None:
    if len(part) <= 65536:
        wire.sock.sendall(head + os.pread(descriptor, len(part), part.start))
        return
    wire.sock.sendall(head)
    offset = part.start
    while offset < part.stop:
        offset += os.sendfile(wire.sock.fileno(), descriptor, offset, part.stop - offset)


def _etag(stat: os.stat_result) -> str:
    return f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'


def _object_headers(stat: os.stat_result) -> dict[str, str]:
    return {
        "ETag": _etag(stat),
        "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
        "Accept-Ranges": "bytes",
        "Content-Type": "application/octet-stream",
    }


def _contents(key: str, stat: os.stat_result) -> str:
    modified = strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(stat.st_mtime))
    return (
        f"<Contents><Key>{key}</Key><LastModified>{modified}</LastModified>"
        f"<ETag>{_etag(stat).replace(chr(34), '&quot;')}</ETag><Size>{stat.st_size}</Size>"
        "<StorageClass>STANDARD</StorageClass></Contents>"
    )


def _error(status: int, code: str, *, with_body: bool = True) -> bytes:
    body = error_xml(code, "from the fast server of the tests")
    headers = {"Content-Type": "application/xml", "Content-Length": str(len(body))}
    return answer_bytes(status, headers, body if with_body else b"")


def main() -> None:
    parser = argparse.ArgumentParser(description="a folder as a bucket of S3")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bucket", help="its name; the folder's unless given")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    bucket = FolderBucket(given.folder, bucket=given.bucket or given.folder.name)
    listener = Listener(bucket.serve, port=given.port)
    listener.open()
    print(listener.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
