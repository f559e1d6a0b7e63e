"""SSH against a real sshd on loopback: hosts, errors, tunnels, far programs and far GPUs."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback_sshd import LACKING, Sshd
from metrics_server import serving, until
from refusals import check_error, refused

from vlmconsole.engines.profile import make_profile
from vlmconsole.gauges.far import FarGpu, parse_nvidia_smi
from vlmconsole.gauges.figures import SourceError
from vlmconsole.gauges.sources import Gauges, ServerSource
from vlmconsole.remote import programs
from vlmconsole.remote.ssh import CONFIG_VARIABLE, SshError, SshHost, run
from vlmconsole.runs.places import Places
from vlmconsole.servers.far import close_tunnels
from vlmconsole.servers.tunnel import Tunnel, sweep
from vlmconsole.system.processes import alive, started

needs_sshd = pytest.mark.skipif(bool(LACKING), reason=LACKING)

SMI = """\
2, 0, NVIDIA RTX 5000 Ada Generation, GPU-aa11, 21811, 32760, 87, 212.31, 64
2, 1, NVIDIA RTX 5000 Ada Generation, GPU-bb22, 3, 32760, [N/A], [Not Supported], 38
"""


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("sshd"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def host(sshd: Sshd) -> SshHost:
    return SshHost.parse(sshd.alias, config=sshd.config)


# -- hosts -------------------------------------------------------------------------------------------------------


HOSTS = ["box", "me@box", "gpu_box.lab-1.example", "me@10.0.0.7:2222", "[::1]:22", "me@[fe80::1%eth0]"]
NO_HOSTS = ["", "-oProxyCommand=id", "--", "-", "me@-box", "a b", "box;id", "$(id)", "`id`", "box\nid", "me@box:0"]
NO_HOSTS += ["box:99999", "me@me@box", "%h", "box -oX=y", "ssh://box", "ü", "x" * 300]


@pytest.mark.parametrize("text", HOSTS)
def test_hosts_that_are_hosts(text: str) -> None:
    host = SshHost.parse(text)
    assert host.command("-N")[-2:] == ["--", host.name]
    assert (host.port is not None) == text.endswith(("2222", ":22"))


@pytest.mark.parametrize("text", NO_HOSTS)
def test_hosts_that_could_be_something_else(text: str) -> None:
    with refused("host-invalid", error=SshError):
        SshHost.parse(text)


@given(st.text(max_size=30))
@settings(max_examples=150, deadline=None)
def test_no_host_string_becomes_an_option(text: str) -> None:
    try:
        host = SshHost.parse(text)
    except SshError:
        return
    words = host.command("-N")
    assert words[words.index("--") + 1 :] == [host.name]
    assert not host.name.startswith("-") and not any(c.isspace() or c in "'\"`$;&|<>\\" for c in host.name)


def test_no_ssh_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SshError, match="not installed") as told:
        run(SshHost.parse("box"), "true")
    assert "openssh-client" in told.value.hint


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=40))
@settings(max_examples=25, deadline=None)
def test_a_word_arrives_as_it_was(text: str) -> None:
    said = subprocess.run(["sh", "-c", f"printf %s {programs.word('x' + text)}"], capture_output=True, check=True)
    assert said.stdout.decode() == "x" + text


# -- errors ------------------------------------------------------------------------------------------------------


@needs_sshd
def test_a_script_runs_there_and_fails_clearly(host: SshHost, sshd: Sshd) -> None:
    assert run(host, 'echo "$HOME"; echo noise >&2') == f"{sshd.home}\n"
    with refused("script-failed", "far-box", "no such thing", error=SshError):
        run(host, 'echo "no such thing" >&2; exit 4')
    begun = time.monotonic()
    with refused("host-silent", "far-box", "1 s", error=SshError):
        run(host, "sleep 30", timeout=1.0)
    assert time.monotonic() - begun < 4


@needs_sshd
def test_what_keeps_us_out_is_said(sshd: Sshd) -> None:
    def told(config: Path) -> SshError:
        with pytest.raises(SshError) as error:
            run(SshHost.parse(sshd.alias, config=config), "true")
        return error.value

    (sshd.folder / "nobody").write_text("")
    check_error(told(sshd.write_config("stranger", known="nobody")), "host-key-unknown", "far-box", "ssh far-box")

    kind, key = (sshd.folder / "user.pub").read_text().split()[:2]
    (sshd.folder / "other").write_text(f"[127.0.0.1]:{sshd.port} {kind} {key}\n")
    check_error(told(sshd.write_config("changed", known="other")), "host-key-changed", "far-box")

    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(sshd.folder / "foreign")], check=True)
    check_error(told(sshd.write_config("locked", key="foreign")), "access-denied", "far-box", "ssh-add")

    check_error(told(sshd.write_config("shut", port=9)), "connection-refused", "far-box", "sshd")


# -- tunnels -----------------------------------------------------------------------------------------------------


@needs_sshd
def test_a_tunnel_killed_or_cut_is_said_at_once_and_opened_again(tmp_path: Path) -> None:
    import httpx

    (tmp_path / "sshd").mkdir()
    far = Sshd(tmp_path / "sshd")
    far.start()
    with serving() as server:
        server.pages["/ping"] = "pong"
        port = int(server.url.rpartition(":")[2])
        with Tunnel(SshHost.parse(far.alias, config=far.config), port, tmp_path) as tunnel:
            tunnel.wait()
            url = f"{tunnel.base_url}/ping"
            assert httpx.get(url, trust_env=False).text == "pong"
            assert tunnel.route == "tunnel" and len(list((tmp_path / "tunnels").glob("*.json"))) == 1

            assert tunnel.pid is not None
            os.kill(tunnel.pid, signal.SIGKILL)
            assert until(lambda: tunnel.state == "down") < 3
            assert "ended by signal 9" in tunnel.why
            tunnel.wait()
            assert httpx.get(url, trust_env=False).text == "pong"

            cutting = threading.Thread(target=far.stop)
            cutting.start()
            assert until(lambda: tunnel.state == "down") < 3
            cutting.join()
            until(lambda: "refuses the connection" in tunnel.why)
            far.start()
            tunnel.wait()
            assert f"{tunnel.base_url}/ping" == url, "the address stays"
            assert httpx.get(url, trust_env=False).text == "pong"
            last = tunnel.pid
            assert last is not None
        assert tunnel.state == "closed" and started(last) is None
        assert list((tmp_path / "tunnels").glob("*.json")) == []
    far.stop()


@needs_sshd
def test_a_tunnel_that_cannot_open_says_why_and_another_program_keeps_its_port(sshd: Sshd, tmp_path: Path) -> None:
    shut = SshHost.parse(sshd.alias, config=sshd.write_config("shut2", port=9))
    with Tunnel(shut, 30000, tmp_path) as tunnel, pytest.raises(SshError, match="refuses the connection"):
        tunnel.wait(2.0)
    good = SshHost.parse(sshd.alias, config=sshd.config)
    with serving() as other:
        taken = int(other.url.rpartition(":")[2])
        with (
            Tunnel(good, sshd.port, tmp_path, local_port=taken) as tunnel,
            pytest.raises(SshError, match="another program"),
        ):
            tunnel.wait(1.0)
    with pytest.raises(SshError, match="is no port"):
        Tunnel(good, 0, tmp_path)


@pytest.mark.slow
@needs_sshd
def test_gauges_of_a_far_server_come_through_a_tunnel_and_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sshd").mkdir()
    far, places = Sshd(tmp_path / "sshd"), Places(tmp_path / "lab").ensure()
    far.start()
    monkeypatch.setenv(CONFIG_VARIABLE, str(far.config))
    with serving() as server:
        server.pages["/metrics"] = "vllm:num_requests_running 2\n"
        profile = make_profile({"name": "far", "engine": "vllm", "base_url": server.url, "ssh_host": far.alias})
        with Gauges([ServerSource(profile, places)]) as gauges:
            until(lambda: gauges.snapshot().tiles["server.running"].value == 2, 15)
            far.stop()
            until(lambda: gauges.snapshot().sources["server"].state == "missing", 3)
            until(lambda: "refuses the connection" in gauges.snapshot().sources["server"].why, 8)
            far.start()
            until(lambda: gauges.snapshot().sources["server"].state == "ok", 20)
    close_tunnels()
    far.stop()


@needs_sshd
def test_a_console_that_was_killed_leaves_no_tunnel_for_long(sshd: Sshd, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib\n"
        "from vlmconsole.remote.ssh import SshHost\n"
        "from vlmconsole.servers.tunnel import Tunnel\n"
        f"t = Tunnel(SshHost.parse('{sshd.alias}', config=pathlib.Path({str(sshd.config)!r})), {sshd.port},"
        f" pathlib.Path({str(tmp_path)!r})).open().wait()\n"
        "print(t.pid, flush=True); sys.stdin.read()"
    )
    console = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert console.stdout is not None and console.stdin is not None
    pid = int(console.stdout.readline())
    token = started(pid)
    console.kill()
    console.wait()
    console.stdin.close()
    console.stdout.close()
    assert alive(pid, token), "nobody ended it"
    assert sweep(tmp_path / "tunnels") == 1
    until(lambda: not alive(pid, token))


# -- programs and runs there ---------------------------------------------------------------------------------------


@needs_sshd
def test_a_program_is_started_there_in_its_environment_read_and_stopped(host: SshHost, sshd: Sshd) -> None:
    folder = sshd.home / "work dir"
    folder.mkdir()
    script = 'echo "$0|$GREETING|$PWD"; trap "echo bye; exit 0" TERM; while :; do sleep 0.1; done'
    argv = ["sh", "-c", script, "@NAME@ $(id) 'q' \"d\""]
    begun = programs.launch(host, "serve-1", argv, {"GREETING": "hello $HOME 'x'"}, "~/work dir")
    assert begun.state == "running" and begun.pid is not None
    assert programs.launch(host, "serve-1", argv) == begun, "what runs is found, not started again"
    assert programs.status(host, "serve-1") == begun

    log, until_s = b"", time.monotonic() + 10
    while b"\n" not in log and time.monotonic() < until_s:
        log += programs.read_log(host, "serve-1", len(log))
    assert programs.stop(host, "serve-1") == "ended"
    log += programs.read_log(host, "serve-1", len(log))
    assert log.endswith(b"bye\n")
    first = log.decode().splitlines()[0]
    assert first == f"@NAME@ $(id) 'q' \"d\"|hello $HOME 'x'|{folder}"
    assert programs.status(host, "serve-1").state == "none"
    assert programs.stop(host, "serve-1") == "none"


@pytest.mark.slow
@needs_sshd
def test_a_program_that_ends_at_once_or_will_not_end(host: SshHost) -> None:
    with refused("script-failed", "/no/such/program", error=SshError):
        programs.launch(host, "bad", ["/no/such/program"])
    with refused("script-failed", "/no such folder", error=SshError):
        programs.launch(host, "bad", ["true"], folder="/no such folder")
    for name in ("../x", "-x", "a b", ""):
        with refused("name-invalid", error=SshError):
            programs.status(host, name)
    programs.launch(host, "deaf", ["sh", "-c", 'trap "" TERM; while :; do sleep 0.2; done'])
    assert programs.stop(host, "deaf", grace=0.2) == "killed"


# -- GPUs there ----------------------------------------------------------------------------------------------------


def test_nvidia_smi_is_read_and_what_it_does_not_tell_is_none() -> None:
    first, second = parse_nvidia_smi(SMI.splitlines())
    assert (first.name, first.product, first.uuid) == ("gpu0", "NVIDIA RTX 5000 Ada Generation", "GPU-aa11")
    assert (first.memory_used, first.memory_total) == (21811 * 1024**2, 32760 * 1024**2)
    assert (first.utilization_percent, first.power_w, first.temperature_c) == (87, 212.31, 64)
    assert (second.utilization_percent, second.power_w, second.temperature_c) == (None, None, 38)
    with pytest.raises(SourceError, match="NVIDIA-SMI has failed"):
        parse_nvidia_smi(["NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."])


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=4))
@settings(max_examples=100, deadline=None)
def test_other_lines_are_a_reason_never_a_fault(lines: list[str]) -> None:
    try:
        parse_nvidia_smi(lines)
    except SourceError as error:
        assert "nvidia-smi: " in error.message and error.message.isprintable()


def far_tool(sshd: Sshd, name: str, script: str) -> SshHost:
    """A program of that name on the far machine's PATH (and nothing else of ours)."""
    folder = sshd.home / "bin"
    folder.mkdir(exist_ok=True)
    tool = folder / name
    tool.write_text(f"#!/bin/sh\n{script}")
    tool.chmod(0o755)
    # sshd reads ~/.ssh/environment of the real home only: the tool is put on the PATH by a wrapper around ssh.
    return SshHost.parse(sshd.alias, config=sshd.config)


