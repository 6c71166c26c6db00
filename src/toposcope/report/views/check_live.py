"""The view of `check --live`: the outcome, three columns layer by layer, the findings, and the probes that ran."""

from __future__ import annotations

from typing import Any

from toposcope.checks.findings import scaling_fault
from toposcope.core.ranges import show_range
from toposcope.live.result import LayerPosition, LiveCheckResult
from toposcope.report.blocks import Column, Listing, Page, Paragraphs, shown
from toposcope.report.views import check, check_module

_COLUMNS = (
    Column("layers", "layers", "plain"),
    Column("configuration", "configuration, as read", "wrap"),
    Column("files", "files", "wrap"),
    Column("running", "running model", "wrap"),
    Column("agrees", "agrees", "wrap"),
)
_NUMBERS = (
    Column("layers", "layers", "plain"),
    Column("modules", "modules", "plain"),
    Column("angle_error", "angle error, rad", ".2g"),
    Column("frequency_error", "frequency error", ".2g"),
    Column("scale", "logit scale", ".6g"),
    Column("scale_configured", "configured", ".6g"),
)
_MEASURED = _NUMBERS[2:]


def view(result: LiveCheckResult, page: Page) -> None:
    """Add the sections of the check of a running model."""
    agreed = bool(result.by_layer) and all(each.agrees for each in result.by_layer)
    check.view(result, page, *([_ran(result)] if agreed else ()))
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
        f"{_where(result)}, attention: {result.attention}. Of another engine this says nothing: "
        "'check A --against B' compares two."
    )
    how = " ".join([how, *(f"{each}." for each in result.remarks)])
    page.add(
        "What the configuration says, what the files hold, what the running model does",
        Listing("Position in three columns", how, table, _COLUMNS, top=64),
        detail=agreed,
    )
    numbers = page.rows("layers as they ran", _in_numbers(result))
    words = "The largest error over queries, keys and channel pairs; what multiplies q k, and what should."
    brief = ("layers", *(column.key for column in _MEASURED))
    page.add(
        "Every layer in numbers", Listing("Layers as they ran", words, numbers, _NUMBERS, brief=brief), detail=True
    )
    check_module.probes(result.probes, page)
    if not result.by_layer:
        page.add("Layers", Paragraphs(("No self-attention layer is described.",)))


def _in_numbers(result: LiveCheckResult) -> list[dict[str, Any]]:
    """A row for the layers that have the same numbers as they are shown; in most models these are all."""
    alike: dict[tuple[str, ...], list[LayerPosition]] = {}
    for each in result.by_layer:
        alike.setdefault(tuple(shown(getattr(each, c.key), c.show) for c in _MEASURED), []).append(each)
    return [
        {
            "layers": show_range([each.layer for each in layers]),
            "modules": layers[0].module + (f" and {len(layers) - 1} more" if len(layers) > 1 else ""),
            **{column.key: getattr(layers[0], column.key) for column in _MEASURED},
        }
        for layers in alike.values()
    ]


def _ran(result: LiveCheckResult) -> str:
    """What all layers did, in one sentence."""
    count = len(result.by_layer)
    layers = f"all {count} layers" if count > 1 else "the layer"
    turning = all("channel pairs turn" in each.running for each in result.by_layer)
    does = f"turn{'s' * (count == 1)}" if turning else f"do{'es' * (count == 1)}"
    as_said = "as configured" if turning else "what the configuration says"
    if scaling_fault(result.findings) is not None:
        as_said = f"{'' if turning else 'it '}as transformers reads this configuration, without the scaling"
    return " ".join([f"{_where(result)}: {layers} {does} {as_said}.", *(f"{each}." for each in result.remarks)])


def _where(result: LiveCheckResult) -> str:
    device = "CPU" if result.device == "cpu" else result.device
    return f"Ran in transformers, {result.dtype} on {device}, positions 0-{result.positions - 1:,}"


def _agrees(row: LayerPosition) -> str:
    return "not seen" if row.agrees is None else "yes" if row.agrees else f"no: {row.differs}"
