"""Load a model and its tokenizer with transformers, from files that are here; those of org/name are fetched first."""

from __future__ import annotations

import importlib.util
import inspect
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from toposcope.checkpoints import installed
from toposcope.checkpoints.hub.name import is_commit, parse_hub_name
from toposcope.checkpoints.installed import read_text as read_text
from toposcope.checkpoints.locate import installed_path, not_found, require_sound_files
from toposcope.checkpoints.peft.settings import CONFIG as ADAPTER
from toposcope.core.errors import BadConfig, BadFile, BadValue, MissingExtra, NotFound, ToposcopeError
from toposcope.core.files import present
from toposcope.core.memory import available
from toposcope.models.device import is_out_of_memory, memory_told
from toposcope.models.smiles import is_smiles, smiles_tokenizer

_log = logging.getLogger("toposcope")
MEMORY_SHARE = 0.25  # of what is free that may be taken twice to read a model rather than map it
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.txt", "vocab.json", "spiece.model")


@dataclass(frozen=True, eq=False)
class Reference:
    """A model as transformers runs it (in evaluation mode), its tokenizer, and its files."""

    path: Path  # what Toposcope's own reader opens as well
    model: Any
    tokenizer: Any  # None where it was not asked for

    @property
    def commit(self) -> str | None:
        """The version of a model from the hub, by which its cache names the directory."""
        place = self.path if self.path.is_dir() else self.path.parent
        return place.name if place.parent.name == "snapshots" and is_commit(place.name) else None

    @property
    def context(self) -> int | None:
        """The most tokens it takes, as far as its configuration and tokenizer say."""
        text = self.model.config.get_text_config()
        said = [getattr(text, name, None) for name in ("max_position_embeddings", "n_positions", "max_seq_len")]
        said.append(getattr(self.tokenizer, "model_max_length", None))
        found = [int(length) for length in said if isinstance(length, int) and 0 < length < 10**9]
        return min(found) if found else None


@dataclass(frozen=True)
class _Wish:
    """How a model is to be loaded."""

    head: bool  # with the head that predicts tokens, where the checkpoint has one
    attention: str
    dtype: str
    tokenizer: bool
    device: str
    device_map: str | None


def load_reference(
    target: str | Path,
    *,
    head: bool = False,
    attention: str = "eager",
    dtype: str = "float32",
    tokenizer: bool = True,
    device: str = "cpu",
    device_map: str | None = None,
) -> Reference:
    """A directory in Hugging Face layout, a .gguf file, a file of such a directory, or the name of a model.

    `head`: with the head that predicts tokens, where the checkpoint has one. `attention`: 'eager' writes the
    probabilities out, 'sdpa' never holds them and takes longer texts. `dtype`: 'auto' is that of the files.
    `device_map` 'auto' spreads the model over all devices, and `device` says nothing then (`models.device` chooses).
    """
    wish = _Wish(head, attention, dtype, tokenizer, device, device_map)
    path = locate(target)
    require("torch", "transformers")
    place = _place(path)
    require_sound_files(
        place.directory, weights=place.gguf is None or path.is_dir(), given=path.name if path.is_file() else None
    )
    _refuse_adapter(place)
    copy = place if place.gguf is None else _converted(place)
    with _quiet():
        try:
            return _reference(path, copy, wish)
        except ToposcopeError as error:
            if copy is place:
                raise
            raise BadFile(f"{error} It is a copy of {path}: remove the directory, and it is made anew.") from error


def _refuse_adapter(place: _Place) -> None:
    """With peft installed, transformers takes an adapter that lies beside a model into it, without a word."""
    if place.gguf is None and (place.directory / ADAPTER).is_file() and _there("peft"):
        raise BadFile(
            f"an adapter lies in {place.directory} beside the model, and transformers would run the two together, "
            f"because peft is installed. Move {ADAPTER} away to run the model alone, or merge the two with PEFT."
        )


def _reference(path: Path, place: _Place, wish: _Wish) -> Reference:
    tokenizer = _tokenizer(place) if wish.tokenizer else None  # first: it is small, and may be missing
    return Reference(path, _model(place, wish), tokenizer)


