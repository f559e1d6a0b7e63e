"""Conversations whose records a disk, a tool or a person has damaged: they are shown, and said to be damaged."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from chat_server import chat_server, profile_file
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import mentions
from test_chat_recent import why
from test_chat_screen import answered, ask, console, until
from test_chat_store import picture, store

from vlmconsole.chats.checked import DAMAGED, read_answer, read_sampling
from vlmconsole.chats.export import chat_json, chat_markdown
from vlmconsole.chats.store import ChatStore
from vlmconsole.cli import main
from vlmconsole.gauges.followed import ChatAnswers
from vlmconsole.screens.chat.evidence import evidence
from vlmconsole.screens.chat.message import foot
from vlmconsole.screens.chat.pair import between
from vlmconsole.screens.chat.why import (
    adapter_rows,
    asked_with,
    client_rows,
    proofs,
    setting_rows,
    sight_lines,
    summary,
    timing_rows,
    token_rows,
    unusual_rows,
)

GOOD = {
    "usage": {"prompt_tokens": 105, "completion_tokens": 3, "cached_tokens": None},
    "timing": {"ttft_s": 0.3, "tpot_s": 0.01, "e2e_s": 0.5, "output_tokens_per_s": 6.0},
    "vision": [
        {"name": "a.png", "sent_size": [4, 3], "sha256": "ab", "expected": 64, "observed": 64, "state": "equal"}
    ],
    "conditions": {"model": "m", "engine": "mlx", "route": "loopback", "temperature": 0.0, "notes": ["adapter x: y"]},
    "client": {"lag_p99_ms": 0.4, "lag_samples": 9},
    "settings": {"running_limit": 4},
    "request": {"temperature": 0.0, "max_tokens": 64, "messages": [{"role": "user", "content": "x"}]},
    "usage_raw": [{"prompt_tokens": 105}],
}
BAD_ANSWERS = [
    "not json", "null", "[1]",
    '{"timing":[1],"usage":[1]}', '{"timing":{"ttft_s":"abc"}}', '{"timing":{"e2e_s":1e999}}',
    '{"usage":{"prompt_tokens":"x","completion_tokens":[1]}}', '{"vision":[1]}', '{"vision":{"observed":"x"}}',
    '{"vision":[{"observed":"64","expected":64}]}', '{"conditions":{"notes":5,"model":[1],"unknown":1}}',
    '{"client":{"lag_p99_ms":"x"}}', '{"request":{"temperature":"hot","messages":[5]}}', '{"settings":[1]}',
    '{"a":' * 20_000, '{"timing":{"ttft_s":NaN}, "usage":{"prompt_tokens":-5}}', '{"finish_reason":"\\ud800"}',
]  # fmt: skip
BAD_SAMPLINGS = ["not json", "[1]", "null", '{"since":"abc"}', '{"temperature":"x","max_tokens":[1]}', '{"seed":1e999}']


def changed(home: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(home / "chats.sqlite") as database:
        database.execute(statement, values)
    database.close()


def talk(home: Path, answer: Any = GOOD) -> ChatStore:
    chats = store(home)
    chat = chats.new_chat(title="one")
    chats.add(chat.id, "user", "What?", pictures=[picture()])
    asked = chats.add(chat.id, "assistant", "", state="streaming")
    chats.finish(asked.id, text="Three.", state="done", answer=answer)
    return chats


def everything_shown(chats: ChatStore) -> str:
    """All that is made of a conversation, anywhere."""
    chat, (question, answer) = chats.chat(1), chats.messages(1)
    facts = answer.answer or {}
    for rows in (adapter_rows, timing_rows, token_rows, client_rows):
        rows(facts)
    setting_rows(facts.get("settings") or {})
    unusual_rows(asked_with(facts), temperature=0.0, max_tokens=64)
    summary(facts)
    for sight in proofs(facts):
        sight_lines(sight)
    between(answer, answer)
    json.dumps(chat_json(chat, [question, answer]), allow_nan=False).encode()
    parts = [chat_markdown(chat, [question, answer]), foot(answer, begun=True).plain, str(evidence(answer))]
    assert all((DAMAGED in part) == answer.damaged for part in parts)
    return "\n".join(parts)


def test_whole_evidence_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_answer(json.dumps(GOOD)) == (GOOD, False)
    assert not talk(tmp_path).messages(1)[1].damaged
    assert DAMAGED not in everything_shown(store(tmp_path))


@pytest.mark.parametrize("bad", BAD_ANSWERS, ids=lambda bad: bad[:30])
def test_a_damaged_answer_is_shown_and_said_to_be_damaged(tmp_path: Path, bad: str) -> None:
    chats = talk(tmp_path)
    changed(tmp_path, "UPDATE messages SET answer = ? WHERE role = 'assistant'", bad)
    assert chats.messages(1)[1].damaged
    assert "Three." in everything_shown(chats)
    for one in ChatAnswers(tmp_path / "chats.sqlite").past(2_000_000.0):
        assert all(value is None or value >= 0 for value in (one.at, one.ttft_s, one.tpot_s, one.output_tokens))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, *GOOD["usage"]]), inner),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(GOOD)), _JSON))
def test_any_json_in_the_place_of_evidence_can_be_shown(tmp_path_factory: pytest.TempPathFactory, answer: Any) -> None:
    home = tmp_path_factory.mktemp("home")
    talk(home)
    changed(home, "UPDATE messages SET answer = ? WHERE role = 'assistant'", json.dumps(answer))
    everything_shown(store(home))


@pytest.mark.parametrize("bad", BAD_SAMPLINGS)
def test_of_damaged_settings_the_usual_ones_hold(tmp_path: Path, bad: str) -> None:
    assert read_sampling('{"temperature": 0.5, "since": 3}') == ({"temperature": 0.5, "since": 3}, False)
    chats = talk(tmp_path)
    changed(tmp_path, "UPDATE chats SET sampling = ?", bad)
    assert (chats.chat(1).sampling, chats.chats()[0].damaged) == ({}, True)
    assert "damaged" in chat_markdown(chats.chat(1), [])


def test_other_columns_may_hold_anything_too(tmp_path: Path) -> None:
    chats = talk(tmp_path)
    changed(tmp_path, "UPDATE chats SET title = x'ff', updated = 'soon', created = -1e300, system = 5")
    changed(tmp_path, "UPDATE messages SET text = x'c3a9', created = 'never', state = 'odd', server = 7")
    changed(tmp_path, "UPDATE pictures SET facts = '[]'")
    question, answer = chats.messages(1)
    assert (chats.chats()[0].updated, answer.text, answer.state) == (0.0, "é", "interrupted")
    assert question.damaged and question.pictures == ()
    everything_shown(chats)


@pytest.mark.parametrize("command", [["chats", "list"], ["chats", "export", "1"], ["--json", "chats", "list"]])
def test_the_commands_go_on_beside_a_damaged_record(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    talk(tmp_path).close()
    changed(tmp_path, "UPDATE messages SET answer = '[1]'")
    changed(tmp_path, "UPDATE chats SET sampling = 'not json'")
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(tmp_path), *command])
    assert not ended.value.code, capsys.readouterr()


async def test_the_console_opens_and_asks_beside_damaged_records(tmp_path: Path) -> None:
    talk(tmp_path).close()
    changed(tmp_path, "UPDATE messages SET answer = '[1]' WHERE role = 'assistant'")
    changed(tmp_path, 'UPDATE chats SET sampling = \'{"since":"abc","temperature":[1]}\'')
    async with chat_server() as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            assert [message.text for message in screen.transcript.messages] == ["What?", "Three."]
            await until(lambda: DAMAGED in why(screen) and mentions(why(screen), "settings", "defaults"))
            await ask(pilot, screen, "And now?")
            await until(lambda: len(screen.conversation.answers()) == 2 and answered(screen))
            assert screen.conversation.answers()[-1].state == "done"
