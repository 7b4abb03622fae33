"""What tests share."""

from __future__ import annotations

import os

# Before torch is imported: tests must not depend on what earlier runs compiled.
os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")
