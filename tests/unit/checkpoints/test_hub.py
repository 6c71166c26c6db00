"""Models by name, on a hub of our own: the same numbers as from a path, few bytes, each of them once."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import toposcope
from tests.hub import Hub, used
from tests.unit.checkpoints.making import gguf_bytes, gguf_tensor, written
from tests.unit.tiny import CONFIG, tensors, write_adapter
from toposcope.checkpoints.hub import file as hub_file
from toposcope.checkpoints.hub import meter as hub_meter
from toposcope.checkpoints.hub.http import CutError, UnreachableError, unreachable
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.cli import main
from toposcope.core import files
from toposcope.core.errors import BadConfig, BadFile, HubError, NotFound
from toposcope.core.result import Result

SIZES = {**CONFIG, "hidden_size": 64, "num_hidden_layers": 8}
COMMIT = "a" * 40


def write_model(place: Path, shards: int = 1, **changes: Any) -> Path:
    """A Llama whose other tensors are as large beside attention as those of real ones."""
    config = {**SIZES, **changes}
    random = np.random.default_rng(1)
    made = tensors(config)
    made["model.norm.weight"] = np.ones(config["hidden_size"], dtype=np.float32)
    for layer in range(config["num_hidden_layers"]):
        for name in ("down", "gate", "up"):
            shape = (4 * config["hidden_size"], config["hidden_size"])
            made[f"model.layers.{layer}.mlp.{name}_proj.weight"] = random.standard_normal(shape).astype(np.float32)
    place.mkdir(parents=True)
    (place / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(made, place / "model.safetensors")
        return place
    where = {name: f"model-{number % shards + 1:05d}-of-{shards:05d}.safetensors" for number, name in enumerate(made)}
    for shard in set(where.values()):
        save_file({name: made[name] for name in made if where[name] == shard}, place / shard)
    (place / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return place


def attention_bytes(place: Path) -> int:
    """What a scan of the whole model cannot do without: attention, its norms, headers."""
    size = 0
    for file in place.glob("*.safetensors"):
        size += 8 + int.from_bytes(file.read_bytes()[:8], "little")
        size += sum(each.nbytes for name, each in load_file(file).items() if "attn" in name or "layernorm" in name)
    return size


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with org/tiny on it; large files come from its CDN."""
    write_model(tmp_path / "served/org/tiny")
    server = Hub(tmp_path / "served", redirects=True, token="hf_right")
    with server, used(server, tmp_path, monkeypatch, token="hf_right"):
        yield server


def numbers(result: Result) -> dict[str, Any]:
    """All of a result but what it is called, where it was, and how long it took."""
    found = result.as_dict()
    subject = found.pop("provenance")["subjects"][0]
    return {**found, "sha256": subject["sha256"], "encodings": subject["encodings"]}


# ------------------------------------------------------------------ the same as from a path, and few bytes
def test_a_scan_by_name_equals_that_by_path_and_reads_little_else(hub: Hub) -> None:
    place = hub.root / "org/tiny"
    by_name = toposcope.scan("org/tiny")
    read = hub.bytes
    assert numbers(by_name) == numbers(toposcope.scan(place))
    assert read <= 1.1 * attention_bytes(place)
    assert read < 0.35 * (place / "model.safetensors").stat().st_size
    assert hub.twice("model.safetensors") == 0
    assert by_name.provenance.subjects[0].commit == COMMIT
    assert by_name.provenance.subjects[0].name == "org/tiny"


def test_a_second_run_reads_nothing(hub: Hub) -> None:
    first = toposcope.scan("org/tiny")
    hub.forget()
    second = toposcope.scan("org/tiny")
    assert hub.bytes == 0
    assert [request.split()[0] for request in hub.requests] == ["HEAD"]
    assert numbers(second) == numbers(first)
    hub.forget()
    assert numbers(toposcope.scan(str(first.provenance.subjects[0].path))) == numbers(first)  # the commit by name
    assert hub.requests == []


