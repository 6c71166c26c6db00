"""Models on a device that is not the CPU (a pretended one), in half precision, in batches, and out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from tests.unit.models.making import TEXT, write_bert, write_llama, write_llama_lm
from toposcope.core.errors import BadConfig, BadValue
from toposcope.core.fields import plain
from toposcope.core.result import Computation
from toposcope.models.load import Reference, load_reference

torch = pytest.importorskip("torch", reason="running a model needs torch: pip install torch")
pytest.importorskip("transformers", reason="running a model needs transformers: pip install transformers")

from tests.devices import AWAY, Mixed, away, move, pretended  # noqa: E402 - needs torch
from toposcope.models import device as devices  # noqa: E402
from toposcope.models.rounding import in_float32, is_rounded  # noqa: E402

SMALL: dict[str, Any] = {"tokens": 16, "sequences": 3}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("lm")
    write_llama_lm(directory)
    (directory / "text.txt").write_text(TEXT * 8)
    return directory


@pytest.fixture
def reference(place: Path) -> Reference:
    return load_reference(place, head=True, attention="sdpa")


def elsewhere(reference: Reference, where: str | Callable[[str], str] = AWAY) -> Reference:
    return Reference(reference.path, move(deepcopy(reference.model), where), reference.tokenizer)


def bare(result: Any) -> Any:
    """A result without what must differ: where it ran, the time it took, the hash of another dtype."""
    found = plain(result)
    for name in ("provenance", "key", "seconds_per_step", "weights_before", "weights_after"):
        found.pop(name, None)
    return found


VERBS: dict[str, Callable[[Any, Path], Any]] = {
    "loss": lambda model, text: toposcope.loss(
        model, text, encoding=["none", "alibi", "t5", "rope:base=100", "sinusoidal", "fire"], **SMALL
    ),
    "loss each": lambda model, text: toposcope.loss(model, text, encoding="none", each="head", layers="1", **SMALL),
    "loss batch": lambda model, text: toposcope.loss(model, text, encoding="xpos", batch=3, **SMALL),
    "trace": lambda model, text: toposcope.trace(model, text, depth=True, verify=True, jobs=1, **SMALL),
    "trace encoding": lambda model, text: toposcope.trace(model, text, encoding="alibi", batch=2, **SMALL),
    "trace random": lambda model, text: toposcope.trace(model, "random", **SMALL),
    "ablate": lambda model, text: toposcope.ablate(model, text, pairs="layer0", **SMALL),
    "ablate mean": lambda model, text: toposcope.ablate(model, text, method="mean", batch=4, only="text", **SMALL),
    "ablate resample": lambda model, text: toposcope.ablate(model, text, method="resample", only="text", **SMALL),
    "ablate screen": lambda model, text: toposcope.ablate(model, text, mode="screen", sample=3, **SMALL),
    "ablate check": lambda model, text: toposcope.ablate_check(model, text, method="mean", tokens=8),
    "refine": lambda model, text: toposcope.refine(model, text=text, steps=3, tokens=16, held_out=3),
    "refine uniform": lambda model, text: toposcope.refine(
        model, text=text, steps=2, tokens=16, held_out=2, form="uniform", diagonal="bound", norms=True, batch=2
    ),
}


@pytest.mark.sample(6, of="verbs elsewhere")
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_meets_no_tensor_of_another_device(reference: Reference, place: Path, verb: str) -> None:
    """The numbers lie in the same memory, so they are the same to the bit."""
    ours = VERBS[verb](reference, place / "text.txt")
    with pretended():
        theirs = VERBS[verb](elsewhere(reference), place / "text.txt")
    assert bare(theirs) == bare(ours)
    ran = theirs.provenance.ran
    assert (ran.device, ran.dtype, ran.attention) == (AWAY, "float32", "sdpa")
    assert not ran.repeatable  # mps promises nothing
    assert ours.provenance.ran == Computation("cpu", "float32", "sdpa")


def test_a_live_check_meets_none(reference: Reference) -> None:
    """`generate` is left out: transformers asks the real device for its random numbers."""
    ours = toposcope.check(reference.model)
    with pretended():
        theirs = toposcope.check(elsewhere(reference).model)
    ways = [each for each in theirs.findings if each.id == "parity"]
    assert len(ways) == 2
    (lost,) = (each for each in ways if each.status == "cannot_tell")
    assert "not linked with support for mps" in lost.explanation
    same = [each for each in theirs.findings if each.id != "parity"]
    assert same == [each for each in ours.findings if each.id != "parity"]
    assert plain(theirs.by_layer) == plain(ours.by_layer)
    assert (theirs.device, ours.device) == (AWAY, "cpu")


@pytest.mark.sample(2, of="architectures elsewhere")
@pytest.mark.parametrize("kind", ["bert", "bloom", "gpt2", "t5"])
def test_other_architectures_meet_none(tmp_path: Path, kind: str) -> None:
    model, _ = _other(kind, tmp_path)
    reference = Reference(tmp_path, model, load_reference(_llama(tmp_path / "words")).tokenizer)
    text = tmp_path / "text.txt"
    text.write_text(TEXT * 8)

    def run(given: Any) -> list[Any]:
        found = [toposcope.ablate(given, text, mode="exact", only="text", tokens=12, sequences=2)]
        if kind != "t5":
            found.append(toposcope.trace(given, text, tokens=12, sequences=2))
        if kind in ("bloom", "gpt2"):
            found.append(toposcope.loss(given, text, encoding="none", tokens=12, sequences=2))
        return found

    ours = run(reference)
    with pretended():
        theirs = run(elsewhere(reference))
    assert [bare(each) for each in theirs] == [bare(each) for each in ours]


def test_contexts_meet_none(reference: Reference) -> None:
    ids = torch.tensor([[2, 3, 4, 5, 6, 7]])
    with pretended():
        model = elsewhere(reference).model
        there = ids.to(AWAY)
        with toposcope.captured(model) as trace, toposcope.ablated(model, 0, 1, by=torch.ones(1, 6)):
            model(input_ids=there)
        assert str(trace[1].query_BHNR.device) == AWAY
        with toposcope.swap_encoding(model, "rope-partial", heads=[(0, 1), (2, 3)]):
            cached = model(input_ids=there[:, :4], use_cache=True).past_key_values
            model(input_ids=there[:, 4:], past_key_values=cached)


def test_a_model_over_two_devices(reference: Reference, place: Path) -> None:
    """As accelerate spreads one: a layer's inputs are brought to it."""
    from toposcope.models.ablation.runner import ablation_runner, texts_of
    from toposcope.models.corpus import cut

    with pretended():
        spread = elsewhere(reference, lambda name: "mps:1" if ".1." in name else "mps:0")
        for layer in spread.model.model.layers:
            layer.register_forward_pre_hook(_brought, with_kwargs=True)
        spread.model.model.norm.register_forward_pre_hook(lambda module, args: (args[0].to("mps:0"),))
        corpus = cut(spread, TEXT * 8, tokens=16, count=2)
        for method in ("zero", "mean", "resample"):
            texts = texts_of(spread, corpus, ["text"])
            with ablation_runner(spread.model, texts, method=method, batch=2) as runner:
                runner.measure(runner.all_heads())
        found = toposcope.ablate(spread, place / "text.txt", mode="screen", sample=2, only="text", **SMALL)
        toposcope.loss(spread, place / "text.txt", encoding="alibi", **SMALL)
        toposcope.trace(spread, place / "text.txt", **SMALL)
    assert found.provenance.ran is not None
    assert found.provenance.ran.device == "mps:0, mps:1"


