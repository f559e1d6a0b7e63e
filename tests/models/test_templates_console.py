"""A chat template that raises or loops neither ends nor freezes the console: it asks, and says what is not known."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import Say, chat_server, profile_file
from model_folders import bundled_copy
from test_chat_screen import _paste, answered, ask, console, picture, until

from vlmconsole.models import renderer

RAISES = "{{ raise_exception('Conversation roles must alternate') }}"
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", [RAISES, pytest.param(LOOPS, marks=pytest.mark.slow)])
async def test_the_console_outlives_a_bad_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(renderer, "SECONDS", 0.5)
    folder = bundled_copy(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)
    async with chat_server(Say()) as server:
        profile_file(tmp_path, server.port, model=str(folder), served_model="toy", context=4096)
        async with console(tmp_path) as (pilot, screen):
            screen.composer.question.post_message(_paste(str(picture(tmp_path))))
            await until(lambda: len(screen.attachments.pictures) == 1)
            screen.composer.question.insert("How many?")
            await until(lambda: "about" in str(screen.query_one("#budget").render()))
            await pilot.press("enter")
            await until(lambda: answered(screen))
            told = screen.conversation.answers()[-1].answer or {}
            said = " ".join((*told["conditions"]["notes"], *(sight["why"] for sight in told["vision"])))
            assert "chat_template.jinja" in said
            await ask(pilot, screen, "And now?")
            await until(lambda: len(screen.conversation.answers()) == 2 and answered(screen))
            assert screen.conversation.answers()[-1].state == "done"
