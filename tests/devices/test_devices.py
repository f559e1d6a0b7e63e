"""Devices: a fake NVML library in C, the shared lock folder, presets and environments."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from folders import TESTS
from refusals import mentions, refused

from vlmconsole import doctor
from vlmconsole.cli import main
from vlmconsole.devices.locks import DeviceLocks
from vlmconsole.gauges.host import HostReader
from vlmconsole.gauges.nvidia import CardsReading, GpuCard
from vlmconsole.jobs.kinds import UnknownKindError, load_kind
from vlmconsole.jobs.presets import PresetError, list_presets, load_preset, parse_value
from vlmconsole.lab import Lab
from vlmconsole.queue import environments
from vlmconsole.queue.resources import Machine, lockable
from vlmconsole.runs.places import Places

GIB = 1024**3


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a compiled stand-in for libnvidia-ml.so.1."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("nvml")
    source = TESTS / "data" / "nvml" / "fake_nvml.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", source], check=True, timeout=60)
    return folder


def ask(nvml: Path, table: str, code: str) -> str:
    """Run `code` in a process whose NVML is the fake one."""
    (nvml / "cards").write_text(table)
    done = subprocess.run(
        [sys.executable, "-c", "from vlmconsole.gauges.nvidia import *\n" + code],
        env={**os.environ, "LD_LIBRARY_PATH": str(nvml), "FAKE_NVML": str(nvml / "cards")},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_cards_with_their_processes(nvml: Path) -> None:
    table = f"0 GPU-a {32 * GIB} {21 * GIB} ok 4242:{20 * GIB}\n1 GPU-b {32 * GIB} 0\n"
    code = "for c in read().cards: print(c.name, c.uuid, c.memory_used, c.utilization_percent, c.power_w, c.processes)"
    assert ask(nvml, table, code).splitlines() == [
        f"gpu0 GPU-a {21 * GIB} 42 250.5 ((4242, {20 * GIB}),)",
        "gpu1 GPU-b 0 42 250.5 ()",
    ]
    assert ask(nvml, table, "print(summary())") == "gpu0 Fake Card, 32 GiB; gpu1 Fake Card, 32 GiB"


def test_mig_slices_are_the_devices(nvml: Path) -> None:
    out = ask(
        nvml, f"0 GPU-a {32 * GIB} 0 mig\n", "print([(c.name, c.uuid, c.utilization_percent) for c in read().cards])"
    )
    assert out == "[('gpu0.mig0', 'MIG-0-0', None), ('gpu0.mig1', 'MIG-0-1', None)]"


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("0 GPU-a 0 0\n", "[(None, None)]"),
        ("0 GPU-a 0 0 mig\n", "[(None, None), (None, None)]"),
        (f"0 GPU-a 0 {GIB}\n", "[(None, None)]"),
        (f"0 GPU-a {GIB} 0\n", f"[({GIB}, 0)]"),
    ],
)
def test_zeros_in_place_of_a_memory_are_unknown(nvml: Path, table: str, said: str) -> None:
    assert ask(nvml, table, "print([(c.memory_total, c.memory_used) for c in read().cards])") == said
    assert " 0 B" not in ask(nvml, table, "print(summary())")


def test_what_may_not_be_asked_is_unknown_and_not_zero(nvml: Path) -> None:
    out = ask(nvml, f"0 GPU-a {32 * GIB} {9 * GIB} private\n", "c = read().cards[0]; print(c.processes, c.memory_used)")
    assert out == f"() {9 * GIB}"


def test_a_lost_card_is_lost_and_its_neighbour_goes_on(nvml: Path) -> None:
    code = (
        "import os, pathlib\nfirst = read()\npath = pathlib.Path(os.environ['FAKE_NVML'])\n"
        "path.write_text(path.read_text().replace(' ok', ' lost'))\nsecond = read()\n"
        "print([c.lost for c in first.cards], [(c.name, c.lost) for c in second.cards])"
    )
    out = ask(nvml, f"0 GPU-a {32 * GIB} 0 ok\n1 GPU-b {32 * GIB} 0\n", code)
    assert out == "['', ''] [('gpu0', 'GPU is lost'), ('gpu1', '')]"


def test_no_driver_is_a_reason(nvml: Path) -> None:
    assert ask(
        nvml, "", "import os; del os.environ['FAKE_NVML']; os.unsetenv('FAKE_NVML'); r = read(); print(r.cards, r.why)"
    ) == ("() Driver Not Loaded")


def machine(tmp_path: Path, *cards: GpuCard, slots: int = 2) -> Machine:
    return Machine(DeviceLocks(tmp_path / "devices"), slots, lambda: CardsReading(cards))


def test_foreign_use_of_a_card_is_named(tmp_path: Path) -> None:
    mine = os.getpid()
    seen = GpuCard(
        "gpu0", memory_total=32 * GIB, memory_used=22 * GIB, processes=((mine, 21 * GIB + GIB // 3), (1, None))
    )
    unseen = GpuCard("gpu1", memory_total=32 * GIB, memory_used=5 * GIB)
    idle = GpuCard("gpu2", memory_total=32 * GIB, memory_used=GIB // 2)
    lost = GpuCard("gpu3", lost="GPU is lost")
    taken = machine(tmp_path, seen, unseen, idle, lost).look().outside
    assert taken["gpu0"].startswith(f"held by pid {mine} ") and taken["gpu0"].endswith("21.3 GiB and 1 more")
    assert mentions(taken["gpu1"], "cannot be seen", "5 GiB")
    assert mentions(taken["gpu3"], "lost", "GPU is lost") and set(taken) == {"gpu0", "gpu1", "gpu3"}
    assert "gpu0" not in machine(tmp_path, seen).look(ours=["gpu0"]).outside


def test_workers_see_only_the_cards_they_hold(tmp_path: Path) -> None:
    one = machine(tmp_path, GpuCard("gpu0", "GPU-a"), GpuCard("gpu1.mig0", "MIG-x"))
    one.look()
    assert one.variables(["cpu.0", "gpu1.mig0"]) == {"CUDA_VISIBLE_DEVICES": "MIG-x"}
    assert one.variables(["cpu.0"]) == {"CUDA_VISIBLE_DEVICES": ""}
    assert machine(tmp_path).variables(["cpu.0"]) == {}
    assert lockable(["server.demo", "gpu0", "port.30000", "cpu.1"]) == ["cpu.1", "gpu0"]


def test_locks_are_all_or_nothing_shared_and_survive_a_copy_being_closed(tmp_path: Path) -> None:
    locks, other = DeviceLocks(tmp_path / "devices"), DeviceLocks(tmp_path / "devices")
    taken = locks.take(["cpu.0", "cpu.1"])
    assert taken is not None and (tmp_path / "devices").stat().st_mode & 0o7777 == 0o1777
    assert other.take(["cpu.1", "cpu.2"]) is None and not other.held("cpu.2")  # what it had got is let go again
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=taken)
    locks.release(taken)
    assert other.held("cpu.0") and f"pid {child.pid}" in other.holder("cpu.0")
    child.communicate(b"\n", timeout=20)
    assert not other.held("cpu.0")


def test_another_users_lock_file_in_a_sticky_folder_can_be_locked() -> None:
    """Files are opened read-only: a file that we may not write (another user's) is no obstacle."""
    if os.getuid() != 0:
        pytest.skip("needs another user id")
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        Path(name).chmod(0o1777)
        path = Path(name) / "gpu0.lock"
        path.touch()
        os.chown(path, 12345, 12345)
        path.chmod(0o644)
        code = (
            "import os, sys\nfrom pathlib import Path; from vlmconsole.devices.locks import DeviceLocks\n"
            "os.setuid(54321); print(DeviceLocks(Path(sys.argv[1])).take(['gpu0', 'cpu.0']) is not None)"
        )
        done = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=60)
        assert done.stdout.strip() == "True", done.stderr


