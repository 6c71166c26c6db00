"""What `check --live` returns: findings, and for every layer what configuration, files and the running model say."""

from __future__ import annotations

from dataclasses import dataclass

from toposcope.checks.findings import CheckResult
from toposcope.live.module.check import Probe


@dataclass(frozen=True)
class LayerPosition:
    """One layer's position in three columns. `agrees` is None where the running model could not be looked into.

    Errors are the largest over queries, keys and channel pairs, None where nothing turns: of an angle in radians, of
    a frequency relative to the configured one (pairs that turn at least once or so). `scale` multiplies q k^T.
    `differs` says what is otherwise than configured, where `agrees` is False.
    """

    layer: int
    module: str
    configuration: str
    files: str
    running: str
    agrees: bool | None
    angle_error: float | None = None
    frequency_error: float | None = None
    scale: float | None = None
    scale_configured: float | None = None
    differs: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class LiveCheckResult(CheckResult):
    """What was found about a model that runs, the gravest first."""

    kind = "check-live"

    device: str
    dtype: str
    attention: str  # the kernel that transformers was asked for
    positions: int  # positions from 0 on within which the fit looked
    probes: tuple[Probe, ...]
    by_layer: tuple[LayerPosition, ...]
    remarks: tuple[str, ...] = ()  # on the circumstances of the run
