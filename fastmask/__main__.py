"""`python -m fastmask` and the console script `fastmask` run the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command in sys.argv and exits with its status."""
    from fastmask.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
