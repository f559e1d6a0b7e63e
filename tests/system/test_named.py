"""Paths that people type: a file is written only where one may be, and links and devices stay what they are."""

import os
from pathlib import Path

import pytest
from refusals import refused

from vlmconsole.cli import main
from vlmconsole.runs.folder import write_atomic
from vlmconsole.system.typed_paths import named, new_file


def test_home_and_strangers() -> None:
    assert named("~/x") == Path.home() / "x" and named("a/b") == Path("a/b")
    with refused("user-unknown", "~nouser-at-all/x"):
        named("~nouser-at-all/x")


def test_a_link_is_followed_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real.xml").write_text("old")
    (tmp_path / "link").symlink_to("real.xml")
    write_atomic(new_file(tmp_path / "link"), "new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real.xml").read_text() == "new"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-null").symlink_to("/dev/null")
    for bad in ("/", "/dev/null", "/dev/stdout", "/proc/self/fd/1", tmp_path, tmp_path / "pipe", tmp_path / "to-null"):
        with refused("file-irreplaceable", str(bad)):
            new_file(bad)
    with refused("path-unwritable", "File name too long"):
        new_file(tmp_path / ("x" * 5000))


@pytest.mark.parametrize("words", [["--junit", "/"], ["--junit", "~nouser-at-all/x"], ["--junit", "/dev/null"]])
def test_gates_check_never_ends_as_failed_gates_when_nothing_was_judged(tmp_path: Path, words: list[str]) -> None:
    for run in ("last", "x" * 5000):
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(tmp_path), "gates", "check", run, *words])
        assert ended.value.code == 2
