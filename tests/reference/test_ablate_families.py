"""Ablation against transformers itself: resumed runs are full ones, removed heads are zeroed columns, proofs hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import toposcope.models.ablation.check
from tests.reference.tiny import BUILDERS, build
from toposcope.checkpoints.live import view
from toposcope.core.errors import BadValue
from toposcope.models.ablation.check import prove
from toposcope.models.ablation.resume import Resumable
from toposcope.models.ablation.runner import AblationRunner, Heads, TextTrials, ablation_runner, texts_of
from toposcope.models.about import weights_digest
from toposcope.models.corpus import Corpus
from toposcope.models.instrument import attached
from toposcope.models.intervene import ablated
from toposcope.models.load import Reference
from toposcope.models.score import trial_loss

FULL = {"t5": "decoder", "albert": "several times"}
NAMES = list(BUILDERS)


def texts(model: Any, names: tuple[str, ...] = ("text",), count: int = 2) -> tuple[TextTrials, ...]:
    rng = np.random.default_rng(3)
    sequences = tuple(rng.integers(4, 50, 15) for _ in range(count))
    tokenizer = SimpleNamespace(mask_token_id=3, all_special_ids=[0, 1, 2, 3])
    return texts_of(Reference(Path("tiny"), model, tokenizer), Corpus("random", sequences, "random"), names)


def some_heads(runner: AblationRunner) -> list[Heads]:
    last = len(runner.sizes) - 1
    return [((0, 1),), ((last, 3),), ((0, 0), (0, 2)), ((0, 1), (last, 2))]


@pytest.mark.parametrize("name", NAMES)
def test_resumed_runs_are_full_runs(name: str) -> None:
    model = build(name)
    given = texts(model)
    with ablation_runner(model, given) as resumed, ablation_runner(model, given, resume=False) as full:
        if name in FULL:
            assert FULL[name] in str(resumed.resumable.reason)
        else:
            assert resumed.resumable.reason is None
        removals = [((layer, layer % 4),) for layer in range(len(resumed.sizes))] + some_heads(resumed)
        resumed.measure(removals)
        full.measure(removals)
        for heads in [(), *removals]:
            np.testing.assert_allclose(resumed.losses(heads), full.losses(heads), atol=1e-6, rtol=0)
            assert not heads or not np.array_equal(full.losses(heads), full.losses(()))


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "bloom", "deepseek_v3"])
def test_earlier_blocks_are_not_computed(name: str) -> None:
    model = build(name)
    each = texts(model)[0].trials[0]
    with attached(model) as instrument, torch.no_grad():
        resumable = Resumable(instrument)
        full = resumable.record(each.inputs).logits
        ran: list[int] = []
        for site in instrument.sites:
            site.module.register_forward_hook(lambda *_, number=site.number: ran.append(number))
        assert torch.equal(resumable.run(each.inputs, 2).logits, full)
        assert ran == [2]
        assert torch.equal(resumable.run(each.inputs, 0).logits, full)
        assert ran == [2, 0, 1, 2]
        assert resumable.bytes_kept(15) == 4 * 3 * 15 * 32
        assert [resumable.share(layer) for layer in range(3)] == pytest.approx([1, 2 / 3, 1 / 3])


def test_blocks_that_share_more_than_their_output_are_run_in_full() -> None:
    """A model whose last block reads what the first one's attention left behind: resuming would be wrong."""
    model = build("llama")
    left: list[int] = []
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: left.append(1))
    model.model.layers[2].register_forward_hook(lambda module, args, out: out + left.pop() if left else out)
    with ablation_runner(model, texts(model)) as resumed, ablation_runner(model, texts(model), resume=False) as full:
        assert "share" in str(resumed.resumable.reason)
        for runner in (resumed, full):
            runner.measure([((2, 1),)])
        assert resumed.losses(((2, 1),)).tolist() == full.losses(((2, 1),)).tolist()


