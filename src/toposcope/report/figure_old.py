"""Figures for papers from a result: `--figure FILE.pdf|svg|png`, drawn by matplotlib ([plot] extra).

One column of a paper is 3.4 inches wide, two are 7; text is 7 to 8 points and stays text in PDF and SVG.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.core.errors import BadValue, MissingExtra
from toposcope.core.files import write_bytes
from toposcope.core.printable import printable
from toposcope.report.charts import PALETTE
from toposcope.report.render import schema_of

FORMATS = ("png", "svg", "pdf")
WIDE = 7.0
STYLE = {
    "font.family": "sans-serif",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.2,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "toposcope",  # names of parts that do not change from run to run
    "savefig.dpi": 300,
}


def check_name(path: str | Path) -> str:
    """The kind of file, from its name; complains where it is none of ours or matplotlib is missing."""
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise BadValue(f"cannot draw to '{path}': its name must end in .pdf, .svg or .png.")
    require_matplotlib()
    return kind


def require_matplotlib() -> Any:
    """matplotlib, or an error that says how to get it."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("pictures need matplotlib: pip install 'toposcope[plot]'.") from error
    return matplotlib


def drawn(words: object) -> str:
    """Words from elsewhere as a title or a label: dollar signs in them begin no formula."""
    return printable(words).replace("$", r"\$")


def draw(result: Mapping[str, Any], path: str | Path) -> Path:
    """Draw the figure of one result into a file."""
    kind = check_name(path)
    name = schema_of(result)
    if name not in DRAWERS:
        raise BadValue(f"there is no figure for a result of '{name}'; there is one for {', '.join(DRAWERS)}.")
    require_matplotlib().use("Agg")
    import matplotlib.pyplot as plt

    with plt.rc_context(STYLE):
        figure = DRAWERS[name](result, plt)
        try:
            buffer = io.BytesIO()
            dated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
            figure.savefig(buffer, format=kind, metadata=dated)  # no date: the same result gives the same file
        finally:
            plt.close(figure)
    return write_bytes(path, _steady(buffer.getvalue()) if kind == "svg" else buffer.getvalue())


def _steady(svg: bytes) -> bytes:
    """The picture with its clip paths numbered: matplotlib names them by their places in memory."""
    for number, name in enumerate(dict.fromkeys(re.findall(rb"#(p[0-9a-f]{10})\b", svg))):
        svg = svg.replace(name, b"clip%d" % number)
    return svg


def _grid(
    heads: Sequence[Mapping[str, Any]], value: Callable[[Mapping[str, Any]], float | None]
) -> tuple[list[int], Any]:
    layers = list(dict.fromkeys(head["layer"] for head in heads))
    grid = np.full((len(layers), 1 + max(head["head"] for head in heads)), np.nan)
    for head in heads:
        found = value(head)
        if found is not None:
            grid[layers.index(head["layer"]), head["head"]] = found
    return layers, grid


def _map_axis(axis: Any, layers: Sequence[int], title: str) -> None:
    step = max(1, len(layers) // 8)
    axis.set(
        title=title, xlabel="head", ylabel="layer", yticks=range(0, len(layers), step), yticklabels=layers[::step]
    )
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.spines[:].set_visible(False)


# ------------------------------------------------------------------ trace, ablate, compare
def _trace(result: Mapping[str, Any], plt: Any) -> Any:
    heads = result["heads"]
    figure, axes = plt.subplots(1, 3, figsize=(WIDE, 2.6), layout="constrained")

    def median(head: Mapping[str, Any], key: str) -> float | None:
        part = head["metrics"].get(key)
        return None if part is None else float(part["median"])

    for axis, key, title in (
        (axes[0], "rho", "norm with / without position"),
        (axes[1], "toeplitz", "Toeplitz share"),
    ):
        layers, grid = _grid(heads, lambda head, key=key: median(head, key))  # type: ignore[misc]
        shown = axis.imshow(grid, cmap="viridis", aspect="auto", interpolation="none")
        _map_axis(axis, layers, title)
        figure.colorbar(shown, ax=axis, shrink=0.8)
    counts = Counter(name for head in heads for name in head["names"] or ["none"])
    axes[2].barh([drawn(name) for name in counts], list(counts.values()), color=PALETTE[0])
    axes[2].set(title="named patterns", xlabel="heads")
    return figure


def _ablate(result: Mapping[str, Any], plt: Any) -> Any:
    found = result["ablation"]
    figure, axes = plt.subplots(1, 2, figsize=(WIDE, 2.8), layout="constrained")
    layers, grid = _grid(found["heads"], lambda head: head["damage"].get("text"))
    reach = float(np.nanmax(np.abs(grid))) or 1.0
    shown = axes[0].imshow(grid, cmap="RdBu_r", vmin=-reach, vmax=reach, aspect="auto", interpolation="none")
    _map_axis(axes[0], layers, f"damage, {found['unit']}")
    figure.colorbar(shown, ax=axes[0], shrink=0.8)
    known = [layer for layer in found["layers"] if layer["deposit"]["di"] is not None]
    axes[1].bar([layer["layer"] for layer in known], [layer["deposit"]["di"] for layer in known], color=PALETTE[0])
    for layer in known:
        spread = (layer["spread"] or {}).get("di")
        if spread:
            axes[1].plot([layer["layer"]] * 2, [spread["low"], spread["high"]], color="#222", lw=0.8)
    axes[1].set(title="deposit index", xlabel="layer")
    return figure


def _colours(count: int) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(count)]


DRAWERS: dict[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "trace": _trace, "ablate": _ablate,
}  # fmt: skip
