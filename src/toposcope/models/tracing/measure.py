"""What the heads of a real model do on a text: position in their logits, and patterns in their attention.

The model runs on one sequence after the other; each attention is measured as it happens, one head at a time, and
nothing of it is kept but numbers. Per head, over sequences, median and quartiles of

* rho, erank_ratio, maj_gap, cap (3.1 to 3.4, 3.8): the logits against the same content without position;
* toeplitz, toeplitz_centred (3.5): how much of the visible logits depends on i - j alone;
* content, position, coupling (3.6): the split of their variance, by the factorial design. Where position was added to
  the input: gram_content, gram_mixed, gram_position, gram_cross, from means over sequences;
* the mean kernel (3.7), its peak and kernel_rho, its contraction at the sequence's length;
* scores and names of attention patterns (`models.tracing.patterns`), mean distance and entropy.

Of a few heads, the logits of the first sequence are kept as small pictures beside their Toeplitz part, and their
attention pair by pair (`models.tracing.attention`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from toposcope.checkpoints.spec import LayerSpec
from toposcope.core import memory
from toposcope.core.errors import BadValue
from toposcope.core.interpreters import HERE, Pool
from toposcope.core.progress import Progress, steps
from toposcope.core.result import Skipped
from toposcope.encodings import Encoding, EncodingSpec
from toposcope.models.content import Content, ContentReader
from toposcope.models.corpus import Corpus, Ids, batches, repeated
from toposcope.models.device import home
from toposcope.models.instrument import Call, Enough, Instrument, attached
from toposcope.models.load import Reference
from toposcope.models.sites import Site, checked_heads, checked_site
from toposcope.models.swap_encoding import built, swap_encoding
from toposcope.models.tracing.agreement import agreement, from_weights
from toposcope.models.tracing.attention import (
    WINDOW,
    AttentionWindow,
    HeadAttention,
    affordable,
    attention_of,
    labels,
    window_starts,
)
from toposcope.models.tracing.collect import AHEAD, HELD, NOT_ASKED, Collected, Only, sink_of
from toposcope.models.tracing.contraction import DENSE_LIMIT
from toposcope.models.tracing.head import in_input_only
from toposcope.models.tracing.logits import LogitPicture, block_rows, head_content, head_logits, picture
from toposcope.models.tracing.patterns import THRESHOLDS
from toposcope.models.tracing.result import HeadTrace, TraceResult, strongest
from toposcope.models.tracing.stream import Clouds

REPEATS, REPEATED_TOKENS = 2, 512  # sequences of repeated random tokens, and their greatest length
GIB = 2**30


def trace_corpus(
    model: Any,
    corpus: Corpus,
    *,
    layers: Sequence[int] | None = None,
    heads: Mapping[int, Sequence[int]] | None = None,
    dense_limit: int = DENSE_LIMIT,
    compare: bool = True,
    only: Only | None = None,
    seed: int = 0,
    encoding: str | EncodingSpec | None = None,
    logits: int | Sequence[tuple[int, int]] = 0,
    window: int | None = None,
    batch: int = 1,
    pool: Pool = HERE,
    clouds: Clouds | None = None,
    meanwhile: Callable[[], None] | None = None,
    progress: Progress | None = None,
) -> TraceResult:
    """Run a model (a `Reference`, or one of transformers' own) on sequences and measure its heads.

    `heads` limits the heads of the layers it names. `compare`: set the kernels of the weights beside those traced.
    `only` "patterns": measure what heads attend to and nothing else; "position": how much of the logits content and
    position make, and no induction; both are several times faster. `logits` names heads (layer, head) whose logits
    are kept as pictures, or is how many: then those in which position has the largest share. Their attention is kept
    pair by pair, and that of as many other heads as there is room for; `window` is the first token.
    `batch` sequences of one length run through the model together; they are measured one after the other.
    Heads are measured by `pool`, while the model goes on. `clouds` watch the passes over the sequences. `meanwhile`
    is called when all have been handed over, and before their numbers are waited for.
    """
    with attached(model) as instrument, ExitStack() as changed:
        reader = ContentReader.of(instrument)
        asked = range(len(instrument.sites)) if layers is None else layers
        chosen, skipped = _chosen([checked_site(instrument.sites, each) for each in asked], reader, heads or {})
        wanted = logits if isinstance(logits, int) else _traced(logits, chosen)
        used = {number: reader.encoding(instrument.sites[number]) for number in chosen}
        if encoding is not None:
            every = [(number, head) for number, some in chosen.items() for head in some]
            changed.enter_context(swap_encoding(model, encoding, heads=every))
            used = {number: built(encoding, reader, number) for number in chosen}
            compare = False
        compare = compare and only is None
        absolute = {number for number in chosen if in_input_only(used[number]) and only != "patterns"}
        averaged = absolute if len(corpus.sequences) > 1 else set()
        longest = max(len(ids) for ids in corpus.sequences)
        if chosen:
            _require_memory(instrument, reader, list(chosen), longest, dense_limit, bool(averaged), batch)
        again, no_repeats = ((), NOT_ASKED) if only == "position" else _repeats(corpus, _special(model), seed)
        passes = len(chosen) * (len(corpus.sequences) + len(again)) + len(averaged) * len(corpus.sequences)
        work = Collected(instrument, chosen, dense_limit, seed, only, pool)
        if no_repeats:
            work.lacks("induction", no_repeats)
        tick = steps(progress, "layers", passes)

        kept: dict[int, tuple[Content, Call]] = {}  # of the first sequence, where there is room for all its layers

        def measure(ids: Ids, content: Content, call: Call, output_BNHV: Any) -> None:
            work.measure(content, call, output_BNHV)
            if ids is corpus.sequences[0] and wanted and content.nbytes * len(chosen) <= HELD:
                kept[content.site.number] = content, call

        if averaged:
            for some in batches(corpus.sequences, batch):
                watch(instrument, reader, some, averaged, lambda _, content, *__: work.means.add(content), tick, used)
        with nullcontext(lambda sequences: None) if clouds is None else clouds.watching() as begin:
            for some in batches(corpus.sequences, batch) if chosen or clouds else ():
                begin(len(some))
                watch(instrument, reader, some, set(chosen), measure, tick, used, whole=clouds is not None)
        for some in batches(again, batch) if chosen else ():
            watch(instrument, reader, some, set(chosen), work.induction, tick, used)
        weights = from_weights(reader.view, chosen, longest) if compare and chosen else {}
        if meanwhile is not None:
            meanwhile()
        work.settle()
        found = [(number, head) for number in chosen if number not in work.lost for head in chosen[number]]
        rows = tuple(work.row(number, head) for number, head in found)
        pictured = (
            most_positional(rows, wanted) if isinstance(wanted, int) else [each for each in wanted if each in found]
        )
        shown = worth_showing(rows) if isinstance(wanted, int) else pictured
        pictures, windows = (
            _pictures(instrument, reader, corpus.sequences[0], pictured, shown, window, used, kept, _tokenizer(model))
            if pictured
            else ((), ())
        )
        return TraceResult(
            text=corpus.cut,
            sequences=len(corpus.sequences),
            tokens=longest,
            encoding=None if encoding is None else str(encoding),
            rebuilt=work.rebuilt,
            thresholds=dict(THRESHOLDS),
            patterns={name: tuple(each.name for each in strongest(rows, name)) for name in THRESHOLDS},
            agreement=agreement(weights, rows, work.kernels) if compare and rows else None,
            null_share=len(corpus.sequences) ** -2 if averaged else None,
            gaps=work.gaps(),
            heads=rows,
            logits=pictures,
            attention=windows,
            skipped=(*skipped, *(Skipped(f"layer {number}", why) for number, why in work.lost.items())),
        )


Visit = Callable[
    [Ids, Content, Call, Any], None
]  # a sequence, its content in a layer, the heads' outputs (1, N, H, V)


def watch(
    instrument: Instrument,
    reader: ContentReader,
    sequences: Sequence[Ids],
    wanted: set[int],
    visit: Visit,
    tick: Callable[[], None],
    used: Mapping[int, Encoding],
    *,
    whole: bool = False,
) -> None:
    """Run the model on sequences of one length and show the content, call and heads' outputs of the wanted layers.

    `used` is the encoding that acts on each layer's content, its own or another one. The pass ends with the last of
    these layers, unless the `whole` of it is wanted.
    """
    import torch

    held: dict[int, Any] = {}

    def enters(site: Site, x_BND: Any) -> None:
        if site.number in wanted:
            held[site.number] = x_BND

    def leaves(call: Call, output_BNHV: Any) -> None:
        number = call.site.number
        if number in wanted:
            x_BND = held.pop(number) if call.query_BHNR is None else None
            for row, ids in enumerate(sequences):
                content = reader.of_call(call, row) if x_BND is None else reader.of_input(call.site, x_BND, row)
                visit(ids, replace(content, encoding=used[number]), call, output_BNHV[row : row + 1])
                tick()
        if not whole and number == max(wanted):
            raise Enough

    inputs = _inputs(instrument, reader, sequences)
    instrument.observers.append(leaves)
    instrument.input_observers.append(enters)
    try:
        with torch.no_grad(), suppress(Enough):
            instrument.model(**inputs)
    finally:
        instrument.observers.remove(leaves)
        instrument.input_observers.remove(enters)


def outputs(instrument: Instrument, ids: Ids) -> list[Any]:
    """What the heads of every layer hand on, on one sequence: (1, N, H, V), where they are."""
    import torch

    found: list[Any] = []

    def note(call: Call, output_BNHV: Any) -> None:
        found.append(output_BNHV.detach())

    instrument.observers.append(note)
    try:
        with torch.no_grad():
            instrument.model(**_inputs(instrument, ContentReader.of(instrument), [ids]))
    finally:
        instrument.observers.remove(note)
    return found


def most_positional(rows: Sequence[HeadTrace], count: int) -> list[tuple[int, int]]:
    """The heads in which position has the largest share, by the best measure there is; the largest first."""

    def share(row: HeadTrace) -> float:
        found = row.median("toeplitz") if row.positional is None else row.positional
        return 0.0 if found is None else found

    return [(row.layer, row.head) for row in sorted(rows, key=lambda row: -share(row))[:count]]


def worth_showing(rows: Sequence[HeadTrace]) -> list[tuple[int, int]]:
    """All heads, those first that are worth seeing: by turns the most positional and each pattern's strongest."""
    ranked = [most_positional(rows, len(rows))]
    ranked += [[(row.layer, row.head) for row in strongest(tuple(rows), name)] for name in THRESHOLDS]
    turns = zip_longest(*(each for each in ranked if each))
    return list(dict.fromkeys(each for turn in turns for each in turn if each is not None))


# -------------------------------------------------------------------- inside
def _inputs(instrument: Instrument, reader: ContentReader, sequences: Sequence[Ids]) -> dict[str, Any]:
    """Sequences of one length as the model takes them, without a cache."""
    import torch

    tokens = torch.from_numpy(np.stack(sequences)).to(home(instrument.model))
    inputs: dict[str, Any] = {"input_ids": tokens}
    if any(site.cross for site in instrument.sites):
        inputs["decoder_input_ids"] = tokens
    elif any(layer.spec.causal for layer in reader.layers) and hasattr(instrument.model.config, "use_cache"):
        inputs["use_cache"] = False
    return inputs


def _pictures(
    instrument: Instrument,
    reader: ContentReader,
    ids: Ids,
    pictured: Sequence[tuple[int, int]],
    shown: Sequence[tuple[int, int]],
    window: int | None,
    used: Mapping[int, Encoding],
    kept: Mapping[int, tuple[Content, Call]],
    tokenizer: Any,
) -> tuple[tuple[LogitPicture, ...], tuple[AttentionWindow, ...]]:
    """Pictures of some heads' logits, and the attention of as many as fit.

    They are made of what was `kept` when the sequence ran; without all the layers, it runs once more.
    """
    starts = window_starts(len(ids), window)
    causal = all(layer.spec.causal for layer in reader.layers)
    shown = shown[: affordable(len(ids), len(starts), causal)]
    found: dict[tuple[int, int], LogitPicture] = {}
    attended: dict[tuple[int, int], list[HeadAttention]] = {}

    def visit(ids: Ids, content: Content, call: Call, output_BNHV: Any) -> None:
        number = content.site.number
        for layer, head in pictured:
            if layer == number:
                found[layer, head] = picture(number, head_logits(head_content(content, head)))
        for layer, head in shown:
            if layer == number:
                attended[layer, head] = list(attention_of(content, head, sink_of(call, head), starts))

    wanted = {layer for layer, _ in (*pictured, *shown)}
    if wanted <= kept.keys():
        for number in sorted(wanted):
            visit(ids, *kept[number], None)
    else:
        watch(instrument, reader, [ids], wanted, visit, lambda: None, used)
    windows = tuple(
        AttentionWindow(
            first=first,
            length=len(ids),
            tokens=labels(tokenizer, ids[first : first + WINDOW]),
            heads=tuple(attended[each][number] for each in sorted(attended)),
        )
        for number, first in enumerate(starts)
    )
    return tuple(found[each] for each in pictured), windows


def _tokenizer(model: Any) -> Any:
    return model.tokenizer if isinstance(model, Reference) else None


def _traced(logits: Sequence[tuple[int, int]], chosen: Mapping[int, tuple[int, ...]]) -> list[tuple[int, int]]:
    """The heads whose logits are asked for, if all of them are traced."""
    for layer, head in logits:
        if head not in chosen.get(layer, ()):
            raise BadValue(f"the logits of head {layer}.{head} are asked for, but that head is not traced.")
    return list(dict.fromkeys(logits))


def _chosen(
    sites: Sequence[Site], reader: ContentReader, heads: Mapping[int, Sequence[int]]
) -> tuple[dict[int, tuple[int, ...]], list[Skipped]]:
    """The heads to trace by layer, and the layers that cannot be."""
    found: dict[int, tuple[int, ...]] = {}
    skipped = []
    for site in sites:
        if site.cross:
            skipped.append(
                Skipped(f"layer {site.number}", "cross-attention: queries and keys count different tokens")
            )
        elif not reader.encoding(site).exact_tables:
            skipped.append(Skipped(f"layer {site.number}", "its encoding depends on content and has no tables"))
        else:
            wanted = heads.get(site.number, range(site.heads))
            found[site.number] = checked_heads(site, tuple(wanted))
    return {number: wanted for number, wanted in found.items() if wanted}, skipped


def _repeats(corpus: Corpus, special: tuple[int, ...], seed: int) -> tuple[tuple[Ids, ...], str | None]:
    """Repeated random tokens, fewer and shorter than the text; or why there are none."""
    short = replace(corpus, sequences=tuple(ids[:REPEATED_TOKENS] for ids in corpus.sequences[:REPEATS]))
    try:
        return repeated(short, keep=special, seed=seed).sequences, None
    except BadValue as error:
        return (), str(error)


def _special(model: Any) -> tuple[int, ...]:
    if not isinstance(model, Reference):
        return ()
    return tuple(getattr(model.tokenizer, "all_special_ids", ()))


def _require_memory(
    instrument: Instrument,
    reader: ContentReader,
    layers: list[int],
    tokens: int,
    dense_limit: int,
    means: bool,
    batch: int,
) -> None:
    """Refuse too long a text before the machine is out of memory."""
    specs = [reader.layers[number].spec for number in layers]
    config = getattr(instrument.model, "config", None)
    eager = str(getattr(config, "_attn_implementation", "")).endswith("eager")
    parts = memory_needed(
        specs,
        tokens,
        inner=_inner_width(config, specs[0].width),
        written_out=eager or instrument.sites[layers[0]].route == "hooks",
        dense_limit=dense_limit,
        means=means,
    )
    if home(instrument.model).type == "cpu":
        parts["forward pass"] *= batch
    else:
        del parts["forward pass"]  # it takes another memory than ours
    total, free = sum(parts.values()), memory.available()
    if free is None or total <= free:
        return
    most = max(parts, key=lambda name: parts[name])
    raise BadValue(
        f"tracing sequences of {tokens} tokens needs about {total / GIB:.1f} GiB (most of it, "
        f"{parts[most] / GIB:.1f} GiB, for: {most}), and {free / GIB:.1f} GiB are free. "
        "Use fewer tokens (--tokens), fewer layers (--layers), or a model loaded with attention 'sdpa'."
    )


def memory_needed(
    specs: Sequence[LayerSpec], tokens: int, *, inner: int, written_out: bool, dense_limit: int, means: bool
) -> dict[str, int]:
    """Bytes by purpose, on the safe side: the forward pass, one layer's content, one head's matrices, means.

    `inner` is the width inside the MLP, `written_out` whether the model holds its attention of all heads at once.
    """
    width, heads = max(spec.width for spec in specs), max(spec.heads for spec in specs)
    channels = max(spec.heads * (2 * spec.head_dim + spec.value_width) for spec in specs)
    square = tokens * tokens
    attention = 12 * heads * square if written_out else 5 * square * any(spec.reach is not None for spec in specs)
    dense = 8 * 6 * square if tokens <= dense_limit else 0
    return {
        "forward pass": 4 * tokens * (8 * width + 3 * inner + 2 * channels) + attention,
        "queries and keys of a layer": 3 * 8 * tokens * channels,
        "heads that wait": (1 + AHEAD) * (8 * 8 * tokens * block_rows(tokens) + dense),
        "position means": sum(2 * 8 * tokens * spec.heads * spec.head_dim for spec in specs) if means else 0,
    }


def _inner_width(config: Any, width: int) -> int:
    """The width inside the MLP, by whatever name the configuration has for it."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    said = [getattr(text, name, None) for name in ("intermediate_size", "ffn_dim", "n_inner", "d_ff")]
    return max([value for value in said if isinstance(value, int)], default=4 * width)