def test_the_host(tmp_path: Path) -> None:
    reader = HostReader(tmp_path)
    first, second = reader.read(), reader.read()
    assert first.cpu_percent is None and second.cpu_percent is not None
    assert 0 < second.memory_used < second.memory_total and second.disk_free <= second.disk_total


# --- kinds, presets and environments ---
def test_an_unknown_kind_names_the_nearest() -> None:
    with refused("kind-unknown", "modle", "model", error=UnknownKindError):
        load_kind("modle")
    with refused("kind-invalid", "JobKind", "str", error=UnknownKindError):
        load_kind("vlmconsole:__version__", queued=True)
    assert load_kind("model").name == "model"


def test_the_shipped_presets_are_complete_and_valid(tmp_path: Path) -> None:
    from vlmconsole.queue.adding import plan

    presets = list_presets()
    assert {"model-tiny"} <= {preset.name for preset in presets}
    # What a preset cannot know is said at once: the adapter under test, data that no recipe makes, a base to download.
    named = (
        "same model",
        "vlmconsole data textvqa SHARDS",
        "not on this machine",
        "--after ID",
        "runs list",
        "no data",
    )
    for preset in presets:
        planned = plan(preset, [], Places(tmp_path), refuse=False)
        problems = [problem for one in planned for problem in one.problems]
        assert preset.title and all(any(words in problem for words in named) for problem in problems), problems
        if preset.name.endswith("-tiny"):
            asks = ("eval-sft", "eval-repair", "eval-stress", "eval-grpo", "repair-1", "repair-2")
            assert bool(problems) == preset.name.startswith(asks), (preset.name, problems)


