"""Traces of tiny models: scores against transformers' own attention, metrics against dense algebra, planted heads."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.models.making import TEXT, randomise, write_llama
from toposcope.core import interpreters
from toposcope.core.errors import BadFile, BadValue
from toposcope.encodings import rope
from toposcope.encodings.record import NONE
from toposcope.models.corpus import Corpus, cut
from toposcope.models.intervene import captured
from toposcope.models.load import load_reference
from toposcope.models.rank import area_under_curve
from toposcope.models.tracing.collect import _spread, each_of
from toposcope.models.tracing.contraction import band_product, contracted
from toposcope.models.tracing.head import gram_shares
from toposcope.models.tracing.logits import head_content
from toposcope.models.tracing.measure import memory_needed, trace_corpus
from toposcope.models.tracing.result import METRICS, SPLIT
from toposcope.models.tracing.trace import trace
from toposcope.spectra.of_heads import fast_share
from toposcope.spectra.singular import effective_rank, majorisation_gap
from toposcope.spectra.toeplitz import toeplitz_projection

torch = pytest.importorskip("torch", reason="running a model needs torch: pip install torch")
transformers = pytest.importorskip(
    "transformers", reason="running a model needs transformers: pip install transformers"
)

VOCABULARY = 40
SMALL = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}


def llama() -> Any:
    return transformers.LlamaModel(transformers.LlamaConfig(**SMALL, **HEADS))


def mistral() -> Any:
    return transformers.MistralModel(transformers.MistralConfig(**SMALL, **HEADS, sliding_window=6))


def gemma2() -> Any:
    sizes = {"head_dim": 8, "sliding_window": 6, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8}
    return transformers.Gemma2Model(transformers.Gemma2Config(**SMALL, **HEADS, **sizes))


def gpt_neox() -> Any:
    return transformers.GPTNeoXModel(transformers.GPTNeoXConfig(**SMALL, num_attention_heads=3, rotary_pct=0.5))


def bert() -> Any:
    return transformers.BertModel(transformers.BertConfig(**SMALL, num_attention_heads=3))


def bloom() -> Any:
    return transformers.BloomModel(
        transformers.BloomConfig(hidden_size=24, n_layer=2, n_head=3, vocab_size=VOCABULARY)
    )


def t5_encoder() -> Any:
    return transformers.T5EncoderModel(
        transformers.T5Config(d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3, vocab_size=VOCABULARY)
    )


def deepseek() -> Any:
    sizes = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "vocab_size": VOCABULARY,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "q_lora_rank": 12,
        "kv_lora_rank": 10,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 6,
        "first_k_dense_replace": 2,
    }
    return transformers.DeepseekV3Model(transformers.DeepseekV3Config(**sizes))


MODELS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "mistral": mistral,
    "gemma2": gemma2,
    "gpt_neox": gpt_neox,
    "bert": bert,
    "bloom": bloom,
    "t5_encoder": t5_encoder,
    "deepseek": deepseek,
}


def ready(made: Any, attention: str = "eager") -> Any:
    randomise(made)
    made.set_attn_implementation(attention)
    return made.eval()


def texts(count: int = 3, length: int = 20, seed: int = 0) -> Corpus:
    random = np.random.default_rng(seed)
    return Corpus("made", tuple(random.integers(3, VOCABULARY, length) for _ in range(count)), f"{count} made texts")


@pytest.mark.parametrize("family", MODELS)
def test_scores_equal_those_of_their_attention(family: str) -> None:
    model, corpus = ready(MODELS[family]()), texts()
    found = trace_corpus(model, corpus)
    assert found.rebuilt < 1e-5
    assert not found.skipped
    seen = []
    with torch.no_grad():
        for ids in corpus.sequences:
            out = model(input_ids=torch.from_numpy(ids)[None], output_attentions=True)
            seen.append([layer[0].double().numpy() for layer in out.attentions])
    at = np.arange(20)
    assert len(found.heads) == sum(len(layer) for layer in seen[0])
    for each in found.heads:
        theirs = [layers[each.layer][each.head] for layers in seen]
        assert each.score("previous") == pytest.approx(
            np.median([np.diagonal(p, -1).mean() for p in theirs]), abs=1e-5
        )
        assert each.score("self") == pytest.approx(np.median([np.diagonal(p)[1:].mean() for p in theirs]), abs=1e-5)
        near = np.abs(at[:, None] - at) <= 8
        assert each.score("local") == pytest.approx(
            np.median([(p * near).sum(axis=1)[1:].mean() for p in theirs]), abs=1e-5
        )
        on_first = [p[1:, 0][p[1:, 0] > 0].mean() for p in theirs]  # a window hides token 0 from later queries
        assert each.score("first") == pytest.approx(np.median(on_first), abs=1e-5)
        away = [(p * np.abs(at[:, None] - at)).sum(axis=1)[1:].mean() for p in theirs]
        assert each.median("distance") == pytest.approx(np.median(away), abs=1e-4)
        spread = each.on_previous
        assert spread is not None
        assert spread.low <= spread.median <= spread.high
        assert spread.count == 3


def test_sdpa_and_eager_give_the_same() -> None:
    one, other = (trace_corpus(ready(llama(), attention), texts()) for attention in ("eager", "sdpa"))
    for first, second in zip(one.heads, other.heads, strict=True):
        assert first.median("rho") == pytest.approx(second.median("rho"), rel=1e-5)
        assert first.score("previous") == pytest.approx(second.score("previous"), abs=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt_neox", "mistral"])
def test_metrics_of_layer_0_equal_dense_algebra(family: str) -> None:
    """The model itself gives both sides: queries and keys at their positions, and with all positions 0."""
    model, corpus = ready(MODELS[family]()), texts(1)
    ids = torch.from_numpy(corpus.sequences[0])[None]
    sides = []
    for positions in (torch.arange(20)[None], torch.zeros(1, 20, dtype=torch.long)):
        with captured(model, [0]) as seen, torch.no_grad():
            model(input_ids=ids, position_ids=positions)
        q, k = (part[0].double().numpy() for part in (seen[0].query_BHNR, seen[0].key_BGMR))
        sides.append(q @ np.repeat(k, len(q) // len(k), axis=0).swapaxes(1, 2) * seen[0].scaling)
    at = np.arange(20)
    visible = at[:, None] >= at
    if family == "mistral":
        visible &= at[:, None] - at < 6
    for each in trace_corpus(model, corpus, layers=[0]).heads:
        logits, plain = (np.where(visible, side[each.head], 0.0) for side in sides)
        values, values_0 = (np.linalg.svd(side, compute_uv=False) for side in (logits, plain))
        assert each.median("rho") == pytest.approx(values[0] / values_0[0], rel=1e-5)
        assert each.median("erank_ratio") == pytest.approx(
            effective_rank(values) / effective_rank(values_0), rel=1e-5
        )
        assert each.median("maj_gap") == pytest.approx(majorisation_gap(values, values_0), abs=1e-5)
        assert each.median("cap") >= 1
        assert each.route == "dense"
        on_diagonals = np.where(visible, toeplitz_projection(logits, causal=True), 0.0)
        assert each.median("toeplitz") == pytest.approx((on_diagonals**2).sum() / (logits**2).sum(), rel=1e-5)
        middle = logits[visible].mean()
        centred = np.where(visible, on_diagonals - middle, 0.0), np.where(visible, logits - middle, 0.0)
        assert each.median("toeplitz_centred") == pytest.approx(
            (centred[0] ** 2).sum() / (centred[1] ** 2).sum(), rel=1e-5
        )


def test_the_three_shares_sum_to_one_and_a_bias_couples_nothing() -> None:
    for family in ("llama", "t5_encoder", "bloom"):
        for each in trace_corpus(ready(MODELS[family]()), texts(2)).heads:
            shares = [each.median(name) for name in ("content", "position", "coupling")]
            assert None not in shares
            if family == "llama":
                assert shares[2] > 0.01
            else:
                assert shares[2] < 1e-9
        single = trace_corpus(ready(MODELS[family]()), texts(1)).heads[0]
        assert sum(single.median(name) or 0.0 for name in ("content", "position", "coupling")) == pytest.approx(1)


@pytest.mark.parametrize("causal", [True, False])
def test_windows_are_masked_alike_on_both_sides(causal: bool) -> None:
    random = np.random.default_rng(3)
    q, k = random.standard_normal((2, 60, 8))
    at = np.arange(60)
    seen = (np.abs(at[:, None] - at) <= 9) & ((at[:, None] >= at) | (not causal))
    operator = band_product(q, k, causal=causal, reach=9)
    dense = np.where(seen, q @ k.T, 0.0)
    x = random.standard_normal((60, 2))
    np.testing.assert_allclose(operator.times(x), dense @ x, atol=1e-10)
    np.testing.assert_allclose(operator.times_transposed(x), dense.T @ x, atol=1e-10)
    common = {"causal": causal, "reach": 9, "scale": 0.5, "head": 0}
    encoding = rope(8)
    whole = contracted(q, k, encoding, **common)
    norms = contracted(q, k, encoding, **common, dense_limit=10)
    turned = [encoding.rotary.rotate(part, at, side=side) for part, side in ((q, "query"), (k, "key"))]
    expected = np.linalg.norm(np.where(seen, turned[0] @ turned[1].T, 0), 2) / np.linalg.norm(dense, 2)
    assert whole.rho == pytest.approx(expected, rel=1e-10)
    assert norms.rho == pytest.approx(expected, rel=1e-6)
    assert norms.route == "lanczos"
    assert norms.maj_gap is None
    assert "only norms" in (norms.reason or "")
    assert whole.cap is not None
    assert norms.cap == pytest.approx(whole.cap, rel=1e-6)
    assert whole.cap >= 1


class TestPositionsInTheInput:
    def test_position_alone_and_content_alone(self) -> None:
        random = np.random.default_rng(0)
        position = random.standard_normal((2, 60, 8))
        sequences = 5
        content = random.standard_normal((sequences, 2, 60, 8))

        def shares(tokens: np.ndarray) -> Any:
            part = tokens.mean(axis=0) - tokens.mean(axis=(0, 2))[:, None]
            return gram_shares(*tokens[0], *part, causal=False, reach=None)

        alone = shares(np.repeat(position[None], sequences, axis=0))
        assert alone.position == pytest.approx(1, abs=0.1)  # the grand mean counts as content
        nothing = shares(content)
        assert nothing.position == pytest.approx(1 / sequences**2, abs=0.02)
        both = shares(position + 0.1 * content)
        assert 0.8 < both.position < 1
        total = both.content + both.mixed + both.position + both.cross
        assert total == pytest.approx(1)

    def test_one_sequence_cannot_tell(self) -> None:
        found = trace_corpus(ready(bert()), texts(1))
        assert found.heads[0].median("gram_position") is None
        assert found.heads[0].median("rho") is None
        assert any("several sequences" in gap.why and gap.metric == "rho" for gap in found.gaps)

    def test_positions_switched_off_leave_the_logits_as_they_are(self) -> None:
        """Without position vectors the mean over sequences is content's noise, and rho is near 1."""
        on, off = ready(bert()), ready(bert())
        with torch.no_grad():
            on.embeddings.position_embeddings.weight.mul_(3)
            off.embeddings.position_embeddings.weight.zero_()
        far, near = (trace_corpus(model, texts(12, 30), layers=[0]).heads for model in (on, off))
        assert np.mean([each.median("gram_position") for each in far]) > 0.3
        assert np.mean([each.median("gram_position") for each in near]) < 0.05
        assert abs(np.mean([each.median("rho") for each in near]) - 1) < 0.1

    def test_lines_of_different_length(self) -> None:
        random = np.random.default_rng(2)
        lines = tuple(random.integers(3, VOCABULARY, length) for length in (9, 14, 5))
        found = trace_corpus(ready(bert()), Corpus("made", lines, "three lines"))
        assert found.tokens == 14
        assert all(each.rho.count == 3 for each in found.heads if each.rho is not None)
        assert found.heads[0].median("gram_position") is not None


