"""The options of commands that run a model on a text, the same words for each."""

from __future__ import annotations

from typing import Annotated

import typer

from toposcope.core.ranges import parse_length


def _tokens(written: str) -> int:
    return parse_length(written, least=2, what="length for --tokens")


TextOption = Annotated[
    str, typer.Option("--text", metavar="FILE|NAME", help="A text file, or a name from 'toposcope ls texts'.")
]
TokensOption = Annotated[
    int, typer.Option("--tokens", metavar="N", parser=_tokens, help="Tokens per sequence, such as 512 or 2k.")
]
SequencesOption = Annotated[int, typer.Option("--sequences", metavar="N", min=1, help="Number of sequences.")]
BeginOption = Annotated[int, typer.Option("--begin", metavar="N", min=0, help="First character of the text to use.")]
LinesOption = Annotated[bool, typer.Option("--lines", help="One sequence per line of the text.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Random seed.")]
