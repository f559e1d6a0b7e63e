"""The console's line to a server by address: what the top bar says, and the settings that an answer is stored with."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from waiting import until

from vlmconsole.chats.sampling import Question
from vlmconsole.client.answer import Answer
from vlmconsole.client.chat import ChatClient
from vlmconsole.desks.servers import ServerDesk
from vlmconsole.engines.profile import ServerProfile, make_profile
from vlmconsole.models.messages import Message
from vlmconsole.runs.places import Places
from vlmconsole.screens import link as link_module
from vlmconsole.screens.link import SILENT, WARMING, ServerLink
from vlmconsole.servers.processes import free_port
from vlmconsole.servers.where import server_of

HELLO = [Message("user", "Hello")]

# What SGLang says of itself and answers; 503 of /health for as long as the file `warming` is there.
SERVER = """
import http.server, json, os, sys
port, limit, cache_off, version, warming = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "off", *sys.argv[4:6]
INFO = {"version": version, "max_running_requests": limit, "disable_radix_cache": cache_off, "context_length": 4096,
        "internal_states": [{"effective_max_running_requests_per_dp": limit}]}
EVENTS = [{"choices": [{"index": 0, "delta": {"content": "Hi."}}]},
          {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
          {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 1}}]
class Answer(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def whole(self, value, status=200, kind="application/json"):
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        known = {"/server_info": INFO, "/v1/models": {"data": [{"id": "served", "max_model_len": 4096}]}}
        if self.path == "/health":
            return self.whole({}, 503 if os.path.exists(warming) else 200)
        return self.whole(known.get(self.path, {}), 200 if self.path in known else 404)
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        data = b"".join(b"data: " + json.dumps(e).encode() + b"\\n\\n" for e in EVENTS) + b"data: [DONE]\\n\\n"
        return self.whole(data, kind="text/event-stream")
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answer)
print("up", flush=True)
server.serve_forever()
"""


@contextmanager
def serving(port: int, folder: Path, limit: int = 4, cache: str = "on", version: str = "0.5.23") -> Iterator[int]:
    words = [sys.executable, "-c", SERVER, str(port), str(limit), cache, version, str(folder / "warming")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield process.pid
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def box() -> ServerProfile:
    return make_profile({"name": "box", "engine": "sglang", "base_url": f"http://127.0.0.1:{free_port()}/v1"})


@pytest.fixture
async def link(box: ServerProfile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerLink]:
    monkeypatch.setattr(link_module, "PULSE", 0.05)
    monkeypatch.setattr(link_module, "PULSE_S", 0.5)
    found = ServerLink(box, Places(tmp_path / "lab").ensure(), lambda: None)
    yield found
    await found.close()


def port_of(box: ServerProfile) -> int:
    return int(box.base_url.rpartition(":")[2].removesuffix("/v1"))


async def ask(link: ServerLink) -> Answer:
    return await link.ask(Question(HELLO, temperature=0.0, max_tokens=4), on_delta=lambda _: None)


async def says(link: ServerLink, word: str) -> None:
    """The top bar, looked at as the console does it, comes to say that."""

    def there() -> bool:
        link.look()
        return link.view.short == f"box · {word}"

    await until(there, 20.0)


async def test_an_answer_is_stored_with_the_settings_of_its_own_moment(
    link: ServerLink, box: ServerProfile, tmp_path: Path
) -> None:
    with serving(port_of(box), tmp_path, 4):
        await link.start()
        first = await ask(link)
        assert first.ok and first.conditions.running_limit == 4 and link.settings["running limit B"] == 4
    # The same address, and nobody has looked meanwhile: B, the cache and the version are others.
    with serving(port_of(box), tmp_path, 2, "off", "0.5.24"):
        second = await ask(link)
        assert second.ok, second.result.error
        told = second.conditions
        assert (told.running_limit, told.cache, told.engine_version) == (2, "off", "0.5.24")
        assert told.settings is not None and told.settings["max-running-requests"] == 2
        assert link.settings["running limit B"] == 2 and link.settings["prefix cache"] is False
        assert link.view.version == "0.5.24" and link.view.state == "ready"


async def test_settings_that_a_caller_watches_over_are_not_asked_for_again(box: ServerProfile, tmp_path: Path) -> None:
    """As an evaluation does it, which reads them before, between and after its sides."""
    with serving(port_of(box), tmp_path, 4):
        async with ChatClient(box) as client:
            await client.prepare()
            kept = client.settings
        async with ChatClient(box, kept) as watched:
            assert (await watched.ask(HELLO)).ok and watched.settings is kept


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_the_top_bar_does_not_call_it_ready_once_it_is_gone(
    how: str, link: ServerLink, box: ServerProfile, tmp_path: Path
) -> None:
    with serving(port_of(box), tmp_path, 4) as pid:
        await link.start()
        assert link.view.short == "box · ready"
        os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        await says(link, "not reachable" if how == "killed" else SILENT)
        if how == "frozen":
            os.kill(pid, signal.SIGCONT)
            await says(link, "ready")
    if how == "killed":
        with serving(port_of(box), tmp_path, 2):  # another one comes: found without a question, and read anew
            await says(link, "ready")
            assert link.settings["running limit B"] == 2


async def test_a_503_of_its_health_is_a_start(link: ServerLink, box: ServerProfile, tmp_path: Path) -> None:
    places = Places(tmp_path / "lab")
    (tmp_path / "warming").touch()
    with serving(port_of(box), tmp_path, 4):
        await link.start()
        assert link.view.short == f"box · {WARMING}", "its models are listed already"
        assert (await ask(link)).ok, "a question is taken all the same"
        (tmp_path / "warming").unlink()
        await says(link, "ready")
    await says(link, "not reachable")
    (tmp_path / "warming").touch()
    with serving(port_of(box), tmp_path, 4):
        await says(link, WARMING)
        assert (await server_of(box, places).probe(thoroughly=True)).state == "starting"
        assert (await server_of(box, places).probe()).state == "ready", (
            "a token is made to tell it: not asked each time"
        )
        (tmp_path / "warming").unlink()
        await says(link, "ready")


async def test_a_server_that_was_not_there_at_the_consoles_start_is_found(
    link: ServerLink, box: ServerProfile, tmp_path: Path
) -> None:
    await link.start()
    assert link.view.state == "failed"
    why = link.view.note
    link.look()
    assert link.view.note == why, "it says why, and goes on looking"
    with serving(port_of(box), tmp_path, 4):
        await says(link, "ready")


def test_the_servers_screen_says_it_too(box: ServerProfile, tmp_path: Path) -> None:
    places = Places(tmp_path / "lab").ensure()
    (places.servers / "box.toml").write_text(f'engine = "sglang"\nbase_url = "{box.base_url}"\n')
    (tmp_path / "warming").touch()
    desk = ServerDesk(places)
    with serving(port_of(box), tmp_path, 4):
        states = {line.profile.name: line.status.state for line in desk.look("box").lines}
        assert states["box"] == "starting"
    desk.close()
