"""Two servers side by side; reasoning as it comes; words that must not be cut on a narrow screen."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_server import Say, chat_server, profile_file
from refusals import mentions
from test_chat_screen import answered, ask, console, until
from textual.pilot import Pilot
from textual.widgets import Static

from vlmconsole.chats.store import ChatStore
from vlmconsole.screens.chat.columns import PanelRow, RowsVisual
from vlmconsole.screens.chat.pair import AnswerSide, PairScreen, between
from vlmconsole.screens.chat.screen import ChatScreen
from vlmconsole.screens.chat.why import summary, timing_rows


def said(pilot: Pilot[None], selector: str) -> str:
    return str(pilot.app.screen.query_one(selector, Static).render())


def rows(side: AnswerSide) -> dict[str, str]:
    visual = side.query_one(".rows", Static).visual
    assert isinstance(visual, RowsVisual)
    return {row.label: row.value for row in visual.rows if isinstance(row, PanelRow)}


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_two_servers_side_by_side_as_they_answer(tmp_path: Path, size: tuple[int, int]) -> None:
    slow = Say(["from ", "two"], gap=0.4)
    async with chat_server(Say(["from one"])) as one, chat_server(slow) as two:
        profile_file(tmp_path, one.port, "one", precision="float32")
        profile_file(tmp_path, two.port, "two", precision="bfloat16")
        async with console(tmp_path, size) as (pilot, screen):
            await ask(pilot, screen, "Both of you")
            await until(lambda: answered(screen))
            await pilot.press("escape", "b")
            await pilot.pause()
            at = [n for n in screen.console.profiles() if n != "one"].index("two")
            await pilot.press(*["down"] * at, "enter")
            await until(lambda: isinstance(pilot.app.screen, PairScreen))
            pair = pilot.app.screen
            await until(lambda: len(pair.query(AnswerSide)) == 2)
            await until(lambda: "answering" in str(pair.query(".foot").last(Static).render()))
            assert "TTFT" in rows(pair.query(AnswerSide).last())
            assert mentions(said(pilot, ".between"), "both", "finished")
            await until(lambda: "Not comparable" in said(pilot, ".between"))
            verdict = said(pilot, ".between")
            assert mentions(verdict, "2", "precision", "float32", "bfloat16", "output length")
            left, right = pair.query(AnswerSide)
            if size[0] == 120:
                assert left.region.y == right.region.y and right.region.x > left.region.right - 2
            else:
                assert left.region.x == right.region.x and right.region.y >= left.region.bottom
            first, second = rows(left), rows(right)
            assert first["TTFT"] != second["TTFT"] and second["tokens out"] == "2 (reported by server)"
            await pilot.press("tab", "j", "escape", "v")
            await until(lambda: isinstance(pilot.app.screen, PairScreen))
            await pilot.press("escape")
            assert isinstance(pilot.app.screen, ChatScreen)


def test_the_sentence_between_two_answers(tmp_path: Path) -> None:
    store = ChatStore(tmp_path / "chats.sqlite", tmp_path / "pictures")
    chat = store.new_chat(title="pair")
    base = {"engine": "mlx-vlm", "model": "toy", "precision": "float32", "input_tokens": 41, "output_tokens": 9}

    def kept(**more: object):  # type: ignore[no-untyped-def]
        message = store.add(chat.id, "assistant", "", state="streaming", server="one")
        return store.finish(message.id, text="x", state="done", answer={"conditions": {**base, **more}})

    failed = store.finish(
        store.add(chat.id, "assistant", "", state="streaming", server="two").id, text="", state="failed"
    )
    alike, one = between(kept(), kept())[0], between(kept(), kept(model="big"))[0]
    assert alike.startswith("Comparable") and mentions(alike, "no", "unknown for both", "hardware")
    assert one.startswith("Comparable") and mentions(one, "only", "model", "toy", "big")
    two = between(kept(), kept(model="big", route="tunnel"))
    assert two[0].startswith("Not comparable")
    assert mentions(two[0], "2", "model", "toy", "big", "route", "not known", "tunnel")
    assert two[1] == "$warning"
    assert between(kept(), failed)[0].startswith("Not comparable") and mentions(between(kept(), failed)[0], "two")


async def test_reasoning_is_shown_as_it_comes(tmp_path: Path) -> None:
    def thought() -> str:
        view = list(screen.query(".reasoning"))[-1]
        return str(view.render()) if view.display else ""  # type: ignore[attr-defined]

    say = Say(["Three."], reasoning=["Let me ", "count [/INST] \x1b[31m", *["again "] * 5000], gap=0.01)
    async with chat_server(say) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "How many?")
            # On a busy machine it may have grown past its beginning before one looks.
            begun = ("Let me count [/INST]", "…")
            await until(lambda: bool(screen.conversation.answers()) and thought().startswith(begun))
            answer = screen.conversation.answers()[-1]
            assert answer.state == "streaming" and answer.text == ""
            await until(lambda: thought().startswith("…"))  # a long one shows its end while it comes
            await pilot.press("ctrl+c")
            await until(lambda: answered(screen))
            await until(lambda: thought().startswith("Let me count [/INST]") and thought().endswith("again "))
            assert screen.conversation.answers()[-1].state == "stopped"
            assert "\x1b" not in thought()


async def test_a_long_error_is_whole_at_80_columns(tmp_path: Path) -> None:
    """Under the question and under the answer: to the last word, on as many lines as it takes."""
    async with chat_server(
        Say(status=400, error="The request holds " + "far too many words " * 8 + "to the END")
    ) as server:
        profile_file(tmp_path, server.port)
        (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
        async with console(tmp_path, (80, 24)) as (pilot, screen):
            await ask(pilot, screen, f"/image {tmp_path / 'broken.png'}")
            notice = screen.query_one("#notice", Static)
            await until(lambda: "broken.png" in str(notice.render()))
            await pilot.pause()
            text = str(notice.render())
            assert len(text) > 76 and notice.region.height >= 2 and notice.region.bottom <= 24
            seen = "".join(strip.text for strip in screen._compositor.render_strips())
            assert text.split()[-1] in seen
            await ask(pilot, screen, "Hello")
            await until(lambda: answered(screen))
            await pilot.pause()
            assert "END" in "".join(strip.text for strip in screen._compositor.render_strips())


@pytest.mark.parametrize("route, network", [("loopback", False), ("tunnel", True), ("network", True)])
def test_a_ttft_over_a_wire_says_that_it_holds_the_wire(route: str, network: bool) -> None:
    answer = {"timing": {"ttft_s": 0.31}, "conditions": {"route": route}}
    row = timing_rows(answer)[0]
    assert isinstance(row, PanelRow)
    assert ("includes network" in row.value) == network == ("includes network" in summary(answer))
