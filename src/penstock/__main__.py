"""``python -m penstock`` is the ``penstock`` command."""

import sys

from penstock.cli import main

if __name__ == "__main__":
    sys.exit(main())
