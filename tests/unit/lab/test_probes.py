"""Probes against independent references: dense Hessians, single-head spectra, gradients sliced by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.unit.lab.making import model, sentences
from toposcope.lab.batches import loss_sum
from toposcope.lab.probes import (
    gradient_norms,
    largest_eigenvalue,
    logit_pairs,
    logit_spectra,
    probe_sentences,
    sharpness,
)
from toposcope.lab.tasks import Batch, find
from toposcope.spectra import contraction


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "encoding", ["none", "rope", "alibi", "t5", "xpos:scale_base=8", "rope@heads:0-1,alibi", "mla", "fire"]
)
def test_spectra_are_those_of_single_heads(encoding: str, causal: bool) -> None:
    made = model(encoding, causal=causal).double()
    ids = sentences(3)
    found = logit_spectra(made, ids)
    x = made.embedded(ids)
    for index, layer in enumerate(made.layers):
        q, k, _ = layer.attention.project(layer.attention_norm(x))
        record, scale = layer.attention.position.record(), layer.attention.scaling
        for head in range(4):
            each = [
                contraction(
                    q[b, head].detach().numpy(),
                    k[b, head].detach().numpy(),
                    record,
                    causal=causal,
                    scale=scale,
                    head=head,
                    route="dense",
                )
                for b in range(3)
            ]
            assert found["rho"][index][head] == pytest.approx(np.median([one.rho for one in each]), rel=1e-5)
            ranks = np.median([one.erank_ratio for one in each])
            assert found["erank_ratio"][index][head] == pytest.approx(ranks, rel=1e-4)
        x = layer(x)


def test_for_input_encodings_the_reference_is_the_content_alone() -> None:
    made = model("sinusoidal")
    same_words = sentences(1).expand(3, -1)
    first, deeper = logit_pairs(made, same_words)
    bare = model("none")
    bare.load_state_dict(made.state_dict(), strict=False)
    torch.testing.assert_close(first[1], next(logit_pairs(bare, same_words))[0])
    # every sentence is the same: all that varies goes with the position, and the reference is one constant
    flat = deeper[1].flatten(2)
    torch.testing.assert_close(flat, flat[..., :1].expand_as(flat), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(deeper[0], deeper[1], atol=1e-2)


def test_gradients_are_split_by_head() -> None:
    for encoding, options in (("rope", {"kv_heads": 2}), ("mla", {})):
        made = model(encoding, **options)
        made(sentences()).square().sum().backward()
        norms = gradient_norms(made)
        for index, layer in enumerate(made.layers):
            whole = torch.cat([p.grad.reshape(-1) for p in layer.parameters()])
            assert norms["layers"][index] == pytest.approx(float(whole.norm()), rel=1e-5)
            attention = layer.attention
            o = attention.o_proj.weight.grad
            for head in range(4):
                columns = o[:, 4 * head : 4 * head + 4]
                assert norms["heads"]["o"][index][head] == pytest.approx(float(columns.norm()), rel=1e-5)
            if encoding == "rope":
                q, k = attention.q_proj.weight.grad, attention.k_proj.weight.grad
                assert norms["heads"]["q"][index][2] == pytest.approx(float(q[8:12].norm()), rel=1e-5)
                assert norms["heads"]["k"][index][1] == pytest.approx(float(k[4:8].norm()), rel=1e-5)
                assert len(norms["heads"]["v"][index]) == 2
            else:
                both = attention.kv_b_proj.weight.grad
                assert norms["heads"]["k"][index][1] == pytest.approx(float(both[8:12].norm()), rel=1e-5)
                assert norms["heads"]["v"][index][1] == pytest.approx(float(both[12:16].norm()), rel=1e-5)


@pytest.mark.parametrize("encoding", ["rope", "t5"])
def test_sharpness_is_the_largest_eigenvalue_of_the_dense_hessian(encoding: str) -> None:
    made = model(encoding, width=4, heads=2, ff=4, layers=1, vocabulary=5, classes=3, length=6).double()
    ids = sentences(4, 6, vocabulary=5)
    batch = Batch(ids, torch.full((4,), 6), torch.tensor([0, 1, 2, 0]))
    names = [name for name, _ in made.named_parameters()]
    sizes = [parameter.numel() for parameter in made.parameters()]
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in made.parameters()])

    def loss(flat_P: torch.Tensor) -> torch.Tensor:
        parts = dict(zip(names, flat_P.split(sizes), strict=True))
        shaped = {name: parts[name].view_as(parameter) for name, parameter in made.named_parameters()}
        return loss_sum(torch.func.functional_call(made, shaped, (ids,)), batch.labels) / 4

    with sdpa_kernel(SDPBackend.MATH):
        hessian = torch.autograd.functional.hessian(loss, flat)
    found = sharpness(made, batch, iterations=40)
    assert found["value"] == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-6)
    assert found["residual"] < 1e-4
    assert all(parameter.grad is None for parameter in made.parameters())


def test_lanczos_finds_the_top_and_says_how_well() -> None:
    generator = torch.Generator().manual_seed(0)
    square = torch.randn(60, 60, generator=generator, dtype=torch.float64)
    matrix = square + square.mT
    start = torch.randn(60, generator=generator, dtype=torch.float64)
    values = torch.linalg.eigvalsh(matrix)
    for iterations in (4, 10, 60):
        value, residual = largest_eigenvalue(lambda v: matrix @ v, start, iterations)
        assert (values - value).abs().min() <= residual * abs(value) + 1e-9
        assert value <= float(values[-1]) + 1e-9
    assert value == pytest.approx(float(values[-1]), rel=1e-9)
    assert largest_eigenvalue(lambda v: 3 * v, start, 5)[0] == pytest.approx(3.0)


def test_probe_sentences_have_no_padding() -> None:
    ids = probe_sentences(find("distance"), 4, seed=0)
    assert len(ids) == 4
    assert (ids > 0).all()
