"""From what the user typed to an open checkpoint: a directory, a file, or the name of a model, here or on the hub."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toposcope.checkpoints import installed
from toposcope.checkpoints.gguf_file import GgufFile
from toposcope.checkpoints.hub.name import parse_hub_name
from toposcope.checkpoints.peft.settings import CONFIG as ADAPTER
from toposcope.checkpoints.peft.settings import FILES as ADAPTER_FILES
from toposcope.checkpoints.peft.settings import how_to_use
from toposcope.checkpoints.quantised import BESIDE, dequantised
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.checkpoints.shards import FileSource, open_index, open_parts
from toposcope.checkpoints.sniff import SUFFIXES, checkpoint_format
from toposcope.checkpoints.source import TensorSource
from toposcope.checkpoints.torch_file import TorchFile
from toposcope.core.errors import BadConfig, NotFound, nearest
from toposcope.core.printable import printable
from toposcope.core.untrusted import MEGABYTE, open_file, read_object, readable, require_inside

if TYPE_CHECKING:
    from toposcope.checkpoints.hub.opening import RemoteTensors

CONFIG = "config.json"
INDEX = ".index.json"
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})(?P<suffix>\.\w+)$")
TOKENIZER = 256 * MEGABYTE  # bytes; the largest known have some tens of megabytes
BESIDE_WEIGHTS = frozenset(
    {
        *("config.json", "generation_config.json", "preprocessor_config.json", "processor_config.json"),
        *("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "spiece.model", ADAPTER),
        *("vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "special_tokens_map.json"),
        *("chat_template.jinja", "chat_template.json"),
    }
)
# What training leaves beside the weights, in the same file types.
_NOT_WEIGHTS = re.compile(r"(training_args|optimizer|scheduler|scaler|rng_state|random_states|trainer_state)", re.I)


@dataclass(frozen=True)
class Opened:
    """An open checkpoint: its tensors, its configuration, and remarks on what was chosen and left aside.

    `source.path` is what the user pointed at, `weights` the file (or the index of files) that is read. `hub` is where
    the bytes of a model on the hub come from, `commit` which of its versions it is.
    """

    source: TensorSource
    config: Mapping[str, Any] | None
    config_path: Path | None
    weights: Path
    notes: tuple[str, ...] = ()
    hub: RemoteTensors | None = None
    commit: str | None = None


def open_checkpoint(target: str | Path) -> Opened:
    """Open a directory in Hugging Face layout, a single file, an installed model by its short name, or org/name.

    A path that exists comes first, then an installed model, then what the Hugging Face cache holds, then the hub.
    """
    path = Path(target)
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:  # too long a name; a zero byte in it
        raise NotFound(f"{str(target)[:80]!r} cannot be a path or a model's name: {error}.") from error
    if exists:
        if path.name in ADAPTER_FILES and (path.parent / ADAPTER).is_file():
            raise NotFound(f"{printable(path)} is an adapter, not a whole model. {how_to_use(path.parent)}")
        return _open_directory(path) if path.is_dir() else open_with_config(path, path)
    name = str(target)
    if installed.is_known(name):
        item = installed.find(name)
        opened = open_checkpoint(installed_path(item))
        return replace(opened, config=dict(item.facts), config_path=None) if item.facts else opened
    hub_name = parse_hub_name(target)
    if hub_name is not None:
        from toposcope.checkpoints.hub.opening import open_hub

        return open_hub(hub_name)
    raise not_found(path, name)


def require_sound_files(directory: Path, *, weights: bool = True, given: str | None = None) -> None:
    """Complain of files that transformers would open in a model's directory: pipes, devices, links that leave it.

    `given` is the one that the user named, which may be a link.
    """
    with readable(directory):
        names = sorted(entry.name for entry in directory.iterdir())
    for name in names:
        if name in BESIDE_WEIGHTS or name.endswith(INDEX):
            open_file(directory / name, most=TOKENIZER, inside=directory).close()
        elif weights and name.lower().endswith(SUFFIXES):
            open_file(directory / name, inside=None if name == given else directory).close()


def installed_path(item: installed.InstalledItem) -> Path:
    """Where an installed model lies."""
    path = item.path()
    if path is None:
        raise NotFound(f"the model '{item.name}' is not installed. Install it with: {item.install}")
    return path


def not_found(path: Path, name: str) -> NotFound:
    """What is said of a name that is neither a path nor a model."""
    with readable(path.parent):
        neighbours = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    if path.suffix or len(path.parts) > 1:
        if not path.parent.is_dir():
            return NotFound(f"{path} does not exist, nor does the directory {path.parent}. Check the path.")
        hint = (nearest(path.name, neighbours) or "Check the path.") if neighbours else "The directory is empty."
        return NotFound(f"{path} does not exist. {hint}")
    known = [item.name for item in installed.MODELS]
    hint = nearest(name, [*known, *neighbours])
    if not hint:  # nothing like it: then the models, not whatever lies in this directory
        here = ", ".join(item.name for item in installed.installed()) or "none"
        hint = f"Installed: {here} (more: toposcope ls models). On the hub, models are called org/name."
    return NotFound(f"'{name}' is neither a path nor the name of an installed model. {hint}")


def _open_directory(directory: Path) -> Opened:
    with readable(directory):
        files = sorted(entry.name for entry in directory.iterdir() if entry.is_file())
    chosen, left = choose_weights(directory, files)
    require_inside(directory / chosen, directory)
    notes = remarks_on_choice(directory, files, chosen, left)
    return open_with_config(directory / chosen, directory, notes)


def remarks_on_choice(directory: Path, files: Sequence[str], chosen: str, left: Sequence[str]) -> tuple[str, ...]:
    """What lies beside the chosen file and is not read."""
    notes = [f"reading {printable(chosen)}; also there: {printable(', '.join(left))}."] if left else []
    if ADAPTER in files:
        notes.append(f"an adapter lies beside this model and is not merged. {how_to_use(directory)}")
    return tuple(notes)


def open_with_config(path: Path, shown: Path, notes: tuple[str, ...] = ()) -> Opened:
    """Open the weights first: when both are damaged, they matter more."""
    source = _open_source(path, shown)
    if source.metadata.get("general.type") == "adapter":
        raise NotFound(
            f"{printable(path)} is an adapter in GGUF's format, not a whole model. Give its base, and with --adapter "
            "the directory that PEFT saved it in."
        )
    config, config_path = _config_in(path.parent)
    others = {name: found for name in BESIDE if (found := _settings_in(path.parent, name)) is not None}
    return Opened(dequantised(source, config, others), config, config_path, path, notes)


def _config_in(directory: Path) -> tuple[dict[str, Any] | None, Path | None]:
    found = _settings_in(directory, CONFIG)
    return found, None if found is None else directory / CONFIG


def _settings_in(directory: Path, name: str) -> dict[str, Any] | None:
    path = directory / name
    return read_object(path, BadConfig, inside=directory) if path.is_file() else None


def choose_weights(directory: Path, files: Sequence[str]) -> tuple[str, list[str]]:
    """The file to read in a directory, and the other checkpoints that lie beside it."""
    weights = [name for name in files if name.lower().endswith(SUFFIXES) and not _NOT_WEIGHTS.match(name)]
    indices = [name for name in files if name.endswith((f".safetensors{INDEX}", f".bin{INDEX}"))]
    if ADAPTER in files:
        whole = [name for name in weights if name not in ADAPTER_FILES]
        if not whole and not indices:
            raise NotFound(f"{printable(directory)} holds an adapter, not a whole model. {how_to_use(directory)}")
        weights = whole
    for preferred in (["model.safetensors"], [f"model.safetensors{INDEX}"]):
        if preferred[0] in files:
            return preferred[0], _others(preferred[0], weights, indices)
    for suffix, usual in ((".safetensors", None), (".bin", "pytorch_model.bin"), (".pt", None), (".gguf", None)):
        whole = _whole(weights, suffix)
        index = [name for name in indices if name.endswith(suffix + INDEX)]
        if usual in whole:
            return usual, _others(usual, weights, indices)
        candidates = index or whole
        if len(candidates) > 1:
            raise NotFound(
                f"{directory} holds several checkpoints: {', '.join(candidates[:8])}. Point at the one to read."
            )
        if candidates:
            return candidates[0], _others(candidates[0], weights, indices)
    raise _no_weights(directory, files)


def _whole(weights: Sequence[str], suffix: str) -> list[str]:
    """The checkpoints of one type: files that stand alone, and the first of each set of parts."""
    endings = (".pt", ".pth", ".ckpt") if suffix == ".pt" else (suffix,)
    found: dict[object, str] = {}
    for name in weights:
        if name.lower().endswith(endings):
            part = part_of(name)
            found.setdefault(name if part is None else (part["stem"], part["total"]), name)
    return list(found.values())


def _others(chosen: str, weights: Sequence[str], indices: Sequence[str]) -> list[str]:
    """What else could have been read. The parts an index names are not something else."""
    stem = chosen.split(".")[0]
    part = part_of(chosen)
    stem = part["stem"] if part else stem
    return [
        name
        for name in (*weights, *indices)
        if name != chosen and not ((found := part_of(name)) and found["stem"] == stem)
    ]


def _no_weights(directory: Path, files: Sequence[str]) -> NotFound:
    seen = f"it holds {', '.join(files[:8])}{', ...' if len(files) > 8 else ''}" if files else "it holds no files"
    below = _models_below(directory)
    hint = f" Models lie in {', '.join(below)}: give one of these." if below else ""
    return NotFound(
        f"{directory} holds no weights: {seen}. "
        f"Expected model.safetensors or its index, pytorch_model.bin or its index, or a .gguf file.{hint}"
    )


def _models_below(directory: Path) -> list[str]:
    """The first few directories in this one that hold weights."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for place in sorted(each for each in directory.iterdir() if each.is_dir() and not each.is_symlink())[:100]:
            if len(found) < 4 and any(each.suffix.lower() in SUFFIXES for each in place.iterdir()):
                found.append(printable(place))
    return found


