"""Makes ``python -m chunkpilot_core.cli`` the same as ``chunkpilot``."""

import sys

from chunkpilot_core.cli import main

if __name__ == '__main__':
    sys.exit(main())
