"""How `models.beside` and `models.verify` look on a terminal of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toposcope.cli.common import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from toposcope.models.beside import Beside, LayerBeside, Step, TextBeside
    from toposcope.models.rank import RankCorrelation
    from toposcope.models.verify import Verification


def print_beside(screen: Console, found: Beside) -> None:
    """Per layer what was measured and what the flow says, then the rank correlations, for each text."""
    for each in found.texts:
        screen.print(f"[bold]{safe(found.model)}[/bold]: {safe(each.text)}", soft_wrap=True)
        _print_layers(screen, each)
        _print_correlations(screen, each.correlations)
        screen.print()
    screen.print("a: x + attention; f: one unit of the flow; w: the whole layer with its MLP.")
    screen.print("norm, spr(ead): logarithms of growth; cos: difference; rad(ial), disp(ersion):")
    screen.print("rates of attention to first order. step: a as a predictor of w, the control")
    screen.print("for flow.")
    screen.print("The columns after it need no text: they are indices, not verdicts.")


def _print_layers(screen: Console, found: TextBeside) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    columns = (
        "layer",
        "|x|",
        "cos",
        "rank",
        "rad",
        "disp",
        "norm\na",
        "\nf",
        "\nw",
        "spr\na",
        "\nf",
        "\nw",
        "cos\na",
        "\nf",
    )
    for column in columns:
        table.add_column(column, justify="right")
    for each in found.layers:
        table.add_row(*_layer_row(each))
    screen.print(table)


def _layer_row(each: LayerBeside) -> list[str]:
    def of(step: Step | None, name: str) -> str:
        return _signed(None if step is None else getattr(step, name))

    return [
        str(each.layer),
        f"{each.norm:.4g}",
        "-" if each.cosine is None else f"{each.cosine:.2f}",
        f"{each.effective_rank:.0f}",
        _signed(each.radial_rate),
        _signed(each.dispersion_rate),
        of(each.attention, "norm_growth"),
        of(each.flow, "norm_growth"),
        of(each.whole, "norm_growth"),
        of(each.attention, "dispersion_growth"),
        of(each.flow, "dispersion_growth"),
        of(each.whole, "dispersion_growth"),
        of(each.attention, "cosine_change"),
        of(each.flow, "cosine_change"),
    ]


def _signed(value: float | None) -> str:
    if value is None:
        return "-"
    text = f"{value:+.2f}"
    return text[0] + text[2:] if text[1:3] == "0." else text


def print_verification(screen: Console, found: Verification) -> None:
    """Verdict x observed, what is stiff, what contradicts, and the indices beside simulated growth."""
    from rich.table import Table

    from toposcope.models.verify import OBSERVED

    screen.print(f"[bold]{safe(found.model)}[/bold]: {safe(found.text)}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("verdict")
    for seen in OBSERVED:
        table.add_column(seen, justify="right")
    for verdict, row in found.table.items():
        table.add_row(verdict, *(str(row[seen] or "-") for seen in OBSERVED))
    screen.print(table)
    for verdict, words in found.words.items():
        screen.print(f"{verdict}: {', '.join(f'{count} {word}' for word, count in words.items())}")
    screen.print(f"{len(found.runs)} certified heads; {found.undecided} without a verdict were not run.")
    if found.worst_path is not None:
        screen.print(f"The token that V alone drives stays on e^(Vt) x(0) to {found.worst_path:.1e}.")
    if found.alone:
        _listed(screen, "followed alone, at a tolerance of 1e-10", [each.name for each in found.alone])
    if found.stiff:
        _listed(screen, f"{len(found.stiff)} stiff (run ended early)", [each.name for each in found.stiff])
    for each in found.contradictions:
        screen.print(f"[red]{each.name} contradicts {each.verdict}[/red]: {each.sentence}", soft_wrap=True)
    if not found.contradictions:
        screen.print("No run contradicts its verdict.")
    _print_correlations(screen, found.correlations)


def _listed(screen: Console, title: str, names: Sequence[str]) -> None:
    import textwrap

    screen.print("\n".join(textwrap.wrap(f"{title}: {', '.join(names)}", 80)), soft_wrap=True)


def _print_correlations(screen: Console, found: Sequence[RankCorrelation]) -> None:
    """One row per measured quantity, one column per predictor."""
    from rich.table import Table

    order = {"flow": 0, "step": 1}  # then as they come
    predictors = sorted(dict.fromkeys(each.predicted for each in found), key=lambda name: order.get(name, 2))
    table = Table(box=None, pad_edge=False, header_style="bold", title="rank correlation", title_justify="left")
    table.add_column("")
    for name in predictors:
        table.add_column(name, justify="right")
    for measured in dict.fromkeys(each.measured for each in found):
        row = {each.predicted: each for each in found if each.measured == measured}
        label = measured.replace("attention ", "a ").replace("whole ", "w ")
        table.add_row(label, *(_rho(row.get(name)) for name in predictors))
    screen.print(table)
    screen.print("rho by Spearman; * p < 0.01")


def _rho(each: RankCorrelation | None) -> str:
    if each is None or each.rho is None:
        return "-"
    return f"{each.rho:+.2f}" + ("*" if each.p is not None and each.p < 0.01 else " ")