def test_a_connection_cut_ten_times_goes_on_where_it_ended(hub: Hub) -> None:
    hub.cuts, hub.cut_after = 10, 7001
    by_name = toposcope.scan("org/tiny")
    assert hub.cuts == 0
    assert hub.twice("model.safetensors") == 0
    assert hub.bytes <= 1.1 * attention_bytes(hub.root / "org/tiny")
    assert numbers(by_name) == numbers(toposcope.scan(hub.root / "org/tiny"))


def test_what_arrived_before_a_failure_is_not_fetched_again(hub: Hub) -> None:
    hub.cuts, hub.cut_after = 10**6, 0
    with pytest.raises(toposcope.ToposcopeError):
        toposcope.scan("org/tiny")
    hub.cuts = 0
    with toposcope.load("org/tiny") as model:
        _ = model.layers[0].weights
    hub.shorten = 0
    with pytest.raises(HubError) as gave_up:
        toposcope.scan("org/tiny")
    assert isinstance(gave_up.value.__cause__, CutError)
    hub.shorten = None
    toposcope.scan("org/tiny")
    assert hub.twice("model.safetensors") == 0


def test_the_token_goes_to_one_host(hub: Hub) -> None:
    toposcope.scan("org/tiny", layers="0")
    assert any(" cdn " in request for request in hub.requests)
    assert dict(hub.tokens) == {"hub": {"Bearer hf_right"}}


def test_shards_are_opened_as_they_are_needed(hub: Hub) -> None:
    place = write_model(hub.root / "org/parts", shards=4)
    hub.page = 2  # files on a page of the listing
    by_name = toposcope.scan("org/parts")
    assert numbers(by_name) == numbers(toposcope.scan(place))
    assert hub.bytes <= 1.1 * attention_bytes(place) + 4 * hub_file.HEAD
    assert all(hub.twice(f"model-0000{part}-of-00004.safetensors") == 0 for part in (1, 2, 3, 4))


def test_long_headers_are_fetched_once(hub: Hub) -> None:
    place = write_model(hub.root / "org/long", shards=2, num_hidden_layers=2)
    for shard in place.glob("*.safetensors"):
        save_file(load_file(shard), shard, metadata={"remark": "x" * 3 * hub_file.HEAD})
    assert numbers(toposcope.scan("org/long")) == numbers(toposcope.scan(place))
    assert all(hub.twice(shard.name) == 0 for shard in place.glob("*.safetensors"))


def test_numbered_files_without_an_index_are_one_model(hub: Hub) -> None:
    place = write_model(hub.root / "org/parts", shards=2)
    (place / "model.safetensors.index.json").unlink()
    assert numbers(toposcope.scan("org/parts", layers="0-1")) == numbers(toposcope.scan(place, layers="0-1"))


def test_neighbours_come_in_one_answer(hub: Hub) -> None:
    with toposcope.load("org/tiny") as model:
        hub.forget()
        _ = model.layers[3].weights
    # the norm lies on one side of the feed-forward part, Q, K, V and O together on the other
    assert len(hub.ranges["model.safetensors"]) == 2


def test_few_rows_of_a_table_are_fetched_as_such(hub: Hub) -> None:
    place = write_model(hub.root / "org/words", vocab_size=20_000, num_hidden_layers=1)
    opened = open_checkpoint("org/words")
    hub.forget()
    rows = np.array([19_000, 5, 6, 9_000], dtype=np.intp)
    found = opened.source.read_rows("model.embed_tokens.weight", rows)
    np.testing.assert_array_equal(found, load_file(place / "model.safetensors")["model.embed_tokens.weight"][rows])
    assert hub.bytes < 4 * 64 * 4 + 100


def test_verbs_work_on_names(hub: Hub) -> None:
    other = write_model(hub.root / "org/other", rope_theta=5e5)
    place = hub.root / "org/tiny"
    assert numbers(toposcope.check("org/tiny")) == numbers(toposcope.check(place))
    assert numbers(toposcope.inspect("org/tiny")) == numbers(toposcope.inspect(place))
    by_name, by_path = toposcope.compare("org/tiny", "org/other"), toposcope.compare(place, other)
    assert by_name.heads == by_path.heads
    assert {each.commit for each in by_name.provenance.subjects} == {COMMIT}
    flows = [toposcope.flow(each, head="1.0", cloud="isotropic", tokens=4) for each in ("org/tiny", place)]
    assert numbers(flows[0])["sha256"] == numbers(flows[1])["sha256"]


