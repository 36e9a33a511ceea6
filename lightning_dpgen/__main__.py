"""`python -m lightning_dpgen` is `dpgen`."""

import sys

from lightning_dpgen.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
