"""A weight that a package quantised is read as that package itself dequantises it, head by head.

The files were written by `make.py` with the packages named in them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.reference.quantised.make import COLUMNS, HERE, REFERENCE, ROWS, K
from tests.unit.checkpoints.making import safetensors_of, written
from toposcope.checkpoints import load
from toposcope.checkpoints.inspect import inspect
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.core.errors import BadFile

FILES = sorted(path.stem for path in HERE.glob("*.safetensors"))
# Those whose package answers in bfloat16, and bitsandbytes' int8, which multiplies by a rounded 1 / 127.
ROUNDED = {"ct_nvfp4": 2.0**-8, "bnb_int8": 2.0**-23}
GROUPS, WIDTH = 4, 8


def model_of(name: str, place: Path) -> Path:
    """A Llama of one layer whose keys are the file's weight, in two shards."""
    found = SafetensorsFile(HERE / f"{name}.safetensors")
    shutil.copy(HERE / f"{name}.safetensors", place / "quantised.safetensors")
    rng = np.random.default_rng(3)
    at = "model.layers.0."
    shapes = {
        "model.embed_tokens.weight": (16, COLUMNS),
        "model.norm.weight": (COLUMNS,),
        f"{at}input_layernorm.weight": (COLUMNS,),
        f"{at}self_attn.q_proj.weight": (COLUMNS, COLUMNS),
        f"{at}self_attn.v_proj.weight": (ROWS, COLUMNS),
        f"{at}self_attn.o_proj.weight": (COLUMNS, COLUMNS),
    }
    plain = {key: ("F32", rng.standard_normal(shape).astype("<f4")) for key, shape in shapes.items()}
    written(place / "plain.safetensors", safetensors_of(plain))
    where = dict.fromkeys(plain, "plain.safetensors") | dict.fromkeys(found.names(), "quantised.safetensors")
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    config = {
        "model_type": "llama",
        "hidden_size": COLUMNS,
        "num_hidden_layers": 1,
        "num_attention_heads": COLUMNS // WIDTH,
        "num_key_value_heads": GROUPS,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "quantization_config": json.loads(found.metadata["settings"]),
    }
    (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.parametrize("name", FILES)
def test_heads_equal_the_packages_own(tmp_path: Path, name: str) -> None:
    with load(model_of(name, tmp_path)) as model:
        theirs = model.source.read(REFERENCE).astype(np.float64).reshape(GROUPS, WIDTH, COLUMNS)
        allowed = ROUNDED.get(name, 0.0)
        for head in model.layers[0].heads:
            off = np.abs(head.k - theirs[head.kv_group])
            assert (off <= allowed * np.abs(theirs[head.kv_group])).all()
        assert np.abs(theirs).max() > 0.5
        assert not model.skipped
        assert [each for each in model.source.names() if each.startswith(f"{K}.")] == [f"{K}.weight"]


def test_inspect_says_how_weights_are_stored(tmp_path: Path) -> None:
    found = inspect(model_of("gptq4_reordered", tmp_path))
    assert found.dtypes == {"F32": 7, "Q4 gptq (groups of 32)": 1}
    plain = 16 * COLUMNS + 2 * COLUMNS + 2 * COLUMNS**2 + ROWS * COLUMNS
    assert found.parameters == plain + ROWS * COLUMNS + ROWS * COLUMNS  # the weight, and the reference in its file


def test_every_method_has_a_file() -> None:
    assert len(FILES) == 38
    makers = {SafetensorsFile(HERE / f"{name}.safetensors").metadata["made_by"].split()[0] for name in FILES}
    assert makers == {
        *("bitsandbytes", "compressed-tensors", "hqq", "optimum-quanto", "torchao", "nvidia-modelopt", "auto-gptq"),
        *("autoawq", "auto-round"),
    }


@pytest.mark.parametrize("name", FILES)
def test_another_method_in_the_configuration_is_a_contradiction(tmp_path: Path, name: str) -> None:
    place = model_of(name, tmp_path)
    config = json.loads((place / "config.json").read_text())
    said = config["quantization_config"]["quant_method"]
    config["quantization_config"]["quant_method"] = "awq" if said in ("gptq", "auto-round") else "gptq"
    (place / "config.json").write_text(json.dumps(config))
    with pytest.raises(BadFile), load(place) as model:
        _ = model.layers[0].weights
