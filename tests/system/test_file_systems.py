"""A lab home where the file system lacks what a lab needs, or whose path is not UTF-8."""

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from folders import DATA
from supervised import Lab as Queue
from supervised import places_fixture  # noqa: F401

from vlmconsole.chats.store import ChatStore
from vlmconsole.devices.locks import DeviceLocks
from vlmconsole.lab import Lab
from vlmconsole.queue.model import stored_run
from vlmconsole.queue.resources import Machine
from vlmconsole.runs.places import Places
from vlmconsole.system import file_system


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that, preloaded, takes locks or shared memory away below one folder."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and Linux")
    library = tmp_path_factory.mktemp("shim") / "lacking.so"
    source = DATA / "file_system" / "lacking.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=60)
    return library


def console(shim: Path, home: Path, what: str, *words: str, number: int = errno.ENOLCK) -> str:
    """What a command says about a home on such a file system; it must end soon, and with a failure."""
    environment = {
        **os.environ,
        "LD_PRELOAD": str(shim),
        "LACKING": what,
        "LACKING_FOLDER": str(home),
        "LACKING_ERRNO": str(number),
    }
    done = subprocess.run(
        [sys.executable, "-m", "vlmconsole", "--home", str(home), *words],
        env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    return done.stderr


def named(told: str, home: Path) -> bool:
    """The file system and the way out are named, and nobody is told to move a file away."""
    kind = file_system.name_of(home)
    return kind in told and "--home" in told and "local disk" in told and "ove " not in told and "Traceback" not in told


@pytest.mark.parametrize(
    ("what", "number"),
    [
        ("flock", errno.ENOLCK),
        ("posix", errno.ENOLCK),
        pytest.param("both", errno.ENOLCK, marks=pytest.mark.slow),
        pytest.param("flock", errno.EOPNOTSUPP, marks=pytest.mark.slow),
        pytest.param("posix", errno.EINVAL, marks=pytest.mark.slow),
        pytest.param("both", errno.ENOSYS, marks=pytest.mark.slow),
    ],
)
def test_a_home_without_locks_is_refused_by_the_file_systems_name(
    shim: Path, tmp_path: Path, what: str, number: int
) -> None:
    told = console(shim, tmp_path / "home", what, "jobs", "list", number=number)
    assert named(told, tmp_path / "home") and "file locks" in told


@pytest.mark.parametrize(
    "words", [("jobs", "list"), pytest.param(("jobs", "add", "smoke"), marks=pytest.mark.slow), ("chats",)]
)
def test_a_home_without_shared_memory_is_refused_by_the_file_systems_name(
    shim: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    if words[0] == "chats":  # it only reads what is there
        places = Lab.open(tmp_path / "home").places
        ChatStore(places.chats, places.pictures).close()
        words = ("chats", "delete", "1")
    told = console(shim, tmp_path / "home", "shared", *words)
    assert named(told, tmp_path / "home") and "shared memory" in told


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF])
def test_a_lock_folder_without_locks_is_the_reason_a_job_waits_with(shim: Path, tmp_path: Path, number: int) -> None:
    code = """
        import sys
        from pathlib import Path
        from vlmconsole.devices.locks import DeviceLocks
        from vlmconsole.queue.resources import Machine
        print(Machine(DeviceLocks(Path(sys.argv[1])), 1).look().outside["cpu.0"])
    """
    environment = {
        **os.environ,
        "LD_PRELOAD": str(shim),
        "LACKING": "flock",
        "LACKING_FOLDER": str(tmp_path / "devices"),
        "LACKING_ERRNO": str(number),
    }
    Machine(DeviceLocks(tmp_path / "devices"), 1).take(["cpu.0"])
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "devices")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert os.strerror(number) in done.stdout and "VLMCONSOLE_DEVICE_LOCKS" in done.stdout, done.stderr


def test_the_doctor_names_the_file_system_and_tells_nobody_to_move_a_good_file(shim: Path, tmp_path: Path) -> None:
    places = Lab.open(tmp_path / "home").places
    ChatStore(places.chats, places.pictures).close()
    environment = {**os.environ, "LD_PRELOAD": str(shim), "LACKING": "shared", "LACKING_FOLDER": str(places.home)}
    command = [sys.executable, "-m", "vlmconsole", "--home", str(places.home), "doctor"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    line = next(line for line in done.stdout.splitlines() if " conversations " in line)
    assert file_system.name_of(places.home) in line and "move the file" not in line


def test_what_is_no_want_of_the_file_systems_is_not_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    path.write_bytes(b"no database at all, but long enough to be read as one" * 100)
    with pytest.raises(sqlite3.DatabaseError) as damaged:
        file_system.check_wal(sqlite3.connect(path), path)
    assert file_system.fault(damaged.value, path) is None
    held = sqlite3.connect(tmp_path / "held.sqlite", isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    with pytest.raises(sqlite3.OperationalError) as busy:
        file_system.check_wal(sqlite3.connect(tmp_path / "held.sqlite", timeout=0), tmp_path)
    assert file_system.fault(busy.value, path) is None


def test_the_name_of_a_file_system() -> None:
    assert file_system.name_of(Path("/proc/self")).startswith("proc (")
    assert file_system.name_of(Path("/sys")).startswith("sysfs (")
    assert " (" in file_system.name_of(Path("/"))


# --- names that are not UTF-8 ---
slow = pytest.mark.slow


@pytest.fixture(
    params=["h\udce9me", pytest.param("\udcff\udcfe", marks=slow), pytest.param("ok/\udce9/home", marks=slow)]
)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    home = tmp_path / str(request.param)
    try:
        home.mkdir(parents=True)
    except (OSError, UnicodeError):
        pytest.skip("this file system takes UTF-8 alone")
    return home


def test_jobs_run_in_a_home_whose_path_is_not_utf8(odd: Path, places: Places) -> None:
    lab = Queue(Places(odd).ensure())
    good, bad = lab.add(steps=2), lab.add({"retries": 1, "backoff_s": 0.0}, steps=3, mode="raise")
    assert lab.ends(good) == ["done"]
    lab.until(lambda: lab.store.get(bad).attempt == 2 and lab.store.get(bad).state == "failed")
    assert lab.run(good).path.parent == odd / "runs" and lab.run(good).state()["state"] == "done"
    assert lab.store.attempts(bad)[0].run == str(odd / "runs" / Path(lab.store.attempts(bad)[0].run or "").name)
    lab.crash()  # the next supervisor reads the same rows
    assert lab.run(good).job()["home"] == str(odd)


@slow
def test_commands_work_in_a_home_whose_path_is_not_utf8(odd: Path) -> None:
    for words in (("jobs", "list"), ("runs", "list"), ("chats", "list"), ("verify",), ("servers", "list", "--json")):
        command = [sys.executable, "-m", "vlmconsole", "--home", os.fsencode(odd), *words]
        done = subprocess.run(command, capture_output=True, timeout=60)
        assert done.returncode == 0 and b"Traceback" not in done.stderr, done.stderr


def test_splits_are_written_and_read_there(odd: Path) -> None:
    pytest.importorskip("pyarrow")
    from vlmconsole.data.rows import read_rows, write_rows

    write_rows(odd / "train.parquet", [])
    assert list(read_rows(odd / "train.parquet")) == []


def test_a_run_is_stored_by_its_whole_path_wherever_that_can_be(tmp_path: Path) -> None:
    assert stored_run(str(tmp_path / "runs" / "x")) == str(tmp_path / "runs" / "x") and stored_run(None) is None
    assert stored_run("/h\udce9me/runs/x") == "x"
