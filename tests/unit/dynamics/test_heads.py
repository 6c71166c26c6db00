"""A head's row: the fields of the notes, and every number against dense float64 algebra."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import toposcope
from tests.unit import tiny
from toposcope.checkpoints.fold import fold
from toposcope.checkpoints.spec import NormSpec
from toposcope.checkpoints.view import Head, Norm
from toposcope.dynamics.factored import Factored
from toposcope.dynamics.heads import (
    describe_head,
    head_dynamics,
    head_setting,
    outside_theorems,
    pair_index,
    rotary_of,
    spectrum,
    upper_half,
)
from toposcope.dynamics.layers import layer_dynamics
from toposcope.dynamics.regime import Setting, Verdict
from toposcope.encodings import Encoding, Rotary, rope

from .systems import distance_bias, logit_matrix, make_head, make_layer, planted, random_head, sym, turning

FIELDS = """
    layer head kv_group causal pe verdict rule scope exact margin robust alpha omega n_pos n_neg n_zero growth_index
    ov_positivity w_min w_max a_min a_max spread_index asym_A asym_W pair_index symU symW cond_VO self_logit_min
    metastable rope eigenvalues certificate warnings
"""


def dense(head: Head, rotary: Rotary | None) -> dict[str, float]:
    """The numbers of a folded head by d x d matrices."""
    u, w = head.o @ head.v, logit_matrix(head, rotary)
    values = np.linalg.eigvals(u)
    real = values[np.argsort(-np.abs(values))][: len(head.v)].real
    small = head.o.T @ w @ head.o
    mixed = (head.v @ head.o).T @ small
    a, low = np.linalg.eigvalsh(sym(mixed)), np.linalg.eigvalsh(sym(small))
    us, ws = np.linalg.eigvalsh(sym(u)), np.linalg.eigvalsh(sym(w))
    nuclear = scipy.linalg.svdvals(u @ w.T).sum()
    return {
        "alpha": real.max(),
        "omega": real.min(),
        "growth_index": real[real > 0].sum() / np.abs(real).sum(),
        "w_min": low[0],
        "w_max": low[-1],
        "self_logit_min": low[0],
        "a_min": a[0],
        "a_max": a[-1],
        "spread_index": a[a > 0].sum() / np.abs(a).sum(),
        "asym_A": np.linalg.norm(mixed - mixed.T) / (2 * np.linalg.norm(mixed)),
        "asym_W": np.linalg.norm(small - small.T) / (2 * np.linalg.norm(small)),
        "pair_index": np.trace(u @ w.T) / nuclear,
        "ov_positivity": values.sum().real / np.abs(values).sum(),
        "symU.min": us[0],
        "symU.max": us[-1],
        "symW.min": ws[0],
        "symW.max": ws[-1],
        "cond_VO": np.linalg.cond(head.v @ head.o),
    }


def compare(row: dict[str, Any], expected: dict[str, float], rel: float = 1e-7) -> None:
    for name, value in expected.items():
        part, _, key = name.partition(".")
        ours = row[part][key] if key else row[part]
        assert ours == pytest.approx(value, rel=rel, abs=1e-9), name


# --- a Llama: RMSNorm, RoPE, shared keys and values -----------------------------------------------------------------


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[toposcope.Model]:
    with toposcope.load(tiny.write_llama(tmp_path_factory.mktemp("llama"))) as model:
        yield model


def test_fields_are_those_of_the_notes(llama: toposcope.Model) -> None:
    row = head_dynamics(llama.layers[1], 3, storage_error=2.0**-24, context=64).as_dict()
    assert list(row) == FIELDS.split()
    assert (row["layer"], row["head"], row["kv_group"], row["causal"], row["pe"]) == (1, 3, 1, True, "rope")
    assert set(row["symU"]) == set(row["symW"]) == {"min", "max", "pos_mass", "inertia"}
    assert set(row["rope"]) == {"rho", "tau_uniform", "lmin_by_offset"}
    assert list(row["rope"]["lmin_by_offset"]) == [0, -1, -4, -16]
    assert row["metastable"] == (row["self_logit_min"] < 0)


def test_every_head_of_a_llama_equals_dense(llama: toposcope.Model) -> None:
    """Folding is written out here too: the stored gain multiplies the columns of Q, K and V."""
    for layer in llama.layers:
        gain = llama.source.read(f"model.layers.{layer.number}.input_layernorm.weight").astype(np.float64)
        for head in layer.heads:
            folded = replace(head, q=head.q * gain, k=head.k * gain, v=head.v * gain)
            row = head_dynamics(layer, head.head, storage_error=0.0, context=64).as_dict()
            compare(row, dense(folded, layer.encoding.rotary))
            upper = [complex(*pair) for pair in row["eigenvalues"]]
            both = [*upper, *(value.conjugate() for value in upper if value.imag > 0)]
            theirs = np.linalg.eigvals(folded.v @ folded.o)
            assert np.sort_complex(both) == pytest.approx(np.sort_complex(theirs), rel=1e-4)
            assert row["symU"]["inertia"] == row["symW"]["inertia"] == [4, 4, 8]
            assert row["rope"]["lmin_by_offset"][-4] == pytest.approx(
                np.linalg.eigvalsh(sym(logit_matrix(folded, layer.encoding.rotary, -4)))[0]
            )
            assert row["exact"] == (row["verdict"] != "indeterminate")
            assert row["warnings"] == []


def test_shared_keys_and_values_are_the_same_as_repeated_ones(llama: toposcope.Model, tmp_path: Path) -> None:
    stored = tiny.tensors(tiny.CONFIG)
    for name in list(stored):
        if "k_proj" in name or "v_proj" in name:
            parts = stored[name].reshape(2, 4, 16)
            stored[name] = np.ascontiguousarray(np.repeat(parts, 2, axis=0).reshape(16, 16))
    tiny.write_llama(tmp_path, num_key_value_heads=4)
    save_file(stored, tmp_path / "model.safetensors")
    with toposcope.load(tmp_path) as repeated:
        for one, other in zip(llama.layers, repeated.layers, strict=True):
            for h in range(4):
                ours, theirs = (head_dynamics(x, h, storage_error=0.0, context=64).as_dict() for x in (one, other))
                assert theirs.pop("kv_group") == h
                assert ours.pop("kv_group") == h // 2
                assert ours == theirs
            ours, theirs = (layer_dynamics(x, storage_error=0.0) for x in (one, other))
            assert ours.rank_U == theirs.rank_U == 8
            for name in ("alpha", "omega"):
                assert getattr(ours.regime, name) == pytest.approx(getattr(theirs.regime, name), rel=1e-6)
            assert ours.rho_euler == pytest.approx(theirs.rho_euler, rel=1e-6)


# --- other norms, from models that transformers has written ---------------------------------------------------------


def saved(directory: Path, which: str, *, biases: bool) -> Path:
    """A tiny BERT (post-norm) or GPT-2 (LayerNorm before attention); biases are zero unless asked for."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install transformers")
    torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
    torch.manual_seed(0)
    if which == "bert":
        sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 16}
        model = transformers.BertModel(transformers.BertConfig(vocab_size=16, **sizes))
    else:
        model = transformers.GPT2Model(transformers.GPT2Config(vocab_size=16, n_embd=16, n_layer=2, n_head=4))
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            if parameter.ndim > 1:
                parameter.normal_()
            elif biases or "bias" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(directory)
    return directory


