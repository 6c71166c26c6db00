"""`toposcope.check`: is a model's positional encoding there, in force, and of one kind? From files, or as it runs."""

from __future__ import annotations

import logging
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from toposcope.checkpoints.families.lab import model_directory
from toposcope.checkpoints.opened import ModelLike, opened, subject
from toposcope.checkpoints.opened import live as in_memory
from toposcope.checkpoints.view import Model
from toposcope.checks.expected import Expectation, expectations, expected
from toposcope.checks.findings import CheckResult, Finding, outcome
from toposcope.checks.model import check_files, check_model
from toposcope.core.errors import BadValue, did_you_mean
from toposcope.core.printable import printable
from toposcope.core.progress import Progress, steps
from toposcope.core.result import Provenance
from toposcope.live import foreseen
from toposcope.live.axes import axes
from toposcope.live.by_layer import as_read, by_layer
from toposcope.live.judge import judge
from toposcope.live.lengths import lengths
from toposcope.live.module.check import Probe, check_module
from toposcope.live.parity import parity
from toposcope.live.precision import precision
from toposcope.live.recover import Recovery, recover
from toposcope.live.result import LiveCheckResult
from toposcope.live.running import Running
from toposcope.models.device import Placement, placement
from toposcope.models.load import Reference, load_reference, require
from toposcope.models.running import running_subject

_log = logging.getLogger(__name__)
TESTED_TRANSFORMERS = "5.22.2"  # as in constraints.txt
_WHAT = {
    "fit": "queries, keys and logits at known positions, against the configuration",
    "precision": "angles at far positions, in the model's own precision",
    "parity": "whole, cached, chunked, padded, batched, by generate: where tokens stand",
    "lengths": "around the original context, beyond it, and short again",
    "axes": "one position axis at a time",
}


