"""The readers on models that others trained: the same numbers as the packages that define the formats."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from toposcope.checkpoints import installed
from toposcope.checkpoints.locate import Opened, open_checkpoint
from toposcope.core.errors import BadFile

MEGABYTE = 1 << 20


def path_of(name: str) -> Path:
    item = next(item for item in installed.MODELS if item.name == name)
    path = item.path()
    if path is None:
        pytest.skip(f"not installed: {item.install}")
    return path


def opened(name: str) -> Opened:
    path_of(name)
    return open_checkpoint(name)


@pytest.mark.slow  # the gguf package's own reader takes long over a vocabulary
def test_every_tensor_and_setting_of_smollm2_is_what_the_gguf_package_reads() -> None:
    import gguf
    from gguf.quants import dequantize

    ours = opened("smollm2").source
    start = time.process_time()
    theirs = gguf.GGUFReader(path_of("smollm2"))
    print(f"the gguf package's own reader opens it in {time.process_time() - start:.2f} s")
    assert list(ours.names()) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.info(tensor.name)
        assert info.dtype == tensor.tensor_type.name
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        assert info.nbytes == tensor.n_bytes
        expected = dequantize(tensor.data, tensor.tensor_type).reshape(info.shape)
        np.testing.assert_array_equal(ours.read(tensor.name), expected)
    fields = {key: field for key, field in theirs.fields.items() if not key.startswith("GGUF.")}
    assert set(ours.metadata) == set(fields)
    for key, field in fields.items():
        value = ours.metadata[key]
        assert (list(value) if hasattr(value, "decode") else value) == field.contents()
    assert len(ours.metadata["tokenizer.ggml.tokens"]) == 49_152
    assert ours.metadata["llama.rope.freq_base"] == 100_000


def test_smollm2_opens_quickly_and_is_read_in_little_memory() -> None:
    opened("smollm2").source.close()  # the import of gguf is not what is measured
    start = time.process_time()
    source = open_checkpoint("smollm2").source
    taken = time.process_time() - start
    tracemalloc.start()
    largest = 0
    for name in source.names():
        largest = max(largest, source.read(name).nbytes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"opened in {taken:.3f} s; largest tensor {largest / MEGABYTE:.0f} MB, peak {peak / MEGABYTE:.0f} MB")
    assert taken < 2
    assert peak < largest + 20 * MEGABYTE


def test_every_tensor_of_minilm_is_what_the_safetensors_package_reads() -> None:
    from safetensors.numpy import load_file

    found = opened("minilm")
    assert found.config is not None
    assert found.config["model_type"] == "bert"
    theirs = load_file(path_of("minilm") / "model.safetensors")
    assert set(found.source.names()) == set(theirs)
    for name, array in theirs.items():
        if np.issubdtype(array.dtype, np.integer):  # the numbers of positions: whole numbers are no weights
            with pytest.raises(BadFile, match=name):
                found.source.read(name)
        else:
            np.testing.assert_array_equal(found.source.read(name), array.astype(np.float64))


@pytest.mark.parametrize(
    "name", ["rxnmapper", "rxnfp/bert_pretrained", "rxnfp/bert_ft", "rxnfp/bert_ft_10k_25s", "ruaccent"]
)
def test_every_tensor_of_the_torch_files_is_what_torch_reads(name: str) -> None:
    torch = pytest.importorskip("torch")
    found = opened(name)
    path = path_of(name)
    path = path if path.is_file() else path / "pytorch_model.bin"
    theirs = torch.load(path, map_location="cpu", weights_only=True)
    assert found.source.format == "torch"
    assert found.weights == path
    assert found.source.path == path_of(name)
    assert set(found.source.names()) == set(theirs)
    for key, tensor in theirs.items():
        np.testing.assert_array_equal(found.source.read(key), tensor.double().numpy())
    assert found.config


def test_what_the_stress_model_needs_to_be_understood_is_true() -> None:
    """The facts kept for it are those of its package's code and of its own position table."""
    found = opened("ruaccent")
    facts = found.config
    assert facts is not None
    code = (path_of("ruaccent").parents[1] / "accentor.py").read_text(encoding="utf-8")
    for line in (
        f"nhead={facts['num_heads']},",
        f"d_model={facts['width']},",
        f"num_encoder_layers={facts['num_encoder_layers']},",
        f"num_decoder_layers={facts['num_decoder_layers']},",
        f"dim_feedforward={facts['feed_forward']},",
        f"max_len={facts['max_positions']} ",
        f"norm_first={facts['norm_first']} ",
        "self.char_embed(x) * math.sqrt(self.d_model)",
    ):
        assert line in code
    table = found.source.read(facts["position_table"])[0].astype(np.float64)
    assert table.shape == (facts["max_positions"], facts["width"])
    frequency = facts["position_base"] ** (-np.arange(0, facts["width"], 2) / facts["width"])
    angle = np.arange(len(table))[:, None] * frequency
    np.testing.assert_allclose(table[:, 0::2], np.sin(angle), atol=1e-4)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angle), atol=1e-4)
    assert facts["embedding_scale"] == facts["width"] ** 0.5


@pytest.mark.parametrize("item", installed.MODELS, ids=lambda item: item.name)
def test_models_are_of_the_size_the_list_says(item: installed.InstalledItem) -> None:
    assert opened(item.name).weights.stat().st_size == item.size


@pytest.mark.parametrize("item", installed.TEXTS, ids=lambda item: item.name)
def test_texts_are_text(item: installed.InstalledItem) -> None:
    if item.path() is None:
        pytest.skip(f"not installed: {item.install}")
    path = installed.find_text(item.name)
    assert path.stat().st_size == item.size
    assert len(path.read_text(encoding="utf-8")) > 100_000


@pytest.mark.parametrize("item", installed.MODELS, ids=lambda item: item.name)
def test_the_digest_is_the_same_each_time(item: installed.InstalledItem) -> None:
    digests = []
    for turn in (1, -1):
        source = opened(item.name).source
        for name in sorted(source.names())[:3][::turn]:
            source.read(name)
        digests.append(source.digest())
    assert digests[0] == digests[1]
    assert len(digests[0]) == 64
