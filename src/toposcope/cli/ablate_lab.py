"""`toposcope ablate` on a model of the laboratory: accuracy on its own task without each head."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from toposcope.cli.common import console

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

SENTENCES = 2048


def run_lab(
    directory: Path, *, seed: int, json: str | None, csv: str | None, html: str | None, figure: str | None
) -> None:
    """Measure, print and write the map of a trained small model."""
    from toposcope.checkpoints import load
    from toposcope.cli.pictures import write_pictures
    from toposcope.core.errors import BadValue
    from toposcope.core.results import emit_csv, emit_json, envelope, subject
    from toposcope.lab.ablation import ablation_map
    from toposcope.lab.running import load_running, own_task, sentences
    from toposcope.models.about import weights_digest

    if figure:
        raise BadValue("there is no figure for a model of the laboratory; --html draws its map.")
    started = time.perf_counter()
    model = load_running(directory)
    task = own_task(directory, model.inner)
    found = ablation_map(model.inner, sentences(task, SENTENCES, seed), task.floor, seed=seed).as_dict()
    with load(directory) as opened:
        about = {**subject(opened), "sha256": weights_digest(model.inner)}
    body = {"task": task.name, "ablation": found}
    options = {"sentences": SENTENCES, "seed": seed}
    result = envelope("lab-ablate", body, about=about, options=options, seconds=time.perf_counter() - started)
    if json:
        emit_json(result, json)
    written = write_pictures([result], html, None, title=f"{task.name}: {directory.resolve().parent.name}")
    if csv:
        emit_csv(_rows(found), csv)
    if "-" not in (json, csv):
        print_map(console(), task.name, found)
        for name in written:
            console().print(f"Written: {name}", soft_wrap=True)


def _rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"layer": row["layer"], "head": head, "method": how, "accuracy": accuracy}
        for how in ("zero", "mean")
        for row in found[how]
        for head, accuracy in enumerate(row["accuracy"])
    ]


def print_map(out: Console, task: str, found: dict[str, Any]) -> None:
    """Accuracy without each head, layer by layer, and whether a layer hangs on one of them."""
    out.print(f"[bold]{task}[/bold]: {found['base']:.1%} right on {found['sentences']} new sentences", end="")
    out.print(f" (floor {found['floor']:.1%})")
    for how, words in (("zero", "nothing in its place"), ("mean", "its mean in its place")):
        out.print(f"\n[bold]Without one head[/bold] ({words}; % right)")
        for row in found[how]:
            cells = " ".join(f"{100 * value:5.1f}" for value in row["accuracy"])
            out.print(f"  layer {row['layer']}  {cells}")
            out.print(f"           deposit index {_index(row)}")
    out.print("\n1: one head carries the layer's skill; 0: at least two matter, or none alone.")


def _index(row: dict[str, Any]) -> str:
    if row["di"] is None:
        return "- (hardly above the floor: nothing to lose)"
    inside = row["interval"]
    span = "" if inside is None else f" ({inside['low']:.2f} to {inside['high']:.2f})"
    return f"{row['di']:.2f}{span}" + ("" if row["head"] is None else f", head {row['layer']}.{row['head']}")
