"""The loss of a text against transformers' own, under the model's encoding and others."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.stats

import toposcope
from tests.unit.models.making import TEXT, write_llama, write_llama_lm
from toposcope.cli import main
from toposcope.core.errors import BadConfig, BadValue, NotFound
from toposcope.core.ranges import parse_heads
from toposcope.encodings import parse
from toposcope.models import loss
from toposcope.models.corpus import Corpus, cut
from toposcope.models.load import load_reference
from toposcope.models.loss import Bin, LossResult, Wanted, bin_edges
from toposcope.models.loss import measure as measure_tokens

torch = pytest.importorskip("torch", reason="losses need torch: pip install torch")
pytest.importorskip("transformers", reason="losses need transformers: pip install transformers")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("lm")
    write_llama_lm(found)
    (found / "text.txt").write_text(TEXT * 6)
    return found


def measure(*given: Any, **more: Any) -> LossResult:
    """The result alone, without the tokens' losses."""
    return measure_tokens(*given, **more)[0]


def test_loss_is_theirs_and_none_is_positions_at_zero(directory: Path) -> None:
    reference = load_reference(directory, head=True, attention="sdpa")
    corpus = cut(reference, TEXT * 6, tokens=24, count=3)
    found = measure(reference, corpus, [Wanted(parse("none")), Wanted(parse("none"), layers=(1,))])
    own, none, inside = found.conditions
    theirs, flat = [], []
    with torch.no_grad():
        for ids in corpus.sequences:
            given = torch.from_numpy(ids)[None]
            theirs.append(float(reference.model(input_ids=given, labels=given).loss))
            zeros = torch.zeros_like(given)
            flat.append(float(reference.model(input_ids=given, labels=given, position_ids=zeros).loss))
    assert np.allclose(own.by_sequence, theirs, atol=1e-6)
    assert np.allclose(none.by_sequence, flat, atol=1e-5)
    assert own.difference == 0
    assert own.half_width is None
    assert none.difference == pytest.approx(np.mean(flat) - np.mean(theirs), abs=1e-5)
    assert inside.loss != pytest.approx(none.loss, abs=1e-4)


def test_bins_hold_every_token_once(directory: Path) -> None:
    reference = load_reference(directory, head=True, attention="sdpa")
    corpus = cut(reference, TEXT * 6, tokens=24, count=2)
    own = measure(reference, corpus).conditions[0]
    assert sum(part.tokens for part in own.bins) == 2 * 23
    assert [part.first for part in own.bins] == [0, 1, 2, 4, 8, 16]
    total = sum(part.tokens * part.loss for part in own.bins) / (2 * 23)
    assert total == pytest.approx(own.loss, abs=1e-9)
    assert bin_edges(23) == [0, 1, 2, 4, 8, 16, 23]


def test_bins_end_where_the_next_begins(directory: Path) -> None:
    reference = load_reference(directory, head=True, attention="sdpa")
    bins = measure(reference, cut(reference, TEXT * 6, tokens=24, count=2)).conditions[0].bins
    assert [part.last + 1 for part in bins[:-1]] == [part.first for part in bins[1:]]
    assert all(part.tokens == 2 * (part.last - part.first + 1) for part in bins)


def test_the_interval_is_students_and_each_condition_ticks(directory: Path) -> None:
    reference = load_reference(directory, head=True, attention="sdpa")
    corpus = cut(reference, TEXT * 6, tokens=16, count=4)
    ticks: list[tuple[str, int, int]] = []
    found = measure(reference, corpus, [Wanted(parse("none"))], progress=lambda *told: ticks.append(told))
    assert ticks == [("conditions", done, len(found.conditions)) for done in range(3)]
    own, none = found.conditions
    change = np.subtract(none.by_sequence, own.by_sequence)
    theirs = scipy.stats.ttest_1samp(change, 0.0).confidence_interval(0.95)
    assert none.half_width == pytest.approx((theirs.high - theirs.low) / 2, rel=1e-6)
    alone = measure(reference, cut(reference, TEXT, tokens=16, count=1), [Wanted(parse("none"))])
    assert alone.conditions[1].half_width is None


