"""Pictures of flows: trajectories in the plane of their main directions, norms, distances; and a moving picture.

matplotlib comes with the [plot] extra and is imported only here, when something is drawn.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.core.errors import BadValue, MissingExtra
from toposcope.core.files import write_bytes
from toposcope.core.printable import printable
from toposcope.dynamics.observables import norms
from toposcope.dynamics.record import FlowResult

Array = NDArray[np.float64]
FORMATS = ("png", "svg", "pdf")
MOST_DRAWN = 128
FRAMES = 60
_INK, _GRID, _FAINT = "#222222", "#dddddd", "#9aa5b1"
_LARGEST, _MIDDLE, _SMALLEST = "#b2182b", "#444444", "#2166ac"


def draw(results: Sequence[FlowResult], path: str | Path) -> Path:
    """Write a figure with a row of pictures per flow: where tokens go, how large they are, how far apart."""
    kind = Path(path).suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise BadValue(f"cannot draw to '{path}': its name must end in .png, .svg or .pdf.")
    plt = _matplotlib()
    rows = len(results)
    widths = {result.tokens.shape[2] for result in results}
    # One plane for all flows of a figure, so that the eye may compare them.
    shared = None
    if len(widths) == 1 and max(widths) > 2:
        shared = _main_directions([_scaled(result)[0] for result in results])
    figure, axes = plt.subplots(rows, 3, figsize=(12.6, 3.9 * rows + 0.3), squeeze=False, layout="constrained")
    try:
        for row, result in zip(axes, results, strict=True):
            _trajectories(row[0], result, plt, shared)
            _norms(row[1], result)
            _distances(row[2], result)
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a missing glyph is no reason to fail
            figure.savefig(buffer, format=kind, dpi=130)
    finally:
        plt.close(figure)
    return write_bytes(path, buffer.getvalue())


def animate(result: FlowResult, path: str | Path, *, frames: int | None = None, seconds: float = 6.0) -> Path:
    """Write an animated .gif: tokens moving in the plane of their main directions, with the clock running."""
    if Path(path).suffix.lower() != ".gif":
        raise BadValue(f"cannot write the movie '{path}': its name must end in .gif.")
    if len(result.times) < 2:
        raise BadValue("the run ended at its start; there is nothing to animate.")
    plt = _matplotlib()
    from matplotlib.animation import FuncAnimation, PillowWriter

    plane, seen_from_afar, share = _plane(result)
    at = np.linspace(result.times[0], result.times[-1], min(frames or FRAMES, 4 * len(result.times)))
    path_TN2 = _between(result.times, plane, at)
    figure, axis = plt.subplots(figsize=(5.6, 5.4), layout="constrained")
    try:
        _frame(axis, plane, share, seen_from_afar)
        colours = _colours(plt, path_TN2.shape[1])
        trails = [axis.plot([], [], lw=0.9, alpha=0.5, color=colour)[0] for colour in colours]
        dots = axis.scatter(*path_TN2[0].T, c=colours, s=26, zorder=3, edgecolors="white", linewidths=0.4)
        title = axis.set_title(f"{drawn(result.title)}   t = 0", loc="left", fontsize=10, color=_INK)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once; doing it again for every frame takes most of the time

        def update(frame: int) -> list[Any]:
            first = max(0, frame - 12)
            for i, trail in enumerate(trails):
                trail.set_data(path_TN2[first : frame + 1, i, 0], path_TN2[first : frame + 1, i, 1])
            dots.set_offsets(path_TN2[frame])
            title.set_text(f"{drawn(result.title)}   t = {at[frame]:.3g}")
            return [*trails, dots, title]

        moving = FuncAnimation(figure, update, frames=len(at), blit=False)
        content = _as_gif(moving, PillowWriter(fps=max(1, round(len(at) / seconds))))
    finally:
        plt.close(figure)
    return write_bytes(path, content)


def trajectory(result: FlowResult, *, frames: int = FRAMES, most: int = 64) -> dict[str, Any]:
    """The moving picture as plain data: times, points (times, tokens, 2) to four digits, and how they are shown."""
    plane, from_afar, share = _plane(result)
    at = np.linspace(result.times[0], result.times[-1], frames) if len(result.times) > 1 else result.times
    path_TN2 = _between(result.times, plane, at) if len(result.times) > 1 else plane
    kept = np.unique(np.linspace(0, path_TN2.shape[1] - 1, min(most, path_TN2.shape[1])).round().astype(int))
    size = max(float(np.abs(path_TN2).max()), 1e-300)
    points = size * np.round(path_TN2[:, kept] / size, 4)
    return {
        "times": [float(f"{time:.5g}") for time in at],
        "xy": [[[float(f"{x:.5g}") for x in point] for point in cloud] for cloud in points],
        "share": share,
        "relative": from_afar,
    }


def _as_gif(moving: Any, writer: Any) -> bytes:
    """matplotlib writes movies to a named file only; this one lives for a moment in a directory of its own."""
    import tempfile

    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            target = Path(directory) / "movie.gif"
            moving.save(target, writer=writer, dpi=90)
            return target.read_bytes()
    except OSError as error:
        raise BadValue(
            f"cannot make the movie among temporary files: {error.strerror or error}. Free some space, or set TMPDIR "
            "to another directory."
        ) from error


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


def _matplotlib() -> Any:
    require_matplotlib().use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _plane(result: FlowResult, directions: Array | None = None) -> tuple[Array, bool, float]:
    """Trajectories (T, N, 2) in two directions (by default their own main ones), whether they are shown relative to
    the largest norm, and the share of the square norm that these directions hold."""
    tokens, from_afar = _scaled(result)
    width = tokens.shape[2]
    if width == 1:
        return np.concatenate([tokens, np.zeros_like(tokens)], axis=2), from_afar, 1.0
    if width == 2:
        return tokens, from_afar, 1.0
    chosen = _main_directions([tokens]) if directions is None else directions
    plane = tokens @ chosen.T
    return plane, from_afar, float((plane**2).sum() / max((tokens**2).sum(), 1e-300))


def _scaled(result: FlowResult) -> tuple[Array, bool]:
    """The tokens to draw; those that have gone far are divided by the largest norm of the moment."""
    tokens = result.tokens
    if tokens.shape[1] > MOST_DRAWN:
        tokens = tokens[:, np.linspace(0, tokens.shape[1] - 1, MOST_DRAWN).round().astype(int)]
    largest = np.array([max(float(norms(cloud).max()), 1e-300) for cloud in tokens])
    from_afar = bool(largest.max() > 20 * largest[0])
    return (tokens / largest[:, None, None] if from_afar else tokens), from_afar


def _main_directions(clouds: Sequence[Array]) -> Array:
    """The two directions through the origin, where tokens collapse to and fly from, with the most square norm."""
    flat = [cloud.reshape(-1, cloud.shape[2]) for cloud in clouds]
    thin = np.concatenate([rows[:: max(1, len(rows) // 4000)] / max(1e-300, np.abs(rows).max()) for rows in flat])
    return np.asarray(np.linalg.svd(thin, full_matrices=False)[2][:2])


def _between(times: Array, path_TN2: Array, at: Array) -> Array:
    """Positions at evenly spaced moments, by straight lines between the kept ones."""
    right = np.clip(np.searchsorted(times, at), 1, len(times) - 1)
    left = right - 1
    share = ((at - times[left]) / (times[right] - times[left]))[:, None, None]
    return np.asarray(path_TN2[left] * (1 - share) + path_TN2[right] * share)


def _colours(plt: Any, count: int) -> Array:
    return np.asarray(plt.get_cmap("viridis")(np.linspace(0.0, 0.92, max(count, 2)))[:count])


def _frame(axis: Any, plane: Array, share: float, from_afar: bool) -> None:
    reach = 1.08 * max(float(np.abs(plane).max()), 1e-12)
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axis.axhline(0, color=_GRID, lw=0.8, zorder=0)
    axis.axvline(0, color=_GRID, lw=0.8, zorder=0)
    where = f"main directions ({share:.0%})" if share < 0.9995 else "the tokens' plane"
    scale = "; relative to the largest norm" if from_afar else ""
    axis.set_xlabel(f"{where}{scale}", fontsize=8, color=_INK)
    _tidy(axis)


def _tidy(axis: Any) -> None:
    axis.tick_params(labelsize=8, colors=_INK, length=3)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axis.spines[side].set_color(_FAINT)


def _trajectories(axis: Any, result: FlowResult, plt: Any, directions: Array | None) -> None:
    plane, from_afar, share = _plane(result, directions)
    count = plane.shape[1]
    colours = _colours(plt, count)
    for i in range(count):
        axis.plot(plane[:, i, 0], plane[:, i, 1], color=colours[i], lw=0.9, alpha=0.75)
    axis.scatter(*plane[0].T, s=14, facecolors="none", edgecolors=colours, linewidths=0.9, zorder=3)
    axis.scatter(*plane[-1].T, s=20, c=colours, zorder=4, edgecolors="white", linewidths=0.4)
    _frame(axis, plane, share, from_afar)
    axis.set_title(drawn(result.title), loc="left", fontsize=10, color=_INK)
    legend = "○ start  ● end; colour: position, first dark to last light"
    axis.set_xlabel(f"{axis.get_xlabel()}\n{legend}", fontsize=8, color=_INK)


def _norms(axis: Any, result: FlowResult) -> None:
    seen = result.observables
    axis.fill_between(result.times, seen["norm_min"], seen["norm_max"], color=_FAINT, alpha=0.25, lw=0)
    lines = (
        ("norm_max", "largest", _LARGEST),
        ("norm_median", "median", _MIDDLE),
        ("norm_min", "smallest", _SMALLEST),
    )
    for name, label, colour in lines:
        axis.plot(result.times, seen[name], color=colour, lw=1.4, label=label)
    _logarithmic(axis, [seen["norm_max"], seen["norm_median"], seen["norm_min"]])
    _events(axis, result)
    axis.set_title("norm of tokens", loc="left", fontsize=10, color=_INK)
    _labelled(axis)


def _distances(axis: Any, result: FlowResult) -> None:
    seen = result.observables
    axis.plot(result.times, seen["distance_mean"], color=_LARGEST, lw=1.4, label="distance")
    _logarithmic(axis, [seen["distance_mean"]])
    axis.set_title("mean distance, cosine", loc="left", fontsize=10, color=_INK)
    other = axis.twinx()
    other.plot(result.times, seen["cosine_mean"], color=_SMALLEST, lw=1.4, label="cosine (right)")
    other.set_ylim(-1.05, 1.05)
    other.tick_params(labelsize=8, colors=_SMALLEST, length=3)
    for side in ("top", "left", "bottom"):
        other.spines[side].set_visible(False)
    other.spines["right"].set_color(_FAINT)
    _labelled(axis)
    axis.get_legend().remove()
    handles = [*axis.get_lines()[:1], *other.get_lines()[:1]]
    # Above the picture: inside it one of the two curves would be in the way.
    axis.legend(handles=handles, fontsize=7.5, frameon=False, loc="lower right", bbox_to_anchor=(1.0, 0.99), ncols=2)


def _logarithmic(axis: Any, curves: list[Array]) -> None:
    """A logarithmic axis where values span more than a factor of 30 and none is zero."""
    everything = np.concatenate(curves)
    positive = everything[everything > 0]
    if len(positive) and positive.max() > 30 * positive.min():
        axis.set_yscale("log")
        floor = max(positive.min(), positive.max() * 1e-8)  # below that lies the integrator's own noise
        axis.set_ylim(bottom=floor / 1.5)
    elif len(positive):
        axis.set_ylim(0, 1.12 * positive.max())


def _events(axis: Any, result: FlowResult) -> None:
    for event in result.events:
        axis.axvline(event.time, color=_FAINT, lw=0.9, ls=":")
        axis.text(
            event.time,
            0.02,
            f" {event.name}",
            transform=axis.get_xaxis_transform(),
            fontsize=7,
            color=_INK,
            rotation=90,
            va="bottom",
            ha="right",
        )


def _labelled(axis: Any) -> None:
    axis.set_xlabel("time", fontsize=8, color=_INK)
    axis.grid(axis="y", color=_GRID, lw=0.6)
    axis.set_axisbelow(True)
    _tidy(axis)
    axis.legend(fontsize=7.5, frameon=False, loc="best")
