"""Shared by the tests: helper modules that lie beside them, and one real server for all who need one."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from vlmconsole.jobs.kinds import TRUSTED_VARIABLE

# `--import-mode=importlib` leaves the folders out.
sys.path.insert(0, str(Path(__file__).parent / "lab"))
from folders import ROOMS

sys.path.extend(map(str, ROOMS))

from vlmconsole.engines.profile import load_profiles
from vlmconsole.queue.process import LOCKS_VARIABLE
from vlmconsole.runs.places import Places
from vlmconsole.servers.server import Ready
from vlmconsole.servers.where import server_of

# A busy machine is no fault of a parser: time is limited for a whole test, never for one example.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def own_device_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Device locks of this test run alone: a job of the machine's user, or another run, must not make ours wait."""
    os.environ[LOCKS_VARIABLE] = str(tmp_path_factory.mktemp("devices"))
    # The kinds of job that only tests know are no installed package's: presets may name them here.
    os.environ[TRUSTED_VARIABLE] = f"job_kinds,story_kind,probe_kind,{sys.executable}"
    yield
    del os.environ[TRUSTED_VARIABLE]
    del os.environ[LOCKS_VARIABLE]


@pytest.fixture(scope="session")
def mlx_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ready]:
    """The profile `demo` on real mlx-vlm with the bundled model: one process for the whole session.

    Do not stop or kill it, and do not ask for unknown models or adapters (that would unload its model).
    """
    pytest.importorskip("mlx_vlm")
    places = Places(home=tmp_path_factory.mktemp("lab")).ensure()
    profile = load_profiles(None)["demo"]
    ready = asyncio.run(server_of(profile, places).ensure())
    yield ready
    asyncio.run(server_of(profile, places).stop())
