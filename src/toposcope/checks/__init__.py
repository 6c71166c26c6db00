"""Is the positional encoding really there, in force, and of one kind? From files alone."""

from __future__ import annotations

from toposcope.checks.findings import CheckResult, Finding
from toposcope.checks.model import check_files, check_model

__all__ = ["CheckResult", "Finding", "check_files", "check_model"]
