"""A small copy of a model: transformers' own class, its attention at its true sizes, all else as small as it may be.

Only classes that transformers itself maps to the model type are built; a configuration's `auto_map`, kernels and
quantisation are dropped, so nothing from elsewhere runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from toposcope.checkpoints.generic.bounds import MOST_PARAMETERS, Deadline, Refused
from toposcope.core.memory import require_memory

VOCABULARY, SPECIAL = 160, 32  # tokens of the copy; the first ones are left to special tokens
_DROPPED = (
    *("auto_map", "quantization_config", "attn_implementation", "experts_implementation", "use_kernels"),
    *("torch_dtype", "dtype", "id2label", "label2id"),
)
_WIDTH = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim", "model_dim")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "decoder_attention_heads", "num_q_heads")
_INNER = (
    *("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "d_ff", "dim_ff", "inner_dim"),
    *("ffn_hidden_size", "moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"),
    *("expert_ffn_hidden_size", "intermediate_size_mlp", "moe_layer_inter_size", "dense_intermediate_size"),
    *("moe_shared_expert_intermediate_size", "mlp_hidden_size", "hidden_dim", "dense_ffn_hidden_size"),
)
_EXPERTS = (
    *(
        "num_experts",
        "num_local_experts",
        "n_routed_experts",
        "moe_num_experts",
        "zero_expert_num",
        "moe_num_primary",
    ),
    *("n_shared_experts", "num_shared_experts"),
)
_CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k", "top_k_experts", "num_experts_per_token", "top_k")
_GROUPS = ("n_group", "topk_group", "num_expert_group")
_VOCABULARY = ("vocab_size", "vocab_size_per_layer_input", "text_vocab_size", "padded_vocab_size")
_LAYERS = ("num_hidden_layers", "depth", "num_layers", "n_layers", "encoder_layers", "layers")
_OTHER_SENSES = ("vision", "audio", "image", "speech", "video", "vq")
_MAPPINGS = (
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)


def known(model_type: object) -> bool:
    """Whether transformers itself has a configuration of this type."""
    from transformers import CONFIG_MAPPING

    return isinstance(model_type, str) and model_type in CONFIG_MAPPING


def true_config(values: Mapping[str, Any]) -> Any:
    """The configuration object of transformers, made of the settings alone."""
    from transformers import CONFIG_MAPPING

    return from_settings(CONFIG_MAPPING[values["model_type"]], _cleaned(values))


def from_settings(kind: Any, values: dict[str, Any]) -> Any:
    """A configuration of a class of transformers."""
    config = kind.from_dict(values)
    config._attn_implementation = "eager"
    return config


def _cleaned(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those that name code, kernels, or number formats."""
    return {
        key: False if key == "use_pretrained_backbone" else _plain(value)
        for key, value in values.items()
        if key not in _DROPPED and not str(key).startswith("_")
    }


def _plain(value: Any) -> Any:
    """A setting; transformers writes infinity as {"__float__": "Infinity"}."""
    if isinstance(value, Mapping):
        return float(value["__float__"]) if set(value) == {"__float__"} else _cleaned(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def model_class(config: Any) -> Any:
    """The class that transformers maps to the type: the one the configuration names, if it is such a class."""
    import transformers
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for mapping in _MAPPINGS:
        name = getattr(modeling_auto, mapping, {}).get(config.model_type)
        if name is not None:
            found[mapping] = name[0] if isinstance(name, tuple) else name
    order = list(_MAPPINGS)
    if getattr(config, "is_decoder", False) or not getattr(config, "is_encoder_decoder", False):
        order = [*order[1:4], order[0], order[4]]
    if getattr(config, "is_decoder", False):
        order.insert(0, "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")
    named = [each for each in getattr(config, "architectures", None) or () if _belongs(each, config)]
    chosen = named[0] if named else next((found[each] for each in order if each in found), None)
    if chosen is None:
        raise Refused(f"transformers has no model for the type '{config.model_type}'")
    return getattr(transformers, chosen)


def _belongs(name: object, config: Any) -> bool:
    """Whether transformers has a model class of this name for this very kind of configuration."""
    import transformers

    kind = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
    model = isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)
    return model and getattr(kind, "config_class", None) is type(config)