def planted() -> Any:
    """A Llama of one layer whose head 0 looks one token back and whose head 1 looks everywhere alike.

    All tokens share a large component u. Head 0 maps it to q = (1, 0) and k = (cos w, sin w) in every pair, so that
    its logits are sum_f cos(w_f (t - 1)), largest at t = 1; head 1 maps it to nothing.
    """
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        rope_parameters={"rope_type": "default", "rope_theta": 10.0},
    )
    model = transformers.LlamaModel(config).eval()
    frequencies = 10.0 ** (-np.arange(8) / 8)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        model.embed_tokens.weight.copy_(0.1 * torch.randn(VOCABULARY, 32, generator=generator))
        model.embed_tokens.weight[:, 0] = 5.0
        block = model.layers[0].self_attn
        for projection in (block.q_proj, block.k_proj):
            projection.weight.zero_()
        block.q_proj.weight[:8, 0] = 1.0
        block.k_proj.weight[:8, 0] = torch.from_numpy(np.cos(frequencies)).float()
        block.k_proj.weight[8:16, 0] = torch.from_numpy(np.sin(frequencies)).float()
    return model


class TestPlanted:
    def test_the_head_that_looks_back_is_named_and_the_uniform_one_is_not(self) -> None:
        found = trace_corpus(planted(), texts(3, 40))
        back, even = found.heads
        assert back.names == ("previous",)
        assert back.peak_offset == 1
        assert back.peak_agreement == 1
        assert back.median("position") == pytest.approx(1, abs=0.01)
        assert back.median("toeplitz_centred") == pytest.approx(1, abs=0.01)
        assert even.names == ()
        assert even.score("previous") == pytest.approx(even.uniform["previous"], abs=1e-6)
        assert even.median("rho") is None
        assert any(gap.metric == "rho" and "zero" in gap.why and gap.heads == 1 for gap in found.gaps)
        assert [each.name for each in found.named("previous")] == ["0.0"]

    def test_its_weights_tell_as_much(self) -> None:
        found = trace_corpus(planted(), texts(3, 40)).agreement
        assert found is not None
        assert found.listed == found.traced == found.hits == ("0.0",)
        assert (found.precision, found.recall) == (1, 1)
        assert found.kernel == pytest.approx(1, abs=0.05)

    def test_the_share_of_fast_pairs(self) -> None:
        """Base 10 and 16 channels: w = 10^(-f/8), of which all eight turn by a radian in 8 tokens; base 1e6: two."""
        random = np.random.default_rng(4)
        q, k = random.standard_normal((2, 16, 5))
        assert fast_share(q, k, rope(16, base=10.0).rotary) == pytest.approx(1)
        pairs = [0, 1, 8, 9]
        energies = [(part[pairs] ** 2).sum() / (part**2).sum() for part in (q, k)]
        found = fast_share(q, k, rope(16, base=1e6).rotary)
        assert found == pytest.approx(math.sqrt(energies[0] * energies[1]), rel=1e-12)
        assert fast_share(q, k, NONE.rotary) is None
        assert fast_share(0 * q, k, rope(16).rotary) is None

    def test_channels_that_do_not_turn_count_as_slow(self) -> None:
        q, k = np.ones((2, 16, 5))
        half = rope(16, base=10.0, rotary_dim=8).rotary
        assert fast_share(q, k, half) == pytest.approx(0.5)

    def test_only_patterns_are_the_same_patterns(self) -> None:
        whole, only = (trace_corpus(planted(), texts(3, 40), only=each) for each in (None, "patterns"))
        for one, other in zip(only.heads, whole.heads, strict=True):
            assert (one.names, one.on_previous, one.on_self) == (other.names, other.on_previous, other.on_self)
        assert all(each.median("rho") is None and each.median("entropy") is not None for each in only.heads)
        assert only.agreement is None
        assert {gap.metric for gap in only.gaps} == set(METRICS) - {"distance", "entropy"}

    def test_only_position_is_the_same_split(self) -> None:
        for model, split in ((planted(), ("content", "position", "coupling")), (ready(bert()), SPLIT[3:])):
            whole, only = (trace_corpus(model, texts(3, 40), only=each) for each in (None, "position"))
            assert any((row.positional or 0.0) > 0 for row in whole.heads)
            for metric in split:
                assert [getattr(row, metric) for row in only.heads] == [getattr(row, metric) for row in whole.heads]
            assert all(row.rho is None and row.on_induction is None for row in only.heads)

    def test_the_order_by_fast_pairs_beside_what_was_traced(self) -> None:
        found = trace_corpus(planted(), texts(3, 40)).agreement
        assert found is not None
        assert found.fast_listed == ("0.0",)  # head 1 has no queries, and so no share
        assert found.fast_auc is None
        assert area_under_curve([0.3, 0.2, None, 0.1], [True, True, True, False]) == 1
        assert area_under_curve([0.1, 0.2, 0.2], [True, False, True]) == 0.25

    def test_the_kernel_is_the_one_planted(self) -> None:
        back = trace_corpus(planted(), texts(2, 40), heads={0: [0]}).heads[0]
        frequencies = 10.0 ** (-np.arange(8) / 8)
        expected = np.array([np.cos(frequencies * (t - 1)).sum() for t in range(32)])
        size = back.kernel[1] / expected[1]
        np.testing.assert_allclose(back.kernel, size * expected, atol=0.01 * abs(size * expected[1]))
        assert len(back.kernel) == 32


