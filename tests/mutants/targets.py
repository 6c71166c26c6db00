"""Which modules are central, and which tests are asked about a module."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

CENTRAL = {
    "encodings": (
        "rotary",
        "rotary_xpos",
        "scalings",
        "bias_t5",
        "bias_alibi",
        "bias_kerple",
        "bias_fire",
        "record",
        "absolute",
    ),
    "checkpoints": ("fold", "view", "decode", "spec", "attention"),
    "checkpoints.generic": (
        "logits",
        "match",
        "fit",
        "rotation",
        "tensors",
        "position",
        "encode",
        "describe",
        "output",
        "compare",
    ),
    "checkpoints.hub": ("name", "cache", "file"),
    "checkpoints.quantised": ("affine", "bitsandbytes", "fp4", "gptq", "hqq", "packed", "scaled", "ternary"),
    "checkpoints.peft": ("changes", "source"),
    "live": ("fit", "recover", "ruler", "turning", "judge", "precision"),
    "live.module": ("against", "probes", "diagnose"),
    "dynamics": (
        "regime",
        "reduction",
        "stability",
        "pencil",
        "products",
        "heads",
        "layers",
        "factored",
        "integrate",
        "dormand_prince",
        "step_size",
        "fields",
    ),
    "spectra": (
        "anova",
        "contraction",
        "operators",
        "toeplitz",
        "rotary_kernel",
        "head_kernel",
        "encoding_spectrum",
        "bias_points",
        "rotary_points",
        "table_points",
        "toeplitz_points",
    ),
    "models": ("ablation.result", "deposit", "loss", "tracing.patterns"),
    "lab": ("train", "encoding"),
    "runs": ("store",),
}
MODULES = tuple(f"{package}.{name}" for package, names in CENTRAL.items() for name in names)

# Tests of a package that stand elsewhere than in tests/unit/<package>.
ELSEWHERE = {
    "encodings": ("reference/test_encodings_*.py",),
    "checkpoints": (
        "reference/families/test_gpt2.py",
        "reference/families/test_llama.py",
        "reference/families/test_gemma.py",
        "reference/families/test_t5.py",
        "reference/families/test_bert.py",
        "reference/families/test_deepseek.py",
        "unit/dynamics/test_heads.py",
    ),
    "checkpoints.generic": ("reference/generic/test_measured.py",),
    "checkpoints.hub": ("unit/checkpoints/test_hub.py", "unit/checkpoints/test_hub_server.py"),
    "checkpoints.quantised": ("reference/quantised/test_packages.py", "reference/quantised/test_transformers.py"),
    "checkpoints.peft": ("unit/checkpoints/test_peft.py",),
    "live.module": ("unit/live/test_module.py",),
    "models": ("reference/test_instrument.py", "reference/test_swap_encoding.py"),
    "lab": ("reference/lab/test_attention.py",),
}
# Start and kill processes: minutes on the wall, and the module's own tests say the same.
SLOW = ("test_kills.py", "test_ray.py")
# Looks for pieces of source in the modules: any change of those would be noticed, for the wrong reason.
IGNORED = ("test_a_changed_formula_is_noticed",)


def file_of(module: str) -> Path:
    """spectra.anova -> src/toposcope/spectra/anova.py"""
    return SOURCE / "toposcope" / Path(*module.split(".")).with_suffix(".py")


def tests_of(module: str) -> list[Path]:
    """The module's own tests first, then those of its package, then others that import it."""
    package, _, name = module.rpartition(".")
    tests = ROOT / "tests"
    folder = tests / "unit" / Path(*package.split("."))
    found = [folder / f"test_{name}.py", *sorted(folder.glob("test_*.py"))]
    for pattern in ELSEWHERE.get(package, ()):
        found += sorted(tests.glob(pattern))
    asks = re.compile(
        rf"^(from toposcope\.{re.escape(module)} import|import toposcope\.{re.escape(module)}\b"
        rf"|from toposcope\.{re.escape(package)} import .*\b{name}\b)",
        re.MULTILINE,
    )
    for kind in ("unit", "reference", "defects"):
        for path in sorted((tests / kind).rglob("test_*.py")):
            if asks.search(path.read_text(encoding="utf-8")):
                found.append(path)
    return list(dict.fromkeys(path for path in found if path.is_file() and path.name not in SLOW))