def _brought(layer: Any, args: Any, kwargs: Any) -> Any:
    there = layer.self_attn.q_proj.weight.device

    def bring(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(there)
        return tuple(map(bring, value)) if isinstance(value, tuple) else value

    return tuple(map(bring, args)), {name: bring(value) for name, value in kwargs.items()}


# ------------------------------------------------- the pretended device itself
def test_a_planted_tensor_of_the_cpu_is_caught(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the tests above rest on."""
    ids = torch.tensor([[2, 3, 4]])
    with pretended():
        model = elsewhere(reference).model
        with pytest.raises(Mixed):
            model(input_ids=ids)
        model(input_ids=ids.to(AWAY))
        hook = model.model.layers[0].register_forward_hook(lambda *_: _[-1] + torch.ones(3, 24))
        with pytest.raises(Mixed):
            model(input_ids=ids.to(AWAY))
        hook.remove()
        from toposcope.models import attend

        monkeypatch.setattr(attend, "there", lambda numbers, like: torch.from_numpy(np.array(numbers)).to(like.dtype))
        with pytest.raises(Mixed), toposcope.swap_encoding(model, "rope:base=7"):
            model(input_ids=ids.to(AWAY))


def test_pretended_tensors_behave_as_on_a_device() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    with pretended():
        there = x.to(AWAY)
        assert str(there.device) == AWAY
        assert there.cpu().device.type == "cpu"
        assert torch.equal((there * 2).cpu(), x * 2)
        assert str(torch.zeros(2, device=there.device).device) == AWAY
        assert str(there.new_ones(2).device) == str(torch.empty_like(there).device) == AWAY
        assert str((there + torch.tensor(1.0)).device) == AWAY  # a single number may come from the CPU
        for mixed in (
            lambda: there + x,
            lambda: torch.cat([there, x]),
            lambda: there[torch.tensor([0])],
            lambda: there.index_select(0, torch.tensor([0])),
            lambda: torch.nn.functional.linear(there, x),
            lambda: there + x.to("mps:1"),
        ):
            with pytest.raises(Mixed):
                mixed()
        for impossible in (there.numpy, there.double, lambda: np.asarray(there), lambda: away(x.double())):
            with pytest.raises(TypeError):
                impossible()
        there.copy_(x + 1)
        assert torch.equal(there.cpu(), x + 1)
        copy = there.cpu()
        copy += 1
        assert torch.equal(there.cpu(), x + 1)
        weight = there.clone().requires_grad_()
        (weight @ there.T).sum().backward()
        assert str(weight.grad.device) == AWAY


# ------------------------------------------------------------- half precision
@pytest.mark.sample(4, of="verbs in half precision")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("verb", ["loss", "trace", "ablate", "ablate screen", "ablate check", "refine"])
def test_half_precision(place: Path, verb: str, dtype: str) -> None:
    """Every verb runs, names it, and carries a rounding floor that holds for the loss."""
    reference = load_reference(place, head=True, attention="sdpa", dtype=dtype)
    found = VERBS[verb](reference, place / "text.txt")
    ran = found.provenance.ran
    assert ran.dtype == dtype
    if verb == "ablate check":
        assert found.holds
        return
    assert 0 < ran.rounding < 0.1
    if verb == "loss":
        wide = VERBS[verb](load_reference(place, head=True, attention="sdpa"), place / "text.txt")
        assert abs(found.conditions[0].loss - wide.conditions[0].loss) <= ran.rounding


@pytest.mark.sample(3, of="float32 beside")
@pytest.mark.parametrize(
    ("kind", "at_once"), [("llama", False), ("llama", True), ("bert", False), ("bloom", False), ("t5", True)]
)
def test_float32_beside_half_precision_is_that_of_a_float32_copy(tmp_path: Path, kind: str, at_once: bool) -> None:
    model, inputs = _other(kind, tmp_path)
    model = model.to(torch.bfloat16)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert is_rounded(model)
    with torch.no_grad():
        theirs = deepcopy(model).float()(**inputs)[0]
        with in_float32(model, at_once=at_once):
            ours = model(**inputs)[0]
        again = model(**inputs)[0]
    assert ours.dtype == torch.float32
    assert torch.equal(ours, theirs)
    assert again.dtype == torch.bfloat16
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_run_that_fails_leaves_the_weights_as_they_were(reference: Reference) -> None:
    model = reference.model.to(torch.bfloat16)
    handle = model.model.layers[1].mlp.down_proj.register_forward_pre_hook(_fails)
    with pytest.raises(KeyError), in_float32(model):
        model(input_ids=torch.tensor([[1, 2]]))
    handle.remove()
    assert {each.dtype for each in model.parameters()} == {torch.bfloat16}


def _fails(*_: Any) -> None:
    raise KeyError


# -------------------------------------------------------------------- batches
@pytest.mark.sample(1, of="batches")
@pytest.mark.parametrize("batch", [2, 3, 100])
def test_batches_change_nothing_but_rounding(reference: Reference, place: Path, batch: int) -> None:
    text = place / "text.txt"
    one, many = (toposcope.loss(reference, text, encoding=["none"], batch=size, **SMALL) for size in (1, batch))
    for ours, theirs in zip(one.conditions, many.conditions, strict=True):
        assert theirs.by_sequence == pytest.approx(ours.by_sequence, abs=2e-6)
    for method in ("zero", "mean", "resample"):
        ours, theirs = (
            toposcope.ablate(reference, text, method=method, pairs="1", batch=size, **SMALL) for size in (1, batch)
        )
        for first, second in zip(ours.heads, theirs.heads, strict=True):
            assert second.name == first.name
            for on, losses in first.losses.items():
                assert second.losses[on] == pytest.approx(losses, abs=2e-6)
        assert [each.damage for each in theirs.pairs] == pytest.approx([each.damage for each in ours.pairs], abs=4e-6)
    ours, theirs = (toposcope.trace(reference, text, batch=size, **SMALL) for size in (1, batch))
    for first, second in zip(ours.heads, theirs.heads, strict=True):
        assert second.median("rho") == pytest.approx(first.median("rho"), rel=1e-4)
        assert second.score("previous") == pytest.approx(first.score("previous"), abs=1e-5)
        assert second.score("induction") == pytest.approx(first.score("induction"), abs=1e-5)


def test_a_batch_runs_the_model_less_often(reference: Reference, place: Path) -> None:
    seen: list[int] = []
    reference.model.model.layers[2].register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[0]))
    counts = []
    for batch in (1, 4):
        seen.clear()
        toposcope.ablate(reference, place / "text.txt", layers="2", only="text", batch=batch, **SMALL)
        counts.append(list(seen))
    assert max(counts[0]) == 1
    assert max(counts[1]) == 4
    assert len(counts[0]) - len(counts[1]) == 9  # 4 heads on 3 sequences: 3 runs in place of 12


# ------------------------------------------------------------------ the choice
def test_what_can_be_asked_for() -> None:
    assert devices.placement() == devices.Placement("cpu", "float32", None, asked=False)
    assert devices.placement("cpu", "bfloat16") == devices.Placement("cpu", "bfloat16", None, asked=True)
    assert devices.placement(device_map="auto").device_map == "auto"


@pytest.mark.parametrize(
    "asked",
    [
        {"device": "cuda"},
        {"device": "cuda:7"},
        {"device": "mps"},
        {"device": "gpu"},
        {"device": "cuda:x"},
        {"dtype": "int8"},
        {"device_map": "balanced"},
        {"device": "cpu", "device_map": "auto"},
    ],
)
def test_what_cannot(asked: dict[str, str]) -> None:
    with pytest.raises(BadValue) as error:
        devices.placement(**asked)
    assert all(value in str(error.value) for value in asked.values() if value != "auto")


def test_auto_takes_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices.placement() == devices.Placement("mps", "auto", None, asked=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.placement().device == "cuda:0"
    assert devices.placement("cuda:1", "float32") == devices.Placement("cuda:1", "float32", None, asked=True)
    assert devices.device_names("cuda") == devices.device_names("auto") == ["cuda:0", "cuda:1"]
    assert devices.device_names("cuda:1") == ["cuda:1"]
    with pytest.raises(BadValue, match="cuda:2"):
        devices.chosen_device("cuda:2")


def test_a_loaded_model_stays_where_it_is(reference: Reference, place: Path) -> None:
    for verb in (toposcope.loss, toposcope.trace, toposcope.ablate):
        with pytest.raises(BadValue, match="dtype"):
            verb(reference, place / "text.txt", dtype="bfloat16")
    with pytest.raises(BadValue, match="dtype"):
        toposcope.refine(reference.model, text=place / "text.txt", device="cpu")


def test_a_model_by_name_is_loaded_as_asked(place: Path) -> None:
    text = place / "text.txt"
    plainly, mapped, half = (
        toposcope.loss(place, text, **SMALL, **asked) for asked in ({}, {"device_map": "auto"}, {"dtype": "bfloat16"})
    )
    assert mapped.conditions == plainly.conditions
    assert [each.provenance.ran.dtype for each in (plainly, mapped, half)] == ["float32", "float32", "bfloat16"]
    assert half.provenance.options["dtype"] == "bfloat16"


@pytest.mark.parametrize("batch", [0, -1, True])
def test_a_batch_holds_something(reference: Reference, place: Path, batch: int) -> None:
    for verb in (toposcope.loss, toposcope.trace, toposcope.ablate):
        with pytest.raises(BadValue):
            verb(reference, place / "text.txt", batch=batch)


# --------------------------------------------------------------- out of memory
@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("MPS backend out of memory (MPS allocated: 18 GB)"),
        MemoryError(),
    ],
)
def test_no_memory_is_said_in_a_sentence(reference: Reference, place: Path, tmp_path: Path, error: Exception) -> None:
    """And what was measured stays: the same call goes on."""
    text, out, calls = place / "text.txt", tmp_path / "sweep", iter(range(1000))

    def full(*_: Any) -> None:
        if next(calls) > 12:
            raise error

    hook = reference.model.model.layers[1].register_forward_pre_hook(full)
    with pytest.raises(BadValue) as said:
        toposcope.ablate(reference, text, out=out, only="text", batch=2, **SMALL)
    for word in ("--batch", "--device-map", str(out)):
        assert word in str(said.value)
    hook.remove()
    kept = len((out / "journal.jsonl").read_text().splitlines())
    assert kept > 2
    found = toposcope.ablate(reference, text, out=out, only="text", batch=1, **SMALL)
    whole = toposcope.ablate(reference, text, only="text", **SMALL)
    assert [each.name for each in found.heads] == [each.name for each in whole.heads]
    assert [each.damage["text"] for each in found.heads] == pytest.approx(
        [each.damage["text"] for each in whole.heads], abs=1e-5
    )


def test_other_errors_pass_through() -> None:
    with pytest.raises(RuntimeError, match="shape"), devices.memory_told(1):
        raise RuntimeError("shape mismatch")


def test_memory_is_told_by_every_verb(reference: Reference, place: Path) -> None:
    hook = reference.model.model.layers[1].register_forward_pre_hook(_out_of_memory)
    for name in ("loss", "trace", "ablate", "ablate check", "refine"):
        with pytest.raises(BadValue, match="--device-map"):
            VERBS[name](reference, place / "text.txt")
    hook.remove()


def _out_of_memory(*_: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory.")


# ------------------------------------------------------------------ repeatable
def test_what_cannot_be_repeated_is_named(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device where torch is asked for deterministic algorithms, an operation without one is told."""
    monkeypatch.setattr(devices, "CPU", "nowhere")  # so that the CPU counts as a GPU
    with devices.running_on(reference.model) as met:
        torch.ones(4).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    assert not torch.are_deterministic_algorithms_enabled()
    assert len(met) == 1
    found = devices.with_doubts(Computation("cuda:0", "float32", "sdpa"), met)
    assert not found.repeatable
    assert "put_" in str(found.why_not)
    assert devices.with_doubts(found, []) == found


# -------------------------------------------------------------------- inside
def _llama(directory: Path) -> Path:
    write_llama(directory)
    return directory


def _other(kind: str, directory: Path) -> tuple[Any, dict[str, Any]]:
    import transformers

    torch.manual_seed(0)
    ids = torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
    size = {"vocab_size": 15}
    if kind == "bert":
        return write_bert(directory), {"input_ids": ids}
    if kind == "llama":
        return write_llama_lm(directory), {"input_ids": ids}
    if kind == "bloom":
        config = transformers.BloomConfig(**size, hidden_size=24, n_layer=2, n_head=4)
        return transformers.BloomForCausalLM(config).eval(), {"input_ids": ids}
    if kind == "gpt2":
        config = transformers.GPT2Config(**size, n_embd=24, n_layer=2, n_head=4, n_positions=32)
        return transformers.GPT2LMHeadModel(config).eval(), {"input_ids": ids}
    config = transformers.T5Config(**size, d_model=24, d_kv=6, num_heads=4, num_layers=2, d_ff=32)
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config).eval(), {"input_ids": ids, "decoder_input_ids": ids}


@pytest.fixture(autouse=True)
def _modes() -> Iterator[None]:
    yield
    assert not torch.are_deterministic_algorithms_enabled()


def test_norms_are_not_tuned_in_half_precision(place: Path) -> None:
    reference = load_reference(place, head=True, attention="sdpa", dtype="bfloat16")
    with pytest.raises(BadConfig, match="float32"):
        toposcope.refine(reference, text=place / "text.txt", steps=2, tokens=16, held_out=2, norms=True)
