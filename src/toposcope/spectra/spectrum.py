"""Positional kernels of encodings at any context, beside one another, without a model."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toposcope.core.progress import Progress, silent
from toposcope.core.ranges import parse_length
from toposcope.core.result import Provenance, Result
from toposcope.encodings import EncodingSpec, Sizes, parse
from toposcope.spectra.encoding_spectrum import EncodingSpectrum, contexts_up_to, spectrum_of

TABLE_LENGTH = 8192  # positions of a learned or random table where none are asked for


@dataclass(frozen=True, kw_only=True, eq=False)
class SpectrumResult(Result):
    """Spectra of positional kernels, context by context."""

    kind = "spectrum"
    table = "encodings.points"

    contexts: tuple[int, ...]
    encodings: tuple[EncodingSpectrum, ...]


def spectrum(
    encodings: str | Sequence[str],
    context: int | str = 131072,
    *,
    head_dim: int = 64,
    num_heads: int = 8,
    width: int | None = None,
    head: int = 0,
    progress: Progress | None = None,
) -> SpectrumResult:
    """What encodings do to constant content: norm, effective rank and condition of their kernels, by context.

    `encodings` are written as "rope", "alibi", "rope:base=500000,scaling=yarn,factor=8"; the longest `context` may
    be "128k" or "1M". Encodings are built for heads of width `head_dim`, `num_heads` of them, in a model of
    `width` (default: their product); `head` chooses the head of a bias.
    """
    started = time.perf_counter()
    longest = parse_length(context)
    sizes = Sizes(width or num_heads * head_dim, num_heads, head_dim, longest, causal=True)
    specs = [parse(text) for text in ((encodings,) if isinstance(encodings, str) else encodings)]
    built = [_sized(spec, sizes).build(sizes) for spec in specs]
    for encoding in built:
        encoding.tables()  # refuse before the work, not after it
    contexts = contexts_up_to(longest)
    tell, found = progress or silent, list[EncodingSpectrum]()
    for spec, encoding in zip(specs, built, strict=True):
        tell(f"encodings: {spec} up to {longest:,} positions", len(found), len(built))
        found.append(spectrum_of(encoding, contexts, head, spec=str(spec)))
    tell("encodings", len(found), len(built))
    asked = {
        "encodings": [str(spec) for spec in specs], "context": longest, "head_dim": head_dim, "num_heads": num_heads,
        "width": sizes.width, "head": head,
    }  # fmt: skip
    return SpectrumResult(
        contexts=contexts,
        encodings=tuple(found),
        provenance=Provenance((), asked, time.perf_counter() - started),
    )


def _sized(spec: EncodingSpec, sizes: Sizes) -> EncodingSpec:
    """A table of position vectors has a length; where none is given, it is not made longer than real ones are."""
    if spec.kind.parameter("length") is None or "length" in spec.parameters:
        return spec
    return replace(spec, given=(("length", min(sizes.context, TABLE_LENGTH)), *spec.given))