@contextmanager
def bounded(deadline: Deadline) -> Iterator[None]:
    """Stop a construction that takes too long: every tensor that is made asks for the time."""
    from torch.overrides import TorchFunctionMode

    class Bounded(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
            deadline.check()
            return function(*given, **(options or {}))

    with Bounded():
        yield


def weightless(kind: Any, config: Any, deadline: Deadline) -> Any:
    """The model on the meta device: names and shapes at no cost."""
    import torch

    with bounded(deadline), torch.device("meta"):
        return kind._from_config(config, attn_implementation="eager", dtype=torch.float32)


def attempts(config: Any) -> Iterator[dict[str, Any]]:
    """Smaller settings, the smallest first; which of them keeps attention as it is, shapes tell."""
    values = config.to_dict()
    seen: list[dict[str, Any]] = []
    for narrow in (True, False):
        for shallow in (True, False):
            small = _small(values, narrow=narrow, shallow=shallow, other=False)
            if small in seen:
                continue
            seen.append(small)
            yield _cleaned(small)


def _small(values: Mapping[str, Any], *, narrow: bool, shallow: bool, other: bool) -> dict[str, Any]:
    """The settings with small sizes; towers of other senses lose layers, not width."""
    small = dict(values)
    for key, value in values.items():
        if isinstance(value, Mapping):
            sense = other or key.startswith(_OTHER_SENSES)
            if key.endswith("config") or "_config" in key or key in ("encoder", "decoder", "text_encoder"):
                small[key] = _small(value, narrow=narrow, shallow=shallow, other=sense)
        elif other:
            if key in _LAYERS and shallow and _is_count(value):
                small[key] = min(value, 2)
        elif key in _VOCABULARY and isinstance(value, int):
            small[key] = min(value, VOCABULARY)
        elif key in _INNER:
            small[key] = _at_most(value, 64)
        elif key in _EXPERTS:
            small[key] = _at_most(value, 4)
        elif key in _CHOSEN:
            small[key] = _at_most(value, 2)
        elif key in _GROUPS:
            small[key] = _at_most(value, 1)
    patch, side = values.get("patch_size"), values.get("image_size")
    if shallow and _is_count(patch) and _is_count(side) and patch:
        small["image_size"] = min(side, 4 * patch)
    if not other:
        _renumber(small)
        width = next((small[key] for key in _WIDTH if isinstance(small.get(key), int)), None)
        heads = next((small[key] for key in _HEADS if isinstance(small.get(key), int)), None)
        if narrow and width and heads and heads > 0:
            step = math.lcm(heads, 16)
            less = step * max(1, 64 // step)
            if less < width:
                if width % heads == 0:  # many classes read it, though their configurations do not hold it
                    small.setdefault("head_dim", width // heads)
                for key in _WIDTH:
                    if small.get(key) == width:
                        small[key] = less
    return small


def _at_most(value: Any, most: int) -> Any:
    if isinstance(value, list):
        return [_at_most(each, most) for each in value]
    return min(value, most) if isinstance(value, int) and not isinstance(value, bool) else value


def _renumber(values: dict[str, Any]) -> None:
    """Special tokens with large numbers get small ones. Small ones stay: some models count from the padding's."""
    keys = [key for key in sorted(values) if "token_id" in key or "token_index" in key]
    kept = {values[key] for key in keys if _is_count(values[key]) and values[key] < SPECIAL}
    free = [number for number in range(SPECIAL - 1, -1, -1) if number not in kept] or [0]

    def small(value: Any) -> Any:
        if isinstance(value, list):
            return [small(each) for each in value]
        if not _is_count(value) or value < SPECIAL:
            return value
        return free.pop() if len(free) > 1 else free[0]

    for key in keys:
        values[key] = small(values[key])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def foretell(kind: Any, config: Any, deadline: Deadline) -> None:
    """Complain of a copy that is too large to be run."""
    size = sum(each.numel() for each in weightless(kind, config, deadline).parameters())
    if size > MOST_PARAMETERS:
        raise Refused(f"the smallest copy that keeps its attention has {size / 1e9:.1f} billion parameters")
    require_memory(20.0 * size, "a copy of the model to measure", "Use a machine with more memory.")


def build(kind: Any, config: Any, deadline: Deadline, seed: int = 0) -> Any:
    """The copy with random weights."""
    import torch

    with bounded(deadline), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        randomise(model, seed)
    return model


def randomise(model: Any, seed: int = 0) -> None:
    """Weights of a size that keeps activations of order one; gains and biases apart from one and zero."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point() or not parameter.requires_grad:
                continue
            if any(part in name for part in ("A_log", "dt_bias", ".D", "conv1d")):
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.3 * noise)
            else:
                parameter.copy_(noise / parameter.shape[-1] ** 0.5)
