"""Trained encoders from installed packages: our attention equals that of the libraries they were made with.

MiniLM, RXNMapper and the three reaction BERTs against transformers; the Russian stress transformer against PyTorch.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toposcope
from toposcope.checkpoints.attention import attention, output, project
from toposcope.checkpoints.installed import find
from toposcope.core.errors import BadConfig, NotFound
from toposcope.encodings import sinusoidal

torch = pytest.importorskip("torch", reason="the comparison needs torch: pip install torch")
transformers = pytest.importorskip(
    "transformers", reason="the comparison needs transformers: pip install transformers"
)

TOLERANCE = 1e-5
REACTION = "CC(C)(C)OC(=O)N1CCC(N)CC1.O=C(Cl)c1ccccc1>>CC(C)(C)OC(=O)N1CCC(NC(=O)c2ccccc2)CC1"
SENTENCE = (
    "A toposcope is the disc at a viewpoint that tells you where everything is: it is read by walking round it, "
    "and the hills it names are found by their direction alone."
)


def path_of(name: str) -> Path:
    """Where an installed model lies; the test is skipped, with the command that installs it, where it is not."""
    try:
        path = find(name).path()
    except NotFound as missing:
        pytest.skip(str(missing))
    assert path is not None
    return path


def compare_all(name: str, attentions: Sequence[Any], streams: Sequence[Any], added: Sequence[Any]) -> float:
    """Every layer's probabilities, and what attention adds to the stream."""
    worst = 0.0
    with toposcope.load(name) as ours:
        assert len(ours.layers) == len(attentions) == len(streams) == len(added)
        for layer, theirs, x, out in zip(ours.layers, attentions, streams, added, strict=True):
            x = x[0].double().numpy()
            mine = attention(layer, x)
            worst = max(worst, float(np.abs(mine - theirs[0].double().numpy()).max()))
            assert worst <= TOLERANCE, f"{name}, layer {layer.number}: attention differs by {worst:.2e}"
            _, _, values = project(layer, x)
            np.testing.assert_allclose(output(layer, mine, values), out[0].double().numpy(), atol=1e-4)
    return worst


