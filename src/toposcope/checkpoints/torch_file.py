"""Tensors of a file that `torch.save` wrote (`.pt`, `.pth`, `.bin`, `.ckpt`), read without running any code in it.

Such a file is a pickle, and a pickle can run anything when loaded. It goes through torch's restricted unpickler
(`weights_only=True`), which builds tensors and plain containers and refuses all else.
"""

from __future__ import annotations

import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toposcope.checkpoints.decode import SMALL_FLOATS, Ledger, decode, parts_of, sound_name
from toposcope.checkpoints.pickled import require_small_keys
from toposcope.checkpoints.source import ByName, Rows, Stored, TensorInfo
from toposcope.checkpoints.stored_file import StoredFile
from toposcope.checkpoints.torch_storage import StoragePlaces, load_places
from toposcope.core.errors import BadFile, MissingExtra, RefusedPickle
from toposcope.core.memory import require_memory
from toposcope.core.untrusted import readable

# Where training scripts put the state dict, in the order in which they are looked for.
CONTAINERS = ("state_dict", "model_state_dict", "model", "module")
COMPILED = "_orig_mod."  # put into names by torch.compile, anywhere
WRAPPED = "module."  # put before all names by DataParallel and DistributedDataParallel

_OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch's files began before they were zip archives

DEEPEST, MOST_CONTAINERS = 64, 1_000_000  # of what is loaded; optimisers hold many containers
MOST_SHOWN = 100_000  # values in a setting that is kept, written out

# How torch says which class or function it refused.
_REFUSALS = (
    r"GLOBAL ([\w.]+)",
    r"unrecognized function <[\w-]+ ([\w.]+)",
    r"but got <class '([\w.]+)'>",
)

# What a damaged pickle makes torch's unpickler, itself written in Python, raise.
_DAMAGE = (
    pickle.UnpicklingError,
    RuntimeError,
    AssertionError,
    AttributeError,
    EOFError,
    IndexError,
    KeyError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
    struct.error,
)


class TorchFile:
    """One file of `torch.save` as a source of tensors. `metadata` holds what stood there beside the tensors."""

    format = "torch"

    def __init__(self, path: Path, *, shown: Path | None = None) -> None:
        require_small_keys(path)
        self.path = shown or path  # what the user pointed at, which may be the directory
        self._file = StoredFile(path)
        self.ledger = Ledger()
        size = self._file.size
        loaded, self._places = _load(path, self._file)
        self._file.refuse_replaced()
        if not isinstance(loaded, dict):
            raise BadFile(
                f"{path} holds a {type(loaded).__name__}, and a dictionary of tensors was expected. "
                "Save the model with torch.save(model.state_dict(), FILE)."
            )
        tensors, self.metadata = _unwrap(path, loaded)
        self._tensors = ByName(_plain_names(tensors), path)
        self._infos = ByName({name: _info(path, name, tensor, size) for name, tensor in self._tensors.items()}, path)

    def names(self) -> Collection[str]:
        return self._infos.keys()

    def info(self, name: str) -> TensorInfo:
        return self._infos[name]

    def read(self, name: str) -> Stored:
        """The tensor as float32, or as float64 where float32 does not hold it (float64 and integers)."""
        if self._places is None:
            raw = _as_numpy(self._file.path, name, self._tensors[name])
            parts, dtype = parts_of(raw), raw.dtype
        else:
            parts, dtype = self._places.parts(name, self._tensors[name])
        return decode(parts, dtype, self._infos[name], self._file.path, self.ledger)

    def read_rows(self, name: str, rows: Rows) -> Stored:
        if self._places is None:
            stored = _as_numpy(self._file.path, name, self._tensors[name])[rows]
        else:
            stored = self._places.rows(name, self._tensors[name], rows)
        self.ledger.add_rows(name, rows, stored)
        info = replace(self._infos[name], shape=stored.shape)
        return decode([stored], stored.dtype, info, self._file.path, Ledger())

    @property
    def files(self) -> tuple[Path, ...]:
        return (self._file.path,)

    def digest(self) -> str:
        return self.ledger.digest()

    def close(self) -> None:
        self._tensors.clear()
        self._file.close()