def test_a_users_preset_hides_a_shipped_one_and_a_broken_one_is_named(tmp_path: Path) -> None:
    places = Places(tmp_path).ensure()
    (places.presets / "model-tiny.toml").write_text('kind = "model"\ntitle = "Mine"\n')
    assert load_preset("model-tiny", places).title == "Mine"
    with refused("preset-missing", "model-tyni", "model-tiny", error=PresetError):
        load_preset("model-tyni", places)
    (places.presets / "bad.toml").write_text('kind = "model"\nspecs = {}\n')
    with refused("preset-invalid", "bad", "specs", error=PresetError):
        list_presets(places)


@pytest.mark.parametrize(("text", "value"), [
    ("3", 3), ("1e-3", 1e-3), ("true", True), ("[1, 2]", [1, 2]), ('"3"', "3"), ("plain text", "plain text"), ("", ""),
])  # fmt: skip
def test_values_of_set(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_environments_have_pins_and_a_plan(tmp_path: Path) -> None:
    recipes = environments.recipes()
    assert {"mlx", "sglang-0.5.5", "sglang", "verl-0.6.1"} <= set(recipes)
    assert {"torch==2.8.0", "transformers==4.57.1", "verl==0.6.1"} <= set(recipes["verl-0.6.1"].requirements)
    places = Places(tmp_path)
    commands = environments.plan(recipes["mlx"], places, "vlmconsole")
    assert str(tmp_path / "environments" / "mlx") in commands[0] and "mlx-vlm==0.7.10" in commands[1]
    assert "env make mlx" in environments.missing("mlx", places)
    with pytest.raises(environments.NoEnvironmentError):
        environments.check(recipes["mlx"], places)


def test_an_environment_is_checked_by_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = Places(tmp_path)
    python = environments.python_of("probe", places)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    recipe = environments.EnvironmentRecipe("probe", "", "3.11", (), ("json", "no_such_module_here"))
    found = environments.check(recipe, places)
    assert found["json"] and not found["json"].startswith("!")
    assert found["no_such_module_here"].startswith("! ModuleNotFoundError")
    assert found["vlmconsole.jobs.worker"] == "imports"
    assert environments.interpreter_of("probe", places) == python

    monkeypatch.setattr(environments, "recipes", lambda: {"probe": recipe})
    codes = []
    for words in (["env", "list"], ["env", "list", "--check"]):
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(tmp_path), *words])
        codes.append(ended.value.code)
    said = capsys.readouterr().out
    assert codes == [0, 1] and "✓ built       probe" in said and "✗ broken      probe" in said


