"""How an answer ended, and what was lost of it, under the answer on the chat screen; the Why panel beside it."""

from pathlib import Path

from chat_server import Say, chat_server, profile_file
from refusals import check_nouns, mentions
from test_chat_screen import answered, ask, console, until
from textual.widgets import Static

from vlmconsole.screens.chat.columns import PanelRow
from vlmconsole.screens.chat.why import client_rows, summary, timing_rows, token_rows

BROKEN = b'data: {"id":"c","object":"ch\n\ndata: [DONE]\n\n'
ERROR = b"event: error\ndata: out of memory\n\n"
REFUSED = b'data: {"choices":[{"delta":{"refusal":"I cannot."}}]}\n\ndata: [DONE]\n\n'
CALLED = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c"}]}}]}\n\ndata: [DONE]\n\n'
SAYS = (
    (Say(["a long"], finish="length", output_tokens=1024), ("✂", "1024-token", "limit", "s raises", "r")),
    (Say(["a long"], finish="length", output_tokens=9), ("✂", "server", "9", "1024")),
    (Say([], reasoning=["hm"], finish="length", output_tokens=1024), ("✗", "reasoning", "2")),
    (Say([]), ("✗", "empty", "stop", "r")),
    (Say(["red"], last=BROKEN), ("✗", "1 event", "unreadable")),
    (Say(["red"], last=ERROR), ("✗", "error", "partial", "out of memory")),
    (Say([], last=REFUSED), ("✗", "model", "I cannot.", "r")),
    (Say([], last=CALLED), ("✗", "no answer", "1 tool call")),
    (Say(["red"], last=CALLED), ("!", "1 tool call")),
    (Say(["red"], model="other"), ("!", "toy", "other")),
    (Say(["red"], last=b""), ("✂", "connection", "partial", "toy")),
)


async def test_each_ending_is_said_under_the_answer(tmp_path: Path) -> None:
    async with chat_server(*(say for say, _ in SAYS)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            for number, (_, nouns) in enumerate(SAYS):
                await ask(pilot, screen, f"Q{number}")
                await until(lambda n=number: answered(screen) and len(screen.conversation.answers()) == n + 1)
                view = screen.transcript.view_of(screen.conversation.answers()[-1].id)
                assert view is not None
                foot = str(view.query_one(".foot", Static).render())
                check_nouns(foot, *nouns)
                if number == 2:  # the limit that ate the answer stands below it
                    assert "1024-token limit" in foot


async def test_reasoning_is_no_wait_for_the_first_token(tmp_path: Path) -> None:
    async with chat_server(Say(["red"], reasoning=["hm", " so", " then"], gap=0.3)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Q")
            view = screen.transcript.view_of(screen.conversation.answers()[-1].id)
            assert view is not None
            await until(lambda: "● reasoning" in str(view.query_one(".foot", Static).render()))
            await until(lambda: answered(screen))
            answer = screen.conversation.answers()[-1].answer
    assert answer is not None
    rows = [row for row in timing_rows(answer) if isinstance(row, PanelRow)]
    assert [row.label for row in rows[:2]] == ["first reasoning", "TTFT"]
    assert any(row.label == "" and mentions(row.value, "reasoning tokens", "not") for row in rows)
    assert summary(answer).startswith("reasoning from ")


def test_rows_of_a_whole_body_and_of_a_late_client() -> None:
    whole = {"timing": {"e2e_s": 1.2, "tpot_why": "the answer came whole"}, "streamed": False, "usage": {}}
    check_nouns(summary(whole), "total", "1.20 s", "not streamed")
    late = client_rows({"client": {"lag_p99_ms": 99.4}})
    lag, note = (row for row in late if isinstance(row, PanelRow))
    assert (lag.label, lag.value, note.label) == ("client lag p99", "99 ms", "")
    check_nouns(note.value, "unreliable")
    spent = token_rows({"usage": {"completion_tokens": 9, "reasoning_tokens": 4}})
    assert any(mentions(row.value, "4", "reasoning") for row in spent if isinstance(row, PanelRow))