def part_of(name: str) -> re.Match[str] | None:
    """The numbers in a name like 'model-00002-of-00005.safetensors', where they make sense."""
    found = _PART.fullmatch(name)
    return found if found and 1 <= int(found["number"]) <= int(found["total"]) else None


def all_parts(part: re.Match[str]) -> list[str]:
    """The names of all parts of a model, given one of them."""
    numbers = range(1, int(part["total"]) + 1)
    return [f"{part['stem']}-{number:05d}-of-{part['total']}{part['suffix']}" for number in numbers]


def _open_source(path: Path, shown: Path) -> TensorSource:
    if path.name.endswith(INDEX):
        form = "safetensors" if path.name.endswith(f".safetensors{INDEX}") else "torch"
        return open_index(path, open_one, form=form, shown=shown)
    part = part_of(path.name)
    return open_one(path, shown) if part is None else _open_split(path, shown, part)


def _open_split(path: Path, shown: Path, part: re.Match[str]) -> TensorSource:
    """All parts of a model, given any one of them."""
    names = all_parts(part)
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise NotFound(
            f"{path} is one of {len(names)} parts, and {len(missing)} of them are not there: {', '.join(missing[:3])}"
            f"{', ...' if len(missing) > 3 else ''}. Download the rest of the model."
        )
    for name in names:
        if name != path.name:  # which was chosen or given
            require_inside(path.parent / name, path.parent)
    return open_parts(shown, [path.parent / name for name in names], open_one)


def open_one(path: Path, shown: Path | None = None) -> FileSource:
    form = checkpoint_format(path)
    if form == "safetensors":
        return SafetensorsFile(path, shown=shown)
    return GgufFile(path, shown=shown) if form == "gguf" else TorchFile(path, shown=shown)
