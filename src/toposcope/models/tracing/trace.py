"""`trace`: a model on a text, head by head, and its tokens through depth."""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from toposcope.checkpoints import installed, load
from toposcope.checkpoints.families.lab import model_directory
from toposcope.checkpoints.live import view
from toposcope.core.cluster import cores, one_thread
from toposcope.core.errors import BadValue
from toposcope.core.files import present
from toposcope.core.interpreters import HERE, InterpreterLost, Interpreters, Pool
from toposcope.core.progress import Progress, duration_range
from toposcope.core.ranges import parse_heads, parse_range, written_heads, written_layers
from toposcope.core.result import Provenance, Skipped, Subject
from toposcope.encodings import parse
from toposcope.encodings.registry import listed
from toposcope.models.corpus import RANDOM, Corpus, drawn
from toposcope.models.device import (
    Placement,
    computation,
    memory_told,
    placement,
    require_batch,
    running_on,
    with_doubts,
)
from toposcope.models.instrument import attached
from toposcope.models.laboratory import laboratory
from toposcope.models.load import Reference
from toposcope.models.rounding import is_rounded, measured, relative
from toposcope.models.running import RunnableLike, on_text, running, running_subject
from toposcope.models.sites import Site, checked_heads, checked_site
from toposcope.models.tracing import SEQUENCES, TOKENS
from toposcope.models.tracing.contraction import DENSE_LIMIT
from toposcope.models.tracing.depth import correlations, through_depth
from toposcope.models.tracing.foreseen import SLOWEST, TraceTime, pace, seconds
from toposcope.models.tracing.hidden import hidden_states
from toposcope.models.tracing.measure import outputs, trace_corpus
from toposcope.models.tracing.result import TraceResult
from toposcope.models.tracing.stream import Stream, follow, own_clouds
from toposcope.models.tracing.verify import verify as verified_heads

_log = logging.getLogger("toposcope")
ROUNDED = "the heads' outputs in a layer, relative to their size"
MEASURES = "toposcope.models.tracing.collect"  # what those interpreters begin with
LARGE = 50_000_000  # bytes of a model's files: with so large a model most texts take longer than `PATIENCE`
PATIENCE = 5  # seconds after which one wants to know how long it takes
PICTURED = 4  # heads whose logits are kept when nobody says which: the most positional ones