def test_post_norm_is_outside_the_theorems(tmp_path: Path) -> None:
    with toposcope.load(saved(tmp_path, "bert", biases=True)) as model:
        for layer in model.layers:
            for head in layer.heads:
                row = head_dynamics(layer, head.head, storage_error=0.0).as_dict()
                assert (row["exact"], row["causal"], row["rope"]) == (False, False, None)
                assert "post_norm" in row["warnings"]
                compare(row, dense(head, None))  # nothing is folded before attention
            whole = layer_dynamics(layer, storage_error=0.0).as_dict()
            assert whole["exact"] is False
            assert "post_norm" in whole["warnings"]


@pytest.mark.parametrize("biases", [False, True])
def test_layer_norm_before_attention(tmp_path: Path, biases: bool) -> None:
    """Centring and gain are folded; a value bias, which LayerNorm's own bias is, ends exactness."""
    with toposcope.load(saved(tmp_path, "gpt2", biases=biases)) as model:
        for layer in model.layers:
            norm = layer.weights.input_norm
            assert norm is not None
            assert norm.gain is not None
            through = np.diag(norm.gain) @ (np.eye(16) - np.ones((16, 16)) / 16)
            for head in layer.heads:
                row = head_dynamics(layer, head.head, storage_error=0.0).as_dict()
                folded = replace(head, q=head.q @ through, k=head.k @ through, v=head.v @ through)
                compare(row, dense(folded, None))
                assert ("bias_with_norm" in row["warnings"]) == biases
                assert row["exact"] == (not biases and row["verdict"] != "indeterminate")