def test_a_model_that_predicts_nothing_has_no_loss(tmp_path: Path) -> None:
    write_llama(tmp_path)
    reference = load_reference(tmp_path, head=True, attention="sdpa")
    with pytest.raises(BadConfig, match="LlamaModel"):
        measure(reference, cut(reference, TEXT, tokens=8))


def test_the_function_and_all_it_can_become(directory: Path, tmp_path: Path) -> None:
    found = toposcope.loss(directory, directory / "text.txt", tokens=24, sequences=2, encoding=["none", "alibi"])
    assert [row.encoding for row in found.conditions] == ["own", "none", "alibi"]
    assert found.provenance.options["tokens"] == 24
    assert max(map(len, str(found).splitlines())) <= 80
    assert toposcope.read(found.save(tmp_path / "loss.json")) == found
    assert len(found.frame()) == 3
    assert len(found.frame("conditions.bins")) == 3 * len(found.conditions[0].bins)
    assert "<script" not in found._repr_html_()
    assert "</html>" in found.html()
    assert found.figure(tmp_path / "loss.svg").stat().st_size > 1000


def test_a_loaded_model_has_the_loss_of_its_files(directory: Path) -> None:
    from transformers import AutoModelForCausalLM

    options = {"text": directory / "text.txt", "tokens": 24, "sequences": 2}
    theirs = toposcope.loss(AutoModelForCausalLM.from_pretrained(directory), **options)
    ours = toposcope.loss(directory, **options)
    assert theirs.conditions[0].loss == pytest.approx(ours.conditions[0].loss, abs=1e-6)


def test_a_model_of_no_files_is_given_its_tokenizer(directory: Path) -> None:
    from transformers import LlamaForCausalLM

    theirs = load_reference(directory, head=True)
    model = LlamaForCausalLM(theirs.model.config)
    model.load_state_dict(theirs.model.state_dict())
    model.config._name_or_path = ""
    options = {"text": directory / "text.txt", "tokens": 24, "sequences": 2}
    with pytest.raises(BadConfig, match="eval"):  # a fresh model trains; it is not switched behind the user's back
        toposcope.loss(model, **options, tokenizer=theirs.tokenizer)
    assert model.training
    model.eval()
    found = toposcope.loss(model, **options, tokenizer=theirs.tokenizer)
    assert found.conditions[0].loss == pytest.approx(
        toposcope.loss(directory, **options).conditions[0].loss, abs=1e-5
    )
    with pytest.raises(NotFound, match="tokenizer="):
        toposcope.loss(model, **options)
    with pytest.raises(BadValue, match="str"):
        toposcope.loss(model, **options, tokenizer="smollm2")
    model.resize_token_embeddings(5)
    with pytest.raises(BadValue, match="5 tokens"):
        toposcope.loss(model, **options, tokenizer=theirs.tokenizer)


def test_layers_and_heads_as_python_has_them(directory: Path) -> None:
    options: dict[str, Any] = {
        "text": directory / "text.txt",
        "tokens": 24,
        "sequences": 2,
        "encoding": parse("none"),
    }
    for python, written, where in (
        ({"layers": 0}, {"layers": "0"}, "layer 0"),
        ({"layers": [0, 1]}, {"layers": "0-1"}, "layers 0-1"),
        ({"heads": [(1, 2)]}, {"heads": "1.2"}, "head 1.2"),
        ({"heads": [(1, 2), (0, 1)]}, {"heads": "1.2,0.1"}, "heads 1.2,0.1"),
    ):
        one, other = (toposcope.loss(directory, **options, **each) for each in (python, written))
        assert one.conditions == other.conditions
        assert one.provenance.options == other.provenance.options
        assert one.conditions[1].where == where


def test_random_tokens_are_for_trace(directory: Path) -> None:
    with pytest.raises(BadValue, match="trace"):
        toposcope.loss(directory, "random")


