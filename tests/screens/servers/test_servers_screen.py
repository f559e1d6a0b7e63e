"""The servers screen: settings wanted against read back, cost, calculators, and servers started and stopped by keys."""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import waiting
from job_queue import held, lab
from refusals import mentions
from small_server import SERVER
from textual.pilot import Pilot
from textual.widgets import Input

from vlmconsole.app import ConsoleApp
from vlmconsole.cli import main
from vlmconsole.client.adapter_effect import Effect
from vlmconsole.desks.servers import ServerDesk, ServerLine, ServersView, Sheet
from vlmconsole.engines.compared import capacity, compare_settings
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile, load_profiles, make_profile, save_profile
from vlmconsole.engines.supported.sglang import from_server_info
from vlmconsole.lab import Lab
from vlmconsole.runs.places import Places
from vlmconsole.screens.servers.calculators import Calculators, shape_for, twins, worked_out
from vlmconsole.screens.servers.screen import ServersScreen
from vlmconsole.screens.widgets.dialogs import Confirm
from vlmconsole.servers.costs import cost_said
from vlmconsole.servers.status import ServerStatus
from vlmconsole.text.sizes import size
from vlmconsole.vision.tokens import ProcessorSettings

until = waiting.until
NOW = 1_796_000_000.0
#: What SGLang 0.5.5 says of the lab's interactive service, as far as it is used here.
INFO: dict[str, Any] = {
    "version": "0.5.5", "served_model_name": "./models/Qwen2.5-VL-3B-Instruct", "max_running_requests": 4,
    "chunked_prefill_size": 1024, "mem_fraction_static": 0.55, "context_length": 4096, "dtype": "bfloat16",
    "tp_size": 1, "attention_backend": "triton", "mm_attention_backend": "sdpa", "disable_radix_cache": False,
    "enable_cache_report": True, "enable_metrics": True, "max_total_num_tokens": 287664,
}  # fmt: skip


def sglang() -> ServerProfile:
    return load_profiles(None)["sglang-remote"]


def test_settings_stand_beside_what_is_in_force() -> None:
    profile = sglang()
    lines = {line.name: line for line in compare_settings(profile, from_server_info(INFO))}
    assert all(line.state != "differs" for line in lines.values()), lines
    assert lines["chunked-prefill-size"].state == "same"
    assert (lines["mem-fraction-static"].wanted, lines["mem-fraction-static"].read) == ("0.55", "0.55")
    assert lines["running limit B"].read == "4"
    assert lines["prefix cache"].read == "on" and lines["prefix cache"].state == "same"
    assert lines["KV capacity"].read == "287,664" and lines["KV capacity"].note == "tokens = 70 × 4096"

    changed = from_server_info({**INFO, "chunked_prefill_size": 2048, "max_running_requests": 2})
    lines = {line.name: line for line in compare_settings(profile, changed)}
    assert {name for name, line in lines.items() if line.state == "differs"} == {
        "running limit B",
        "chunked-prefill-size",
    }
    unread = compare_settings(profile, None)
    assert {line.state for line in unread} == {"unknown"}, "nothing is assumed from the flags"


def test_the_kv_cache_in_bytes_where_the_model_is_here() -> None:
    demo = load_profiles(None)["demo"]
    effective = EffectiveSettings("mlx", context=4096, kv_tokens=16384)
    assert capacity(demo, effective) == "tokens = 4 × 4096, 32 MiB"
    assert capacity(demo, EffectiveSettings("mlx")) == ""


def test_what_it_costs_is_said_also_when_it_is_stopped() -> None:
    paid = sglang().model_copy(update={"price_per_hour": 1.6, "currency": "EUR", "ssh_host": "gpu-box"})
    running = ServerStatus("x", "ready", since=NOW - 2.25 * 3600)
    assert mentions(cost_said(paid, running, NOW), "3.60 EUR", "2.2 h", "1.6 EUR")
    stopped = ServerStatus("x", "stopped")
    assert mentions(cost_said(paid, stopped, NOW), "released", "still billed", "1.6 EUR")
    assert "not known" in cost_said(paid, ServerStatus("x", "ready"), NOW)
    assert cost_said(sglang(), running, NOW) == "", "no price, no sentence"


def test_the_calculators_show_the_maths() -> None:
    shape, pictures, where = shape_for(None)
    values = {"size": "448x336", "tokens": "4096", "sequences": "4", "layers": "36", "kv_heads": "2",
              "head_dim": "128", "element": "2"}  # fmt: skip
    text = "\n".join(worked_out(values, pictures, shape.notes))
    assert "16×12 merged → 192 image tokens" in text and "= 36 KiB a token" in text and "= 576 MiB" in text
    assert where == "Qwen2.5-VL-3B"
    for key, value, said in (
        ("size", "big", "WIDTHxHEIGHT"),
        ("size", "0x10", "no pixels"),
        ("size", "9000x10", "200:1"),
        ("tokens", "many", "whole numbers"),
        ("element", "-1", "whole numbers"),
        ("layers", "9" * 30, "whole numbers"),
    ):
        assert said in "\n".join(worked_out({**values, key: value}, pictures, ())), key


