"""`python -m anchorstore` is the command `anchorstore`."""

import sys

from anchorstore.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
