"""The view of `check_rotation`: as of any check, and the channel pairs with their frequencies as measured."""

from __future__ import annotations

from toposcope.live.callable import RotationCheckResult
from toposcope.report.blocks import Column, Listing, Page
from toposcope.report.views import check

_COLUMNS = (
    Column("channels", "channels", "plain"),
    Column("frequency", "radians a token", ".7g"),
    Column("error", "error bar", ".1g"),
)


def view(result: RotationCheckResult, page: Page) -> None:
    """Add the sections of the check of a rotation."""
    page.title = page.title or "Check of a rotation"
    check.view(result, page)
    rows = [
        {"channels": f"{a} and {b}", "frequency": frequency, "error": error}
        for (a, b), frequency, error in zip(result.pairs, result.frequencies, result.errors, strict=True)
    ]
    words = "Channels of the queries that turn together, as measured."
    page.add("Channel pairs", Listing("Frequencies", words, page.rows("channel pairs", rows), _COLUMNS))