def test_cross_attention_is_left_out_and_said() -> None:
    model = ready(
        transformers.T5Model(
            transformers.T5Config(d_model=24, d_kv=8, d_ff=32, num_layers=2, num_heads=3, vocab_size=VOCABULARY)
        )
    )
    found = trace_corpus(model, texts(2))
    assert sorted({each.layer for each in found.heads}) == [0, 1, 2, 4]
    assert [each.what for each in found.skipped] == ["layer 3", "layer 5"]
    assert "cross-attention" in found.skipped[0].why
    assert found.rebuilt < 1e-5


def test_only_what_is_asked_for_is_run() -> None:
    model, ran = ready(llama()), []
    for number, layer in enumerate(model.layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: ran.append(number))
    before = model.config._attn_implementation

    def progress(what: str, done: int, total: int) -> None:
        if not done:
            ran.clear()  # attaching runs a few tokens through all layers
        told.append((what, done, total))

    told: list[tuple[str, int, int]] = []
    found = trace_corpus(model, texts(3), heads={0: [1, 3]}, layers=[0], progress=progress)
    assert [each.name for each in found.heads] == ["0.1", "0.3"]
    assert ran == []  # the forward pass ends at the attention of layer 0
    assert told == [("layers", done, 5) for done in range(6)]  # three sequences, two of repeated tokens
    assert model.config._attn_implementation == before
    with pytest.raises(BadValue, match="layer 7"):
        trace_corpus(model, texts(), layers=[7])
    with pytest.raises(BadValue, match=r"1\.9"):
        trace_corpus(model, texts(), heads={1: [9]})