def trace(
    model: RunnableLike,
    text: str | Path | None = None,
    *,
    tokens: int = TOKENS,
    sequences: int = SEQUENCES,
    begin: int = 0,
    lines: bool = False,
    layers: str | int | Sequence[int] | None = None,
    heads: str | Sequence[tuple[int, int]] | None = None,
    dense_limit: int = DENSE_LIMIT,
    encoding: str | None = None,
    logits: str | None = None,
    window: int | None = None,
    depth: bool = False,
    depth_encoding: str | Sequence[str] = (),
    verify: bool = False,
    jobs: int | None = None,
    seed: int = 0,
    tokenizer: Any = None,
    device: str | None = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    batch: int = 1,
    progress: Progress | None = None,
) -> TraceResult:
    """On a text: what position does to each head's logits, and what the head attends to.

    `model` is a name, a path, or a loaded model of transformers (with its `tokenizer`, unless that lies in the files
    it was loaded from); `text` a file, a name of `toposcope ls texts` (default: wiki), or "random": tokens drawn by
    Zipf's law, which need no tokenizer. A model of the laboratory is given sentences of its own task. `layers`
    ("0-3,7") and `heads` ("3.2,5.0-3"; "0-3": of every layer) limit what is traced; up to `dense_limit` tokens all
    singular values are computed, beyond it norms only; `encoding` is put into the traced heads in place of their own;
    `logits` names heads whose logits are pictured, and whose attention is kept with its tokens ("none": of no head),
    on a `window` of the first sequence that begins at this token.

    Tokens are followed through the layers with the model as it is, with positions off, and under each
    `depth_encoding`. `depth` sets the first of them beside the flow; `verify` lets every certified head act alone
    on the tokens that really enter it, beside its verdict. Long work is done by `jobs` processes beside this one
    (default: one per core; 1: by none). `batch`
    sequences of one length are run together; `device`, `dtype` and `device_map` say where a model is loaded to, and
    in which precision (docs/devices.md).
    """
    started = time.perf_counter()
    layers, heads = written_layers(layers), written_heads(heads)
    spec = None if encoding is None else parse(encoding)  # complain before the model is loaded
    pictured = PICTURED if logits is None else [] if logits == "none" else parse_heads(logits)
    if encoding is not None and (depth or verify):
        raise BadValue("tokens are followed through depth under the model's own encoding: leave `encoding` out.")
    others = [parse(each) for each in listed(depth_encoding)]
    later = [name for name, given in (("--depth", depth), ("--verify", verify)) if given]
    many = min(jobs or cores(), cores())
    with ExitStack() as stack:
        with _uncollected():
            place = placement(device, dtype, device_map)
            begun = stack.enter_context(_begun(model, jobs or cores()))  # they start while the model is loaded
            if begun is not None:
                stack.enter_context(_fewer_threads())
            reference, corpus = _opened(model, text, tokens, sequences, begin, lines, seed, place, tokenizer)
        asked = {
            "text": corpus.name, "tokens": tokens, "sequences": sequences, "begin": begin, "lines": lines,
            "layers": layers, "heads": heads, "dense_limit": dense_limit, "encoding": encoding, "logits": logits,
            "window": window, "depth": depth, "depth_encoding": [str(each) for each in others], "verify": verify,
            "seed": seed, "device": device, "dtype": dtype, "device_map": device_map, "batch": require_batch(batch),
        }  # fmt: skip
        runs = reference.model if isinstance(reference, Reference) else reference
        stack.enter_context(memory_told(batch))
        unsure = stack.enter_context(running_on(runs))
        instrument = stack.enter_context(attached(reference))
        numbers = parse_range(layers, len(instrument.sites))
        chosen = heads_by_layer(heads, instrument.sites, numbers)
        every: Mapping[int, int | Sequence[int]] = chosen or {n: instrument.sites[n].heads for n in numbers}
        expected = _foretold(runs, corpus, every, dense_limit, streams=2 + len(others), jobs=many, later=later)
        left = TraceTime(expected)
        with _loss_told(), _pool(begun, jobs or cores(), expected) as pool:
            clouds = own_clouds(instrument, corpus, pool) if spec is None else None  # one pass for heads and tokens

            def rest() -> tuple[Subject, tuple[tuple[Stream, ...], tuple[Skipped, ...]]]:
                """What needs the model as it is, and not the heads' numbers."""
                follows = follow(reference, corpus, others, seen=clouds, batch=batch, pool=pool, progress=progress)
                about = running_subject(reference, model)
                if isinstance(pool, Interpreters) and (words := left.look(pool.answered, pool.asked)):
                    _log.info(words)
                return about, follows

            done: list[Any] = []
            found = trace_corpus(
                reference, corpus, layers=numbers if chosen is None else sorted(chosen), heads=chosen,
                dense_limit=dense_limit, seed=seed, encoding=spec, logits=pictured, window=window, batch=batch,
                pool=pool, clouds=clouds, meanwhile=None if spec else lambda: done.append(rest()), progress=progress,
            )  # fmt: skip
            subject, (streams, not_followed) = done[0] if done else rest()
        found = replace(found, stream=streams, skipped=(*found.skipped, *not_followed))
        ran = computation(runs)
        if is_rounded(runs):
            ran = measured(ran, runs, lambda: outputs(instrument, corpus.sequences[0]), relative, ROUNDED)
    ran = with_doubts(ran, unsure)
    if depth or verify:
        workers = (jobs or cores()) if isinstance(model, str | Path) else None
        with memory_told(batch), _loss_told():
            found = _followed(found, reference, corpus, numbers, depth, verify, workers, progress)
    return replace(found, provenance=Provenance((subject,), asked, time.perf_counter() - started, ran=ran))


def heads_by_layer(
    text: str | None, sites: Sequence[Site], layers: Sequence[int]
) -> dict[int, tuple[int, ...]] | None:
    """Heads by layer: '3.2,5.0-3' is head 2 of layer 3 and 0 to 3 of layer 5, '0-3' those of every given layer."""
    if text is None or text.strip().lower() == "all":
        return None
    chosen: dict[int, set[int]] = {}
    for part in text.split(","):
        layer, dot, numbers = part.strip().rpartition(".")
        if dot and not layer.isdecimal():
            raise BadValue(f"'{part.strip()}' is not a selection of heads. Write layer.head, such as 3.2,5.0-3.")
        for each in [int(layer)] if dot else layers:
            site = checked_site(tuple(sites), each)
            if each not in layers:
                raise BadValue(f"head {part.strip()} is in layer {each}, which --layers leaves out.")
            if numbers.isdecimal():
                checked_heads(site, (int(numbers),))
            chosen.setdefault(each, set()).update(parse_range(numbers, site.heads, "head"))
    return {layer: tuple(sorted(numbers)) for layer, numbers in chosen.items()}