def check(
    model: ModelLike,
    *,
    live: bool | None = None,
    probes: Sequence[str] | None = None,
    family: str | None = None,
    num_heads: int | None = None,
    adapter: str | Path | None = None,
    weights: bool = True,
    device: str = "auto",
    dtype: str = "auto",
    device_map: str | None = None,
    expect: str | Iterable[str] | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Test whether a model's positional encoding is really there, in force, and of one kind.

    `model` is a name, a path, a `Model`, a loaded model of transformers or TransformerLens, or a torch attention
    module (which `check_module` tests, with more options). `family` and `num_heads` say how a file is to be read,
    `adapter` is one of PEFT that is merged as it is read. Without `weights`, only configuration and tables are
    looked at; a config.json alone will do. `expect` are encodings that the layers should have: "rope:base=500000" for
    all of them, "sliding=rope:base=10000" or "full=..." for some; only what is stated is compared.

    `live` runs the model, and compares what it does with what its configuration says: by default where it is loaded
    already. `probes` chooses from fit, precision, parity, lengths and axes (default: all). A model in files is loaded
    by transformers to `device` in `dtype` ("auto": a GPU and the files' precision, or the CPU and float32).
    """
    if is_attention(model):
        if expect is not None:
            raise BadValue("expect speaks of a whole model; of a module, check_module(expects=...) tests its kind.")
        return check_module(model)
    loaded = not isinstance(model, str | Path | Model)
    if live is False or (live is None and not loaded):
        if probes is not None:
            raise BadValue("probes look into a running model: give live=True (--live) too.")
        return check_files(
            model, family=family, num_heads=num_heads, adapter=adapter, weights=weights, expect=expect,
            progress=progress,
        )  # fmt: skip
    if isinstance(model, Model):
        raise BadValue("an open checkpoint does not run: give its name or path, or the loaded model.")
    if family is not None or num_heads is not None or adapter is not None:
        raise BadValue("family, num_heads and adapter say how files are read; a running model is taken as it is.")
    _require_installed(model)
    placed = placement(device, dtype, device_map)
    return _check_live(model, probes or list(_WHAT), weights, placed, expectations(expect), progress)


def _require_installed(model: Any) -> None:
    """Complain before the work where what runs a model in files is missing, and name the check that does without."""
    if isinstance(model, str | Path):
        needed = ("torch",) if model_directory(model) is not None else ("torch", "transformers")
        named = printable(shlex.quote(str(model)))
        require(*needed, instead=f"'toposcope check {named}' reads the files alone.")


def _check_live(
    model: Any,
    wanted: Sequence[str],
    weights: bool,
    placed: Placement,
    expect: Sequence[Expectation],
    progress: Progress | None,
) -> LiveCheckResult:
    started = time.perf_counter()
    for name in wanted:
        if name not in _WHAT:
            raise BadValue(f"unknown probe '{name}'. {did_you_mean(name, _WHAT)}")
    tick = steps(progress, "probes", len(wanted) + 2)
    reference = _loaded(model, placed)
    module = reference.model if isinstance(reference, Reference) else reference
    tick()
    running = Running(module)
    described = in_memory(module)
    forecast = _foretell(running, described, wanted, weights)
    if isinstance(reference, Reference):  # what transformers drops on loading is still in the files
        with opened(reference.path) as stored:
            files = check_model(stored, weights=weights, progress=progress).findings
    else:
        files = check_model(described, weights=weights, progress=progress).findings
    tick()
    found, ran = list[Finding](), list[Probe]()
    begun = time.perf_counter()
    recovery = recover(running)
    _tell_left(forecast, "fit", begun)
    for name in _WHAT:
        if name in wanted:
            begun = time.perf_counter()
            new = _probe(name, running, recovery, described, found, progress)
            told = f" ({time.perf_counter() - begun:.1f} s)" if new else "; this model has nothing to try it on"
            ran.append(Probe(name, bool(new), _WHAT[name] + told))
            found += new
            _tell_left(forecast, name, begun)
            tick()
    title = "; ".join(dict.fromkeys(layer.encoding.title for layer in described.layers if layer.spec.kind == "self"))
    asked = {
        "live": True, "probes": list(wanted), "weights": weights, "device": placed.device,
        "dtype": placed.dtype, "device_map": placed.device_map,
        "expect": [each.written for each in expect],
    }  # fmt: skip
    about = running_subject(reference, model) if isinstance(reference, Reference) else subject(described, model)
    return LiveCheckResult(
        provenance=Provenance((about,), asked, time.perf_counter() - started),
        skipped=described.skipped,
        layers=len(described.layers),
        device=str(running.device),
        dtype=recovery.dtype,
        attention=str(getattr(running.config, "_attn_implementation", None) or "its own"),
        positions=recovery.context,
        probes=tuple(ran),
        by_layer=tuple(by_layer(recovery, described, files, found, weights=weights)),
        remarks=tuple(_remarks(reference)),
        **outcome([*expected(described, expect), *as_read(found, files), *files], title),
    )


def _foretell(running: Running, model: Model, wanted: Sequence[str], weights: bool) -> foreseen.Forecast | None:
    """Say how long it will take, where that is longer than one likes to wait without knowing."""
    if str(running.device) != "cpu":
        return None
    size = sum(each.numel() for each in running.model.parameters())
    expected = foreseen.seconds(model, size, wanted, weights=weights, slower=foreseen.slower())
    if expected > foreseen.PATIENCE:
        told = foreseen.span(expected)
        _log.info("Running the model (whole, with cache, in chunks, with padding): %s", told)
    return foreseen.Forecast({name: foreseen.part(model, size, name) for name in {*wanted, "fit"}})


def _tell_left(forecast: foreseen.Forecast | None, probe: str, begun: float) -> None:
    """Say how long the rest will take, now that this much is done."""
    if forecast is None:
        return
    forecast.done(probe, time.perf_counter() - begun)
    left = forecast.news()
    if left is not None:
        _log.info("about %s left", left)


def _remarks(reference: Any) -> Iterator[str]:
    """What a reader should know of the libraries that ran the model."""
    module = reference.model if isinstance(reference, Reference) else reference
    if not any(each.__module__.startswith("transformers.") for each in type(module).__mro__):
        return
    from transformers import __version__

    if _release(__version__) > _release(TESTED_TRANSFORMERS):
        yield f"transformers {__version__} is newer than {TESTED_TRANSFORMERS}, with which this was tested"


def _release(version: str) -> tuple[int, ...]:
    """The numbers a version begins with: 5.23.0.dev0 is (5, 23, 0)."""
    return tuple(int(each) for each in re.match(r"[\d.]*", version)[0].split(".") if each)  # type: ignore[index]


def _probe(
    name: str, running: Running, recovery: Recovery, model: Model, found: Sequence[Finding], progress: Progress | None
) -> list[Finding]:
    if name == "fit":
        return judge(recovery, model)
    if name == "precision":
        return precision(running, recovery, model, found=found)
    return {"parity": parity, "lengths": lengths, "axes": axes}[name](running, model, progress)


def _loaded(model: Any, placed: Placement) -> Any:
    """The model as it runs: of the laboratory, of transformers from files, or as it was given."""
    if not isinstance(model, str | Path):
        return model
    if model_directory(model) is not None:
        from toposcope.models.laboratory import laboratory

        return laboratory().with_sequences(Path(model), None, 1, 0)[0]
    return load_reference(
        model, head=True, attention="sdpa", dtype=placed.dtype, tokenizer=False, device=placed.device,
        device_map=placed.device_map,
    )  # fmt: skip


def is_attention(model: Any) -> bool:
    """Whether this is a torch module, but no whole model of transformers or TransformerLens."""
    whole = ("get_input_embeddings", "blocks", "original_model")
    return hasattr(model, "forward") and not any(hasattr(model, name) for name in whole)