@needs_sshd
def test_far_gpus_report_every_second_and_come_back_after_a_cut(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    host = far_tool(sshd, "nvidia-smi", f"while :; do printf '%s' {shlex.quote(SMI)}; sleep 0.2; done\n")
    monkeypatch.setattr("vlmconsole.gauges.far.QUERY", f"exec {shlex.quote(str(sshd.home / 'bin' / 'nvidia-smi'))}")
    source = FarGpu(host)
    with Gauges([source], interval=0.3) as gauges:
        key = f"gpu0@{sshd.alias}.memory"
        until(lambda: key in gauges.snapshot().tiles)
        tile = gauges.snapshot().tiles[key]
        assert (tile.value, tile.total) == (21811 * 1024**2, 32760 * 1024**2) and tile.source == f"gpu@{sshd.alias}"
        assert source._process is not None
        carrier = source._process.pid
        os.kill(carrier, signal.SIGKILL)
        until(
            lambda: (
                source._process is not None
                and source._process.pid != carrier
                and gauges.snapshot().sources[source.name].state == "ok"
            ),
            8,
        )
    assert source._process is None


FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."


@needs_sshd
@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"echo {shlex.quote(FAILED)}; echo; exit 9", ("NVIDIA-SMI has failed", "exit code 9")),
        ("printf 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", ("version mismatch", "18")),
        ("echo warning >&2; echo 'No devices were found'; exit 6", ("No devices", "exit code 6")),
        ("echo 'Unable to determine the device handle for GPU0'; sleep 60", ("Unable to determine",)),
        ("echo 'libnvidia-ml.so is broken' >&2; exit 4", ("libnvidia-ml.so is broken",)),
    ],
)
def test_the_cause_that_a_far_nvidia_smi_prints_is_kept(
    sshd: Sshd, monkeypatch: pytest.MonkeyPatch, script: str, words: tuple[str, ...]
) -> None:
    host = far_tool(sshd, "nvidia-smi", f"{script}\n")
    monkeypatch.setattr("vlmconsole.gauges.far.QUERY", f"exec {shlex.quote(str(sshd.home / 'bin' / 'nvidia-smi'))}")
    source = FarGpu(host)
    for _ in range(2):  # asked again it says the same
        with pytest.raises(SourceError) as caught:
            source.read()
        assert all(word in caught.value.message for word in words), caught.value.message
    source.close()


@pytest.mark.slow
@needs_sshd
def test_far_machine_without_nvidia_smi_asks_the_console_there(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    console = shutil.which("vlmconsole") or str(Path(sys.executable).with_name("vlmconsole"))
    monkeypatch.setattr("vlmconsole.gauges.far.QUERY", "exec no-such-nvidia-smi")
    monkeypatch.setattr(
        "vlmconsole.gauges.far.CONSOLE",
        f"exec {shlex.quote(console)} --home {shlex.quote(str(sshd.home / 'lab'))} gauges --once --json",
    )
    source = FarGpu(SshHost.parse(sshd.alias, config=sshd.config))
    batch = source.read()
    source.close()
    assert source.slow > 0
    memory = batch.figures[f"host@{sshd.alias}.memory"]
    assert memory.value is not None and memory.total is not None and 0 < memory.value < memory.total