def test_a_text_without_different_tokens_has_no_induction() -> None:
    found = trace_corpus(ready(llama()), Corpus("made", (np.full(8, 5),), "one word"))
    assert found.heads[0].on_induction is None
    assert any(gap.metric == "induction" for gap in found.gaps)


def test_attention_that_cannot_be_rebuilt_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from toposcope.models.tracing import collect

    def wrong(content: Any, head: int, sink: float | None) -> Any:
        right = head_content(content, head, sink)
        return replace(right, softcap=1.0) if content.site.number == 1 else right

    monkeypatch.setattr(collect, "head_content", wrong)
    found = trace_corpus(ready(llama()), texts(2))
    assert {each.layer for each in found.heads} == {0}
    assert [each.what for each in found.skipped] == ["layer 1"]
    assert "rebuilt" in found.skipped[0].why


def test_columns_are_the_fields() -> None:
    found = trace_corpus(ready(llama()), texts(2))
    assert math.isfinite(found.rebuilt)
    row = found.rows()[3]
    assert row["rho.median"] == found.heads[3].median("rho")
    assert row["rho.low"] <= row["rho.median"] <= row["rho.high"]
    assert row["on_previous.median"] == found.heads[3].score("previous")


def test_too_long_a_text_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ready(llama())
    monkeypatch.setattr("toposcope.core.memory.available", lambda: 2**20)
    with pytest.raises(BadValue, match="4000 tokens") as caught:
        trace_corpus(model, texts(1, 4000))
    assert all(each in str(caught.value) for each in ("0.0 GiB", "--tokens"))
    monkeypatch.setattr("toposcope.core.memory.available", lambda: None)
    assert trace_corpus(model, texts(1, 4)).heads


