"""`python -m whence.cli`."""

import sys

from whence.cli import main

sys.exit(main())