# --- single quantities ----------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 10), st.integers(1, 10))
def test_indices_and_spectra_of_random_heads(seed: int, d: int, r: int) -> None:
    r = min(r, d)
    head = random_head(np.random.default_rng(seed), d, r)
    row = describe_head(make_layer([head]), head, storage_error=0.0).as_dict()
    expected = dense(head, None)
    index = pair_index(head)
    assert index == pytest.approx(expected["pair_index"], rel=1e-8, abs=1e-10)
    assert -1 - 1e-12 <= index <= 1 + 1e-12
    assert row["pair_index"] == index
    for name in ("symU.min", "symU.max", "symW.min", "symW.max"):
        part, _, key = name.partition(".")
        assert row[part][key] == pytest.approx(expected[name], rel=1e-9, abs=1e-10)
    values = np.linalg.eigvalsh(sym(head.o @ head.v))
    doubt = 1e-10 * np.abs(values).max()
    signs = [int((values > doubt).sum()), int((values < -doubt).sum())]
    assert row["symU"]["inertia"] == [*signs, d - sum(signs)]


def test_equal_queries_and_keys_have_no_negative_part() -> None:
    q = np.random.default_rng(0).standard_normal((2, 8))
    found = spectrum(Factored(q.T, q))
    assert (found["min"], found["inertia"]) == (pytest.approx(0.0, abs=1e-12), [2, 0, 6])
    assert found["pos_mass"] == pytest.approx(1.0)


@pytest.mark.parametrize(("kind", "rank"), [("rms", 5), ("layer", 4)])
def test_past_a_layer_norm_a_wide_head_moves_all_but_the_mean(kind: str, rank: int) -> None:
    """V = -I folded: what the mean would do is no eigenvalue 0 but no direction at all, and all others converge."""
    layer = make_layer([make_head(np.eye(5), np.eye(5), -np.eye(5), np.eye(5))], input_norm=Norm(kind, 1e-6))
    row = head_dynamics(layer, 0, storage_error=0.0)
    assert len(row.regime.eigenvalues) == rank
    assert row.regime.verdict is Verdict.CONVERGES
    assert row.regime.alpha == pytest.approx(-1)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_the_attention_factor_of_a_rotation_is_part_of_the_logits(factor: float) -> None:
    """YaRN multiplies turned queries and keys alike, so W by its square, also at offset 0."""
    head = random_head(np.random.default_rng(4), 8, 4)
    layer = make_layer([head], encoding=Encoding("rope", "turning", rotary=turning(4, factor=factor)))
    row = describe_head(layer, head, storage_error=0.0)
    plain = head.o.T @ logit_matrix(head) @ head.o
    assert row.regime.w_min == pytest.approx(factor**2 * np.linalg.eigvalsh(sym(plain))[0], rel=1e-9)
    whole = np.linalg.eigvalsh(sym(logit_matrix(head)))
    assert (row.symW["min"], row.symW["max"]) == pytest.approx(
        (factor**2 * whole[0], factor**2 * whole[-1]), rel=1e-9
    )


@pytest.mark.parametrize("least", [-2.0, -0.1, 0.0, 0.1, 2.0])
def test_a_head_is_metastable_where_a_token_can_repel_itself(least: float) -> None:
    """W = diag(least, 3) in the head's own coordinates: negative however slightly is enough."""
    head = make_head(np.eye(2), np.diag([least, 3.0]), -np.eye(2), np.eye(2))
    row = describe_head(make_layer([head]), head, storage_error=0.0)
    assert row.self_logit_min == pytest.approx(head.scale * least)
    assert row.metastable is (least < 0)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
