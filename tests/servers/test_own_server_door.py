"""The lab's own mlx-vlm server: whoever has no key, comes from a web page, or names anything of the machine is refused.

Each attack was seen to work on the server without its guard. A second user's and a browser's are the slow ones.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from browser import CHROMIUM, browser
from folders import ROOT

from vlmconsole.engines import mlx_guard
from vlmconsole.engines.http import open_client
from vlmconsole.engines.profile import make_profile
from vlmconsole.engines.readback import readback
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes
from vlmconsole.servers.processes import KEY_MARK
from vlmconsole.servers.server import Ready
from vlmconsole.servers.where import server_of

PICTURE = ROOT / "assets" / "pictures" / "scene-few.png"


def chat(ready: Ready, **more: Any) -> dict[str, Any]:
    return {"model": ready.model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **more}


def seen(*parts: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(parts)}]


def image(url: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


async def send(ready: Ready, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    async with open_client(ready.profile, 60.0) as client:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await client.request(method, ready.base_url + path, json=body, headers=named)


@pytest.fixture
def still(mlx_server: Ready) -> Iterator[None]:
    """Whatever was tried: the same process, the same model, no adapter, and it answers."""
    before = asyncio.run(readback(mlx_server.profile))
    yield
    after = asyncio.run(readback(mlx_server.profile))
    assert (after.model, after.adapters, after.raw["effective"]) == (before.model, (), before.raw["effective"])
    assert after.model == mlx_server.model


KEYS = [{}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Bearer wrong"}, {"X-Api-Key": "x"}]
ROUTES = sorted({*mlx_guard.ROUTES, ("GET", "/docs"), ("GET", "/openapi.json"), ("POST", "/unload"), ("GET", "/")})


def test_nothing_is_answered_without_the_key(mlx_server: Ready, still: None) -> None:
    with httpx.Client(trust_env=False) as client:
        for headers in KEYS:
            for method, path in ROUTES:
                answer = client.request(method, mlx_server.base_url + path, headers=headers)
                assert answer.status_code == 401, (headers, method, path)
        key = mlx_server.profile.api_key() or ""
        for near in (f"Bearer {key[:-1]}", f"Bearer {key}x", f"bearer {key}", f"Basic {key}", key):
            assert client.get(f"{mlx_server.base_url}/health", headers={"Authorization": near}).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": "127.0.0.1.evil.example:80"}, 421),  # a name that a page's owner points here
        ({"Host": "127.0.0.1@evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Cookie": "a=b"}, 403),
    ],
)
async def test_no_web_page_gets_in_even_with_the_key(
    mlx_server: Ready, still: None, headers: dict[str, str], status: int
) -> None:
    async with open_client(mlx_server.profile) as client:
        for method, path in (("GET", "/health"), ("OPTIONS", mlx_guard.CHAT), ("POST", mlx_guard.CHAT)):
            answer = await client.request(method, mlx_server.base_url + path, headers=headers)
            assert answer.status_code == status
            assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/unload"),
        ("PATCH", "/v1/settings"),
        ("POST", "/v1/responses"),
        ("POST", "/responses"),
        ("POST", "/v1/messages"),
        ("POST", "/v1/embeddings"),
        ("POST", "/v1/images/generations"),
        ("POST", "/v1/audio/transcriptions"),
        ("POST", "/chat/completions"),
        ("GET", "/v1/models?model_dir=/etc"),
        ("GET", "/v1/images/defaults?model=/etc"),
        ("GET", "/docs"),
        ("GET", "//health"),
        ("GET", "/v1/../unload"),
    ],
)
async def test_routes_that_the_lab_does_not_use_are_closed(
    mlx_server: Ready, still: None, method: str, path: str
) -> None:
    assert (await send(mlx_server, method, path, {} if method == "POST" else None)).status_code == 404


async def test_a_request_names_one_model_and_no_path(mlx_server: Ready, still: None, tmp_path: Path) -> None:
    """`model_file` is code, a picture's path is any file of the owner, its address is any host of the network."""
    ran, folder = tmp_path / "ran", tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "model_file": "own.py"}))
    (folder / "own.py").write_text(f"open({str(ran)!r}, 'w')")
    secret = PICTURE
    text = {"type": "text", "text": "What is it?"}
    refused: list[dict[str, Any]] = [
        {"model": str(folder)},
        {"model": "mlx-community/none"},
        {"model": mlx_server.model + "/"},
        {"model": ""},
        {"adapter_path": str(tmp_path)},
        {"adapter_path": ""},
        {"adapter_path": ["x"]},
        {"messages": seen(image(str(secret)))},
        {"messages": seen(image(f"file://{secret}"))},
        {"messages": seen(image("http://127.0.0.1:9/a.png"))},
        {"messages": seen(image("data:text/html;base64,AAAA"))},
        {"messages": seen(image(None))},
        {"messages": seen({"type": "image_url", "image_url": str(secret)})},
        {"messages": seen({"type": "input_image", "image_url": str(secret)})},
        {"messages": seen({"type": "image", "image": str(secret)})},
        {"messages": seen(text, {"type": "video_url", "video_url": {"url": str(secret)}})},
        {"messages": seen({"type": "input_video", "video": str(secret)})},
        {"messages": seen({"type": "input_audio", "input_audio": {"data": str(secret)}})},
        {"messages": seen({"type": "text", "text": "x", "image_url": str(secret)})},
        {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]},
        {"messages": [{"role": "user", "content": "x", "images": [str(secret)]}]},
        {"messages": "x"},
        {"context_management": [{"type": "compaction"}]},
        {"draft_model": str(folder)},
        {"tools": []},
        {"chat_template": "{{ 1 }}"},
    ]
    for more in refused:
        answer = await send(mlx_server, "POST", mlx_guard.CHAT, chat(mlx_server, **more))
        assert answer.status_code in (400, 404), (more, answer.text)
        assert str(secret) not in answer.text
    assert not ran.exists()
    for raw in (b"", b"[]", b"{", b"[" * 100_000, b'{"model": 1}'):
        async with open_client(mlx_server.profile) as client:
            assert (await client.post(mlx_server.base_url + mlx_guard.CHAT, content=raw)).status_code in (400, 404)
    for adapter in ("relative", str(tmp_path), str(folder), "/etc", 7):
        answer = await send(mlx_server, "POST", mlx_guard.ADAPTERS, {"folder": adapter})
        assert answer.status_code == 400
    fine = chat(
        mlx_server,
        messages=seen(image("data:image/png;base64," + base64.b64encode(PICTURE.read_bytes()).decode()), text),
    )
    answer = await send(mlx_server, "POST", mlx_guard.CHAT, fine)
    assert answer.status_code == 200, answer.text


