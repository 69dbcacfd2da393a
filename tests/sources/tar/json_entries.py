"""Entries of JSON indices, and what is read of them."""

import json

from headrace.sources.tar._json_index import json_index, read_json_index
from headrace.sources.tar.index import TarIndex


def read(document: object) -> TarIndex:
    return read_json_index(json.dumps(document).encode(), "s.json")


def said_again(document: object) -> object:
    return json.loads(json_index(read(document)))


def entry(**more: object) -> dict:
    return {"offset": 512, "length": 9, **more}


PLACE = {"json_path": "x.json", "json_offset": 1536, "json_length": 7}