def locate(target: str | Path) -> Path:
    """Where the files are."""
    path = Path(target)
    if present(path):
        return path
    name = str(target)
    if installed.is_known(name):
        return installed_path(installed.find(name))
    hub_name = parse_hub_name(target)
    if hub_name is not None:
        from toposcope.checkpoints.hub.opening import fetch_to_run

        return fetch_to_run(hub_name)
    raise not_found(path, name)


def require(*packages: str, instead: str = "'toposcope scan MODEL' reads the weights alone.") -> None:
    """Complain about packages of the [hf] extra that are not installed; `instead` says what can be done without."""
    missing = [name for name in packages if not _there(name)]
    if missing:
        raise MissingExtra(
            f"running a model needs {' and '.join(missing)}: pip install 'toposcope[hf]', or in a clone 'make hf'. "
            f"Without {'it' if len(missing) == 1 else 'them'}, {instead}"
        )


def runs_here() -> bool:
    """Whether what runs models on texts is installed."""
    return _there("torch") and _there("transformers")


def _there(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a test, or a user, may have blocked the module
        return False


@dataclass(frozen=True)
class _Place:
    """What `from_pretrained` is given: a directory, and the file in it where that is GGUF."""

    directory: Path
    gguf: str | None
    ours: bool = False  # a copy in the cache, which nobody else writes to

    @property
    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "pretrained_model_name_or_path": str(self.directory),
            "local_files_only": True,
            "trust_remote_code": False,  # a directory may hold programs; without this, transformers asks
        }
        return found if self.gguf is None else {**found, "gguf_file": self.gguf}


def _place(path: Path) -> _Place:
    if path.is_file():
        return _Place(path.parent, path.name if path.suffix == ".gguf" else None)
    if (path / "config.json").is_file():
        return _Place(path, None)
    files = sorted(entry.name for entry in path.glob("*.gguf"))
    if len(files) != 1:
        seen = f"{len(files)} .gguf files" if files else "neither config.json nor a .gguf file"
        raise NotFound(f"{path} holds {seen}; expected a model in Hugging Face layout, or one .gguf file.")
    return _Place(path, files[0])


def _converted(place: _Place) -> _Place:
    """The copy of a GGUF file in Hugging Face layout, made now if need be; the file itself where none can be kept."""
    from toposcope.models import gguf_cache

    directory = gguf_cache.directory_for(place.directory / str(place.gguf))
    if directory is not None and gguf_cache.find(directory) is None:
        with gguf_cache.copied(place.directory / str(place.gguf), directory) as file:
            if file is None:
                return place
            copy = _Place(file.parent, file.name, ours=True)
            _log.info("converting %s for transformers, this once", file.name)
            with _read_once(), _quiet():
                tokenizer = _tokenizer(copy)
                model = _model(copy, _Wish(True, "eager", "float32", tokenizer=True, device="cpu", device_map=None))

        def save(to: Path) -> None:
            from safetensors.torch import save_file

            tokenizer.save_pretrained(to)
            save_file(_untied(model), to / "model.safetensors", metadata={"format": "pt"})
            config = deepcopy(model.config)
            config.architectures = [type(model).__name__]
            if hasattr(config, "quantization_config"):  # the numbers are plain now
                del config.quantization_config
            config.save_pretrained(to)

        with _quiet():
            gguf_cache.keep(directory, save)
    found = gguf_cache.find(directory)
    return place if found is None else _Place(found, None, ours=True)


@contextmanager
def _read_once() -> Iterator[None]:
    """Keep what gguf makes of a file's header and of an architecture's names while the block lasts.

    transformers asks for the first three times (tokenizer, settings, tensors), and for the second at each module of a
    model: more than half of the time of a conversion.
    """
    require("gguf", "accelerate")
    import gguf

    kept = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, made in kept.items():
        setattr(gguf, name, cache(made))
    try:
        yield
    finally:
        for name, made in kept.items():
            setattr(gguf, name, made)


def _untied(model: Any) -> dict[str, Any]:
    """The tensors of a model, each once. Of a tied pair the embedding is kept, which a model without head needs."""
    found: dict[int, tuple[str, Any]] = {}
    tensors = model.state_dict()
    for name in sorted(tensors, key=lambda name: not name.startswith(f"{model.base_model_prefix}.")):
        found.setdefault(tensors[name].data_ptr(), (name, tensors[name].contiguous()))
    return dict(found.values())