async def test_an_adapter_left_out_is_the_base_and_not_the_last_one() -> None:
    """mlx-vlm goes on with the adapter of whoever asked before; behind the guard nobody can leave it out."""
    bodies: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        bodies.append(json.loads((await receive())["body"]))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    door = httpx.ASGITransport(mlx_guard.Guard(app, "k", "m"))  # type: ignore[arg-type]
    async with httpx.AsyncClient(transport=door, base_url="http://127.0.0.1:1") as client:
        for more in ({}, {"adapter_path": None}, {"context_management": []}):
            body = {"model": "m", "messages": [], **more}
            answer = await client.post(mlx_guard.CHAT, json=body, headers={"Authorization": "Bearer k"})
            assert answer.status_code == 200
    assert [(body["adapter_path"], body["context_management"]) for body in bodies] == [(None, [])] * 3


def test_the_key_is_in_a_file_of_its_owner_and_nowhere_else(mlx_server: Ready) -> None:
    key, place = mlx_server.profile.api_key(), mlx_server.profile.access.key_file
    assert key is not None and place is not None and len(key) >= 40
    assert stat.S_IMODE(place.stat().st_mode) == 0o600 and stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    holding = [path for path in place.parents[2].rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert holding == [place]
    places = Places(place.parents[2])
    running = processes.recorded(places, "demo")
    assert running is not None
    for pid in processes.members(running):
        assert key not in " ".join(psutil.Process(pid).cmdline())
    assert psutil.Process(running.pid).environ()[KEY_MARK] == str(place)
    # A lost record: the server is found by its marks, and asked with its key.
    found = processes.orphan(places, "demo")
    assert found is not None and found.access.key_file == place


async def test_by_its_address_too_it_is_asked_with_its_key_from_its_own_home(mlx_server: Ready, tmp_path: Path) -> None:
    assert mlx_server.log is not None
    home = Path(mlx_server.log).parents[2]
    url = f"{mlx_server.base_url}/v1"

    async def run(home: Path, *words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "vlmconsole", "--home", str(home), *words,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await asyncio.wait_for(process.communicate(), 120)
        return process.returncode or 0, out.decode()

    ours, theirs = await asyncio.gather(
        run(home, "--quiet", "chat", "Hello", "--base-url", url, "--json"),
        run(tmp_path, "chat", "Hello", "--base-url", url),
    )
    answer = json.loads(ours[1])
    assert ours[0] == 0 and answer["ended"] == "done" and "adapter" not in answer["conditions"], "the base, told so"
    assert theirs[0] == 1 and "401" in theirs[1] and "key" in theirs[1]
    given = make_profile({"name": "own", "engine": "openai", "base_url": url})
    at = server_of(given, Places(home)).located()
    assert at.base_url == given.base_url and at.access == mlx_server.profile.access
    for other in ("http://127.0.0.1:9/v1", "http://192.0.2.1:1/v1"):
        away = make_profile({"name": "own", "engine": "openai", "base_url": other})
        assert server_of(away, Places(home)).located().access.held is None


def test_it_does_not_start_without_a_key() -> None:
    from vlmconsole.engines import mlx_server as wrapper

    words = [sys.executable, wrapper.__file__, "--host", "127.0.0.1", "--model", "x"]
    bare = {name: value for name, value in os.environ.items() if name != wrapper.KEY_VARIABLE}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=bare)
    assert done.returncode == 1 and wrapper.KEY_VARIABLE in done.stderr


# What another user of the machine tried; it prints what worked.
STRANGER = """
import json, os, socket, sys, urllib.error, urllib.request
base, model, secret, own, key_file, pid = sys.argv[1:7]
worked = []
def ask(name, path, body=None, **headers):
    data = None if body is None else json.dumps(body).encode()
    headers["Content-Type"] = "application/json"
    try:
        with urllib.request.urlopen(urllib.request.Request(base + path, data, headers), timeout=60) as answer:
            worked.append(name + ": " + answer.read(200).decode())
    except urllib.error.HTTPError as error:
        if error.code != 401:
            worked.append(f"{name}: {error.code}")
def chat(**more):
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **more}
def seen(url):
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
ask("run code", "/v1/chat/completions", chat(model=own))
ask("describe a private picture", "/v1/chat/completions", chat(messages=seen(secret)))
ask("fetch an address", "/v1/chat/completions", chat(messages=seen("http://127.0.0.1:9/")))
ask("ask", "/v1/chat/completions", chat())
ask("unload", "/unload", {})
ask("list folders", "/v1/models?model_dir=/")
ask("settings", "/v1/settings")
ask("health", "/health")
for name, read in {
    "the key's file": lambda: open(key_file).read(),
    "the process's environment": lambda: open(f"/proc/{pid}/environ").read(),
    "the picture": lambda: open(secret, "rb").read(),
}.items():
    try:
        worked.append(f"read {name}: {len(read())}")
    except OSError:
        pass
words = open(f"/proc/{pid}/cmdline").read() + " ".join(sys.argv)
print(json.dumps({"worked": worked, "user": os.getuid(), "words": words}))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("useradd") is None, reason="needs root and useradd")
def test_another_user_of_the_machine_gets_nothing(mlx_server: Ready, still: None, tmp_path: Path) -> None:
    name = "vlmc-stranger"
    subprocess.run(["useradd", "--no-create-home", "--shell", "/bin/sh", name], check=False, capture_output=True)
    home = Path("/tmp") / f"{name}-{os.getpid()}"
    home.mkdir(mode=0o755)
    try:
        own, ran = home / "model", home / "ran"
        own.mkdir(mode=0o755)
        (own / "config.json").write_text(json.dumps({"model_type": "qwen2_5_vl", "model_file": "own.py"}))
        (own / "own.py").write_text(f"open({str(ran)!r}, 'w').write('ran')")
        secret = tmp_path / "secret.png"
        shutil.copy(PICTURE, secret)
        secret.chmod(0o600)
        script = home / "stranger.py"
        script.write_text(STRANGER)
        key_file = str(mlx_server.profile.access.key_file)
        words = [str(script), mlx_server.base_url, mlx_server.model, str(secret), str(own), key_file]
        words += [str(mlx_server.pid)]
        python = shutil.which("python3", path="/usr/bin:/bin") or "/usr/bin/python3"
        done = subprocess.run(
            ["setpriv", f"--reuid={name}", "--clear-groups", "--", python, *words],
            capture_output=True, text=True, timeout=300, check=False, cwd="/",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["user"] != 0 and told["worked"] == [] and not ran.exists()
        assert (mlx_server.profile.api_key() or "") not in told["words"]
    finally:
        shutil.rmtree(home)
        with suppress(OSError):
            subprocess.run(["userdel", name], check=False, capture_output=True)


PAGE = """
(async () => {
  const base = %s, body = %s, key = %s, worked = [];
  const attempts = {
    read: () => fetch(base + "/health"),
    blind: () => fetch(base + "/unload", {method: "POST", mode: "no-cors"}),
    ask: () => fetch(base + "/v1/chat/completions", {method: "POST", body: JSON.stringify(body)}),
    withKey: () => fetch(base + "/health", {headers: {Authorization: "Bearer " + key}}),
    credentials: () => fetch(base + "/health", {credentials: "include"}),
  };
  for (const [name, attempt] of Object.entries(attempts)) {
    try { const answer = await attempt(); if (answer.type !== "opaque") worked.push(name + ": " + answer.status); }
    catch (error) { if (error.name !== "TypeError") worked.push(name + ": " + error); }
  }
  const opened = await new Promise(done => {
    const line = new WebSocket(base.replace("http", "ws") + "/v1/realtime");
    line.onopen = () => done(true); line.onerror = () => done(false);
  });
  return JSON.stringify({worked, opened});
})()
"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
async def test_a_page_in_a_browser_drives_nothing(mlx_server: Ready, tmp_path: Path) -> None:
    """Also a page that somehow has the key: it sends its origin, and reads no answer."""
    before = await readback(mlx_server.profile)
    page = tmp_path / "page.html"
    page.write_text("<title>a page</title>")
    async with browser() as tab:
        for address in (page.as_uri(), f"{mlx_server.base_url}/health"):  # elsewhere, and as if it were its own
            await tab.go(address)
            body, key = json.dumps(chat(mlx_server)), json.dumps(mlx_server.profile.api_key())
            told = json.loads(await tab.run(PAGE % (json.dumps(mlx_server.base_url), body, key)))
            own = {one.partition(": ")[2] for one in told["worked"]}
            assert own <= {"401", "403"} and not told["opened"], told
            if address.startswith("file:"):
                assert told["worked"] == []
    after = await readback(mlx_server.profile)
    assert after.raw["effective"] == before.raw["effective"] and after.model == mlx_server.model
