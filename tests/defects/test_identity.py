"""What is kept belongs to what was read, by content; and a file that changes while it is read ends in a sentence.

Every test fails on version 0.1.0: E (identity by name, size and date) and 5 (a mapped file that is cut short ends the
process by SIGBUS).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import toposcope
from tests.unit import tiny
from toposcope.cli import main
from toposcope.core.errors import BadValue, ToposcopeError

WIDE = {"hidden_size": 64, "vocab_size": 512}  # tensors of several pages


def call(*words: str | Path) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def put_in_place(path: Path, other: Path) -> None:
    """Another file under this name, with the size and the date that the one there had."""
    before = path.stat()
    assert other.stat().st_size == before.st_size
    other.replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def heads(result: Path) -> Any:
    return json.loads(result.read_text())["heads"]


# ------------------------------------------------------------------- E
def test_E_a_scan_never_reports_another_models_heads(tmp_path: Path) -> None:
    """Two models of one shape, size and date: the second is refused, or scanned itself."""
    model, other = tiny.write_llama(tmp_path / "model"), tiny.write_llama(tmp_path / "other", seed=7)
    out = tmp_path / "out"
    assert call("scan", model, "--layers", "0,1", "--out", out) == 0
    assert call("scan", other, "--json", tmp_path / "truth.json") == 0
    put_in_place(model / "model.safetensors", other / "model.safetensors")
    code = call("scan", model, "--out", out)
    assert code == 2 or heads(out / "result.json") == heads(tmp_path / "truth.json")


def test_E_one_tensor_of_one_layer_is_enough(tmp_path: Path) -> None:
    model = tiny.write_llama(tmp_path / "model")
    assert call("scan", model, "--out", tmp_path / "out") == 0
    tensors = tiny.tensors(tiny.CONFIG)
    tensors["model.layers.2.input_layernorm.weight"][5] *= 1.5
    save_file(tensors, tmp_path / "changed.safetensors")
    put_in_place(model / "model.safetensors", tmp_path / "changed.safetensors")
    assert call("scan", model, "--out", tmp_path / "out") == 2
    assert call("scan", model, "--layers", "0,1", "--out", tmp_path / "out") == 0, "those layers are as they were"


def test_E_the_embedding_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are made from tokens, also where only some rows of a large table are read."""
    monkeypatch.setattr("toposcope.spectra.of_heads.LARGEST_TABLE", 0)
    monkeypatch.setattr("toposcope.spectra.of_heads.DRAWN", 8)
    model = tiny.write_llama(tmp_path / "model")
    assert call("scan", model, "--out", tmp_path / "out") == 0
    tensors = tiny.tensors(tiny.CONFIG)
    tensors["model.embed_tokens.weight"] *= 1 + np.arange(16, dtype=np.float32)
    save_file(tensors, tmp_path / "changed.safetensors")
    put_in_place(model / "model.safetensors", tmp_path / "changed.safetensors")
    assert call("scan", model, "--layers", "1", "--out", tmp_path / "out") == 2


