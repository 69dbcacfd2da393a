"""Write the tables of keywords in README.md and docs/ from the classes in headrace.options.

usage: python scripts/write_keyword_tables.py

A table stands between a line that names options classes and a line that ends it:

    <!-- keywords: StructuredOptions LoaderOptions -->
    <!-- end of keywords -->
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace import options

ROOT = Path(__file__).resolve().parents[1]
TABLE = re.compile(
    r"(?P<begin><!-- keywords: (?P<names>[\w ]+) -->\n).*?(?P<end><!-- end of keywords -->)",
    re.DOTALL,
)


def written(text: str) -> str:
    """Return a page with its tables made anew."""

    def table(match: re.Match[str]) -> str:
        kinds = [getattr(options, name) for name in match["names"].split()]
        return f"{match['begin']}{options.options_table(*kinds)}\n{match['end']}"

    return TABLE.sub(table, text)


def main() -> None:
    """Rewrite the pages that have changed."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        before = page.read_text(encoding="utf-8")
        after = written(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
