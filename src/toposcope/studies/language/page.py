"""The measurements of the probe as Markdown, made from the result alone."""

from __future__ import annotations

from collections.abc import Sequence

from toposcope.studies.language.groups import GROUPS
from toposcope.studies.reproduce.result import ProbeRow, ProbeTable, SeedMean


def tables(probe: ProbeTable) -> str:
    """How it was measured, then for each group its bits and what its tokens do."""
    sizes = probe.sizes
    lines = [
        f"{probe.runs_done} trained models of size `{probe.size}`: width {sizes['width']}, {sizes['layers']} "
        f"layers, {sizes['steps']} steps of {sizes['batch'] * sizes['length']} bytes; State of "
        "the Union by bytes, years ending in 7 held out; wiki text is only measured on. Values are means ± half of "
        "Student's 95 % interval over seeds (their number in parentheses). Differences are paired by seed: the same "
        "windows in the same order, the same first weights; below 0 is better. *Undecided*: the interval holds 0, or "
        "there is one seed. Where nothing differs, one interval in twenty excludes 0 by chance.",
    ]
    for group in GROUPS:
        shown = [row for row in probe.rows if row.group == group.name]
        if shown:
            lines += [
                "",
                f"### {group.name}: {group.words}, contexts of {group.length} bytes",
                "",
                *_bits(shown),
                "",
                *_tokens(shown),
            ]
    return "\n".join(lines) + "\n"


def _bits(shown: Sequence[ProbeRow]) -> list[str]:
    base = shown[0].base
    return [
        f"| cell | what is held | parameters | bits per byte | less {base} | | wiki | less {base} | | step time |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row.cell} | {row.words} | {_count(row)} | {_value(row.bits, 3)} ({row.seeds}) | "
            f"{_value(row.less, 3, signed=True)} | {row.says} | {_value(row.bits_other, 3)} | "
            f"{_value(row.less_other, 3, signed=True)} | {row.says_other} | {_times(row.slower)} |"
            for row in shown
        ),
    ]


def _tokens(shown: Sequence[ProbeRow]) -> list[str]:
    return [
        "| cell | verdicts after training | as promised | least margin | real parts | negative in V~, U | cosine | "
        "rank | radial rate | noise 10 % | context x 2 | D moved |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row.cell} | {', '.join(row.verdicts)} | {_held(row)} | {_plain(row.margin)} | "
            f"{_plain(row.omega)} to {_plain(row.alpha)} | "
            f"{_percent(row.negative_heads)}, {_percent(row.negative_layers)} | {_value(row.cosine, 2)} | "
            f"{_value(row.rank, 1)} | {_value(row.radial, 2, signed=True)} | "
            f"{_value(row.noise, 3, signed=True)} | {_value(row.longer, 3, signed=True)} | "
            f"{_value(row.moved, 2)} |"
            for row in shown
        ),
    ]


def _value(numbers: SeedMean | None, digits: int, *, signed: bool = False) -> str:
    if numbers is None:
        return ""
    sign = "+" if signed else ""
    mean = f"{numbers.mean:{sign}.{digits}f}"
    return mean if numbers.half is None else f"{mean} ± {numbers.half:.{digits}f}"


def _count(row: ProbeRow) -> str:
    return f"{row.parameters}" + (f" ({row.redundant} redundant)" if row.redundant else "")


def _held(row: ProbeRow) -> str:
    return "" if row.held is None else f"{row.held} of {row.seeds}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.1g}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
