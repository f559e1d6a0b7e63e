"""Files that killed processes left in a lab home are cleared; nothing else is."""

import os
import time
from pathlib import Path

import pytest

from vlmconsole.runs import leftovers
from vlmconsole.runs.places import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "home").ensure()


def left(path: Path, age: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age,) * 2)
    return path


@pytest.mark.parametrize(
    "name",
    [
        ".copied.txt.0123abcd.tmp",
        "state/servers/.demo.json.00000000.tmp",
        "pictures/.aa.png.ffffffff.tmp",
        "a/b/.odd name.x.12345678.tmp",
    ],
)
def test_an_old_half_written_file_goes(places: Places, name: str) -> None:
    path = left(places.home / name, 2 * leftovers.OLD)
    assert leftovers.clear(places) == [path] and not path.exists()


@pytest.mark.parametrize(
    ("name", "age"),
    [
        (".copied.txt.0123abcd.tmp", 5.0),  # being written now
        ("copied.txt.0123abcd.tmp", 2 * leftovers.OLD),  # no name of ours
        (".copied.txt.0123ABCD.tmp", 2 * leftovers.OLD),
        (".mine.tmp", 2 * leftovers.OLD),
        ("runs/a/.state.json.0123abcd.tmp", 2 * leftovers.OLD),  # the books of that run see to it
        ("environments/x/.y.0123abcd.tmp", 2 * leftovers.OLD),
    ],
)
def test_what_is_not_certainly_left_over_stays(places: Places, name: str, age: float) -> None:
    path = left(places.home / name, age)
    assert leftovers.clear(places) == [] and path.exists()


def test_a_link_is_neither_followed_nor_removed(places: Places, tmp_path: Path) -> None:
    other = left(tmp_path / "other" / ".x.0123abcd.tmp", 2 * leftovers.OLD)
    (places.cache / "there").symlink_to(other.parent)
    link = places.cache / ".link.0123abcd.tmp"
    link.symlink_to(other)
    assert leftovers.clear(places) == [] and other.exists() and link.is_symlink()
