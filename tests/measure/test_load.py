"""The load client against the reference server over real sockets, each in its own process."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from load_runs import PATIENT, RECIPE, TOKENS, measure, rows, run_fixture, server_fixture  # noqa: F401

from vlmconsole.measure.arrivals import ConstantArrivals
from vlmconsole.measure.calibration.reference import Reference, Schedule, running
from vlmconsole.measure.inputs import InputRecipe
from vlmconsole.measure.load import LoadCell, Target, run_cell
from vlmconsole.runs.folder import RunFolder


@pytest.mark.parametrize("concurrency", [1, 4, 32])
def test_closed_loop_agrees_with_what_the_server_wrote(server: Reference, run: RunFolder, concurrency: int) -> None:
    n = max(6, 2 * concurrency)
    seen = []
    before = len(server.truth())
    cell = LoadCell(
        f"closed-{concurrency}",
        Target.of(server.chat_url),
        list(RECIPE.bodies(range(n))),
        concurrency,
        warm_up=list(RECIPE.bodies(range(-2, 0))),
        lag_limit_s=PATIENT,
    )
    summary = run_cell(cell, run, on_request=seen.append)
    truth = {one["id"]: one for one in server.truth()[before:]}
    assert (summary.n, summary.failures, summary.warm_up, summary.planned) == (n, 0, 2, n)
    assert summary.valid
    assert summary.finish_reasons == {"length": n}
    assert summary.output_tokens == TOKENS
    assert summary.total_output_tokens == n * TOKENS
    assert summary.itl_per == "token"
    assert summary.in_flight is not None
    assert summary.in_flight.max == concurrency
    assert summary.client is not None
    assert summary.client.connections == concurrency
    assert len(seen) == n
    for one in seen:
        said = truth[f"closed-{concurrency}-{one.raw.number}"]
        first, done = one.result.stamps.first_text, one.result.stamps.done
        assert first is not None
        assert done is not None
        # The server stamps after its write, so we may have read a moment before; never long before.
        assert first - said["first"] / 1e9 > -0.005
        assert one.timing.ttft_s is not None
        assert one.timing.ttft_s >= 0.029  # the role chunk came after 2 ms and is no token
        assert one.raw.sent is not None
        assert one.raw.sent <= said["received"]
        assert len(one.gaps_s) == TOKENS - 1
    # However busy the machine is: the client is not more wrong than it says it is.
    worst = summary.lag.worst_p99()
    assert worst is not None
    errors = sorted(
        (one.result.stamps.first_text or 0) - truth[f"{cell.name}-{one.raw.number}"]["first"] / 1e9 for one in seen
    )
    assert errors[len(errors) // 2] < 0.005 + worst


def test_rows_hold_every_time_in_order_and_warm_ups_apart(server: Reference, run: RunFolder) -> None:
    measure(run, server.base_url, 3, warm_up=list(RECIPE.bodies(range(-1, 0))))
    found = rows(run)
    assert [row["phase"] for row in found] == ["warm-up", "measured", "measured", "measured"]
    assert [row["counted"] for row in found] == [False, True, True, True]
    for row in found:
        order = [
            row[key] for key in ("sent", "send_done", "first_byte", "first_any", "first_text", "last_text", "done")
        ]
        assert order == sorted(order)
        assert row["ttft_s"] == pytest.approx(row["first_text"] - row["sent"], abs=2e-6)
        assert row["e2e_s"] == pytest.approx(row["done"] - row["sent"], abs=2e-6)
        assert row["tpot_s"] == pytest.approx((row["last_text"] - row["first_text"]) / (TOKENS - 1), abs=2e-6)
        assert row["prompt_tokens"] == RECIPE.record(0)["messages"][0]["content"].count(" ") + 1
    connection = {row["connection"] for row in found}
    assert len(connection) == 1
    assert [row["served_before"] for row in found] == [0, 1, 2, 3]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="kernel receive stamps are Linux's")
def test_the_kernel_says_when_each_read_arrived(server: Reference, run: RunFolder) -> None:
    summary = measure(run, server.base_url, 6, concurrency=2)
    kernel = summary.lag.kernel
    assert kernel is not None
    assert kernel.n > 6 * TOKENS / 2
    assert -0.001 < kernel.min < kernel.p50 < 0.05
    assert summary.ttft_kernel_s is not None
    assert summary.ttft_s is not None
    assert summary.ttft_kernel_s.n == 6
    assert summary.ttft_kernel_s.p50 <= summary.ttft_s.p50 + 0.001
    assert summary.lag.probe is not None
    assert summary.lag.probe.n > 5


def test_open_loop_keeps_its_absolute_schedule(run: RunFolder) -> None:
    # One at a time takes 60 ms, due are 50 a second: a closed loop would send them 60 ms apart.
    with running(Schedule(role_ms=1, ttft_ms=40, itl_ms=5, tokens=5, limit=1)) as slow:
        due = ConstantArrivals(50.0).due(10)
        summary = measure(run, slow.base_url, 10, due_s=due)
    assert summary.n == 10
    for row in rows(run):
        assert row["scheduled"] == pytest.approx(due[row["index"]], abs=1e-5)
        assert row["sent"] >= row["scheduled"]
        assert row["ttft_from_scheduled_s"] >= row["ttft_s"]
    late = sorted(row["sent"] - row["scheduled"] for row in rows(run))
    assert late[len(late) // 2] < 0.02
    assert summary.ttft_from_scheduled_s is not None
    assert summary.in_flight is not None
    assert summary.in_flight.max > 3  # they queue at the server, as they do in life


def test_equal_work_sets_early_stops_aside_and_keeps_them(server: Reference, run: RunFolder) -> None:
    summary = measure(run, server.base_url, 4, wanted_output=TOKENS + 4, equal_work=True)
    assert (summary.n, summary.failures, summary.set_aside) == (0, 0, {"early stop": 4})
    assert {row["aside"] for row in rows(run)} == {f"early stop: {TOKENS} of {TOKENS + 4} tokens"}
    assert not summary.valid


def test_a_big_request_is_sent_whole(server: Reference, run: RunFolder) -> None:
    recipe = InputRecipe("big", RECIPE.request, image=(1600, 1200), filler_words=200_000)
    cell = LoadCell("big", Target.of(server.chat_url), [recipe.body(0), recipe.body(1)], 2, lag_limit_s=PATIENT)
    summary = run_cell(cell, run)
    assert (summary.n, summary.failures) == (2, 0)
    assert isinstance(summary.input_tokens, int)
    assert summary.input_tokens > 200_000


@pytest.mark.slow
def test_ten_thousand_requests_in_bounded_memory(run: RunFolder) -> None:
    with running(Schedule(role_ms=0, ttft_ms=1, itl_ms=0.1, tokens=4)) as quick:
        cell = LoadCell("many", Target.of(quick.chat_url), RECIPE.bodies(range(10_000)), 150, lag_limit_s=PATIENT)
        summary = run_cell(cell, run)
    assert (summary.n, summary.failures) == (10_000, 0)
    assert summary.client is not None
    assert summary.client.rss_bytes < 200 * 2**20
    assert summary.client.connections >= 150  # no ceiling at 100
    assert summary.in_flight is not None
    assert summary.in_flight.max == 150


def test_progress_is_told_and_the_server_is_watched(server: Reference, run: RunFolder) -> None:
    told: list[dict[str, Any]] = []
    cell = LoadCell("told", Target.of(server.chat_url), list(RECIPE.bodies(range(12))), 2, lag_limit_s=PATIENT)
    thread = threading.current_thread()
    asked = []

    def watch() -> dict[str, float]:
        asked.append(threading.current_thread() is thread)
        return {"running": 2.0}

    summary = run_cell(cell, run, on_progress=told.append, watch=watch)
    assert told[-1]["done"] == 12
    assert {"failed", "total", "in_flight", "lag_p99_ms"} <= told[-1].keys()
    assert asked
    assert summary.server["running"].p50 == 2.0
    assert json.dumps(summary.to_json())


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A server certificate for the loopback, trusted by whatever this process starts."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate, and is not here")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([openssl, *words, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


async def test_tls_is_measured_and_says_that_it_has_no_kernel_stamps(
    server: Reference, run: RunFolder, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", server.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
            sink.close()

        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    front = await asyncio.start_server(forward, "127.0.0.1", 0, ssl=tls)
    try:
        url = f"https://localhost:{front.sockets[0].getsockname()[1]}/v1"
        summary = await asyncio.to_thread(measure, run, url, 6, concurrency=2)
        assert (summary.n, summary.failures) == (6, 0)
        assert summary.ttft_s is not None
        assert summary.ttft_s.p50 >= 0.029
        assert summary.lag.kernel is None
        assert summary.lag.why is not None
        assert "TLS" in summary.lag.why
        monkeypatch.delenv("SSL_CERT_FILE")
        refused = await asyncio.to_thread(measure, run, url, 2)
        assert refused.failure_kinds == {"unreachable": 2}
        assert "TLS" in refused.first_failures[0]
    finally:
        front.close()
