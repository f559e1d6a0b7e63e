"""Files that people write, in every state that a file can be in: each is told in one line, none stops a command."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import check_error, check_json_error, refused

from vlmconsole.cli import main
from vlmconsole.engines.profile import ProfileError, load_profiles
from vlmconsole.system.reading import (
    DEEPEST,
    UnreadableError,
    json_value,
    read_bytes,
    read_json,
    read_text,
    read_toml,
    toml_table,
)

DEEP_TOML = "a=" + "[" * 20_000
DEEP_JSON = '{"a":' * 20_000


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A read that waits for ever ends the test, not the whole run."""
    signal.alarm(30)
    yield
    signal.alarm(0)


def run(capsys: pytest.CaptureFixture[str], home: Path, *words: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home), *map(str, words)])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out + said.err


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    fifo, large, latin = tmp_path / "fifo", tmp_path / "large", tmp_path / "latin"
    os.mkfifo(fifo)
    large.write_bytes(b"x" * 11)
    latin.write_bytes(b"a = '\xe9'")
    with refused("file-irregular", "FIFO", error=UnreadableError):
        read_bytes(fifo)
    with refused("file-irregular", "folder", error=UnreadableError):
        read_toml(tmp_path)
    with refused("file-irregular", "device", error=UnreadableError):
        read_json(Path("/dev/zero"))
    with refused("file-too-large", "large", error=UnreadableError):
        read_text(large, 10)
    assert read_text(large, 11) == "x" * 11
    with refused("encoding-invalid", "UTF-8", "byte 5", error=UnreadableError):
        read_toml(latin)
    with pytest.raises(UnreadableError, match="none") as gone:
        read_json(tmp_path / "none")
    assert gone.value.missing and gone.value.code == "file-missing"
    with refused("file-unreadable", "null", error=UnreadableError):
        read_json(Path("a\0b"))


def test_nesting_has_an_end_that_is_told(tmp_path: Path) -> None:
    inner = "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1)
    assert toml_table(f"a = {inner}", "x") and json_value(f'{{"a": {inner}}}', "x")
    for text in (f"a = [{inner}]", DEEP_TOML):
        with refused("nesting-too-deep", "x", "TOML", "100", error=UnreadableError):
            toml_table(text, "x")
    for text in (f'{{"a": [{inner}]}}', DEEP_JSON):
        with refused("nesting-too-deep", "x", "JSON", "100", error=UnreadableError):
            json_value(text, "x")
    with refused("toml-invalid", "TOML", error=UnreadableError):
        toml_table(f"a = {'9' * 5000}", "x")


@given(st.text(max_size=40) | st.text("[]{}\"'=,.#a1\n", max_size=40))
def test_any_text_is_a_table_or_told_to_be_none(text: str) -> None:
    for read, kind in ((toml_table, "toml-invalid"), (json_value, "json-invalid")):
        try:
            read(text, "file")
        except UnreadableError as error:
            check_error(error, kind, "file")


@pytest.mark.parametrize("words", ["gates show", "gates freeze", "data make", "jobs add --plan", "run --plan"])
@pytest.mark.parametrize("kind", ["deep", "fifo", "folder", "bytes"])
def test_commands_tell_what_is_wrong_with_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, kind: str
) -> None:
    path = tmp_path / "mine.toml"
    if kind == "deep":
        path.write_text(DEEP_TOML)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff\xfe")
    code, said = run(capsys, tmp_path / "home", *words.split(), path)
    assert (code, "fault of" in said) == (2, False), said
    assert "mine.toml" in said and "is called" not in said


def test_a_models_deep_configuration_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "deep.json"
    model.write_text(DEEP_JSON)
    code, said = run(capsys, tmp_path / "home", "--json", "kv", "--model", model)
    assert code
    check_json_error(said.splitlines()[0], "nesting-too-deep", "deep.json")


def test_a_bad_profile_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = tmp_path / "servers"
    servers.mkdir()
    (servers / "deep.toml").write_text(DEEP_TOML)
    os.mkfifo(servers / "fifo.toml")
    problems: list[ProfileError] = []
    assert "demo" in load_profiles(servers, problems=problems)
    assert [problem.code for problem in problems] == ["nesting-too-deep", "file-irregular"]
    for words in ("servers list", "run picture-size-tiny --plan", "jobs add cb-grid-tiny --plan"):
        code, said = run(capsys, tmp_path, *words.split())
        assert code == 0 and "demo" in said, (code, said)
    for words in ("servers show deep", "gauges --once --server deep", "chat hello --server deep"):
        code, said = run(capsys, tmp_path, *words.split())
        assert code and "deep.toml" in said and "TOML" in said and "fault of" not in said, (code, said)


def test_deep_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text(DEEP_TOML)
    code, said = run(capsys, tmp_path, "--json", "chats", "list")
    assert code == 2
    check_json_error(said.splitlines()[0], "nesting-too-deep", "config.toml")


def test_a_frozen_plan_replaced_by_a_fifo_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    os.mkfifo(path)
    code, said = run(capsys, tmp_path / "home", "gates", "show", path)
    assert code and "fault of" not in said and json.dumps(said)