@pytest.mark.parametrize("sign", [1, -1])
def test_an_eigenvalue_counts_as_zero_within_rounding_and_not_beyond(sign: int, scale: float) -> None:
    """diag(1, c, 0, 0) scale^2 from factors of norms sqrt(2) scale and scale: known to 8 d eps of their product."""
    allowance = 8 * 4 * np.finfo(np.float64).eps * np.sqrt(2)
    for share, there in ((0.9, False), (1.1, True)):
        c = sign * share * allowance
        found = spectrum(Factored(scale * np.eye(4)[:, :2], scale * np.diag([1.0, c, 0, 0])[:2]))
        positive, negative = 1 + (sign > 0 and there), int(sign < 0 and there)
        assert found["inertia"] == [positive, negative, 4 - positive - negative]


def test_robust_is_a_margin_above_the_storage_error() -> None:
    head = make_head(np.eye(3), np.eye(3), -np.eye(3), np.eye(3))
    layer = make_layer([head])
    row = describe_head(layer, head, storage_error=0.0)
    assert (row.regime.rule, row.robust) == ("T6", True)
    margin = row.regime.margin
    assert margin is not None
    assert not describe_head(layer, head, storage_error=margin).robust
    assert describe_head(layer, head, storage_error=0.99 * margin).robust
    unmasked = describe_head(make_layer([head], causal=False), head, storage_error=0.0)
    assert (unmasked.regime.rule, unmasked.robust) == ("T3a", False)  # a definiteness margin only


@pytest.mark.parametrize("which", ["output_norm", "residual_norm", "both"])
def test_norms_after_attention_are_named(which: str) -> None:
    head = random_head(np.random.default_rng(1), 6, 2)
    norm = Norm("rms", 1e-6, np.full(6, 2.0))
    names = ["residual_norm", "output_norm"] if which == "both" else [which]
    layer = make_layer([head], **dict.fromkeys(names, norm))
    row = head_dynamics(layer, 0, storage_error=0.0).as_dict()
    assert row["exact"] is False
    assert row["warnings"] == [name.replace("residual", "post") for name in names]
    gain = 2.0 if "output_norm" in names else 1.0
    assert row["alpha"] == pytest.approx(gain * np.linalg.eigvals(head.v @ head.o).real.max())


def full_head(rule: str, seed: int = 0, **options: Any) -> Head:
    """A head of full width (r = d = 4) that is a planted system."""
    w, v = planted(rule, np.random.default_rng(seed), 4)
    return make_head(w.T, np.eye(4), v, np.eye(4), scale=1.0, **options)


def test_what_surrounds_a_head_decides_which_theorem_may_speak() -> None:
    """An unmasked head that T3a or T3b decides, and everything that must silence it."""
    for rule in ("T3a", "T3b"):
        head = full_head(rule)
        plain = describe_head(make_layer([head], causal=False), head, storage_error=0.0).regime
        assert (plain.rule, plain.scope) == (rule, "all_tokens")
        silencing: dict[str, dict[str, Any]] = {
            "a window": {"reach": 2},
            "soft-capping": {"softcap": 30.0},
            "a relative bias": {"encoding": Encoding("alibi", "", bias=distance_bias(1))},
            "a rotation": {"encoding": rope(4)},
            "content": {"encoding": Encoding("cope", "", exact_tables=False)},
        }
        for what, options in silencing.items():
            found = describe_head(make_layer([head], causal=False, **options), head, storage_error=0.0).regime
            assert found.rule not in ("T3a", "T3b"), what
            if what in ("soft-capping", "content", "a rotation"):
                assert found.verdict is Verdict.INDETERMINATE, what
    biased = full_head("T3b", q_bias=np.ones(4))
    assert describe_head(make_layer([biased], causal=False), biased, storage_error=0.0).regime.rule is None
    shifted = full_head("T3b", v_bias=np.ones(4))
    assert describe_head(make_layer([shifted], causal=False), shifted, storage_error=0.0).regime.rule is None
    harmless = full_head("T3b", k_bias=np.ones(4), q_bias=np.zeros(4))
    assert describe_head(make_layer([harmless], causal=False), harmless, storage_error=0.0).regime.rule == "T3b"


