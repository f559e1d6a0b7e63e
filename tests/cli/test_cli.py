"""The command line as a contract: exit codes, one JSON value, one clear line on failure, in hostile folders too."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import mentions
from rich.console import Group
from rich.table import Table
from rich.text import Text

from vlmconsole.cli import main
from vlmconsole.cli.common import console
from vlmconsole.cli.tree import COMMANDS
from vlmconsole.lab import Lab


def run(*words: str, home: Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vlmconsole", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "VLMCONSOLE_HOME": str(home), **env},
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_help_names_every_command(tmp_path: Path) -> None:
    done = run("--help", home=tmp_path, COLUMNS="200")
    assert done.returncode == 0
    for name in COMMANDS:
        assert name in done.stdout


@pytest.mark.parametrize("words", [("nope",), ("kv", "--no-such-option"), ("tokens",)])
def test_bad_usage_is_exit_2_and_no_traceback(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*words, home=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("group", ["gates", "jobs", "runs"])
def test_a_group_alone_prints_its_help_and_no_error(
    group: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, said in (([group], "Commands"), ([group, "--json"], '{"error": {"message": "Missing command.')):
        with pytest.raises(SystemExit) as left:
            main(["--home", str(tmp_path), *words])
        told = capsys.readouterr()
        assert left.value.code == 2 and said in told.out
        assert ("error" in told.err) == ("--json" in words)


def test_json_may_stand_anywhere_and_a_failure_is_one_json_value(tmp_path: Path) -> None:
    for words in (("--json", "tokens", "448x336"), ("tokens", "448x336", "--json"), ("tokens", "--json", "448x336")):
        told = json.loads(run(*words, home=tmp_path).stdout)
        assert told["visual_tokens"] == 192 and told["rule"] == "Qwen2.5-VL's own"
    failed = run("tokens", "no-such-picture.png", "--json", home=tmp_path)
    assert failed.returncode != 0
    assert "no-such-picture.png" in json.loads(failed.stdout)["error"]["message"]


def test_doctor_examines_this_install(tmp_path: Path) -> None:
    done = run("doctor", "--json", home=tmp_path)
    report = json.loads(done.stdout)
    assert report["ok"] is (done.returncode == 0)
    states = {check["name"]: check["state"] for check in report["checks"]}
    assert states["python"] == "ok"
    assert states["bundled model"] == "ok"
    assert states["lab home"] == "ok"


def test_a_wrong_setting_names_its_source_and_what_is_allowed(tmp_path: Path) -> None:
    done = run("runs", "list", home=tmp_path, VLMCONSOLE_THEME="pink")
    assert done.returncode == 2
    assert "VLMCONSOLE_THEME" in done.stderr and "'dark' or 'light'" in done.stderr
    (tmp_path / "config.toml").write_text("colour = 3\n")
    done = run("runs", "list", home=tmp_path)
    assert done.returncode == 2
    assert "colour" in done.stderr and "config.toml" in done.stderr and "theme" in done.stderr
    (tmp_path / "config.toml").write_text("theme = \n")
    assert "no valid TOML" in run("runs", "list", home=tmp_path).stderr


@pytest.mark.parametrize("text", ["servr = 'demo'\n", "server = ", "max_tokens = 0\n"])
def test_doctor_goes_on_where_the_settings_cannot_be_used(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text(text)
    codes = []
    for words in (["doctor", "--json"], ["runs", "list"]):
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(tmp_path), *words])
        codes.append(ended.value.code)
        if words[0] == "doctor":
            (found,) = (one for one in json.loads(capsys.readouterr().out)["checks"] if one["name"] == "settings")
            assert found["state"] == "wrong" and "config.toml" in found["found"]
    assert codes == [1, 2]


def test_doctor_names_a_damaged_database_and_every_broken_profile(tmp_path: Path) -> None:
    (tmp_path / "queue.sqlite").write_bytes(b"no database at all" * 100)
    (tmp_path / "servers").mkdir()
    for name in ("one", "two"):
        (tmp_path / "servers" / f"{name}.toml").write_text("engine = 3\n")
    done = run("doctor", "--json", home=tmp_path)
    wrong = [check for check in json.loads(done.stdout)["checks"] if check["state"] == "wrong"]
    assert done.returncode == 1
    assert sum(check["name"] == "server profile" for check in wrong) == 2
    assert any(check["name"] == "queue" and "queue.sqlite" in check["found"] for check in wrong)
    assert "extra [tui]" in run("doctor", home=tmp_path).stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_full_disk_is_the_machines_word_not_our_fault(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "vlmconsole", "tokens", "448x336"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "VLMCONSOLE_HOME": str(tmp_path)},
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr and "fault" not in done.stderr


def test_a_terminal_that_cannot_spell_a_sign_still_gets_its_answer(tmp_path: Path) -> None:
    done = run("tokens", "448x336", home=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "192 image tokens" in done.stdout


@pytest.mark.parametrize(("given", "words"), [(b"\xff\xfe\x00bad", b"not UTF-8"), (b" \n", b"question is empty")])
def test_a_question_that_is_no_text_is_said_so(tmp_path: Path, given: bytes, words: bytes) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vlmconsole", "chat", "-"],
        input=given,
        capture_output=True,
        env={**os.environ, "VLMCONSOLE_HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and words in done.stderr


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    from vlmconsole.lab import Lab

    (tmp_path / "config.toml").write_text("max_tokens = 32\n")
    assert Lab.open(tmp_path).settings.max_tokens == 32


def test_home_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("doctor", "--home", str(tmp_path / "file" / "home"), home=tmp_path)
    assert done.returncode == 2
    assert "cannot be made" in done.stderr and "--home" in done.stderr


def test_a_folder_with_the_same_names_shadows_nothing(tmp_path: Path) -> None:
    for name in ("jobs", "screens", "presets", "assets", "queue", "vision"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the hostile folder was imported')\n")
    assert run("tokens", "448x336", "--json", home=tmp_path / "home", cwd=tmp_path).returncode == 0
    script = Path(sys.executable).parent / "vlmconsole"
    done = subprocess.run([script, "doctor"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert "hostile" not in done.stdout + done.stderr


def test_the_console_says_it_needs_a_terminal(tmp_path: Path) -> None:
    done = run(home=tmp_path)
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "vlmconsole", "--help"]
    env = {**os.environ, "VLMCONSOLE_HOME": str(tmp_path)}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()  # as `| head` does once it has read enough
        said = process.stderr.read()
    assert "Traceback" not in said and "BrokenPipe" not in said


@pytest.mark.parametrize("words", [["--home"], ["--home="], ["--home", "", "doctor"], ["doctor", "--home", "--json"]])
def test_home_without_a_folder_is_bad_usage_and_not_some_other_home(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2 and mentions(capsys.readouterr().err, "--home", "folder")


@pytest.mark.parametrize(
    "words",
    [
        "run nope", "runs show nope", "jobs add nope", "jobs show 999", "jobs cancel 999", "jobs logs 999",
        "jobs retry 999", "jobs clone 999", "servers show nope", "gates show nope", "gates freeze nope",
        "data make nope", "data check nope", "data show nope", "adapters show nope", "adapters check nope",
        "chats export 999", "bench --server nope", "chat --server nope hi",
    ],
)  # fmt: skip
def test_whatever_is_named_and_not_there_is_bad_usage(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--home", str(tmp_path), *words.split()])
    assert left.value.code == 2, capsys.readouterr().err
    assert not any((tmp_path / "runs").glob("*-serve-*")), "a server was started for nothing"


@pytest.mark.parametrize("hostile", ["a\x1b[2Jb", "a\u202eb", "a\x9b2Jb", "a\x1b]0;title\x07b", "a\rb"])
def test_nothing_that_a_command_prints_obeys_what_stands_in_it(
    hostile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also a `Text` that was built by hand, in a table, in a group: cell names and titles come from files."""
    table = Table()
    table.add_column(Text(hostile))
    table.add_column(hostile)
    table.add_row(Text(hostile, style="bold"), Text.assemble(hostile, (hostile, "red")))
    for shown in (table, Text(hostile), Group(table, Text(hostile)), hostile):
        console().print(shown, markup=False)
    out = capsys.readouterr().out
    assert "a" in out and "b" in out
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", out)


def test_a_full_disk_is_told_with_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Lab, "open", full)
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(tmp_path), "runs", "list"])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and os.strerror(errno.ENOSPC) in said and "Make room" in said
