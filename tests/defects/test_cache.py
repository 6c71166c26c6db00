"""Another encoding with a cache, in half precision, and in several threads: lines D and 11 of the list of defects.

The reference is the whole text in one pass without a cache, under the same encoding;
tests/reference/test_swap_encoding.py compares that pass with models built so, and with attention written out.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf

from tests.reference.tiny import NO_TOKENS, SIZES, build
from toposcope.core.errors import BadConfig, BadEncoding, BadValue, ToposcopeError
from toposcope.encodings import kinds
from toposcope.models.instrument import attached
from toposcope.models.intervene import captured, gated
from toposcope.models.swap_encoding import swap_encoding

TRAINED = ("cope", "pope")  # these have parts that must be trained with the model, and are refused
PAIRS = "/".join
MORE = [
    "alibi:table_dtype=bfloat16",
    "kerple:kernel=power",
    "fire:threshold=4",
    "rope:base=500",
    "rope:scaling=linear,factor=4",
    "rope:scaling=ntk,factor=4",
    "rope:scaling=dynamic,factor=4",
    "rope:scaling=yarn,factor=4",
    "rope:scaling=llama3,factor=4",
    "rope:scaling=proportional,factor=2",
    f"rope:scaling=longrope,factor=2,short_factor={PAIRS('1234')},long_factor={PAIRS('2345')}",
    "rope-partial:heads=2",
    "xpos:scale_base=8",
]
WRITTEN = [name for name in kinds() if name not in TRAINED] + MORE
CHUNKS = ((0, 5), (5, 6), (6, 13), (13, 17))
IDS = torch.randint(3, 50, (2, 17), generator=torch.Generator().manual_seed(1))
PAD = 6
NEAR = 1e-5


def logits(model: Any, ids: Any = IDS, **more: Any) -> Any:
    with torch.no_grad():
        return model(input_ids=ids, **more).logits


def in_pieces(
    model: Any, ids: Any, pieces: Any, cache: Any = None, given: Callable[..., Any] = lambda a, b: {}
) -> Any:
    """The logits of a text that is given to the model piece by piece, with a cache."""
    found = []
    with torch.no_grad():
        for first, stop in pieces:
            more = {} if cache is None else {"past_key_values": cache}
            out = model(input_ids=ids[:, first:stop], use_cache=True, **more, **given(first, stop))
            cache = out.past_key_values
            found.append(out.logits)
    return torch.cat(found, dim=1)


def padded() -> tuple[Any, Any]:
    """Two texts in one batch, the second shorter, with padding before it; and their mask."""
    ids = torch.stack([IDS[0], torch.cat([torch.zeros(PAD, dtype=torch.long), IDS[1, :-PAD]])])
    mask = torch.ones_like(ids)
    mask[1, :PAD] = 0
    return ids, mask


def apart(one: Any, other: Any) -> float:
    return float((one - other).abs().max())


def from_padded(found: Any, whole: Any, short: Any) -> float:
    """How far the logits of the padded batch are from those of its texts alone."""
    return max(apart(found[0], whole[0]), apart(found[1, PAD:], short[0]))


def same_everywhere(model: Any) -> None:
    """Whole, token by token, in chunks, beside padding, and both: the same logits; and the same tokens generated."""
    ids, mask = padded()
    at = (mask.cumsum(1) - 1).clamp(min=0)
    whole, short = logits(model), logits(model, IDS[1:, :-PAD])
    assert apart(in_pieces(model, IDS, [(t, t + 1) for t in range(17)]), whole) <= NEAR
    assert apart(in_pieces(model, IDS, CHUNKS), whole) <= NEAR
    assert from_padded(logits(model, ids, attention_mask=mask, position_ids=at), whole, short) <= NEAR
    both = in_pieces(
        model, ids, CHUNKS, given=lambda a, b: {"attention_mask": mask[:, :b], "position_ids": at[:, a:b]}
    )
    assert from_padded(both, whole, short) <= NEAR
    settings = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(model.generate(ids, **settings), model.generate(ids, use_cache=False, **settings))


@pytest.mark.sample(8)
@pytest.mark.parametrize("written", WRITTEN)
def test_D_cached_steps_equal_whole(written: str) -> None:
    """Every encoding of the registry, and every scaling, in a rotary model whose heads share keys."""
    model = build("llama")
    with swap_encoding(model, written):
        same_everywhere(model)


@pytest.mark.sample(8)
@pytest.mark.parametrize("written", ["none", "sinusoidal", "fire", "t5", "rope", "xpos"])
@pytest.mark.parametrize("name", ["gpt2", "gpt_neox", "gemma2", "deepseek_v3", "opt"])
def test_D_other_families(name: str, written: str) -> None:
    """Learned vectors, a rotation of part of a head, sliding windows, latent attention, positions from the mask."""
    model = opt() if name == "opt" else build(name)
    with swap_encoding(model, written):
        same_everywhere(model)


@pytest.mark.parametrize("name", ["bloom", "falcon", "mpt", "gptj"])
def test_D_families_that_attend_by_themselves(name: str) -> None:
    model = build(name)
    with swap_encoding(model, "none"):
        same_everywhere(model)
    cache = cache_of(model)
    with swap_encoding(model, "none"), pytest.raises(BadValue, match="outside"):
        logits(model, IDS[:, 5:6], past_key_values=cache)


def opt() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "vocab_size": 50}
    return hf.OPTForCausalLM(
        hf.OPTConfig(**sizes, max_position_embeddings=64, word_embed_proj_dim=32, **NO_TOKENS)
    ).eval()


def cache_of(model: Any, tokens: int = 5) -> Any:
    with torch.no_grad():
        return model(input_ids=IDS[:, :tokens], use_cache=True).past_key_values


def test_D_only_some_layers_and_heads() -> None:
    model = build("llama")
    with swap_encoding(model, "alibi", heads=[(1, 2)]), swap_encoding(model, "rope:base=50", layers=[2]):
        same_everywhere(model)


@pytest.mark.parametrize("written", ["none", "sinusoidal", "alibi", "fire:threshold=3", "rope"])
def test_D_an_encoder_and_a_decoder(written: str) -> None:
    model = build("t5", sharp=1.0)
    mask = torch.ones_like(IDS)
    mask[:, :PAD] = 0
    with swap_encoding(model, written), torch.no_grad():
        whole = model(input_ids=IDS, decoder_input_ids=IDS).logits
        read = model.get_encoder()(IDS)
        first = model(encoder_outputs=read, decoder_input_ids=IDS[:, :5], use_cache=True)
        then = model(encoder_outputs=read, decoder_input_ids=IDS[:, 5:], past_key_values=first.past_key_values)
        assert apart(torch.cat([first.logits, then.logits], dim=1), whole) <= NEAR
        left = model(input_ids=IDS, attention_mask=mask, decoder_input_ids=IDS).logits
        assert apart(left, model(input_ids=IDS[:, PAD:], decoder_input_ids=IDS).logits) <= NEAR
        settings = {"max_new_tokens": 6, "do_sample": False}
        assert torch.equal(model.generate(IDS, **settings), model.generate(IDS, use_cache=False, **settings))


@pytest.mark.parametrize("written", ["alibi", "fire:threshold=4", "sinusoidal", "rope:base=500"])
def test_D_positions_follow_the_mask_where_none_are_given(written: str) -> None:
    """Without position_ids the model turns by columns; the new encoding still counts the tokens of the text."""
    model = build("llama")
    ids, mask = padded()
    with swap_encoding(model, written):
        whole, short = logits(model), logits(model, IDS[1:, :-PAD])
        assert from_padded(logits(model, ids, attention_mask=mask), whole, short) <= NEAR
        pieces = in_pieces(model, ids, CHUNKS, given=lambda a, b: {"attention_mask": mask[:, :b]})
        assert from_padded(pieces, whole, short) <= NEAR
        with torch.no_grad():
            cache = model(input_ids=ids[:, :9], attention_mask=mask[:, :9], use_cache=True).past_key_values
        with pytest.raises(BadValue, match="mask"):
            logits(model, ids[:, 9:10], past_key_values=cache)


def test_D_positions_given_by_place() -> None:
    """Arguments may be given without their names."""
    model = build("llama")
    shift = torch.arange(17)[None] + 700
    with swap_encoding(model, "fire"), torch.no_grad():
        named = logits(model, position_ids=shift)
        assert torch.equal(model(IDS, None, shift).logits, named)
        assert apart(named, logits(model)) > 1e-4


@pytest.mark.parametrize("written", ["none", "alibi", "fire:threshold=4", "rope:base=500"])
def test_D_other_caches_and_searches(written: str) -> None:
    """A cache of fixed size, beams, a copied cache, a cropped one."""
    model = build("llama")
    ids, mask = padded()
    settings = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    with swap_encoding(model, written):
        whole = logits(model)
        fixed = hf.StaticCache(config=model.config, max_cache_len=24)
        assert apart(in_pieces(model, IDS, CHUNKS, fixed), whole) <= NEAR
        plain = model.generate(ids, use_cache=False, **settings)
        assert torch.equal(model.generate(ids, cache_implementation="static", **settings), plain)
        beams = model.generate(ids, num_beams=3, **settings)
        assert torch.equal(beams, model.generate(ids, num_beams=3, use_cache=False, **settings))
        cache = cache_of(model, 9)
        twin = copy.deepcopy(cache)
        assert apart(logits(model, IDS[:, 9:], past_key_values=twin), whole[:, 9:]) <= NEAR
        cache.crop(-4)
        assert apart(logits(model, IDS[:, 5:], past_key_values=cache), whole[:, 5:]) <= NEAR


def test_D_what_cannot_be_done_is_refused() -> None:
    model = build("llama")
    outside = cache_of(model)
    with swap_encoding(model, "alibi"):
        inside = cache_of(model)
        with pytest.raises(BadValue, match="outside"):
            logits(model, IDS[:, 5:6], past_key_values=outside)
    logits(model, IDS[:, 5:6], past_key_values=inside)  # continued outside
    with swap_encoding(model, "alibi"):
        with pytest.raises(BadValue, match="outside"):
            logits(model, IDS[:, 6:7], past_key_values=inside)
        inside = cache_of(model)
    with swap_encoding(model, "none"), pytest.raises(BadValue, match="filled under"):
        logits(model, IDS[:, 5:6], past_key_values=inside)
    with captured(model):
        own = cache_of(model)
        with swap_encoding(model, "alibi"), pytest.raises(BadValue, match="filled under"):
            logits(model, IDS[:, 5:6], past_key_values=own)
    windows = build("gemma2")
    with swap_encoding(windows, "alibi"), pytest.raises(BadValue, match="StaticSlidingWindowLayer"):
        logits(windows, past_key_values=hf.StaticCache(config=windows.config, max_cache_len=24))
    x = torch.zeros(1, 3, 32)
    turns = model.model.rotary_emb(x, torch.arange(3)[None])
    with swap_encoding(model, "alibi"), pytest.raises(BadValue, match="LlamaForCausalLM"):
        model.model.layers[0](x, position_embeddings=turns)
    with swap_encoding(model, "sinusoidal"), pytest.raises(BadValue, match="inputs_embeds"):
        logits(model, None, inputs_embeds=model.get_input_embeddings()(IDS))


@pytest.mark.parametrize("rows", [[0, 1], [1, 0], [0, 0, 1, 1]], ids=["same", "exchanged", "repeated"])
def test_D_a_batch_that_changes_is_refused(rows: list[int]) -> None:
    """Rows that stand differently must be the rows that the cache was filled with."""
    model = build("llama")
    ids, mask = padded()
    more = torch.cat([mask, mask.new_ones(2, 1)], dim=1)
    with swap_encoding(model, "alibi"), torch.no_grad():
        cache = model(input_ids=ids, attention_mask=mask, use_cache=True).past_key_values
        cache.batch_select_indices(torch.tensor(rows))
        given = {"input_ids": ids[rows, :1], "attention_mask": more[rows], "past_key_values": cache}
        if rows == [0, 1]:
            model(**given)
        else:
            with pytest.raises(BadValue, match="2 sequences"):
                model(**given)


@pytest.mark.parametrize("which", ["new", "own"])
def test_D_frequencies_that_change_with_the_length(which: str) -> None:
    """Below the original length all is well; beyond it steps and the whole differ by definition, and are refused."""
    written = "rope:scaling=dynamic,factor=2,original_context=8" if which == "new" else "none"
    model = build("llama") if which == "new" else dynamic_host()
    with swap_encoding(model, written):
        assert apart(in_pieces(model, IDS[:, :8], ((0, 3), (3, 8))), logits(model, IDS[:, :8])) <= NEAR
        cache = cache_of(model, 8)
        with pytest.raises(BadEncoding, match=r"8 .* 9 "):
            logits(model, IDS[:, 8:9], past_key_values=cache)
        if which == "new":  # rows of both lengths
            ids, mask = padded()
            at = (mask.cumsum(1) - 1).clamp(min=0)
            with pytest.raises(BadEncoding, match=r"11 .* 17 "):
                logits(model, ids, attention_mask=mask, position_ids=at)


def dynamic_host() -> Any:
    torch.manual_seed(0)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    sizes = {**SIZES, "max_position_embeddings": 8, "num_key_value_heads": 2}
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, rope_parameters=rope)).eval()


def test_D_a_host_that_keeps_the_frequencies_of_a_longer_text() -> None:
    model = dynamic_host()
    with swap_encoding(model, "none"):
        assert apart(logits(model), logits(model, position_ids=torch.zeros_like(IDS))) <= NEAR
        logits(model)
        with pytest.raises(BadConfig, match="12 tokens"):
            logits(model, IDS[:, :12])


def test_D_one_encoding_at_a_time() -> None:
    """The inner one would have had no effect, silently."""
    model = build("llama")
    with (
        swap_encoding(model, "alibi"),
        pytest.raises(BadValue, match="layer 0"),
        swap_encoding(model, "none"),
    ):
        pass


def test_D_what_is_seen_of_a_cached_step() -> None:
    """Queries and keys before position acts: those of a step are those of the whole text."""
    from toposcope.models.content import Content, ContentReader

    model = build("llama")
    seen: list[Content] = []
    with attached(model) as instrument:
        reader = ContentReader(instrument)
        instrument.observers.append(lambda call, output: seen.append(reader.of_call(call, 0)))
        logits(model)
        in_pieces(model, IDS, CHUNKS)
    for layer in range(3):
        whole, last = seen[layer], seen[-3 + layer]
        assert np.allclose(last.q_HNR, whole.q_HNR[:, 13:], atol=1e-5)
        assert np.allclose(last.k_HMR, whole.k_HMR, atol=1e-5)


def test_D_a_laboratory_model_reads_a_text_alike_after_a_longer_one() -> None:
    """Frequencies that grow with the text are those of this text, not of the longest that was ever read."""
    from toposcope.lab.model import ModelConfig, Transformer

    config = ModelConfig(
        encoding="rope:scaling=dynamic,factor=4,original_context=8",
        vocabulary=50, classes=50, length=8, width=32, heads=4, layers=2, reads="token", causal=True,
    )  # fmt: skip
    model = Transformer(config).eval()
    with torch.no_grad():
        before = model(IDS[:, :8])
        longer = model(IDS)
        assert torch.equal(model(IDS[:, :8]), before)
        assert torch.equal(model(IDS), longer)


# ------------------------------------------------------------------ half precision
HALF = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox", "deepseek_v3"])
def test_11_half_precision_rounds_as_it_says(name: str, dtype: Any) -> None:
    """Content read from turned queries is within the stated rounding of that read with all positions at 0."""
    from toposcope.models.content import ContentReader, rounding

    model = build(name).to(dtype)
    ids = IDS.repeat(1, 3)[:, :48]
    seen: list[Any] = []
    with attached(model) as instrument:
        reader = ContentReader(instrument)

        def note(call: Any, output: Any) -> None:
            if call.site.number == 0:
                seen.append(reader.of_call(call, 0).q_HNR)

        instrument.observers.append(note)
        logits(model, ids)
        logits(model, ids, position_ids=torch.zeros_like(ids))
    off = np.abs(seen[0] - seen[1]).max() / np.abs(seen[1]).max()
    assert 0 < off <= rounding(dtype)
    assert off > 1e-5  # else this would not have been half precision


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("written", ["none", "alibi", "fire", "xpos", "sinusoidal", "rope:base=500"])
def test_11_half_precision_is_rounded_once(written: str, dtype: Any) -> None:
    """Attention under the new encoding, written out in float64 from what went in, differs by one rounding."""
    from toposcope.models.content import ContentReader

    model = build("llama").to(dtype)
    seen: list[Any] = []
    with attached(model) as instrument, swap_encoding(model, written) as put_in:
        reader = ContentReader.of(instrument)
        instrument.observers.append(lambda call, output: seen.append((reader.of_call(call, 0), output[0].double())))
        in_pieces(model, IDS, CHUNKS)
    assert any(str(dtype).removeprefix("torch.") in note for note in put_in.notes)
    content, output = seen[-1]
    at_N, at_M = np.arange(13, 17), np.arange(17)
    q, k = content.q_HNR, content.k_HMR
    if put_in.rotary is not None:
        q, k = put_in.rotary.rotate(q, at_N, side="query"), put_in.rotary.rotate(k, at_M, side="key")
    table = torch.from_numpy(q @ k.swapaxes(1, 2) * content.scale)
    if put_in.bias is not None:
        table = table + torch.from_numpy(put_in.bias.table(at_N, at_M))
    table = table.masked_fill(torch.from_numpy(at_M > at_N[:, None]), -torch.inf)
    values = torch.from_numpy(content.v_HMV)
    expected = torch.softmax(table, dim=-1) @ values
    allowed = torch.finfo(dtype).eps / 2 * values.abs().max() + 1e-5 * values.abs().max()
    assert apart(output.transpose(0, 1), expected) <= allowed


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_11_half_precision_generates_alike(dtype: Any) -> None:
    model = build("llama").to(dtype)
    settings = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    for written in ("none", "alibi", "rope:base=500"):
        with swap_encoding(model, written):
            assert torch.equal(model.generate(IDS, **settings), model.generate(IDS, use_cache=False, **settings))
    with gated(model, [torch.ones(4) for _ in range(3)]):
        inside = logits(model)
    assert torch.equal(inside, logits(model))


def test_11_a_wrong_record_is_still_found_in_half_precision() -> None:
    """The rounding that is allowed does not hide a rotation that is not the configuration's."""
    model = build("llama").to(torch.bfloat16)
    model.model.rotary_emb.inv_freq.mul_(1.1)
    with pytest.raises(BadConfig, match="bfloat16"), swap_encoding(model, "none"):
        pass


