"""Decoders that are Llama but for a few settings: other defaults, a bias, the pairing of channels, the kind of norm.

Each was compared with transformers before it was listed: a name that looks like Llama's is no evidence.
"""

from __future__ import annotations

from toposcope.checkpoints.families import Family
from toposcope.checkpoints.families.table import Table

NORMED = ("self_attn.q_norm", "self_attn.k_norm")

ARCEE = Table(family="arcee", defaults={"rms_norm_eps": 1e-5})
ARIA = Table(family="aria_text")
SEED_OSS = Table(family="seed_oss", defaults={"num_key_value_heads": 8, "head_dim": 128})
SOLAR = Table(
    family="solar_open",
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5},
    rope={"default_base": 1e6},
)
HELIUM = Table(
    family="helium",
    defaults={"num_key_value_heads": 20, "head_dim": 128},
    eps=1e-8,
    rope={"default_base": 1e5, "pairing": "interleaved"},
)
ERNIE = Table(
    family="ernie4_5",
    defaults={"num_key_value_heads": 2, "head_dim": 128, "rms_norm_eps": 1e-5},
    rope={"default_base": 5e5, "pairing": "interleaved"},
)
ERNIE_MOE = Table(
    family="ernie4_5_moe",
    defaults={"num_key_value_heads": 4, "rms_norm_eps": 1e-5},
    rope={"default_base": 5e5, "pairing": "interleaved"},
)
JAIS2 = Table(family="jais2", norm="layer", eps_keys=("layer_norm_eps",), eps=1e-5)
APERTUS = Table(
    family="apertus",
    eps=1e-5,
    input_norm="attention_layernorm",
    qk_norm=NORMED,
    rope={"default_base": 12e6},
    rope_unsaid={
        "rope_type": "llama3",
        "rope_theta": 12e6,
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
)
MINIMAX_M2 = Table(
    family="minimax_m2",
    defaults={"num_key_value_heads": 8, "head_dim": 128},
    qk_norm=NORMED,
    qk_norm_over="layer",
    rope={"default_base": 5e6},
)
EUROBERT = Table(family="eurobert", stack="encoder", causal=False, defaults={"rms_norm_eps": 1e-5})
EMU3 = Table(family="emu3", defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5}, rope={"default_base": 1e6})
HY_V3 = Table(
    family="hy_v3",
    defaults={"num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5},
    qk_norm=NORMED,
    rope={"default_base": 11_158_840.0},
)

FAMILIES = (
    Family("eurobert", ("eurobert",), EUROBERT.describe, "EuroBERT: Llama that sees in both directions"),
    Family("emu3", ("emu3_text_model",), EMU3.describe, "Emu 3 (the text part): built like Llama"),
    Family("hy_v3", ("hy_v3",), HY_V3.describe, "Hunyuan 3: queries and keys normalised per head"),
    Family("arcee", ("arcee",), ARCEE.describe, "Arcee: Llama with another feed-forward part"),
    Family("aria_text", ("aria_text",), ARIA.describe, "Aria (the text part): Llama with a mixture of experts"),
    Family("seed_oss", ("seed_oss",), SEED_OSS.describe, "Seed-OSS: Llama with biases"),
    Family("solar_open", ("solar_open",), SOLAR.describe, "Solar Open: Llama with a mixture of experts"),
    Family("helium", ("helium",), HELIUM.describe, "Helium: Llama with neighbours paired"),
    Family("ernie4_5", ("ernie4_5",), ERNIE.describe, "ERNIE 4.5: Llama with neighbours paired"),
    Family("ernie4_5_moe", ("ernie4_5_moe",), ERNIE_MOE.describe, "ERNIE 4.5 mixtures of experts"),
    Family("jais2", ("jais2",), JAIS2.describe, "Jais 2: Llama with LayerNorm and biases"),
    Family("apertus", ("apertus",), APERTUS.describe, "Apertus: queries and keys normalised per head"),
    Family(
        "minimax_m2", ("minimax_m2",), MINIMAX_M2.describe, "MiniMax M2: one norm over all queries, one over all keys"
    ),
)
