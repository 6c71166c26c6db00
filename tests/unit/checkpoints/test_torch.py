"""Reading files of torch.save: tensors and settings come out, code stays in."""

from __future__ import annotations

import os
import pickle
import sys
import tracemalloc
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest

from tests.unit.checkpoints.making import written
from toposcope.checkpoints.safetensors_file import SafetensorsFile
from toposcope.checkpoints.torch_file import TorchFile
from toposcope.core.errors import BadFile, BadWeights, MissingExtra, RefusedPickle

torch = pytest.importorskip("torch")

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def saved(path: Path, value: object, zipped: bool = True) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    return path


def values(seed: int = 0) -> torch.Tensor:
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(seed))


SMALL = ["bfloat16", "float16", "float32"]
WIDE = ["float64", "int64", "uint8", "bool"]
EIGHT_BITS = ["float8_e4m3fn", "float8_e5m2"]  # torch cannot save these in its old format


@pytest.mark.parametrize(
    ("kind", "zipped"),
    [(kind, True) for kind in SMALL + EIGHT_BITS + WIDE] + [(kind, False) for kind in SMALL + WIDE],
)
def test_tensors_come_back_exactly(tmp_path: Path, kind: str, zipped: bool) -> None:
    read_as = np.float64 if kind in WIDE else np.float32
    theirs = (values() * 3).abs().to(getattr(torch, kind))
    source = TorchFile(saved(tmp_path / "m.pt", {"w": theirs, "turned": theirs.T, "scalar": theirs[0, 0]}, zipped))
    assert source.format == "torch"
    assert source.info("w").dtype == kind
    assert source.info("turned").shape == (7, 5)
    for name, tensor in {"w": theirs, "turned": theirs.T, "scalar": theirs[0, 0]}.items():
        ours = source.read(name)
        assert ours.dtype == read_as
        np.testing.assert_array_equal(ours, tensor.double().numpy())


def test_parameters_and_shared_storage(tmp_path: Path) -> None:
    weight = torch.nn.Parameter(values())
    path = saved(tmp_path / "m.pt", OrderedDict(a=weight, b=weight, part=weight[1:3, 2:5]))
    source = TorchFile(path)
    np.testing.assert_array_equal(source.read("a"), source.read("b"))
    np.testing.assert_array_equal(source.read("part"), weight.detach().numpy()[1:3, 2:5])


@FORMATS
@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "module"])
def test_finds_the_state_dict_and_keeps_the_settings(tmp_path: Path, key: str, zipped: bool) -> None:
    settings = {"n_layer": 6, "n_head": 6, "bias": False, "betas": (0.9, 0.95)}
    checkpoint = {
        key: {"_orig_mod.transformer.wte.weight": values(), "_orig_mod.lm_head.weight": values(1)},
        "optimizer": {"state": {0: {"exp_avg": values(2)}}},
        "model_args": settings,
        "iter_num": 2000,
        "best_val_loss": torch.tensor(1.5),
        "config": {"dataset": "shakespeare"},
    }
    source = TorchFile(saved(tmp_path / "ckpt.pt", checkpoint, zipped))
    assert set(source.names()) == {"transformer.wte.weight", "lm_head.weight"}
    assert source.metadata == {"model_args": settings, "iter_num": 2000, "config": {"dataset": "shakespeare"}}
    np.testing.assert_array_equal(source.read("lm_head.weight"), values(1).numpy())


def test_unwraps_containers_in_containers_and_wrappers_in_wrappers(tmp_path: Path) -> None:
    inner = {"module._orig_mod.a": values(), "module._orig_mod.b": values()}
    source = TorchFile(saved(tmp_path / "m.pt", {"model": {"state_dict": inner, "depth": 2}, "epoch": 1}))
    assert set(source.names()) == {"a", "b"}
    assert source.metadata == {"epoch": 1, "depth": 2}


def test_a_prefix_that_not_all_share_belongs_to_the_names(tmp_path: Path) -> None:
    source = TorchFile(saved(tmp_path / "m.pt", {"module.a": values(), "b": values()}))
    assert set(source.names()) == {"module.a", "b"}


def test_names_that_would_fall_together_are_left_alone(tmp_path: Path) -> None:
    source = TorchFile(saved(tmp_path / "m.pt", {"_orig_mod.a": values(), "a": values()}))
    assert set(source.names()) == {"_orig_mod.a", "a"}


