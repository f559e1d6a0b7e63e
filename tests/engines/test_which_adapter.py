"""Which adapter answers: the server is told wherever it can be, and else the conditions say that it is unknown."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from chat_server import chat_server, profile_file
from lora import BASE, make_adapter
from model_folders import bundled_copy
from refusals import mentions

from vlmconsole.client.chat import Answer, ChatClient
from vlmconsole.compare.runs import compare
from vlmconsole.engines.adapter_choice import UNKNOWN
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile, make_profile
from vlmconsole.engines.readback import readback
from vlmconsole.evaluation.resolve import resolve
from vlmconsole.evaluation.served import served
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.gates.evidence import unlike
from vlmconsole.measure.bench import MeasuredServer, request_fields
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.models.messages import Message
from vlmconsole.runs.conditions import Conditions
from vlmconsole.runs.places import Places
from vlmconsole.screens.chat.why import adapter_rows
from vlmconsole.servers.where import server_of
from vlmconsole.training.adapters.serving import select

HELLO = [Message("user", "What shape is red?")]


async def ask(profile: ServerProfile, question: list[Message] = HELLO) -> Answer:
    async with ChatClient(profile) as client:
        return await client.ask(question, max_tokens=8)


def generic(port: int, **more: object) -> ServerProfile:
    return make_profile({"name": "toy", "engine": "openai", "base_url": f"http://127.0.0.1:{port}"} | more)


async def test_a_generic_server_answers_with_nobody_knows_whose_adapter(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    async with chat_server() as server:
        profile = generic(server.port, model=str(BASE))
        answer = await ask(profile)
        assert answer.ok and answer.conditions.adapter == UNKNOWN and "adapter_path" not in server.requests[0]
        assert adapter_rows(answer.to_json())[0].value.startswith("unknown")
        told = MeasuredServer(profile, await readback(profile), "toy")
        profile_file(tmp_path, server.port, model=str(BASE))
        spec = EvaluateSettings(data=["small"], backend="server", server="toy", paired=False)
        assert resolve(spec, places).before.weights_sha256 is None, (
            "a folder that a profile names is not thereby what answers"
        )

        def before() -> tuple[Conditions, str]:
            with served(resolve(spec, places).before, told) as side:
                return side.conditions(), side.who.label

        conditions, label = await asyncio.to_thread(before)
        assert (conditions.adapter, conditions.model_sha256) == (UNKNOWN, None)
        assert mentions(label, "adapter", "unknown")
        assert unlike(conditions.model_dump(), conditions.model_dump()) == []


@pytest.mark.parametrize("name", ["mlx_vlm/0.7.10", "mlx_vlm/0.8.0"])
async def test_mlx_vlm_by_its_own_word_is_told_that_none_is_wanted(name: str) -> None:
    """The same server through a generic profile and `--base-url` goes on with the last one's adapter otherwise."""
    async with chat_server() as server:
        server.name = name
        for profile in (generic(server.port), generic(server.port, name="given")):
            answer = await ask(profile)
            assert answer.ok and answer.conditions.adapter is None
            assert server.requests[-1]["adapter_path"] is None and "adapter_path" in server.requests[-1]
        found = await readback(generic(server.port))
        fields = request_fields(BenchSettings(server="toy"), MeasuredServer(generic(server.port), found, "toy"))
        assert fields["adapter_path"] is None and fields["context_management"] == []


@pytest.mark.parametrize(
    ("serves", "known"), [("itself", True), ("another", False), ("", True), ("relative/path", True)]
)
def test_the_hash_is_of_what_is_served_and_not_of_what_a_profile_names(
    serves: str, known: bool, tmp_path: Path
) -> None:
    other = bundled_copy(tmp_path / "other")
    path = {"itself": str(BASE), "another": str(other)}.get(serves, serves)
    profile = make_profile({"name": "m", "engine": "mlx", "base_url": "http://127.0.0.1:9", "model": str(BASE)})
    told = EffectiveSettings("mlx", model=path or "x", model_path=path or None)
    spec = EvaluateSettings(data=["small"], backend="server", server="m", paired=False)
    with served(resolve(spec, Places(tmp_path / "lab").ensure()).before, MeasuredServer(profile, told, "x")) as side:
        assert (side.who.model_sha256 is not None) == known
        assert side.who.model == ("tiny-qwen2.5-vl" if known else "x")


def test_unknown_is_not_the_base_when_runs_are_compared() -> None:
    unknown, base = Conditions(adapter=UNKNOWN), Conditions()
    assert [one.key for one in compare(unknown, base).differs] == ["adapter"]
    both = compare(unknown, unknown)
    assert both.differs == [] and "adapter" in both.unknown and "adapter" not in both.same
    assert compare(base, base).unknown.count("adapter") == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_real_mlx_vlm_does_not_go_on_with_the_last_adapter(tmp_path: Path) -> None:
    """mlx-vlm as a user starts it, without our guard: taught through its own profile, then asked as a generic one."""
    pytest.importorskip("mlx_vlm")
    places = Places(tmp_path / "lab").ensure()
    make_adapter(places.adapters / "taught", strength=0.5)
    argv = ["python", "-m", "mlx_vlm.server", "--host", "127.0.0.1", "--port", "{port}", "--model", str(BASE)]
    given = {"argv": argv, "interpreter": sys.executable, "env": {"HF_HUB_OFFLINE": "1", "MLX_DISABLE_COMPILE": "1"}}
    box = make_profile({"name": "box", "engine": "openai", "served_model": str(BASE), "launch": given})
    ready = await server_of(box, places).ensure()
    try:
        named = make_profile({"name": "m", "engine": "mlx", "base_url": ready.base_url, "model": str(BASE)})
        question = [Message("user", "Count the red circles and the blue squares.")]
        base = (await ask(named, question)).text
        async with ChatClient(named) as client:
            await client.prepare()
            taught = select("taught", client.profile, "float32", places)
            changed = await client.ask(question, max_tokens=8, adapter=taught)
            assert changed.ok and changed.text != base, changed.result.error
        again = await ask(make_profile({"name": "g", "engine": "openai", "base_url": ready.base_url}), question)
        assert again.text == base and again.conditions.adapter is None
        loaded = json.dumps((await readback(named)).adapters)
        assert loaded == "[]"
    finally:
        await server_of(box, places).stop()
