"""The adapter of a conversation: chosen, refused with a reason, kept, shown, and used, against real mlx-vlm."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from lora import make_adapter, origin
from refusals import mentions
from test_chat_screen import answered, ask, console, until
from textual.pilot import Pilot
from textual.widgets import OptionList

from vlmconsole.runs.places import Places
from vlmconsole.screens.chat.screen import ChatScreen
from vlmconsole.screens.chat.why import adapter_rows
from vlmconsole.servers.server import Ready
from vlmconsole.training.adapters.provenance import weights_sha256, write_provenance
from vlmconsole.training.adapters.store import OTHER_MODEL


@pytest.fixture
def home(tmp_path: Path, mlx_server: Ready) -> Path:
    """A lab whose server is the session's real one, with an adapter that fits and one that does not."""
    places = Places(tmp_path).ensure()
    make_adapter(places.adapters / "taught", strength=0.5)
    shutil.copytree(places.adapters / "taught", places.adapters / "other")
    write_provenance(places.adapters / "other", origin(base="another", base_sha256="1" * 64))
    (places.servers / "demo.toml").write_text(
        f'engine = "mlx"\nbase_url = "{mlx_server.base_url}"\nmodel = "asset:tiny-qwen2.5-vl"\n'
        f'api_key_file = "{mlx_server.profile.access.key_file}"\n'
    )
    return tmp_path


def notice(screen: ChatScreen) -> str:
    return str(screen.query_one("#notice").render())


def header(screen: ChatScreen) -> str:
    return str(screen.query_one("#status").render())


async def hello(pilot: Pilot[None], screen: ChatScreen) -> dict[str, object]:
    before = len(screen.conversation.answers())
    await ask(pilot, screen, "Hello")
    await until(lambda: len(screen.conversation.answers()) > before and answered(screen), seconds=30)
    facts = screen.conversation.answers()[-1].answer
    assert facts is not None
    return dict(facts)


@pytest.mark.slow
async def test_an_adapter_is_chosen_used_kept_and_left(home: Path) -> None:
    async with console(home) as (pilot, screen):
        plain = await hello(pilot, screen)
        assert "adapter" not in plain["conditions"]  # type: ignore[operator]
        await ask(pilot, screen, "/adapter other")
        await until(lambda: "another base" in notice(screen))
        assert screen.conversation.sampling.adapter == "" and " + " not in header(screen)
        await ask(pilot, screen, "/adapter taught")
        await until(lambda: mentions(notice(screen), "taught", "answers"))
        assert " + taught" in header(screen)
        changed = await hello(pilot, screen)
        sha = weights_sha256(home / "adapters" / "taught")
        assert changed["conditions"]["adapter"] == f"taught sha256:{sha}"  # type: ignore[index]
        assert changed["text"] != plain["text"]
        (row,) = adapter_rows(changed)
        assert row.label == "adapter" and row.value == f"taught · {sha[:8]}…"  # type: ignore[union-attr]
    async with console(home) as (pilot, screen):  # kept with the conversation
        await until(lambda: screen.conversation.chat is not None and " + taught" in header(screen))
        await pilot.press("escape")
        await pilot.press("a")
        await until(lambda: screen.app.screen is not screen)
        listed = screen.app.screen.query_one(OptionList)
        assert [listed.get_option_at_index(i).id for i in range(3)] == ["none", "other", "taught"]
        await pilot.press("enter")  # the first: none
        await until(lambda: screen.conversation.sampling.adapter == "" and " + " not in header(screen))
        await pilot.press("i")
        assert "adapter" not in (await hello(pilot, screen))["conditions"]  # type: ignore[operator]


@pytest.mark.slow
async def test_another_base_is_used_only_when_said_and_is_labelled(home: Path) -> None:
    async with console(home) as (pilot, screen):
        await ask(pilot, screen, "/adapter --other-base other")
        await until(lambda: OTHER_MODEL in notice(screen))
        facts = await hello(pilot, screen)
        rows = adapter_rows(facts)
        assert len(rows) == 2 and OTHER_MODEL in rows[1].value  # type: ignore[union-attr]
        await ask(pilot, screen, "/adapter none")
        await until(lambda: "base model" in notice(screen))
        assert "adapter" not in (await hello(pilot, screen))["conditions"]  # type: ignore[operator]


def test_a_verified_effect_is_no_warning() -> None:
    def facts(note: str) -> dict[str, object]:
        return {"conditions": {"adapter": "taught sha256:0123456789", "notes": [f"adapter taught: {note}", "other"]}}

    _, seen = adapter_rows(facts("effect verified: another greedy answer to the same question"))
    _, idle = adapter_rows(facts("no effect seen: the same greedy answer with and without it"))
    assert (seen.mark, idle.mark) == ("", "$warning")  # type: ignore[union-attr]
    assert seen.value.startswith("effect verified")  # type: ignore[union-attr]
