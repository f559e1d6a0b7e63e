"""A real SGLang, started by the lab: read back, asked, measured, probed and tuned. By hand: `pytest -m optin`.

VLMCONSOLE_TEST_SGLANG         a Python that has sglang
VLMCONSOLE_TEST_SGLANG_MODEL   a small Qwen2.5-VL folder; default: the model that comes with the lab
VLMCONSOLE_TEST_SGLANG_FLAGS   launch flags of this machine; default: those for a CPU
VLMCONSOLE_TEST_SGLANG_PATH    folder for its PYTHONPATH, e.g. a stand-in for kernels that a CPU lacks
"""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT

from vlmconsole.client.chat import ChatClient
from vlmconsole.engines.profile import ProfileError, ServerProfile, make_profile, save_profile
from vlmconsole.engines.readback import flush, readback
from vlmconsole.engines.registry import find_engine
from vlmconsole.gauges.scrape import ServerMetrics
from vlmconsole.jobs import cache_probe, sweep, tune
from vlmconsole.jobs.contract import Context
from vlmconsole.jobs.launch import create_run
from vlmconsole.jobs.presets import Preset, overlay
from vlmconsole.measure.bench import MeasuredServer, measure
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.models.messages import Message
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers.server import Ready
from vlmconsole.servers.where import server_of
from vlmconsole.vision.images import open_picture

PYTHON = os.environ.get("VLMCONSOLE_TEST_SGLANG", "")
pytestmark = [
    pytest.mark.optin,
    pytest.mark.timeout(3600),  # a start takes a minute on an idle machine, and many times that on a busy one
    pytest.mark.skipif(not PYTHON, reason="VLMCONSOLE_TEST_SGLANG names no Python"),
]
CPU = (
    "--device cpu --attention-backend torch_native --mm-attention-backend sdpa --dtype bfloat16 --disable-cuda-graph"
    " --disable-overlap-schedule --max-total-tokens 8192 --mem-fraction-static 0.3"
)
PATIENT_MS = 60_000.0
SCENE = ROOT / "assets" / "pictures" / "scene-regular.png"


def profile(*more: str) -> ServerProfile:
    flags = shlex.split(os.environ.get("VLMCONSOLE_TEST_SGLANG_FLAGS", CPU))
    argv = ["python", "-m", "sglang.launch_server", "--model-path", "{model}", "--port", "{port}"]
    argv += ["--context-length", "2048", "--chunked-prefill-size", "1024", "--max-running-requests", "4"]
    argv += [
        "--enable-metrics",
        "--enable-cache-report",
        "--random-seed",
        "1",
        "--skip-server-warmup",
        "--sleep-on-idle",
    ]
    env = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
    if "cpu" in flags:
        env |= {"SGLANG_USE_CPU_ENGINE": "1", "OMP_NUM_THREADS": "1"}
    if path := os.environ.get("VLMCONSOLE_TEST_SGLANG_PATH"):
        env["PYTHONPATH"] = path
    line = {"argv": [*argv, *flags, *more], "interpreter": PYTHON, "env": env, "start_timeout_s": 1200}
    model = os.environ.get("VLMCONSOLE_TEST_SGLANG_MODEL", "asset:tiny-qwen2.5-vl")
    values = {"name": "real", "engine": "sglang", "model": model, "running_limit": 4, "prefix_cache": True}
    return make_profile({**values, "launch": {**line, "stop_grace_s": 20}})


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    places = Places(home=tmp_path_factory.mktemp("lab")).ensure()
    save_profile(places.servers, profile())
    return places


@pytest.fixture(scope="module")
def ready(places: Places) -> Iterator[Ready]:
    found = asyncio.run(server_of(profile(), places).ensure())
    yield found
    asyncio.run(server_of(profile(), places).stop())


def job(places: Places, kind: str, spec: dict[str, Any]) -> tuple[Context, Any]:
    preset = Preset(kind, kind, kind, spec)
    checked = overlay(preset)
    return Context(create_run(places, preset, checked), places), checked


def test_what_it_was_started_with_is_what_it_reads_back(ready: Ready) -> None:
    told = asyncio.run(readback(ready.profile))
    assert told.version is not None
    assert (told.running_limit, told.prefix_cache, told.cache_report) == (4, True, True)
    assert told.omitted_cached_is_zero, told.cached_rule
    for flag, wanted in find_engine("sglang").wanted(profile()).items():
        have = told.told(flag)
        if have is not None and flag not in ("model-path", "served-model-name"):
            assert str(have).lower() == wanted.lower() or float(have) == float(wanted), flag


