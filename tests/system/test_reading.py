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
    with pytest.raises(UnreadableError, match="it is a FIFO, not an ordinary file"):
        read_bytes(fifo)
    with pytest.raises(UnreadableError, match="it is a folder"):
        read_toml(tmp_path)
    with pytest.raises(UnreadableError, match="it is a device"):
        read_json(Path("/dev/zero"))
    with pytest.raises(UnreadableError, match="has more than"):
        read_text(large, 10)
    assert read_text(large, 11) == "x" * 11
    with pytest.raises(UnreadableError, match=r"no text in UTF-8: .* at byte 5"):
        read_toml(latin)
    with pytest.raises(UnreadableError, match="No such file") as gone:
        read_json(tmp_path / "none")
    assert gone.value.missing
    with pytest.raises(UnreadableError, match="null"):
        read_json(Path("a\0b"))


def test_nesting_has_an_end_that_is_told(tmp_path: Path) -> None:
    inner = "[" * (DEEPEST - 1) + "]" * (DEEPEST - 1)
    assert toml_table(f"a = {inner}", "x") and json_value(f'{{"a": {inner}}}', "x")
    for text in (f"a = [{inner}]", DEEP_TOML):
        with pytest.raises(UnreadableError, match=r"x is no valid TOML: .* nested more than 100 deep"):
            toml_table(text, "x")
    for text in (f'{{"a": [{inner}]}}', DEEP_JSON):
        with pytest.raises(UnreadableError, match=r"x is no valid JSON: .* nested more than 100 deep"):
            json_value(text, "x")
    with pytest.raises(UnreadableError, match="no valid TOML"):
        toml_table(f"a = {'9' * 5000}", "x")


@given(st.text(max_size=40) | st.text("[]{}\"'=,.#a1\n", max_size=40))
def test_any_text_is_a_table_or_told_to_be_none(text: str) -> None:
    for read in (toml_table, json_value):
        try:
            read(text, "file")
        except UnreadableError as error:
            assert str(error).startswith("file is no valid ")


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
    code, said = run(capsys, tmp_path / "home", "kv", "--model", model)
    assert code and "nested more than 100 deep" in said and "fault of" not in said


def test_a_bad_profile_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    servers = tmp_path / "servers"
    servers.mkdir()
    (servers / "deep.toml").write_text(DEEP_TOML)
    os.mkfifo(servers / "fifo.toml")
    problems: list[ProfileError] = []
    assert "demo" in load_profiles(servers, problems=problems)
    assert [str(problem).split(" ", 1)[1][:20] for problem in problems] == [
        "is no valid TOML: it", "cannot be read: it i",
    ]  # fmt: skip
    for words in ("servers list", "run picture-size-tiny --plan", "jobs add cb-grid-tiny --plan"):
        code, said = run(capsys, tmp_path, *words.split())
        assert code == 0 and "demo" in said, (code, said)
    for words in ("servers show deep", "gauges --once --server deep", "chat hello --server deep"):
        code, said = run(capsys, tmp_path, *words.split())
        assert code and "deep.toml is no valid TOML" in said and "fault of" not in said, (code, said)


def test_deep_settings_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.toml").write_text(DEEP_TOML)
    code, said = run(capsys, tmp_path, "chats", "list")
    assert code == 2 and "config.toml is no valid TOML" in said


def test_a_frozen_plan_replaced_by_a_fifo_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    os.mkfifo(path)
    code, said = run(capsys, tmp_path / "home", "gates", "show", path)
    assert code and "fault of" not in said and json.dumps(said)