def test_command(directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = str(directory / "text.txt"), tmp_path / "loss.json"
    with pytest.raises(SystemExit) as ended:
        main(["loss", str(directory), "--text", text, "--tokens", "24", "--encoding", "none", "--each", "layer",
              "--json", str(out)])  # fmt: skip
    assert ended.value.code == 0
    found = json.loads(out.read_text())
    assert found["schema"] == "toposcope/loss/2"
    assert [row["where"] for row in found["conditions"]] == [None, "layer 0", "layer 1", "layer 2"]
    said = capsys.readouterr().out
    assert f"{found['conditions'][0]['loss']:.3f}" in said
    assert "layer 2" in said
    assert all(len(line) <= 80 for line in said.splitlines()[1:])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--tokens", "1"], "--tokens"),
        (["--layers", "0"], "encoding"),
        (["--encoding", "rop"], "rope"),
        (["--encoding", "none", "--heads", "0.9"], "0.9"),
        (["--encoding", "none", "--heads", "nine"], "nine"),
        (["--encoding", "none", "--each", "neuron"], "neuron"),
    ],
    ids=["short", "nowhere", "unknown", "head", "words", "each"],
)
def test_wrong_input(directory: Path, more: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["loss", str(directory), "--text", str(directory / "text.txt"), *more])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_missing_tokenizer_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_llama_lm(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["loss", str(tmp_path), "--text", str(tmp_path / "config.json")])
    assert ended.value.code == 2
    assert "tokenizer.json" in capsys.readouterr().err


def test_heads_as_users_write_them() -> None:
    assert parse_heads("3.2,5.0-1") == [(3, 2), (5, 0), (5, 1)]
    with pytest.raises(BadValue, match=r"layer\.head"):
        parse_heads("3")


def test_memory_is_foreseen(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toposcope.core.memory.UNNOTICED", 0)
    monkeypatch.setattr("toposcope.core.memory.available", lambda: 1000)
    reference = load_reference(directory, head=True, attention="sdpa")
    with pytest.raises(BadValue, match="24 tokens") as caught:
        measure(reference, cut(reference, TEXT * 6, tokens=24))
    assert all(each in str(caught.value) for each in ("GB", "--tokens"))


@pytest.mark.parametrize(
    ("count", "edges"),
    [
        (1, [0, 1]),
        (2, [0, 1, 2]),
        (3, [0, 1, 2, 3]),
        (4, [0, 1, 2, 4]),
        (5, [0, 1, 2, 4, 5]),
        (9, [0, 1, 2, 4, 8, 9]),
    ],
)
def test_bins_double_up_to_the_last_position(count: int, edges: list[int]) -> None:
    assert bin_edges(count) == edges


def test_the_context_is_an_edge_where_a_text_is_longer() -> None:
    assert bin_edges(20, 12) == [0, 1, 2, 4, 8, 12, 16, 20]
    assert bin_edges(20, 8) == bin_edges(20, 20) == bin_edges(20, None) == [0, 1, 2, 4, 8, 16, 20]


def test_sequences_of_different_lengths_fill_the_bins_they_reach(directory: Path) -> None:
    """Token by token against transformers' logits; a bin's interval is over the sequences with tokens in it."""
    reference = load_reference(directory, head=True, attention="sdpa")
    draw = np.random.default_rng(0)
    sequences = tuple(draw.integers(0, 15, length) for length in (21, 13, 13, 6, 2))
    found = measure(
        reference, Corpus("made", sequences, "made by hand"), [Wanted(parse("none"), layers=(0,), where="there")]
    )
    own, other = found.conditions
    losses = []
    with torch.no_grad():
        for ids in sequences:
            logits = reference.model(input_ids=torch.from_numpy(ids)[None]).logits[0, :-1].double()
            chances = torch.log_softmax(logits, -1).numpy()
            losses.append(-chances[np.arange(len(ids) - 1), ids[1:]])
    assert own.by_sequence == pytest.approx([each.mean() for each in losses], abs=1e-5)
    assert own.loss == pytest.approx(np.mean([each.mean() for each in losses]), abs=1e-5)
    assert [(each.first, each.last) for each in own.bins] == [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 19)]
    for part in own.bins:
        inside = [each[part.first : part.last + 1] for each in losses if len(each) > part.first]
        flat = np.concatenate(inside)
        assert part.tokens == len(flat)
        assert part.loss == pytest.approx(flat.mean(), abs=1e-5)
        if len(inside) > 1:
            told = scipy.stats.ttest_1samp([each.mean() for each in inside], 0.0).confidence_interval(0.95)
            assert part.half_width == pytest.approx((told.high - told.low) / 2, rel=1e-4)
        else:
            assert part.half_width is None
    assert (own.encoding, own.where, own.difference, own.half_width) == ("own", None, 0.0, None)
    assert (other.encoding, other.where) == ("none", "there")
    assert other.difference == pytest.approx(np.mean(np.subtract(other.by_sequence, own.by_sequence)), abs=1e-12)
    assert other.loss == pytest.approx(np.mean(other.by_sequence), abs=1e-12)
    assert abs(other.difference) > 1e-3
    assert (found.predicts, found.text, found.context) == ("next token", "made by hand", 32)
    assert Bin(0, 0, 1.0, 1).half_width is None


