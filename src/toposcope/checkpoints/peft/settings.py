"""What adapter_config.json says: parsed as hostile input, and refused by name where it is not LoRA as we merge it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toposcope.core.config import Config
from toposcope.core.errors import BadConfig, NotFound, ToposcopeError
from toposcope.core.printable import printable
from toposcope.core.untrusted import read_object, readable

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
MERGE = "Merge it into its base model with PEFT (merge_and_unload), save that, and point at it."
MOST_RANK = 65_536
LONGEST_MODULE = 300  # letters of a module's name that is compared with patterns
MOST_PATTERNS = 32  # with repetitions in them; plain names may be as many as there are modules
# Methods under other names than their type's. A type that is not here is refused under its own name.
_METHODS = {
    "IA3": "(IA)^3",
    "LOHA": "LoHa",
    "LOKR": "LoKr",
    "ADALORA": "AdaLoRA",
    "XLORA": "X-LoRA",
    "VERA": "VeRA",
    "PREFIX_TUNING": "prefix tuning",
    "PROMPT_TUNING": "prompt tuning",
    "MULTITASK_PROMPT_TUNING": "multitask prompt tuning",
    "P_TUNING": "P-tuning",
    "ADAPTION_PROMPT": "LLaMA-Adapter (adaption prompt)",
    "LN_TUNING": "tuning of layer norms",
    "FOURIERFT": "FourierFT",
}
# Settings that change what a LoRA does, and what the change is called.
_VARIANTS = {
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "alora_invocation_tokens": "activated LoRA, in force from certain tokens on",
    "arrow_config": "Arrow, which routes every token",
    "monteclora_config": "MonteCLoRA",
    "kasa_config": "KaSA, which changes the base weights too",
    "layer_replication": "replicated layers",
    "megatron_config": "Megatron's parallel layers",
}
# Ways to begin that took something out of the base's weights, so that the adapter fits only what was left of them.
_CHANGED_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
KNOWN = frozenset(
    {
        *("peft_type", "peft_version", "task_type", "auto_mapping", "base_model_name_or_path", "revision"),
        *("inference_mode", "r", "target_modules", "exclude_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out"),
        *("bias", "use_rslora", "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern"),
        *("rank_pattern", "alpha_pattern", "megatron_core", "trainable_token_indices", "loftq_config", "eva_config"),
        *("corda_config", "lora_ga_config", "use_dora", "velora_config", "qalora_group_size", "runtime_config"),
        *("lora_bias", "target_parameters", "ensure_weight_tying", "enable_lora", "merge_weights"),
        *_VARIANTS,
    }
)


@dataclass(frozen=True)
class AdapterSettings:
    """A LoRA adapter's settings; `directory` is where it lies, `base` the name of the model it was trained on.

    `place` is that directory, or the name and the commit of an adapter on the hub.
    """

    directory: Path
    place: str
    base: str | None
    rank: int
    alpha: float
    ranks: Mapping[str, int]  # by pattern of module names, before `rank`
    alphas: Mapping[str, float]
    root_scaled: bool  # rsLoRA: alpha / sqrt(r) in place of alpha / r
    magnitudes: bool  # DoRA
    bias: bool  # lora_bias: B has one
    token_rows: tuple[int, ...] | Mapping[str, tuple[int, ...]]  # rows of embeddings that were trained as such
    remarks: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        return printable(self.directory / CONFIG)

    @property
    def method(self) -> str:
        """What the adapter is called: LoRA, rsLoRA, DoRA, or rank-stabilised DoRA."""
        name = "DoRA" if self.magnitudes else "LoRA"
        return f"rs{name}" if self.root_scaled else name

    def scaling(self, module: str, rank: int) -> float:
        """What B A is multiplied by in this module; `rank` is that of the stored tensors."""
        if len(module) > LONGEST_MODULE and (self.ranks or self.alphas):
            raise BadConfig(f"{self.where} has patterns, and '{printable(module, 60)}' is too long a name for them.")
        said = _by_pattern(self.ranks, module, self.rank)
        if said != rank:
            raise BadConfig(
                f"{self.where} gives '{printable(module)}' the rank {said}, and its stored tensors have {rank}. "
                "The two files are of different adapters: download both again."
            )
        alpha = _by_pattern(self.alphas, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.root_scaled else rank)


def read_settings(directory: Path, place: str) -> AdapterSettings:
    """The settings of the adapter in a directory, shown as `place`; other methods than LoRA are refused by name."""
    path = directory / CONFIG
    with readable(directory):
        found = path.is_file()
    if not found:
        raise _no_adapter(directory)
    values = read_object(path, BadConfig, inside=directory)
    config = Config(values, printable(path))
    _refuse_other_methods(config)
    _refuse_other_starts(config)
    unknown = _unknown(config)
    return AdapterSettings(
        directory=directory,
        place=place,
        base=base_of(values),
        rank=config.integer("r", default=8, most=MOST_RANK),
        alpha=config.number("lora_alpha", default=8.0),
        ranks={key: int(value) for key, value in _pattern(config, "rank_pattern", whole=True).items()},
        alphas=_pattern(config, "alpha_pattern"),
        root_scaled=config.flag("use_rslora", default=False),
        magnitudes=config.flag("use_dora", default=False),
        bias=config.flag("lora_bias", default=False),
        token_rows=_token_rows(config),
        remarks=(f"settings of the adapter that are not known here: {', '.join(unknown)}.",) if unknown else (),
    )


def base_of(values: Mapping[str, Any]) -> str | None:
    """The base model that a configuration names, as it can be shown."""
    base = values.get("base_model_name_or_path")
    return printable(base, 200) if isinstance(base, str) and base else None


def trained_on(base: str | None) -> str:
    """A sentence on an adapter's base, where it is known."""
    return "" if base is None else f"It was trained on '{base}'. "


