"""What comes from outside is read within limits: control requests, metrics, pictures and JSON, on hostile servers."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator

import pytest
from hostile_server import EVERY_PATH, hostile
from refusals import refused

from vlmconsole.engines.http import EngineError, open_client, parse_object, request
from vlmconsole.engines.profile import make_profile
from vlmconsole.gauges.fetch import Fetcher
from vlmconsole.gauges.figures import SourceError
from vlmconsole.system.bounded_http import LimitError, Unpacker, json_value
from vlmconsole.vision.fetch import fetch_picture
from vlmconsole.vision.limits import PictureError

LIMIT_MB = 300


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with hostile() as url:
        yield url


# The asking side as a process of its own, so that its peak is its own; it says what came, then its peak in bytes.
CONTROL = """
import asyncio, sys
from vlmconsole.engines.http import open_client
from vlmconsole.engines.profile import make_profile
from vlmconsole.errors import LabError
from vlmconsole.system.machine import peak_rss_bytes
from vlmconsole.engines.readback import readback
profile = make_profile({"name": "x", "engine": sys.argv[2], "base_url": sys.argv[1]})
async def main():
    async with open_client(profile, 1.0) as client:
        print(await readback(profile, client))
try:
    asyncio.run(main())
except LabError as error:
    print(error.full_message)
print(peak_rss_bytes())
"""
GAUGES = """
import sys
from vlmconsole.errors import LabError
from vlmconsole.system.machine import peak_rss_bytes
from vlmconsole.gauges.scrape import ServerMetrics
source = ServerMetrics(sys.argv[1], sys.argv[2])
try:
    print(source.read())
except LabError as error:
    print(error.full_message)
print(peak_rss_bytes())
"""


def asked(code: str, url: str, engine: str) -> tuple[str, float, float]:
    """(what it said, seconds, peak MiB) of a process that asks."""
    begun = time.monotonic()
    words = [sys.executable, "-c", code, url, engine]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    said, _, peak = done.stdout.strip().rpartition("\n")
    assert done.returncode == 0 and peak.isdigit(), done.stderr[-2000:]
    return said, time.monotonic() - begun, int(peak) / 2**20


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sglang", "mlx"])
@pytest.mark.parametrize("code", [CONTROL, GAUGES], ids=["control", "gauges"])
@pytest.mark.parametrize("manner", sorted(EVERY_PATH))
def test_no_answer_fills_or_holds_whoever_asks(server: str, manner: str, code: str, engine: str) -> None:
    said, seconds, peak = asked(code, f"{server}/{manner}", engine)
    print(f"| {'control' if code == CONTROL else 'gauges'} {engine} | {manner} | {peak:.0f} | {seconds:.1f} | {said} |")
    assert peak < LIMIT_MB
    assert seconds < 30
    assert said and "\n" not in said


@pytest.mark.parametrize(
    ("code", "manner"), [(CONTROL, "gzip-bomb"), (GAUGES, "endless-body")], ids=["control", "gauges"]
)
def test_a_bomb_and_a_flood_stay_small(server: str, code: str, manner: str) -> None:
    said, _, peak = asked(code, f"{server}/{manner}", "openai")
    assert peak < LIMIT_MB
    assert "MiB" in said


@pytest.mark.parametrize(
    ("manner", "code", "noun"),
    [
        ("endless-models", "limit-size", "4 MiB"),
        ("gzip-bomb", "limit-size", "4 MiB"),
        ("dripping-body", "limit-time", "0.5 s"),
        ("dripping-header", "limit-silence", "0.5 s"),
        ("endless-interim", "limit-silence", "0.5 s"),
        ("endless-header", "limit-size", "head"),
    ],
)
async def test_control_requests_end_and_say_why(server: str, manner: str, code: str, noun: str) -> None:
    profile = make_profile({"name": "x", "engine": "openai", "base_url": f"{server}/{manner}"})
    async with open_client(profile, 0.5) as client:
        with refused(code, noun, error=EngineError):
            await request(client, profile, "/v1/models")


async def test_deep_json_is_no_object(server: str) -> None:
    profile = make_profile({"name": "x", "engine": "openai", "base_url": f"{server}/deep-json"})
    async with open_client(profile, 5.0) as client:
        assert parse_object((await request(client, profile, "/v1/models")).content) is None


def test_gauges_leave_a_drip_in_the_head_in_time(server: str) -> None:
    fetcher = Fetcher(f"{server}/dripping-header", deadline=0.4)
    try:
        with refused("limit-silence", "0.4 s", error=SourceError):
            fetcher.get("/metrics")
    finally:
        fetcher.close()


@pytest.mark.parametrize("manner", ["gzip-bomb", "dripping-header", "endless-body"])
async def test_pictures_too(server: str, manner: str) -> None:
    with pytest.raises(PictureError):
        await fetch_picture(f"{server}/{manner}/x.png", allow_private=True, timeout_s=1.0, max_bytes=100_000)


def test_an_honest_packed_answer_is_unpacked() -> None:
    """Not asked for, but harmless: within the limit, however it is cut."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = packer.compress(b'{"a": 1}') + packer.flush()
    unpacked = Unpacker(8, "GZIP ")
    for at in range(len(data)):
        unpacked.add(data[at : at + 1])
    assert bytes(unpacked.body) == b'{"a": 1}'


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "x" * 9999])
def test_other_codings_are_refused_by_name(coding: str) -> None:
    with pytest.raises(LimitError) as caught:
        Unpacker(10, coding)
    assert caught.value.kind == "coding" and len(caught.value.message) < 120


def test_packed_rubbish_and_exact_sizes() -> None:
    with refused("limit-coding", "gzip", error=LimitError):
        Unpacker(10, "gzip").add(b"never packed")
    whole = Unpacker(3)
    whole.add(b"abc")
    assert bytes(whole.body) == b"abc"
    with refused("limit-size", "3 B", error=LimitError):
        whole.add(b"d")


@pytest.mark.parametrize(
    "text",
    ["[" * 1_000_000, "[" * 65 + "]" * 65, '{"a":' * 70 + "1" + "}" * 70, "[" * 900 + "]" * 900, "[1,", "", "nul"],
)
def test_json_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        json_value(text)


def test_json_that_is_taken() -> None:
    for text in ("1", '"x"', "[" * 64 + "]" * 64, '{"a": [{"b": [1, 2]}]}', b"[]"):
        assert json_value(text) == json.loads(text)
