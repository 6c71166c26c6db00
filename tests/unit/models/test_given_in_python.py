"""What a notebook gives to the verbs: models built in memory, selections as lists, and mistakes that are told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.unit.models.making import TEXT, write_llama_lm
from toposcope import ToposcopeError

torch = pytest.importorskip("torch", reason="models in memory need torch: pip install torch")
pytest.importorskip("transformers", reason="models in memory need transformers: pip install transformers")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("lm")
    write_llama_lm(found)
    (found / "text.txt").write_text(TEXT * 6)
    return found


@pytest.fixture(scope="module")
def model() -> Any:
    """A Llama of 3 layers and 4 heads that comes from no file."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3}
    return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=40)).eval()


def test_random_tokens_need_no_tokenizer(model: Any) -> None:
    found = toposcope.trace(model, "random", tokens=24, sequences=2, layers=[0, 2])
    assert {head.layer for head in found.heads} == {0, 2}
    assert found.provenance.options["layers"] == "0,2"
    with pytest.raises(ToposcopeError, match="tokenizer="):
        toposcope.trace(model, tokens=24)


def test_a_tokenizer_beside_the_model(directory: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded, tokenizer = (each.from_pretrained(directory) for each in (AutoModelForCausalLM, AutoTokenizer))
    loaded.config._name_or_path = ""
    options: dict[str, Any] = {"text": directory / "text.txt", "tokens": 24, "sequences": 3}
    for verb, more in (
        (toposcope.trace, {"layers": 1}),
        (toposcope.ablate, {"layers": 1, "only": "text"}),
        (toposcope.ablate_check, {"heads": [(1, 2)]}),
    ):
        ours = verb(directory, **options, **more)
        theirs = verb(loaded, **options, **more, tokenizer=tokenizer)
        assert [(head.layer, head.head) for head in theirs.heads] == [(head.layer, head.head) for head in ours.heads]
        assert theirs.heads


def test_a_selection_of_layers_in_any_form(model: Any) -> None:
    ids = torch.tensor([[5, 6, 7, 5, 6]])
    runs = []
    for layers in (0, [0], "0"):
        with toposcope.swap_encoding(model, "none", layers=layers), torch.no_grad():
            runs.append(model(input_ids=ids).logits)
        with toposcope.captured(model, layers=layers) as seen, torch.no_grad():
            whole = model(input_ids=ids).logits
        assert list(seen.by_layer) == [0]
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], whole)
    assert [len(toposcope.scan(model, layers=layers).layers) for layers in (0, [0], range(2), "1-2")] == [1, 1, 2, 2]
    assert [len(toposcope.inspect(model, layers=layers).layers) for layers in (0, [0, 2])] == [1, 2]
    assert {head.layer for head in toposcope.compare(model, model, layers=0).heads} == {0}


def entered(block: Any) -> None:
    with block:
        pass


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda m: toposcope.scan(m, layers=1.5), "1.5"),
        (lambda m: toposcope.scan(m, layers=[0, 9]), "9"),
        (lambda m: toposcope.scan(m, encoding=3), "rope"),
        (lambda m: toposcope.scan(m, encoding=["rope", None]), "None"),
        (lambda m: toposcope.scan(3), "int"),
        (lambda m: toposcope.load(None), "NoneType"),
        (lambda m: toposcope.from_transformers("smollm2"), "toposcope.load"),
        (lambda m: toposcope.from_transformers(torch.nn.Linear(2, 2)), "Linear"),
        (lambda m: toposcope.spectrum(5), "5"),
        (lambda m: toposcope.flow(m, head=3), "3"),
        (lambda m: toposcope.flow(m, head=[(0, 1), (0, 2)]), "2"),
        (lambda m: toposcope.trace(m, "random", heads=[(0, 1, 2)]), "3.2"),
        (lambda m: toposcope.trace(m, "random", depth_encoding=4), "4"),
        (lambda m: toposcope.trace(m, "random", tokens="32"), "tokens"),
        (lambda m: toposcope.ablate(m, heads=7), "7"),
        (lambda m: entered(toposcope.ablated(m, layer="1", head=0)), "'1'"),
        (lambda m: entered(toposcope.ablated(m, layer=1, head="0")), "'0'"),
        (lambda m: entered(toposcope.captured(m, layers=[9])), "9"),
        (lambda m: entered(toposcope.swap_encoding(m, 3)), "3"),
        (lambda m: entered(toposcope.swap_encoding(m, "none", heads="0.9")), "0.9"),
    ],
)
def test_a_mistake_is_told_and_never_a_traceback_of_ours(model: Any, ask: Callable[[Any], Any], said: str) -> None:
    with pytest.raises(ToposcopeError) as caught:
        ask(model)
    assert said in str(caught.value)
