"""Sweeps and cache probes as jobs: on servers over real sockets, and (slow) on real mlx-vlm with the bundled model."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import check_error, mentions, refused
from replay import Reply, json_reply, replay, said, sse
from rich.console import Console

from vlmconsole.cli.plots import show_plots
from vlmconsole.drawings.measured import DECODE, LOST, PREFILL, WAIT
from vlmconsole.drawings.measured import waterfalls as drawn_waterfalls
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ProfileError, load_profiles, make_profile, save_profile
from vlmconsole.engines.supported import mlx
from vlmconsole.jobs import cache_probe, sweep
from vlmconsole.jobs.contract import Context, IncompleteError, JobError, Stopped
from vlmconsole.jobs.owned_server import check
from vlmconsole.jobs.presets import PresetError, load_preset, overlay
from vlmconsole.measure.axes import axes
from vlmconsole.measure.cache.facts import other_layers
from vlmconsole.measure.calibration.reference import Reference, Schedule, running
from vlmconsole.measure.sweep import SweepSettings
from vlmconsole.measure.variants import with_prefix_cache, with_running_limit
from vlmconsole.measure.views import Bar, CellView, waterfalls
from vlmconsole.queue.adding import plan
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

PATIENT_MS = 60_000  # other programs share the machine that tests run on


@pytest.fixture(scope="module")
def server() -> Iterator[Reference]:
    with running(Schedule(role_ms=1, ttft_ms=10, itl_ms=2, tokens=6, limit=1)) as found:
        yield found


def context(tmp_path: Path, kind: str, spec: dict[str, Any]) -> Context:
    places = Places(home=tmp_path / "home").ensure()
    run = RunFolder.create(places.runs, kind=kind, preset=kind, spec=spec, title=kind, home=places.home)
    return Context(run, places)


def preset(name: str, *sets: str) -> Any:
    return overlay(load_preset(name), list(sets))


# --- cells ---
def test_the_main_experiment_has_seven_scenarios_and_48_requests() -> None:
    for name in ("main-experiment", "main-experiment-tiny"):
        cells = preset(name).expand()
        assert len(cells) == 7
        assert [cell.settings.requests for cell in cells] == [6, 6, 12, 6, 6, 6, 6]
        assert [cell.settings.concurrency for cell in cells] == [1, 2, 4, 1, 1, 1, 1]
        assert {cell.running_limit for cell in cells} == {4}
        assert all(cell.settings.equal_work for cell in cells)
    lab = {cell.name: cell.settings for cell in preset("main-experiment").expand()}
    assert (lab["C1"].image, lab["C1"].input_tokens, lab["C1"].output_tokens) == ("448x336", 335, 128)
    assert (lab["224x168"].input_tokens, lab["896x672"].input_tokens) == (191, 911)
    assert (lab["out64"].output_tokens, lab["out256"].output_tokens) == (64, 256)


def test_a_grid_crosses_c_and_b_with_one_server_for_each_b() -> None:
    cells = preset("cb-grid").expand()
    assert [(cell.running_limit, cell.settings.concurrency) for cell in cells] == [
        (limit, concurrency) for limit in (1, 4) for concurrency in (1, 2, 4)
    ]
    assert [cell.name for cell in cells][:2] == ["c1-b1", "c2-b1"]
    assert "servers started: 2" in sweep.estimate(preset("cb-grid")).note


@pytest.mark.parametrize(
    ("sets", "starts"),
    [
        ([], 1),
        (["base_url=http://127.0.0.1:9/v1"], 0),
        (["server=given"], 0),
        (["server=far"], 0),
        (["cells=[{name='a'}, {name='b', server='given'}, {name='d'}]"], 2),
    ],
)
def test_a_server_that_is_there_already_is_not_counted_as_started(sets: list[str], starts: int, tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    (places.servers / "given.toml").write_text('engine = "openai"\nbase_url = "http://127.0.0.1:9/v1"\n')
    (places.servers / "far.toml").write_text('engine = "sglang"\nbase_url = "http://127.0.0.1:9"\nssh_host = "box"\n')
    planned = plan(load_preset("main-experiment-tiny"), sets, places)[0]
    assert planned.estimate is not None and f"servers started: {starts}" in planned.estimate.note
    assert [cell.settings.concurrency for cell in preset("mac-concurrency").expand()] == [1, 2, 4]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("grid.colour=[1]", "no such key"),
        ("grid.concurrency=[]", "is empty"),
        ("grid={}", "grid and cells"),
        ("grid.concurrency=[1, 1]", "same name"),
        ("grid.concurrency=[0]", "equal to 1"),
        ("grid.image=['big']", "WIDTHxHEIGHT"),
        ("cells=[{speed=1}]", "no key"),
    ],
)
def test_wrong_cells_are_refused_before_anything_starts(change: str, said: str) -> None:
    with refused("setting-invalid", said, error=PresetError):
        preset("cb-grid-tiny", change)


def test_a_server_is_varied_by_its_launch_line_only_where_it_is_launched_here() -> None:
    profiles = load_profiles(None)
    sglang, demo, other = profiles["sglang-remote"], profiles["demo"], profiles["openai"]
    one = with_running_limit(with_prefix_cache(sglang, False), 1)
    assert one.launch is not None
    assert one.launch.argv[-2:] == ("--max-running-requests", "1")
    assert one.launch.argv.count("--max-running-requests") == one.launch.argv.count("--disable-radix-cache") == 1
    again = with_prefix_cache(one, True)
    assert again.launch is not None
    assert "--disable-radix-cache" not in again.launch.argv
    assert with_running_limit(demo, 1).running_limit == 1
    assert with_prefix_cache(demo, True).prefix_cache is True
    with refused("server-foreign", "openai", error=ProfileError):
        with_running_limit(other, 1)
    with refused("server-differs", "running limit B", "4", "1", error=JobError):
        check(one, EffectiveSettings("sglang", running_limit=4))
    assert mlx.ENGINE.held_output(demo)["logit_bias"] == {"562": -100.0, "564": -100.0}
    assert mlx.ENGINE.held_output(other) == {}
    cached = make_profile({**demo.model_dump(), "launch": {"extra": ["--vision-cache-size", "20"]}})
    assert other_layers(cached, EffectiveSettings("mlx")) == ["vision-cache-size = 20"]


# --- a sweep over sockets ---
def test_a_sweep_keeps_every_cell_and_sets_early_stops_aside(server: Reference, tmp_path: Path) -> None:
    spec = SweepSettings.model_validate(
        {
            "base_url": server.base_url,
            "model": "reference",
            "requests": 4,
            "warm_up": 1,
            "lag_limit_ms": PATIENT_MS,
            "output_tokens": 6,
            "cells": [{"name": "C1"}, {"name": "C4", "concurrency": 4}, {"name": "long", "output_tokens": 9}],
        }
    )
    job = context(tmp_path, "sweep", spec.model_dump())
    summary = sweep.run(job, spec)
    one, four, early = summary["cells"]
    assert [cell["state"] for cell in summary["cells"]] == ["valid", "valid", "invalid"]
    assert (one["work"], one["equal_work"]) == ("all 4 gave 6 tokens", True)
    assert mentions(early["work"], "0 of 4", "9 tokens", "4 early stop")
    assert early["summary"]["set_aside"] == {"early stop": 4}
    assert (summary["n"], summary["requests"], summary["set_aside"]) == (8, 12, 4)
    assert (summary["valid"], summary["equal_work"]) == (False, False)
    # With one running at once, four in flight wait for each other.
    assert four["summary"]["ttft_s"]["max"] > 2 * one["summary"]["ttft_s"]["p50"]
    assert {"client_concurrency", "max_tokens"} <= set(summary["varied"])
    assert job.run.read_json("conditions.json")["C4"]["client_concurrency"] == 4
    rows = list(job.run.read_jsonl("requests.jsonl"))
    assert len(rows) == 3 * 4 + 3
    assert {row["cell"] for row in rows} == {"C1", "C4", "long"}

    falls = waterfalls(job.run)
    assert [bar.failed for bar in falls["long"]] == [True] * 4
    assert max(bar.end for bar in falls["C4"]) > max(bar.end for bar in falls["C4"][:1])
    text = io.StringIO()
    show_plots(Console(file=text, width=90), job.run)
    for words in ("INVALID", "E2E s", "A C1   B C4", "decode", "early stop"):
        assert words in " ".join(text.getvalue().split()) or words in text.getvalue()
    assert max(len(line) for line in text.getvalue().splitlines()) <= 90


def drawn(name: str, ttft: float, state: str = "valid", **settings: Any) -> CellView:
    summary = {"ttft_s": {"p50": ttft}, "e2e_s": {"p50": 2 * ttft}, "throughput_tok_s": 100 * ttft}
    tokens = {"input_tokens": 30 + int(str(settings.get("image", "8x8")).partition("x")[0]), "output_tokens": 8}
    conditions = {**tokens, "running_limit": 4, "client_concurrency": settings.get("concurrency", 1)}
    conditions["output_tokens"] = settings.get("output_tokens", 8)
    return CellView(name, state, "", "", {"concurrency": 1, "image": "8x8", **settings}, summary, conditions)


def test_what_cells_differ_in_decides_their_axes() -> None:
    sizes = [drawn(str(side), side / 10, image=f"{side}x{side}", input_tokens=side) for side in (10, 20, 40)]
    (one,) = axes(sizes)
    assert "image" in one.title and (one.x, one.only) == ("input tokens", "image")
    assert [(point.x, point.y) for point in one.points] == [(40, 1.0), (50, 2.0), (70, 4.0)]
    lengths = [drawn(f"out{n}", n / 10, output_tokens=n) for n in (4, 8, 16)]
    (one,) = axes(lengths)
    assert (one.only, one.y, one.points[-1].y) == ("output_tokens", "E2E p50, s", 3.2)
    # C, a picture's size and an answer's length in one experiment: each has its own, and all stand together first.
    mixed = [drawn("C1", 1.0), drawn("C4", 3.0, concurrency=4, requests=12), *sizes[1:], *lengths[::2]]
    both, pictures, answers = axes(mixed)
    assert mentions(both.title, "throughput", "TTFT") and len(both.points) == len(mixed) and not both.only
    assert [point.name for point in pictures.points] == ["C1", "20", "40"]
    assert [point.name for point in answers.points] == ["C1", "out4", "out16"]
    assert axes(mixed[:1]) == [] and axes([]) == []
    hostile = [
        CellView("x", "valid", "", "", {"image": ["?"]}, {"ttft_s": "much"}, {"input_tokens": {}}) for _ in range(4)
    ]
    assert axes(hostile) == []


def test_a_cell_that_cannot_be_measured_is_kept_with_its_reason(server: Reference, tmp_path: Path) -> None:
    cells = [{"name": "short", "input_tokens": 2}, {"name": "fine"}]
    common = {"base_url": server.base_url, "model": "reference", "requests": 2, "warm_up": 0, "output_tokens": 6}
    spec = SweepSettings.model_validate({**common, "lag_limit_ms": PATIENT_MS, "cells": cells})
    with pytest.raises(IncompleteError) as error:
        sweep.run(context(tmp_path, "sweep", {}), spec)
    check_error(error.value, "cells-missing", "1 of 2 cells", "short", "shortest prompt")
    summary = error.value.summary
    assert summary is not None and [cell["state"] for cell in summary["cells"]] == ["failed", "valid"]
    assert summary["missing_cells"] == 1
    alone = SweepSettings.model_validate({**common, "cells": cells[:1]})
    with refused("cells-unmeasured", "shortest prompt", error=JobError):
        sweep.run(context(tmp_path / "b", "sweep", {}), alone)


@pytest.mark.parametrize(
    "death",
    ["in a cell", *(pytest.param(when, marks=pytest.mark.slow) for when in ("between two cells", "before the first"))],
)
def test_cells_whose_server_died_are_missing_and_measured_by_the_next_attempt(tmp_path: Path, death: str) -> None:
    """Once such a sweep was done, exit 0, and its retry found nothing to do."""
    common = {"model": "reference", "requests": 12, "warm_up": 0, "lag_limit_ms": PATIENT_MS, "output_tokens": 6}
    schedule = Schedule(role_ms=1, ttft_ms=30, itl_ms=2, tokens=6)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(running(schedule))
        spec = SweepSettings.model_validate({**common, "base_url": first.base_url, "grid": {"concurrency": [1, 2, 3]}})
        job = context(tmp_path, "sweep", spec.model_dump())
        emit, requests = job.events.emit, 0

        def emitted(kind: str, **fields: Any) -> None:
            nonlocal requests
            requests += kind == "request"
            if (kind == "cell" and death.startswith("between")) or (requests == 13 and death == "in a cell"):
                stack.close()
            emit(kind, **fields)

        job.events.emit = emitted  # type: ignore[method-assign]
        if death == "before the first":
            stack.close()
        with pytest.raises(IncompleteError) as error:
            sweep.run(job, spec)
    summary = error.value.summary
    measured = 0 if death == "before the first" else 1
    if measured:
        check_error(error.value, "cells-missing", "2 of 3 cells", "(c2, c3)", "run --resume")
    else:
        check_error(error.value, "cells-unmeasured", "run --resume")
    assert summary is not None and (summary["missing_cells"], summary["valid"]) == (3 - measured, False)
    with running(schedule) as second:
        again = context(tmp_path / "again", "sweep", spec.model_dump())
        moved = spec.model_copy(update={"base_url": second.base_url})
        after = sweep.run(Context(again.run, again.places, earlier=job.run), moved)
    assert after["missing_cells"] == 0 and [cell["name"] for cell in after["cells"]] == ["c1", "c2", "c3"]
    assert [cell.get("from") for cell in after["cells"]] == [job.run.name] * measured + [None] * (3 - measured)
    assert [cell["state"] for cell in after["cells"]] == ["valid"] * 3
    assert len([row for row in again.run.read_jsonl("requests.jsonl") if row["phase"] == "measured"]) == 36


def test_a_stopped_sweep_keeps_the_cells_it_has(server: Reference, tmp_path: Path) -> None:
    common = {"base_url": server.base_url, "model": "reference", "requests": 2, "warm_up": 0, "output_tokens": 6}
    spec = SweepSettings.model_validate({**common, "lag_limit_ms": PATIENT_MS, "grid": {"concurrency": [1, 2, 3]}})
    job = context(tmp_path, "sweep", {})
    emit = job.events.emit

    def emitted(kind: str, **fields: Any) -> None:
        emit(kind, **fields)
        if kind == "cell":
            job._stop.set()

    job.events.emit = emitted  # type: ignore[method-assign]
    with pytest.raises(Stopped) as stopped:
        sweep.run(job, spec)
    assert stopped.value.summary is not None
    assert [cell["name"] for cell in stopped.value.summary["cells"]] == ["c1"]
    assert stopped.value.summary["planned_cells"] == 3


def test_a_waterfall_shows_who_waited() -> None:
    bars = [Bar(0, 0.0, 1.0, 2.0), Bar(1, 0.0, 3.0, 4.0), Bar(2, 2.0, None, 4.0, True)]
    lines = [line.plain for line in drawn_waterfalls([("C2", bars)], 47)]
    assert lines[5] == "   0   " + PREFILL * 10 + DECODE * 10
    assert lines[6] == "   1   " + WAIT * 20 + PREFILL * 10 + DECODE * 10
    assert lines[7] == "   2 × " + " " * 20 + LOST * 20
    assert lines[8].endswith("4 s") and lines[4].startswith("C2")


# --- the cache probe over sockets: made-up answers in the shape of SGLang 0.5.5, which was never seen running ---
class Made:
    """A server that reuses prefixes (or does not), counts them as 0.5.5 does, and refuses its first flush."""

    PREFIX = 1741

    def __init__(self, radix: bool, report: bool = True) -> None:
        self.radix, self.report = radix, report
        self.known: set[str] = set()
        self.flushes = 0
        info = {"version": "0.5.5", "disable_radix_cache": not radix, "enable_cache_report": report, "page_size": 1}
        self.routes = {
            "GET /server_info": json_reply({}, 404),
            "GET /get_server_info": json_reply({**info, "max_running_requests": 4}),
            "POST /flush_cache": self.flush,
            "POST /v1/chat/completions": self.chat,
        }

    def flush(self, _: Any) -> Reply:
        self.flushes += 1
        if self.flushes == 1:
            return Reply([b"Cache flushed."], 400, "text/plain")
        self.known.clear()
        return Reply([b"Cache flushed."], 200, "text/plain")

    def chat(self, request: Any) -> Reply:
        text = json.dumps(request["messages"])
        warm = self.radix and text in self.known
        self.known.add(text)
        usage: dict[str, Any] = {"prompt_tokens": self.PREFIX, "completion_tokens": 2, "prompt_tokens_details": None}
        if warm and self.report:
            usage["prompt_tokens_details"] = {"cached_tokens": self.PREFIX - 1}
        pieces = sse(said(""), said("a"), said("b", "length"), {"choices": [], "usage": usage})
        return Reply([pieces[0], b"".join(pieces[1:])], pause=0.0 if warm else 0.15)


async def probed(tmp_path: Path, on: Made, off: Made, **more: Any) -> tuple[dict[str, Any], Context]:
    async with replay(on.routes) as first, replay(off.routes) as second:
        spec = cache_probe.CacheProbeSettings.model_validate(
            {"server": "on", "control": "off", "pairs": 2, "least_pairs": 2, "warm_up": 1, "lag_limit_ms": PATIENT_MS}
            | more
        )
        job = context(tmp_path, "cache_probe", spec.model_dump())
        for name, url in (("on", first.url), ("off", second.url)):
            profile = make_profile({"name": name, "engine": "sglang", "base_url": url})
            save_profile(job.places.servers, profile)
        return await asyncio.to_thread(cache_probe.run, job, spec), job


async def test_the_probe_proves_a_hit_with_omission_read_as_zero(tmp_path: Path) -> None:
    on = Made(radix=True)
    summary, job = await probed(tmp_path, on, Made(radix=False))
    assert summary["verdict"] == "hit proven", summary["reasons"]
    assert (summary["warm_cached"], summary["cold_cached"]) == ([1740, 1740], [0, 0])
    assert (summary["block"], on.flushes) == (1, 3)  # the first flush was refused, and tried again
    assert "verified" in summary["cached_rule"]["cache on"]
    assert "prefix cache off" in summary["servers"]["cache off"]
    assert "another layer" in summary["other_layers"]["note"]
    assert summary["pairs"][0]["cold"]["usage"][-1]["prompt_tokens_details"] is None  # the raw usage is kept
    rows = list(job.run.read_jsonl("requests.jsonl"))
    assert [row["role"] for row in rows] == ["warm-up", "cold", "warm", "cold", "warm"] * 2
    conditions = job.run.read_json("conditions.json")
    assert mentions(conditions["cache on"]["cache"], "on", "flushed")
    assert (conditions["cache on"]["n"], conditions["cache off"]["settings"]["disable-radix-cache"]) == (4, True)
    text = io.StringIO()
    show_plots(Console(file=text, width=90), job.run)
    assert "1740 of 1741 cached" in text.getvalue()


async def test_without_a_cache_report_or_control_the_probe_proves_nothing(tmp_path: Path) -> None:
    summary, _ = await probed(tmp_path, Made(radix=True, report=False), Made(radix=False), control="", pairs=1)
    assert summary["verdict"] == "not provable"
    assert mentions(" ".join(summary["reasons"]), "unknown", "zero")


async def test_a_control_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    on = Made(radix=True)
    with refused("server-foreign", "cache off", "control", error=JobError):
        await probed(tmp_path, on, Made(radix=False), control="restart")
    assert not on.known  # nothing was asked before


# --- real mlx-vlm with the bundled model ---
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_sweep_over_c_and_b(tmp_path: Path) -> None:
    pytest.importorskip("mlx_vlm")
    spec = preset("cb-grid-tiny", f"lag_limit_ms={PATIENT_MS}", "requests=4", "warm_up=1", "grid.concurrency=[1, 4]")
    job = context(tmp_path, "sweep", spec.model_dump())
    summary = sweep.run(job, spec)
    assert summary["valid"], [cell["why"] for cell in summary["cells"]]
    assert summary["equal_work"]
    assert summary["varied"] == ["client_concurrency", "running_limit"]
    told = {cell["name"]: cell["conditions"]["running_limit"] for cell in summary["cells"]}
    assert told == {"c1-b1": 1, "c4-b1": 1, "c1-b4": 4, "c4-b4": 4}
    assert {path.name for path in job.run.path.glob("server-*.log")} == {"server-b1.log", "server-b4.log"}
    assert not list((job.places.state / "servers").iterdir())  # nothing of its servers is left behind


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["cache-probe-text", "cache-probe-picture"])
def test_real_cache_probe(name: str, tmp_path: Path) -> None:
    pytest.importorskip("mlx_vlm")
    sets = [f"lag_limit_ms={PATIENT_MS}", "pairs=2", "least_pairs=2", "warm_up=1", "input_tokens=225"]
    spec = preset(name, *sets)
    job = context(tmp_path, "cache_probe", spec.model_dump())
    summary = cache_probe.run(job, spec)
    assert summary["block"] == 16
    assert all(tokens == 0 for tokens in summary["cold_cached"])
    if name == "cache-probe-picture":
        assert summary["verdict"] == "no hit"
        return
    # The counts are the server's; whether the times agree is the machine's business while tests share it.
    assert all(tokens >= summary["prefix_tokens"] - 16 for tokens in summary["warm_cached"])
    assert all(pair["warm"]["cached"]["tokens"] == 0 for pair in summary["control"])
    assert summary["verdict"] in ("hit proven", "not provable")
