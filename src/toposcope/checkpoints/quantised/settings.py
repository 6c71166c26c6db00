"""What a checkpoint says of its quantisation: in config.json, or in a small file beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toposcope.core.errors import BadConfig
from toposcope.core.printable import printable

# Files beside config.json that say how weights were quantised, and the method where they do not name it.
BESIDE: Mapping[str, str] = {
    "hf_quant_config.json": "modelopt",
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
_MAIN = ("quantization_config", "compression_config")
_TOWERS = ("text_config", "llm_config", "language_config", "thinker_config")
# How AutoRound packs: whose method that is, and which version of its format.
_AUTO_ROUND: Mapping[str, Mapping[str, str]] = {
    "auto_round:auto_gptq": {"quant_method": "gptq", "checkpoint_format": "gptq"},
    "auto_round:gptqmodel": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    "auto_round": {"quant_method": "gptq", "checkpoint_format": "gptq_v2"},
    "auto_round:auto_awq": {"quant_method": "awq"},
}
_MUST_AGREE = ("bits", "group_size", "desc_act", "sym", "checkpoint_format")


@dataclass(frozen=True)
class Settings:
    """The method that the configuration names (in small letters, or None), and what else it says."""

    method: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None  # of the model as a whole

    def get(self, *keys: str) -> Any:
        """The first of these settings that is there."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), None)

    def integer(self, key: str) -> int | None:
        found = self.values.get(key)
        if found is None or type(found) is int:
            return found
        raise self.bad(key, "an integer")

    def flag(self, key: str) -> bool | None:
        found = self.values.get(key)
        if found is None or type(found) is bool:
            return found
        raise self.bad(key, "true or false")

    def text(self, *keys: str) -> str | None:
        found = self.get(*keys)
        if found is None or isinstance(found, str):
            return None if found is None else found.lower()
        raise self.bad(keys[0], "a word")

    def section(self, key: str) -> Mapping[str, Any]:
        found = self.values.get(key)
        return found if isinstance(found, Mapping) else {}

    def bad(self, key: str, expected: str) -> BadConfig:
        return BadConfig(
            f"the quantisation settings of the model say {printable(key)} = {printable(self.values.get(key), 80)}, "
            f"and {expected} was expected. Download its configuration again."
        )


def settings_of(config: Mapping[str, Any] | None, others: Mapping[str, Mapping[str, Any]] | None = None) -> Settings:
    """The settings of a model from its config.json and from the files of BESIDE that lie there, by name."""
    config = config or {}
    dtype = config.get("dtype", config.get("torch_dtype"))
    main, mlx = _main(config), config.get("quantization")
    if "quant_method" not in main and isinstance(mlx, Mapping) and {"bits", "group_size"} <= set(mlx):
        main = {**mlx, "quant_method": "mlx"}  # which repeats it as its quantization_config
    for name, content in (others or {}).items():
        said = content.get("quantization") if name == "hf_quant_config.json" else content
        if not isinstance(said, Mapping):
            continue
        method = BESIDE[name]
        if not main:
            main = {"quant_method": method, **said}
        elif _method(main) == method == "gptq":
            main = _joined(main, said)
    if _method(main) == "auto-round" and main.get("data_type", "int") == "int":
        packed_as = _AUTO_ROUND.get(str(main.get("packing_format")).lower(), {})
        main = {**main, **packed_as, "dynamic": main.get("extra_config")}
    return Settings(_method(main), main, dtype if isinstance(dtype, str) else None)


def _main(config: Mapping[str, Any]) -> Mapping[str, Any]:
    for place in (config, *(config.get(tower) for tower in _TOWERS)):
        if isinstance(place, Mapping):
            for key in _MAIN:
                if isinstance(place.get(key), Mapping) and place[key]:
                    return place[key]
    return {}


def _joined(main: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    for key in _MUST_AGREE:
        if main.get(key) is not None and other.get(key) is not None and main[key] != other[key]:
            raise BadConfig(
                f"config.json says {key} = {printable(main[key], 40)} and quantize_config.json says "
                f"{printable(other[key], 40)}, so it is not known how the weights were quantised. Keep the file that "
                "came with the weights."
            )
    return {**other, **main}


def _method(values: Mapping[str, Any]) -> str | None:
    found = values.get("quant_method")
    if isinstance(found, str):
        return found.lower().replace("_", "-")
    if values.get("load_in_4bit") or values.get("load_in_8bit"):
        return "bitsandbytes"  # before it named itself
    producer = values.get("producer")
    if isinstance(producer, Mapping) and producer.get("name") == "modelopt":
        return "modelopt"
    return None