async def test_a_picture_is_seen_with_the_tokens_that_were_expected(ready: Ready) -> None:
    async with ChatClient(ready.profile) as client:
        asked = [Message("user", "What is this?", (open_picture(SCENE),))]
        answer = await client.ask(asked, max_tokens=8, temperature=0)
    assert answer.ok
    assert answer.vision[0].state == "equal", answer.vision[0].why
    assert answer.result.usage.image_tokens in (None, answer.vision[0].observed)
    assert (await flush(ready.profile)).ok


def test_a_measurement_is_held_to_its_length_and_its_metrics_are_read(ready: Ready, tmp_path: Path) -> None:
    told = asyncio.run(readback(ready.profile))
    settings = BenchSettings.model_validate(
        {"concurrency": 2, "requests": 4, "warm_up": 2, "image": "224x168", "input_tokens": 191, "output_tokens": 16}
        | {"equal_work": True, "lag_limit_ms": PATIENT_MS}
    )
    run = RunFolder.create(tmp_path, kind="bench", preset="bench", spec={}, title="bench", home=tmp_path)
    summary, conditions = measure(settings, MeasuredServer(ready.profile, told, ready.model), run, name="cell")
    assert (summary.n, summary.failures, summary.set_aside) == (4, 0, {})
    assert (summary.input_tokens, summary.output_tokens) == (191, 16)
    assert summary.finish_reasons == {"length": 4}
    assert (conditions.running_limit, conditions.cache, conditions.precision) == (4, "on", told.precision)
    source = ServerMetrics(ready.profile.base_url, "sglang")
    figures = source.read().figures
    source.close()
    assert figures["server.running"].value is not None
    assert figures["server.kv"].value is not None


def test_a_wrong_flag_is_refused_by_its_own_help(ready: Ready, places: Places) -> None:
    wrong = profile("--chunked-prefil-size", "2").model_copy(update={"name": "wrong"})
    with pytest.raises(ProfileError, match=r"does not know --chunked-prefil-size \(near: --chunked-prefill-size"):
        asyncio.run(server_of(wrong, places).ensure())


def test_one_at_a_time_queues_and_four_at_a_time_do_not(places: Places) -> None:
    shared = {"server": "real", "concurrency": 4, "requests": 8, "warm_up": 4, "image": "224x168", "output_tokens": 32}
    context, spec = job(
        places,
        "sweep",
        {**shared, "prefix_cache": False, "lag_limit_ms": PATIENT_MS, "grid": {"running_limit": [4, 1]}},
    )
    summary = sweep.run(context, spec)
    four, one = summary["cells"]
    assert [cell["state"] for cell in (four, one)] == ["valid", "valid"]
    assert [cell["conditions"]["running_limit"] for cell in (four, one)] == [4, 1]
    assert all(cell["equal_work"] for cell in (four, one))
    assert one["summary"]["ttft_s"]["p95"] > 2 * four["summary"]["ttft_s"]["p50"]


def test_the_radix_cache_is_proven_with_its_control(places: Places) -> None:
    spec = {"server": "real", "pairs": 5, "image": "224x168", "input_tokens": 505, "lag_limit_ms": PATIENT_MS}
    summary = cache_probe.run(*job(places, "cache_probe", spec))
    assert all(pair["warm"]["cached"]["tokens"] == pair["warm"]["prompt_tokens"] - 1 for pair in summary["pairs"])
    assert all(pair["warm"]["cached"]["tokens"] == 0 for pair in summary["control"])
    # Whether the time falls, too, is the machine's noise as well: a toy's prefill is short.
    assert summary["verdict"] in ("hit proven", "not provable"), summary["reasons"]


def test_a_grid_is_tuned_and_its_winner_measured_again(places: Places) -> None:
    baseline = {"chunked_prefill_size": 1024, "max_running_requests": 4}
    values = {"baseline": baseline, "throughput_floor": 0.5, "close_within": 1.0}
    rule = values | {"memory": "chunked_prefill_size", "consistent": {"finish_reason": "length", "output_tokens": 16}}
    grid = {"chunked_prefill_size": [256, 1024], "max_running_requests": [2, 4]}
    spec = {"server": "real", "grid": grid, "rule": rule, "output_tokens": 16, "lag_limit_ms": PATIENT_MS}
    spec |= {"image": "224x168", "input_tokens": 505, "requests": 4}
    summary = tune.run(*job(places, "tune", spec))
    assert len(summary["cells"]) == 4 + 2  # and the winner and the baseline once more
    assert [cell["read_back"] for cell in summary["cells"]] == [cell["parameters"] for cell in summary["cells"]]
    assert all(cell["conditions"]["cache"] == "off" for cell in summary["cells"])
    assert summary["chosen"] is not None, summary["why"]
    assert summary["confirmation"]["state"] in ("confirmed", "not confirmed")
    print(summary["chosen"], summary["confirmation"]["state"], summary["why"])
