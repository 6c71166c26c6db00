"""Tokens through depth, against plain loops over the states of a model, and on models whose answer is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.models.making import randomise
from tests.unit.report.making import traced
from toposcope.core.errors import BadConfig
from toposcope.core.interpreters import HERE
from toposcope.core.result import Skipped
from toposcope.models.corpus import Corpus
from toposcope.models.instrument import attached
from toposcope.models.tracing.measure import trace_corpus
from toposcope.models.tracing.result import TraceResult
from toposcope.models.tracing.stream import (
    LEAST_TURN,
    TURN_SHARE,
    WHAT,
    Mean,
    Stream,
    StreamState,
    follow,
    measure_cloud,
    own_clouds,
    phases,
)
from toposcope.report.views.trace_stream import MOSTLY, largest_token, steepest, stream_summary

torch = pytest.importorskip("torch", reason="running a model needs torch: pip install torch")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")

LAYERS, WIDTH, WORDS = 3, 24, 40


# ------------------------------------------------------------------ a plain loop
def plain(x_ND: np.ndarray) -> dict[str, float]:
    """The measures written out: every pair, all singular values."""
    unit = x_ND / np.linalg.norm(x_ND, axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(len(unit)) for j in range(len(unit)) if i != j]
    values = np.linalg.svd(x_ND, compute_uv=False)
    share = values[values > 0] / values.sum()
    squares = (x_ND**2).sum(axis=1)
    away = ((x_ND - x_ND.mean(axis=0)) ** 2).sum(axis=1)
    return {
        "cosine": float(np.mean(pairs)),
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "dispersion": float(np.sqrt(away.mean())),
        "relative_dispersion": float(np.sqrt(away.sum() / squares.sum())),
        "norm": float(np.sqrt(squares.mean())),
        "largest": float(squares.max() / squares.sum()),
    }


def assert_states(stream: Stream, expected: list[list[Any]], rel: float = 1e-9) -> None:
    """Every state of a stream against tensors (1, N, D), by place and sequence."""
    assert len(stream.states) == len(expected)
    before: list[dict[str, float]] = []
    for state, tensors in zip(stream.states, expected, strict=True):
        clouds = [plain(each[0].double().numpy()) for each in tensors]
        for name in clouds[0]:
            values = [each[name] for each in clouds]
            mean: Mean = getattr(state, name)
            assert mean.mean == pytest.approx(np.mean(values), rel=rel, abs=rel), (state.layer, state.part, name)
            spread = 4.302652729911275 * np.std(values, ddof=1) / 3**0.5  # Student's, of three sequences
            assert mean.half_width == pytest.approx(spread, rel=100 * rel, abs=100 * rel)
        if before:
            assert state.cosine_change is not None
            assert state.norm_change is not None
            moved = [now["cosine"] - then["cosine"] for then, now in zip(before, clouds, strict=True)]
            grown = [np.log(now["norm"] / then["norm"]) for then, now in zip(before, clouds, strict=True)]
            assert state.cosine_change.mean == pytest.approx(np.mean(moved), rel=rel, abs=rel)
            assert state.norm_change.mean == pytest.approx(np.mean(grown), rel=rel, abs=rel)
        before = clouds


def corpus_of(lengths: tuple[int, ...] = (14, 14, 11), seed: int = 0) -> Corpus:
    rng = np.random.default_rng(seed)
    return Corpus("random", tuple(rng.integers(3, WORDS, size=length) for length in lengths), "random tokens")


def seen(model: Any, ids: np.ndarray, hooks: list[tuple[str, str]], **more: Any) -> list[Any]:
    """What modules are given ("in") or give ("out") in a forward pass, by their names; then the hidden states."""
    found: dict[int, Any] = {}
    handles = []
    for at, (name, side) in enumerate(hooks):
        module = model.get_submodule(name)

        def note(_: Any, args: Any, kwargs: Any, out: Any, at: int = at, side: str = side) -> None:
            out = out[0] if isinstance(out, tuple) else out
            given = args[0] if args else kwargs["hidden_states"]
            found[at] = (given if side == "in" else out).clone()

        handles.append(module.register_forward_hook(note, with_kwargs=True))
    with torch.no_grad():
        states = model(input_ids=torch.from_numpy(ids)[None], output_hidden_states=True, **more).hidden_states
    for handle in handles:
        handle.remove()
    return [*(found[at] for at in range(len(hooks))), *states]


# ------------------------------------------------------------------ families
def made(kind: str, **changes: Any) -> Any:
    sizes: dict[str, Any] = {
        "hidden_size": WIDTH, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": LAYERS, "max_position_embeddings": 32, "vocab_size": WORDS, "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    gpt: dict[str, Any] = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 3, "rotary_dim": 4, "vocab_size": WORDS}
    given = {"GPTJ": {**gpt, "n_positions": 32, "bos_token_id": 1, "eos_token_id": 2}}.get(kind, sizes)
    given = {**given, "head_dim": 6} if kind == "Gemma2" else given
    config = getattr(transformers, f"{kind}Config")(**{**given, **changes})
    model = getattr(transformers, f"{kind}Model")(config).eval()
    randomise(model)
    return model


def middle(kind: str, layer: int) -> list[tuple[str, str]]:
    """What shows the states inside a layer, by the names of its modules."""
    return {
        "Llama": [(f"layers.{layer}.post_attention_layernorm", "in")],
        "Gemma2": [(f"layers.{layer}.pre_feedforward_layernorm", "in")],
        "GPTJ": [(f"h.{layer}.attn.out_proj", "out")],
        "Bert": [
            (f"encoder.layer.{layer}.attention.output.LayerNorm", "in"),
            (f"encoder.layer.{layer}.attention.output.LayerNorm", "out"),
            (f"encoder.layer.{layer}.output.LayerNorm", "in"),
        ],
    }[kind]


ORDERS = {"Llama": "sequential", "Gemma2": "sequential", "GPTJ": "parallel", "Bert": "post-norm"}


@pytest.mark.parametrize("kind", list(ORDERS))
def test_every_place_is_that_of_a_plain_loop(kind: str) -> None:
    model, corpus = made(kind), corpus_of()
    streams, left_out = follow(model, corpus, batch=2)
    assert not left_out
    own, off = streams
    assert (own.encoding, off.encoding, own.order) == ("own", "none", ORDERS[kind])
    assert (own.sequences, own.tokens) == (3, 14)
    hooks = [hook for layer in range(LAYERS) for hook in middle(kind, layer)]
    last = {"Llama": "layers", "Gemma2": "layers", "GPTJ": "h", "Bert": "encoder.layer"}[kind]
    hooks.append((f"{last}.{LAYERS - 1}", "out"))
    per_layer, expected = len(middle(kind, 0)), []
    for ids in corpus.sequences:
        found = seen(model, ids, hooks)
        inside, out, states = found[: len(hooks) - 1], found[len(hooks) - 1], found[len(hooks) :]
        entering = states[:LAYERS]
        row = [entering[0]]
        for layer in range(LAYERS):
            parts = inside[layer * per_layer : (layer + 1) * per_layer]
            row += [entering[layer].double() + parts[0].double()] if kind == "GPTJ" else parts
            row.append(entering[layer + 1] if layer + 1 < LAYERS else out)
        expected.append(row if kind == "Bert" else [*row, states[-1]])
    assert_states(own, [list(place) for place in zip(*expected, strict=True)])
    after = own.after_layers
    assert [state.layer for state in after] == [None, *range(LAYERS)]
    parts = [own.total(part) for part in ("attention", "mlp", "norm")]
    moved = after[-1].cosine.mean - after[0].cosine.mean
    assert sum(each for each in parts if each is not None) == pytest.approx(moved)


def test_positions_off_are_positions_at_0() -> None:
    """Rotated to position 0, every token is as it would be without a rotation."""
    model, corpus = made("Llama"), corpus_of()
    streams, _ = follow(model, corpus, ["none", "alibi"])
    assert [each.encoding for each in streams] == ["own", "none", "alibi"]
    own, off, alibi = streams
    rows = []
    for ids in corpus.sequences:
        at_0 = torch.zeros(1, len(ids), dtype=torch.long)
        rows.append(seen(model, ids, [], position_ids=at_0)[-1])
    assert off.final is not None
    assert own.final is not None
    expected = np.mean([plain(each[0].double().numpy())["cosine"] for each in rows])
    assert off.final.cosine.mean == pytest.approx(expected, rel=1e-5)
    assert off.final.difference.mean == pytest.approx(off.final.cosine.mean - own.final.cosine.mean)
    assert own.final.difference is None
    assert abs(alibi.final.difference.mean) > 1e-4


def test_scaled_branches_are_found() -> None:
    from toposcope.models.instrument import attached
    from toposcope.models.tracing.residual import residual_of

    model = made("Granite", residual_multiplier=0.22)
    with attached(model) as instrument:
        found = residual_of(instrument, corpus_of().sequences[0])
    for split in found.splits:
        assert split is not None
        assert (split.attention_factor, split.mlp_factor) == pytest.approx((0.22, 0.22), rel=1e-5)


def test_a_layer_that_does_not_add_up_stays_whole() -> None:
    """Of two layers one stretches its output by a hundredth: nothing is guessed about it."""
    model, corpus = made("Llama"), corpus_of((9,))
    model.layers[1].register_forward_hook(lambda _, __, out: 1.01 * out)
    (own, _), left_out = follow(model, corpus)
    assert not left_out
    assert own.order == "sequential and whole"
    assert [(state.layer, state.part) for state in own.states] == [
        (None, "input"), (0, "attention"), (0, "mlp"), (1, "layer"), (2, "attention"), (2, "mlp"),
        (None, "final norm"),
    ]  # fmt: skip
    ids = corpus.sequences[0]
    states = seen(model, ids, [])
    assert own.after_layers[2].norm.mean == pytest.approx(plain(states[2][0].double().numpy())["norm"], rel=1e-9)
    assert own.states[1].cosine.half_width is None


def test_what_cannot_be_followed_is_left_out() -> None:
    config = transformers.T5Config(
        d_model=WIDTH, d_kv=6, d_ff=32, num_layers=2, num_heads=4, vocab_size=WORDS, decoder_start_token_id=0
    )
    both = follow(transformers.T5Model(config).eval(), corpus_of())
    broken = made("Llama")
    with torch.no_grad():
        broken.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    for streams, left_out in (both, follow(broken, corpus_of())):
        assert streams == ()
        assert [each.what for each in left_out] == [WHAT]


# ------------------------------------------------------------------ the laboratory
def laboratory(place: Path, encoding: str, spoil: Callable[[Any], None] | None = None, **changes: Any) -> Any:
    """A model of the laboratory after a few steps of training, as `trace` runs it."""
    from toposcope.lab.export import export
    from toposcope.lab.model import ModelConfig, Transformer
    from toposcope.lab.running import load_running

    model = Transformer(ModelConfig(WORDS, 5, 16, encoding=encoding, width=16, heads=2, ff=24, **changes))
    step = torch.optim.Adam(model.parameters(), lr=1e-2)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, WORDS, size=(8, 12)))
    for _ in range(4):
        step.zero_grad()
        torch.nn.functional.cross_entropy(model(ids), ids[:, 3] % 5).backward()
        step.step()
    if spoil is not None:
        with torch.no_grad():
            spoil(model)
    return load_running(export(model, place / "model", task="distance"))


@pytest.mark.parametrize(("encoding", "causal"), [("rope", False), ("alibi", True)])
def test_models_of_the_laboratory(tmp_path: Path, encoding: str, causal: bool) -> None:
    model, corpus = laboratory(tmp_path, encoding, causal=causal), corpus_of()
    (own, off), left_out = follow(model, corpus)
    assert not left_out
    assert own.order == "sequential"
    rows = []
    with torch.no_grad():
        for ids in corpus.sequences:
            x = model.inner.embedded(torch.from_numpy(ids)[None])
            row, entering = [x], []
            for layer in model.inner.layers:
                entering.append(x)
                row.append(x + layer.attention(layer.attention_norm(x)))
                x = layer(x)
                row.append(x)
            rows.append([*row, model.inner.norm(x)])
            shown = model(torch.from_numpy(ids)[None], output_hidden_states=True).hidden_states
            for ours, theirs in zip(shown, [*entering, rows[-1][-1]], strict=True):
                assert torch.equal(ours, theirs)
    assert_states(own, [list(place) for place in zip(*rows, strict=True)])
    assert off.states[0].difference.mean == 0
    assert off.states[1].difference.mean != 0


@pytest.mark.parametrize(("factor", "move"), [(3.0, "together"), (-0.25, "apart")])
def test_planted_attention_moves_tokens_the_way_it_was_built(tmp_path: Path, factor: float, move: str) -> None:
    """Tokens attend evenly, and O V is a multiple of the identity: all gain, or lose, what they have in common."""

    def plant(model: Any) -> None:
        model.embed.weight.add_(1.5 * torch.randn(16, generator=torch.Generator().manual_seed(3)))
        for layer in model.layers:
            attention = layer.attention
            attention.q_proj.weight.zero_()
            attention.v_proj.weight.copy_(torch.eye(16))
            attention.o_proj.weight.copy_(factor * torch.eye(16))
            layer.mlp[2].weight.zero_()
            layer.mlp[2].bias.zero_()

    streams, left_out = follow(laboratory(tmp_path, "rope", plant, layers=4), corpus_of())
    own = streams[0]
    assert not left_out
    assert [phase.move for phase in own.phases] == [move]
    assert own.total("mlp") == 0
    assert own.total("attention") == pytest.approx(own.after_layers[-1].cosine.mean - own.states[0].cosine.mean)
    said = stream_summary(replaced(streams))[0]
    other = {"together": "apart", "apart": "together"}[move]
    assert f"Tokens move {move}" in said
    assert f"{other} in layer" not in said


# ------------------------------------------------------------------ what is said
def replaced(streams: tuple[Stream, ...], skipped: tuple[Skipped, ...] = ()) -> TraceResult:
    return replace(traced(), stream=streams, skipped=skipped)


def by_hand(
    cosines: list[float], difference: Mean | None = None, encoding: str = "own", large: float = 0.1
) -> Stream:
    """A stream of whole layers with these cosines."""
    one = Mean(1.0, 0.1)

    def state(at: int) -> StreamState:
        change = Mean(cosines[at] - cosines[at - 1], 0.01) if at else None
        return StreamState(
            None if at == 0 else at - 1, "input" if at == 0 else "layer", Mean(cosines[at], 0.01), one, one, one, one,
            Mean(large, None), change, None, None, None, difference,
        )  # fmt: skip

    states = tuple(state(at) for at in range(len(cosines)))
    return Stream(encoding, encoding, "whole", 3, 16, phases(cosines), states)


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30))
def test_phases_are_the_turns_of_the_curve(cosines: list[float]) -> None:
    turn = max(LEAST_TURN, TURN_SHARE * (max(cosines) - min(cosines)))
    found = phases(cosines)
    if not found:
        assert max(cosines) - min(cosines) < turn
        return
    start = np.array(cosines[: found[0].first + 1])
    assert np.abs(start - start[-1]).max() < turn
    for before, after in pairwise(found):
        assert after.first == before.last + 1
        assert after.move != before.move
    for phase in found:
        inside = np.array(cosines[phase.first : phase.last + 2])
        assert (phase.start, phase.end) == (inside[0], inside[-1])
        sign = 1 if phase.move == "together" else -1
        assert sign * (phase.end - phase.start) >= turn
        back = np.maximum.accumulate(sign * inside) - sign * inside
        assert back.max() < turn
    rest = np.array(cosines[found[-1].last + 1 :])
    assert np.abs(rest - rest[0]).max() < turn


@pytest.mark.parametrize(
    ("cosines", "words"),
    [
        ([0.1, 0.5, 0.9], ["move together", "0.10 to 0.90 over layers 0 to 1"]),
        ([0.9, 0.2], ["move apart", "0.90 to 0.20 in layer 0"]),
        ([0.1, 0.8, 0.3], ["move together", "0.10 to 0.80 in layer 0", "to 0.30 in layer 1"]),
        ([0.1, 0.8, 0.12], ["as close together as they began", "to 0.12 in layer 1"]),
        ([0.1, 0.3, 0.6, 0.6, 0.55, 0.6, 0.7], ["over layers 0 to 5", "layers 0 to 1: 0.10 to 0.60"]),
        ([0.1, 0.3, 0.5, 0.7, 0.62], ["0.10 to 0.70 over layers 0 to 2", "back to 0.62 in layer 3"]),
        ([0.9, 0.9, 0.9, 0.9, 0.6, 0.3], ["move apart", "layers 3 to 4"]),
        ([0.40, 0.42, 0.41], ["neither together nor apart", "0.40 and 0.42"]),
    ],
)
def test_the_sentence_is_true_of_the_numbers(cosines: list[float], words: list[str]) -> None:
    said = stream_summary(replaced((by_hand(cosines),)))
    assert len(said) == 1
    for each in words:
        assert each in said[0]


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=30))
def test_the_layers_named_hold_most_of_the_way_and_fewer_do_not(cosines: list[float]) -> None:
    for phase in phases(cosines):
        first, last = steepest(cosines, phase)
        assert phase.first <= first <= last <= phase.last
        way = (phase.end - phase.start) * MOSTLY
        assert (cosines[last + 1] - cosines[first]) / way >= 1 - 1e-9
        fewer = last - first
        for at in range(phase.first, phase.last - fewer + 2 if fewer else phase.first):
            assert (cosines[at + fewer] - cosines[at]) / way < 1


def test_what_parts_add_is_said_with_where_it_begins_and_ends() -> None:
    stream = by_hand([0.10, 0.50, 0.30])
    states = tuple(
        replace(each, part=part) for each, part in zip(stream.states, ("input", "attention", "mlp"), strict=True)
    )
    said = stream_summary(replaced((replace(stream, states=states),)))[1]
    for number in ("0.10", "0.30", "+0.40", "-0.20"):
        assert number in said


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Mean(0.2, 0.1), "would move closer still: 0.70 instead of 0.50 (+0.20"),
        (Mean(-0.2, 0.1), "would end farther apart: 0.70 instead of 0.50 (-0.20"),
        (Mean(0.021, 0.018), "would move slightly closer still: 0.70 instead of 0.50 (+0.021"),
        (Mean(0.2, 0.3), "may be no change"),
        (Mean(0.2, None), "on one sequence"),
    ],
)
def test_what_position_changes_is_said_only_where_it_is_told(difference: Mean, words: str) -> None:
    off = by_hand([0.1, 0.7], difference, "none")
    said = stream_summary(replaced((by_hand([0.1, 0.5]), off)))[0]
    assert words in said
    assert ("they would" in said) == words.startswith("would")
    assert f"0.70 instead of 0.50 ({difference.mean:+.2f}" in said


def test_what_could_not_be_measured_is_said() -> None:
    alone = (by_hand([0.1, 0.5], large=0.9),)
    assert "no positional encoding" in stream_summary(replaced(alone))[0]
    refused = (Skipped(f"{WHAT}, positions off", "it cannot be put in"),)
    assert "could not be measured" in stream_summary(replaced(alone, refused))[0]
    assert "90%" in largest_token(replaced(alone))[0]
    assert largest_token(traced()) == []
    assert stream_summary(traced()) == []


def test_clouds_at_their_limits() -> None:
    one = measure_cloud(np.ones((1, 4)))
    assert np.isnan(one["cosine"])
    assert (one["effective_rank"], one["dispersion"], one["largest"]) == (1, 0, 1)
    nothing = measure_cloud(np.zeros((3, 4)))
    assert nothing["norm"] == nothing["dispersion"] == nothing["effective_rank"] == 0
    same = measure_cloud(np.tile(np.arange(1.0, 5), (5, 1)))
    assert same["cosine"] == pytest.approx(1)
    assert same["relative_dispersion"] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", list(ORDERS))
@pytest.mark.parametrize("heads", [{}, {0: [1]}], ids=["all heads", "a head of the first layer"])
def test_a_pass_that_measures_heads_shows_the_same_tokens(kind: str, heads: dict[int, list[int]]) -> None:
    """Also where the heads that are asked for lie in the first layer: the pass goes on to its end."""
    model, corpus = made(kind), corpus_of()
    apart, _ = follow(model, corpus, batch=2)
    with attached(model) as instrument:
        clouds = own_clouds(instrument, corpus, HERE)
        assert clouds is not None
        alone = trace_corpus(model, corpus, layers=list(heads) or None, heads=heads, batch=2)
        beside = trace_corpus(model, corpus, layers=list(heads) or None, heads=heads, batch=2, clouds=clouds)
        together, _ = follow(model, corpus, seen=clouds, batch=2)
    assert together == apart
    assert beside == alone


def test_tokens_that_cannot_be_followed_are_told_after_the_heads() -> None:
    """An error in the midst of a pass stops nothing but the clouds."""
    model, corpus = made("Llama"), corpus_of()
    with attached(model) as instrument:
        clouds = own_clouds(instrument, corpus, HERE)
        assert clouds is not None
        clouds.residual = replace(clouds.residual, splits=(_Broken(), *clouds.residual.splits[1:]))  # type: ignore[arg-type]
        found = trace_corpus(model, corpus, clouds=clouds)
        streams, left_out = follow(model, corpus, seen=clouds)
    assert len(found.heads) == LAYERS * model.config.num_attention_heads
    assert streams == ()
    assert left_out[0].why == "no such state"


class _Broken:
    """A layer whose parts cannot be told apart."""

    modules = ()

    def states(self, *_: object) -> None:
        raise BadConfig("no such state")
