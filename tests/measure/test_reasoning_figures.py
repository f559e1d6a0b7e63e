"""Reasoning in a measurement: its own time, no part of the wait, and what TPOT leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vlmconsole.cli.measured import tpot_left_out
from vlmconsole.drawings.measured import DECODE, PREFILL, REASONING
from vlmconsole.drawings.measured import waterfalls as drawn_waterfalls
from vlmconsole.measure.client.replay import to_row, understand
from vlmconsole.measure.client.spill import WHOLE, Raw
from vlmconsole.measure.summary import Gatherer, Lag
from vlmconsole.measure.views import parts, waterfalls
from vlmconsole.runs.folder import RunFolder

SECOND = 1_000_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(**value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def piece(**delta: str) -> bytes:
    return event(choices=[{"index": 0, "delta": delta}])


def usage(output: int, reasoning: int | None) -> bytes:
    details = {} if reasoning is None else {"completion_tokens_details": {"reasoning_tokens": reasoning}}
    return event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": output, **details}) + b"data: [DONE]\n\n"


def raw(number: int, *came: tuple[float, bytes]) -> Raw:
    reads = [(int(at * SECOND), [], data) for at, data in ((0.05, HEAD), *came)]
    end = reads[-1][0]
    return Raw(number, "measured", 0, 0, 0, 0, None, 0, 1, end, WHOLE, "", reads)


REASONED = ((1.0, piece(reasoning_content="Hm")), (2.0, piece(reasoning_content=" so")), (3.0, piece(content="4")))
CASES = {
    "text only": ((1.0, piece(content="a")), (1.5, piece(content="b")), (1.6, usage(3, None))),
    "reasoned": (*REASONED, (3.5, piece(content="2")), (3.6, usage(6, 4))),
    "reasoned, not counted apart": (*REASONED, (3.5, piece(content="2")), (3.6, usage(6, None))),
    "one read": ((1.0, piece(content="a") + piece(content="b") + usage(3, None)),),
    "one piece": ((1.0, piece(content="ab")), (1.6, usage(2, None))),
    "reasoning only": ((1.0, piece(reasoning_content="Hm")), (1.5, usage(2, 2))),
}


def gathered(*names: str) -> tuple[Any, list[dict[str, Any]]]:
    take, rows = Gatherer(None, False), []
    for number, name in enumerate(names):
        one = understand(raw(number, *CASES[name]))
        assert one.failure is None, one.failure
        take.add(one)
        rows.append(to_row(one, counted=True))
    lag = Lag(probe=None, kernel=None)
    return take.summary(name="c", lag=lag, lag_limit_s=1, client=None, server={}, broken=None), rows


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("text only", 0),
        ("reasoned", 0),
        ("reasoned, not counted apart", 1),
        ("one read", 1),
        ("one piece", 1),
        ("reasoning only", 1),
    ],
)
def test_tpot_says_how_many_answers_it_leaves_out(name: str, left_out: int) -> None:
    summary, rows = gathered(name, "text only")
    assert summary.n == 2 and summary.tpot_s.n == 2 - left_out
    assert sum(summary.tpot_left_out.values()) == left_out
    said = tpot_left_out(json.loads(json.dumps(summary.to_json())))
    assert (f"{left_out} of 2" in said) if left_out else not said
    assert bool(rows[0]["tpot_why"]) == bool(left_out)


@pytest.mark.parametrize("found", [{}, {"tpot_left_out": "x"}, {"tpot_left_out": {"a": "b"}}, {"tpot_left_out": {}}])
def test_summaries_from_before_say_nothing_of_it(found: dict[str, Any]) -> None:
    assert tpot_left_out(found) == ""


def test_reasoning_has_its_own_time_and_is_no_wait(tmp_path: Path) -> None:
    summary, rows = gathered("reasoned", "text only")
    assert summary.ttfr_s.n == 1 and summary.ttfr_s.p50 == pytest.approx(1.0)
    run = RunFolder.create(tmp_path, kind="bench", preset="p", spec={}, title="t", home=tmp_path)
    run.append_jsonl("requests.jsonl", *rows)
    (bars,) = waterfalls(run).values()
    wait, prefill, decode = parts(bars[0], 1.0)
    assert (wait + prefill, decode) == (pytest.approx(1.0), pytest.approx(2.6))
    drawn = [line.plain for line in drawn_waterfalls([("", bars)], 80)]
    legend, reasoned, text_only = drawn[2], drawn[5], drawn[6]
    assert f"{REASONING} reasoning" in legend and "of the reasoning" in drawn[4]
    assert PREFILL in reasoned and REASONING in reasoned and DECODE in reasoned
    assert PREFILL in text_only and REASONING not in text_only
    plain = drawn_waterfalls([("", bars[1:])], 80)
    assert REASONING not in "".join(line.plain for line in plain)
