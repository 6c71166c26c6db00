from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    BertModel,
    CamembertConfig,
    CamembertForMaskedLM,
    ElectraConfig,
    ElectraForPreTraining,
    ElectraModel,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaModel,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)

import toposcope
from toposcope.checkpoints.attention import attention, output, project
from toposcope.core.errors import BadConfig, BadEncoding

from .encoders import TINY, check_post_norm, reconfigured, renaming
from .harness import array, compare, randomise, watch_inputs


def base(model: nn.Module) -> nn.Module:
    return getattr(model, model.base_model_prefix, model)


def check(saved: Path, family: str, setting: str, model: nn.Module, **options: Any) -> None:
    check_post_norm(
        saved,
        family,
        setting,
        model,
        lambda m: base(m).encoder.layer,
        outputs=lambda m: [layer.attention.output.dense for layer in base(m).encoder.layer],
        after=lambda m: [layer.intermediate for layer in base(m).encoder.layer],
        position_module=lambda m: base(m).embeddings.position_embeddings,
        **options,
    )


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("bare", BertModel, {}),
        ("with a head", BertForMaskedLM, {}),
        ("one head", BertModel, {"num_attention_heads": 1}),
        ("large norm eps", BertModel, {"layer_norm_eps": 0.1}),
        ("causal", BertLMHeadModel, {"is_decoder": True}),
    ],
)
def test_bert(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, "bert", setting, kind(BertConfig(**{**TINY, **options})))


def test_bert_with_the_names_of_the_first_conversions(saved: Path) -> None:
    load = renaming(
        lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta")
    )
    check(saved, "bert", "gamma and beta", BertForMaskedLM(BertConfig(**TINY)), load=load)


def test_bert_without_model_type(saved: Path) -> None:
    load = reconfigured(lambda config: {key: value for key, value in config.items() if key != "model_type"})
    check(saved, "bert", "no model_type", BertModel(BertConfig(**TINY)), load=load)


def test_roberta_without_model_type_is_told_by_its_prefix(saved: Path) -> None:
    load = reconfigured(lambda config: {key: value for key, value in config.items() if key != "model_type"})
    check(saved, "roberta", "no model_type", RobertaForMaskedLM(RobertaConfig(**TINY)), load=load)


@pytest.mark.parametrize(
    ("setting", "kind", "config", "options"),
    [
        ("bare", RobertaModel, RobertaConfig, {}),
        ("with a head", RobertaForMaskedLM, RobertaConfig, {}),
        ("pad_token_id 0", RobertaModel, RobertaConfig, {"pad_token_id": 0}),
        ("pad_token_id 2", RobertaModel, RobertaConfig, {"pad_token_id": 2}),
        ("XLM-RoBERTa", XLMRobertaForMaskedLM, XLMRobertaConfig, {}),
        ("CamemBERT", CamembertForMaskedLM, CamembertConfig, {}),
    ],
)
def test_roberta(saved: Path, setting: str, kind: Any, config: Any, options: dict[str, Any]) -> None:
    check(saved, "roberta", setting, kind(config(**{**TINY, **options})))


def test_roberta_has_fewer_positions_than_rows(saved: Path) -> None:
    RobertaModel(RobertaConfig(**TINY)).save_pretrained(saved)
    with toposcope.load(saved) as ours:
        assert ours.spec.context == 62  # 64 rows, of which 0 and the padding's are never used


@pytest.mark.parametrize(
    ("setting", "kind", "options"),
    [
        ("narrow embeddings", ElectraModel, {"embedding_size": 16}),
        ("equal widths", ElectraModel, {"embedding_size": 32}),
        ("with a head", ElectraForPreTraining, {"embedding_size": 16}),
    ],
)
def test_electra(saved: Path, setting: str, kind: Any, options: dict[str, Any]) -> None:
    check(saved, "electra", setting, kind(ElectraConfig(**{**TINY, **options})))
    with toposcope.load(saved) as ours:
        table = ours.layers[0].encoding.input
        assert table is not None
        assert table.width == options["embedding_size"]


def test_cross_attention(saved: Path) -> None:
    """A decoder with cross-attention: its layers alternate, and the second kind reads the encoder's vectors."""
    model = BertModel(BertConfig(**TINY, is_decoder=True, add_cross_attention=True)).eval()
    randomise(model)
    model.save_pretrained(saved)
    blocks = list(model.encoder.layer)
    own, other = watch_inputs(blocks), watch_inputs([block.crossattention for block in blocks])
    given: list[torch.Tensor] = []
    for block in blocks:
        block.crossattention.output.dense.register_forward_hook(lambda *a: given.append(a[2].detach()))
    memory = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        out = model(torch.arange(3, 12)[None], encoder_hidden_states=memory, output_attentions=True)
    with toposcope.load(saved) as ours:
        assert [layer.spec.kind for layer in ours.layers] == ["self", "cross"] * len(blocks)
        assert not ours.skipped
        for i in range(len(blocks)):
            alone, cross = ours.layers[2 * i], ours.layers[2 * i + 1]
            compare("bert", "decoder", attention(alone, array(own[i][0][0])), array(out.attentions[i][0]))
            x, source = array(other[i][0][0]), array(memory[0])
            mine = attention(cross, x, source)
            compare("bert", "cross-attention", mine, array(out.cross_attentions[i][0]))
            _, _, values = project(cross, x, source)
            np.testing.assert_allclose(output(cross, mine, values), array(given[i][0]), atol=1e-4)


def test_relative_positions_of_old_files_are_named_and_not_computed(saved: Path) -> None:
    BertModel(BertConfig(**TINY)).save_pretrained(saved)
    load = reconfigured(lambda config: {**config, "position_embedding_type": "relative_key"})
    with load(saved) as ours:
        assert ours.layers[0].encoding.name == "relative-key"
        assert any("distance" in skipped.why for skipped in ours.skipped)
        with pytest.raises(BadEncoding, match="relative-key"):
            attention(ours.layers[0], np.zeros((3, 32)))


def test_a_named_type_may_leave_out_what_it_takes_for_granted(saved: Path) -> None:
    options = {**TINY, "hidden_size": 48, "num_attention_heads": 12}
    left_out = ("num_attention_heads", "layer_norm_eps", "is_decoder", "position_embedding_type")
    load = reconfigured(lambda config: {key: value for key, value in config.items() if key not in left_out})
    check(saved, "bert", "defaults left out", BertModel(BertConfig(**options)), load=load)


def test_without_a_type_nothing_is_taken_for_granted(saved: Path) -> None:
    BertModel(BertConfig(**TINY)).save_pretrained(saved)
    (saved / "config.json").unlink()
    with pytest.raises(BadConfig, match="lacks 'num_hidden_layers'"):
        toposcope.load(saved)
