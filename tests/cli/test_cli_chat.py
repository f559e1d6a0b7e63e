"""`vlmconsole chat` and `servers` as a script sees them."""

import asyncio
import base64
import io
import json
import os
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT
from refusals import check_stderr, mentions
from replay import Reply, json_reply, replay, said, sse

from vlmconsole.cli import main
from vlmconsole.servers.server import Ready

PICTURE = str(ROOT / "assets" / "pictures" / "scene-few.png")
USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}


async def run(home: Path, *words: str | bytes, stdin: str | bytes = "") -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "vlmconsole", "--home", str(home), *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(stdin.encode() if isinstance(stdin, str) else stdin), 90)
    return process.returncode or 0, out.decode(), err.decode()


async def test_streams_text_to_stdout_and_the_rest_to_stderr(tmp_path: Path) -> None:
    stream = Reply(sse(said("re\x1b[31md "), said("ones", "stop"), USAGE), pause=0.01)
    async with replay({"POST /v1/chat/completions": stream}) as player:
        code, out, err = await run(tmp_path, "chat", "what?", "--base-url", player.url, "--max-tokens", "7")
        ways = ("--seed", "7", "--top-p", "0.9", "--temperature", "0.5", "--system", "Be brief.")
        piped = await run(tmp_path, "chat", "--base-url", player.url, "--quiet", *ways, stdin="from a pipe")
        asked = [request for route, _, request in player.seen if route.startswith("POST")]
    assert (code, out) == (0, "red ones\n")  # model output is inert: no escape sequence reaches the terminal
    assert "TTFT" in err and "9 in, 2 out" in err and "cached not reported" in err
    assert asked[0]["max_tokens"] == 7 and asked[0]["messages"][0]["content"] == "what?"
    assert [asked[0].get(name) for name in ("seed", "top_p")] == [None, None]  # the server's own, unless asked
    assert piped == (0, "red ones\n", "")
    assert [asked[1][name] for name in ("seed", "top_p", "temperature")] == [7, 0.9, 0.5]
    said_to_it = [(message["role"], message["content"]) for message in asked[1]["messages"]]
    assert said_to_it == [("system", "Be brief."), ("user", "from a pipe")]


async def test_json_is_one_value_and_a_failure_is_one_line_with_what_came(tmp_path: Path) -> None:
    routes = {"POST /v1/chat/completions": [Reply(sse(said("red"), USAGE)), Reply(sse(said("half"), done=False))]}
    async with replay(routes) as player:
        good = await run(tmp_path, "chat", "x", "--base-url", player.url, "--json", "--quiet")
        cut = await run(tmp_path, "chat", "x", "--base-url", player.url, "--json", "--quiet")
    value = json.loads(good[1])
    assert good[0] == 0 and value["text"] == "red" and value["usage"]["cached_tokens"] is None
    assert cut[0] == 1
    check_stderr(cut[2], player.url, "[DONE]")
    assert json.loads(cut[1])["error"]["answer"]["text"] == "half"


THOUGHT = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
LOST = [b'data: {"id":"c","object":"ch' + sse(said("red"))[0], b"data: [DONE]\n\n"]


ENDINGS = [
    (sse(said("red", "length")), 0, "red\n", ("warning:", "1024-token", "--max-tokens")),
    (sse(THOUGHT, said("", "length")), 1, "", ("error:", "--max-tokens", "1024")),
    (LOST, 1, "red\n", ("error:", "1 event", "unreadable")),
    (sse({**said("red"), "model": "other"}, THOUGHT), 0, "red\n", ("warning:", "m", "other")),
]


async def test_how_an_answer_ended_is_said_and_decides_the_code(tmp_path: Path) -> None:
    """A few as processes; test_four_surfaces.py has all of them in its own."""

    def reply(request: dict[str, Any]) -> Reply:
        return Reply(ENDINGS[int(request["messages"][0]["content"])][0])

    async with replay({"POST /v1/chat/completions": reply}) as player:
        asked = (run(tmp_path, "chat", str(n), "--base-url", player.url) for n in range(len(ENDINGS)))
        done = await asyncio.gather(*asked)
    for got, (_, code, out, nouns) in zip(done, ENDINGS, strict=True):
        assert got[:2] == (code, out) and mentions(got[2], *nouns), got
    assert "first reasoning" in done[-1][2] and "client lag" in done[-1][2]


async def test_a_whole_body_shows_its_figures_and_the_alarm(tmp_path: Path) -> None:
    body = {"model": "m", "choices": [{"message": {"content": "red"}, "finish_reason": "stop"}]}
    body["usage"] = {"prompt_tokens": 9, "completion_tokens": 1}
    async with replay({"POST /v1/chat/completions": json_reply(body)}) as player:
        code, out, err = await run(tmp_path, "chat", "x", "--base-url", player.url, "--image", PICTURE)
    assert (code, out) == (0, "red\n") and "9 in, 1 out" in err and "TTFT unknown" in err and "not streamed" in err
    assert "✗ ALARM" in err and "ignored the image" in err


