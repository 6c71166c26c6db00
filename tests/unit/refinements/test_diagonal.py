"""The diagonal: longer queries and keys against the term written out, in both forms, with shared keys and without."""

from __future__ import annotations

import copy
import gc
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.reference.tiny import build, inputs
from toposcope import refinements as refine
from toposcope.core.errors import BadConfig, BadFile, BadValue
from toposcope.lab.model import ModelConfig, Transformer
from toposcope.models.swap_encoding import swap_encoding
from toposcope.refinements.diagonal import Diagonal, save


def _spread(installed: refine.Installed, seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for raw in installed.parameters():
            raw.copy_(2 * torch.randn(raw.shape, generator=generator, dtype=raw.dtype))


def _lab(**changes: Any) -> Transformer:
    settings: dict[str, Any] = {"width": 16, "layers": 2, "heads": 4, "ff": 24, "encoding": "rope", "causal": True}
    return Transformer(ModelConfig(20, 7, 32, reads="token", **{**settings, **changes})).eval()


@pytest.mark.parametrize("form", ["slice", "uniform"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_longer_vectors_give_the_term_exactly(form: Any, groups: int) -> None:
    generator = torch.Generator().manual_seed(groups)
    q = torch.randn(2, 4, 6, 5, generator=generator, dtype=torch.float64)
    k = torch.randn(2, groups, 6, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(2, 6, 12, generator=generator, dtype=torch.float64)
    part = Diagonal(12, 4, form=form, start=0.3).double()
    with torch.no_grad():
        part.raw.copy_(torch.randn(part.raw.shape, generator=generator, dtype=torch.float64))
    longer_q, longer_k = part.appended(q, k, x, 0.37)
    ours = 0.37 * longer_q @ longer_k.mT
    theirs = 0.37 * q @ k.repeat_interleave(4 // groups, 1).mT
    for head in range(4):
        d = torch.zeros(12, dtype=torch.float64)
        if form == "slice":
            d[3 * head : 3 * head + 3] = part()[head].detach()
        else:
            d += part()[0].detach()
        assert torch.allclose(ours[:, head], theirs[:, head] + x @ torch.diag(d) @ x.mT, atol=1e-12)
    assert (part() > 0).all()


def test_d_starts_where_it_is_told_and_never_falls_below() -> None:
    part = Diagonal(8, 2, form="uniform", start=0.01, least=2.0)
    assert torch.allclose(part(), torch.full((1, 8), 2.01))
    with torch.no_grad():
        part.raw.fill_(-200.0)
    assert (part() >= 2.0).all()
    alone = Diagonal(8, 2, start=1e-3)
    with torch.no_grad():
        alone.raw.fill_(-200.0)
    loss = alone.appended(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), torch.ones(1, 3, 8), 0.5)[0].sum()
    loss.backward()
    assert (alone() > 0).all()
    assert torch.isfinite(alone.raw.grad).all()


@pytest.mark.parametrize("form", ["slice", "uniform"])
@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gpt2"])
def test_installed_changes_the_model_and_removed_leaves_it(name: str, form: Any) -> None:
    model, given = build(name), inputs(name)
    names = list(model.state_dict())
    with torch.no_grad():
        before = model(**given).logits
        with refine.with_diagonal(model, form=form, start=1e-12):
            assert torch.allclose(model(**given).logits, before, atol=1e-5)
        with refine.with_diagonal(model, form=form, start=0.05) as installed:
            _spread(installed)
            assert not torch.allclose(model(**given).logits, before, atol=1e-3)
            assert sum(p.numel() for p in installed.parameters()) == 3 * 32
        assert torch.equal(model(**given).logits, before)
    assert list(model.state_dict()) == names


@pytest.mark.parametrize("form", ["slice", "uniform"])
def test_fused_attention_takes_it(form: Any) -> None:
    """With only the kernel allowed that never holds n x n numbers; it wants values as wide as queries."""
    ids = torch.randint(3, 20, (1, 8), generator=torch.Generator().manual_seed(1))
    for model in (build("llama"), _lab()):
        with torch.no_grad(), refine.with_diagonal(model, form=form, start=0.05) as installed:
            _spread(installed)
            expected = model(ids)
            with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
                ours = model(ids)
        assert torch.allclose(getattr(ours, "logits", ours), getattr(expected, "logits", expected), atol=1e-5)


def test_it_stays_in_force_when_nobody_holds_it() -> None:
    for model in (build("llama"), _lab()):
        ids = torch.arange(3, 12)[None]
        with torch.no_grad():
            before = model(ids)
            refine.install(model, form="uniform", start=0.5)
            gc.collect()
            after = model(ids)
        assert not torch.allclose(getattr(after, "logits", after), getattr(before, "logits", before), atol=1e-4)
        with pytest.raises(BadConfig, match="Remove it"):
            copy.deepcopy(model)


def test_padding_stays_hidden() -> None:
    model = build("llama")
    ids = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    with refine.with_diagonal(model, start=0.05) as installed, torch.no_grad():
        _spread(installed)
        first = model(input_ids=ids, attention_mask=mask).logits[1, 4:]
        ids[1, :4] = 7
        assert torch.allclose(model(input_ids=ids, attention_mask=mask).logits[1, 4:], first, atol=1e-5)


@pytest.mark.parametrize("form", ["slice", "uniform"])
def test_gradients_reach_d_by_finite_differences(form: Any) -> None:
    model, given = build("gpt_neox").double(), inputs("gpt_neox", batch=1, length=7)  # its norms stay in float64
    with refine.with_diagonal(model, form=form, start=0.02, layers=[0]) as installed:
        _spread(installed)
        names = [name for name, _ in model.named_parameters() if name.endswith("added_diagonal.raw")]

        def loss(*raws: torch.Tensor) -> torch.Tensor:
            changed = dict(zip(names, raws, strict=True))
            return (
                torch.func.functional_call(model, changed, kwargs={**given, "use_cache": False}).logits.pow(2).mean()
            )

        values = [raw.detach().clone().requires_grad_() for raw in installed.parameters()]
        assert torch.autograd.gradcheck(loss, values, atol=1e-6)


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("form", ["slice", "uniform"])
def test_in_the_labs_model_against_the_term_written_out(form: Any, kv_heads: int) -> None:
    model = _lab(kv_heads=kv_heads).double()
    ids = torch.randint(0, 20, (3, 11), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        before = model(ids)
        installed = refine.install(model, form=form, start=0.03)
        _spread(installed)
        ours = model(ids)
        values = installed.values()
        groups = refine.parameter_groups(model, weight_decay=0.1, lr=1e-3, diagonal_lr=0.1)
        installed.remove()
        assert torch.equal(model(ids), before)

        def written_out(number: int, seen: list[Any]) -> Any:
            def attend(module: Any, q: Any, k: Any, v: Any, mask: Any, *, scaling: float, **rest: Any) -> Any:
                k, v = (side.repeat_interleave(4 // kv_heads, 1) for side in (k, v))
                x, d = seen.pop(), values[number]
                logits = scaling * q @ k.mT
                for head in range(4):
                    whole = x if form == "uniform" else x[..., 4 * head : 4 * head + 4]
                    row = d[0] if form == "uniform" else d[head]
                    logits[:, head] += (whole * row) @ whole.mT
                hidden = torch.ones(11, 11, dtype=torch.bool).triu(1)
                return (logits.masked_fill(hidden, -math.inf).softmax(-1) @ v).transpose(1, 2), None

            return attend

        for number, layer in enumerate(model.layers):
            seen: list[Any] = []
            layer.attention.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0]))
            layer.attention.attend = written_out(number, seen)
        assert torch.allclose(model(ids), ours, atol=1e-10)
    assert [group.get("lr") for group in groups] == [1e-3, 0.1]
    assert groups[1]["weight_decay"] == 0.0
    assert sum(p.numel() for p in groups[1]["params"]) == 2 * 16


def test_saved_and_loaded(tmp_path: Path) -> None:
    model, given = build("llama"), inputs("llama")
    with torch.no_grad(), refine.with_diagonal(model, form="uniform", start=0.01, layers=[0, 2]) as installed:
        _spread(installed)
        expected = model(**given).logits
        installed.save(tmp_path / "d.safetensors")
    installed = refine.load(model, tmp_path / "d.safetensors")
    with torch.no_grad():
        assert torch.allclose(model(**given).logits, expected, atol=1e-5)
    assert sorted(installed.parts) == [0, 2]
    installed.remove()
    (tmp_path / "no.safetensors").write_bytes(b"nothing")
    with pytest.raises(BadFile, match="no diagonal"):
        refine.load(model, tmp_path / "no.safetensors")
    other = build("gpt_neox")
    with torch.no_grad(), refine.with_diagonal(model, form="slice", layers=[0]) as installed:
        installed.save(tmp_path / "slice.safetensors")
    refine.load(other, tmp_path / "slice.safetensors").remove()


def test_other_uses_of_the_model_at_the_same_time() -> None:
    """Another encoding acts where no diagonal is, and is refused where it would have no effect; neither disturbs."""
    model, given = build("llama"), inputs("llama")
    with torch.no_grad(), refine.with_diagonal(model, start=0.05, layers=[0, 1]) as installed:
        _spread(installed)
        ours = model(**given).logits
        with swap_encoding(model, "none", layers=[2]):
            assert not torch.allclose(model(**given).logits, ours, rtol=0, atol=1e-4)
        with pytest.raises(BadValue, match="layer 0"), swap_encoding(model, "none"):
            pass
        assert torch.equal(model(**given).logits, ours)


def test_what_cannot_be_done_is_said() -> None:
    model, given = build("llama"), inputs("llama")
    with refine.with_diagonal(model):
        with pytest.raises(BadValue, match="installed already"):
            refine.install(model)
        past = model(**given, use_cache=True).past_key_values
        with pytest.raises(BadConfig, match="use_cache=False"):
            model(input_ids=given["input_ids"][:, :1], past_key_values=past)
    with pytest.raises(BadValue, match="uniform"):
        Diagonal(8, 2, form="whole")  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="equal slices"):
        Diagonal(9, 2)
    with pytest.raises(BadValue, match="positive"):
        Diagonal(8, 2, start=0.0)
    with pytest.raises(BadConfig, match="Bloom"):
        refine.install(build("bloom"))
    with pytest.raises(BadConfig, match="soft-capping"), refine.with_diagonal(gemma := build("gemma2")):
        gemma(**inputs("gemma2"))
    with pytest.raises(BadValue, match="to 1"):
        refine.install(_lab(), layers=[2])


def test_the_same_values_give_the_same_file_byte_by_byte(tmp_path: Path) -> None:
    written = (save(tmp_path / "d.safetensors", {0: torch.ones(2, 3)}, "slice") for _ in range(20))
    assert len({path.read_bytes() for path in written}) == 1