@pytest.mark.parametrize("verb", ["check", "inspect"])
def test_without_weights_kilobytes_are_read(hub: Hub, verb: str) -> None:
    place = write_model(hub.root / "org/parts", shards=4)
    found = getattr(toposcope, verb)("org/parts", weights=False)
    assert hub.sent["config.json"] == (place / "config.json").stat().st_size
    assert hub.bytes < 4 * hub_file.HEAD + 20_000
    assert found.provenance.subjects[0].commit == COMMIT
    if verb == "check":
        assert not any(name.endswith(".safetensors") for name in hub.sent)  # the index says enough


# ------------------------------------------------------------------ which commit
def test_a_revision_is_resolved_to_its_commit(hub: Hub) -> None:
    hub.commits |= {"v1": "b" * 40, "refs/pr/1": "c" * 40}
    for revision, commit in hub.commits.items():
        assert open_checkpoint(f"hf://org/tiny@{revision}").commit == commit
    with pytest.raises(NotFound, match="v9"):
        open_checkpoint("org/tiny@v9")
    with pytest.raises(NotFound):
        open_checkpoint(f"org/tiny@{'d' * 40}")


def test_the_same_content_in_another_commit_is_not_fetched_again(hub: Hub) -> None:
    toposcope.scan("org/tiny", layers="0-1")
    hub.forget()
    hub.commits["main"] = "b" * 40
    assert toposcope.scan("org/tiny", layers="0-1").provenance.subjects[0].commit == "b" * 40
    assert set(+hub.sent) == {"api"}


def test_the_command_says_the_commit_and_writes_it(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["scan", "org/tiny", "--layers", "0", "--json", str(tmp_path / "scan.json")])
    assert not ended.value.code
    assert COMMIT in capsys.readouterr().err
    assert toposcope.read(tmp_path / "scan.json").provenance.subjects[0].commit == COMMIT