def _load(path: Path, file: StoredFile) -> tuple[Any, StoragePlaces | None]:
    """What the file holds, and where its tensors' numbers lie; None where they are in memory."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra(
            f"{path} was written by torch, which is needed to read it and is not installed. "
            "Install it with: pip install 'toposcope[torch]'; or convert the model to safetensors."
        ) from error
    with readable(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's remarks on old files are of no use to who reads them
        head = file.read(0, min(len(_OLD_MAGIC), file.size)).tobytes()
        zipped = head.startswith(b"PK\x03\x04")  # as torch decides; of its older files the places are not known
        entries = _check_archive(path, file.size) if zipped else []
        try:
            found = load_places(file, entries) if zipped else None
            if found is not None:
                return found
            require_memory(file.size, f"{path}, which can only be read whole,", "Convert the model to safetensors.")
            return torch.load(path, map_location="cpu", weights_only=True), None
        except _DAMAGE as error:
            raise _explain(path, error, by_torch=zipped or head == _OLD_MAGIC) from error


def _check_archive(path: Path, size: int) -> list[zipfile.ZipInfo]:
    """The entries of an archive; refuses those that unpack to more than they weigh, and programs in disguise."""
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, struct.error, NotImplementedError, OverflowError) as error:
        raise BadFile(f"{path} is a damaged torch file: {error}. Download or save it again.") from error
    if not any(entry.filename.endswith("data.pkl") for entry in entries):
        raise BadFile(
            f"{path} is a zip archive, but not one that torch.save wrote. Unpack it and point at its content."
        )
    if any(entry.filename.endswith("constants.pkl") for entry in entries):
        raise RefusedPickle(
            f"{path} is a TorchScript program, which could run code, and plain weights were expected. "
            "Save the model's state_dict() instead."
        )
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise BadFile(
            f"{path} holds compressed entries ({packed[0]}), which torch.save never writes; they could unpack to any "
            "size, so the file is not read. Save the model again with torch.save."
        )
    total = sum(entry.file_size for entry in entries)
    if total > size:
        raise BadFile(
            f"{path} announces {total:,} bytes of content in {size:,} bytes of file, so it is not read. "
            "Download or save it again."
        )
    return entries


def _explain(path: Path, error: Exception, *, by_torch: bool) -> BadFile | RefusedPickle:
    """What torch's complaint means for the user."""
    text = str(error)
    refused = next((found[1] for pattern in _REFUSALS if (found := re.search(pattern, text))), None)
    if isinstance(error, pickle.UnpicklingError) and refused:
        return RefusedPickle(
            f"{path} holds more than tensors: its pickle asks for {refused}, which could run code, so it was not "
            "loaded. Save only the model's state_dict(), best as safetensors."
        )
    if not by_torch:
        return RefusedPickle(
            f"{path} is a pickle that torch.save did not write. Pickles can run code, so it was not loaded. "
            "Save the model's state_dict() with torch.save, or better as safetensors."
        )
    if isinstance(error, MemoryError):
        return BadFile(f"{path} does not fit into memory. Use a larger machine, or convert the model to safetensors.")
    if isinstance(error, pickle.UnpicklingError):  # the advice around its reason is for programmers
        text = text.rpartition("WeightsUnpickler error:")[2]
    reason = f"{type(error).__name__}: {text.strip().partition(chr(10))[0]:.160}"
    return BadFile(f"{path} is a damaged torch file ({reason}). Download or save it again.")


