"""Tiny models of real architectures, with a tokenizer, on disk and as transformers runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ("the", "disc", "at", "a", "viewpoint", "tells", "you", "where", "everything", "is", "hills", "and", "rivers")
TEXT = "the disc at a viewpoint tells you where everything is and the hills tells the rivers where a disc is "


def write_tokenizer(directory: Path) -> None:
    """A tokenizer of whole words, one number each."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    vocabulary = {word: number for number, word in enumerate(("[UNK]", "[PAD]", *WORDS))}
    made = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]", "pad_token": "[PAD]"})
    )


def randomise(model: Any, size: float = 1.0) -> None:
    import torch

    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(size * noise / parameter.shape[-1] ** 0.5)


def write_llama(directory: Path, **changes: Any) -> Any:
    """A Llama of 5 layers, width 24, 4 heads over 2 for keys and values; 32 positions."""
    from transformers import LlamaConfig, LlamaModel

    settings: dict[str, Any] = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 5,
        "max_position_embeddings": 32,
        "vocab_size": len(WORDS) + 2,
    }
    return _write(directory, LlamaModel(LlamaConfig(**{**settings, **changes})))


def write_bert(directory: Path) -> Any:
    """A BERT of 5 layers, width 24, 3 heads; 32 positions."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        hidden_size=24,
        intermediate_size=32,
        num_attention_heads=3,
        num_hidden_layers=5,
        max_position_embeddings=32,
        vocab_size=len(WORDS) + 2,
    )
    return _write(directory, BertModel(config))


def _write(directory: Path, model: Any) -> Any:
    randomise(model)
    directory.mkdir(parents=True, exist_ok=True)
    model.eval().save_pretrained(directory)
    write_tokenizer(directory)
    return model


def write_llama_lm(directory: Path, **changes: Any) -> Any:
    """The same Llama with a head that predicts the next word, 3 layers of it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "hidden_size": 24,
        "intermediate_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 3,
        "max_position_embeddings": 32,
        "vocab_size": len(WORDS) + 2,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    return _write(directory, LlamaForCausalLM(LlamaConfig(**{**settings, **changes})))