async def test_an_image_is_found_as_the_screen_finds_it(tmp_path: Path) -> None:
    names = ("Screenshot 2026-11-29 at 8.44\u202fPM.png", unicodedata.normalize("NFD", "Größe.png"))
    for name in names:
        (tmp_path / name).write_bytes(Path(PICTURE).read_bytes())
    folder = tmp_path / unicodedata.normalize("NFC", "Fotos ö")
    folder.mkdir()
    (folder / "a b.png").write_bytes(Path(PICTURE).read_bytes())
    written = [
        str(tmp_path / names[0]).replace("\u202f", " "),
        str(tmp_path / unicodedata.normalize("NFC", names[1])),
        (tmp_path / names[0]).as_uri(),
        f"file://localhost{(folder / 'a b.png').as_posix().replace(' ', '%20')}",
        str(tmp_path / unicodedata.normalize("NFD", "Fotos ö") / "a b.png"),
    ]
    async with replay({"POST /v1/chat/completions": Reply(sse(said("red", "stop")))}) as player:
        words = [word for path in written for word in ("--image", path)]
        code, out, err = await run(tmp_path / "home", "chat", "x", "--base-url", player.url, *words)
        gone = await run(tmp_path / "home", "chat", "x", "--base-url", player.url, "--image", "file:///nowhere/a.png")
    assert (code, out) == (0, "red\n"), err
    assert gone[0] == 1 and "/nowhere/a.png" in gone[2]


async def test_bad_usage_is_2_and_failures_are_1_with_one_line(tmp_path: Path) -> None:
    refused = json_reply({"error": {"message": "No such model"}}, 404)
    async with replay({"POST /v1/chat/completions": refused}) as player:
        cases = [
            (2, ["chat", "x", "--server", "nosuch"]),
            (2, ["chat", "x", "--server", "demo", "--base-url", "http://h"]),
            (2, ["chat", "x", "--base-url", "ftp://h"]),
            (2, ["chat", "x", "--model", "m"]),
            (2, ["chat", "x", "--top-p", "0"]),
            (2, ["chat", "x", "--seed", "-1"]),
            (2, ["chat"]),
            (1, ["chat", "x", "--image", str(tmp_path / "none.png"), "--base-url", player.url]),
            (1, ["chat", "x", "--base-url", player.url]),
            (1, ["chat", "x", "--base-url", "http://127.0.0.1:9"]),
            (1, ["servers", "stop", "openai"]),
        ]
        done = await asyncio.gather(*(run(tmp_path, *words) for _, words in cases))
    for (code, words), (got, out, err) in zip(cases, done, strict=True):
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (got, out, len(lines)) == (code, "", 1), (words, err)
        assert "Traceback" not in err


async def test_a_question_that_cannot_fit_is_not_sent(tmp_path: Path) -> None:
    """Without the model's tokenizer its length is estimated, but not even its least fits into 2,048 tokens."""
    async with replay({"POST /v1/chat/completions": Reply(sse(said("no", "stop"), USAGE))}) as player:
        code, out, err = await run(tmp_path, "chat", "--base-url", player.url, "--quiet", stdin="word " * 60_000)
        sent = [route for route, _, _ in player.seen if route.startswith("POST")]
    assert (code, out, sent) == (1, "", [])
    check_stderr(err, "question", "fit", "2048 tokens")


async def test_arguments_that_are_no_text_are_said_so(tmp_path: Path) -> None:
    there = ("--base-url", "http://127.0.0.1:9")
    cases: list[tuple[list[str | bytes], str]] = [
        ([b"caf\xc3\xa9 \xff\xfe"], "The question is not UTF-8 (byte 6)."),
        (["x", "--system", b"\xff"], "--system is not UTF-8 (byte 0)."),
        (["x", "--model", b"m\xff"], "--model is not UTF-8 (byte 1)."),
    ]
    done = await asyncio.gather(*(run(tmp_path, "chat", *words, *there) for words, _ in cases))
    assert done == [(2, "", f"error: {said}\n") for _, said in cases]


async def test_a_picture_from_the_web_or_from_a_pipe_is_sent_as_its_bytes(tmp_path: Path) -> None:
    data = Path(PICTURE).read_bytes()
    answers = {"POST /v1/chat/completions": Reply(sse(said("red", "stop"), USAGE))}
    routes = {**answers, "GET /scene.png": Reply([data], kind="image/png")}
    async with replay(routes) as player:
        there, url = ("--base-url", player.url, "--quiet"), f"{player.url}/scene.png"
        fetched, piped, inside = await asyncio.gather(
            run(tmp_path, "chat", "what?", "--image", url, "--private", *there),
            run(tmp_path, "chat", "what?", "--image", "-", *there, stdin=data),
            run(tmp_path, "chat", "what?", "--image", url, *there),
        )
        asked = [request for route, _, request in player.seen if request and "stream_options" in request]
    assert (fetched, piped) == ((0, "red\n", ""),) * 2
    sent = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    with_picture = [one["messages"][0]["content"] for one in asked if isinstance(one["messages"][0]["content"], list)]
    assert [content[0]["image_url"]["url"] for content in with_picture] == [sent, sent]
    assert inside[0] == 1 and "--private" in inside[2]


