"""What refinements cost a training step: held regimes and both diagonals against the plain model of the same size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from bench.row import Row, interleaved

WIDTH, LAYERS, HEADS, TOKENS, BATCH = 256, 4, 8, 128, 8
GOAL = 1.5  # plain steps; the uniform form has none: every head attends over the model's whole width


def _model() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        intermediate_size=2 * WIDTH,
        vocab_size=256,
        max_position_embeddings=TOKENS,
    )
    return LlamaForCausalLM(config).eval()


def _step(change: Callable[[Any], object]) -> Callable[[], float]:
    """Processor seconds of one training step."""
    import torch

    from toposcope.refinements import parameter_groups

    model = _model()
    change(model)
    optimizer = torch.optim.AdamW(parameter_groups(model, weight_decay=0.1), lr=1e-4)
    ids = torch.randint(0, 256, (BATCH, TOKENS), generator=torch.Generator().manual_seed(1))

    def step() -> float:
        before = time.process_time()
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return time.process_time() - before

    step()
    return step


def measure() -> list[Row]:
    from toposcope import refinements as refine

    kinds: dict[str, Callable[[Any], object]] = {
        "heads held": lambda model: refine.apply(model, "head", "negative"),
        "layers held": lambda model: refine.apply(model, "layer", "negative"),
        "full construction": lambda model: refine.apply(model, "full", "negative"),
        "diagonal, slice form": lambda model: refine.install(model, form="slice"),
        "diagonal, uniform form": lambda model: refine.install(model, form="uniform"),
    }
    plain, *refined = interleaved(11, _step(lambda model: None), *(_step(change) for change in kinds.values()))
    what = f"training step, d = {WIDTH}, {LAYERS} layers of {HEADS} heads, {BATCH} x {TOKENS} tokens"
    return [
        Row(
            f"{what}: {name}",
            f"{seconds * 1e3:.0f} ms",
            f"plain step {plain * 1e3:.0f} ms",
            f"{seconds / plain:.2f}x plain",
            "-" if "uniform" in name else f"<= {GOAL:g}x plain",
            None if "uniform" in name else seconds / plain <= GOAL,
        )
        for name, seconds in zip(kinds, refined, strict=True)
    ]