@contextmanager
def _uncollected() -> Iterator[None]:
    """No search for garbage, of which large libraries make none while they are imported: it takes a second."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _begun(model: RunnableLike, jobs: int) -> AbstractContextManager[Interpreters | None]:
    """The other interpreters, started before a model that is large enough to need them is loaded."""
    if jobs == 1 or not sys.executable or not isinstance(model, str | Path):
        return nullcontext()
    path = installed.find(str(model)).path() if installed.is_known(str(model)) else Path(model)
    if path is None or not present(path):
        return nullcontext()
    files = [path] if path.is_file() else [each for each in path.iterdir() if each.is_file()]
    if sum(each.stat().st_size for each in files) < LARGE:
        return nullcontext()
    return Interpreters(jobs, ready=MEASURES)


@contextmanager
def _pool(begun: Interpreters | None, jobs: int, expected: float) -> Iterator[Pool]:
    """Other interpreters for heads and clouds, where it takes long; products here on one thread then."""
    if jobs == 1 or expected <= PATIENCE or not sys.executable:
        yield HERE
        return
    with one_thread(), _fewer_threads(), begun or Interpreters(jobs, ready=MEASURES) as pool:
        yield pool


@contextmanager
def _fewer_threads() -> Iterator[None]:
    """Half of the cores for the model, while other processes need theirs."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(max(1, min(before, cores() // 2)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _loss_told() -> Iterator[None]:
    try:
        yield
    except InterpreterLost as error:
        raise BadValue(f"a process of this trace {error}. If memory was short, trace with --jobs 1.") from None


def _foretold(
    model: Any,
    corpus: Corpus,
    heads: Mapping[int, int | Sequence[int]],
    dense_limit: int,
    streams: int,
    jobs: int,
    later: Sequence[str],
) -> float:
    """Seconds that it will take at best; a range is told where that is longer than one likes to wait without knowing.

    What comes `later` is not among them: how long flows take depends on how stiff they are.
    """
    count = sum(each if isinstance(each, int) else len(each) for each in heads.values())
    lengths = [len(ids) for ids in corpus.sequences]
    size = sum(each.numel() for each in model.parameters())
    expected = seconds(
        count, lengths, dense_limit=dense_limit, parameters=size, slower=pace() / jobs, streams=streams
    )
    if expected > PATIENCE:
        things = (f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((count, "head"), (len(lengths), "sequence")))
        after = f"; {' and '.join(later)} after that" if later else ""
        span = duration_range(expected, SLOWEST * expected)
        _log.info("the model is loaded; %s will take about %s%s", " on ".join(things), span, after)
    return expected


def _opened(
    model: RunnableLike,
    text: str | Path | None,
    tokens: int,
    sequences: int,
    begin: int,
    lines: bool,
    seed: int,
    place: Placement,
    tokenizer: Any,
) -> tuple[Any, Corpus]:
    """The model as it runs, and the sequences that it is traced on."""
    small = model_directory(model) if isinstance(model, str | Path) else None
    if small is not None:
        if place.device_map is not None or place.dtype not in ("auto", "float32"):
            raise BadValue(
                "a model of the laboratory is small: it runs whole, in float32. Leave dtype and the map out."
            )
        found, corpus = laboratory().with_sequences(small, None if text is None else str(text), sequences, seed)
        return found.to(place.device), corpus
    if text == RANDOM:
        if begin or lines:
            raise BadValue("begin and lines choose from a text, and 'random' is none. Leave them out.")
        reference = running(model, attention="sdpa", tokenizer=tokenizer, reads_text=False, place=place)
        return reference, drawn(reference, tokens=tokens, count=sequences, seed=seed)
    return on_text(
        model, "wiki" if text is None else text, tokens=tokens, sequences=sequences, begin=begin, lines=lines,
        place=place, tokenizer=tokenizer,
    )  # fmt: skip


def _followed(
    found: TraceResult,
    reference: Any,
    corpus: Corpus,
    layers: Sequence[int],
    depth: bool,
    verify: bool,
    jobs: int | None,
    progress: Progress | None,
) -> TraceResult:
    """The same with the first tokens followed through depth; `jobs` is None for a model that is not in files."""
    runs = reference.model if isinstance(reference, Reference) else reference
    hidden = hidden_states(runs, corpus)
    with nullcontext(view(runs)) if jobs is None else load(reference.path) as model:
        found = replace(found, depth_text=hidden.cut)
        if depth:
            rows = through_depth(model, hidden, layers, progress)
            found = replace(found, depth=rows, depth_correlations=correlations(rows))
        if verify:
            runs, verdicts = verified_heads(model, hidden, layers=layers, jobs=jobs or 1, progress=progress)
            found = replace(found, verified=runs, verdicts=verdicts)
    return found
