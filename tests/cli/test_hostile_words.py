"""Words on the command line and presets that are no settings: one line each, and nothing that a terminal obeys."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import check_json_error, check_nouns

from vlmconsole.cli import main

ESCAPE = "\x1b[31mred\x07\x9b2J"


def told(capsys: pytest.CaptureFixture[str], home: Path, *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(home), *words])
    said = capsys.readouterr()
    assert "fault of vlmconsole" not in said.err, said.err
    return int(ended.value.code or 0), said.out + said.err


@pytest.mark.parametrize(
    ("setting", "nouns"),
    [
        ("seed=" + "9" * 5000, ["“seed”"]),
        ("seed=99999999999999999999999", ["“seed”", "77 bits", "64"]),
        ("seed=9999999999", ["“seed”", "4294967295"]),  # no generator takes it
        ("dev_epochs=" + "[" * 3000, ["“dev_epochs”"]),
        ("dev_epochs=[9]", ["sft-expand-tiny", "“dev_epochs”", "[9]", "6"]),
        ("base=~nobody-here/x", ["~nobody-here/x", "user"]),
    ],
)
def test_settings_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], setting: str, nouns: list[str]
) -> None:
    code, said = told(capsys, tmp_path, "run", "sft-expand-tiny", "--plan", "--set", setting)
    assert code in (1, 2)
    check_nouns(said, *nouns)


@pytest.mark.parametrize(
    ("data", "code", "noun"),
    [
        (b"\xff\xfe", "encoding-invalid", "UTF-8"),
        (b'kind = "sft"\nspec = 3', "preset-invalid", "spec"),
        (b'kind = "sft"\n[spec]\nepochs = ' + b"9" * 5000, "toml-invalid", "TOML"),
        (b"kind = " + b"[" * 3000, "nesting-too-deep", "TOML"),
    ],
)
def test_presets_that_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: bytes, code: str, noun: str
) -> None:
    preset = tmp_path / "odd.toml"
    preset.write_bytes(data)
    status, said = told(capsys, tmp_path, "--json", "run", str(preset), "--plan")
    assert status == 2
    check_json_error(said.splitlines()[0], code, "odd.toml", noun)


def test_a_name_is_no_command_for_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("run", ESCAPE), ("run", "sft-expand-tiny", "--plan", "--set", f"data={ESCAPE}")):
        said = told(capsys, tmp_path, *words)[1]
        assert "red" in said and not {"\x1b", "\x07", "\x9b"} & set(said)
    (tmp_path / "adapters" / ESCAPE).mkdir(parents=True)
    (tmp_path / "adapters" / ESCAPE / "adapter_config.json").write_text("{}")
    said = told(capsys, tmp_path, "adapters", "list")[1]
    assert "red" in said and not {"\x1b", "\x07", "\x9b"} & set(said)