async def test_a_server_given_by_its_address_is_called_by_it(tmp_path: Path) -> None:
    nameless = {"GET /v1/models": json_reply({"data": []})}
    refused = {"POST /v1/chat/completions": json_reply({"error": {"message": "Too warm"}}, 400)}
    async with replay(nameless) as silent, replay(refused) as player:
        done = await asyncio.gather(*(run(tmp_path, "chat", "x", "--base-url", one.url) for one in (silent, player)))
    said = (f"{silent.url} names no model; name it with --model", f"{player.url} answered 400: Too warm (the server")
    for got, line in zip(done, said, strict=True):
        assert got[:2] == (1, "") and got[2].startswith(f"error: {line}"), got


@pytest.mark.parametrize(
    ("words", "code", "nouns"),
    [
        (["--image", "-"], 2, ("question", "argument")),
        (["-", "--image", "-"], 2, ("question", "argument")),
        (["x", "--image", "-", "--image", "-"], 2, ("--image -", "twice")),
        (["x", "--image", "-"], 1, ("standard input", "empty", "0 bytes")),
        (["x", "--image", "HTTP://127.0.0.1:9/a//b.png"], 1, ("127.0.0.1", "--private")),
        (["x", "--image", "http://me:secret@h/b.png"], 1, ("h", "password")),
    ],
)
def test_pictures_that_cannot_be_read_are_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    code: int,
    nouns: tuple[str, ...],
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    with pytest.raises(SystemExit) as ended:
        main(["--home", str(tmp_path), "--quiet", "chat", *words])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (code, "") and err.count("\n") == 1 and "secret" not in err
    check_stderr(err, *nouns)


async def test_the_real_server_from_the_command_line(mlx_server: Ready) -> None:
    assert mlx_server.log is not None
    home = Path(mlx_server.log).parents[2]
    (listed, shown, asked, started) = await asyncio.gather(
        run(home, "servers", "list", "--json"),
        run(home, "servers", "show", "demo", "--json"),
        run(home, "chat", "Count the red circles.", "--image", PICTURE, "--max-tokens", "8", "--json"),
        run(home, "servers", "start", "demo", "--json"),
    )
    states = {row["name"]: row["state"] for row in json.loads(listed[1])["servers"]}
    assert states["demo"] == "ready" and {"mlx-local", "sglang-remote", "openai"} <= set(states)
    effective = json.loads(shown[1])["effective"]
    assert effective["running_limit"] == 4 and effective["version"] == "0.7.10"
    answer = json.loads(asked[1])
    (sight,) = answer["vision"]
    assert answer["models"] and {one["code"] for one in answer["remarks"]} <= {"limit"}, answer["remarks"]
    beside = {line["name"]: line for line in json.loads(shown[1])["settings"]}
    assert (beside["running limit B"]["wanted"], beside["running limit B"]["state"]) == ("4", "same")
    assert asked[0] == 0 and (sight["expected"], sight["observed"], sight["state"]) == (64, 64, "equal")
    assert json.loads(started[1])["how"] == "was running" and json.loads(started[1])["pid"] == mlx_server.pid


async def test_the_list_of_servers_keeps_titles_beside_faults_and_ends_lines_at_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "far.toml").write_text(
        'engine = "openai"\ntitle = "The far one"\nbase_url = "http://127.0.0.1:9"\nmodel = "none"\n'
    )
    code, out, _ = await run(tmp_path, "servers", "list")
    lines = out.splitlines()
    (row,) = (line for line in lines if " far " in line)
    assert code == 0 and row.endswith("http://127.0.0.1:9        The far one")
    (why,) = (line for line in lines if line.startswith("far: "))
    assert mentions(why, "nothing", "http://127.0.0.1:9")
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("words", [["servers", "show", "nosuch"], ["servers", "start", "nosuch"]])
async def test_an_unknown_profile_names_the_known_ones(tmp_path: Path, words: list[str]) -> None:
    code, _, err = await run(tmp_path, *words)
    assert code == 2 and "demo" in err and "sglang-remote" in err


@pytest.mark.slow
async def test_a_restart_leaves_one_server_a_new_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = json.loads((await run(home, "servers", "restart", "demo", "--json", "--quiet"))[1])
    try:
        code, out, err = await run(home, "servers", "restart", "demo", "--json")
        second = json.loads(out)
        assert (code, first["how"], second["how"]) == (0, "started", "started") and "demo ended" in err
        assert second["pid"] != first["pid"] and not Path(f"/proc/{first['pid']}").exists()
    finally:
        await run(home, "servers", "stop", "demo")