def results(capsys: pytest.CaptureFixture[str], commands: str) -> list[dict[str, Any]]:
    found = []
    for line in commands.splitlines():
        program, *words = shlex.split(line)
        with pytest.raises(SystemExit) as ended:
            main([*words, "--json"])
        assert (program, ended.value.code) == ("vlmconsole", 0), line
        found.append(json.loads(capsys.readouterr().out))
    return found


def test_the_commands_under_the_calculators_work_out_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    demo = load_profiles(None)["demo"]
    values = {"size": " 448 x 336", "tokens": "4096", "sequences": "4"}
    for profile, more, visual in (
        (demo, {}, 54),
        (demo, {"layers": "8", "element": "0.5"}, 54),
        (None, {}, 192),
        (sglang(), {}, 192),
    ):
        shape, pictures, _ = shape_for(profile)
        own = {"layers": f"{shape.layers}", "kv_heads": f"{shape.kv_heads}", "head_dim": f"{shape.head_dim}",
               "element": f"{shape.bytes_per_element:g}"}  # fmt: skip
        typed = {**values, **own, **more}
        lines = "\n".join(worked_out(typed, pictures, shape.notes))
        tokens, memory = results(capsys, twins(profile, typed))
        assert tokens["visual_tokens"] == visual and f"{visual} image tokens" in lines
        assert f"= {size(memory['bytes'])}" in lines and memory["sequences"] == 4
    assert "--model asset:tiny-qwen2.5-vl" in twins(demo, {**values, **own, "layers": "4"})
    text = {"model_type": "gemma3_text", "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 8,
            "hidden_size": 3840, "sliding_window": 1024}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    gemma = demo.model_copy(update={"model": str(tmp_path)})
    shape, pictures, where = shape_for(gemma)
    typed = {"size": "none", "tokens": "32768", "sequences": "1", "layers": "48", "kv_heads": "8", "head_dim": "256",
             "element": "2"}  # fmt: skip
    lines = "\n".join(worked_out(typed, pictures, shape.notes, shape))
    (memory,) = results(capsys, twins(gemma, typed))
    assert memory["bytes"] == 2368 * 2**20 and "= 2.31 GiB" in lines and "1024 in 40 " in lines
    assert "Qwen2.5-VL's rule" in where
    odd = demo.model_copy(update={"processor": ProcessorSettings(max_pixels=100_000)})
    assert "vlmconsole tokens" not in twins(odd, {**values, **own}), "no command has words for these settings"
    assert twins(None, {**values, **own, "size": "big", "layers": ""}) == ""


# -- the screen ----------------------------------------------------------------------------------------------------


@pytest.fixture
def places(tmp_path: Path) -> Places:
    places = lab(tmp_path / "home")
    places.config.write_text('server = "box"\n')
    write(places, "kind")
    return places


def write(places: Places, how: str, **more: object) -> None:
    """The profile `box` of a small server that lab starts itself."""
    launch = {"argv": ["python", "-c", SERVER, "{port}", "0.2", how], "start_timeout_s": 60, "stop_grace_s": 5}
    values = {"engine": "openai", "title": "A small one", "launch": launch, **more}
    save_profile(places.servers, make_profile({"name": "box", **values}))


@asynccontextmanager
async def servers(
    places: Places, size: tuple[int, int] = (120, 40), *, connect: bool = False
) -> AsyncIterator[tuple[Pilot[None], ServersScreen]]:
    app = ConsoleApp(Lab.open(places.home))
    if not connect:
        app._connect = lambda: None  # type: ignore[method-assign]
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.press("escape", "f6")
        screen = app.screen
        assert isinstance(screen, ServersScreen)
        await until(lambda: screen.view.sheet is not None)
        await pilot.pause()
        yield pilot, screen


def seen(pilot: Pilot[None]) -> str:
    lines = pilot.app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in line) for line in lines)


async def test_profiles_the_chosen_one_and_what_cannot_be_reached(places: Places) -> None:
    (places.servers / "bad.toml").write_text("engine = 7\n")
    with held(places):
        async with servers(places) as (pilot, screen):
            assert screen.line is not None and screen.line.profile.name == "box", "the one in use is chosen"
            text = seen(pilot)
            assert "○ box" in text and "A small one" in text and "bad.toml" in text
            assert "192 image tokens" in text or "image tokens" in text
            openai = [line.profile.name for line in screen.view.lines].index("openai")
            screen.listing.choose(openai)
            await until(lambda: screen.view.sheet is not None and screen.view.sheet.line.profile.name == "openai")
            await pilot.pause()
            # Nobody started it: no fault, and not in the colour of one.
            assert "○ not reachable" in seen(pilot) and "nothing answers at" in seen(pilot)
            assert "unreachable" not in seen(pilot) and not screen.line.status.amiss
            assert screen.check_action("start", ()) is False, "it is not ours to start"


