"""Launch flags are held against the installed version's --help before anything is started."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest
from folders import DATA
from refusals import mentions

from vlmconsole.engines import flags
from vlmconsole.engines.profile import ServerProfile, load_profiles, make_profile
from vlmconsole.engines.registry import find_engine
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes
from vlmconsole.servers.where import server_of

REAL = tuple(
    line for line in (DATA / "sglang-0.5.23-flags.txt").read_text("utf-8").splitlines() if line.startswith("--")
)
# Stands in for an installed SGLang: the real one takes 20 s to say its help. It counts how often it is asked.
FAKE = """
import argparse, pathlib, sys
asked = pathlib.Path(__file__).with_name("asked")
asked.write_text(asked.read_text() + "x" if asked.exists() else "x")
parser = argparse.ArgumentParser(prog="sglang serve")
parser.add_argument("--model-path", "--model", help="The weights; not --models-path.")
parser.add_argument("-p", "--port", type=int)
parser.add_argument("--chunked-prefill-size", type=int, help="Deprecated. Use --chunked-size instead, or more than two words  of it")
parser.add_argument("--mem-fraction-static", type=float)
parser.add_argument("--dtype", choices=["auto", "bfloat16"])
parser.parse_args()
"""  # noqa: E501


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    package = tmp_path / "lib" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(FAKE)
    about = tmp_path / "lib" / "sglang-0.5.23.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.23\n")
    return tmp_path / "lib"


def profile(lib: Path, *words: str, interpreter: str = sys.executable) -> ServerProfile:
    argv = ["python", "-m", "sglang.launch_server", "--port", "{port}", *words]
    line = {"argv": argv, "interpreter": interpreter, "env": {"PYTHONPATH": str(lib)}, "start_timeout_s": 20}
    return make_profile({"name": "box", "engine": "sglang", "launch": line})


async def start(one: ServerProfile, places: Places) -> str:
    """What the start says; none of these servers ever comes up."""
    with pytest.raises(Exception) as caught:
        await server_of(one, places).ensure()
    return f"{caught.value} {getattr(caught.value, 'hint', '')}"


async def test_an_unknown_flag_is_named_with_near_ones_and_nothing_is_started(fake: Path, tmp_path: Path) -> None:
    places = Places(home=tmp_path / "lab").ensure()
    said = await start(profile(fake, "--chunked-prefil-size", "256", "--zzz"), places)
    assert mentions(said, "box", "sglang 0.5.23", "--chunked-prefil-size", "--chunked-prefill-size", "--zzz")
    assert "--help" in said
    assert processes.recorded(places, "box") is None
    assert not (processes.folder(places) / "box.log").exists()
    # The next question is answered from the cache; another version is asked anew.
    again = await start(profile(fake, "--mem-fraction", "0.5", "--zzz"), places)
    assert "--mem-fraction " not in again  # argparse takes an unambiguous beginning
    assert (fake / "sglang" / "asked").read_text() == "x"
    (fake / "sglang-0.5.23.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.24\n")
    assert mentions(await start(profile(fake, "--zzz"), places), "0.5.24", "--zzz")
    assert (fake / "sglang" / "asked").read_text() == "xx"
    kept = sorted((places.cache / "flags").iterdir())
    assert len(kept) == 2
    assert "--chunked-prefill-size" in json.loads(kept[0].read_text())["flags"]
    for path in kept:
        path.write_text("{ torn")
    assert mentions(await start(profile(fake, "--zzz"), places), "sglang", "--zzz")


async def test_a_help_that_cannot_be_had_stops_no_start(fake: Path, tmp_path: Path) -> None:
    (fake / "sglang" / "launch_server.py").write_text("import sys\nsys.exit(7)")
    words = [sys.executable, "-m", "sglang.launch_server", "--zzz"]
    env = {"PYTHONPATH": str(fake)}
    assert "ended with 7" in await flags.check("box", find_engine("sglang"), words, env, None, tmp_path)
    (fake / "sglang" / "launch_server.py").write_text("print('no options here')")
    assert "lists no flags" in await flags.check("box", find_engine("sglang"), words, env, None, tmp_path)
    assert not (tmp_path / "flags").exists()
    assert await flags.check("box", find_engine("openai"), words, {}, None, tmp_path) == ""


async def test_stopping_while_the_help_is_asked_ends_the_question(fake: Path, tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    (fake / "sglang" / "launch_server.py").write_text(
        f"import os, pathlib, time\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\ntime.sleep(60)"
    )
    words = [sys.executable, "-m", "sglang.launch_server", "--zzz"]
    asking = asyncio.create_task(
        flags.check("box", find_engine("sglang"), words, {"PYTHONPATH": str(fake)}, None, tmp_path)
    )
    deadline = time.monotonic() + 20
    while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


async def test_a_missing_interpreter_program_or_package_is_said(tmp_path: Path) -> None:
    places = Places(home=tmp_path / "lab").ensure()
    gone = str(tmp_path / "gone" / "python")
    assert mentions(await start(profile(tmp_path, interpreter=gone), places), "program", gone)
    assert "env make sglang" in await start(profile(tmp_path, interpreter="env:sglang"), places)
    line = {"argv": [gone, "--port", "{port}"]}
    own = make_profile({"name": "box", "engine": "openai", "launch": line})
    assert mentions(await start(own, places), "box", "program", gone)
    said = await start(profile(tmp_path), places)  # this Python has no SGLang
    assert f"{sys.executable} has no sglang" in said
    assert processes.recorded(places, "box") is None


def test_the_launch_lines_that_ship_are_known_to_sglang_0_5_23() -> None:
    shipped = load_profiles(None)["sglang-remote"]
    assert shipped.launch is not None
    given = flags.flags_in(shipped.launch.argv)
    assert len(given) == 13
    assert flags.unknown(given, REAL, find_engine("sglang")) == {}
    paired = "--disable-radix-cache --disable-overlap-schedule --disable-cuda-graph --enable-deterministic-inference"
    assert flags.unknown(paired.split(), REAL, find_engine("sglang")) == {}
    assert (
        flags.unknown(["--disable-radix-cahce"], REAL, find_engine("sglang"))["--disable-radix-cahce"][0]
        == "--disable-radix-cache"
    )


def test_what_is_no_flag_is_not_taken_for_one() -> None:
    words = ["python", "-m", "x", "--a=1", "--b", "-2", "--c", '{"--d": 1}', "--", "--e"]
    assert flags.flags_in(words) == ["--a", "--b", "--c"]
    known = ["--max-num-seqs", "--compilation-config"]
    assert flags.unknown(["--max_num_seqs", "--compilation-config.level"], known, find_engine("vllm")) == {}
    assert list(flags.unknown(["--max_num_seqs"], ["--max-num-seqs"], find_engine("sglang"))) == ["--max_num_seqs"]
    text = "options:\n  -h, --help   show this\n  --one ONE, --uno ONE  as --two\n     --indented mention\n"
    assert flags.parse_help(text) == ("--help", "--one", "--uno")
