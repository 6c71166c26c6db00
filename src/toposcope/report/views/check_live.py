"""The view of `check --live`: the outcome, three columns layer by layer, the findings, and the probes that ran."""

from __future__ import annotations

from dataclasses import asdict

from toposcope.core.ranges import show_range
from toposcope.live.result import LayerPosition, LiveCheckResult
from toposcope.report.blocks import Column, Listing, Page, Paragraphs
from toposcope.report.views import check, check_module

_COLUMNS = (
    Column("layers", "layers", "plain"),
    Column("configuration", "configuration", "wrap"),
    Column("files", "files", "wrap"),
    Column("running", "running model", "wrap"),
    Column("agrees", "agrees", "wrap"),
)
_NUMBERS = (
    Column("layer", "layer"),
    Column("module", "module", "plain"),
    Column("angle_error", "angle error, rad", ".2g"),
    Column("frequency_error", "frequency error", ".2g"),
    Column("scale", "logit scale", ".6g"),
    Column("scale_configured", "configured", ".6g"),
)


def view(result: LiveCheckResult, page: Page) -> None:
    """Add the sections of the check of a running model."""
    check.view(result, page)
    rows: dict[tuple[str, str, str, str], list[int]] = {}
    for each in result.by_layer:
        rows.setdefault((each.configuration, each.files, each.running, _agrees(each)), []).append(each.layer)
    table = page.rows(
        "three columns",
        [
            {"layers": show_range(layers), "configuration": said, "files": stored, "running": runs, "agrees": agrees}
            for (said, stored, runs, agrees), layers in rows.items()
        ],
    )
    how = (
        f"It ran in {result.dtype} on {result.device} (attention: {result.attention}); positions 0 to "
        f"{result.positions - 1:,} were looked at. Layers that are alike stand together."
    )
    how = " ".join([how, *(f"{each}." for each in result.remarks)])
    page.add(
        "What the configuration says, what the files hold, what the running model does",
        Listing("Position in three columns", how, table, _COLUMNS, top=64),
    )
    numbers = page.rows("layers as they ran", [asdict(each) for each in result.by_layer])
    words = "The largest error over queries, keys and channel pairs; what multiplies q k, and what should."
    page.add("Every layer in numbers", Listing("Layers as they ran", words, numbers, _NUMBERS), detail=True)
    check_module.probes(result.probes, page)
    if not result.by_layer:
        page.add("Layers", Paragraphs(("No self-attention layer is described.",)))


def _agrees(row: LayerPosition) -> str:
    return "not seen" if row.agrees is None else "yes" if row.agrees else f"no: {row.differs}"