def _model(place: _Place, wish: _Wish) -> Any:
    import torch
    from safetensors import SafetensorError

    if place.gguf is not None:
        require("gguf", "accelerate")
    elif not (place.directory / "config.json").is_file():
        raise NotFound(f"{place.directory} holds no config.json, without which transformers cannot run the model.")
    try:
        built = _auto_class(place, wish.head)
        dtype = "auto" if wish.dtype == "auto" else getattr(torch, wish.dtype)
        given = {"dtype": dtype, "attn_implementation": wish.attention}
        if not place.ours:
            given |= _unmapped(place)
        if wish.device_map is not None:
            given["device_map"] = wish.device_map
        model = built.from_pretrained(**place.arguments, **given)
    except (OSError, RuntimeError, SafetensorError) as error:
        if is_out_of_memory(error):
            raise BadValue(
                f"there is no room for the model in {place.directory} ({_brief(error)}). Use --dtype bfloat16, or "
                "--device-map auto to spread it over all devices."
            ) from error
        raise BadFile(f"transformers cannot read the weights in {place.directory} ({_brief(error)}).") from error
    except Exception as error:  # what its configurations, and those of its parts, are checked by raises anything
        raise BadConfig(
            f"transformers cannot build the model of {place.directory} ({_brief(error)}). "
            "It must be a model that AutoModel knows."
        ) from error
    if not place.ours:
        _take_over(model)
    if wish.device_map is None and wish.device != "cpu":
        with memory_told(None):
            model = model.to(wish.device)
    return model.eval()


def _unmapped(place: _Place) -> dict[str, Any]:
    """Have transformers read files rather than map them: a mapped file that is cut short ends the process.

    It then holds them twice while it loads, so models that are large beside the memory are mapped for that time.
    """
    from transformers import PreTrainedModel

    known, free = inspect.signature(PreTrainedModel.from_pretrained).parameters, available()
    size = sum(file.stat().st_size for file in place.directory.glob("*.safetensors"))
    small = free is None or 2 * size <= MEMORY_SHARE * free
    return {"disable_mmap": True} if "disable_mmap" in known and place.gguf is None and small else {}


def _take_over(model: Any) -> None:
    """Weights in memory of our own, one after the other: torch files are mapped whatever one asks for."""
    for tensor in {id(each): each for each in (*model.parameters(), *model.buffers())}.values():
        if tensor.device.type == "cpu":
            tensor.data = tensor.data.clone()


def _auto_class(place: _Place, head: bool) -> Any:
    """The transformers class that loads a checkpoint: by the architecture it names."""
    import transformers

    if not head:
        return transformers.AutoModel
    if place.gguf is not None:
        return transformers.AutoModelForCausalLM
    config = transformers.AutoConfig.from_pretrained(
        str(place.directory), local_files_only=True, trust_remote_code=False
    )
    named = " ".join(config.architectures or ())
    if "MaskedLM" in named or "ForPreTraining" in named:
        return transformers.AutoModelForMaskedLM
    if "ConditionalGeneration" in named:
        return transformers.AutoModelForSeq2SeqLM
    if "CausalLM" in named or "LMHead" in named:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModel


def _tokenizer(place: _Place) -> Any:
    from transformers import AutoTokenizer

    if place.gguf is None and not any((place.directory / name).is_file() for name in TOKENIZER_FILES):
        raise NotFound(
            f"no tokenizer lies in {place.directory}; expected one of {', '.join(TOKENIZER_FILES)}. "
            "Copy the model's tokenizer files there."
        )
    if place.gguf is None and is_smiles(place.directory / "vocab.txt"):
        return smiles_tokenizer(place.directory / "vocab.txt")
    try:
        return AutoTokenizer.from_pretrained(**place.arguments)
    except Exception as error:  # the library behind it raises this very class
        raise NotFound(
            f"no tokenizer could be read in {place.directory} ({_brief(error)}). "
            "Copy the model's tokenizer files there."
        ) from error


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200] if lines else 'no message'}"


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars and no advice from transformers while it loads; its settings are put back after."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with redirect_stderr(io.StringIO()):  # the bar for GGUF files heeds no setting
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
