"""A flow as an animated .gif: tokens moving in the plane of their main directions, with the clock running.

matplotlib (of the [plot] extra) is imported here alone, when a movie is made.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from toposcope.core.errors import BadValue, MissingExtra
from toposcope.core.files import write_bytes
from toposcope.core.printable import printable
from toposcope.dynamics.flow import Flow, FlowResult
from toposcope.dynamics.trajectory import PlanePath
from toposcope.report.paint import colour

SECONDS = 6.0
TRAIL = 12  # frames that a token's path stays visible


def check_name(path: str | Path) -> None:
    """Complain about a movie's name, or missing matplotlib, before the work and not after it."""
    if Path(path).suffix.lower() != ".gif":
        raise BadValue(f"cannot write the movie '{path}': its name must end in .gif.")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("movies need matplotlib: pip install 'toposcope[plot]'.") from error


def movie(result: FlowResult, path: str | Path) -> Path:
    """Write the movie of a result with a single flow."""
    check_name(path)
    if len(result.flows) != 1:
        raise BadValue(f"a movie shows one flow, and there are {len(result.flows)}. Run them singly.")
    return write_bytes(path, _animated(result.flows[0]))


def _animated(flow: Flow) -> bytes:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.animation import FuncAnimation, PillowWriter

    moving = flow.trajectory
    if len(moving.times) < 2:
        raise BadValue("the run ended at its start; there is nothing to animate.")
    path_TN2 = np.array(moving.xy)
    title = printable(flow.title).replace("$", r"\$")  # a dollar sign would begin a formula
    figure, axis = plt.subplots(figsize=(5.6, 5.4), layout="constrained")
    try:
        _frame(axis, path_TN2, moving)
        colours = plt.get_cmap("viridis")(np.linspace(0.0, 0.92, max(path_TN2.shape[1], 2)))[: path_TN2.shape[1]]
        trails = [axis.plot([], [], lw=0.9, alpha=0.5, color=each)[0] for each in colours]
        dots = axis.scatter(*path_TN2[0].T, c=colours, s=26, zorder=3, edgecolors="white", linewidths=0.4)
        clock = axis.set_title(f"{title}   t = 0", loc="left", fontsize=10, color=colour("ink"))
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once; doing it again for every frame takes most of the time

        def update(frame: int) -> list[Any]:
            first = max(0, frame - TRAIL)
            for i, trail in enumerate(trails):
                trail.set_data(*path_TN2[first : frame + 1, i].T)
            dots.set_offsets(path_TN2[frame])
            clock.set_text(f"{title}   t = {moving.times[frame]:.3g}")
            return [*trails, dots, clock]

        animation = FuncAnimation(figure, update, frames=len(path_TN2), blit=False)
        return _as_gif(animation, PillowWriter(fps=max(1, round(len(path_TN2) / SECONDS))))
    finally:
        plt.close(figure)


def _frame(axis: Any, path_TN2: Any, moving: PlanePath) -> None:
    reach = 1.08 * max(float(np.abs(path_TN2).max()), 1e-12)
    axis.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axis.axhline(0, color=colour("line"), lw=0.8, zorder=0)
    axis.axvline(0, color=colour("line"), lw=0.8, zorder=0)
    where = f"main directions ({moving.share:.0%})" if moving.share < 0.9995 else "the tokens' plane"
    scale = "; relative to the largest norm" if moving.relative else ""
    axis.set_xlabel(f"{where}{scale}", fontsize=8, color=colour("ink"))
    axis.tick_params(labelsize=8, colors=colour("ink"), length=3)
    axis.spines[["top", "right"]].set_visible(False)


def _as_gif(animation: Any, writer: Any) -> bytes:
    """matplotlib writes movies to a named file only; this one lives for a moment in a directory of its own."""
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
            target = Path(directory) / "movie.gif"
            animation.save(target, writer=writer, dpi=90)
            return target.read_bytes()
    except OSError as error:
        raise BadValue(
            f"cannot make the movie among temporary files: {error.strerror or error}. Free some space, or set TMPDIR "
            "to another directory."
        ) from error
