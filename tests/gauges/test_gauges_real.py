"""The gauges beside a real mlx-vlm under load: what the server counts and what our client counts must agree."""

import statistics
import threading
import time
from pathlib import Path

import pytest

from vlmconsole.engines.supported import mlx
from vlmconsole.gauges.fetch import Fetcher
from vlmconsole.gauges.requests import OwnRequests
from vlmconsole.gauges.scrape import ServerMetrics
from vlmconsole.gauges.sources import Gauges
from vlmconsole.measure.bench import run_bench
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.servers.server import Ready

KEY = "VLMCONSOLE_TEST_KEY"  # the variable that holds the key of the session's server
SETTLED = 12.0  # seconds after which the ten-second windows hold nothing of the warm-up
LOOKED = 40.0  # seconds of looking then
ENOUGH = 200  # requests in them: at the edges of a window one more or less counts on either side


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_both_sides_count_the_same_tokens(mlx_server: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact, so it holds on a busy machine too: throughputs over one span can then differ by nothing but its ends."""
    places, fetch = Places(tmp_path).ensure(), Fetcher.of(mlx_server.profile)
    monkeypatch.setenv(KEY, mlx_server.profile.api_key() or "")
    settings = BenchSettings(
        base_url=mlx_server.base_url,
        model=mlx_server.model,
        api_key_env=KEY,
        concurrency=4,
        requests=16,
        image="224x224",
        output_tokens=16,
    )
    run = RunFolder.create(places.runs, kind="bench", preset="load", spec={}, title="load", home=places.home)
    before = mlx.ENGINE.metrics.read(fetch.get("/v1/metrics")).counters
    run_bench(settings, run, places)
    after = mlx.ENGINE.metrics.read(fetch.get("/v1/metrics")).counters
    fetch.close()
    rows = list(run.read_jsonl("requests.jsonl"))
    assert after["requests"] - before["requests"] == len(rows) == 16 + settings.warm_ups
    assert after["output_tokens"] - before["output_tokens"] == sum(row["output_tokens"] for row in rows)
    assert after["prompt_tokens"] - before["prompt_tokens"] == sum(row["prompt_tokens"] for row in rows)
    counted = [event["output_tokens"] for event in run.read_jsonl("events.jsonl") if event["kind"] == "request"]
    assert counted == [row["output_tokens"] for row in rows if row["counted"]]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_server_side_and_client_side_throughput_agree_within_two_percent(
    mlx_server: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = Places(tmp_path).ensure()
    monkeypatch.setenv(KEY, mlx_server.profile.api_key() or "")
    settings = BenchSettings(
        base_url=mlx_server.base_url,
        model=mlx_server.model,
        api_key_env=KEY,
        concurrency=4,
        requests=4000,
        output_tokens=16,  # text alone: many short requests, so that one at a window's edge weighs little
    )
    run = RunFolder.create(places.runs, kind="bench", preset="load", spec={}, title="load", home=places.home)
    run.set_state("running")
    over = threading.Event()

    def told(now: dict[str, object]) -> None:
        run.events.metric("in_flight", float(str(now["in_flight"])))

    load = threading.Thread(
        target=run_bench, args=(settings, run, places), kwargs={"stopping": over.is_set, "on_progress": told}
    )
    sources = [ServerMetrics.of(mlx_server.profile), OwnRequests(places.runs, places.chats)]
    looks: list[tuple[float, float, float]] = []
    with Gauges(sources) as gauges:
        load.start()
        try:
            begun: float | None = None
            until = time.monotonic() + 150
            while time.monotonic() < until and (begun is None or time.monotonic() - begun < SETTLED + LOOKED):
                time.sleep(0.5)
                tiles = gauges.snapshot().tiles
                there, here = tiles["server.throughput"].value or 0.0, tiles["own.throughput"].value or 0.0
                if begun is None:
                    begun = time.monotonic() if here > 0 else None
                elif time.monotonic() - begun > SETTLED:
                    busy = (tiles["server.running"].value or 0.0) + (tiles["server.queued"].value or 0.0)
                    looks.append((there, here, busy))
            last = gauges.snapshot().tiles
        finally:
            over.set()
            load.join(60)
    ended = statistics.mean(look[1] for look in looks) * LOOKED / 16 if looks else 0.0
    if ended < ENOUGH:
        pytest.skip(
            f"this machine is too busy: {ended:.0f} requests in {len(looks)} looks, {ENOUGH} are needed for 2 %"
        )
    server, own = (statistics.mean(look[side] for look in looks) for side in (0, 1))
    busy = statistics.mean(look[2] for look in looks)
    ttft_there, ttft_here = last["server.ttft"].p50, last["own.ttft"].p50
    print(
        f"\nserver {server:.1f} tok/s, client {own:.1f} tok/s, {len(looks)} looks; running + queued {busy:.2f};"
        f" TTFT p50 there {ttft_there} s, here {ttft_here} s"
    )
    assert abs(server - own) / own < 0.02
    assert 2 <= busy <= 4.5
    # The client's TTFT holds what happens before and after the server's own clock, never less.
    assert ttft_there is not None and ttft_here is not None and ttft_here >= ttft_there * 0.98
