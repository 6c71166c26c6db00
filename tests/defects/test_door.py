"""Files from elsewhere: stores, torch files, texts and results that would have been followed, awaited or believed."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from toposcope.cli import main
from toposcope.core.errors import BadFile, ToposcopeError
from toposcope.runs import lock
from toposcope.runs.directory import Job
from toposcope.runs.store import Claim, Store

JOB = Job("00aa11", "train", {"task": "distance", "encoding": "rope", "seed": 0, "profile": "laptop-s"})
PRECIOUS = "what the user would not lose"
SECONDS = 60  # far more than any of this takes, also on a busy machine
LIMIT = 4 << 30  # bytes of address space: what has no end must not take the machine with it


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which may neither hang nor eat all memory."""
    script = (
        f"import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))\n"
        "from toposcope.cli import main\nmain(sys.argv[1:])"
    )
    return python(script, *words)


def python(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.fail("it never ends")


def store_with(place: Path, status: str = "queued") -> Path:
    """A store with one run that has been begun; its directory."""
    with Store(place) as store:
        claim = store.claim(JOB)
        assert isinstance(claim, Claim)
        store.release(claim)
    with sqlite3.connect(place / "index.sqlite") as index:
        index.execute("UPDATE runs SET status = ?, owner = 'host:1'", (status,))
    index.close()
    return place / JOB.key


def precious(place: Path) -> Path:
    (place / "precious").write_text(PRECIOUS)
    return place / "precious"


def tree(place: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(place)): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns)
        for path in [place, *place.rglob("*")]
    }


def listed(place: Path) -> list[dict[str, Any]]:
    done = run("runs", "ls", "--store", str(place), "--json", "-")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["runs"]


# ------------------------------------------------------------ 1: links in a store, listing


def test_1_a_link_for_a_lock_is_not_followed_by_a_listing(tmp_path: Path) -> None:
    directory, kept = store_with(tmp_path / "store", "running"), precious(tmp_path)
    (directory / ".lock").unlink()
    (directory / ".lock").symlink_to(kept)
    assert [row["key"] for row in listed(tmp_path / "store")] == [JOB.key]
    assert kept.read_text() == PRECIOUS


@pytest.mark.parametrize("name", [".lock", "run.json"])
@pytest.mark.parametrize("hard", [False, True], ids=["link", "hard link"])
def test_1_working_on_a_store_follows_no_link(tmp_path: Path, name: str, hard: bool) -> None:
    directory, kept = store_with(tmp_path / "store"), precious(tmp_path)
    (directory / name).unlink()
    (directory / name).hardlink_to(kept) if hard else (directory / name).symlink_to(kept)
    with Store(tmp_path / "store") as store:
        try:
            claim = store.claim(JOB)
            assert isinstance(claim, Claim)
            claim.held.close()
        except ToposcopeError:
            assert not (hard and name == "run.json"), "it is written by a rename: a hard link is harmless"
    assert kept.read_text() == PRECIOUS


def test_1_a_runs_directory_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    directory, elsewhere = store_with(tmp_path / "store"), tmp_path / "elsewhere"
    shutil.rmtree(directory)
    elsewhere.mkdir()
    precious(elsewhere)
    directory.symlink_to(elsewhere)
    before = tree(elsewhere)
    with Store(tmp_path / "store") as store:
        for act in (lambda: store.claim(JOB), lambda: store.remove(JOB.key)):
            with pytest.raises(ToposcopeError):
                act()
        store.repair()
    assert tree(elsewhere) == before


@pytest.mark.parametrize("status", ["queued", "running", "done", "failed"])
@pytest.mark.parametrize("index", [True, False], ids=["index", "no index"])
def test_1_listing_writes_nothing(tmp_path: Path, status: str, index: bool) -> None:
    directory = store_with(tmp_path / "store", status)
    (directory / "checkpoint.pt").write_bytes(b"half a training")
    if not index:
        (tmp_path / "store" / "index.sqlite").unlink()
    before = tree(tmp_path / "store")
    for words in (["ls"], ["show", JOB.key[:4]], ["export", str(tmp_path / "out.csv")]):
        with pytest.raises(SystemExit) as ended:
            main(["runs", *words, "--store", str(tmp_path / "store")])
        assert ended.value.code in (0, None)
    assert tree(tmp_path / "store") == before


