"""The person's own keys, and those of the version before."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest
from folders import ROOT
from waiting import until

from vlmconsole.app import ConsoleApp
from vlmconsole.cli import main
from vlmconsole.lab import Lab, SettingsError
from vlmconsole.screens.keymap import FIXED, checked, keys_by_id
from vlmconsole.screens.keys import KEYS, OLD_KEYS, key_of, keys_of, use_in_text, with_keys
from vlmconsole.screens.palette import commands
from vlmconsole.screens.table import SCREENS

#: What an act is called → its letter, on whatever screen it is.
SAME = {
    **dict.fromkeys(("cancel", "stop"), "x"),
    **dict.fromkeys(("again", "retry", "restart"), "r"),
    **dict.fromkeys(("folder", "open_picture"), "o"),
    **dict.fromkeys(("large", "zoom", "zoom_picture"), "z"),
    **{"export": "e", "compare": "b", "edit": "E", "filter": "slash"},
}


def test_the_same_act_has_the_same_key_on_every_screen() -> None:
    letters = {key.id: key.keys.split(",")[0] for key in KEYS}
    for act, letter in letters.items():
        name = act.partition(".")[2]
        assert SAME.get(name, letter) == letter, act
    assert len(letters) == len(KEYS), "each act has an id of its own"


def test_no_old_key_means_anything_else_now() -> None:
    for old in OLD_KEYS:
        assert old.key not in {name for key in keys_of(old.screen) for name in key.keys.split(",")}
        assert old.id in keys_by_id()


@pytest.mark.parametrize(
    ("act", "keys", "named"),
    [
        ("jobs.cancle", "X", "jobs.cancel"),
        ("jobs.new", "x", "jobs.cancel"),
        ("jobs.new", "question_mark", "app.help"),
        ("servers.stop", "1", "app.chat"),
        ("jobs.new", "hyper+", "hyper+"),
        ("jobs.new", "", "“”"),
        ("jobs.new", "ctrl-e", "ctrl-e"),
        ("chat.newline", "n", "types text"),
        (next(iter(FIXED)), "ctrl+e", "cannot be changed"),
    ],
)
def test_what_cannot_be_honoured_is_named_and_the_rest_holds(act: str, keys: str, named: str) -> None:
    keymap, problems = checked({act: keys, "gates.check": "J, F9"})
    assert keymap == {"gates.check": "J,f9"}
    assert len(problems) == 1 and f"keys.{act}:" in problems[0] and named in problems[0]


def test_two_acts_may_change_places_and_one_screen_takes_another_ones_key() -> None:
    wanted = {"jobs.cancel": "r", "jobs.retry": "x", "runs.compare": "r", "chat.send_": "x"}
    keymap, problems = checked(wanted)
    assert keymap == {"jobs.cancel": "r", "jobs.retry": "x", "runs.compare": "r"} and len(problems) == 1


@pytest.mark.parametrize("text", ["keys = 3", "[keys]\njobs.cancel = 3", "[keys]\njobs = []"])
def test_a_table_of_another_form_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(SettingsError, match="sets keys"):
        Lab.open(tmp_path)


def home(tmp_path: Path, keys: str = "") -> Lab:
    (tmp_path / "config.toml").write_text(f'server = "none"\n{keys}')
    return Lab.open(tmp_path)


async def test_the_settings_keys_work_and_are_shown_in_footer_help_and_palette(tmp_path: Path) -> None:
    lab = home(tmp_path, '[keys]\njobs.new = "N"\n"app.help" = "f9, H"\njobs.nwe = "x"\n')
    app = ConsoleApp(lab)
    async with app.run_test(size=(120, 40)) as pilot:
        assert any("keys.jobs.nwe" in note.message and "jobs.new" in note.message for note in app._notifications)
        await pilot.press("f3")
        await until(lambda: type(app.screen).__name__ == "JobsScreen")
        shown = {binding.action: pilot.app.screen.active_bindings[key].binding for key, (_, binding, *_) in
                 pilot.app.screen.active_bindings.items()}  # fmt: skip
        assert shown["new"].key == "N" and "n" not in pilot.app.screen.active_bindings
        line = str(app.screen.query_one("KeyLine").render())
        assert "N new" in line and "F9 help" in line
        assert "Press N to pick a preset" in str(app.screen.query_one(".table-empty").render())
        await pilot.press("n")
        await pilot.pause()
        assert type(app.screen).__name__ == "JobsScreen"
        await pilot.press("N")
        await until(lambda: type(app.screen).__name__ == "PresetList")
        await pilot.press("escape", "f9")
        await until(lambda: type(app.screen).__name__ == "KeyHelp")
        text = str(app.screen._text())  # type: ignore[attr-defined]
        assert "N         New job" in text and "F9 H" in text
        await pilot.press("escape")
        titles = {entry.title: entry.keys for entry in commands(app, app.screen)}
        assert titles["New job: choose a preset, edit, review, queue"] == "N"


async def test_an_old_key_works_and_says_the_new_one(tmp_path: Path) -> None:
    app = ConsoleApp(home(tmp_path, '[keys]\nruns.compare = "B"\n'))
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("f5")
        await until(lambda: type(app.screen).__name__ == "RunsScreen")
        screen = app.screen
        await pilot.press("c")
        await pilot.pause()
        assert not app._notifications, "nothing is marked: neither the act nor its hint"
        screen.marks = (("one", ""),)  # type: ignore[attr-defined]
        await pilot.press("c")
        await pilot.pause()
        said = [note.message for note in app._notifications]
        assert said[0].startswith("c is now B") and "mark two" in said[1]


def test_the_command_lists_every_act(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home(tmp_path, '[keys]\njobs.new = "N"\njobs.x = "y"\n')
    with pytest.raises(SystemExit, match="0"):
        main(["keys", "--json", "--home", str(tmp_path)])
    told = json.loads(capsys.readouterr().out)
    assert {row["act"] for row in told["keys"]} == set(keys_by_id()) and len(told["problems"]) == 1
    assert next(row for row in told["keys"] if row["act"] == "jobs.new")["keys"] == "N"
    assert {key.screen for key in KEYS} <= {"", *(entry.name for entry in SCREENS)}


def test_every_key_in_a_sentence_is_an_act_and_follows_the_settings() -> None:
    named = set()
    for path in (ROOT / "screens").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named |= set(re.findall(r"\{([a-z]+\.[a-z_]+)\}", node.value))
    assert len(named) > 10 and named <= set(keys_by_id()), named - set(keys_by_id())
    use_in_text({"jobs.drain": "f9,D"})
    assert with_keys("paused · {jobs.drain} resumes, {jobs.new} adds") == "paused · F9 resumes, n adds"
    use_in_text({})
    assert with_keys("paused · {jobs.drain} resumes {1}") == "paused · d resumes {1}"
    with pytest.raises(KeyError):
        key_of("jobs.nothing")
