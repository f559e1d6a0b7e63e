"""A model as judge: asked by its rubric, read strictly, and only as good as its agreement with one's own notes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlmconsole.gates.plan import Group
from vlmconsole.scoring.kappa import cohens_kappa
from vlmconsole.scoring.registry import find_scorer, identity
from vlmconsole.scoring.supported.judge import KEY_VARIABLE, read_reply


class _JudgeServer(ThreadingHTTPServer):
    reply: str = '{"score": 1}'
    status: int = 200

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, Any], str | None]] = []
        super().__init__(("127.0.0.1", 0), _JudgeHandler)


class _JudgeHandler(BaseHTTPRequestHandler):
    server: _JudgeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((body, self.headers.get("Authorization")))
        data = json.dumps({"choices": [{"message": {"content": self.server.reply}}]}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[_JudgeServer]:
    one = _JudgeServer()
    thread = threading.Thread(target=one.serve_forever, daemon=True)
    thread.start()
    yield one
    one.shutdown()
    one.server_close()
    thread.join()


def options(server: _JudgeServer, **more: Any) -> dict[str, Any]:
    return {"url": f"http://127.0.0.1:{server.server_port}/v1", "model": "big", "rubric": "Same meaning.", **more}


def test_a_judge_is_asked_by_its_rubric_and_read(server: _JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "k-1")
    server.reply = '{"score": 0.5}'
    score = find_scorer("judge").score("a cat", "cat", options(server))
    assert (score.score, score.correct, score.valid) == (0.5, False, True)
    assert find_scorer("judge").score("a cat", "cat", options(server, right_from=0.5)).correct
    body, key = server.requests[0]
    assert key == "Bearer k-1" and (body["model"], body["temperature"]) == ("big", 0)
    assert "Same meaning." in body["messages"][0]["content"] and "a cat" in body["messages"][1]["content"]


@pytest.mark.parametrize(
    ("reply", "status"), [("yes", 200), ('{"score": 2}', 200), ('{"score": 1} ok', 200), ('{"score": 1}', 500)]
)
def test_what_is_no_verdict_is_invalid_with_its_reason(server: _JudgeServer, reply: str, status: int) -> None:
    server.reply, server.status = reply, status
    score = find_scorer("judge").score("a cat", "cat", options(server))
    assert (score.score, score.valid) == (0.0, False) and "judge" in score.reason and score.details["failed"]


def test_a_judge_that_is_not_there_fails_its_answer(server: _JudgeServer) -> None:
    server.shutdown()
    server.server_close()
    score = find_scorer("judge").score("a cat", "cat", options(server, limit=2))
    assert not score.valid and "judge" in score.reason


@settings(max_examples=60)
@given(st.text(max_size=30) | st.text('{"score": 01.5}', max_size=20))
def test_only_the_one_object_is_a_verdict(text: str) -> None:
    score = read_reply(text)
    assert score is None or (json.loads(text) == {"score": score} and 0 <= score <= 1)


def test_its_rubric_is_part_of_its_identity_and_it_decides_no_gate(server: _JudgeServer) -> None:
    first, second = options(server), options(server, rubric="Another.")
    assert identity("judge", first) != identity("judge", second)
    assert find_scorer("judge").check("cat", {}) and not find_scorer("judge").check("cat", first)
    with pytest.raises(ValueError, match="judge"):
        Group(name="a", split="test", n=2, scorer="judge", options=first)


def test_kappa_is_cohens() -> None:
    # Cohen's own arrangement: 20 both yes, 5 and 10 apart, 15 both no: observed 0.7, by chance 0.5.
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    made = cohens_kappa([a for a, _ in pairs], [b for _, b in pairs])
    assert made.kappa == pytest.approx(0.4) and made.same == pytest.approx(0.7) and made.n == 50
    assert made.low < 0.4 < made.high
    assert cohens_kappa([True] * 30, [True] * 30).kappa == 0
    assert cohens_kappa([True, False] * 20, [True, False] * 20).kappa == 1
    assert cohens_kappa([True, False] * 20, [False, True] * 20).kappa == -1
    with pytest.raises(ValueError, match="30"):
        cohens_kappa([True] * 29, [True] * 29)