class _Known:
    """What the containers of a loaded file hold, each looked at once, however often it is held.

    A pickle of some kilobytes can hold one list a hundred times in another, and that a hundred times in a third: who
    walks it as a tree never ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._looking: set[int] = set()
        self._size: dict[int, int] = {}  # as a tree
        self._plain: dict[int, bool] = {}
        self._tensors: dict[int, bool] = {}

    def look(self, value: Any, depth: int = 0) -> int:
        """The number of values in it, as a tree."""
        if not isinstance(value, dict | list | tuple | set):
            return 1
        if id(value) in self._size:
            return self._size[id(value)]
        if id(value) in self._looking or depth > DEEPEST or len(self._size) > MOST_CONTAINERS:
            raise BadFile(
                f"{self._path} is nested without end, or deeper than {DEEPEST} levels, or holds more than "
                f"{MOST_CONTAINERS:,} containers, so it is not read. Save the model's state_dict() alone."
            )
        self._looking.add(id(value))
        inside = list(value.values()) if isinstance(value, dict) else list(value)
        size = 1 + sum(self.look(entry, depth + 1) for entry in inside)
        self._looking.remove(id(value))
        self._size[id(value)] = size
        named = not isinstance(value, dict) or all(isinstance(key, str | int) for key in value)
        self._plain[id(value)] = (
            named and not isinstance(value, set) and size <= MOST_SHOWN and all(map(self.is_plain, inside))
        )
        if isinstance(value, dict):
            self._tensors[id(value)] = any(map(_is_tensor, inside)) or any(
                self.holds_tensors(value.get(key)) for key in CONTAINERS
            )
        return size

    def is_plain(self, value: Any) -> bool:
        """Whether a value is made of numbers, texts and containers of them, so that it can be shown and stored."""
        return value is None or isinstance(value, bool | int | float | str) or self._plain.get(id(value), False)

    def holds_tensors(self, value: Any) -> bool:
        """Whether it is a dictionary with tensors in it, or in one of its usual places."""
        return isinstance(value, dict) and self._tensors[id(value)]


def _unwrap(path: Path, loaded: Mapping[Any, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state dict, wherever a training script put it, and the plain settings that stood beside it."""
    known = _Known(path)
    known.look(loaded)
    metadata: dict[str, Any] = {}
    for _ in range(4):  # {"model": {"state_dict": ...}} exists; deeper nesting does not
        inner = next((key for key in CONTAINERS if known.holds_tensors(loaded.get(key))), None)
        beside = {str(key): value for key, value in loaded.items() if key != inner and known.is_plain(value)}
        metadata = beside | metadata
        if inner is None:
            break
        loaded = loaded[inner]
    tensors = {str(key): value for key, value in loaded.items() if _is_tensor(value)}
    if not tensors:
        keys = ", ".join(str(key) for key in list(loaded)[:8])
        raise BadFile(
            f"{path} holds a dictionary without tensors (its keys: {keys or 'none'}); expected a state dict, or one "
            f"under {', '.join(CONTAINERS)}. Save the model with torch.save(model.state_dict(), FILE)."
        )
    return tensors, metadata


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _plain_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors under the names their modules gave them, without what wrappers put before."""
    renamed = {name.replace(COMPILED, ""): tensor for name, tensor in tensors.items()}
    while renamed and all(name.startswith(WRAPPED) and name != WRAPPED for name in renamed):
        renamed = {name.removeprefix(WRAPPED): tensor for name, tensor in renamed.items()}
    # Two names that fall together would hide a tensor.
    return renamed if len(renamed) == len(tensors) else dict(tensors)


def _info(path: Path, name: str, tensor: Any, size: int) -> TensorInfo:
    if not sound_name(name):
        raise BadFile(f"{path} holds a tensor with the impossible name {name!r:.60}. Save the model again.")
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes > size:  # a tensor of stride 0 repeats one number without end
        raise BadFile(
            f"tensor '{name}' in {path} claims {nbytes:,} bytes in a file of {size:,}, so the file is not read. "
            "Save the model again, with .contiguous() tensors."
        )
    return TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), nbytes)


def _as_numpy(path: Path, name: str, tensor: Any) -> NDArray[Any]:
    """A view of the tensor's memory; nothing is copied."""
    import torch

    kind = str(tensor.dtype).removeprefix("torch.")
    strided = tensor.layout == torch.strided and not tensor.is_quantized and tensor.device.type == "cpu"
    if not strided or tensor.is_complex():
        what = "complex" if strided else "sparse, quantised or without data"
        raise BadFile(
            f"tensor '{name}' in {path} is {what}, and a plain dense tensor was expected. "
            "Convert it with .dequantize() or .to_dense() and save the model again."
        )
    tensor = tensor.detach().resolve_neg()
    small = SMALL_FLOATS.get(kind)
    if small is None:
        try:
            array: NDArray[Any] = tensor.numpy()
        except TypeError as error:
            raise BadFile(
                f"tensor '{name}' in {path} has the type {kind}, which is not read. "
                "Convert the checkpoint to bfloat16 or float32 first."
            ) from error
        return array.view(np.uint8) if array.dtype == np.bool_ else array
    same_size = torch.int16 if small.itemsize == 2 else torch.uint8
    bits: NDArray[Any] = tensor.view(same_size).numpy()
    return bits.view(small)