def write_gguf(path: Path, base: float) -> None:
    import gguf

    config = tiny.CONFIG
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_dimension_count(4)
    writer.add_rope_freq_base(base)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm"}
    for name, value in tiny.tensors(config).items():
        ours = name.replace("model.layers.", "blk.").replace("model.embed_tokens", "token_embd")
        for theirs, short in names.items():
            ours = ours.replace(theirs, short)
        writer.add_tensor(ours, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_E_settings_inside_a_gguf_file_count(tmp_path: Path) -> None:
    """The same weights under another rotary base."""
    model = tmp_path / "model.gguf"
    write_gguf(model, 10_000.0)
    write_gguf(tmp_path / "other.gguf", 500_000.0)
    assert call("scan", model, "--out", tmp_path / "out") == 0
    put_in_place(model, tmp_path / "other.gguf")
    assert call("scan", model, "--out", tmp_path / "out") == 2


class Reference(tuple[Any, ...]):
    """A call that can be a key."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class ThisProcess:
    """What of Ray a scan uses, all of it here."""

    class exceptions:
        RayError = RuntimeError

    def remote(self, **_: Any) -> Any:
        def decorated(function: Any) -> Any:
            return type("Task", (), {"remote": staticmethod(lambda *given: Reference((function, given)))})

        return decorated

    def put(self, value: Any) -> Any:
        return value

    def wait(self, references: list[Any], **_: Any) -> tuple[list[Any], list[Any]]:
        return references[:1], references[1:]

    def get(self, reference: Any) -> Any:
        function, given = reference
        return function(*given)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def cancel(self, *_: Any, **__: Any) -> None: ...

    def shutdown(self) -> None: ...


def test_E_a_node_with_other_weights_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's checkpoint, and on the node one of the same shapes."""
    from toposcope.scanning import elsewhere, on_ray
    from toposcope.scanning.options import ScanOptions

    ray = ThisProcess()
    whole = ray.remote
    ray.remote = lambda **_: (
        lambda function: type(  # type: ignore[method-assign]
            "Task", (), {"remote": staticmethod(lambda *given: Reference((function, given)))}
        )
    )
    assert whole is not None
    monkeypatch.setattr(on_ray, "connect", lambda address: ray)
    monkeypatch.setattr(elsewhere, "_OPENED", {})
    model = tiny.write_llama(tmp_path / "model")
    entries: list[Any] = []
    asked = ScanOptions(context=64)
    with toposcope.load(model) as opened:
        on_ray.run(opened, [0], asked, entries.append, target=str(model))
        assert [entry.layer for entry in entries] == [0]
        elsewhere._OPENED.clear()
        shutil.rmtree(model)
        tiny.write_llama(model, seed=7)
        with pytest.raises(BadValue):
            on_ray.run(opened, [1], asked, entries.append, target=str(model))
    assert len(entries) == 1


def test_E_the_page_does_not_mix_two_models(tmp_path: Path) -> None:
    """The file is replaced between the first look at a head and the scan: all that is shown is of one of them."""
    from toposcope.web.models import ModelRegistry

    model, other = tiny.write_llama(tmp_path / "model"), tiny.write_llama(tmp_path / "other", seed=7)

    def scanned(registry: ModelRegistry) -> dict[str, Any] | None:
        """The head as the page shows it after the scan; None where that is refused."""
        shown = registry.get(registry.list()[0]["id"])
        for _ in range(3):  # a scan whose file was replaced meanwhile begins anew
            state = shown.start_scan()["state"]
            shown.wait(60)
        found = None if state == "failed" else shown.head(0, 0)
        registry.close()
        return found

    registry = ModelRegistry([str(model)], with_installed=False)
    before = registry.get(registry.list()[0]["id"]).head(0, 0)
    put_in_place(model / "model.safetensors", other / "model.safetensors")
    seen, now = scanned(registry), scanned(ModelRegistry([str(model)], with_installed=False))
    assert now is not None
    assert now["kernel"] != before["kernel"]
    assert seen is None or seen == now


def write_lm(place: Path, text: Path, **changes: Any) -> None:
    from tests.unit.models.making import TEXT, write_llama_lm

    place.mkdir(exist_ok=True)
    write_llama_lm(place, num_hidden_layers=2, **changes)
    text.write_text(TEXT * 8)


def test_E_ablate_goes_on_only_under_the_same_configuration(tmp_path: Path) -> None:
    """The same weights and another rotary base: other losses."""
    pytest.importorskip("transformers", reason="a model is run: pip install 'toposcope[hf]'")
    model, text = tmp_path / "lm", tmp_path / "text.txt"
    write_lm(model, text)
    words = ("--text", text, "--tokens", "10", "--sequences", "1", "--only", "text", "--heads", "0.0")
    assert call("ablate", model, *words, "--out", tmp_path / "out") == 0
    config = json.loads((model / "config.json").read_text())
    place = config.get("rope_parameters", config)
    place["rope_theta"] = 7.0
    (model / "config.json").write_text(json.dumps(config))
    assert call("ablate", model, *words, "--out", tmp_path / "out") == 2


def test_E_a_tuning_is_of_the_model_that_is_there(tmp_path: Path) -> None:
    """A finished result is shown again for the same model and text, not for others of the same names."""
    pytest.importorskip("transformers", reason="a model is run: pip install 'toposcope[hf]'")
    from safetensors.torch import load_file
    from safetensors.torch import save_file as save_torch

    model, text = tmp_path / "lm", tmp_path / "text.txt"
    write_lm(model, text)
    words = ("--text", text, "--steps", "2", "--tokens", "16", "--held-out", "2", "--out", tmp_path / "out")
    assert call("refine", model, *words) == 0
    assert call("refine", model, *words) == 0
    tensors = load_file(model / "model.safetensors")
    next(value for value in tensors.values() if value.ndim == 2)[1, 1] += 1
    save_torch(tensors, model / "model.safetensors", metadata={"format": "pt"})
    assert call("refine", model, *words) == 2


def test_E_a_converted_copy_is_of_the_file_it_is_named_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GGUF file is replaced after it was hashed and before it is converted."""
    pytest.importorskip("transformers", reason="the copy is made by it: pip install 'toposcope[hf]'")
    from toposcope.models import gguf_cache, load

    monkeypatch.setenv(gguf_cache.SETTING, str(tmp_path / "cache"))
    file, converted = tmp_path / "model.gguf", []
    file.write_bytes(b"GGUF one")

    class Model:
        def __init__(self, content: bytes) -> None:
            self.content = content

    def read(place: Any, *_: Any) -> Model:
        file.write_bytes(b"GGUF two")
        content = (place.directory / place.gguf).read_bytes()
        converted.append(content)
        return Model(content)

    monkeypatch.setattr(load, "_tokenizer", lambda place: file.write_bytes(b"GGUF two"))
    monkeypatch.setattr(load, "_model", read)
    monkeypatch.setattr(gguf_cache, "keep", lambda directory, save: None)
    load._converted(load._Place(tmp_path, "model.gguf"))
    assert converted == [b"GGUF one"]


# ------------------------------------------------------------------- 5
READING = """
import os, sys
from pathlib import Path
from toposcope.core.errors import ToposcopeError
{opening}
file, keep = Path(sys.argv[1]), int(sys.argv[2])
source = opened(file)
os.truncate(file, keep)
try:
    for name in list(source.names()):
        source.read(name)
except ToposcopeError as error:
    print("told:", error)
    sys.exit(7)
"""
OPENING = {
    "safetensors": "from toposcope.checkpoints.safetensors_file import SafetensorsFile as opened",
    "gguf": "from toposcope.checkpoints.gguf_file import GgufFile as opened",
    "torch": "from toposcope.checkpoints.torch_file import TorchFile as opened",
}


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def write_large(place: Path, form: str) -> Path:
    tensors = {f"t{number}": np.full((256, 256), number, dtype=np.float32) for number in range(8)}
    path = place / {"safetensors": "m.safetensors", "gguf": "m.gguf", "torch": "m.pt"}[form]
    if form == "safetensors":
        save_file(tensors, path)
    elif form == "gguf":
        import gguf

        writer = gguf.GGUFWriter(path, "llama")
        for name, value in tensors.items():
            writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        torch = pytest.importorskip("torch", reason="the file is torch's: pip install 'toposcope[torch]'")
        torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, path)
    return path


@pytest.mark.parametrize("form", OPENING)
def test_5_a_file_that_is_cut_short_between_opening_and_reading(tmp_path: Path, form: str) -> None:
    path = write_large(tmp_path, form)
    ended = run(READING.format(opening=OPENING[form]), path, 700_000)
    assert ended.returncode == 7, ended
    assert "told: " in ended.stdout


SERVING = """
import os, sys
from pathlib import Path
from starlette.testclient import TestClient
from toposcope.web.app import Served, application
from toposcope.web.library import Library
from toposcope.web.models import ModelRegistry
model = Path(sys.argv[1])
registry = ModelRegistry([str(model)], with_installed=False)
app = application(Served(Library(Path(sys.argv[2]), []), registry))
with TestClient(app, base_url="http://127.0.0.1:8123", raise_server_exceptions=False) as client:
    name = registry.list()[0]["id"]
    print(client.get(f"/api/models/{name}/heads/0.0").status_code)
    os.truncate(model / "model.safetensors", 4096)
    print(client.get(f"/api/models/{name}/heads/2.0").status_code)
    print(client.get("/api/models").status_code)
"""


def test_5_the_server_outlives_a_served_file_that_is_cut_short(tmp_path: Path) -> None:
    model = tiny.write_llama(tmp_path / "model", **WIDE)
    ended = run(SERVING, model, tmp_path / "runs")
    codes = [int(line) for line in ended.stdout.split()]
    assert ended.returncode == 0, ended
    assert codes[0] == codes[2] == 200
    assert 400 <= codes[1] < 500


def test_5_a_file_written_to_in_place_is_not_read_on(tmp_path: Path) -> None:
    """Layers 0 of one model and 1 of another are no model."""
    model = tiny.write_llama(tmp_path / "model", **WIDE)
    other = tiny.write_llama(tmp_path / "other", seed=7, **WIDE)
    with toposcope.load(model) as opened:
        _ = opened.layers[0].weights
        with (model / "model.safetensors").open("r+b") as file:
            file.write((other / "model.safetensors").read_bytes())
        with pytest.raises(ToposcopeError):
            _ = opened.layers[1].weights


def test_5_shards_of_two_models_are_not_read_as_one(tmp_path: Path) -> None:
    """The second file is replaced after the first was opened."""
    config = {**tiny.CONFIG, **WIDE}
    place, seeds = tmp_path / "model", {0: tiny.tensors(config), 7: tiny.tensors(config, 7)}
    place.mkdir()
    files = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]

    def part(tensors: dict[str, Any], number: int) -> dict[str, Any]:
        return {name: value for name, value in tensors.items() if ("layers.2" in name) == bool(number)}

    for number, file in enumerate(files):
        save_file(part(seeds[0], number), place / file)
    weight_map = {name: files[int("layers.2" in name)] for name in seeds[0]}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (place / "config.json").write_text(json.dumps(config))
    with toposcope.load(place) as opened:
        _ = opened.layers[0].weights
        save_file(part(seeds[7], 1), tmp_path / "other.safetensors")
        put_in_place(place / files[1], tmp_path / "other.safetensors")
        with pytest.raises(ToposcopeError):
            _ = opened.layers[2].weights


RUNNING = """
import os, sys
import torch
from pathlib import Path
from toposcope.models.load import load_reference
place, name = Path(sys.argv[1]), sys.argv[2]
reference = load_reference(place, head=True)
os.truncate(place / name, 4096)
with torch.no_grad():
    reference.model(input_ids=torch.arange(15)[None])
sys.exit(7)
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_5_a_running_model_does_not_hang_on_its_file(tmp_path: Path, name: str) -> None:
    """Measured models are in memory of their own: their files may go."""
    torch = pytest.importorskip("torch", reason="a model is run: pip install 'toposcope[hf]'")
    pytest.importorskip("transformers", reason="a model is run: pip install 'toposcope[hf]'")
    place = tmp_path / "lm"
    write_lm(place, tmp_path / "text.txt", hidden_size=256, intermediate_size=512)
    if name.endswith(".bin"):
        from safetensors.torch import load_file

        torch.save(load_file(place / "model.safetensors"), place / name)
        (place / "model.safetensors").unlink()
    ended = run(RUNNING, place, name)
    assert ended.returncode == 7, ended