def test_1_listing_takes_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_with(tmp_path / "store", "running")

    def locked(*_: object) -> None:
        raise AssertionError("a lock was taken")

    monkeypatch.setattr(lock, "take", locked)
    with pytest.raises(SystemExit) as ended:
        main(["runs", "ls", "--store", str(tmp_path / "store")])
    assert ended.value.code in (0, None)


def test_1_packing_sends_no_file_from_elsewhere(tmp_path: Path) -> None:
    from toposcope.runs.directory import pack, unpack

    directory, kept = store_with(tmp_path / "store"), precious(tmp_path)
    (directory / "notes.txt").symlink_to(kept)
    with pytest.raises(BadFile):
        pack(directory)
    with pytest.raises(BadFile):
        unpack(directory, {"notes.txt": b"gone"})
    assert kept.read_text() == PRECIOUS


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_1_a_link_out_of_a_models_directory_is_refused(tmp_path: Path, name: str) -> None:
    from tests.unit.tiny import write_llama
    from toposcope.checkpoints.locate import open_checkpoint

    model = write_llama(tmp_path / "model")
    (model / name).rename(tmp_path / name)
    (model / name).symlink_to(tmp_path / name)
    with pytest.raises(ToposcopeError):
        open_checkpoint(model)
    inside = model / f"real-{name}"
    (model / name).unlink()
    (tmp_path / name).rename(inside)
    (model / name).symlink_to(inside.name)
    assert open_checkpoint(model / "model.safetensors").config is not None, "within the directory they are followed"


# ------------------------------------------------------------ 2: torch files


def saved(path: Path, value: Any) -> Path:
    torch = pytest.importorskip("torch", reason="torch files need torch")
    torch.save({"w": torch.ones(2), **value}, path)
    return path


OPEN = "import sys\nfrom toposcope.checkpoints.torch_file import TorchFile\nfrom pathlib import Path\n" + (
    "from toposcope.core.errors import ToposcopeError\n"
    "try:\n    print(sorted(TorchFile(Path(sys.argv[1])).metadata))\n"
    "except ToposcopeError:\n    print('refused')\n"
)


@pytest.mark.parametrize("wide", [True, False], ids=["lists in lists", "dictionaries under all four names"])
def test_2_shared_containers_are_visited_once(tmp_path: Path, wide: bool) -> None:
    inner: Any = [0] * 100 if wide else {"x": 1}
    for _ in range(7 if wide else 40):
        inner = [inner] * 100 if wide else dict.fromkeys(("state_dict", "model_state_dict", "model", "module"), inner)
    path = saved(tmp_path / "m.pt", {"args": inner, "lr": 0.5} if wide else inner)
    assert path.stat().st_size < 10_000
    done = python(OPEN, str(path))
    assert done.stdout.strip() == ("['lr']" if wide else "[]"), done.stderr


@pytest.mark.parametrize("name", ["state_dict", "args"])
def test_2_a_dictionary_that_contains_itself(tmp_path: Path, name: str) -> None:
    from toposcope.checkpoints.torch_file import TorchFile

    round_and_round: dict[str, Any] = {}
    round_and_round[name] = round_and_round
    with pytest.raises(BadFile):
        TorchFile(saved(tmp_path / "m.pt", round_and_round))


