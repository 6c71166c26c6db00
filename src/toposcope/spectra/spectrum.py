"""Positional kernels of encodings at any context, beside one another, and what of it a trained model knows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from toposcope.checkpoints.installed import MODELS
from toposcope.checkpoints.opened import ModelLike, name_of, opened, subject
from toposcope.core.errors import BadEncoding, BadValue
from toposcope.core.files import present
from toposcope.core.printable import printable
from toposcope.core.progress import Progress, silent
from toposcope.core.ranges import parse_length
from toposcope.core.result import Provenance, Result, Subject
from toposcope.encodings import Encoding, EncodingSpec, Sizes, parse
from toposcope.encodings.changed import like_own
from toposcope.encodings.registry import listed
from toposcope.encodings.rotary import SCALING
from toposcope.encodings.scalings import STRETCHED_FROM_ORIGINAL
from toposcope.spectra.beyond import Beyond, beyond_training
from toposcope.spectra.encoding_spectrum import EncodingSpectrum, contexts_up_to, spectrum_of
from toposcope.spectra.own_encodings import OwnEncoding, own_encodings

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
    encodings: str | Sequence[str] = (),
    context: int | str = 131072,
    *,
    model: ModelLike = None,
    head_dim: int | None = None,
    num_heads: int | None = None,
    width: int | None = None,
    head: int = 0,
    trained: int | str | None = None,
    progress: Progress | None = None,
) -> SpectrumResult:
    """What encodings do to constant content: norm, effective rank and condition of their kernels, by context.

    `encodings` are written as "rope", "alibi", "rope:base=500000,scaling=yarn,factor=8"; the longest `context` may
    be "128k" or "1M". Encodings are built for heads of width `head_dim` (64), `num_heads` of them (8), in a model of
    `width` (default: their product); `head` chooses the head of a bias. With a `model` its own encodings stand first,
    and the others are built for its sizes, those that rotate with its base where they name none.

    `trained` is the context of training, from which `EncodingSpectrum.beyond` tells what is new at the longest one:
    by default the original context of a scaling, else what the model claims, else 8,192; said to be assumed. A
    scaling counts as put in after training, unless `trained` is above its original context.
    """
    started = time.perf_counter()
    longest = parse_length(context)
    written = listed(encodings)
    own, subjects = _own(model)
    if own and (head_dim, num_heads, width) != (None, None, None):
        raise BadValue("the sizes of heads are those of the model: leave head_dim, num_heads and width out.")
    if not own and not written:
        raise BadValue("a spectrum is of encodings, such as rope or alibi, or of a model's own: name one (--model).")
    heads, wide = num_heads or 8, head_dim or 64
    sizes = own[0].sizes(longest) if own else Sizes(width or heads * wide, heads, wide, longest, causal=True)
    specs = [like_own(_parsed(text), own[0].encoding) if own else _parsed(text) for text in written]
    taught = None if trained is None else parse_length(trained)
    usual = (own[0].trained if own else None) or TRAINED
    built = [_sized(spec, sizes, taught or usual).build(sizes) for spec in specs]
    for encoding in (*(each.encoding for each in own), *built):
        encoding.tables()  # refuse before the work, not after it
    contexts = contexts_up_to(longest)
    tell, found, all_ = progress or silent, list[EncodingSpectrum](), len(own) + len(built)
    for each in own:
        tell(f"encodings: {each.name} up to {longest:,} positions", len(found), all_)
        one = spectrum_of(each.encoding, contexts, head, spec=each.name)
        length = taught or each.trained or TRAINED
        found.append(replace(one, beyond=each.beyond(longest, length, assumed=taught is None, head=head)))
    for spec, encoding in zip(specs, built, strict=True):
        tell(f"encodings: {spec} up to {longest:,} positions", len(found), all_)
        one = spectrum_of(encoding, contexts, head, spec=str(spec))
        found.append(replace(one, beyond=_beyond(spec, encoding, sizes, taught, usual, head)))
    tell("encodings", len(found), all_)
    asked = {
        "encodings": [str(spec) for spec in specs], "context": longest, "head_dim": sizes.head_dim,
        "num_heads": sizes.heads, "width": sizes.width, "head": head, "trained": taught,
    }  # fmt: skip
    return SpectrumResult(
        contexts=contexts,
        encodings=tuple(found),
        provenance=Provenance(subjects, asked, time.perf_counter() - started),
    )


def _own(model: ModelLike) -> tuple[tuple[OwnEncoding, ...], tuple[Subject, ...]]:
    """The encodings of a model, and what it is; nothing where there is none."""
    if model is None:
        return (), ()
    with opened(model) as found:
        return own_encodings(found, name_of(found, model)), (subject(found, model),)


def _parsed(text: str) -> EncodingSpec:
    """The encoding that was written; a model's name in its place is told apart."""
    if text in {item.name for item in MODELS} or "/" in text.partition(":")[0] or present(text):
        given = printable(text, 80)
        raise BadEncoding(f"'{given}' is a model, no encoding: name it with --model {given} (in Python, model=).")
    return parse(text)


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


def _beyond(
    spec: EncodingSpec, encoding: Encoding, sizes: Sizes, trained: int | None, usual: int, head: int
) -> Beyond:
    """What is new at the longest context to a model that was trained before the encoding was scaled."""
    given = spec.parameters.get("original_context")
    original = given if isinstance(given, int) else None
    known = trained if trained is not None else original
    length = usual if known is None else known
    as_trained = "scaling" not in spec.parameters or (original is not None and length > original)
    before = encoding if as_trained else _unscaled(spec).build(sizes)
    return beyond_training(encoding, before, sizes.context, length, assumed=known is None, head=head)


def _unscaled(spec: EncodingSpec) -> EncodingSpec:
    """The same rotation before it was stretched; the proportional one, a layout of its own, loses its factor only."""
    proportional = spec.parameters.get("scaling") == "proportional"
    dropped = {"factor"} if proportional else {each.name for each in SCALING}
    return replace(spec, given=tuple(pair for pair in spec.given if pair[0] not in dropped))
