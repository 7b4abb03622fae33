"""``python -m contextile.serve MODEL``."""

import sys

from contextile.serve._program import main

sys.exit(main())
