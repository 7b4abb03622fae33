"""``python -m contextile.serve MODEL``."""

import contextlib
import os
import sys

# A missing stream gets a descriptor that fails, so that no socket takes its number and receives
# messages.
for number in range(3):
    try:
        os.fstat(number)
    except OSError:
        os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)

from contextile.serve._program import main  # noqa: E402  # after the streams are open

try:
    status = main()
except SystemExit as ended:
    status = 0 if ended.code is None else ended.code if isinstance(ended.code, int) else 1
    if not isinstance(ended.code, (int, type(None))):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            print(ended.code, file=sys.stderr)
for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, or closed
        stream.flush()
# Threads whose clients have had their 503 are not waited for.
os._exit(status)
