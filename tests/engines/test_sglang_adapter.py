"""A trained adapter behind a real SGLang: loaded at launch and while it runs, its effect seen, its answers torch's own.

By hand: `pytest -m optin`, with the variables of test_sglang_real.py. A CPU's stand-in for kernels may want more of the
environment, which the server inherits.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import sft_runs
from lora import BASE, bundled
from refusals import refused
from test_sglang_real import PYTHON, profile

from vlmconsole.client.adapter_effect import effect
from vlmconsole.client.chat import ChatClient
from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.scene import make_scene
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.readback import readback
from vlmconsole.models.messages import Message, to_request
from vlmconsole.runs.places import Places
from vlmconsole.servers.server import Ready
from vlmconsole.servers.where import server_of
from vlmconsole.training.adapters import store
from vlmconsole.training.adapters.convert import served_by_sglang
from vlmconsole.training.adapters.serving import select
from vlmconsole.training.adapters.store import AdapterError, find_adapter
from vlmconsole.training.generation import texts
from vlmconsole.vision.images import open_picture

pytestmark = [
    pytest.mark.optin,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PYTHON, reason="VLMCONSOLE_TEST_SGLANG names no Python"),
]
LORA = ["--enable-lora", "--lora-backend", "torch_native", "--max-lora-rank", "8", "--max-loras-per-batch", "2"]
# The base's own precision: in another the adapter is another model, and the lab refuses it.
LORA += ["--dtype", "float32"]
RECIPE = sft_runs.RECIPE.replace("count = 10", "count = 320")
SCENES = [make_scene(f"sglang:{i}", red=i % 7, blue=(3 * i + 1) % 7) for i in range(24)]
LEAST = 0.95


@dataclass(frozen=True)
class Served:
    """A lab with one trained adapter (the run's name) and a server that has it as `resident` since its launch."""

    places: Places
    run: str
    ready: Ready
    base: list[str]
    taught: list[str]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    places = sft_runs.lab(tmp_path_factory.mktemp("lab"), RECIPE)
    run = sft_runs.make(places, checkpoint_every=50)
    sft_runs.work(places, run)
    loaded, asks = bundled(), [(COUNT_PROMPT, (scene.draw(),)) for scene in SCENES]
    base = [text.strip() for text in texts(loaded, asks)]
    wrapped = store.load_peft(loaded, run.file("adapter"))
    try:
        taught = [text.strip() for text in texts(loaded, asks)]
    finally:
        wrapped.unload()
    folder = served_by_sglang(find_adapter(places, run.name), places.cache)
    server = profile(*LORA, "--lora-paths", f"resident={folder}")
    ready = asyncio.run(server_of(server, places).ensure())
    there = f'engine = "sglang"\nbase_url = "{ready.base_url}"\nmodel = "{BASE}"\n'
    (places.servers / "there.toml").write_text(there)
    yield Served(places, run.name, ready, base, taught)
    asyncio.run(server_of(server, places).stop())


def message(scene: int) -> Message:
    return Message("user", COUNT_PROMPT, (open_picture(SCENES[scene].png()),))


async def asked(client: ChatClient, adapter: SelectedAdapter | None) -> list[str]:
    told = []
    for scene in range(len(SCENES)):
        answer = await client.ask([message(scene)], max_tokens=64, temperature=0, adapter=adapter)
        assert answer.ok, answer.result.error
        assert answer.conditions.adapter == (adapter.said if adapter else None)
        told.append(answer.text.strip())
    return told


def share(ours: Sequence[str], theirs: Sequence[str]) -> float:
    return sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(ours)


async def test_it_answers_as_torch_does_however_it_was_loaded(served: Served) -> None:
    assert share(served.base, served.taught) < 0.9, "the training must have changed the answers"
    told = await readback(served.ready.profile)
    assert told.precision == "float32" and told.adapters == ("resident",)
    async with ChatClient(served.ready.profile) as client:
        await client.prepare()
        base = await asked(client, None)
        later = select(served.run, client.profile, told.precision, served.places)
        resident = select("resident", client.profile, told.precision, served.places)
        assert later is not None and later.sha256 and resident is not None and resident.sha256 is None
        loaded_later, at_launch = await asked(client, later), await asked(client, resident)
        assert set((await readback(served.ready.profile)).adapters) == {"resident", later.selector}
        again = await asked(client, None)
    figures = {
        "n": len(SCENES),
        "base as torch": share(base, served.base),
        "loaded later as torch": share(loaded_later, served.taught),
        "loaded at launch as torch": share(at_launch, served.taught),
        "base and adapter the same": share(base, loaded_later),
        "base again": share(base, again),
    }
    print(figures)
    assert min(figures["base as torch"], figures["base again"]) >= LEAST, figures
    assert min(figures["loaded later as torch"], figures["loaded at launch as torch"]) >= LEAST, figures
    assert figures["base and adapter the same"] < 0.9, figures


async def test_its_effect_is_verified_and_a_name_alone_has_none(served: Served) -> None:
    """The server's trap: the adapter's name as `model` is answered, by the base, with status 200."""
    async with ChatClient(served.ready.profile) as client:
        await client.prepare()
        chosen = select(served.run, client.profile, "float32", served.places)
        assert chosen is not None
        alike = next(i for i, (a, b) in enumerate(zip(served.base, served.taught, strict=True)) if a == b)
        found = await effect(client, chosen, [message(alike)])  # the same words, so only the probabilities can tell
        assert found.state == "effect verified" and found.base == found.adapter, found
        print(found)
        assert client.model
    differs = next(i for i, (a, b) in enumerate(zip(served.base, served.taught, strict=True)) if a != b)
    url = f"{served.ready.base_url}/v1/chat/completions"
    body = {"messages": to_request([message(differs)]), "max_tokens": 64, "temperature": 0}
    async with httpx.AsyncClient(timeout=120) as plain:

        async def said(model: str) -> str:
            answer = await plain.post(url, json={**body, "model": model})
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["message"]["content"]).strip()

        assert await said(chosen.selector) == served.base[differs]
        assert await said(f"{client.model}:{chosen.selector}") == served.taught[differs]