# ------------------------------------------------------------------ threads and tables
def in_threads(work: Callable[[int], None], count: int = 6) -> list[Exception | None]:
    """What each of some threads that begin together ends with."""
    found: list[Exception | None] = [None] * count
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait()
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_11_threads_get_a_true_error() -> None:
    """One thread has the model; the others are told so, and by whom. Nothing is wrong afterwards."""
    model = build("llama")
    before = logits(model)
    with swap_encoding(model, "alibi"):
        expected = logits(model)
    right: list[bool] = []
    holder: list[str] = []
    done = threading.Barrier(6)

    def work(number: int) -> None:
        try:
            with swap_encoding(model, "alibi"):
                holder.append(threading.current_thread().name)
                right.append(torch.equal(logits(model), expected))
                done.wait(60)
        except ToposcopeError:
            done.wait(60)
            raise

    found = in_threads(work)
    assert right == [True]
    refused = [error for error in found if error is not None]
    assert len(refused) == 5
    for error in refused:
        assert isinstance(error, BadValue)
        assert f"'{holder[0]}'" in str(error)
    assert torch.equal(logits(model), before)
    with swap_encoding(model, "alibi"):
        assert torch.equal(logits(model), expected)


def test_11_two_passes_at_once_are_refused() -> None:
    model = build("llama")
    inside, go_on = threading.Event(), threading.Event()

    def wait(call: Any, output: Any) -> None:
        inside.set()
        go_on.wait(60)

    with swap_encoding(model, "alibi"), attached(model) as instrument:
        expected = logits(model)
        instrument.observers.append(wait)
        first: list[Any] = []
        thread = threading.Thread(target=lambda: first.append(logits(model)))
        thread.start()
        inside.wait(60)
        try:
            with pytest.raises(BadValue, match="two threads"):
                logits(model)
        finally:
            go_on.set()
            thread.join()
            instrument.observers.remove(wait)
        assert torch.equal(first[0], expected)  # the first was not disturbed
        assert torch.equal(logits(model), expected)


