"""Where Toposcope keeps what it would else fetch or convert again: the user's cache, or TOPOSCOPE_CACHE."""

from __future__ import annotations

import os
from pathlib import Path

SETTING = "TOPOSCOPE_CACHE"  # an environment variable: another directory, or 'off'


def cache_root() -> Path | None:
    """The directory of all our caches, which need not be there yet; None where the user has switched them off."""
    import platformdirs

    told = os.environ.get(SETTING, "")
    if told.lower() == "off":
        return None
    return Path(told) if told else Path(platformdirs.user_cache_dir("toposcope"))
