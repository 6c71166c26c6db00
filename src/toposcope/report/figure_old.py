"""Figures for papers from a result: `--figure FILE.pdf|svg|png`, drawn by matplotlib ([plot] extra).

One column of a paper is 3.4 inches wide, two are 7; text is 7 to 8 points and stays text in PDF and SVG.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.core.errors import BadValue
from toposcope.core.files import write_bytes
from toposcope.dynamics.plots import FORMATS, drawn, require_matplotlib
from toposcope.report.charts import PALETTE, VERDICTS
from toposcope.report.render import schema_of

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


# ------------------------------------------------------------------ scan
def _scan(result: Mapping[str, Any], plt: Any) -> Any:
    heads = result["heads"]
    if not heads:
        raise BadValue("this model has no head that could be analysed: there is nothing to draw.")
    figure, axes = plt.subplots(1, 3, figsize=(WIDE, 2.6), layout="constrained", width_ratios=(1.0, 1.1, 1.1))
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    words = list(dict.fromkeys(head["verdict"] for head in heads))
    layers, grid = _grid(heads, lambda head: float(words.index(head["verdict"])))
    colours = [VERDICTS[word.replace("_", " ")] for word in words]
    axes[0].imshow(
        grid, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(words) - 0.5, aspect="auto", interpolation="none"
    )
    _map_axis(axes[0], layers, "verdict of each head")
    handles = [Patch(color=colour, label=word.replace("_", " ")) for word, colour in zip(words, colours, strict=True)]
    axes[0].legend(
        handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, handlelength=1, columnspacing=1
    )
    known = [head for head in heads if head["growth_index"] is not None]
    axes[1].plot(
        [h["layer"] for h in known], [h["growth_index"] for h in known], ".", ms=3, alpha=0.5, color=PALETTE[0]
    )
    means = {
        layer: np.mean([h["growth_index"] for h in known if h["layer"] == layer])
        for layer in dict.fromkeys(h["layer"] for h in known)
    }
    axes[1].plot(list(means), list(means.values()), color=PALETTE[1])
    axes[1].axhline(0.5, color="#888", lw=0.6, ls="--")
    axes[1].set(title="growth index", xlabel="layer", ylim=(-0.02, 1.02))
    kernels = [row for row in result["spectra"]["heads"] if row.get("kernel") and row["peak_share"] is not None]
    best = sorted(kernels, key=lambda row: np.mean(row["kernel"]) - max(row["kernel"]))[:5]
    for row, colour in zip(best, PALETTE, strict=False):
        offsets = range(row["kernel_from"], row["kernel_from"] + len(row["kernel"]))
        axes[2].plot(offsets, row["kernel"], color=colour, lw=1, label=f"{row['layer']}.{row['head']}")
    axes[2].axhline(0, color="#888", lw=0.6, ls="--")
    axes[2].set(title="kernels g(t), most positional", xlabel="offset t")
    if best:
        axes[2].legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(best), columnspacing=0.8, handlelength=0.8
        )
    else:
        axes[2].text(0.5, 0.5, "no kernel over offsets", ha="center", va="center", transform=axes[2].transAxes)
    return figure


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


# ------------------------------------------------------------------ flow, spectrum, loss
def _flow(result: Mapping[str, Any], plt: Any) -> Any:
    flows = result["flows"]
    figure, axes = plt.subplots(len(flows), 3, figsize=(WIDE, 2.2 * len(flows)), layout="constrained", squeeze=False)
    for row, flow in zip(axes, flows, strict=True):
        seen = flow["observables"]
        paths = np.array(flow["trajectory"]["xy"], dtype=float)
        colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, paths.shape[1]))
        for i, colour in enumerate(colours):
            row[0].plot(*paths[:, i].T, lw=0.7, color=colour, alpha=0.8)
        row[0].scatter(*paths[0].T, s=6, facecolors="none", edgecolors=colours, linewidths=0.6)
        row[0].scatter(*paths[-1].T, s=8, c=colours, zorder=3)
        row[0].set(title=drawn(flow["title"]), aspect="equal", xticks=[], yticks=[])
        row[0].axhline(0, color="#ccc", lw=0.5, zorder=0)
        row[0].axvline(0, color="#ccc", lw=0.5, zorder=0)
        row[1].fill_between(seen["time"], seen["norm_min"], seen["norm_max"], color=PALETTE[0], alpha=0.2, lw=0)
        row[1].plot(seen["time"], seen["norm_median"], color=PALETTE[0])
        positive = [value for key in ("norm_min", "norm_max") for value in seen[key] if value]
        if positive and max(positive) > 30 * min(positive):
            row[1].set_yscale("log")
        row[1].set(title="norm: median, least to largest", xlabel="time")
        cosine = [np.nan if value is None else value for value in seen["cosine_mean"]]
        row[2].plot(seen["time"], cosine, color=PALETTE[1])
        row[2].set(title="mean cosine", xlabel="time", ylim=(-1.05, 1.05))
    return figure


def _spectrum(result: Mapping[str, Any], plt: Any) -> Any:
    figure, (left, right) = plt.subplots(1, 2, figsize=(WIDE, 2.5), layout="constrained")
    for each, colour in zip(result["encodings"], _colours(len(result["encodings"])), strict=True):
        points = each["points"]
        known = [p for p in points if p["statement"] != "bound"]
        norms = [p["lambda_max_over_n"] for p in known]
        left.plot([p["context"] for p in known], norms, "o-", ms=2.5, color=colour, label=drawn(each["spec"]))
        for p in points:
            if p["statement"] == "bound":  # a bar from the lower to the upper bound, and no point
                left.plot([p["context"]] * 2, [p["lambda_max_over_n"], p["upper"]], "_-", color=colour, lw=0.8)
        lawful = [(p["context"], p["law"]) for p in points if p["law"] is not None and p["law"] > 0]
        if lawful:
            left.plot(*zip(*lawful, strict=True), ":", color=colour, label=f"{drawn(each['spec'])}: law S5g")
        ranked = [(p["context"], p["effective_rank"]) for p in points if p["effective_rank"] is not None]
        if ranked:
            right.plot(*zip(*ranked, strict=True), "o-", ms=2.5, color=colour)
    for axis, title in ((left, r"$\lambda_{\max}/n$ of the kernel"), (right, "effective rank")):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set(title=title, xlabel="context n")
    left.legend()
    return figure


# ------------------------------------------------------------------ compare
def _compare(result: Mapping[str, Any], plt: Any) -> Any:
    heads = result["heads"]
    keys = [key for key, _ in _CHANGES if any(head.get(key) is not None for head in heads)]
    if not keys:
        raise BadValue("these two have no change in numbers that could be drawn.")
    figure, axes = plt.subplots(1, len(keys), figsize=(WIDE, 2.6), layout="constrained", squeeze=False)
    for axis, key in zip(axes[0], keys, strict=True):
        layers, grid = _grid(heads, lambda head, key=key: head.get(key))  # type: ignore[misc]
        shown = axis.imshow(grid, cmap="viridis", aspect="auto", interpolation="none", vmin=0)
        _map_axis(axis, layers, dict(_CHANGES)[key])
        figure.colorbar(shown, ax=axis, shrink=0.8)
    return figure


def _colours(count: int) -> list[str]:
    return [PALETTE[i % len(PALETTE)] for i in range(count)]


_CHANGES = (
    ("change_W", r"change of $Q^T K$"),
    ("change_V", r"change of $O V$"),
    ("change_kernel", "change of kernel"),
)
DRAWERS: dict[str, Callable[[Mapping[str, Any], Any], Any]] = {
    "scan": _scan, "flow": _flow, "spectrum": _spectrum,
    "compare": _compare,
}  # fmt: skip
