"""Servers that refuse, lie or break: each gives one sentence, and no wrong number."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import toposcope
from tests.hub import Hub, used
from tests.unit.checkpoints.test_hub import COMMIT, numbers, saved, write_model
from toposcope.checkpoints.hub import http as hub_http
from toposcope.checkpoints.hub.http import _NEXT, CutError, UnreachableError
from toposcope.checkpoints.hub.name import HubName, is_sound_file, parse_hub_name
from toposcope.checkpoints.hub.repo import Snapshot
from toposcope.checkpoints.locate import open_checkpoint
from toposcope.core.errors import BadFile, BadValue, HubError, NotFound, ToposcopeError


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    write_model(tmp_path / "served/org/tiny", num_hidden_layers=2)
    with Hub(tmp_path / "served") as server, used(server, tmp_path, monkeypatch):
        yield server


def test_an_unknown_name_gets_near_ones_and_says_both(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(hub, tmp_path, "config.json")
    (tmp_path / "models/my-llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound, match="org/tiny"):
        open_checkpoint("org/tiyn")
    with pytest.raises(NotFound, match="my-llama"):
        open_checkpoint("models/my-lama")


@pytest.mark.parametrize(
    "target", ["./org/name", "/org/name", "a/b/c", "org/name.gguf", "org/model.safetensors", "org"]
)
def test_what_can_only_be_a_path_is_not_asked_for(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound):
        open_checkpoint(target)
    assert hub.requests == []


def test_a_path_that_exists_comes_first(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path / "served")
    assert open_checkpoint("org/tiny").commit is None
    assert hub.requests == []


@pytest.mark.parametrize("token", [None, "hf_right"])
def test_a_gated_model_says_how_to_get_it(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    hub.gated, hub.token, hub.granted = frozenset({"org/tiny"}), "hf_right", False
    with used(hub, tmp_path, monkeypatch, token=token):
        with pytest.raises(HubError, match=f"{hub.endpoint}/org/tiny.*{'ask' if token else 'hf auth login'}"):
            open_checkpoint("org/tiny")
        hub.granted = True
        if token:
            assert open_checkpoint("org/tiny").commit == COMMIT


def test_a_wrong_token_is_said(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.token = "hf_right"
    with used(hub, tmp_path, monkeypatch, token="hf_wrong"), pytest.raises(HubError, match="token"):
        open_checkpoint("org/tiny")


@pytest.mark.parametrize("endpoint", ["", "huggingface.co", "ftp://hub", "http://"])
def test_an_endpoint_that_is_none_is_said(hub: Hub, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    with pytest.raises(HubError, match="HF_ENDPOINT"):
        open_checkpoint("org/tiny")


def test_without_a_hub_it_is_said(hub: Hub) -> None:
    hub.close()
    with pytest.raises(HubError) as refused:
        open_checkpoint("org/tiny")
    assert isinstance(refused.value.__cause__, UnreachableError)


@pytest.mark.parametrize("redirects", [False, True])
def test_a_server_that_ignores_ranges_is_refused_before_it_sends_all(hub: Hub, redirects: bool) -> None:
    hub.redirects, hub.ignore_ranges = redirects, True
    with pytest.raises(HubError, match="org/tiny") as refused:
        toposcope.scan("org/tiny")
    assert not isinstance(refused.value.__cause__, CutError)


def test_answers_that_always_end_early_are_given_up(hub: Hub) -> None:
    hub.shorten = 0
    with pytest.raises(HubError) as gave_up:
        toposcope.scan("org/tiny")
    assert isinstance(gave_up.value.__cause__, CutError)


@pytest.mark.parametrize("redirects", [False, True])
def test_a_file_that_changes_between_ranges_is_refused(hub: Hub, redirects: bool) -> None:
    hub.redirects, hub.tags = redirects, ["one", "one", "two"]
    with pytest.raises(BadFile, match="ETag"):
        toposcope.scan("org/tiny")


@pytest.mark.parametrize("redirects", [False, True])
@pytest.mark.parametrize("more", [b"", b"more"])
def test_a_file_that_was_replaced_after_it_was_listed_is_refused(hub: Hub, redirects: bool, more: bytes) -> None:
    hub.redirects = redirects
    with toposcope.load("org/tiny") as model:
        file = hub.root / "org/tiny/model.safetensors"
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) + more)
        with pytest.raises(BadFile):
            _ = [layer.weights for layer in model.layers]


@pytest.mark.parametrize("to", ["ftp://127.0.0.1/x", "http://", "http://[", "file:///etc/passwd", "http://x:99999/"])
def test_redirects_that_lead_nowhere_are_not_followed(hub: Hub, to: str) -> None:
    hub.redirect_to = to
    with pytest.raises(HubError) as refused:
        open_checkpoint("org/tiny")
    assert not isinstance(refused.value.__cause__, CutError)


@pytest.mark.parametrize("redirects", [False, True])
def test_content_other_than_the_listed_one_is_not_begun(hub: Hub, redirects: bool) -> None:
    hub.redirects = redirects
    assert Snapshot(HubName("org/tiny")).files  # kept
    file = hub.root / "org/tiny/model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(BadFile, match="ETag"):
        open_checkpoint("org/tiny")


def test_redirects_in_a_circle_end(hub: Hub) -> None:
    hub.redirect_to = f"/org/tiny/resolve/{COMMIT}/model.safetensors"
    with pytest.raises(HubError, match="circles"):
        open_checkpoint("org/tiny")


def test_a_store_whose_address_expired_is_asked_for_anew(hub: Hub) -> None:
    hub.redirects = True
    with toposcope.load("org/tiny") as model:
        hub.trouble = [403]
        hub.forget()
        assert model.layers[0].weights.q_HRD.shape == (4, 16, 64)
    assert sum(" hub " in request for request in hub.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_in_trouble_is_asked_again(hub: Hub, status: int) -> None:
    hub.trouble = [status, status]
    assert numbers(toposcope.scan("org/tiny")) == numbers(toposcope.scan(hub.root / "org/tiny"))
    write_model(hub.root / "org/other")
    hub.trouble = [status] * 50
    with pytest.raises(HubError, match=str(status)):
        open_checkpoint("org/other")


def test_a_server_that_asks_for_time_gets_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr(hub_http, "PAUSE", 0.5)
    monkeypatch.setattr("toposcope.checkpoints.hub.http.time.sleep", waited.append)
    hub.trouble, hub.wait = [429, 429, 503], "7"
    open_checkpoint("org/tiny")
    assert waited == [7, 7, 7]
    hub.trouble, hub.wait = [429], "999999999"
    open_checkpoint(f"org/tiny@{COMMIT}").source.read("model.layers.1.self_attn.q_proj.weight")
    assert waited[3:] == [0.5]


def test_answers_that_go_on_beyond_their_end_are_refused(hub: Hub) -> None:
    hub.lengthen = b" "
    with pytest.raises(BadFile):
        open_checkpoint("org/tiny")


def test_a_disk_without_room_is_told_before_anything_is_fetched(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with toposcope.load("org/tiny") as model:
        hub.forget()
        monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**6, 10**6, 1000))
        with pytest.raises(BadValue, match="TOPOSCOPE_CACHE"):
            toposcope.scan(model)
        assert hub.requests == []


def test_a_model_without_weights_says_what_it_holds(hub: Hub) -> None:
    (hub.root / "org/empty").mkdir()
    (hub.root / "org/empty/README.md").write_text("")
    with pytest.raises(NotFound, match=r"README\.md"):
        open_checkpoint("org/empty")


NAMES = {
    "org/name": HubName("org/name"),
    "hf://org/name": HubName("org/name"),
    "hf://o/n.gguf": HubName("o/n.gguf"),
    "org/name@v1": HubName("org/name", "v1"),
    "org/name@refs/pr/3": HubName("org/name", "refs/pr/3"),
    "org/name:Q4_K_M": HubName("org/name", "main", "Q4_K_M"),
    "hf://org/name-1.5_b@main:q8_0": HubName("org/name-1.5_b", "main", "q8_0"),
    "org/name.gguf": None,
    "org/scan.json": None,
    "name": None,
    "org/name/file": None,
    "../name": None,
    "org/..": None,
    "org/a--b": None,
    "org/name@a..b": None,
    "org/na me": None,
    "org/name\n": None,
    "órg/name": None,
    "x" * 90 + "/" + "y" * 90: None,
}


@pytest.mark.parametrize("text", NAMES)
def test_names(text: str) -> None:
    assert parse_hub_name(text) == NAMES[text]
    if NAMES[text] is not None:
        pinned = parse_hub_name(str(NAMES[text].pinned(COMMIT)))
        assert pinned is not None or text.endswith(".gguf")


@pytest.mark.parametrize("text", ["hf://name", "hf://", "hf://a/b/c", "hf://a/b\0"])
def test_what_cannot_be_a_name_on_the_hub_is_said(text: str) -> None:
    with pytest.raises(ToposcopeError):
        open_checkpoint(text)


@pytest.mark.parametrize("name", ["../x", "/x", "a/../b", "a//b", "./a", "a\\b", "c:x", "", "a/" + "x" * 300, "a\0"])
def test_files_that_leave_their_repository(name: str) -> None:
    assert not is_sound_file(name)
    assert is_sound_file("deep/down/model-00001-of-00002.safetensors")


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {"type": "directory", "path": "x", "size": 0, "oid": "a" * 40},
        {"type": "file", "path": "../x", "size": 1, "oid": "a" * 40},
        {"type": "file", "path": 3, "size": 1, "oid": "a" * 40},
        {"type": "file", "path": "x", "size": -1, "oid": "a" * 40},
        {"type": "file", "path": "x", "size": True, "oid": "a" * 40},
        {"type": "file", "path": "x", "size": 1e300, "oid": "a" * 40},
        {"type": "file", "path": "x", "size": 1, "oid": "../../../etc/passwd"},
        {"type": "file", "path": "x", "size": 1, "oid": "a" * 40, "lfs": {"oid": "b", "size": 1}},
    ],
)
def test_lines_of_a_listing_that_are_no_files(entry: Any) -> None:
    assert hub_http._repo_file(entry) is None
    sound = {"type": "file", "path": "x", "size": 1, "oid": "a" * 40, "lfs": {"oid": "b" * 64, "size": 7}}
    assert hub_http._repo_file(sound) == hub_http.RepoFile("x", 7, "b" * 64)


def test_a_listing_that_is_none(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_http, "LARGEST_PAGE", 100)
    with pytest.raises(HubError, match="HF_ENDPOINT"):
        open_checkpoint("org/tiny")


def test_the_library_behind_the_hub_is_imported_for_names_only(tmp_path: Path) -> None:
    write_model(tmp_path / "model", num_hidden_layers=1)
    code = (
        "import sys, toposcope; from toposcope.cli import main; toposcope.load(sys.argv[1]);"
        "assert not {'huggingface_hub', 'httpx', 'httpx2', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "model")], check=True)


def test_the_next_page() -> None:
    said = _NEXT.search('<https://hub/api/x?cursor=1>; rel="next"')
    assert said is not None
    assert said[1] == "https://hub/api/x?cursor=1"
