"""Could the weights alone tell what heads do on a text? What indices and kernels said, against what was measured."""

from __future__ import annotations

from typing import Any

from toposcope.models.rank import RankCorrelation
from toposcope.models.tracing.agreement import Agreement
from toposcope.report.blocks import Column, Listing, Page, Paragraphs, count


def agreement_blocks(page: Page, found: Agreement) -> list[Any]:
    """Rank correlations of indices from the weights with what was traced, and the list of previous-token heads."""
    names: dict[str, RankCorrelation] = {
        "peak of the kernel": found.peak,
        "shared-content factor of the kernel": found.contraction,
        "kernel at offset 1, with attention on the previous token": found.contrast,
        "share of fast pairs, with attention on the previous token": found.fast,
    }
    rows = [{"index": words, "rho": each.rho, "p": each.p, "count": each.count} for words, each in names.items()]
    said = [
        f"On this text {_look(len(found.traced))} at the previous token. Of the {count(len(found.listed), 'head')} "
        f"whose kernel, as computed from the weights, peaks at offset 1, {_are(len(found.hits))} among those"
        f"{_rates(found.precision, found.recall)}."
    ]
    if found.fast_listed:
        area = (
            "" if found.fast_auc is None else f"; ranking all heads by that share has an AUC of {found.fast_auc:.2f}"
        )
        said.append(
            f"Of the {len(found.fast_listed)} with the largest share of Q and K in fast pairs, "
            f"{_are(len(found.fast_hits))}{_rates(found.fast_precision, found.fast_recall)}{area}."
        )
    if found.kernel is not None:
        said.append(
            "A head's kernel from the weights and its mean kernel on the text, offset by offset: rank correlation "
            f"{found.kernel:+.2f} in the median over {found.heads} heads."
        )
    columns = (
        Column("index", "index from the weights", "wrap"), Column("rho", "rank correlation", "+.2f"),
        Column("p", "p", ".2g"), Column("count", "heads"),
    )  # fmt: skip
    table = page.rows("agreement", rows)
    return [Paragraphs(tuple(said)), Listing("Weights against the text", "", table, columns)]


def _look(heads: int) -> str:
    return "1 head looks" if heads == 1 else f"{heads or 'no'} heads look"


def _are(heads: int) -> str:
    return "1 is" if heads == 1 else f"{heads or 'none'} are"


def _rates(precision: float | None, recall: float | None) -> str:
    known = {"precision": precision, "recall": recall}
    words = ", ".join(f"{name} {value:.2f}" for name, value in known.items() if value is not None)
    return f" ({words})" if words else ""
