"""Positional kernels of encodings at any context, beside one another, and what of it a trained model knows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toposcope.core.progress import Progress, silent
from toposcope.core.ranges import parse_length
from toposcope.core.result import Provenance, Result
from toposcope.encodings import Encoding, EncodingSpec, Sizes, parse
from toposcope.encodings.rotary import SCALING
from toposcope.encodings.scalings import STRETCHED_FROM_ORIGINAL
from toposcope.spectra.beyond import Beyond, beyond_training
from toposcope.spectra.encoding_spectrum import EncodingSpectrum, contexts_up_to, spectrum_of

TABLE_LENGTH = 8192  # positions of a learned or random table where none are asked for
TRAINED = 8192  # positions of training, where nobody says how many


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
    trained: int | str | None = None,
    progress: Progress | None = None,
) -> SpectrumResult:
    """What encodings do to constant content: norm, effective rank and condition of their kernels, by context.

    `encodings` are written as "rope", "alibi", "rope:base=500000,scaling=yarn,factor=8"; the longest `context` may
    be "128k" or "1M". Encodings are built for heads of width `head_dim`, `num_heads` of them, in a model of
    `width` (default: their product); `head` chooses the head of a bias.

    `trained` is the context of training, from which `EncodingSpectrum.beyond` tells what is new at the longest one:
    by default the original context of a scaling, and else 8,192, said to be assumed. A scaling counts as put in after
    training, unless `trained` is above its original context.
    """
    started = time.perf_counter()
    longest = parse_length(context)
    sizes = Sizes(width or num_heads * head_dim, num_heads, head_dim, longest, causal=True)
    specs = [parse(text) for text in ((encodings,) if isinstance(encodings, str) else encodings)]
    taught = None if trained is None else parse_length(trained)
    built = [_sized(spec, sizes, taught or TRAINED).build(sizes) for spec in specs]
    for encoding in built:
        encoding.tables()  # refuse before the work, not after it
    contexts = contexts_up_to(longest)
    tell, found = progress or silent, list[EncodingSpectrum]()
    for spec, encoding in zip(specs, built, strict=True):
        tell(f"encodings: {spec} up to {longest:,} positions", len(found), len(built))
        one = spectrum_of(encoding, contexts, head, spec=str(spec))
        met = _beyond(spec, encoding, sizes, taught, head)
        found.append(replace(one, beyond=met))
    tell("encodings", len(found), len(built))
    asked = {
        "encodings": [str(spec) for spec in specs], "context": longest, "head_dim": head_dim, "num_heads": num_heads,
        "width": sizes.width, "head": head, "trained": taught,
    }  # fmt: skip
    return SpectrumResult(
        contexts=contexts,
        encodings=tuple(found),
        provenance=Provenance((), asked, time.perf_counter() - started),
    )


def _sized(spec: EncodingSpec, sizes: Sizes, trained: int) -> EncodingSpec:
    """The spec with what a model would say: how long its table is, and from which context its scaling stretches.

    A table of position vectors is not made longer than real ones are.
    """
    if spec.kind.parameter("length") is not None and "length" not in spec.parameters:
        return replace(spec, given=(("length", min(sizes.context, TABLE_LENGTH)), *spec.given))
    scaling = spec.parameters.get("scaling")
    if scaling not in (*STRETCHED_FROM_ORIGINAL, "dynamic") or "original_context" in spec.parameters:
        return spec
    return replace(spec, given=(*spec.given, ("original_context", trained)))


def _beyond(spec: EncodingSpec, encoding: Encoding, sizes: Sizes, trained: int | None, head: int) -> Beyond:
    """What is new at the longest context to a model that was trained before the encoding was scaled."""
    given = spec.parameters.get("original_context")
    original = given if isinstance(given, int) else None
    known = trained if trained is not None else original
    length = TRAINED if known is None else known
    as_trained = "scaling" not in spec.parameters or (original is not None and length > original)
    before = encoding if as_trained else _unscaled(spec).build(sizes)
    return beyond_training(encoding, before, sizes.context, length, assumed=known is None, head=head)


def _unscaled(spec: EncodingSpec) -> EncodingSpec:
    """The same rotation before it was stretched; the proportional one, a layout of its own, loses its factor only."""
    proportional = spec.parameters.get("scaling") == "proportional"
    dropped = {"factor"} if proportional else {each.name for each in SCALING}
    return replace(spec, given=tuple(pair for pair in spec.given if pair[0] not in dropped))