class LeavesAMark:
    """When unpickled, it runs a command: what no reader of weights may do."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


@pytest.mark.parametrize("how", ["zip", "legacy", "pickle 2", "pickle 4", "pickle 5"])
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path: Path, how: str) -> None:
    mark = tmp_path / "mark"
    content = {"weight": LeavesAMark(mark)}
    path = tmp_path / "m.pt"
    if how.startswith("pickle"):
        path.write_bytes(pickle.dumps(content, protocol=int(how[-1])))
    else:
        saved(path, content, how == "zip")
    with pytest.raises(RefusedPickle) as refused:
        TorchFile(path)
    assert not mark.exists()
    assert str(path) in str(refused.value)
    if how in ("zip", "legacy", "pickle 2"):
        assert f"{os.system.__module__}.system" in str(refused.value)
    # The mark would have been left: the test can fail.
    pickle.loads(pickle.dumps(content))
    assert mark.exists()


@FORMATS
def test_a_whole_module_is_refused_by_its_class(tmp_path: Path, zipped: bool) -> None:
    path = saved(tmp_path / "m.pt", torch.nn.Linear(2, 2), zipped)
    with pytest.raises(RefusedPickle, match=r"linear\.Linear"):
        TorchFile(path)


def test_torchscript_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02}q\0.")
        archive.writestr("m/constants.pkl", b"\x80\x02)q\0.")
    with pytest.raises(RefusedPickle, match="TorchScript"):
        TorchFile(path)


@pytest.mark.parametrize("value", [[1, 2], torch.ones(3), {"a": 1}, {}, {"model": {"x": "y"}}])
def test_what_is_no_state_dict_is_refused(tmp_path: Path, value: object) -> None:
    with pytest.raises(BadFile, match="expected"):
        TorchFile(saved(tmp_path / "m.pt", value))


def test_nan_is_found(tmp_path: Path) -> None:
    tensor = values()
    tensor[3, 2] = float("nan")
    source = TorchFile(saved(tmp_path / "m.pt", {"w": tensor, "turned": tensor.T}))
    for name, place in (("w", "(3, 2)"), ("turned", "(2, 3)")):
        with pytest.raises(BadWeights, match="nan") as refused:
            source.read(name)
        assert f"'{name}'" in str(refused.value)
        assert place in str(refused.value)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/data.pkl", b"\x80\x02}q\0.")
        archive.writestr("bomb/data/0", bytes(50 << 20))
    tracemalloc.start()
    with pytest.raises(BadFile, match="compressed"):
        TorchFile(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 << 20


def test_a_zip_that_claims_more_than_it_weighs_is_refused(tmp_path: Path) -> None:
    content = bytearray(saved(tmp_path / "m.pt", {"w": values()}).read_bytes())
    at = content.find(b"PK\x01\x02")  # the directory's first entry; its size stands 24 bytes on
    content[at + 20 : at + 28] = (1 << 30).to_bytes(4, "little") * 2
    with pytest.raises(BadFile, match="announces"):
        TorchFile(written(tmp_path / "m.pt", bytes(content)))


def test_a_tensor_that_repeats_one_number_without_end_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.pt", {"w": torch.ones(1).expand(1 << 40)})
    with pytest.raises(BadFile, match="claims"):
        TorchFile(path)


def test_a_zip_of_something_else_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(BadFile, match="zip archive"):
        TorchFile(tmp_path / "m.pt")


def test_sparse_complex_and_dataless_tensors_are_refused_by_name(tmp_path: Path) -> None:
    odd = {
        "sparse": torch.eye(3).to_sparse(),
        "complex": torch.ones(2, dtype=torch.complex64),
        "meta": torch.empty(3, device="meta"),
    }
    for name, tensor in odd.items():
        source = TorchFile(saved(tmp_path / "m.pt", {name: tensor, "fine": values()}))
        assert source.read("fine").shape == (5, 7)
        with pytest.raises(BadFile, match=f"'{name}'"):
            source.read(name)


@FORMATS
def test_damaged_files_end_in_a_sentence(tmp_path: Path, zipped: bool) -> None:
    sound = saved(tmp_path / "sound.pt", {"w": values(), "n": {"a": [1, 2.5, "x", None]}}, zipped).read_bytes()
    rng = np.random.default_rng(11)
    path = tmp_path / "m.pt"
    messages = []
    for _ in range(300):
        content = bytearray(sound)
        for _ in range(int(rng.integers(1, 6))):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
        if rng.random() < 0.2:
            content = content[: int(rng.integers(1, len(content)))]
        path.write_bytes(content)
        try:
            source = TorchFile(path)
            for name in source.names():
                source.read(name)
        except (BadFile, RefusedPickle, BadWeights) as error:
            messages.append(str(error))
    assert len(messages) > 30
    assert not any("\n" in message for message in messages)


def test_without_torch_the_user_learns_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path / "m.pt", {"w": values()})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"toposcope\[torch\]"):
        TorchFile(path)


def test_the_digest_is_that_of_the_same_tensors_in_safetensors(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = {"a": values(), "b": values(1).to(torch.bfloat16)}
    save_file(tensors, tmp_path / "m.safetensors")
    ours = [TorchFile(saved(tmp_path / "m.pt", tensors)), SafetensorsFile(tmp_path / "m.safetensors")]
    for source in ours:
        for name in source.names():
            source.read(name)
    assert ours[0].digest() == ours[1].digest()


def test_reading_a_mapped_file_holds_the_result_and_little_more(tmp_path: Path) -> None:
    theirs = torch.ones(4096, 2048, dtype=torch.bfloat16)
    source = TorchFile(saved(tmp_path / "m.pt", {"w": theirs, "turned": theirs.T}))
    for name in ("w", "turned"):
        tracemalloc.start()
        ours = source.read(name)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < ours.nbytes + (20 << 20)
