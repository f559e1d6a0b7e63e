"""What is the lab's is its owner's alone, whatever the umask; what was asked for elsewhere keeps the user's."""

import os
import sqlite3
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from supervised import Lab as Queue
from supervised import lab_fixture, places_fixture  # noqa: F401

from vlmconsole.chats.export import export_chat
from vlmconsole.chats.store import ChatStore
from vlmconsole.errors import LabError
from vlmconsole.lab import Lab
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import folder_for_user, write_for_user
from vlmconsole.system import privacy

root = pytest.mark.skipif(os.getuid() != 0, reason="needs another user's files")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def readable(folder: Path) -> list[str]:
    """What of a home others could read if its own folder were open."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and mode(path) & 0o077]


def python(code: str, *words: object) -> str:
    """A process of its own, begun with the umask that nearly everybody has."""
    command = [sys.executable, "-c", "import os, sys; os.umask(0o022)\n" + textwrap.dedent(code), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_home_that_was_open_is_closed_and_it_is_said(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)  # whatever the umask of the tests before
    chats = ChatStore(home / "chats.sqlite", home / "pictures")
    chats.add(chats.new_chat().id, "user", "in confidence")
    for end in ("", "-wal", "-shm"):
        home.joinpath(f"chats.sqlite{end}").chmod(0o644)
    told = Lab.open(home).note
    assert "755" in told and str(home) in told and not Lab.open(home).note, "said once"
    assert mode(home) == 0o700 and readable(home) == [] and (home / "chats.sqlite-wal").exists()
    chats.close()


@pytest.mark.parametrize("name", ["chats.sqlite", "chats.sqlite-wal", "queue.sqlite", "queue.sqlite-shm"])
def test_an_open_database_in_a_closed_home_is_closed(tmp_path: Path, name: str) -> None:
    home = Lab.open(tmp_path / "home").places.home
    chats, queue = ChatStore(home / "chats.sqlite", home / "pictures"), Store(home / "queue.sqlite")
    (home / name).chmod(0o664)
    assert name in Lab.open(home).note and readable(home) == []
    chats.close()
    queue.close()


@pytest.mark.parametrize("made", ["nothing", "0644"])
def test_the_journals_are_closed_from_their_first_byte(tmp_path: Path, made: str) -> None:
    """The home may be open, the umask 022, and the database as an earlier version left it."""
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)  # whatever the umask of the tests before
    if made == "0644":
        for name in ("chats.sqlite", "queue.sqlite"):
            with sqlite3.connect(home / name) as one:
                one.execute("PRAGMA journal_mode=WAL")
            one.close()
            (home / name).chmod(0o644)
    code = """
        from pathlib import Path
        from vlmconsole.chats.store import ChatStore
        from vlmconsole.queue.store import Store
        home = Path(sys.argv[1])
        chats, queue = ChatStore(home / "chats.sqlite", home / "pictures"), Store(home / "queue.sqlite")
        chats.add(chats.new_chat().id, "user", "in confidence")
        print(sorted(path.name for path in home.iterdir() if path.is_file() and path.stat().st_mode & 0o077))
    """
    assert python(code, home).strip() == "[]"
    assert (home / "chats.sqlite").exists() and (home / "queue.sqlite").exists()


def test_the_command_line_makes_nothing_that_others_read(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755)  # whatever the umask of the tests before
    code = "from vlmconsole.cli import main; main(sys.argv[1:])"
    told = python(code, "--home", home, "jobs", "list")
    assert "read by others" in told and mode(home) == 0o700
    python(code, "--home", home, "chats", "list")
    assert readable(home) == []
    folders = [path for path in home.rglob("*") if path.is_dir()]
    assert folders and not [path for path in folders if mode(path) & 0o077]


def test_a_worker_makes_nothing_that_others_read(lab: Queue) -> None:
    before = os.umask(0o022)
    try:
        number = lab.add(steps=3, size=10)
        assert lab.ends(number) == ["done"]
    finally:
        os.umask(before)
    assert (lab.run(number).path / "big.bin").exists() and readable(lab.places.home) == []


@root
def test_a_home_of_another_user_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 54321, 54321)
    with pytest.raises(LabError, match="belongs to user 54321") as refusal:
        Lab.open(home)
    assert "--home" in refusal.value.hint
    os.chown(home, 0, 0)
    (tmp_path / "link").symlink_to(home)
    assert Lab.open(tmp_path / "link").places.home == home


@pytest.mark.parametrize("bits", [0o777, 0o707, 0o1777, 0o703])
def test_a_home_that_everybody_may_write_is_refused(tmp_path: Path, bits: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(bits)
    with pytest.raises(LabError, match="written by everybody") as refusal:
        Lab.open(home)
    assert f"chmod 700 {home}" in refusal.value.hint and mode(home) == bits


@pytest.mark.parametrize("bits", [0o770, 0o750, 0o711, 0o701])
def test_a_home_that_a_group_may_use_is_closed(tmp_path: Path, bits: int) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(bits)
    assert f"{bits:o}" in Lab.open(home).note and mode(home) == 0o700


@pytest.mark.parametrize(
    ("umask", "file", "folder"), [(0o022, 0o644, 0o755), (0o002, 0o664, 0o775), (0o077, 0o600, 0o700)]
)
def test_what_was_asked_for_elsewhere_keeps_the_users_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int, file: int, folder: int
) -> None:
    monkeypatch.setattr(privacy, "_users", None)
    before = os.umask(umask)
    try:
        privacy.keep_private()
        folder_for_user(tmp_path / "a" / "b")
        write_for_user(tmp_path / "a" / "b" / "report.html", "x")
        store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
        made = export_chat(store, store.new_chat().id, tmp_path / "to" / "here")
    finally:
        os.umask(before)
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == folder == mode(made.folder)
    assert mode(tmp_path / "a" / "b" / "report.html") == file == mode(made.markdown) == mode(made.folder / "chat.json")
    assert mode(tmp_path / "chats.sqlite") == 0o600


def test_a_link_in_the_place_of_a_database_is_not_followed_to_change_modes(tmp_path: Path) -> None:
    other = tmp_path / "mine.txt"
    other.touch(0o644)
    other.chmod(0o644)
    (tmp_path / "chats.sqlite").symlink_to(other)
    assert privacy.close_database(tmp_path / "chats.sqlite") == [] and mode(other) == 0o644
