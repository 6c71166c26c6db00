"""Is the positional encoding really there, in force, and of one kind? For checkpoints, and for your own modules."""

from __future__ import annotations

from toposcope.checks.findings import CheckReport, Finding
from toposcope.checks.model import check_model

__all__ = ["CheckReport", "Finding", "check_model"]
