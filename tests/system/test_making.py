"""Folders that appear whole or not at all, and what is left of makers that were killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vlmconsole.system.atomic_folder import making

MAKER = """
import sys, time
from pathlib import Path
from vlmconsole.system.atomic_folder import making
with making(Path(sys.argv[1])) as folder:
    (folder / "half").write_text("half")
    print("filling", flush=True)
    time.sleep(60)
"""


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*"))


def test_it_appears_by_its_renaming_and_leaves_nothing_when_that_fails(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "set"
    with making(target) as folder:
        (folder / "a").write_text("a")
        assert not target.exists() and folder.parent == target.parent
        folder.rename(target)
    assert (target / "a").read_text() == "a" and not leftovers(target.parent)
    with pytest.raises(ZeroDivisionError), making(tmp_path / "other") as folder:
        1 / 0  # noqa: B018
    assert not leftovers(tmp_path)


def test_the_next_maker_clears_what_a_killed_one_left_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "set"
    makers = [
        subprocess.Popen([sys.executable, "-c", MAKER, str(target)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for maker in makers:
        assert maker.stdout is not None and maker.stdout.readline() == "filling\n"
    killed, living = makers
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    kept = {".set.tmp", ".set.12345678.part", ".other.12345678.tmp", ".set.1234567g.tmp", ".set.12345678.tmp.txt"}
    for name in kept:
        (tmp_path / name).mkdir()
    (tmp_path / ".set.aaaaaaaa.tmp").symlink_to(tmp_path / ".other.12345678.tmp")
    (tmp_path / ".set.bbbbbbbb.tmp").write_text("a file")
    before = set(leftovers(tmp_path))
    with making(target) as folder:
        now = set(leftovers(tmp_path)) - {folder.name}
        gone = before - now
        assert len(gone) == 1 and kept < now and now < before  # the living maker's is still there
    living.send_signal(signal.SIGKILL)
    living.wait()
    with making(target):
        pass
    assert set(leftovers(tmp_path)) == kept | {".set.aaaaaaaa.tmp", ".set.bbbbbbbb.tmp"}
    assert (tmp_path / ".other.12345678.tmp").is_dir()