@pytest.mark.slow
async def test_80_by_24_has_one_pane_and_the_calculators_count_as_one_types(places: Places) -> None:
    with held(places):
        async with servers(places, (80, 24)) as (pilot, _):
            assert "Profiles" in seen(pilot) and "A small one" not in seen(pilot)
            await pilot.press("right_square_bracket")
            await pilot.pause()
            assert "A small one" in seen(pilot)
            await pilot.press("c")
            await until(lambda: isinstance(pilot.app.screen, Calculators))
            await pilot.pause()
            field = pilot.app.screen.query(Input).first()
            field.value = "896x672"
            await pilot.pause()
            assert "768 image tokens" in seen(pilot)
            await pilot.press("escape")


@pytest.mark.slow
async def test_started_used_and_stopped_by_keys_through_its_job(places: Places) -> None:
    async with servers(places) as (pilot, screen):
        try:
            await pilot.press("s")
            await until(lambda: "◌ starting" in seen(pilot) or "● ready" in seen(pilot))
            await until(lambda: "● ready" in seen(pilot))
            assert screen.line is not None and screen.line.job is not None, "it is a job of the queue"
            await until(lambda: "phase two" in seen(pilot))
            await until(lambda: "served" in seen(pilot))
            await pilot.press("x")
            await until(lambda: isinstance(pilot.app.screen, Confirm))
            await pilot.press("n")
            await asyncio.sleep(0.5)
            assert screen.line.status.state == "ready", "no is no"
            await pilot.press("x")
            await until(lambda: isinstance(pilot.app.screen, Confirm))
            await pilot.press("y")
            await until(lambda: "○ stopped" in seen(pilot) and "box ended" in seen(pilot))
        finally:
            await asyncio.to_thread(ServerDesk(places).stop, "box")


@pytest.mark.slow
async def test_a_server_that_dies_while_starting_says_why(places: Places) -> None:
    write(places, "dies")
    async with servers(places) as (pilot, _):
        await pilot.press("s")
        await until(lambda: "no such weights" in seen(pilot) and "its job" in seen(pilot))


def made_up(places: Places) -> ServersView:
    """The lab's service as it looks from here, without a server: every figure from INFO."""
    profile = sglang().model_copy(update={"ssh_host": "gpu-box", "price_per_hour": 1.6, "currency": "EUR"})
    status = ServerStatus("sglang-remote", "ready", "", "http://127.0.0.1:30000 on gpu-box", None, None, None)
    line = ServerLine(profile, status)
    effective = from_server_info(INFO)
    effective.adapters = ("sft-expand",)
    sheet = Sheet(line, tuple(compare_settings(profile, effective)), effective, "",
                  cost_said(profile, replace(status, since=NOW - 8060), NOW))  # fmt: skip
    profiles = load_profiles(None)
    rest = (ServerLine(profiles["demo"], ServerStatus("demo", "stopped")),
            ServerLine(profiles["vllm"], ServerStatus("vllm", "unreachable", "nothing answers")))  # fmt: skip
    return ServersView((rest[0], line, rest[1]), (), sheet)


def pictured(places: Places, theme: str) -> tuple[ConsoleApp, Callable[[Pilot[None]], Any]]:
    places.config.write_text(f'server = "sglang-remote"\ntheme = "{theme}"\n')
    app = ConsoleApp(Lab.open(places.home))
    app._connect = lambda: None  # type: ignore[method-assign]

    async def run(pilot: Pilot[None]) -> None:
        await pilot.press("escape", "f6")
        await until(lambda: isinstance(pilot.app.screen, ServersScreen))
        screen = pilot.app.screen
        assert isinstance(screen, ServersScreen) and screen._timer is not None
        await until(lambda: screen.view.sheet is not None)
        screen._timer.stop()
        screen.look = lambda: None  # type: ignore[method-assign]
        await until(lambda: not screen._looking)
        screen.listing.lines = ()
        screen._show(made_up(places))
        await pilot.pause(0.3)

    return app, run


async def test_an_adapter_is_shown_with_its_effect_once_it_was_asked_for(places: Places) -> None:
    app, run = pictured(places, "dark")
    with held(places):
        async with app.run_test(size=(120, 40)) as pilot:
            await run(pilot)
            screen = pilot.app.screen
            assert isinstance(screen, ServersScreen)
            assert "? sft-expand   effect unknown" in seen(pilot)
            why = "another greedy answer to the same question"
            screen._effects["sglang-remote", None] = {"sft-expand": Effect("effect verified", why, "a", "b")}
            screen._show(made_up(places))
            await until(lambda: "✓ sft-expand   effect verified" in seen(pilot))  # the rest is wrapped


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.slow)])
def test_picture_120(snap_compare: Any, places: Places, theme: str) -> None:
    app, run = pictured(places, theme)
    with held(places):
        assert snap_compare(app, terminal_size=(120, 40), run_before=run)


@pytest.mark.slow
def test_picture_80(snap_compare: Any, places: Places) -> None:
    app, run = pictured(places, "dark")
    with held(places):
        assert snap_compare(app, terminal_size=(80, 24), run_before=run)
