"""A model whose answer is known: heads set by hand that look one token back and hand its word on as the prediction.

A tiny GPT-2 without feed-forward parts. Its stream has one block of channels for the word, one for the position (both
one-hot), and one that the head on top reads. Planted heads of layer 0 find the position before theirs and write its
word there; all other heads attend at random and write a little of what they see into a spare block.
On texts in which two words alternate, the word before is the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.models.making import WORDS, write_tokenizer

WIDTH, HEADS, BLOCK = 64, 4, 16
WORD, POSITION, ANSWER, SPARE = range(0, WIDTH, BLOCK)
LENGTH = 16


def planted_model(planted: Sequence[int], *, strength: float = 5.0, seed: int = 0) -> Any:
    """A two-layer model whose heads `planted` of layer 0, and no others, look one token back.

    At a strength of 5 the final norm makes the answer as loud with half of it: the loss is flat in the head's gate
    until it is nearly closed. At 0.1 it is not.
    """
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=len(WORDS) + 2,
        n_positions=LENGTH,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config).eval()
    generator = torch.Generator().manual_seed(seed)
    words = torch.eye(config.vocab_size, BLOCK)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "ln_" not in name:
                parameter.zero_()
        model.transformer.wte.weight[:, WORD : WORD + BLOCK] = words
        model.transformer.wpe.weight[:, POSITION : POSITION + BLOCK] = torch.eye(LENGTH)
        for layer, block in enumerate(model.transformer.h):
            query_key_value, out = block.attn.c_attn.weight, block.attn.c_proj.weight
            for head in range(HEADS):
                mine = slice(head * BLOCK, (head + 1) * BLOCK)
                q, k, v = (query_key_value[:, part * WIDTH : (part + 1) * WIDTH][:, mine] for part in range(3))
                if layer == 0 and head in planted:
                    q[POSITION + 1 : POSITION + LENGTH, :-1] = 2 * torch.eye(LENGTH - 1)  # i asks for i - 1
                    k[POSITION : POSITION + LENGTH] = 2 * torch.eye(LENGTH)
                    v[WORD : WORD + BLOCK] = torch.eye(BLOCK)
                    out[mine, ANSWER : ANSWER + BLOCK] = strength * torch.eye(BLOCK)
                else:
                    for part, size in ((q, 0.1), (k, 0.1), (v, 0.1)):
                        part.copy_(size * torch.randn(part.shape, generator=generator))
                    out[mine, SPARE:] = 0.05 * torch.randn((BLOCK, BLOCK), generator=generator)
        model.lm_head.weight[:, ANSWER : ANSWER + BLOCK] = words
    return model


def alternating_text(lines: int, *, seed: int = 0) -> str:
    """Lines in which two words alternate."""
    rng = np.random.default_rng(seed)
    pairs = [rng.choice(len(WORDS), 2, replace=False) for _ in range(lines)]
    return "\n".join(" ".join(WORDS[pair[at % 2]] for at in range(LENGTH)) for pair in pairs) + "\n"


def write_planted(directory: Path, planted: Sequence[int], *, strength: float = 5.0, lines: int = 6) -> Path:
    """The model, a tokenizer and a text on disk."""
    directory.mkdir(parents=True, exist_ok=True)
    planted_model(planted, strength=strength).save_pretrained(directory)
    write_tokenizer(directory)
    (directory / "text.txt").write_text(alternating_text(lines))
    return directory
