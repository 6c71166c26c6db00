"""Is the positional encoding really there, in force, and of one kind? For checkpoints, and for your own modules."""

from __future__ import annotations

from toposcope.checks.findings import CheckResult, Finding
from toposcope.checks.model import check, check_model
from toposcope.checks.module import ModuleCheckResult, check_module

__all__ = ["CheckResult", "Finding", "ModuleCheckResult", "check", "check_model", "check_module"]