def test_a_key_bias_under_rotation_is_a_linear_term() -> None:
    head = random_head(np.random.default_rng(2), 6, 4, k_bias=np.ones(4))
    assert head_setting(make_layer([head], encoding=rope(4)), head).linear_terms
    assert not head_setting(make_layer([head]), head).linear_terms


def test_no_bound_for_rotation_from_weights_alone_helps_t8() -> None:
    """The least bound that holds at every offset of independent phases exceeds lambda_min(sym W~)."""
    for seed, factor in enumerate((1.0, 0.7, 1.5)):
        head = random_head(np.random.default_rng(seed), 6, 4)
        rotary = turning(4, partial=0.5 if seed else None, factor=factor)
        assert (
            head_setting(make_layer([head], encoding=Encoding("rope", "", rotary=rotary)), head).rotary_excess
            == np.inf
        )
        q, k = factor * head.q @ head.o, factor * head.k @ head.o
        bound = 2 * head.scale * np.linalg.norm(q, 2) * np.linalg.norm(k, 2)
        still = head.o.T @ logit_matrix(head, rotary) @ head.o
        assert np.linalg.eigvalsh(sym(still))[0] < bound
        for offset in np.random.default_rng(seed).uniform(-500, 500, 200):
            moved = head.o.T @ logit_matrix(head, rotary, offset) @ head.o
            assert np.linalg.norm(moved - still, 2) <= bound * (1 + 1e-12)


def test_a_decaying_rotation_has_no_bound() -> None:
    rotary = replace(turning(4), decay_F=np.array([0.1, 0.1]))
    head = random_head(np.random.default_rng(3), 6, 4)
    layer = make_layer([head], encoding=Encoding("xpos", "", rotary=rotary), causal=False)
    assert head_setting(layer, head).rotary_excess == np.inf
    assert describe_head(layer, head, storage_error=0.0, context=64).regime.rule != "T8"


def test_only_the_first_heads_may_turn() -> None:
    heads = [random_head(np.random.default_rng(h), 6, 4, index=h) for h in range(2)]
    layer = make_layer(heads, encoding=rope(4, turning_heads=1))
    rows = [head_dynamics(layer, h, storage_error=0.0) for h in range(2)]
    assert rows[0].rope is not None
    assert rows[1].rope is None
    assert head_setting(layer, layer.heads[1]).rotary_excess == 0.0


def test_a_compressed_head_under_rotation_is_not_certified_in_the_wrong_units() -> None:
    """O small and V large: W~ in the thin basis is a million times W~ in that of O, and so is what rotation does."""
    keep = np.diag([1.0, 1.0, 1.0, 0.0])
    head = make_head(np.eye(4), np.eye(4), -1e3 * keep, 1e-3 * np.eye(4), scale=1.0)
    still = describe_head(make_layer([head], causal=False), head, storage_error=0.0).regime
    assert (still.verdict, still.rule, still.scope) == (Verdict.CONVERGES, "T3a", "nu_zero")
    found = describe_head(make_layer([head], causal=False, encoding=rope(4)), head, storage_error=0.0).regime
    assert found.verdict is Verdict.INDETERMINATE


def test_no_head_with_a_rotation_of_all_its_channels_is_certified_by_t8() -> None:
    """2 |Q O||K O| exceeds lambda_min(sym W~): RoPE without a diagonal leaves T8 nothing (section 3)."""
    for seed in range(40):
        head = full_head("T3a", seed)
        layer = make_layer([head], causal=False, encoding=rope(4))
        assert describe_head(layer, head, storage_error=0.0).regime.rule != "T8"


def test_a_dead_head_has_a_row() -> None:
    head = random_head(np.random.default_rng(4), 6, 2)
    dead = replace(head, o=0 * head.o)
    row = head_dynamics(make_layer([dead], encoding=rope(2)), 0, storage_error=0.0).as_dict()
    assert (row["verdict"], row["robust"], row["metastable"], row["cond_VO"]) == ("inactive", False, None, None)
    assert row["pair_index"] is None
    assert row["symU"]["inertia"] == [0, 0, 6]


