"""Extreme numbers and words for every option of every command: an answer or a sentence, within memory and time.

    python -m tests.faults.extremes            # all cases
    python -m tests.faults.extremes --only flow --show

Each case runs in a forked process that may use a limited amount of memory more than it begins with and a limited
processor time. Bad is: a traceback, exit code 3, being killed, memory or time used up.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.unit.tiny import write_llama

MEMORY = 3 << 30  # bytes beyond what the process began with
SECONDS = 20  # of processor time
NUMBERS = (
    *[
        "-1",
        "0",
        "1",
        "2",
        "3",
        "10000000",
        "1000000000000",
        "nan",
        "inf",
        "-inf",
        "1e308",
        "1e-320",
        "[/bold]",
        "%s",
        "{0}",
        "0-99999999999",
        "1,,2",
    ],
    *("", "9" * 25, "9" * 400, "4" * 5000, "x" * 20000, "\u0663", "\u202e7", "\x1b[2J"),
)
SPECS = (
    *[
        "learned:length=1000000000",
        "random:length=1000000000000",
        "learned:std=1e308",
        "random:std=inf",
        "learned:seed=99999999999999999999999999",
        "rope:base=1e308",
        "rope:base=1.0000001",
        "rope:base=nan",
        "rope:factor=1e300,scaling=dynamic",
        "rope:scaling=dynamic,factor=1e300,original_context=1",
        "rope:scaling=yarn,factor=1e300",
        "rope:scaling=linear,factor=1e308",
        "rope:scaling=ntk,factor=1e300",
        "rope:scaling=llama3,factor=1e300",
        "rope:rotary_dim=10000000",
        "rope:channel_offset=1000000000",
        "rope:scaling=longrope,factor=1e300,short_factor=1e-320,long_factor=1e308",
        "t5:buckets=1000000000",
        "t5:max_distance=1000000000000000000000",
        "alibi:max_bias=1e308",
        "alibi:scale=1e308",
        "alibi:slopes=1e308",
        "kerple:r1=1e308",
        "kerple:r2=1e308",
        "kerple-power:r2=2,r1=1e308",
        "fire:hidden=1000000000",
        "fire:c=1e308",
        "fire:threshold=1e-320",
        "sinusoidal:base=1e308",
        "sinusoidal:scale=1e308",
        "sinusoidal:offset=1000000000000000000000",
        "sinusoidal:denominator=1e-320",
        "xpos:gamma=1e308",
        "xpos:scale_base=1e-320",
        "mla:rope_dim=1000000000",
        "cope:positions=1000000000000",
        "pope:base=1e308",
        "none:x=1",
        "[/bold]",
    ],
    *(
        "rope:base=" + "9" * 400,
        "rope:scaling=yarn,original_context=" + "9" * 30,
        "rope:" + "a" * 5000,
        "\x1b]0;x\x07",
    ),
)
CONFIGS: tuple[dict[str, Any], ...] = (
    *({"head_dim": size} for size in (2**24, 2**40, 2**14, 1, -4)),
    *({"num_hidden_layers": size} for size in (10**12, 7)),
    *({"num_attention_heads": size} for size in (10**12, 2**24)),
    *({"max_position_embeddings": size} for size in (10**12, 10**30, 1)),
    *({"rope_theta": size} for size in (1e308, 10**400, 1e-320, -1.0)),
    *({"rms_norm_eps": size} for size in (1e308, -1, 0)),
    *({"sliding_window": size} for size in (10**30, -5)),
    *({"model_type": name} for name in ("x" * 20_000_000, "\x1b[2J[/bold]")),
    {"num_key_value_heads": 10**12},
    {"hidden_size": 10**12},
    {"vocab_size": 10**15},
    {"partial_rotary_factor": 1e-320},
    {"attention_multiplier": 1e308},
    {"query_pre_attn_scalar": 1e-320},
    {"attn_logit_softcapping": 1e308},
    {"rope_scaling": {"rope_type": "dynamic", "factor": 1e300}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 1e300}},
    {"rope_scaling": {"rope_type": "linear", "factor": 1e308}},
    {"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 1e308, "beta_slow": 1e-320}},
    {"rope_scaling": {"rope_type": "llama3", "factor": 1e308, "low_freq_factor": 1, "high_freq_factor": 1}},
    {"rope_scaling": {"rope_type": "longrope", "short_factor": [1e308, 1e-320], "long_factor": [1e308, 1e-320]}},
)
NAMES = ("a" * 5000, "a" * 5000 + ".json", "b/" * 3000, "a\0b", "a\0b.json", "")
WEIGHTS = (3e38, 1e-45, 0.0, 9e11)


@dataclass(frozen=True)
class Case:
    arguments: tuple[str, ...]
    name: str


class Ground:
    """The models and arrays that the cases are about, made once."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.model = str(write_llama(scratch / "model"))
        self.configs = [self._changed(i, change) for i, change in enumerate(CONFIGS)]
        self.weights = [self._scaled(i, size) for i, size in enumerate(WEIGHTS)]
        self.arrays = []
        for i, size in enumerate((1e300, 1e-300, 1e154, 0.0)):
            path = scratch / f"v{i}.npy"
            np.save(path, size * np.random.default_rng(i).standard_normal((3, 3)))
            self.arrays.append(str(path))
        self.one = str(scratch / "one.npy")
        np.save(self.one, np.eye(3))

    def _changed(self, i: int, change: dict[str, Any]) -> str:
        where = write_llama(self.scratch / f"config{i}")
        config = json.loads((where / "config.json").read_text())
        (where / "config.json").write_text(json.dumps({**config, **change}))
        return str(where)

    def _scaled(self, i: int, size: float) -> str:
        from safetensors.numpy import load_file, save_file

        where = write_llama(self.scratch / f"weights{i}")
        file = where / "model.safetensors"
        made = {
            name: np.full_like(value, size) * np.sign(value).astype(np.float32) if "proj" in name else value
            for name, value in load_file(file).items()
        }
        save_file(made, file)
        return str(where)


