"""Small things that were said wrong: found by somebody who used the console for the first time."""

from __future__ import annotations

from pathlib import Path

import pytest
import waiting
from audited import PLAN, SmallLab
from chat_server import Say, chat_server, profile_file
from metrics_server import Clock
from test_chat_screen import ask, console
from textual.widgets import OptionList

from vlmconsole.chats.checked import read_answer
from vlmconsole.chats.records import StoredMessage
from vlmconsole.cli import main
from vlmconsole.gates.binding import bind, freeze_for_lab
from vlmconsole.gates.frozen_list import listed
from vlmconsole.gates.plan import parse_plan
from vlmconsole.gauges.feed import RequestFeed
from vlmconsole.gauges.requests import OwnRequests
from vlmconsole.screens.chat.message import foot
from vlmconsole.screens.widgets.keyline import KeyLine


@pytest.mark.parametrize("judged", [False, True])
def test_a_frozen_plan_whose_file_was_changed_is_never_shown_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], judged: bool
) -> None:
    """Also where an evaluation keeps a good copy: the lab's own says other limits under the old hash."""
    lab = SmallLab(tmp_path)
    if judged:
        lab.whole()
    else:
        freeze_for_lab(bind(parse_plan(PLAN, "test"), [lab.dataset]), tmp_path, lab.ledger)
    (plan,) = [one for one in listed(lab.places, lab.ledger.read()) if one.pictures]
    assert plan.fault == ""
    file = next(path for path in (tmp_path / "plans").glob("*.json") if plan.sha256[:12] in path.name)
    file.write_bytes(file.read_bytes().replace(b'"at_least":0.5', b'"at_least":0.1'))
    (plan,) = [one for one in listed(lab.places, lab.ledger.read()) if one.sha256 == plan.sha256]
    assert "changed" in plan.fault and plan.path == str(file)
    for words, code in ((("gates", "show", plan.sha256[:12]), 3), (("gates", "list"), 0)):
        with pytest.raises(SystemExit) as ended:
            main([*words, "--home", str(tmp_path)])
        shown = capsys.readouterr().out
        assert ended.value.code == code and "changed since" in shown and "10 %" not in shown


@pytest.mark.parametrize("observed", [-2, 0, 64])
def test_fewer_tokens_with_an_image_than_without_are_an_alarm_and_no_damage(observed: int) -> None:
    answer, damaged = read_answer(f'{{"vision": [{{"observed": {observed}, "expected": 64, "state": "different"}}]}}')
    assert not damaged and answer["vision"][0]["observed"] == observed


def test_throughput_is_unknown_while_an_answer_comes_and_none_has_ended(tmp_path: Path) -> None:
    feed, tick = RequestFeed(), Clock(0.0)
    own = OwnRequests(tmp_path / "runs", tmp_path / "chats.sqlite", feed, clock=tick, wall=Clock(5000.0))
    own.read()
    with feed.request() as done:
        tick.at = 5.0
        figure = own.read().figures["own.throughput"]
        assert figure.value is None and "ends" in figure.note
        done(ttft_s=0.1, tpot_s=0.01, output_tokens=50)
    tick.at = 6.0
    assert own.read().figures["own.throughput"].value == pytest.approx(50 / 6)
    tick.at = 30.0
    assert own.read().figures["own.throughput"].value == 0, "nothing is in flight: then none is a figure"
    own.close()


@pytest.mark.parametrize(("waits", "words"), [("after 2, which waits", "after 2"), ("cpu", "for cpu")])
def test_what_an_answer_waits_for_is_a_sentence(waits: str, words: str) -> None:
    message = StoredMessage(1, 1, "assistant", "", "", 0.0, "streaming", "", "demo", None, False, ())
    assert f"waiting {words}" in foot(message, begun=False, waits=waits).plain


async def test_a_key_stands_once_in_the_footer_and_the_server_list_begins_at_the_one_in_use(tmp_path: Path) -> None:
    async with chat_server(Say(["word "] * 400, gap=0.02)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Go on")
            await waiting.until(lambda: bool(screen.asker.running))
            await pilot.press("escape")
            assert screen.query_one(KeyLine).render().plain.count("x stop") == 1
            await pilot.press("x")
            await waiting.until(lambda: not screen.asker.running)
            await pilot.press("S")
            await waiting.until(lambda: len(pilot.app.screen_stack) == 2)
            options = pilot.app.screen.query_one(OptionList)
            await waiting.until(lambda: options.highlighted is not None)
            assert options.get_option_at_index(options.highlighted or 0).id == "toy"
            await pilot.press("enter")
            assert screen.console.link is not None and screen.console.link.profile.name == "toy"
