"""No positional encoding at all."""

from __future__ import annotations

from dataclasses import replace

from toposcope.encodings.record import NONE
from toposcope.encodings.registry import Kind, Paper

PAPERS = {
    "kazemnejad2023nope": Paper(
        "Kazemnejad et al.",
        "The Impact of Positional Encoding on Length Generalization in Transformers",
        "NeurIPS",
        2023,
        "2305.19466",
    ),
}
KINDS = (
    Kind(
        "none",
        "no positional encoding; a causal mask alone tells order",
        "none",
        lambda sizes, given: replace(NONE, citations=("kazemnejad2023nope",)),
        aliases={"nope": {}, "no": {}},
        citations=("kazemnejad2023nope",),
    ),
)