def cases(ground: Ground) -> Iterator[Case]:
    model, one = ground.model, ground.one

    def each(base: Sequence[str], option: str, values: Sequence[str] = NUMBERS) -> Iterator[Case]:
        for value in values:
            said = value if len(value) < 40 else f"{value[:20]}.. ({len(value)})"
            name = f"{' '.join(base)} {option}={said}".replace(str(ground.scratch), "")
            yield Case((*base, f"{option}={value}"), name)

    flow = ("flow", "--preset=collapse", "--horizon=1")
    for option in ("--n", "--seed", "--add-diagonal", "--growth-cap", "--max-evaluations", "--rtol"):
        yield from each(flow, option)
    yield from each(("flow", "--preset=collapse"), "--horizon")
    yield from each(flow, "--encoding", SPECS)
    for array in ground.arrays:
        for extra in ((), ("--encoding=rope:rotary_dim=2",), ("--no-causal",), ("--add-diagonal=1e300",)):
            yield Case(("flow", f"--W={one}", f"--V={array}", *extra), f"flow V {array[-6:]} {extra}")
            yield Case(("flow", f"--W={array}", f"--V={one}", *extra), f"flow W {array[-6:]} {extra}")
        yield Case(("flow", f"--W={array}", f"--V={array}"), f"flow W V {array[-6:]}")
        yield Case(("flow", f"--W={one}", f"--V={one}", f"--start={array}"), f"flow start {array[-6:]}")
    head = ("flow", model, "--head=0.0", "--horizon=0.5")
    for option in ("--head", "--layer", "--token-ids", "--n"):
        yield from each(("flow", model, "--horizon=0.5"), option)
    yield from each(head, "--encoding", SPECS)
    for spec in ("rope", "alibi", "t5", "kerple", "fire", "sinusoidal", "learned", "random", "xpos", "mla", "none"):
        for option in ("--context", "--head-dim", "--heads", "--width"):
            yield from each(("spectrum", spec), option)
    for spec in SPECS:
        yield Case(("spectrum", spec, "--context=64"), f"spectrum {spec[:60]!r}")
    yield from each(("spectrum", "rope"), "--offsets")
    for option in ("--layers", "--num-heads", "--seed", "--context", "--encoding"):
        yield from each(("scan", model), option, SPECS if option == "--encoding" else NUMBERS)
    yield from each(("inspect", model), "--layers")
    yield from each(("check", model), "--heads")
    yield from each(("compare", model, model), "--layers")
    for name in NAMES:
        for command in ("check", "inspect", "scan", "flow", "report"):
            yield Case((command, name), f"{command} {name[:60]!r}")
        yield Case(("compare", model, name), f"compare {name[:60]!r}")
        yield Case(("scan", model, f"--adapter={name}"), f"scan --adapter {name[:60]!r}")
        yield Case(("spectrum", "rope", f"--model={name}"), f"spectrum --model {name[:60]!r}")
    for i, changed in enumerate(ground.configs):
        what = str(CONFIGS[i])[:60]
        for command in ("check", "inspect", "scan"):
            yield Case((command, changed), f"{command} {what}")
        yield Case(("scan", changed, "--encoding=alibi", "--random-baseline"), f"scan --encoding {what}")
        yield Case(("flow", changed, "--head=0.0", "--horizon=0.5"), f"flow {what}")
        yield Case(("compare", changed, model), f"compare {what}")
    for size, weights in zip(WEIGHTS, ground.weights, strict=True):
        for command in ("check", "inspect", "scan"):
            yield Case((command, weights), f"{command} weights {size}")
        yield Case(
            ("scan", weights, "--encoding=none", "--random-baseline", "--layer-sums"),
            f"scan baseline {size}",
        )
        for part in ("--head=0.0", "--layer=0", "--stack"):
            yield Case(("flow", weights, part, "--horizon=0.5"), f"flow {part} weights {size}")
        yield Case(("compare", weights, model), f"compare weights {size}")