async def test_what_cannot_be_loaded_is_refused_in_words(served: Served, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="not bfloat16"):
        select(served.run, served.ready.profile, "bfloat16", served.places)
    nothing = SelectedAdapter("nothing", "nothing-000000000000", None, tmp_path)
    async with ChatClient(served.ready.profile) as client:
        await client.prepare()
        answer = await client.ask([Message("user", "Hello")], max_tokens=1, adapter=nothing)
        assert not answer.ok and "adapter nothing" in (answer.result.error or "")
        with refused("adapter-unloaded", "nothing", error=EngineError):
            await effect(client, nothing, [Message("user", "Hello")])
        assert (await client.ask([Message("user", "Hello")], max_tokens=1)).ok


def test_the_command_line_chats_with_it(served: Served, tmp_path: Path) -> None:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "vlmconsole", "--home", str(served.places.home), *words]
        return subprocess.run(line, capture_output=True, text=True, timeout=300)

    picture = tmp_path / "scene.png"
    differs = next(i for i, (a, b) in enumerate(zip(served.base, served.taught, strict=True)) if a != b)
    picture.write_bytes(SCENES[differs].png())
    chat = ["chat", COUNT_PROMPT, "--image", str(picture), "--server", "there", "--temperature", "0", "--json"]
    done = command(*chat, "--adapter", served.run)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["text"].strip() == served.taught[differs]
    assert told["conditions"]["adapter"].startswith(f"{served.run}")
    assert any("effect verified" in note for note in told["conditions"]["notes"]), told["conditions"]["notes"]
    done = command(*chat)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"].strip() == served.base[differs]
    checked = command("adapters", "check", served.run, "--server", "there", "--image", str(picture))
    assert checked.returncode == 0 and "effect verified" in checked.stdout, checked.stdout + checked.stderr
