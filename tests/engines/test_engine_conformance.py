"""What every engine must keep: the same test for each module of `engines.supported`, and for one that is made up here.

An engine's recordings are the files of `tests/data/streams` and `tests/data/metrics` that begin with its package.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import DATA
from refusals import refused
from replay import Reply, json_reply, recorded_reply, replay

from vlmconsole.engines import supported
from vlmconsole.engines.engine import Engine
from vlmconsole.engines.http import EngineError, open_client
from vlmconsole.engines.metrics import MetricsError
from vlmconsole.engines.profile import ServerProfile, load_profiles, make_profile
from vlmconsole.engines.readback import flush, readback, served_model
from vlmconsole.engines.registry import engine_names, find_engine
from vlmconsole.runs.places import Places

MODULE = """
from vlmconsole.engines.effective import TOKEN_SAMPLING, EffectiveSettings, Flushed, model_ids, names_of, text
from vlmconsole.engines.engine import Engine
from vlmconsole.engines.http import get_json, request
from vlmconsole.engines.metrics import EngineMetric, MetricTable


class Fifth(Engine):
    name = "fifth"
    label = "Fifth"
    package = "fifth-server"
    key_variable = "FIFTH_API_KEY"
    limit_flag = "--batch"
    request_fields = TOKEN_SAMPLING
    adapter_rule = "by name"
    metrics = MetricTable(
        "fifth",
        {
            "running": EngineMetric(("fifth:active",), "gauge"),
            "output_tokens": EngineMetric(("fifth:tokens_total",), "counter"),
        },
        counted="tokens are counted at every step",
    )

    async def readback(self, client, profile):
        models = model_ids(await get_json(client, profile, "/v1/models"))
        version = text((await get_json(client, profile, "/info")).get("version"))
        model = text(models[0]["id"]) if models else None
        return EffectiveSettings(self.name, version, model, names_of(models))

    async def flush(self, client, profile):
        status = (await request(client, profile, "/flush", "POST")).status_code
        return Flushed(status == 200, f"the server answered {status}")

    def select_adapter(self, body, served, adapter):
        body["model"] = adapter or served


ENGINE = Fifth()
"""
PRESET = 'engine = "fifth"\nbase_url = "http://127.0.0.1:8080"\n'
METRICS = "# TYPE fifth:active gauge\nfifth:active 2\n# TYPE fifth:tokens_total counter\nfifth:tokens_total 40\n"
EXCHANGES = {
    ("GET", "/v1/models"): {"data": [{"id": "m"}]},
    ("GET", "/info"): {"version": "1.2"},
    ("POST", "/flush"): {},
}
LINE = ("python", "-m", "a_server", "--model", "{model}", "--port", "{port}")
KEY = "k-3f9c0d"


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "lab").ensure()


@pytest.fixture(params=[*engine_names(), "fifth"])
def engine(
    request: pytest.FixtureRequest, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    """Each engine; the made-up one is a file in the package's path, and a preset: nothing else."""
    if request.param == "fifth":
        (tmp_path / "more").mkdir()
        (tmp_path / "more" / "fifth.py").write_text(MODULE, "utf-8")
        (places.servers / "fifth.toml").write_text(PRESET, "utf-8")
        monkeypatch.setattr(supported, "__path__", [*supported.__path__, str(tmp_path / "more")])
    yield find_engine(request.param)
    sys.modules.pop(f"{supported.__name__}.fifth", None)


def profile_of(engine: Engine, **more: Any) -> ServerProfile:
    """One that this lab starts, with the bundled model."""
    launch = {} if engine.writes_line else {"argv": LINE}
    values = {"name": "box", "engine": engine.name, "model": "asset:tiny-qwen2.5-vl", "launch": launch}
    return make_profile(values | {"running_limit": 3, **more})


def recordings(engine: Engine) -> list[dict[str, Any]]:
    """Its recorded control exchanges; of a generic engine, any server's."""
    if engine.name == "fifth":
        lines = {key: [[0.0, json.dumps(value)]] for key, value in EXCHANGES.items()}
        head = {"status": 200, "type": "application/json", "server": ""}
        return [{"method": method, "path": path, "lines": lines[method, path], **head} for method, path in lines]
    files = sorted((DATA / "streams").glob(f"{'vllm' if engine.generic else engine.package}-*.json.gz"))
    assert files, f"no recording of {engine.name}"
    cases: dict[str, list[dict[str, Any]]] = json.loads(gzip.decompress(files[-1].read_bytes()))
    wanted = ("get_", "server_info", "flush_idle", "v1_settings")
    return [some[0] for case, some in cases.items() if case.startswith(wanted)]


