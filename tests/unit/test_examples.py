"""The examples run, and say what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.tiny import write_llama

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout


def test_heads_of_a_model(tmp_path: Path) -> None:
    lines = run("heads_of_a_model.py", str(write_llama(tmp_path / "m"))).splitlines()
    assert len(lines) == 3
    assert all("RoPE" in line for line in lines)


def test_check_my_attention_finds_the_planted_mistake() -> None:
    sound, faulty = run("check_my_attention.py").split("--- rotation ")[1:]
    assert "fault" not in sound
    assert "fault" in faulty
    assert "batch" in faulty.split("\n", 1)[1]
