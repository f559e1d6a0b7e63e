"""Words on the command line and presets that are no settings: one line each, and nothing that a terminal obeys."""

from __future__ import annotations

from pathlib import Path

import pytest

from vlmconsole.cli import main

ESCAPE = "\x1b[31mred\x07\x9b2J"


def told(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home), *words])
    said = capsys.readouterr()
    assert "fault of vlmconsole" not in said.err, said.err
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("seed=" + "9" * 5000, "“seed” is"),
        ("seed=99999999999999999999999", "a whole number of 77 bits: write one of at most 64"),
        ("seed=9999999999", "less than or equal to 4294967295"),  # no generator takes it
        ("dev_epochs=" + "[" * 3000, "“dev_epochs” is"),
        ("dev_epochs=[9]", "sft-expand-tiny: “dev_epochs” is [9]: write epochs from 1 to 6, each once"),
        ("base=~nobody-here/x", "begins with ~ and no user here"),
    ],
)
def test_settings_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, says: str) -> None:
    code, said = told(capsys, tmp_path, "run", "sft-expand-tiny", "--plan", "--set", setting)
    assert code in (1, 2) and says in said


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xfe", "no text in UTF-8"),
        (b'kind = "sft"\nspec = 3', "spec is 3, not a table"),
        (b'kind = "sft"\n[spec]\nepochs = ' + b"9" * 5000, "no valid TOML"),
        (b"kind = " + b"[" * 3000, "no valid TOML"),
    ],
)
def test_presets_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, says: str) -> None:
    preset = tmp_path / "odd.toml"
    preset.write_bytes(data)
    code, said = told(capsys, tmp_path, "run", str(preset), "--plan")
    assert code == 2 and says in said


def test_a_name_is_no_command_for_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("run", ESCAPE), ("run", "sft-expand-tiny", "--plan", "--set", f"data={ESCAPE}")):
        said = told(capsys, tmp_path, *words)[1]
        assert "red" in said and not {"\x1b", "\x07", "\x9b"} & set(said)
    (tmp_path / "adapters" / ESCAPE).mkdir(parents=True)
    (tmp_path / "adapters" / ESCAPE / "adapter_config.json").write_text("{}")
    said = told(capsys, tmp_path, "adapters", "list")[1]
    assert "red" in said and not {"\x1b", "\x07", "\x9b"} & set(said)