def test_doctor_looks_at_every_environment_that_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab.open(tmp_path)
    there = {"fine": f"numpy=={metadata.version('numpy')}", "old": "numpy==0.1", "gone": "no-such-package==1"}
    made = {
        name: environments.EnvironmentRecipe(name, f"Probe {name}", "3.11", (line,), ()) for name, line in there.items()
    }
    made["half"], made["none"] = replace(made["fine"], name="half"), replace(made["fine"], name="none")
    for name in ("fine", "old", "gone", "half"):
        python = environments.python_of(name, lab.places)
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
    environments.marker("half", lab.places).touch()
    monkeypatch.setattr(environments, "recipes", lambda: made)
    found = {one.name: one for one in doctor.examine(lab) if one.name.startswith("environment")}
    states = [(found[f"environment {name}"].state, found[f"environment {name}"].found) for name in there]
    assert states[0][0] == "ok" and mentions(states[0][1], "Probe fine", "pinned")
    assert states[1:] == [("wrong", f"numpy {metadata.version('numpy')}"), ("wrong", "no-such-package missing")]
    assert found["environment half"].state == "wrong" and found["environments"].found == "not built: none"


def test_a_workers_samples_hold_its_own_share_of_its_card(nvml: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from vlmconsole.runs.folder import RunFolder\n"
        "from vlmconsole.jobs.heartbeat import Heartbeat\n"
        f"home = Path({str(tmp_path)!r})\n"
        "run = RunFolder.create(home, kind='k', preset='p', spec={}, title='t', home=home, devices=['gpu0'])\n"
        "table = f'0 GPU-a 1000 900 ok {os.getpid()}:300 1:500\\n1 GPU-b 1000 1 ok\\n'\n"
        "Path(os.environ['FAKE_NVML']).write_text(table)\n"
        "now = Heartbeat(run).sample(); print(now['gpu0_bytes'], now['gpu0_percent'], 'gpu1_percent' in now)"
    )
    assert ask(nvml, "", code) == "300 42 False"


def test_an_environment_counts_as_built_only_after_its_last_step(tmp_path: Path) -> None:
    places = Places(tmp_path)
    python = environments.python_of("mlx", places)
    assert environments.condition("mlx", places) == "not built"
    with pytest.raises(ZeroDivisionError), environments.building("mlx", places) as anew:  # stopped half-way
        assert anew
        python.parent.mkdir(parents=True)
        python.write_text("half")
        with (
            refused("environment-busy", "mlx", error=environments.NoEnvironmentError),
            environments.building("mlx", places),
        ):
            pass
        1 / 0  # noqa: B018
    assert environments.condition("mlx", places) == "unfinished"
    assert mentions(environments.missing("mlx", places), "unfinished", "env make mlx")
    with environments.building("mlx", places) as anew:
        assert anew and not python.exists()  # what was half made is gone
        python.parent.mkdir(parents=True)
        python.write_text("whole")
    assert environments.condition("mlx", places) == "built" and not environments.missing("mlx", places)
    with environments.building("mlx", places) as anew:
        assert not anew and python.read_text() == "whole"
    assert [path.name for path in places.environments.iterdir()] == ["mlx"]


@pytest.mark.parametrize(
    ("settings", "lingers", "state"),
    [
        ({"etc/systemd/logind.conf": "#KillUserProcesses=yes\n"}, False, "ok"),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, False, "missing"),
        ({"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, True, "ok"),
        ({"usr/lib/systemd/logind.conf": "KillUserProcesses = 1\n"}, False, "missing"),
        (
            {
                "etc/systemd/logind.conf": "KillUserProcesses=yes\n",
                "run/systemd/logind.conf.d/50-lab.conf": "KillUserProcesses=no\n",
            },
            False,
            "ok",
        ),
    ],
)
def test_doctor_says_where_a_logout_ends_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], lingers: bool, state: str
) -> None:
    assert not list(doctor._logout(tmp_path)), "no systemd, nothing to say"
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in settings.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("LOGNAME", "ada")
    if lingers:
        (tmp_path / "var/lib/systemd/linger").mkdir(parents=True)
        (tmp_path / "var/lib/systemd/linger/ada").touch()
    (found,) = doctor._logout(tmp_path)
    assert found.state == state and ("enable-linger ada" in found.hint) == (state == "missing")
