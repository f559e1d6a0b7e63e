"""The wrapper around mlx-vlm's server, and the real server with the bundled model."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

from vlmconsole.client.chat import Answer, ChatClient
from vlmconsole.engines import mlx_server
from vlmconsole.engines.http import open_client
from vlmconsole.engines.profile import load_profiles
from vlmconsole.engines.readback import readback
from vlmconsole.models.messages import Message
from vlmconsole.models.prompt import text_counter
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes
from vlmconsole.servers.server import Ready
from vlmconsole.servers.where import server_of
from vlmconsole.vision.images import open_picture

PICTURES = ROOT / "assets" / "pictures"
HI = [Message("user", "Which shape is largest?")]
# The model may stop when it likes, and mlx-vlm ignores min_tokens: only a grammar makes an answer long for sure.
LONG = {
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "long", "schema": {"type": "array", "items": {"type": "boolean"}, "minItems": 900}},
    }
}


def scene(name: str = "scene-regular.png") -> Message:
    return Message("user", "Count the red circles and the blue squares.", (open_picture(PICTURES / name),))


async def ask(ready: Ready, *messages: Message, **how: Any) -> Answer:
    async with ChatClient(ready.profile) as client:
        return await client.ask(messages, **{"max_tokens": 12, **how})


# --- the wrapper, without a server ---
def test_hidden_packages_cannot_be_imported_and_the_others_can() -> None:
    code = (
        "import importlib.util, json\n"
        "from vlmconsole.engines.mlx_server import hide\n"
        "hide(['wave', 'json'])\n"
        "assert importlib.util.find_spec('wave') is None\n"
        "try: import wave\n"
        "except ModuleNotFoundError as error: assert error.name == 'wave'\n"
        "else: raise SystemExit('wave was imported')\n"
        "import json, csv, importlib.metadata\n"  # json was imported before: it stays
        "assert importlib.metadata.version('httpx')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words", [[], ["--host", "0.0.0.0"], ["--host=::"], ["--host", "127.0.0.1", "--host", "0.0.0.0"]]
)
def test_it_never_listens_beyond_the_loopback_interface(words: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"--host must be 127\.0\.0\.1"):
        mlx_server.main(words)


def test_started_by_file_name_its_folder_shadows_nothing(tmp_path: Path) -> None:
    (tmp_path / "profile.py").write_text("raise SystemExit('the wrong profile')")
    (tmp_path / "mlx_vlm.py").write_text("raise SystemExit('the wrong mlx_vlm')")
    done = subprocess.run(
        [sys.executable, mlx_server.__file__, "--host", "0.0.0.0"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1 and "--host must be" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("flags", "ran"), [([], False), (["--trust-remote-code"], True)])
def test_its_loader_runs_no_program_of_a_models_author(flags: list[str], ran: bool, tmp_path: Path) -> None:
    """Behind the guard and the look before the start: mlx-vlm loads a model again for each change of adapter."""
    pytest.importorskip("mlx_vlm")
    (tmp_path / "own.py").write_text("class Model: pass\n" + f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    code = (
        "from pathlib import Path\nfrom vlmconsole.engines.mlx_server import hide, refuse_code\nhide()\n"
        f"refuse_code({flags != []})\nfrom mlx_vlm import utils\n"
        f"utils.get_model_and_args({{'model_type': 'qwen2_5_vl', 'model_file': 'own.py'}}, Path({str(tmp_path)!r}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode == 0) == ran == (tmp_path / "ran").exists()
    assert ran or "model_file" in done.stderr


def test_plain_mask_is_what_the_bits_say() -> None:
    mx = pytest.importorskip("mlx.core")
    words = [[0b101, -1, 0], [-2147483648, 0, 1]]
    logits = mx.arange(2 * 70, dtype=mx.float32).reshape(2, 70)
    masked = mlx_server.plain_mask(logits, mx.array(words, dtype=mx.int32)).tolist()
    for row, bits in enumerate(words):
        for token in range(70):
            allowed = (bits[token // 32] >> (token % 32)) & 1
            assert masked[row][token] == (row * 70 + token if allowed else float("-inf"))
    beyond = mlx_server.plain_mask(logits, mx.array([[-1, -1]] * 2, dtype=mx.int32)).tolist()
    assert beyond[0][63] == 63 and beyond[0][64] == float("-inf")  # a padded vocabulary has tokens without a bit
    one = mlx_server.plain_mask(mx.zeros((70,), dtype=mx.float16), mx.array(words[0], dtype=mx.int32))
    assert one.shape == (1, 70) and one.dtype == mx.float16


# --- the real server ---
async def test_a_text_question_is_answered_and_counted_as_we_count(mlx_server: Ready) -> None:
    folder = mlx_server.profile.model_dir()
    counter = text_counter(folder) if folder else None
    assert counter is not None
    turns = [Message("system", "Be brief."), *HI, Message("assistant", "the blue one"), Message("user", "Süß? 数 🍎\n")]
    for messages in (HI, turns):
        answer = await ask(mlx_server, *messages)
        assert answer.ok and answer.result.usage.prompt_tokens == counter(messages)
        assert answer.vision == [] and answer.timing.ttft_s is not None


async def test_the_picture_is_seen_and_that_is_proved(mlx_server: Ready) -> None:
    answer = await ask(mlx_server, scene())
    (sight,) = answer.vision
    assert (sight.sent_size, sight.expected, sight.observed, sight.state) == ((448, 448), 64, 64, "equal")
    two = await ask(mlx_server, scene(), Message("assistant", "{}"), scene("scene-few.png"))
    assert [s.state for s in two.vision] == ["equal", "equal"]


async def test_effective_settings_come_from_the_server(mlx_server: Ready) -> None:
    found = await readback(mlx_server.profile)
    assert (found.version, found.running_limit, found.context) == ("0.7.10", 4, 4096)
    assert found.model == mlx_server.model and found.prefix_cache is False and found.adapters == ()
    assert found.precision in ("float32", "bfloat16", "float16") and found.device in ("CPU", "Metal")
    answer = await ask(mlx_server, *HI)
    assert answer.conditions.running_limit == 4 and answer.conditions.precision == found.precision


async def test_greedy_answers_agree_at_any_concurrency(mlx_server: Ready) -> None:
    alone = await ask(mlx_server, scene())
    together = await asyncio.gather(*(ask(mlx_server, scene()) for _ in range(4)))
    assert {a.text for a in together} == {alone.text}


async def test_a_json_answer_works_on_a_cpu_and_spares_its_neighbour(mlx_server: Ready) -> None:
    kind = {
        "type": "object",
        "properties": {"n": {"type": "boolean"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    form = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": kind}}}
    neighbour, answer = await asyncio.gather(
        ask(mlx_server, scene(), max_tokens=60), ask(mlx_server, *HI, max_tokens=30, extra=form)
    )
    assert answer.text in ('{"n": true}', '{"n": false}') and answer.result.finish_reason == "stop"
    assert neighbour.ok and neighbour.result.error is None


async def test_cancelling_ends_the_work_on_the_server(mlx_server: Ready) -> None:
    begun = asyncio.Event()
    async with ChatClient(mlx_server.profile) as client:
        task = asyncio.create_task(client.ask(HI, max_tokens=2000, extra=LONG, on_delta=lambda _: begun.set()))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        answer = await task
        assert answer.result.ended == "cancelled" and answer.text.startswith("[")
    async with open_client(mlx_server.profile) as http:
        for _ in range(200):
            summary = (await http.get(f"{mlx_server.base_url}/v1/metrics")).json()["summary"]
            if summary["in_flight"] == 0:
                break
            await asyncio.sleep(0.05)
    assert summary["in_flight"] == 0


async def test_kill_9_in_mid_answer_keeps_the_part_and_the_next_question_works(tmp_path: Path) -> None:
    pytest.importorskip("mlx_vlm")
    places, profile = Places(home=tmp_path / "lab").ensure(), load_profiles(None)["demo"]
    phases: list[str] = []
    ready = await server_of(profile, places).ensure(lambda phase, _: phases.append(phase))
    try:
        assert phases[-2:] == ["loading the model", "ready"] or phases[-1] == "ready"
        assert ready.pid is not None and ready.log is not None
        running = processes.recorded(places, "demo")
        assert running is not None and "--host" in running.argv and "127.0.0.1" in running.argv

        async with ChatClient(ready.profile) as client:
            told: list[str] = []

            def kill(delta: Any) -> None:
                told.append(delta.text)
                if len(told) == 5:
                    os.kill(ready.pid or 0, signal.SIGKILL)

            answer = await client.ask(HI, max_tokens=2000, extra=LONG, on_delta=kill)
            assert answer.result.ended == "cut" and answer.text.startswith("".join(told[:5]))
            assert answer.result.error is not None and "connection lost" in answer.result.error
            assert (await client.ask(HI)).result.ended == "error"  # said plainly, as long as nobody restarts it
            assert (await server_of(profile, places).probe()).state == "ended"
            again = await server_of(profile, places).ensure()
            assert again.started_here and again.pid != ready.pid
        async with ChatClient(again.profile) as client:
            assert (await client.ask(HI, max_tokens=4)).ok
    finally:
        await server_of(profile, places).stop()
    assert processes.recorded(places, "demo") is None
