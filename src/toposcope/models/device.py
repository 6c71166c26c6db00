"""Where a model is run, and in which precision: what may be asked for, what is chosen, what a result says of it.

`auto` is the first GPU that torch has (cuda, else mps), else the CPU. On a GPU weights keep the precision of their
files; on the CPU they are float32, since half precision is slower there. Every tensor that is made for a model goes
to the device of the tensor that it meets; `home` is where its token numbers go.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from toposcope.core.errors import BadValue, MissingExtra, did_you_mean
from toposcope.core.result import Computation

AUTO = "auto"
DEVICES = (AUTO, "cpu", "cuda", "cuda:0", "mps")
DTYPES = (AUTO, "float32", "bfloat16", "float16")
CPU = "cpu"
_INDEXED = re.compile(r"cuda:\d+")
_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # without it cuBLAS may add up in another order each time
_FULL = ("out of memory", "DefaultCPUAllocator", "not enough memory")


@dataclass(frozen=True)
class Placement:
    """Where a model is loaded to. `dtype` 'auto' is that of its files; `asked` where a user has chosen any of it."""

    device: str = CPU
    dtype: str = "float32"
    device_map: str | None = None
    asked: bool = False


def placement(device: str | None = AUTO, dtype: str = AUTO, device_map: str | None = None) -> Placement:
    """What is to be done for these options, or what is wrong with them."""
    from toposcope.models.load import require

    require("torch")
    if dtype not in DTYPES:
        raise BadValue(f"'{dtype}' is no precision to run a model in. {did_you_mean(str(dtype), DTYPES)}")
    if device_map not in (None, AUTO):
        raise BadValue(f"a device map is 'auto' or left out, got '{device_map}'.")
    asked = device not in (None, AUTO) or dtype != AUTO or device_map is not None
    if device_map is not None:
        if device not in (None, AUTO):
            raise BadValue(f"a device map chooses the devices itself: leave out the device ('{device}'), or the map.")
        _require_accelerate()
    found = chosen_device(device)
    if dtype == AUTO and found == CPU:
        dtype = "float32"
    return Placement(found, dtype, device_map, asked)


def chosen_device(asked: str | None) -> str:
    """The device by its full name ('cuda:0'), if torch has it here."""
    import torch

    name = AUTO if asked is None else str(asked)
    if name == AUTO:
        return "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else CPU
    if name == CPU:
        return CPU
    if name == "mps":
        if torch.backends.mps.is_available():
            return name
        raise BadValue(
            f"mps was asked for and this torch has none: {_why_no_mps(torch)}. Leave --device out, or use cpu."
        )
    if name != "cuda" and not _INDEXED.fullmatch(name):
        raise BadValue(f"'{name}' is no device to run on. {did_you_mean(name, DEVICES)}")
    if not torch.cuda.is_available():
        why = "it was built without CUDA" if torch.version.cuda is None else "no GPU or no driver answers"
        raise BadValue(
            f"{name} was asked for and this torch has no CUDA device: {why} (torch {torch.__version__}). "
            "Install a build of torch for your GPU, leave --device out, or use cpu."
        )
    number, count = int(name.partition(":")[2] or 0), torch.cuda.device_count()
    if number >= count:
        raise BadValue(f"{name} was asked for, and there is cuda:0 to cuda:{count - 1}.")
    return f"cuda:{number}"


def device_names(asked: str) -> list[str]:
    """The devices that work is spread over: 'cuda' is all of them, 'cuda:1' that one alone."""
    if asked == CPU:
        return [CPU]
    import torch

    found = chosen_device(asked)
    if found == "cuda:0" and asked in (AUTO, "cuda"):
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return [found]


def home(model: Any) -> Any:
    """The device that takes a model's token numbers: that of its embedding, or where its first layers are run."""
    import torch

    embedding = getattr(model, "get_input_embeddings", lambda: None)()
    weights = (getattr(embedding, "weight", None), *getattr(model, "parameters", tuple)())
    tensor = next((each for each in weights if each is not None), None)
    if tensor is None:
        return torch.device(CPU)
    hook: Any = getattr(embedding, "_hf_hook", None)  # of accelerate: weights may wait elsewhere
    if tensor.device.type == "meta" and getattr(hook, "execution_device", None) is not None:
        return torch.device(hook.execution_device)
    return tensor.device


def double(tensor: Any) -> Any:
    """A tensor in float64, where it is; MPS has none, so from there it comes to the CPU first."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def computation(model: Any) -> Computation:
    """What a result says of where and how a model runs."""
    tensors = [each for each in model.parameters() if each.is_floating_point()]
    devices = dict.fromkeys(str(each.device).replace("meta", "kept aside until needed") for each in tensors)
    dtypes = dict.fromkeys(str(each.dtype).removeprefix("torch.") for each in tensors)
    why_not = _why_not_repeatable(list(devices))
    return Computation(
        device=", ".join(devices),
        dtype=", ".join(dtypes),
        attention=kernel(model),
        repeatable=why_not is None,
        why_not=why_not,
    )


def kernel(model: Any) -> str | None:
    """The attention function that the model asks for; None where its configuration names none."""
    said = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return None if said is None else str(said).removeprefix("toposcope_")


@contextmanager
def running_on(model: Any) -> Iterator[list[str]]:
    """Torch's deterministic algorithms while a model runs on a GPU; what has none is listed as it is met."""
    import torch

    met: list[str] = []
    if all(each.device.type in (CPU, "mps") for each in model.parameters()):
        yield met
        return
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as seen:
        warnings.filterwarnings("always", message=".*does not have a deterministic implementation.*")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield met
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])
            met += [str(each.message).split(" does not have")[0] for each in seen if "determin" in str(each.message)]


def with_doubts(ran: Computation, met: list[str]) -> Computation:
    """The same, not repeatable where operations were met that torch cannot repeat."""
    if not met:
        return ran
    names = ", ".join(dict.fromkeys(met))
    return replace(ran, repeatable=False, why_not=f"torch has no deterministic algorithm here for {names}")


@contextmanager
def memory_told(batch: int | None, kept: str = "") -> Iterator[None]:
    """One sentence where a device, or the machine, runs out of memory; `kept` says what is not lost."""
    import torch

    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        smaller = "" if batch is None or batch < 2 else f"a smaller --batch (it is {batch}), "
        raise BadValue(
            f"memory ran out while the model was running ({_first_line(error)}). Use {smaller}fewer --tokens, or "
            f"--device-map auto to spread the model over all devices{'' if smaller else '; --batch is 1 already'}."
            f"{f' {kept}' if kept else ''}"
        ) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whatever device."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _FULL)


def require_batch(batch: int) -> int:
    """A number of sequences or removals to run together."""
    if not isinstance(batch, int) or isinstance(batch, bool) or batch < 1:
        raise BadValue(f"a batch holds at least 1, got {batch}.")
    return batch


# -------------------------------------------------------------------- inside
def _why_no_mps(torch: Any) -> str:
    return "it was built without MPS" if not torch.backends.mps.is_built() else "this machine has no such GPU"


def _why_not_repeatable(devices: list[str]) -> str | None:
    if any(each.startswith("mps") for each in devices):
        return "torch promises no repeatable sums on mps"
    if any(each.startswith("cuda") for each in devices) and _WORKSPACE not in os.environ:
        return f"{_WORKSPACE} is not set, so products may be added up in another order"
    return None


def _require_accelerate() -> None:
    import importlib.util

    if importlib.util.find_spec("accelerate") is None:
        raise MissingExtra("a device map needs accelerate: pip install 'toposcope[hf]'.")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:160] if lines else type(error).__name__