def test_11_another_thread_may_run_what_one_has_changed() -> None:
    """`generate` in a thread of its own, as for streaming."""
    model = build("llama")
    found: list[Any] = []
    with swap_encoding(model, "alibi"):
        thread = threading.Thread(target=lambda: found.append(logits(model)))
        thread.start()
        thread.join()
        assert torch.equal(found[0], logits(model))


def tables() -> set[str]:
    from transformers import AttentionInterface, AttentionMaskInterface

    return {name for table in (AttentionInterface(), AttentionMaskInterface()) for name in table}


def test_11_nothing_stays_in_the_tables_of_transformers() -> None:
    from toposcope.models.instrument import PREFIX

    models = [build("llama"), build("gpt2")]
    with swap_encoding(models[0], "none"), swap_encoding(models[1], "none"):
        assert any(name.startswith(PREFIX) for name in tables())
    assert not any(name.startswith(PREFIX) for name in tables())
    with pytest.raises(RuntimeError), swap_encoding(models[0], "none"):
        raise RuntimeError
    with pytest.raises(BadEncoding), swap_encoding(models[0], "rope:scaling=yarn"):
        pass
    broken = build("llama")
    broken.model.layers[1].mlp.down_proj = torch.nn.Linear(3, 3)
    with pytest.raises(RuntimeError), swap_encoding(broken, "none"):
        pass
    assert not any(name.startswith(PREFIX) for name in tables())
    assert broken.config._attn_implementation == "sdpa"


def test_11_a_part_of_a_model_that_is_looked_into() -> None:
    model = build("llama")
    with attached(model), pytest.raises(BadConfig, match=r"LlamaModel .*already"), attached(model.model):
        pass