def warm_up(ground: Ground) -> None:
    """Import what the commands import, once, before the forks."""
    sound = [(verb, ground.model) for verb in ("scan", "check", "inspect")]
    for words in (*sound, ("compare", ground.model, ground.model), ("flow", "--preset=c1"), ("spectrum", "none")):
        assert _call(Case(words, ""), sys.stderr) == 0, words


def run(case: Case) -> str | None:
    """What is bad about a case, or None."""
    with tempfile.TemporaryFile("w+", errors="backslashreplace") as said:
        child = os.fork()
        if child == 0:
            code = 70
            try:
                taken = resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
                resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, taken + MEMORY))
                resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
                code = _call(case, said)
            except BaseException:  # noqa: BLE001 whatever it is, it is the answer
                said.write(traceback.format_exc()[-3000:])
            finally:
                said.flush()
                os._exit(code)
        _, status, used = os.wait4(child, 0)
        said.seek(0)
        words = said.read()
        if os.WIFSIGNALED(status):
            return f"killed by {signal.Signals(os.WTERMSIG(status)).name} after {used.ru_utime:.0f} s"
        code = os.WEXITSTATUS(status)
        if code in (0, 1, 2) and "Traceback" not in words and "Warning" not in words and used.ru_utime < SECONDS / 2:
            return None
        return f"code {code}, {used.ru_utime:.0f} s: {words[-1500:]}"


def _call(case: Case, said: Any) -> int:
    from toposcope.cli import main

    os.environ["TOPOSCOPE_TRACEBACK"] = "1"
    out = io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(said):
            main(case.arguments)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def check(chosen: Sequence[Case]) -> list[str]:
    """What is bad about these cases, in words."""
    found = ((case, run(case)) for case in chosen)
    return [f"{case.name[:150]!r}\n   {wrong}" for case, wrong in found if wrong]


def main_of(arguments: Sequence[str] | None = None) -> int:
    given = argparse.ArgumentParser()
    given.add_argument("--only", default="", help="cases whose name holds this")
    asked = given.parse_args(arguments)
    count = bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        ground = Ground(Path(scratch))
        warm_up(ground)
        for case in cases(ground):
            if asked.only in case.name:
                wrong = check([case])
                count, bad = count + 1, bad + len(wrong)
                print(*(f"BAD {words}" for words in wrong), sep="\n", end="\n" if wrong else "", flush=True)
    print(f"{count} cases, {bad} bad")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main_of())
