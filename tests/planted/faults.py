"""The 42 faults that are planted, each in the files of one sound model: a change of its configuration or tensors.

`SMOLLM2` is SmolLM2-135M written as a Llama directory, `MINILM` is MiniLM as it is. The first nineteen were called in
order by `check` before it asked what training leaves behind; the others have been found for longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from toposcope.encodings import parse as spec_of
from toposcope.encodings import spec

Config = dict[str, Any]
Tensors = dict[str, np.ndarray]
SMOLLM2, MINILM = "smollm2", "minilm"
LINEAR = {"rope_type": "linear", "factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}


@dataclass(frozen=True)
class Fault:
    """One fault: what is wrong, in which model, and how it is planted; `finding` is what should name it."""

    name: str
    model: str
    plant: Callable[[Config, Tensors], None]
    finding: tuple[str, ...]  # any of these; "refused" where the file cannot be opened
    in_weights: bool = False


def setting(**values: Any) -> Callable[[Config, Tensors], None]:
    def plant(config: Config, _: Tensors) -> None:
        config.update(values)

    return plant


def without(key: str, **values: Any) -> Callable[[Config, Tensors], None]:
    def plant(config: Config, _: Tensors) -> None:
        config.pop(key)
        config.update(values)

    return plant


def rows(
    *parts: str, order: Callable[[int], np.ndarray], layer: int | None = None
) -> Callable[[Config, Tensors], None]:
    """Rows of each head of these projections in another order, in all layers or in one."""

    def plant(config: Config, tensors: Tensors) -> None:
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        for name in list(tensors):
            one = layer is None or f".layers.{layer}." in name
            if one and any(name.endswith(f"{part}_proj.weight") for part in parts):
                by_head = tensors[name].reshape(-1, size, tensors[name].shape[1])
                tensors[name] = by_head[:, order(size)].reshape(tensors[name].shape)

    return plant


def neighbours(size: int) -> np.ndarray:
    return np.arange(size).reshape(2, -1).T.reshape(-1)


def reversed_rows(size: int) -> np.ndarray:
    return np.arange(size)[::-1]


def halves_swapped(size: int) -> np.ndarray:
    return np.roll(np.arange(size), size // 2)


def fresh_projections(config: Config, tensors: Tensors) -> None:
    random = np.random.default_rng(0)
    for name in tensors:
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            tensors[name] = random.normal(0, 0.02, tensors[name].shape)


def gains_of_one(config: Config, tensors: Tensors) -> None:
    for name in tensors:
        if name.endswith(("input_layernorm.weight", "attention_norm.weight")):
            tensors[name] = np.ones_like(tensors[name])


def dead_head(config: Config, tensors: Tensors) -> None:
    tensors["model.layers.3.self_attn.q_proj.weight"][:64] = 0


def copied_layer(config: Config, tensors: Tensors) -> None:
    for part in "qkvo":
        at = "model.layers.{}.self_attn." + part + "_proj.weight"
        tensors[at.format(8)] = tensors[at.format(7)].copy()


def stored_frequencies(config: Config, tensors: Tensors) -> None:
    for i in range(config["num_hidden_layers"]):
        tensors[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = 1e4 ** (-np.arange(0, 64, 2) / 64)


def left_table(config: Config, tensors: Tensors) -> None:
    tensors["model.embed_positions.weight"] = np.random.default_rng(0).normal(0, 0.02, (512, config["hidden_size"]))


def table(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Config, Tensors], None]:
    def plant(config: Config, tensors: Tensors) -> None:
        name = next(each for each in ("embeddings.position_embeddings.weight", "position.table") if each in tensors)
        tensors[name] = change(tensors[name].copy())

    return plant


def drawn(like: np.ndarray) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(like.shape) * like.std()


def untrained_end(rows_ND: np.ndarray) -> np.ndarray:
    return np.concatenate([rows_ND[:200], drawn(rows_ND)[200:]])


def zero_end(rows_ND: np.ndarray) -> np.ndarray:
    rows_ND[400:] = 0
    return rows_ND


def shuffled_rows(rows_ND: np.ndarray) -> np.ndarray:
    return np.random.default_rng(2).permutation(rows_ND)


def shifted_rows(rows_ND: np.ndarray) -> np.ndarray:
    return np.roll(rows_ND, 1, axis=0)


def sinusoid_behind_zeros(rows_ND: np.ndarray) -> np.ndarray:
    count, width = rows_ND.shape
    angle = np.arange(count - 1)[:, None] * 1e4 ** (-np.arange(0, width, 2) / width)
    waves = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(count - 1, width)
    return np.concatenate([np.zeros((1, width)), waves])


def in_the_lab(**values: Any) -> Callable[[Config, Tensors], None]:
    """The rotary encoding of a model of the laboratory with other parameters; numbers are multiplied."""

    def plant(config: Config, _: Tensors) -> None:
        for part in (part for layer in config["layer_encodings"] for part in layer):
            found = spec_of(part["encoding"])
            given = dict(found.parameters)
            for key, value in values.items():
                given[key] = given.get(key, 1.0) * value if isinstance(value, float) else value
            part["encoding"] = str(spec(found.name, **given))

    return plant


def other_pairing(config: Config, tensors: Tensors) -> None:
    for part in (part for layer in config["layer_encodings"] for part in layer):
        half = "pairing=half" in part["encoding"]
        old, new = ("half", "interleaved") if half else ("interleaved", "half")
        part["encoding"] = part["encoding"].replace(f"pairing={old}", f"pairing={new}")


def drawn_projections(config: Config, tensors: Tensors) -> None:
    """Q and K as the laboratory draws them before training."""
    random = np.random.default_rng(0)
    for name in tensors:
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            most = (6 / sum(tensors[name].shape)) ** 0.5
            tensors[name] = random.uniform(-most, most, tensors[name].shape)


ONCE_MISSED = (
    Fault("key 'rope_scalling'", SMOLLM2, setting(rope_scalling=LINEAR), ("unknown-key",)),
    Fault("key 'rope_scalings'", SMOLLM2, setting(rope_scalings=LINEAR), ("unknown-key",)),
    Fault("key 'rope_base' for rope_theta", SMOLLM2, without("rope_theta", rope_base=1e5), ("unknown-key",)),
    Fault("base lost: 10,000 by default", SMOLLM2, without("rope_theta"), ("base",)),
    Fault("base 10 times too large", SMOLLM2, setting(rope_theta=1e6), ("base",)),
    Fault("base 100 times too large", SMOLLM2, setting(rope_theta=1e7), ("base",)),
    Fault("base 10", SMOLLM2, setting(rope_theta=10.0), ("context", "base")),
    Fault("linear x 4 added", SMOLLM2, setting(rope_scaling=LINEAR), ("base",)),
    Fault("context 131,072 without scaling", SMOLLM2, setting(max_position_embeddings=131072), ("base",)),
    Fault(
        "half of each head turns",
        SMOLLM2,
        setting(model_type="stablelm", partial_rotary_factor=0.5),
        ("rotated-part",),
    ),
    Fault("only Q permuted", SMOLLM2, rows("q", order=neighbours), ("row-order",), True),
    Fault("only K permuted", SMOLLM2, rows("k", order=neighbours), ("row-order",), True),
    Fault("Q and K at initial values", SMOLLM2, fresh_projections, ("initial-values",), True),
    Fault("channels reversed", SMOLLM2, rows("q", "k", order=reversed_rows), ("frequency-order", "direction"), True),
    Fault("halves swapped", SMOLLM2, rows("q", "k", order=halves_swapped), ("direction",), True),
    Fault("norm gains lost", SMOLLM2, gains_of_one, ("norm-gains",), True),
    Fault("rows of the table shuffled", MINILM, table(shuffled_rows), ("position-table",), True),
    Fault("rows of the table shifted by one", MINILM, table(shifted_rows), ("first-row", "position-table"), True),
    Fault("a sinusoid behind a row of zeros", MINILM, table(sinusoid_behind_zeros), ("position-table",), True),
)
LONG_FOUND = (
    Fault("scaling misspelt", SMOLLM2, setting(rope_scaling={**YARN, "rope_type": "yarnn"}), ("refused",)),
    Fault("linear without a factor", SMOLLM2, setting(rope_scaling={"rope_type": "linear"}), ("refused",)),
    Fault(
        "yarn without the original context",
        SMOLLM2,
        setting(rope_scaling={"rope_type": "yarn", "factor": 4.0}),
        ("original-context",),
    ),
    Fault(
        "rope_scaling against rope_parameters",
        SMOLLM2,
        setting(
            rope_scaling={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
            rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        ),
        ("settings-contradict",),
    ),
    Fault(
        "base in two places",
        SMOLLM2,
        setting(rope_parameters={"rope_type": "default", "rope_theta": 1e4}),
        ("base-lost",),
    ),
    Fault("scaling by 1", SMOLLM2, setting(rope_scaling={"rope_type": "linear", "factor": 1.0}), ("scaling-effect",)),
    Fault(
        "two kinds of scaling named",
        SMOLLM2,
        setting(rope_scaling={"rope_type": "linear", "type": "dynamic", "factor": 4.0}),
        ("kinds-disagree",),
    ),
    Fault(
        "key misspelt inside rope_scaling",
        SMOLLM2,
        setting(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embedings": 8192}),
        ("unknown-key",),
    ),
    Fault(
        "attention factor of another scaling",
        SMOLLM2,
        setting(rope_scaling={**YARN, "attention_factor": 1.4}, max_position_embeddings=32768),
        ("attention-factor",),
    ),
    Fault(
        "context beyond the scaling",
        SMOLLM2,
        setting(rope_scaling=YARN, max_position_embeddings=131072),
        ("context",),
    ),
    Fault("stored frequencies of another base", SMOLLM2, stored_frequencies, ("stored-frequencies",), True),
    Fault("a factor without rope_type", SMOLLM2, setting(rope_scaling={"factor": 4.0}), ("scaling-lost",)),
    Fault("more positions claimed than the table has", MINILM, setting(max_position_embeddings=1024), ("context",)),
    Fault("a table left in a rotary model", SMOLLM2, left_table, ("unread-table",), True),
    Fault("Q and K in the other order", SMOLLM2, rows("q", "k", order=neighbours), ("pairing",), True),
    Fault("one layer in the other order", SMOLLM2, rows("q", "k", order=neighbours, layer=9), ("pairing",), True),
    Fault("a dead head", SMOLLM2, dead_head, ("dead-heads",), True),
    Fault("a layer that is a copy", SMOLLM2, copied_layer, ("identical-layers",), True),
    Fault("a table of zeros", MINILM, table(np.zeros_like), ("position-table",), True),
    Fault("a table drawn anew", MINILM, table(drawn), ("position-table",), True),
    Fault("a table untrained from 200 on", MINILM, table(untrained_end), ("position-table",), True),
    Fault(
        "a table stretched by copying",
        MINILM,
        table(lambda rows_ND: np.concatenate([rows_ND[:256]] * 2)),
        ("repeated-rows",),
        True,
    ),
    Fault("zeros from position 400 on", MINILM, table(zero_end), ("dead-rows",), True),
)
FAULTS = (*ONCE_MISSED, *LONG_FOUND)
# the same in every model of the laboratory that rotates, or has a table
IN_ROTARY = (
    Fault("base 10 times too large", "", in_the_lab(base=10.0), ("base",)),
    Fault("base 100 times too large", "", in_the_lab(base=100.0), ("base",)),
    Fault("linear x 4 added", "", in_the_lab(scaling="linear", factor=4.0), ("base",)),
    Fault("half as many channels turn", "", in_the_lab(partial=0.5), ("rotated-part",)),
    Fault("the other pairing", "", other_pairing, ("pairing",)),
    Fault("only Q permuted", "", rows("q", order=neighbours), ("row-order",), True),
    Fault("only K permuted", "", rows("k", order=neighbours), ("row-order",), True),
    Fault("Q and K at initial values", "", drawn_projections, ("initial-values",), True),
    Fault("channels reversed", "", rows("q", "k", order=reversed_rows), ("frequency-order", "direction"), True),
    Fault("halves swapped", "", rows("q", "k", order=halves_swapped), ("direction",), True),
    Fault("norm gains lost", "", gains_of_one, ("norm-gains",), True),
)
IN_A_TABLE = (
    Fault("rows of the table shuffled", "", table(shuffled_rows), ("position-table",), True),
    Fault("rows of the table shifted by one", "", table(shifted_rows), ("first-row", "position-table"), True),
    Fault("a table drawn anew", "", table(drawn), ("position-table",), True),
    Fault("a table of zeros", "", table(np.zeros_like), ("position-table",), True),
)