def test_memory_written_out_grows_with_the_square() -> None:
    from toposcope.checkpoints.live import view

    specs = [layer.spec for layer in view(llama()).layers]

    def total(tokens: int, written_out: bool) -> int:
        parts = memory_needed(specs, tokens, inner=32, written_out=written_out, dense_limit=512, means=False)
        return sum(parts.values())

    assert total(8192, written_out=True) - total(8192, written_out=False) == 12 * 4 * 8192**2
    assert total(8192, written_out=False) < total(8192, written_out=True) / 8


def test_another_encoding_is_what_is_measured(tmp_path: Path) -> None:
    """With none put in there is nothing to contract; with ALiBi the logits are the content's plus its table."""
    write_llama(tmp_path)
    reference = load_reference(tmp_path, attention="sdpa")
    corpus = cut(reference, TEXT * 3, tokens=24, count=2)
    none = trace_corpus(reference, corpus, encoding="none")
    assert none.encoding == "none"
    assert none.agreement is None
    for row in none.heads:
        assert row.median("rho") == pytest.approx(1.0, abs=1e-9)
        assert row.median("position") == pytest.approx(0.0, abs=1e-9)
    biased = trace_corpus(reference, corpus, encoding="alibi")
    assert all(row.median("coupling") == pytest.approx(0.0, abs=1e-6) for row in biased.heads)
    assert all((row.median("position") or 0.0) > 1e-6 for row in biased.heads)


