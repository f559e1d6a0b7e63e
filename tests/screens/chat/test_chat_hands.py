"""The chat by hand: dialogs, the list of pictures, the palette, a desktop's viewer, words of any script."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import textual.screen
from chat_server import chat_server, profile_file
from test_chat_screen import answered, ask, console, picture, until
from textual.widgets import Input, OptionList, Static

from vlmconsole.app import SLOW_FPS, paint_rarely
from vlmconsole.chats.sampling import Sampling
from vlmconsole.screens.chat.picker import Picker
from vlmconsole.screens.keys import KEYS
from vlmconsole.screens.outside import open_outside
from vlmconsole.screens.palette import commands
from vlmconsole.screens.pictures.picture import PictureView
from vlmconsole.screens.widgets.dialogs import Form


@pytest.mark.slow
async def test_a_conversation_is_named_set_and_asked_in_any_script(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await pilot.press(*"数えて", "ｑ", "한", "enter")  # as an input method hands them over
            await until(lambda: answered(screen))
            assert "数えてｑ한" in str(server.requests)
            await pilot.press("escape", "R")
            pilot.app.screen.query_one(Input).value = "Shapes [bold]"
            await pilot.press("enter")
            assert screen.conversation.chat is not None
            await until(lambda: screen.conversation.store.chats()[0].title == "Shapes [bold]")
            await pilot.press("s", *"Be short.", "enter", *"0.7", "enter", *"32", "ctrl+s")
            await until(lambda: screen.conversation.chat is not None and screen.conversation.chat.system == "Be short.")
            assert screen.conversation.sampling == Sampling(temperature=0.7, max_tokens=32)
            await pilot.press("s", "enter", *"hot", "enter", "enter", *"7", "enter", *"2", "enter")
            form = pilot.app.screen
            assert isinstance(form, Form), "what is wrong is said beside it, and nothing typed is lost"
            faults = {
                fault.name: str(fault.render()) for fault in form.query(".fault").results(Static) if fault.display
            }
            assert faults == {
                "temperature": "✗ a number from 0 to 2",
                "top_p": "✗ a number above 0, at most 1, or empty",
            }
            assert [field.value for field in form.query(Input)] == ["Be short.", "hot", "32", "7", "2"]
            await pilot.press(*"0.7", "enter", "enter", "enter", *"0.5", "enter")
            await until(lambda: pilot.app.screen is screen)
            assert screen.conversation.sampling == Sampling(temperature=0.7, max_tokens=32, seed=7, top_p=0.5)
            await pilot.press("i")
            await ask(pilot, screen, "And now?")
            await until(lambda: len(screen.conversation.answers()) == 2 and answered(screen))
            asked = server.requests[-1]
            assert asked["messages"][0] == {"role": "system", "content": "Be short."}
            assert asked["temperature"] == 0.7 and asked["max_tokens"] == 32
            assert (asked["seed"], asked["top_p"]) == (7, 0.5)
            assert "seed" not in server.requests[0] and "top_p" not in server.requests[0]
            answer = screen.conversation.answers()[-1].answer
            assert answer is not None and answer["conditions"]["seed"] == 7 and answer["request"]["top_p"] == 0.5
            kept = {
                row.label: row.value
                for row in screen.why.query_one("#why-rows", Static).visual.rows
                if hasattr(row, "value")
            }
            wanted = {"temperature": "0.7", "max tokens": "32", "seed": "7", "top-p": "0.5"}
            assert wanted.items() <= kept.items() and "system prompt" in kept
            await pilot.press("escape", "s", *(["enter"] * 3), "ctrl+u", "enter", "ctrl+u", "enter")
            await until(lambda: screen.conversation.sampling == Sampling(temperature=0.7, max_tokens=32))


@pytest.mark.slow
async def test_a_picture_is_chosen_from_a_list_with_preview(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "here"
    (folder / "deeper").mkdir(parents=True)
    for name in ("one.png", "two.png"):
        picture(folder, name)
    (folder / "broken.png").write_bytes(b"no picture")
    monkeypatch.chdir(folder)
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await pilot.press("ctrl+o")
            picker = pilot.app.screen
            assert isinstance(picker, Picker)
            await until(lambda: "not a picture" in said(picker, "#preview"))  # the first file: why it cannot be sent
            await pilot.press(*"tw")
            await until(lambda: bool(picker.query(PictureView)) and "448×448" in said(picker, "#preview"))
            await pilot.press("enter")
            await until(lambda: [one.name for one in screen.attachments.pictures] == ["two.png"])
            await pilot.press("ctrl+o", "tab")  # the pictures that come with the package
            await pilot.press(*"scene-few", "enter")
            await until(lambda: [one.name for one in screen.attachments.pictures] == ["two.png", "scene-few.png"])


def said(node: Picker, selector: str) -> str:
    return " ".join(str(line.render()) for line in node.query(f"{selector} Static"))


async def test_the_palette_holds_every_key_of_the_table(tmp_path: Path) -> None:
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            found = {entry.title: entry for entry in commands(pilot.app, screen)}
            kept = {"send", "newline", "leave", "app.command_palette"}
            assert {key.help for key in KEYS if key.screen in ("", "chat") and key.action not in kept} <= set(found)
            assert {"image", "picture", "retry", "settings", "model", "export"} <= {
                word
                for entry in found.values()
                for word in f"{entry.title} {entry.words}".lower().replace(":", "").split()
            }, "words that people search for"
            await pilot.press("escape", "ctrl+p")
            await until(lambda: pilot.app.screen.query("CommandList"))
            palette = pilot.app.screen.query_one(OptionList)
            await until(lambda: palette.option_count == len(found))
            lines = [str(palette.get_option_at_index(at).prompt) for at in range(palette.option_count)]
            assert not any("\n" in line for line in lines), "one line for each command"
            assert any(line.startswith("Attach an image ") and line.endswith("  Ctrl+O") for line in lines)
            await pilot.press("escape")
            before = pilot.app.theme
            found["Switch theme: dark / light"].run()
            await until(lambda: pilot.app.theme != before)


async def test_a_slow_line_is_spared_movement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textual.screen, "UPDATE_PERIOD", textual.screen.UPDATE_PERIOD)
    paint_rarely()
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        config = tmp_path / "config.toml"
        config.write_text("slow_link = true\n" + config.read_text())
        async with console(tmp_path) as (pilot, _):
            assert pilot.app.animation_level == "none"
            assert pilot.app.screen._update_timer._interval == 1 / SLOW_FPS


async def test_a_picture_is_opened_with_the_desktops_viewer_or_its_path_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert str(tmp_path / "a.png") in open_outside(tmp_path / "a.png")
    viewer, seen = tmp_path / "xdg-open", tmp_path / "seen"
    viewer.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    viewer.chmod(0o755)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("sys.platform", "linux")
    assert open_outside(tmp_path / "a.png") == ""
    for _ in range(500):
        if seen.exists() and seen.read_text():
            break
        await asyncio.sleep(0.02)
    assert seen.read_text() == str(tmp_path / "a.png")
