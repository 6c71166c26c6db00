"""`toposcope bench [ROW ...]`: the benchmarks of the repository, from wherever it is checked out."""

from __future__ import annotations

from typing import Annotated

import typer


def run(
    rows: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROW", help="Some groups of rows; all by default.", show_default=False),
    ] = None,
    json: Annotated[str, typer.Option("--json", metavar="FILE", help="Write the rows as JSON.")] = "out/bench.json",
) -> None:
    """Measure speed and memory as ratios against peers and bounds. Needs a checkout of the repository."""
    import subprocess
    import sys
    from pathlib import Path

    from toposcope.core.errors import NotFound

    for root in (Path.cwd(), Path(__file__).parents[3]):
        if (root / "bench" / "__main__.py").is_file() and (root / "src" / "toposcope").is_dir():
            where = str(Path(json).absolute())
            raise SystemExit(
                subprocess.run([sys.executable, "-m", "bench", *(rows or []), "--json", where], cwd=root).returncode
            )
    raise NotFound(
        "no benchmarks here: they are part of the repository, not of the installed package. "
        "Clone it, and run this command or 'make bench' there."
    )
