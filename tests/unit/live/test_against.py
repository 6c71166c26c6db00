"""Two engines on the same tokens: plants of tests/against on a tiny model, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from tests.unit.models.making import randomise, write_llama_lm
from tests.unit.results import holds
from toposcope.core.errors import BadFile, BadValue

torch = pytest.importorskip("torch", reason="engines run in torch")
hf = pytest.importorskip("transformers", reason="engines are models of transformers")

from tests.against import plants  # noqa: E402
from tests.against.table import Row, against_plant  # noqa: E402
from toposcope.cli import main  # noqa: E402
from toposcope.live.engines.engine import Engine, rounding_floor  # noqa: E402
from toposcope.live.engines.logprobs import log_probabilities  # noqa: E402
from toposcope.live.engines.simulate import MAKERS, simulations  # noqa: E402
from toposcope.live.engines.situation import situation  # noqa: E402
from toposcope.models.load import Reference  # noqa: E402

TOKENS, WORDS = 96, 61


@pytest.fixture(scope="module")
def base() -> Any:
    """A Llama of 4 layers in which position matters: weights at random, of a size that makes attention uneven."""
    config = hf.LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=4, max_position_embeddings=2048, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=None, rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config).eval()
    randomise(model, 1.5)
    return model


@pytest.fixture(scope="module")
def engines(base: Any) -> dict[str, Engine]:
    return {}


def texts(seed: int = 0, count: int = 2) -> list[Any]:
    return list(np.random.default_rng(seed).integers(0, WORDS, (count, TOKENS)))


def judged(plant: plants.Plant, base: Any, engines: dict[str, Engine]) -> Row:
    if plant.of not in engines:
        model = plants.settings(base)[plant.of]()
        engines[plant.of] = Engine(Reference(Path("tiny"), model, None))
    return Row.of_result(plant, 0, against_plant(engines[plant.of], plant, texts()))


@pytest.mark.sample(8, of="engines")
@pytest.mark.parametrize("plant", plants.PLANTS, ids=lambda plant: plant.name)
def test_plants(plant: plants.Plant, base: Any, engines: dict[str, Engine]) -> None:
    row = judged(plant, base, engines)
    assert row.right, row.line()
    if plant.bug:
        assert row.share is not None
        assert row.share > 0.999


def test_a_near_miss_leaves_more_than_rounding(base: Any, engines: dict[str, Engine]) -> None:
    near = plants.Plant("base 10500", None, "plain", plants._configured(rope_theta=10500.0))
    engines.setdefault("plain", Engine(Reference(Path("tiny"), plants.settings(base)["plain"](), None)))
    found = against_plant(engines["plain"], near, texts())
    exact = against_plant(engines["plain"], plants.KNOWN[0], texts())
    assert found.hypotheses[0].bug == exact.hypotheses[0].bug == "theta-lost"
    assert found.left is not None
    assert exact.left is not None
    assert exact.left < exact.floor.tolerance < found.left / 10


def test_every_bug_of_the_catalogue_has_a_maker() -> None:
    from toposcope.live.bugs import BY_KEY

    assert BY_KEY.keys() <= MAKERS.keys()


def test_every_bug_is_tried_or_told_why_not(base: Any) -> None:
    found, left = simulations(situation(base, longest=64, parts_at=16))
    assert {each.bug for each in found} | {each.bug for each in left} == MAKERS.keys()
    assert not {each.bug for each in found} & {each.bug for each in left}
    assert {each.bug for each in found} >= {"theta-lost", "pairing-swapped", "rotated-twice", "cache-offset"}


def test_layers_of_two_kinds() -> None:
    """Gemma 3 turns its sliding layers by another base: exchanged, all alike, and the plant of one table for all."""
    config = hf.Gemma3TextConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, num_hidden_layers=6, sliding_window=32, max_position_embeddings=256, query_pre_attn_scalar=16,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = hf.Gemma3ForCausalLM(config).eval()
    randomise(model)
    found, _ = simulations(situation(model, longest=64))
    assert len([each for each in found if each.bug == "layers-confused"]) == 3
    rotary = model.model.rotary_emb
    twin = hf.Gemma3ForCausalLM(config).eval()
    twin.load_state_dict(model.state_dict())
    for name, each in list(twin.model.rotary_emb.named_buffers()):
        if "sliding" in name and name.endswith("inv_freq"):
            each.data = getattr(rotary, name.replace("sliding", "full")).clone()
    result = toposcope.against(model, twin, text="random", tokens=64, sequences=2)
    assert result.causes == ("layers-confused",)


def test_a_logit_scale_that_is_missed() -> None:
    """Granite states the scale of its logits; B uses 1 / sqrt(head width)."""
    config = hf.GraniteConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=32, num_attention_heads=2, num_key_value_heads=1,
        num_hidden_layers=2, attention_multiplier=0.6, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = hf.GraniteForCausalLM(config).eval()
    randomise(model)
    twin = hf.GraniteForCausalLM(config).eval()
    twin.load_state_dict(model.state_dict())
    for layer in twin.model.layers:
        layer.self_attn.scaling = 16**-0.5
    result = toposcope.against(model, twin, text="random", tokens=48, sequences=2)
    assert result.causes == ("logit-scale-missing",)


def test_a_learned_table_that_is_shifted() -> None:
    """GPT-2 behind four padding tokens that are counted."""
    config = hf.GPT2Config(
        vocab_size=WORDS, n_embd=32, n_head=2, n_layer=2, n_positions=64, bos_token_id=None, eos_token_id=None
    )
    model = hf.GPT2LMHeadModel(config).eval()
    randomise(model)
    twin = hf.GPT2LMHeadModel(config).eval()
    twin.load_state_dict(model.state_dict())
    twin.transformer.wpe.weight.data = model.transformer.wpe.weight.data.roll(-4, 0)
    result = toposcope.against(model, twin, text="random", tokens=48, sequences=2)
    assert result.causes == ("left-padding",)
    assert "4" in result.hypotheses[0].variant
    assert result.first_apart == 0


# ------------------------------------------------------------------ files, and the command
def file_of(place: Path, model: Any, ids: list[Any], **about: Any) -> Path:
    path = place / "b.jsonl"
    lines = [about] if about else []
    for each in ids:
        said = plants.logprobs(model, each).tolist()
        lines.append({"ids": each.tolist(), "logprobs": [None, *said]})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_file_of_another_engine(base: Any, tmp_path: Path) -> None:
    path = file_of(tmp_path, base, texts(), engine="the same")
    same = toposcope.against(base, path)
    assert same.outcome == "equal"
    assert same.b == "the same"
    saved = holds(same, tmp_path)
    assert saved["schema"] == "toposcope/check-against/2"
    wrong = plants.KNOWN[0].make(plants.settings(base)["plain"]())
    found = toposcope.against(base, file_of(tmp_path, wrong, texts(count=4)))
    assert found.causes == ("theta-lost",)
    assert found.held_out == 2
    assert found.first_apart == 1
    assert found.margin is not None
    assert found.margin > 0.5
    holds(found, tmp_path, figure=True)


def test_one_text_is_not_held_out(base: Any, tmp_path: Path) -> None:
    wrong = plants.KNOWN[0].make(plants.settings(base)["plain"]())
    found = toposcope.against(base, file_of(tmp_path, wrong, texts(count=1)))
    assert found.held_out == 0
    assert found.hypotheses[0].held_out is None
    assert found.causes == ("theta-lost",)


def test_other_vocabularies_are_refused(base: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps({"ids": [1, WORDS], "logprobs": [None, -1.0]}))
    with pytest.raises(BadValue):
        toposcope.against(base, path)


def test_a_given_tolerance_counts(base: Any, tmp_path: Path) -> None:
    wrong = plants.KNOWN[0].make(plants.settings(base)["plain"]())
    found = toposcope.against(base, file_of(tmp_path, wrong, texts()), tolerance=50.0)
    assert (found.outcome, found.floor.tokens, found.floor.tolerance) == ("equal", 0, 50.0)


@pytest.mark.parametrize("tolerance", [0.0, -1.0])
def test_tolerances_that_are_none(tolerance: float, base: Any) -> None:
    with pytest.raises(BadValue):
        toposcope.against(base, base, text="random", tolerance=tolerance)


def test_models_that_predict_no_next_token(tmp_path: Path) -> None:
    model = hf.BertForMaskedLM(
        hf.BertConfig(
            vocab_size=WORDS, hidden_size=16, intermediate_size=16, num_attention_heads=2, num_hidden_layers=1
        )
    ).eval()
    with pytest.raises((BadValue, toposcope.ToposcopeError)):
        toposcope.against(model, model, text="random", tokens=8, sequences=1)


def test_the_command(base: Any, tmp_path: Path, capsys: Any) -> None:
    write_llama_lm(tmp_path / "a")
    model = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "a").eval()
    ids = [each % 13 for each in texts()]
    path = file_of(tmp_path, model, [each[:24] for each in ids])
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(tmp_path / "a"), "--against", str(path), "--json", str(tmp_path / "r.json")])
    assert not stopped.value.code
    assert toposcope.read(tmp_path / "r.json").kind == "check-against"
    model.model.rotary_emb.inv_freq.zero_()
    path = file_of(tmp_path, model, [each[:24] for each in ids])
    with pytest.raises(SystemExit) as stopped:
        main(["check", str(tmp_path / "a"), "--against", str(path)])
    assert stopped.value.code == 1
    path.write_text("{")
    for words, error in ((["--live"], 2), ([], 2)):
        with pytest.raises(SystemExit) as stopped:
            main(["check", str(tmp_path / "a"), "--against", str(path), *words])
        assert stopped.value.code == error


def test_the_floor_is_that_of_the_coarser_precision(base: Any) -> None:
    ids = texts()[0]
    reference = Reference(Path("tiny"), base, None)
    fine, coarse = (rounding_floor(reference, ids, dtype) for dtype in (None, "bfloat16"))
    assert (fine.dtype, fine.finer) == ("float32", "float64")
    assert (coarse.dtype, coarse.finer) == ("bfloat16", "float32")
    assert coarse.largest > 30 * fine.largest > 0
    assert coarse.tolerance > coarse.largest


def test_log_probabilities_are_those_of_the_model(base: Any) -> None:
    ids = texts()[0]
    ours = log_probabilities(Reference(Path("tiny"), base, None), ids)
    theirs = plants.logprobs(base, ids)
    assert np.allclose(ours, theirs, atol=1e-5)


def test_damaged_files_end_in_a_sentence(base: Any, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile):
        toposcope.against(base, path)