def record(modules: Sequence[Any], dense: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """What enters the attention modules and what their output maps give, in the order of the calls."""
    entered: list[Any] = []
    given: list[Any] = []
    for module in modules:
        module.register_forward_pre_hook(lambda m, args: entered.append(args[0].detach()))
    for module in dense:
        module.register_forward_hook(lambda m, args, out: given.append(out.detach()))
    return entered, given


def quiet(build: Any) -> Any:
    """Run a loader that may warn about heads it does not find in the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build().eval()


def characters(path: Path, text: str) -> Any:
    """Token numbers of a reaction, one for each character the vocabulary knows; other characters share one number."""
    words = {word: i for i, word in enumerate((path / "vocab.txt").read_text().split("\n"))}
    return torch.tensor([[words.get(character, words["C"]) for character in text]])


def check_bert(name: str, model: Any, tokens: Any) -> float:
    blocks = list(model.encoder.layer)
    entered, given = record([block.attention for block in blocks], [block.attention.output.dense for block in blocks])
    with torch.no_grad():
        out = model(tokens, output_attentions=True)
    return compare_all(name, out.attentions, entered, given)


def check_positions(name: str, model: Any) -> None:
    """The vectors the model adds at positions 0 to 63."""
    with toposcope.load(name) as ours:
        table = ours.layers[0].encoding.input
        assert table is not None
        theirs = model.embeddings.position_embeddings(torch.arange(64)).detach().double().numpy()
        np.testing.assert_array_equal(table.vectors(np.arange(64)), theirs)


def test_minilm() -> None:
    path = path_of("minilm")
    model = quiet(lambda: transformers.BertModel.from_pretrained(path, attn_implementation="eager"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    check_bert("minilm", model, tokenizer(SENTENCE, return_tensors="pt")["input_ids"])
    check_positions("minilm", model)
    with toposcope.load("minilm") as ours:
        assert ours.family == "bert"
        assert not ours.skipped


@pytest.mark.parametrize("checkpoint", ["bert_pretrained", "bert_ft", "bert_ft_10k_25s"])
def test_reaction_bert(checkpoint: str) -> None:
    name = f"rxnfp/{checkpoint}"
    path = path_of(name)
    settings = json.loads((path / "config.json").read_text())
    config = transformers.BertConfig(
        **{key: settings[key] for key in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size")},
        intermediate_size=settings["intermediate_size"],
        layer_norm_eps=settings["layer_norm_eps"],
        max_position_embeddings=settings["max_position_embeddings"],
        attn_implementation="eager",
    )
    model = quiet(lambda: transformers.BertModel.from_pretrained(path, config=config))
    check_bert(name, model, characters(path, REACTION))
    check_positions(name, model)
    with toposcope.load(name) as ours:
        assert ours.family == "bert"
        assert not ours.skipped


def test_rxnmapper() -> None:
    path = path_of("rxnmapper")
    model = quiet(lambda: transformers.AlbertModel.from_pretrained(path, attn_implementation="eager"))
    attentions = [module for module in model.modules() if type(module).__name__ == "AlbertAttention"]
    entered, given = record(attentions, [module.dense for module in attentions])
    with torch.no_grad():
        out = model(characters(path, REACTION), output_attentions=True)
    compare_all("rxnmapper", out.attentions, entered, given)
    check_positions("rxnmapper", model)
    with toposcope.load("rxnmapper") as ours:
        assert ours.family == "albert"
        assert [layer.spec.shared_with for layer in ours.layers] == [None] + [0] * 11
        assert not ours.skipped


@pytest.fixture(scope="module")
def stress() -> dict[str, Any]:
    return torch.load(path_of("ruaccent"), weights_only=True, map_location="cpu")


def test_stress_transformer_positions_are_a_sinusoid(stress: dict[str, Any]) -> None:
    exact = sinusoidal(256).input
    assert exact is not None
    at = np.arange(256)
    with toposcope.load("ruaccent") as ours:
        assert ours.family == "torch"
        assert ours.spec.context == 256
        assert ours.spec.embedding == "embed.char_embed.weight"
        for layer in ours.layers:
            table = layer.encoding.input
            if layer.spec.kind == "cross":
                assert table is None
                continue
            assert table is not None
            np.testing.assert_array_equal(table.vectors(at), stress["embed.pos_encoding"][0].double().numpy())
            np.testing.assert_allclose(table.vectors(at), exact.vectors(at), atol=1e-4)


def test_stress_transformer_attention(stress: dict[str, Any]) -> None:
    """The whole nn.Transformer is rebuilt from the same tensors and run; every attention is compared on its input.

    In float64 on both sides: its logits are so large that PyTorch's own float32 is off by 1e-5 in one head.
    """
    theirs = torch.nn.Transformer(256, 8, 4, 4, 1024, dropout=0.0, batch_first=True).double()
    prefix = "transformer."
    theirs.load_state_dict({k.removeprefix(prefix): v for k, v in stress.items() if k.startswith(prefix)})

    def embed(numbers: Any) -> Any:
        added = stress["embed.pos_encoding"][0, : len(numbers)]
        return (stress["embed.char_embed.weight"][numbers] * 16 + added).double()

    draw = torch.Generator().manual_seed(0)
    source, target = (embed(torch.randint(3, 224, (n,), generator=draw))[None] for n in (31, 23))
    entered: dict[str, Any] = {}
    modules = {name: m for name, m in theirs.named_modules() if isinstance(m, torch.nn.MultiheadAttention)}
    for name, module in modules.items():
        module.register_forward_pre_hook(lambda m, args, name=name: entered.update({name: args[:2]}))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(23).double()
    with torch.no_grad():
        theirs(source, target, tgt_mask=mask)
    with toposcope.load("ruaccent") as ours:
        assert len(ours.layers) == len(modules) == 12
        assert not ours.skipped
        for layer in ours.layers:
            assert layer.spec.placement == "post"
            kind = "multihead_attn" if layer.spec.kind == "cross" else "self_attn"
            name = f"{layer.spec.stack}.layers.{layer.spec.index}.{kind}"
            x, keys = entered[name]
            with torch.no_grad():
                out, expected = modules[name](
                    x,
                    keys,
                    keys,
                    attn_mask=mask if layer.spec.causal else None,
                    need_weights=True,
                    average_attn_weights=False,
                )
            read = keys[0].numpy() if layer.spec.kind == "cross" else None
            mine = attention(layer, x[0].numpy(), read)
            worst = np.abs(mine - expected[0].numpy()).max()
            assert worst <= 1e-12, f"{name}: attention differs by {worst:.2e}"
            _, _, values = project(layer, x[0].numpy(), read)
            np.testing.assert_allclose(output(layer, mine, values), out[0].numpy(), atol=1e-10)


def test_the_same_file_by_its_path_needs_the_number_of_heads() -> None:
    path = path_of("ruaccent")
    with pytest.raises(BadConfig, match="--num-heads"):
        toposcope.load(path)
    with toposcope.load(path, num_heads=8) as ours, toposcope.load("ruaccent") as named:
        for mine, known in zip(ours.layers, named.layers, strict=True):
            assert mine.spec.kind == known.spec.kind
            np.testing.assert_array_equal(mine.weights.q_HRD, known.weights.q_HRD)
            assert mine.encoding.title == known.encoding.title