def test_folding_an_output_gain_scales_the_spectrum(llama: toposcope.Model) -> None:
    layer = llama.layers[0]
    head = fold(layer, layer.heads[0])
    scaled = make_layer([replace(head, layer=0)], output_gain=0.25)
    row = head_dynamics(scaled, 0, storage_error=0.0)
    assert row.regime.alpha == pytest.approx(0.25 * np.linalg.eigvals(head.v @ head.o).real.max())


# --- what a unit, an encoding or a bias changes ---------------------------------------------------------------------

INDICES = ("growth_index", "ov_positivity", "spread_index", "asym_A", "asym_W", "pair_index", "cond_VO", "metastable")


@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1e4])
def test_indices_have_no_unit(scale: float) -> None:
    """Weights in another unit: the same indices and signs, and sizes in that unit."""
    head = random_head(np.random.default_rng(5), 7, 3)
    other = replace(head, q=scale * head.q, k=scale * head.k, v=scale * head.v, o=scale * head.o)
    one, two = (describe_head(make_layer([each]), each, storage_error=0.0).as_dict() for each in (head, other))
    for name in INDICES:
        assert two[name] == pytest.approx(one[name], rel=1e-7), name
    assert one["ov_positivity"] is not None
    for name in ("symU", "symW"):
        assert two[name]["inertia"] == one[name]["inertia"]
        assert two[name]["pos_mass"] == pytest.approx(one[name]["pos_mass"], rel=1e-9)
        for end in ("min", "max"):
            assert two[name][end] == pytest.approx(scale**2 * one[name][end], rel=1e-9)
    assert [two[name] for name in ("verdict", "rule", "scope", "n_pos", "n_neg", "n_zero")] == [
        one[name] for name in ("verdict", "rule", "scope", "n_pos", "n_neg", "n_zero")
    ]
    for name, power in (("alpha", 2), ("omega", 2), ("w_min", 4), ("w_max", 4), ("a_min", 6), ("a_max", 6)):
        assert two[name] == pytest.approx(scale**power * one[name], rel=1e-6), name


def test_the_spectrum_is_printed_to_five_digits_and_conjugates_once() -> None:
    values = np.array([1.2345678 + 2.0000049j, 1.2345678 - 2.0000049j, -0.0012345678, 123456.7, 1e-9j, -1e-9j])
    assert upper_half(values.astype(np.complex128)) == [
        [1.2346, 2.0],
        [-0.0012346, 0.0],
        [123460.0, 0.0],
        [0.0, 1e-9],
    ]


def test_a_narrow_matrix_has_zero_among_its_values_and_a_full_one_need_not() -> None:
    """sym(x x^T) is never negative, and zero in most directions; that of a full matrix may be positive everywhere."""
    x = np.arange(1.0, 6.0)[:, None]
    thin = spectrum(Factored(x, x.T))
    nothing = pytest.approx(0.0, abs=1e-12)
    assert (thin["min"], thin["max"], thin["inertia"]) == (nothing, pytest.approx(55.0), [1, 0, 4])
    below = spectrum(Factored(-x, x.T))
    assert (below["min"], below["max"], below["inertia"]) == (pytest.approx(-55.0), nothing, [0, 1, 4])
    full = spectrum(Factored(np.eye(3), np.diag([1.0, 2.0, 5.0])))
    assert (full["min"], full["max"], full["inertia"]) == (1.0, 5.0, [3, 0, 0])
    turned = spectrum(Factored(np.eye(3), -np.diag([1.0, 2.0, 5.0])))
    assert (turned["min"], turned["max"], turned["pos_mass"]) == (-5.0, -1.0, 0.0)


