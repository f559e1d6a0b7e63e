"""What goes with a job from the environment of whoever queues it: names into the queue, values by a private channel."""

import hashlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from supervised import Lab, lab_fixture, places_fixture  # noqa: F401

from vlmconsole.queue import process, variables
from vlmconsole.queue.model import FINAL, NewJob
from vlmconsole.queue.store import Store
from vlmconsole.queue.variables import COMMON, HELD, Values
from vlmconsole.queue.view import views
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places

KEY = "LAB_TEST_KEY"


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (KEY, *COMMON):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def supervisor(places: Places, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A real one, begun in an environment without any of it; it stays until the test is over."""
    monkeypatch.setenv(process.IDLE_VARIABLE, "60")
    process.ensure(places)
    until(lambda: process.running(places) and (places.state / "supervisor.sock").exists())
    store = Store(places.queue)
    yield store
    end(places)


def end(places: Places, number: int = signal.SIGTERM) -> None:
    if info := process.running(places):
        os.kill(info["pid"], number)
        until(lambda: process.running(places) is None)


def until(ready: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def queue(store: Store, **more: Any) -> int:
    known = {key: more.pop(key) for key in list(more) if key in NewJob.__dataclass_fields__}
    number = store.add(NewJob("environ", "job_kinds:ENVIRON", "E", {"api_key_env": KEY, **more}, **known))
    process.ensure(store.lab)
    return number


def seen(store: Store, number: int) -> dict[str, Any]:
    until(lambda: store.get(number).state in FINAL)
    job = store.get(number)
    assert job.state == "done", job
    found: dict[str, Any] = RunFolder(Path(job.run or "")).read_json("summary.json")
    return found


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def test_each_job_gets_the_values_of_whoever_queued_it_and_no_file_holds_one(
    supervisor: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = supervisor.lab
    monkeypatch.setenv(KEY, "first-" + "secret-7f3a")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/tmp/agent-of-" + "mine-7f3a")
    supervisor.set_meta("drained", True)
    first = queue(supervisor)
    monkeypatch.setenv(KEY, "second-" + "secret-7f3a")
    monkeypatch.delenv("SSH_AUTH_SOCK")
    second = queue(supervisor)
    assert supervisor.get(first).options["variables"] == [KEY, "SSH_AUTH_SOCK"]
    supervisor.set_meta("drained", False)
    one, two = seen(supervisor, first), seen(supervisor, second)
    assert (one["key"], two["key"]) == (digest("first-secret-7f3a"), digest("second-secret-7f3a"))
    assert "SSH_AUTH_SOCK" in one["names"] and "SSH_AUTH_SOCK" not in two["names"]
    files = [path for path in places.home.rglob("*") if path.is_file()]
    assert len(files) > 10 and not [path for path in files if b"-7f3a" in path.read_bytes()]
    mode = (places.state / "supervisor.sock").stat().st_mode
    assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600


@pytest.mark.slow
def test_whoever_queues_without_a_proxy_works_without_one(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue's process was begun in a shell that had one."""
    monkeypatch.setenv(process.IDLE_VARIABLE, "60")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    store = Store(places.queue)
    assert "https_proxy" in seen(store, queue(store))["names"]  # whoever begins it, queues with its environment
    monkeypatch.delenv("https_proxy")
    monkeypatch.setenv(KEY, "k")
    names = seen(store, queue(store))["names"]
    assert KEY in names and "https_proxy" not in names
    end(places)


@pytest.mark.slow
def test_a_value_that_nobody_can_give_any_more_is_waited_for_with_what_to_do(
    supervisor: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = supervisor.lab
    monkeypatch.setenv(KEY, "the key")
    supervisor.set_meta("drained", True)
    number = queue(supervisor)
    end(places, signal.SIGKILL)
    monkeypatch.delenv(KEY)
    supervisor.set_meta("drained", False)
    process.ensure(places)  # another shell, which has no such variable
    until(lambda: KEY in variables.asked_for(supervisor.meta(HELD)))
    why = views(supervisor, places, [supervisor.get(number)])[0].why
    assert f"${KEY}" in why and "jobs resume" in why and supervisor.get(number).state == "queued"
    monkeypatch.setenv(KEY, "the key")
    process.ensure(places)  # what `jobs resume` does
    assert seen(supervisor, number)["key"] == digest("the key")


@pytest.mark.slow
def test_a_retry_takes_the_variables_of_whoever_retries(supervisor: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    number = queue(supervisor, wait=True)
    until(lambda: supervisor.get(number).state == "running")
    supervisor.cancel(number)
    until(lambda: supervisor.get(number).state == "cancelled")
    monkeypatch.setenv(KEY, "exported since")
    supervisor.again(number)
    process.ensure(supervisor.lab)
    assert supervisor.get(number).options["variables"] == [KEY]
    until(lambda: supervisor.get(number).state == "running")
    environ = Path(f"/proc/{supervisor.get(number).pid}/environ")
    if environ.exists():
        assert f"{KEY}=exported since".encode() in environ.read_bytes().split(b"\0")
    supervisor.cancel(number)


def test_names_come_from_settings_profiles_and_the_common_ones(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = 'engine = "openai"\nbase_url = "https://example.org/v1"\nmodel = "m"\napi_key_env = "BOX_KEY"\n'
    (places.servers / "box.toml").write_text(profile)
    for name in ("BOX_KEY", "OTHER_KEY", "HF_HOME", "UNRELATED"):
        monkeypatch.setenv(name, "x")

    def names(spec: dict[str, Any], **more: Any) -> list[str]:
        return variables.needed(NewJob("p", "k", "t", spec, **more), places)

    assert names({}) == ["HF_HOME"]
    assert names({"server": "box"}) == names({}, server="box") == names({"a": [{"b": "box"}]}) == ["BOX_KEY", "HF_HOME"]
    assert names({"inner": {"api_key_env": "OTHER_KEY"}}) == ["OTHER_KEY", "HF_HOME"]
    monkeypatch.delenv("BOX_KEY")
    assert names({"server": "box"}) == ["HF_HOME"]  # what was not set is the job's to say, as ever
    (places.servers / "box.toml").write_text(profile.replace("BOX_KEY", "OTHER_KEY"))
    assert names({"server": "box"}) == ["OTHER_KEY", "HF_HOME"]


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_users_message_is_not_taken(places: Places) -> None:
    values = Values(places)
    values.listen()
    path = places.state / "supervisor.sock"
    for folder in (path, *path.parents):
        if str(folder).startswith("/tmp/"):
            folder.chmod(folder.stat().st_mode | 0o777)
    send = "import socket,sys;c=socket.socket(socket.AF_UNIX);c.connect(sys.argv[1]);c.sendall(sys.argv[2].encode())"
    message = '{"jobs": [1], "values": {"PATH": "/evil"}, "fill": {}}'
    python = "/usr/bin/python3" if Path("/usr/bin/python3").exists() else sys.executable
    done = subprocess.run([python, "-c", send, path, message], user=65534, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert not values.receive() and values.of(1, ["PATH"]) == {}
    values.close()


@pytest.mark.parametrize("sent", [b"", b"{", b"[]", b'{"jobs": 7, "values": []}', b"x" * 300_000, b"[" * 100_000])
def test_a_damaged_message_changes_nothing(tmp_path: Path, sent: bytes) -> None:
    home = tmp_path / ("long-" * 20)  # a path that no socket may be called by
    places = Places(home).ensure()
    values = Values(places)
    values.listen()
    with socket.socket(socket.AF_UNIX) as channel, variables._short(places) as path:
        channel.connect(path)
        channel.setblocking(False)
        channel.send(sent)
    values.receive()
    assert values.of(1, ["HOME"]) == {} and values.wait({1: ["HOME"]}, 0.0)["1"]["names"] == []
    values.close()


def test_a_server_is_started_with_the_key_that_its_guest_was_queued_with(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = Values(lab.places)
    values.take({"jobs": [1], "values": {KEY: "given"}, "fill": {}})
    profile = f'engine = "openai"\nbase_url = "https://example.org/v1"\nmodel = "m"\napi_key_env = "{KEY}"\n'
    (lab.places.servers / "box.toml").write_text(profile)
    assert values.names(NewJob("serve-box", "serve", "S", {"profile": "box"}, serves="box")) == [KEY]
    assert values.of(2, [KEY]) == {KEY: "given"} and values.of(3, None) == {}