# ------------------------------------------------------------------ caches
def saved(hub: Hub, place: Path, *names: str, repo: str = "org/tiny") -> Path:
    """Files of a model as huggingface_hub keeps them."""
    model = place / "huggingface" / f"models--{repo.replace('/', '--')}"
    snapshot = model / "snapshots" / COMMIT
    for folder in (model / "refs", model / "blobs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (model / "refs/main").write_text(COMMIT)
    for name in names:
        shutil.copy(hub.root / repo / name, model / "blobs" / f"{repo[:3]}{name}")
        (snapshot / name).symlink_to(f"../../blobs/{repo[:3]}{name}")
    return snapshot


def test_a_whole_snapshot_in_the_huggingface_cache_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    saved(hub, tmp_path, "config.json", "model.safetensors")
    found = toposcope.scan("org/tiny", layers="0-1")
    assert hub.requests == []
    assert found.provenance.subjects[0].commit == COMMIT
    assert numbers(found) == numbers(toposcope.scan(hub.root / "org/tiny", layers="0-1"))


def test_of_a_partial_snapshot_only_the_rest_is_fetched(hub: Hub, tmp_path: Path) -> None:
    place = write_model(hub.root / "org/parts", shards=2)
    first = "model-00001-of-00002.safetensors"
    saved(hub, tmp_path, "config.json", "model.safetensors.index.json", first, repo="org/parts")
    assert numbers(toposcope.scan("org/parts")) == numbers(toposcope.scan(place))
    assert set(+hub.sent) == {"api", "model-00002-of-00002.safetensors"}


def test_a_half_written_file_in_the_huggingface_cache_is_not_used(hub: Hub, tmp_path: Path) -> None:
    snapshot = saved(hub, tmp_path, "config.json", "model.safetensors")
    (snapshot / "model.safetensors").resolve().write_bytes(b"half")
    with pytest.raises(BadFile):  # nobody says that there was more
        open_checkpoint("org/tiny")
    (snapshot / "model.safetensors").resolve().unlink()  # its link leads nowhere
    assert numbers(toposcope.scan("org/tiny")) == numbers(toposcope.scan(hub.root / "org/tiny"))


def test_offline_what_was_read_before_is_read_again(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    first = toposcope.scan("org/tiny", layers="0-1")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.forget()
    assert numbers(toposcope.scan("org/tiny", layers="0-1")) == numbers(first)
    assert hub.requests == []
    with pytest.raises(toposcope.ToposcopeError, match="HF_HUB_OFFLINE"):
        toposcope.scan("org/tiny", layers="5")


def test_without_a_network_what_was_read_before_is_read_again(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = toposcope.scan("org/tiny", layers="0-1")
    hub.close()
    with caplog.at_level(logging.WARNING, "toposcope"):
        assert numbers(toposcope.scan("org/tiny", layers="0-1")) == numbers(first)
    assert {(each.levelname, "org/tiny" in each.getMessage()) for each in caplog.records} == {("WARNING", True)}
    with pytest.raises(toposcope.ToposcopeError, match="network"):
        open_checkpoint("org/other")


def chunks(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "toposcope").rglob("blobs/*/*") if path.is_file())


@pytest.mark.parametrize(
    "damage", [lambda old: old[:-1], lambda old: b"", lambda old: old[:-1] + bytes([old[-1] ^ 1])]
)
def test_damaged_ranges_are_noticed_and_fetched_again(
    hub: Hub, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = toposcope.scan("org/tiny")
    for path in chunks(tmp_path)[::2]:
        path.write_bytes(damage(path.read_bytes()))
    (chunks(tmp_path)[0].parent / "0-fff-zzz").write_bytes(b"of another program")
    assert numbers(toposcope.scan("org/tiny")) == numbers(first)


@pytest.mark.parametrize("what", ["trees", "refs"])
def test_half_written_lists_are_asked_for_again(hub: Hub, tmp_path: Path, what: str) -> None:
    first = toposcope.scan("org/tiny", layers="0")
    (listed,) = (tmp_path / "toposcope").rglob(f"{what}/*")
    listed.write_bytes(listed.read_bytes()[:-9])
    assert numbers(toposcope.scan("org/tiny", layers="0")) == numbers(first)


def test_several_may_read_into_one_cache(hub: Hub) -> None:
    def read(_: int) -> list[Any]:
        with toposcope.load("org/tiny") as model:
            return [model.layers[number].weights.q_HRD for number in range(8)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(read, range(4)))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def by_itself(*words: str) -> subprocess.Popen[bytes]:
    """A command in a process of its own, with the environment that the fixture has set."""
    code = "import sys; from toposcope.cli import main; main(sys.argv[1:])"
    return subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_processes_share_a_cache_and_one_may_be_killed(hub: Hub, tmp_path: Path) -> None:
    hub.slow = 0.05
    killed, *others = (by_itself("inspect", "org/tiny", "--json", str(tmp_path / f"{each}.json")) for each in "abc")
    while len(hub.ranges["model.safetensors"]) < 8 and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert [each.wait() for each in others] == [0, 0]
    expected = numbers(toposcope.inspect(hub.root / "org/tiny"))
    assert [numbers(toposcope.read(tmp_path / f"{each}.json")) for each in "bc"] == [expected] * 2
    hub.forget()
    assert numbers(toposcope.inspect("org/tiny")) == expected
    assert hub.bytes == 0


def test_of_a_killed_command_hardly_anything_is_fetched_again(hub: Hub) -> None:
    hub.slow = 0.05
    killed = by_itself("inspect", "org/tiny")
    while len(hub.ranges["model.safetensors"]) < 10 and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    toposcope.inspect("org/tiny")
    assert hub.twice("model.safetensors") <= attention_bytes(hub.root / "org/tiny") / 8  # one layer's at most


@pytest.mark.parametrize("written_before", range(6))
def test_a_full_disk_is_a_sentence_and_loses_nothing(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, written_before: int
) -> None:
    real, left = files._write, written_before

    def full(*given: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        real(*given)

    with monkeypatch.context() as disk:
        disk.setattr(files, "_write", full)
        with pytest.raises(toposcope.ToposcopeError, match="TOPOSCOPE_CACHE"):
            toposcope.scan("org/tiny", layers="0-1")
    found = toposcope.scan("org/tiny", layers="0-1")
    assert numbers(found) == numbers(toposcope.scan(hub.root / "org/tiny", layers="0-1"))


def test_the_cache_can_be_switched_off(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPOSCOPE_CACHE", "off")
    found = toposcope.scan("org/tiny", layers="0")
    assert numbers(found) == numbers(toposcope.scan(hub.root / "org/tiny", layers="0"))
    assert not (tmp_path / "toposcope").exists()
    assert hub.twice("model.safetensors") == 0


def test_both_caches_are_listed(hub: Hub, tmp_path: Path) -> None:
    toposcope.scan("org/tiny", layers="0")
    saved(hub, tmp_path, "config.json", repo="org/tiny")
    listed = {(each.name, each.origin): each for each in toposcope.ls("models").names if each.name == "org/tiny"}
    assert {origin for _, origin in listed} == {"the Hugging Face cache", "Toposcope's cache"}
    assert all(each.details == (COMMIT,) and each.ready for each in listed.values())


# ------------------------------------------------------------------ foretold, and told while it arrives
def test_much_is_foretold(hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hub_meter, "WORTH_TELLING", 100_000)
    monkeypatch.setattr(hub_meter, "USUAL_SPEED", 1000)
    with caplog.at_level(logging.INFO, "toposcope"):
        toposcope.scan("org/tiny", layers="0")
        assert "sample:8" not in caplog.text
        toposcope.scan("org/tiny")
    (said,) = [record.message for record in caplog.records if "sample:8" in record.message]
    told = float(said.partition("fetching ")[2].split()[0]) * 1000
    assert 0.95 * told < 7 / 8 * attention_bytes(hub.root / "org/tiny") < 1.05 * told
    assert "6 minutes" in said


def test_progress_is_told_in_bytes(hub: Hub) -> None:
    heard: list[tuple[int, int]] = []

    def progress(what: str, done: int, total: int) -> None:
        if what.startswith("fetching"):
            heard.append((done, total))

    toposcope.inspect("org/tiny", progress=progress)
    assert heard[0][0] == 0
    assert heard[-1][0] == heard[-1][1] == heard[0][1]
    assert abs(heard[-1][1] - attention_bytes(hub.root / "org/tiny")) < hub_file.HEAD


# ------------------------------------------------------------------ GGUF, torch, code
def gguf(value: float) -> bytes:
    return gguf_bytes((), [gguf_tensor("w", [2, 2])], np.full(4, value, dtype="<f4").tobytes())


def test_a_gguf_file_is_named_by_its_quantisation(hub: Hub) -> None:
    (hub.root / "org/quants/deep").mkdir(parents=True)
    for number, name in enumerate(("M-Q4_K_M.gguf", "M-Q8_0.gguf", "deep/M.F16.gguf", "mmproj-M-F16.gguf")):
        written(hub.root / "org/quants" / name, gguf(number))
    for name, number in (("Q4_K_M", 0), ("q8_0", 1), ("F16", 2), ("M-Q8_0.gguf", 1)):
        assert open_checkpoint(f"org/quants:{name}").source.read("w")[0, 0] == number
    for name in ("org/quants", "org/quants:Q2_K"):
        with pytest.raises(NotFound, match="Q4_K_M"):
            open_checkpoint(name)


def test_a_torch_file_is_fetched_whole_or_left_to_the_user(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    place = hub.root / "org/old"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 1}))
    made = tensors({**CONFIG, "num_hidden_layers": 1})
    torch.save({name: torch.from_numpy(value) for name, value in made.items()}, place / "pytorch_model.bin")
    with monkeypatch.context() as small:
        small.setattr("toposcope.checkpoints.hub.opening.WORTH_TELLING", 1000)
        with pytest.raises(toposcope.ToposcopeError, match="org/old"):
            open_checkpoint("org/old")
    assert "pytorch_model.bin" not in hub.sent
    found = toposcope.scan("org/old")
    assert numbers(found) == numbers(toposcope.scan(place))
    assert found.provenance.subjects[0].commit == COMMIT
    assert set(hub.tokens) == {"hub"}


def test_code_that_a_configuration_names_is_not_run(hub: Hub) -> None:
    place = write_model(hub.root / "org/code", auto_map={"AutoModel": "evil.Model"})
    (place / "evil.py").write_text("raise SystemExit('run')")
    found = toposcope.scan("org/code", layers="0")
    assert any("auto_map" in remark for remark in found.provenance.subjects[0].remarks)
    assert "evil.py" not in hub.sent


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("config.json", b"[1]", BadConfig),
        ("config.json", b"\xff\xfe", BadConfig),
        ("model.safetensors", b"\xff" * 8 + b"{}", BadFile),
        ("model.safetensors", (2).to_bytes(8, "little") + b"{}" + b"rest", BadFile),
        ("model.safetensors", b"", BadFile),
    ],
)
def test_hostile_files_are_refused(hub: Hub, name: str, content: bytes, error: type[Exception]) -> None:
    (hub.root / "org/tiny" / name).write_bytes(content)
    with pytest.raises(error):
        open_checkpoint("org/tiny")


@pytest.mark.parametrize("shard", ["../../etc/passwd", "/etc/passwd", "a\\b", "", 3])
def test_an_index_that_leaves_its_directory_is_refused(hub: Hub, shard: Any) -> None:
    place = write_model(hub.root / "org/parts", shards=2)
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": shard}}))
    with pytest.raises(BadFile):
        open_checkpoint("org/parts")


def test_an_adapter_on_the_hub_says_what_it_is(hub: Hub) -> None:
    place = hub.root / "org/lora"
    place.mkdir()
    (place / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    save_file({"a": np.ones(2, dtype=np.float32)}, place / "adapter_model.safetensors")
    with pytest.raises(NotFound, match="--adapter"):
        open_checkpoint("org/lora")


def write_lora(place: Path) -> Path:
    """Of the queries in layer 3, whose second head it changes alone, and of a map outside attention."""
    random = np.random.default_rng(2)
    made = {"self_attn.q_proj": (64, 64), "mlp.up_proj": (256, 64)}
    factors: dict[str, np.ndarray] = {}
    for name, (out, into) in made.items():
        at = f"base_model.model.model.layers.3.{name}.lora"
        factors[f"{at}_A.weight"] = random.standard_normal((2, into)).astype(np.float32)
        factors[f"{at}_B.weight"] = np.zeros((out, 2), dtype=np.float32)
        factors[f"{at}_B.weight"][16:32] = 1
    return write_adapter(place, factors, base_model_name_or_path="org/tiny")


def test_an_adapter_by_name_equals_that_by_path(hub: Hub) -> None:
    place = write_lora(hub.root / "org/lora")
    local = toposcope.scan(hub.root / "org/tiny", layers="3", adapter=place)
    hub.forget()
    named = toposcope.scan("org/tiny", layers="3", adapter="org/lora")
    assert numbers(named) == numbers(local)
    (about,) = named.provenance.subjects
    assert (about.name, about.adapter) == ("org/tiny + org/lora", f"org/lora@{COMMIT}")
    assert not any("trained on" in remark for remark in about.remarks)
    hub.forget()
    again = toposcope.compare("org/tiny", "org/tiny", adapter="org/lora", layers="3")
    assert hub.bytes == 0
    first, *rest = again.ranked()
    assert (first.layer, first.head) == (3, 1)
    assert all(head.size == 0 for head in rest)


def test_a_model_on_the_hub_is_no_adapter(hub: Hub) -> None:
    with pytest.raises(NotFound, match="adapter_"):
        toposcope.load("org/tiny", adapter="org/tiny")


def test_an_adapter_on_the_hub_names_its_base(hub: Hub) -> None:
    write_lora(hub.root / "org/lora")
    with pytest.raises(NotFound) as refused:
        toposcope.load("org/lora")
    assert all(name in str(refused.value) for name in ("org/tiny", "--adapter", "org/lora"))


def test_a_misspelt_path_that_looks_like_a_name_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "'tiny'" in str(unreachable("models/tinny", UnreachableError("nobody answers")))
    assert "mean" not in str(unreachable("org/tinny", UnreachableError("nobody answers")))