def test_offsets_are_sampled_below_the_context() -> None:
    """0 and powers of four, up to 4096 tokens where no context is known, ahead too where nothing masks."""
    head = random_head(np.random.default_rng(6), 6, 4)
    steps = [-1, -4, -16, -64, -256, -1024]
    for causal, ahead in ((True, []), (False, [1, 4, 16, 64, 256, 1024])):
        layer = make_layer([head], encoding=rope(4), causal=causal)
        found = describe_head(layer, head, storage_error=0.0).rope
        assert found is not None
        assert list(found["lmin_by_offset"]) == [0, *steps, *ahead]
    layer = make_layer([head], encoding=rope(4))
    short = describe_head(layer, head, storage_error=0.0, context=17).rope
    assert short is not None
    assert list(short["lmin_by_offset"]) == [0, -1, -4, -16]
    assert describe_head(layer, head, storage_error=0.0, rotary=False).rope is None
    assert describe_head(make_layer([head]), head, storage_error=0.0).rope is None


def test_settings_say_what_surrounds_a_head() -> None:
    head = random_head(np.random.default_rng(7), 6, 4)
    plain = Setting(causal=True)
    assert head_setting(make_layer([head]), head) == plain

    def settings_of(**options: Any) -> Setting:
        return head_setting(make_layer([head], **options), head)

    assert settings_of(causal=False) == replace(plain, causal=False)
    assert settings_of(reach=3) == replace(plain, relative_bias=True)
    assert settings_of(softcap=20.0) == replace(plain, bilinear=False)
    assert settings_of(input_norm=Norm("rms", 1e-6)) == replace(plain, norm=True)
    assert settings_of(encoding=Encoding("alibi", "", bias=distance_bias(1))) == replace(plain, relative_bias=True)
    assert settings_of(encoding=Encoding("cope", "", exact_tables=False)) == replace(plain, bilinear=False)
    assert settings_of(encoding=rope(4)) == replace(plain, rotary_excess=np.inf)
    assert settings_of(warnings=("clipped",)) == replace(plain, outside=("left_out",))
    for name in ("q_norm", "k_norm"):
        assert settings_of(**{name: NormSpec("rms", 1e-6)}) == replace(plain, bilinear=False)
    for name, field in (("q_bias", "query_bias"), ("v_bias", "value_bias")):
        biased = replace(head, **{name: np.array([0.0, 0.0, -1e-9, 0.0])})
        assert head_setting(make_layer([head]), biased) == replace(plain, **{field: True})
        assert head_setting(make_layer([head]), replace(head, **{name: np.zeros(4)})) == plain
    keyed = replace(head, k_bias=np.ones(4))
    assert head_setting(make_layer([head]), keyed) == plain
    turned = head_setting(make_layer([head], encoding=rope(4)), keyed)
    assert turned == replace(plain, rotary_excess=np.inf, linear_terms=True)


def test_rotations_that_are_not_exact_or_not_this_heads_do_not_turn_it() -> None:
    heads = [random_head(np.random.default_rng(h), 6, 4, index=h) for h in range(3)]
    some = make_layer(heads, encoding=rope(4, turning_heads=2))
    assert [rotary_of(some, head) is not None for head in heads] == [True, True, False]
    loose = make_layer(heads, encoding=replace(rope(4), exact_tables=False))
    assert rotary_of(loose, heads[0]) is None


def test_reasons_outside_the_theorems_come_in_order() -> None:
    head, norm = random_head(np.random.default_rng(8), 6, 2), Norm("rms", 1e-6)
    assert outside_theorems(make_layer([head])) == ()
    everything = make_layer([head], residual_norm=norm, output_norm=norm, warnings=("assumed",))
    assert outside_theorems(everything) == ("post_norm", "output_norm", "left_out")


def test_rows_carry_the_certificate_of_a_ball() -> None:
    random = np.random.default_rng(9)
    w, v = np.eye(2) + 0.1 * random.standard_normal((2, 2)), -np.eye(2) + 0.1 * random.standard_normal((2, 2))
    head = make_head(w.T, np.eye(2), v, np.eye(2), scale=1.0)
    row = describe_head(make_layer([head], causal=False), head, storage_error=0.0)
    assert row.regime.rule == "T8"
    assert row.robust is False  # whatever its margin: T5 and T6 alone are about the weights
    made = row.as_dict()["certificate"]
    found = row.regime.certificate
    assert found is not None
    assert made == {"S": found.S.tolist(), "N": found.N.tolist(), "w_prime": found.w_prime, "bound": found.bound}
    causal = describe_head(make_layer([head]), head, storage_error=0.0).as_dict()
    assert causal["certificate"] is None
