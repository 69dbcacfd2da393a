"""Write the tables of keywords in docs/ from the classes in headrace.options.

usage: python scripts/write_keyword_tables.py

A table is between a line that names options classes and a line that ends it:

    <!-- keywords: StructuredOptions LoaderOptions -->
    <!-- end of keywords -->

``own keywords`` leaves out those of classes that have tables of their own, such as `CopyOptions`.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from headrace import options

ROOT = Path(__file__).resolve().parents[1]
TABLE = re.compile(
    r"(?P<begin><!-- (?P<own>own )?keywords: (?P<names>[\w ]+) -->\n).*?"
    r"(?P<end><!-- end of keywords -->)",
    re.DOTALL,
)

SHARED = (options.DatasetOptions, options.CopyOptions, options.RowSourceOptions)


def options_table(*kinds: type) -> str:
    """Return the keywords of options classes as a Markdown table."""
    lines = ["| keyword | default | meaning |", "|---|---|---|"]
    for kind in kinds:
        for heading, keywords in groupby(
            options.known_options(kind).items(), lambda item: item[1].group
        ):
            lines.append(f"| **{heading}** | | |")
            for name, option in keywords:
                default = option.default
                default = f'"{default}"' if isinstance(default, str) else default
                doc = option.doc.replace("|", r"\|")
                lines.append(f"| `{name}` | `{default}` | {doc} |")
    return "\n".join(lines)


def written(text: str) -> str:
    """Return a page with its tables replaced."""

    def table(match: re.Match[str]) -> str:
        kinds = [getattr(options, name) for name in match["names"].split()]
        rows = options_table(*kinds).splitlines()
        if match["own"]:
            here = {name for kind in kinds for name in options.known_options(kind)}
            groups = [options.known_options(kind) for kind in SHARED]
            common = {f"| `{name}` " for known in groups if known.keys() <= here for name in known}
            rows = [row for row in rows if not row.startswith(("| **", *common))]
        return match["begin"] + "\n".join(rows) + "\n" + match["end"]

    return TABLE.sub(table, text)


def main() -> None:
    """Rewrite the pages that have changed."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        before = page.read_text(encoding="utf-8")
        after = written(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