def how_to_use(directory: Path) -> str:
    """What to type to see a base with the adapter that lies in a directory, its base by name where it is known."""
    try:
        base = base_of(read_object(directory / CONFIG, BadConfig, inside=directory))
    except ToposcopeError:  # a damaged one is told of when it is used
        base = None
    return f"{trained_on(base)}Give its base and it: toposcope scan {base or 'BASE'} --adapter {printable(directory)}"


def _no_adapter(directory: Path) -> NotFound:
    shown = printable(directory)
    if not directory.is_dir():
        return NotFound(f"{shown} is no directory. An adapter is the directory that PEFT saved, with {CONFIG} in it.")
    with readable(directory):
        inside = sorted(each.name for each in directory.iterdir() if (each / CONFIG).is_file())
    if inside:
        names = ", ".join(printable(name) for name in inside[:8])
        return NotFound(f"{shown} holds several adapters ({names}). Name the directory of one of them.")
    return NotFound(f"{shown} holds no {CONFIG}, which an adapter that PEFT saved has. Check the path.")


def _refuse_other_methods(config: Config) -> None:
    kind = config.get("peft_type")
    if not isinstance(kind, str):
        raise BadConfig(f"{config.where} has no 'peft_type' that names the method. Expected \"LORA\".")
    if kind.upper() != "LORA":
        name = _METHODS.get(kind.upper(), printable(kind, 40))
        raise BadConfig(
            f"{config.where} is of an adapter by {name}, and only LoRA, rsLoRA and DoRA are merged here. {MERGE}"
        )
    for key, name in _VARIANTS.items():
        if config.get(key):
            raise BadConfig(
                f"{config.where} asks for {name} ('{key}'), and only LoRA, rsLoRA and DoRA are merged here. {MERGE}"
            )


def _refuse_other_starts(config: Config) -> None:
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASE):
        raise BadConfig(
            f"{config.where} begins from '{printable(start, 40)}', which changes the base's weights: on the base as "
            "it is stored, this adapter means something else. Save it with path_initial_model_for_weight_conversion, "
            "or merge it with PEFT and point at the merged model."
        )


def _unknown(config: Config) -> list[str]:
    """Settings of later versions that are numbers; anything else that is set and not known is refused."""
    unknown = [key for key, value in config.items() if key not in KNOWN and value]
    for key in unknown:
        value = config[key]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadConfig(
                f"{config.where} sets '{printable(key, 60)}' to {printable(repr(value), 60)}, which may change what "
                f"the adapter does and is not known here. {MERGE}"
            )
    return [printable(key, 60) for key in unknown]


def _pattern(config: Config, key: str, *, whole: bool = False) -> dict[str, float]:
    """A number for each pattern of names; a pattern that could take for ever to match is refused."""
    given = config.get(key) or {}
    if not isinstance(given, Mapping):
        raise BadConfig(f"'{key}' in {config.where} is {printable(repr(given), 60)}; expected names and numbers.")
    values = Config(given, f"{config.where} ({key})")
    slow = sum(1 for pattern in given if _repeats(pattern))
    for pattern in given:
        if slow > MOST_PATTERNS or not _quick(pattern):
            raise BadConfig(
                f"'{key}' in {config.where} has the pattern {printable(repr(pattern), 60)}; expected the name of a "
                "module, or a simple pattern of such names."
            )
    return {name: values.integer(name, most=MOST_RANK) if whole else values.number(name) for name in given}


def _quick(pattern: str) -> bool:
    """Whether a regular expression from elsewhere is sound, and matches any name in no time."""
    nested = re.search(r"\)[*+{?]|\\[1-9]|\(\?", pattern)
    if len(pattern) > LONGEST_MODULE or _repeats(pattern) > 2 or nested:
        return False
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def _repeats(pattern: str) -> int:
    return len(re.findall(r"(?<!\\)[*+{]", pattern))


def _by_pattern(given: Mapping[str, float], module: str, default: float) -> float:
    """The number of the first pattern that the end of a module's name matches."""
    for pattern, value in given.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _token_rows(config: Config) -> tuple[int, ...] | Mapping[str, tuple[int, ...]]:
    given = config.get("trainable_token_indices") or ()
    if isinstance(given, Mapping):
        return {str(name): _rows(config, rows) for name, rows in given.items()}
    return _rows(config, given)


def _rows(config: Config, given: Any) -> tuple[int, ...]:
    fine = isinstance(given, list | tuple) and all(type(row) is int and 0 <= row < 2**31 for row in given)
    if not fine:
        raise BadConfig(
            f"'trainable_token_indices' in {config.where} is {printable(repr(given), 60)}; expected a list of tokens."
        )
    return tuple(given)