def routes(engine: Engine) -> dict[str, Reply]:
    """The first answer of each address that is no failure."""
    found: dict[str, Reply] = {"GET /v1/settings": json_reply({"current": {}})}
    for exchange in recordings(engine):
        if exchange["status"] == 200:
            found.setdefault(f"{exchange['method']} {exchange['path']}", recorded_reply(exchange))
    return found


def metrics_text(engine: Engine) -> str:
    """A recorded metrics page of it, after requests."""
    assert engine.metrics is not None
    if engine.name == "fifth":
        return METRICS
    pages = sorted((DATA / "metrics").glob(f"{engine.package}-*.metrics_after.txt.gz"))
    if pages:
        return gzip.decompress(pages[-1].read_bytes()).decode()
    bodies = [
        "".join(line for _, line in it["lines"]) for it in recordings(engine) if it["path"] == engine.metrics.path
    ]
    return max(bodies, key=len)  # the one after most requests


def test_it_is_known_by_its_module_and_has_a_preset(engine: Engine, places: Places) -> None:
    assert engine.name in engine_names() and find_engine(engine.name) is engine
    assert engine.label and engine.ready_path.startswith("/")
    assert any(profile.engine == engine.name for profile in load_profiles(places.servers).values())


def test_its_launch_words_hold_model_and_port_and_never_a_key(engine: Engine, places: Places) -> None:
    profile = profile_of(engine)
    words = engine.command(profile, places, 30123)
    assert str(profile.model_dir()) in words and "30123" in words
    assert not engine.takes_key([*words, "--api-key", KEY]), "one of the user's own is left to them"
    if engine.takes_key(words):
        assert engine.key_variable and engine.key_variable.isupper()
        assert KEY not in " ".join(engine.keyed(words)) and engine.keyed(words)[-2:] == words[-2:]
    assert engine.key_variable not in engine.environment(profile, places)
    wanted = engine.wanted(profile)
    assert wanted.get("model") == str(profile.model_dir()) or engine.writes_line
    assert "{port}" not in wanted.values()


async def test_its_settings_are_read_back_from_what_it_answered(engine: Engine) -> None:
    async with replay(routes(engine)) as player:
        profile = make_profile({"name": "box", "engine": engine.name, "base_url": player.url})
        settings = await readback(profile)
        assert settings.engine == engine.name and settings.model
        assert settings.version or engine.generic or settings.notes, "what it does not tell is said"
        assert await served_model(profile) == settings.model
        assert "api_key" not in json.dumps(settings.raw), "a key that it tells is nobody's"
        async with open_client(profile) as client:
            assert (await client.get(profile.url(engine.ready_path))).status_code == 200


async def test_its_flush_says_whether_it_was_one(engine: Engine) -> None:
    async with replay(routes(engine)) as player:
        done = await flush(make_profile({"name": "box", "engine": engine.name, "base_url": player.url}))
    assert done.why and (done.ok or engine.generic or "off" in done.why or "no way is known" in done.why)
    async with replay({}) as player:
        refusal = await flush(make_profile({"name": "box", "engine": engine.name, "base_url": player.url}))
    assert refusal.why and not refusal.ok


def test_its_metric_table_maps_the_recorded_text(engine: Engine) -> None:
    table = engine.metrics
    if table is None:
        assert engine.generic
        return
    scrape = table.read(metrics_text(engine))
    assert scrape.counters["output_tokens"] > 0 and scrape.gauges["running"] >= 0
    assert table.counted and table.path.startswith("/")
    with refused("", engine.label if engine.name == "mlx" else engine.name, error=MetricsError):
        table.read("<html>gateway timeout</html>")


def test_its_adapter_rule_is_what_its_requests_carry(engine: Engine) -> None:
    body: dict[str, Any] = {"model": "m"}
    if engine.adapter_rule == "none":
        with pytest.raises(EngineError):
            engine.select_adapter(body, "m", "a")
        return
    engine.select_adapter(body, "m", "a")
    assert body != {"model": "m"} and "a" in json.dumps(body)
    base: dict[str, Any] = {"model": "m"}
    engine.select_adapter(base, "m", None)
    assert base["model"] == "m" and base != body
    by_folder = engine.adapter_rule == "by folder"
    assert body["model"] == "m" if by_folder else "a" in body["model"]


def test_its_requests_carry_only_what_it_honours(engine: Engine) -> None:
    held = engine.held_output(profile_of(engine))
    assert set(held) <= engine.request_fields
    assert {"min_tokens", "ignore_eos"} <= engine.request_fields or held or engine.generic
    dict(engine.template_variables)  # pairs, as a key of a cache


def test_a_module_of_forty_lines_is_enough() -> None:
    assert len(MODULE.strip().splitlines()) < 40
