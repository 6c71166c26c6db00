"""Toposcope's view of a model of TransformerLens: the same layers and heads as from a file.

TransformerLens itself is not imported. Of a HookedTransformer (version 2) are read `cfg` and, of each block,
`attn.W_Q` (heads, model width, head width), `W_K`, `W_V`, `W_O`, biases and norms. Weights into which norms
were folded are taken as they are, and what is left of the norm (centring, scaling) stays. A TransformerBridge (from
version 3 on) wraps a transformers model, and is read as that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from toposcope.checkpoints.families.common import Config
from toposcope.checkpoints.live import MemorySource, view_of
from toposcope.checkpoints.source import Stored, TensorSource
from toposcope.checkpoints.spec import LayerSpec, Linear, ModelSpec, NormSpec
from toposcope.checkpoints.view import LayerWeights, Model, Norm
from toposcope.core.errors import BadConfig, BadValue, BadWeights
from toposcope.encodings import NONE, Encoding, alibi, learned, rope

_NORMS: Mapping[Any, str] = {"LN": "layer", "LNPre": "layer", "RMS": "rms", "RMSPre": "rms"}
_NEAR = {
    "torch.float64": 1e-3,
    "torch.float32": 1e-3,
}  # of tables in half precision: 0.02; other scalings are farther


def view_lens(model: Any) -> Model:
    """The layers and heads of a HookedTransformer or a TransformerBridge. Its tensors are shared, not copied."""
    if hasattr(model, "original_model"):
        return _bridged(model)
    if not all(hasattr(model, name) for name in ("cfg", "blocks", "embed")):
        raise BadValue(f"a {type(model).__name__} is no HookedTransformer: expected `cfg`, `blocks` and `embed`.")
    if hasattr(model.embed, "pos_embed") or hasattr(model, "encoder"):
        raise BadValue(
            f"a {type(model).__name__} is no HookedTransformer. "
            "Open the checkpoint it was made from with toposcope.load or from_transformers."
        )
    said = {name: value for name, value in vars(model.cfg).items() if not name.startswith("_")}
    config = Config(said, f"the cfg of {type(model).__name__}")
    if config.get("load_in_4bit"):
        raise BadWeights("the model is loaded in 4 bits: load it in float32 or bfloat16, so that it can be read.")
    tensors = _tensors(model, config)
    source = MemorySource(str(config.get("model_name") or type(model).__name__), tensors)
    layers = tuple(_layer(config, source, i, block) for i, block in enumerate(model.blocks))
    spec = ModelSpec("transformer_lens", layers, embedding="embed.W_E", context=config.integer("n_ctx"))
    return Model(spec, source, said, _read_layer)


def _bridged(bridge: Any) -> Model:
    """The transformers model inside a bridge, whose parts the bridge has wrapped in place."""
    if getattr(bridge, "compatibility_mode", False):
        raise BadValue(
            "the bridge is in compatibility mode, which may have changed its weights and not its configuration. "
            "Give it before enable_compatibility_mode()."
        )
    tensors = bridge.original_model.state_dict()
    return view_of(
        bridge.original_model, {name.replace("._original_component", ""): tensors[name] for name in tensors}
    )


def _tensors(model: Any, config: Config) -> dict[str, Any]:
    """The tensors by the names TransformerLens gives them; keys and values as stored, one per key-value head."""
    repeats = config.integer("n_heads") // _groups(config)
    found = {"embed.W_E": model.embed.W_E}
    if hasattr(model, "pos_embed"):
        found["pos_embed.W_pos"] = model.pos_embed.W_pos
    for i, block in enumerate(model.blocks):
        at = f"blocks.{i}."
        for name in ("W_Q", "W_O", "b_Q", "b_O"):
            found[f"{at}attn.{name}"] = getattr(block.attn, name)
        for name in ("W_K", "W_V", "b_K", "b_V"):
            stored = getattr(block.attn, f"_{name}", None)  # what grouped heads share
            found[f"{at}attn.{name}"] = getattr(block.attn, name)[::repeats] if stored is None else stored
        for owner, norms in ((block, ("ln1", "ln1_post")), (block.attn, ("q_norm", "k_norm"))):
            for name in norms:
                for part in ("w", "b"):
                    tensor = getattr(getattr(owner, name, None), part, None)
                    if tensor is not None:
                        found[f"{at}{'attn.' if owner is block.attn else ''}{name}.{part}"] = tensor
    return found


def _groups(config: Config) -> int:
    heads = config.integer("n_heads")
    groups = config.integer("n_key_value_heads", default=heads)
    if heads % groups:
        raise BadConfig(f"{config.where} claims {heads} heads in {groups} key-value groups: not a whole number each.")
    return groups


def _layer(config: Config, source: MemorySource, i: int, block: Any) -> LayerSpec:
    at, width = f"blocks.{i}.", config.integer("d_head")
    local = config.flag("use_local_attn", default=False) and config["attn_types"][i] == "local"
    causal = config.text("attention_dir", default="causal") == "causal"
    cap = config.number("attn_scores_soft_cap", default=-1.0)
    encoding, warnings = _encoding(config, source, block, local=local, causal=causal)
    kind = config.get("normalization_type")
    if kind is not None and kind not in _NORMS:
        raise BadConfig(f"'normalization_type' in {config.where} is {kind!r}; expected {', '.join(_NORMS)} or None.")

    def norm(name: str) -> NormSpec | None:
        if kind is None or (name != "ln1" and f"{at}{name}.w" not in source.names()):
            return None
        weight, bias = (f"{at}{name}.{part}" if f"{at}{name}.{part}" in source.names() else None for part in "wb")
        of_heads = name.endswith(("q_norm", "k_norm"))
        chosen = "rms" if of_heads or _NORMS[kind] == "rms" else "layer"
        return NormSpec(chosen, config.number("eps", default=1e-5), weight, bias)  # type: ignore[arg-type]

    def linear(letter: str) -> Linear:
        return Linear(f"{at}attn.W_{letter}", f"{at}attn.b_{letter}")

    return LayerSpec(
        stack="decoder" if causal else "encoder",
        index=i,
        width=config.integer("d_model"),
        heads=config.integer("n_heads"),
        kv_heads=_groups(config),
        head_dim=width,
        scale=1 / _divisor(config, i),
        causal=causal,
        reach=config.integer("window_size") - 1 if local and causal else None,  # without a mask there is no window
        encoding=encoding,
        q=linear("Q"),
        k=linear("K"),
        v=linear("V"),
        o=linear("O"),
        input_norm=norm("ln1"),
        output_norm=norm("ln1_post"),
        q_norm=norm("attn.q_norm"),
        k_norm=norm("attn.k_norm"),
        softcap=cap if cap > 0 else None,
        warnings=warnings,
    )


def _divisor(config: Config, i: int) -> float:
    """What the logits are divided by."""
    scale = 1.0
    if config.flag("use_attn_scale", default=True):
        said = config.number("attn_scale", default=-1.0)
        scale = said if said > 0 else config.integer("d_head") ** 0.5
    return scale * (i + 1) if config.flag("scale_attn_by_inverse_layer_idx", default=False) else scale


def _encoding(
    config: Config, source: MemorySource, block: Any, *, local: bool, causal: bool
) -> tuple[Encoding, tuple[str, ...]]:
    kind = config.get("positional_embedding_type", "standard")
    if kind in (None, "none"):
        return NONE, ()
    if kind == "standard":
        return learned(source.read("pos_embed.W_pos")), ()
    if kind == "shortformer":
        note = "in every layer, learned vectors are added behind the norm to what queries and keys read, not values"
        made = Encoding("shortformer", "learned vectors, behind the norm", exact_tables=False, notes=(note,))
        return made, (f"{note}.",)
    if kind == "alibi" and causal:
        heads = config.integer("n_heads")
        return alibi(heads, slopes=[2.0 ** (-8 * head / heads) for head in range(1, heads + 1)]), ()
    if kind == "rotary":
        return _rotary(config, block, local=local), ()
    raise BadConfig(
        f"'positional_embedding_type' in {config.where} is {kind!r}{'' if causal else ' without a causal mask'}; "
        "read are standard, shortformer, rotary, and alibi under a causal mask."
    )


def _rotary(config: Config, block: Any, *, local: bool) -> Encoding:
    """The rotation that cfg describes, compared with the sines and cosines that the model holds."""
    base = config.number("rotary_base", default=10000.0)
    if local and config.get("rotary_base_local") is not None:
        base = config.number("rotary_base_local")
    scaling: dict[str, Any] = {}
    if config.flag("use_NTK_by_parts_rope", default=False):
        scaling = {
            "scaling": "llama3",
            "factor": config.number("NTK_by_parts_factor", default=8.0),
            "low_freq_factor": config.number("NTK_by_parts_low_freq_factor", default=1.0),
            "high_freq_factor": config.number("NTK_by_parts_high_freq_factor", default=4.0),
            "original_context": config.integer("NTK_original_ctx_len", default=8192),
        }
    adjacent = config.flag("rotary_adjacent_pairs", default=False)
    made = rope(
        config.integer("d_head"),
        base=base,
        pairing="interleaved" if adjacent else "half",
        rotary_dim=config.integer("rotary_dim", default=config.integer("d_head")),
        **scaling,
    )
    held_sin, held_cos = getattr(block.attn, "rotary_sin", None), getattr(block.attn, "rotary_cos", None)
    if made.rotary is not None and held_sin is not None and held_cos is not None:
        sin, cos = (table[:256].detach().cpu().double().numpy() for table in (held_sin, held_cos))
        angle_NF = np.arange(len(sin))[:, None] * made.rotary.frequencies()
        angle_NR = np.repeat(angle_NF, 2, axis=1) if adjacent else np.tile(angle_NF, 2)
        apart = max(np.abs(sin - np.sin(angle_NR)).max(), np.abs(cos - np.cos(angle_NR)).max())
        if apart > _NEAR.get(str(held_sin.dtype), 0.02):
            raise BadConfig(
                f"the angles that the model holds are not those of {config.where} ({made.title}). Its rotary "
                "settings are of a kind that is not read: open the checkpoint it was made from with toposcope.load."
            )
    return made


def _read_layer(source: TensorSource, spec: LayerSpec) -> LayerWeights:
    """One layer's tensors: TransformerLens multiplies from the right, so each head's matrices are turned over."""
    at = f"blocks.{spec.index}.attn."
    heads, groups, wide, width = spec.heads, spec.kv_heads, spec.head_dim, spec.width

    def read(name: str, *shape: int) -> Stored:
        found = source.info(at + name).shape
        if found != shape:
            raise BadWeights(f"'{at}{name}' has shape {found}; its cfg asks for {shape}.")
        return source.read(at + name)

    def norm(said: NormSpec | None, rows: int | None = None) -> Norm | None:
        if said is None:
            return None
        gain, bias = (
            None if name is None else source.read(name).astype(np.float64) for name in (said.weight, said.bias)
        )
        if rows is not None and gain is not None:
            gain = np.broadcast_to(gain, (rows, wide))
        return Norm(said.kind, said.eps, gain, bias)

    return LayerWeights(
        q_HRD=read("W_Q", heads, width, wide).swapaxes(1, 2),
        k_GRD=read("W_K", groups, width, wide).swapaxes(1, 2),
        v_GVD=read("W_V", groups, width, wide).swapaxes(1, 2),
        o_HDV=read("W_O", heads, wide, width).swapaxes(1, 2),
        q_bias_HR=read("b_Q", heads, wide),
        k_bias_GR=read("b_K", groups, wide),
        v_bias_GV=read("b_V", groups, wide),
        o_bias_D=read("b_O", width),
        input_norm=norm(spec.input_norm),
        output_norm=norm(spec.output_norm),
        q_norm=norm(spec.q_norm, heads),
        k_norm=norm(spec.k_norm, groups),
    )
