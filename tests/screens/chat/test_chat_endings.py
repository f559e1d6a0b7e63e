"""How an answer ended, and what was lost of it, under the answer on the chat screen; the Why panel beside it."""

from pathlib import Path

from chat_server import Say, chat_server, profile_file
from test_chat_screen import answered, ask, console, until
from textual.widgets import Static

from vlmconsole.screens.chat.columns import Row
from vlmconsole.screens.chat.why import client_rows, summary, timing_rows, token_rows

BROKEN = b'data: {"id":"c","object":"ch\n\ndata: [DONE]\n\n'
ERROR = b"event: error\ndata: out of memory\n\n"
REFUSED = b'data: {"choices":[{"delta":{"refusal":"I cannot."}}]}\n\ndata: [DONE]\n\n'
CALLED = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"c"}]}}]}\n\ndata: [DONE]\n\n'
SAYS = (
    (Say(["a long"], finish="length", output_tokens=1024), "✂ hit the 1024-token limit · s raises it · r asks again"),
    (Say(["a long"], finish="length", output_tokens=9), "✂ cut by the server after 9 tokens (1024 allowed)"),
    (Say([], reasoning=["hm"], finish="length", output_tokens=1024), "✗ only reasoning came (2 characters), no answer"),
    (Say([]), "✗ the answer is empty (finish stop) · r asks again"),
    (Say(["red"], last=BROKEN), "✗ 1 event of the stream unreadable; a part of the answer may be missing"),
    (Say(["red"], last=ERROR), "✗ the server reported an error mid-answer; partial answer kept: out of memory"),
    (Say([], last=REFUSED), "✗ the model refused: I cannot. · r asks again"),
    (Say([], last=CALLED), "✗ no answer but 1 tool call"),
    (Say(["red"], last=CALLED), "! 1 tool call came with the answer"),
    (Say(["red"], model="other"), "! asked for toy, and other answered"),
    (Say(["red"], last=b""), "✂ connection lost mid-answer; partial answer kept: server toy closed the answer before"),
)


async def test_each_ending_is_said_under_the_answer(tmp_path: Path) -> None:
    async with chat_server(*(say for say, _ in SAYS)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            for number, (_, words) in enumerate(SAYS):
                await ask(pilot, screen, f"Q{number}")
                await until(lambda n=number: answered(screen) and len(screen.answers()) == n + 1)
                view = screen.transcript.view_of(screen.answers()[-1].id)
                assert view is not None
                foot = str(view.query_one(".foot", Static).render())
                assert words in " ".join(foot.split()), (words, foot)
                if number == 2:  # the limit that ate the answer stands below it
                    assert "1024-token limit" in foot


async def test_reasoning_is_no_wait_for_the_first_token(tmp_path: Path) -> None:
    async with chat_server(Say(["red"], reasoning=["hm", " so", " then"], gap=0.3)) as server:
        profile_file(tmp_path, server.port)
        async with console(tmp_path) as (pilot, screen):
            await ask(pilot, screen, "Q")
            view = screen.transcript.view_of(screen.answers()[-1].id)
            assert view is not None
            await until(lambda: "● reasoning" in str(view.query_one(".foot", Static).render()))
            await until(lambda: answered(screen))
            answer = screen.answers()[-1].answer
    assert answer is not None
    rows = [row for row in timing_rows(answer) if isinstance(row, Row)]
    assert [row.label for row in rows[:2]] == ["first reasoning", "TTFT"]
    assert ("", "reasoning tokens not reported") in [(row.label, row.value) for row in rows]
    assert summary(answer).startswith("reasoning from ")


def test_rows_of_a_whole_body_and_of_a_late_client() -> None:
    whole = {"timing": {"e2e_s": 1.2, "tpot_why": "the answer came whole"}, "streamed": False, "usage": {}}
    assert summary(whole) == "whole answer 1.20 s, not streamed"
    late = client_rows({"client": {"lag_p99_ms": 99.4}})
    assert [(row.label, row.value) for row in late if isinstance(row, Row)] == [
        ("client lag p99", "99 ms"), ("", "too high, timings unreliable")
    ]  # fmt: skip
    spent = token_rows({"usage": {"completion_tokens": 9, "reasoning_tokens": 4}})
    assert "4 of them reasoning" in [row.value for row in spent if isinstance(row, Row)]