def test_2_a_key_that_takes_for_ever_to_hash(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch files need torch")
    # the key of a dictionary is built of pairs: number 0 is (), and each next one holds the one before it twice
    pairs = (b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
    program = b"\x80\x02)q\x00" + b"".join(pairs) + b"}h\x3c"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", program + b"K\x01s.")
        archive.writestr("archive/version", "3\n")
    (tmp_path / "m.pt").write_bytes(out.getvalue())
    assert len(program) < 1000
    assert python(OPEN, str(tmp_path / "m.pt")).stdout.strip() == "refused"


# ------------------------------------------------------------ 3: what hangs, or leads elsewhere


@pytest.mark.parametrize("name", ["result.json", "run.json", ".lock"])
@pytest.mark.parametrize("what", ["a pipe", "/dev/zero"])
def test_3_pipes_and_devices_in_a_store(tmp_path: Path, name: str, what: str) -> None:
    directory = store_with(tmp_path / "store", "running")
    (directory / name).unlink(missing_ok=True)
    os.mkfifo(directory / name) if what == "a pipe" else (directory / name).symlink_to(what)
    assert [row["status"] for row in listed(tmp_path / "store")] != ["done"]


def test_3_every_reader_refuses_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    script = (
        "import signal, sys\nfrom pathlib import Path\nfrom toposcope.core.errors import ToposcopeError\n"
        "from toposcope.core import arrays\nfrom toposcope.models.load import read_text\n"
        "from toposcope.report import read_results\nfrom toposcope.web.library import read_result\n"
        "from toposcope.dynamics.trajectory import Trajectory\nfrom toposcope.studies.language import sotu\n"
        "def hung(*_):\n    raise TimeoutError\nsignal.signal(signal.SIGALRM, hung)\n"
        "pipe = Path(sys.argv[1])\n"
        "for read in (read_text, lambda p: arrays.read_npy(p, 'W'), lambda p: arrays.read_npz(p, 'W'), "
        "lambda p: read_results([p]), read_result, Trajectory.load, sotu.split, sotu.fetch):\n"
        "    signal.alarm(3)\n    try:\n        read(pipe)\n        print('read')\n"
        "    except ToposcopeError:\n        print('refused')\n    except TimeoutError:\n        print('hung')\n"
        "    signal.alarm(0)\n"
    )
    assert python(script, str(tmp_path / "pipe")).stdout.split() == ["refused"] * 8


def hostile_index(place: Path, script: str) -> None:
    sound = sqlite3.connect(place / "index.sqlite")
    (table,) = sound.execute("SELECT sql FROM sqlite_master WHERE name = 'runs'").fetchone()
    sound.close()
    (place / "index.sqlite").unlink()
    index = sqlite3.connect(place / "index.sqlite")
    index.executescript(f"{script.replace('TABLE;', f'{table};', 1)}; PRAGMA user_version = 1;")
    index.close()


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
COLUMNS = ("key", "kind", "config", "status", "owner", "heartbeat", "summary", "words")
COLUMNS += ("created", "started", "finished", "toposcope")
HOSTILE = {
    "an endless view": "CREATE VIEW runs AS "
    + ENDLESS.replace("SELECT x FROM n", f"SELECT {', '.join(f'x AS {name}' for name in COLUMNS)} FROM n"),
    "a trigger": f"TABLE; CREATE TRIGGER t AFTER UPDATE ON runs BEGIN INSERT INTO runs SELECT x, '', '', 'done', '', "
    f"'', '', '', '', '', '', '' FROM ({ENDLESS}); END",
    "a further table": "TABLE; CREATE TABLE mine (x)",
    "another column": "CREATE TABLE runs (key TEXT PRIMARY KEY, status TEXT)",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_3_an_index_that_is_not_the_table_of_runs(tmp_path: Path, what: str) -> None:
    store_with(tmp_path / "store", "running")
    hostile_index(tmp_path / "store", HOSTILE[what])
    assert run("runs", "ls", "--store", str(tmp_path / "store")).returncode == 2
    with pytest.raises(BadFile):
        Store(tmp_path / "store")


def test_3_an_index_that_links_to_another_database(tmp_path: Path) -> None:
    store_with(tmp_path / "store")
    (tmp_path / "store" / "index.sqlite").unlink()
    other = sqlite3.connect(tmp_path / "other.db")
    other.executescript("CREATE TABLE addresses (name); INSERT INTO addresses VALUES ('Ada');")
    other.close()
    before = (tmp_path / "other.db").read_bytes()
    (tmp_path / "store" / "index.sqlite").symlink_to(tmp_path / "other.db")
    assert run("runs", "ls", "--store", str(tmp_path / "store")).returncode == 2
    with pytest.raises(ToposcopeError):
        Store(tmp_path / "store")
    assert (tmp_path / "other.db").read_bytes() == before


def test_3_a_journal_beside_the_index_deletes_no_file(tmp_path: Path) -> None:
    """A journal may end in the name of a further file, which SQLite removes when it rolls the journal back."""
    store_with(tmp_path / "store")
    kept = precious(tmp_path)
    name = str(kept).encode()
    magic = bytes.fromhex("d9d505f920a163d7")
    head = magic + struct.pack(">5I", 0, 0, (tmp_path / "store" / "index.sqlite").stat().st_size // 4096, 512, 4096)
    ending = name + struct.pack(">II", len(name), sum(name)) + magic
    (tmp_path / "store" / "index.sqlite-journal").write_bytes(
        head.ljust(512, b"\0") + struct.pack(">I", 262145) + ending
    )
    assert [row["key"] for row in listed(tmp_path / "store")] == [JOB.key], "by its directory"
    assert kept.exists()
    with pytest.raises(BadFile):
        Store(tmp_path / "store")
    assert kept.read_text() == PRECIOUS


# ------------------------------------------------------------ 4: a result is tied to its run


def tiny(seed: int) -> Any:
    pytest.importorskip("torch", reason="training needs torch")
    from toposcope.lab.config import RunConfig

    return RunConfig("distance", "none", seed, steps=2, batch=4, width=8, layers=1, heads=2, ff=8, probes=False)


PLANTED = {
    "by hand": '{"accuracy": 0.999}',
    "not a number": '{"accuracy": NaN, "floor": 0.25, "ceiling": 1.0, "seconds": 1.0}',
    "400 digits": f'{{"accuracy": 1{"0" * 400}}}',
    "infinite": '{"accuracy": 1e999}',
}


@pytest.mark.parametrize("what", [*PLANTED, "of another run", "changed by a digit"])
def test_4_a_result_that_is_not_the_runs_own_does_not_count(tmp_path: Path, what: str) -> None:
    from toposcope.lab.train import train

    config = tiny(0)
    job = Job(config.key(), "train", config.as_dict())
    with Store(tmp_path / "store") as store:
        claim = store.claim(job)
        assert isinstance(claim, Claim)
        if what in PLANTED:
            (claim.directory / "result.json").write_text(PLANTED[what])
        else:
            train(config if "digit" in what else tiny(1), tmp_path / "other")
            found = json.loads((tmp_path / "other" / "result.json").read_text())
            if "digit" in what:
                found["accuracy"] += 0.25
            (claim.directory / "result.json").write_text(json.dumps(found))
        store.release(claim)
    (tmp_path / "store" / "index.sqlite").unlink()
    (row,) = listed(tmp_path / "store")
    assert (row["status"], row["summary"]) == ("queued", None)


def test_4_a_sweeps_table_holds_only_what_its_runs_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted result and a planted row of the index; the run is done again."""
    from toposcope.lab.train import train

    monkeypatch.chdir(tmp_path)
    config = tiny(0)
    truth = train(config, tmp_path / "truth").accuracy
    job = Job(config.key(), "train", config.as_dict())
    with Store("store") as store:
        claim = store.claim(job)
        assert isinstance(claim, Claim)
        (claim.directory / "result.json").write_text('{"accuracy": 0.999, "seconds": 1}')
        store.release(claim)
    with sqlite3.connect("store/index.sqlite") as index:
        index.execute("""UPDATE runs SET status = 'done', summary = '{"accuracy": 0.999, "seconds": 1}'""")
    index.close()
    settings = ("steps=2", "batch=4", "width=8", "layers=1", "heads=2", "ff=8", "probes=false")
    words = [
        "sweep",
        "--tasks",
        "distance",
        "--encodings",
        "none",
        "--seeds",
        "0-0",
        "--store",
        "store",
        "--workers",
        "1",
    ]
    with pytest.raises(SystemExit) as ended:
        main([*words, *(word for each in settings for word in ("--set", each)), "--json", "out.json"])
    assert ended.value.code in (0, None)
    found = json.loads(Path("out.json").read_text())
    assert [cell["mean"] for cell in found["cells"]] == [truth]
    assert [each["accuracy"] for each in found["runs"]] == [truth]


# ------------------------------------------------------------ 8: a text without end


@pytest.mark.parametrize("what", ["/dev/zero", "a pipe"])
def test_8_a_text_without_end(tmp_path: Path, what: str) -> None:
    if what == "a pipe":
        os.mkfifo(tmp_path / "pipe")
        what = str(tmp_path / "pipe")
    script = (
        f"import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, ({LIMIT}, {LIMIT}))\n"
        "from toposcope.core.errors import ToposcopeError\nfrom toposcope.models.load import read_text\n"
        "try:\n    read_text(sys.argv[1])\nexcept ToposcopeError:\n    print('refused')\n"
    )
    assert python(script, what).stdout.strip() == "refused"