def test_other_interpreters_find_what_is_found_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llama(tmp_path)
    few = {"text": "random", "tokens": 24, "sequences": 2, "layers": "0"}
    here = trace(tmp_path, jobs=1, **few)  # type: ignore[arg-type]
    monkeypatch.setattr(f"{trace.__module__}.PATIENCE", 0.0)
    used: list[Any] = []
    submit = interpreters.Interpreters.submit

    def noted(pool: interpreters.Interpreters, function: Any, *given: Any) -> Any:
        used.extend(given[1] if function is each_of else [function])
        return submit(pool, function, *given)

    monkeypatch.setattr(interpreters.Interpreters, "submit", noted)
    there = trace(tmp_path, jobs=2, **few)  # type: ignore[arg-type]
    assert len(used) > 2 * len(here.heads)  # of every head in both sequences, and clouds of tokens
    assert replace(there, provenance=here.provenance) == here


def test_processes_begin_before_a_large_model_and_end_if_it_cannot_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_llama(tmp_path)
    few = {"text": "random", "tokens": 8, "sequences": 1, "layers": "0", "jobs": 2}
    begun: list[Any] = []
    start = interpreters.subprocess.Popen

    def noted(*given: Any, **how: Any) -> Any:
        begun.append(start(*given, **how))
        return begun[-1]

    monkeypatch.setattr(interpreters.subprocess, "Popen", noted)
    trace(tmp_path, **few)  # type: ignore[arg-type]
    assert not begun  # it is small
    monkeypatch.setattr(f"{trace.__module__}.LARGE", 0)
    threads = torch.get_num_threads()
    trace(tmp_path, **few)  # type: ignore[arg-type]
    assert len(begun) == 2
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadFile):
        trace(tmp_path, **few)  # type: ignore[arg-type]
    assert len(begun) == 4
    assert all(each.poll() is not None for each in begun)
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
def test_quartiles_are_those_of_numpy(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count)
    found = _spread(list(values))
    assert found is not None
    np.testing.assert_allclose((found.low, found.median, found.high), np.percentile(values, (25, 50, 75)), rtol=1e-14)
    assert _spread([]) is None


def test_a_process_that_is_lost_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_llama(tmp_path)
    monkeypatch.setattr(f"{trace.__module__}.PATIENCE", 0.0)
    monkeypatch.setattr(interpreters.sys, "executable", shutil.which("false") or "")
    with pytest.raises(BadValue, match="--jobs 1"):
        trace(tmp_path, "random", tokens=8, sequences=1, layers="0", jobs=2)