def test_the_model_is_as_it_was_after_every_condition(directory: Path) -> None:
    reference = load_reference(directory, head=True, attention="sdpa")
    corpus = cut(reference, TEXT * 6, tokens=12, count=2)
    wanted = [
        Wanted(parse("none"), heads=((0, 1),)),
        Wanted(parse("none"), heads=((1, 3),)),
        Wanted(parse("none"), heads=((0, 1),)),
    ]
    first, second, again = measure(reference, corpus, wanted).conditions[1:]
    assert first.by_sequence == again.by_sequence != second.by_sequence
    assert (
        measure(reference, corpus).conditions[0].by_sequence
        == measure(reference, corpus, wanted).conditions[0].by_sequence
    )


def test_every_sequence_has_its_number_and_the_seed(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = load_reference(directory, head=True, attention="sdpa")
    corpus = cut(reference, TEXT * 6, tokens=12, count=3)
    plain, asked = loss.trial, []

    def noting(reference: object, ids: object, *, number: int, seed: int) -> object:
        asked.append((number, seed))
        return plain(reference, ids, number=number, seed=seed)  # type: ignore[arg-type]

    monkeypatch.setattr(loss, "trial", noting)
    measure(reference, corpus)
    measure(reference, corpus, seed=5)
    assert asked == [(0, 0), (1, 0), (2, 0), (0, 5), (1, 5), (2, 5)]


def test_logits_and_activations_of_the_longest_text_are_foreseen(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32: the logits twice, and sixteen vectors of the model's width for each token."""
    reference = load_reference(directory, head=True, attention="sdpa")
    asked: list[float] = []
    monkeypatch.setattr(loss, "require_memory", lambda needed, what, advice: asked.append(needed))
    sequences = tuple(np.ones(length, dtype=np.int64) for length in (5, 20, 9))
    measure(reference, Corpus("made", sequences, "made by hand"))
    vocabulary, width = 15, 24
    assert asked == [4 * 20 * (2 * vocabulary + 16 * width)]
    unsaid: Any = SimpleNamespace(model=SimpleNamespace(config=SimpleNamespace(get_text_config=SimpleNamespace)))
    loss._require_memory(unsaid, 20)
    assert asked[1:] == [0]  # of a model that does not state its sizes


def test_each_head_is_a_condition(directory: Path) -> None:
    found = loss.loss(
        directory, directory / "text.txt", tokens=12, sequences=2, encoding="none", each="head", layers="1"
    )
    assert [row.where for row in found.conditions] == [None, *(f"head 1.{head}" for head in range(4))]
    by_layer = loss.loss(directory, directory / "text.txt", tokens=12, sequences=2, encoding="none", each="layer")
    assert [row.where for row in by_layer.conditions[1:]] == ["layer 0", "layer 1", "layer 2"]
    assert len({row.loss for row in (*found.conditions, *by_layer.conditions)}) > 4