@pytest.mark.parametrize(
    "name", ["llama", "qwen3", "gemma", "gpt_neox", "gpt2", "bert", "bloom", "t5", "deepseek_v3"]
)
def test_a_removed_head_is_a_zeroed_part_of_the_output_projection(name: str) -> None:
    """The score without a head is, to the last bit, that of a model whose weights lack it."""
    model = build(name)
    given = texts(model)
    parameters = dict(model.named_parameters())
    with ablation_runner(model, given, resume=False) as runner:
        removals = [((layer, head),) for layer, size in enumerate(runner.sizes) for head in (layer % size, size - 1)]
        runner.measure(removals)
    for ((layer, head),), spec in ((heads, view(model).layers[heads[0][0]].spec) for heads in removals):
        weight = parameters[spec.o.weight]
        kept = weight.detach().clone()
        part = slice(head * spec.value_width, (head + 1) * spec.value_width)
        with torch.no_grad():
            (weight[part] if spec.o.transposed else weight[:, part]).zero_()
            theirs = [float(trial_loss(each, model(**each.inputs))) for each in given[0].trials]
            weight.copy_(kept)
        assert runner.losses(((layer, head),)).tolist() == theirs


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, "zero") for name in NAMES),
        *((name, "mean") for name in ("llama", "albert", "deepseek_v3")),
        *((name, "resample") for name in ("llama", "bloom")),
    ],
)
def test_the_proof_holds(name: str, method: Any) -> None:
    model = build(name)
    trials = texts(model)[0].trials
    with attached(model) as instrument:
        heads = [(site.number, head) for site in instrument.sites for head in range(site.heads)]
    before = weights_digest(model)
    found = prove(model, heads, trials, method=method)
    assert found.holds
    assert len(found.heads) == len(heads)
    assert all(each.output_changed for each in found.heads)
    assert found.weights_before == found.weights_after == before == weights_digest(model)


@contextmanager
def _two_heads(model: Any, layer: int, head: int, *, by: Any) -> Iterator[None]:
    with ablated(model, layer, [head, head - 1], by=by):
        yield


@contextmanager
def _nothing(model: Any, layer: int, head: int, *, by: Any) -> Iterator[None]:
    yield


@contextmanager
def _layer_before(model: Any, layer: int, head: int, *, by: Any) -> Iterator[None]:
    with ablated(model, layer, head, by=by), ablated(model, layer - 1, head, by=by):
        yield


@contextmanager
def _for_good(model: Any, layer: int, head: int, *, by: Any) -> Iterator[None]:
    with ablated(model, layer, head, by=by):
        yield
    with torch.no_grad():
        model.get_parameter("lm_head.weight")[0, 0] += 1


@pytest.mark.parametrize(
    ("wrong", "broken"),
    [
        (_two_heads, {"others_same"}),
        (_nothing, {"replaced"}),
        (_layer_before, {"earlier_same", "others_same"}),
        (_for_good, {"undone"}),
    ],
)
def test_the_proof_fails_where_it_should(wrong: Any, broken: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model = build("llama")
    monkeypatch.setattr(toposcope.models.ablation.check, "ablated", wrong)
    found = prove(model, [(1, 2)], texts(model)[0].trials)
    assert not found.holds
    (each,) = found.heads
    names = {"replaced", "others_same", "earlier_same", "undone"}
    assert {name for name in names if not getattr(each, name)} == broken
    assert (found.weights_before == found.weights_after) == (wrong is not _for_good)


@pytest.mark.parametrize("name", ["llama", "bert", "bloom", "t5", "deepseek_v3"])
def test_means_and_other_sequences_stand_in(name: str) -> None:
    """What stands in is computed here once more, from what enters the output projection by torch's own hook."""
    model = build(name)
    given = texts(model, count=3)
    spec = view(model).layers[1].spec
    entered: list[Any] = []
    projection = model.get_submodule(spec.o.weight.rpartition(".")[0])
    handle = projection.register_forward_pre_hook(lambda _, args: entered.append(args[0][0].clone()))
    with torch.no_grad():
        for each in given[0].trials:
            model(**each.inputs)
    handle.remove()
    part = slice(2 * spec.value_width, 3 * spec.value_width)
    mean = torch.cat(entered)[:, part].double().mean(0).float()

    def replaced(number: int, by: Any) -> float:
        def put(_: Any, args: Any) -> Any:
            changed = args[0].clone()
            changed[..., part] = by
            return (changed, *args[1:])

        hook = projection.register_forward_pre_hook(put)
        with torch.no_grad():
            found = float(trial_loss(given[0].trials[number], model(**given[0].trials[number].inputs)))
        hook.remove()
        return found

    heads: Heads = ((1, 2),)
    with ablation_runner(model, given, method="mean") as runner:
        runner.measure([heads])
        expected = [replaced(number, mean) for number in range(3)]
        np.testing.assert_allclose(runner.losses(heads), expected, atol=1e-6)
    with ablation_runner(model, given, method="resample", seed=1) as runner:
        runner.measure([heads])
        for number, found in enumerate(runner.losses(heads)):
            others = [replaced(number, entered[other][:, part]) for other in range(3) if other != number]
            assert min(abs(found - other) for other in others) <= 1e-6


def test_resampling_needs_a_partner() -> None:
    model = build("llama")
    with (
        ablation_runner(model, texts(model, count=1), method="resample") as runner,
        pytest.raises(BadValue, match="--method"),
    ):
        runner.measure([((0, 0),)])
