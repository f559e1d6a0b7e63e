"""A preset is data, perhaps somebody else's: it runs no program and imports no module that nobody has allowed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from refusals import mentions, refused

from vlmconsole.cli import main
from vlmconsole.desks import forms
from vlmconsole.errors import LabError
from vlmconsole.jobs.kinds import TRUSTED_VARIABLE, UnknownKindError, load_kind
from vlmconsole.jobs.presets import PresetError, load_preset
from vlmconsole.lab import Lab
from vlmconsole.queue import adding, environments
from vlmconsole.queue.environments import NoEnvironmentError
from vlmconsole.runs.places import Places

COUNT = 'kind = "job_kinds:COUNT"\n[spec]\nsteps = 2\n'


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    monkeypatch.delenv(TRUSTED_VARIABLE, raising=False)
    return Places(tmp_path / "lab").ensure()


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module on the path that leaves a trace when it is imported, and a program that does when it is run."""
    ran = tmp_path / "ran"
    (tmp_path / "evil_kind.py").write_text(f"open({str(ran)!r}, 'a').write('imported')\n")
    program = tmp_path / "env" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho run >>{ran}\n")
    program.chmod(0o755)
    monkeypatch.syspath_prepend(str(tmp_path))
    return ran


@pytest.mark.parametrize(
    "setting",
    ["reward = {!r}", "reward = [{{ scorer = {!r} }}]", "reward = ['exact', {!r}]", "scorer = 'python:' {!r}"],
)
def test_a_preset_has_no_file_run_as_a_reward(setting: str, tmp_path: Path, places: Places) -> None:
    ran, file = tmp_path / "ran", tmp_path / "evil.py"
    file.write_text(f"open({str(ran)!r}, 'a')\ndef score(prediction, truth):\n    return 1.0\n")
    name = f"{file}:score"
    line = setting.format(name).replace("' '", "")
    (places.presets / "own.toml").write_text(f'kind = "grpo"\n[spec]\n{line}\n')
    preset = load_preset("own", places)
    with refused("program-untrusted", "evil.py", error=PresetError):
        adding.plan(preset, [], places)
    assert not ran.exists()
    (places.home / "config.toml").write_text(f'trusted_programs = "{file}"\n')
    assert not any("evil" in problem for planned in adding.plan(preset, [], places) for problem in planned.problems)
    assert ran.exists(), "tried on the first rows, as it is trusted"


def test_a_function_named_on_the_command_line_is_ones_own_choice(
    tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def score(prediction, truth):\n    return 1.0\n")
    planned = adding.plan(load_preset("grpo-3-tiny", places), ["reward=mine.py:score"], places)[0]
    assert planned.job.spec["reward"][0]["scorer"] == f"python:{tmp_path}/mine.py:score"
    for source, noun in (
        ("    raise ValueError('x')", "ValueError"),
        ("    return float('nan')", "nan"),
        ("    return 7", "7"),
    ):
        (tmp_path / "mine.py").write_text(f"def score(prediction, truth):\n{source}\n")
        with pytest.raises(LabError) as wrong:
            adding.plan(load_preset("grpo-3-tiny", places), ["reward=mine.py:score"], places)
        assert mentions(wrong.value.full_message, "mine.py", noun)


@pytest.mark.parametrize("kind", ["evil_kind:KIND", "evil_kind:", "evil_kind:a.b", "os:system", ":KIND"])
def test_a_module_is_not_imported_on_a_presets_word(kind: str, foreign: Path, places: Places) -> None:
    (places.presets / "own.toml").write_text(f'kind = "{kind}"\n')
    preset = load_preset("own", places)
    with pytest.raises(UnknownKindError, match="not imported"):
        adding.plan(preset, [], places)
    for look in (lambda: forms.form("own", places), lambda: forms.problems("own", ["a=1"], places)):
        with pytest.raises(UnknownKindError):
            look()
    entries, wrong = forms.catalogue(places)
    assert wrong == "" and any(entry.name == "own" for entry in entries)
    for words in (["run", "own", "--plan"], ["run", str(places.presets / "own.toml")], ["jobs", "add", "own"]):
        with pytest.raises(SystemExit) as ended:
            main(["--home", str(places.home), *words])
        assert ended.value.code == 2
    assert not foreign.exists()


@pytest.mark.parametrize("name", ["/usr", "../env", "..", ".", "", "a/b", "~/env", "x y", "env\x00", "/proc/self/root"])
def test_an_environment_is_a_name_and_never_a_path(
    name: str, foreign: Path, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRUSTED_VARIABLE, "job_kinds")
    given = str(tmp_path / "env") if name == "/usr" else name
    (places.presets / "own.toml").write_text(f"{COUNT}[queue]\nenvironment = {given!r}\n")
    with pytest.raises(LabError):
        adding.plan(load_preset("own", places), [], places)
    with pytest.raises(NoEnvironmentError):
        environments.python_of(given, places)
    if given:  # a job of an older queue: blocked, with the reason, and never run
        assert mentions(environments.missing(given, places), "environment")
        with pytest.raises(NoEnvironmentError):
            environments.interpreter_of(given, places, proven=False)
    assert not foreign.exists()


def test_rays_python_is_the_clusters_own(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRUSTED_VARIABLE, "job_kinds")
    (places.presets / "own.toml").write_text(f'{COUNT}[queue.ray]\npython = "{sys.executable}"\n')
    preset = load_preset("own", places)
    with pytest.raises(PresetError, match="may not name"):
        adding.plan(preset, [], places)
    monkeypatch.setenv(TRUSTED_VARIABLE, f"job_kinds, {sys.executable}")
    assert adding.plan(preset, [], places)[0].job.options["ray"]["python"] == sys.executable


@pytest.mark.parametrize("name", ["~/.ssh/id_rsa", "/etc/passwd", "~/.ray/../.netrc", "token"])
def test_a_preset_has_no_file_sent_to_its_cluster(
    name: str, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token goes to the address that the preset names."""
    monkeypatch.setenv(TRUSTED_VARIABLE, "job_kinds")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def planned(token: str) -> str:
        text = f'{COUNT}[queue.ray]\nauth = "token"\ntoken_file = "{token}"\n'
        (places.presets / "own.toml").write_text(text)
        ray = adding.plan(load_preset("own", places), [], places)[0].job.options["ray"]
        return str(ray["token_file"])

    with refused("file-untrusted", "token_file", error=PresetError):
        planned(name)
    assert planned("~/.ray/auth_token") == str(tmp_path / ".ray/auth_token")
    monkeypatch.setenv(TRUSTED_VARIABLE, f"job_kinds,{tmp_path}/token")
    assert planned("token") == f"{tmp_path}/token"
    (places.presets / "own.toml").write_text(f'{COUNT}[queue.ray]\ntoken = "the token itself"\n')
    with pytest.raises(PresetError, match=r"no key “ray\.token”") as error:
        adding.plan(load_preset("own", places), [], places)
    assert "the token itself" not in error.value.full_message


def test_the_user_allows_it_by_a_setting(places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (places.presets / "count.toml").write_text(COUNT)
    preset = load_preset("count", places)
    with pytest.raises(UnknownKindError, match="job_kinds:COUNT"):
        adding.plan(preset, [], places)
    places.config.write_text('trusted_programs = "another, job_kinds"\n')
    assert adding.plan(preset, [], places)[0].job.kind == "job_kinds:COUNT"
    assert Lab.open(places.home).settings.trusted_programs == "another, job_kinds"
    monkeypatch.setenv(TRUSTED_VARIABLE, "another")  # the environment goes before the file, as for every setting
    with pytest.raises(UnknownKindError):
        adding.plan(preset, [], places)
    assert load_kind("job_kinds:COUNT", queued=True), "what was queued was looked at then"


def test_what_is_installed_needs_no_word(places: Places) -> None:
    assert load_kind("model").name == load_kind("vlmconsole.jobs.model:KIND").name == "model"
    places.config.write_text("no TOML [")
    with pytest.raises(UnknownKindError):
        load_kind("job_kinds:COUNT", places)


@pytest.mark.parametrize(
    "item",
    [
        "custom_reward_function.path=/tmp/x.py",
        "+data.custom_cls.path=/tmp/x.py",
        "data.sampler.class_path=x.Y",
        "actor_rollout_ref.model.external_lib=evil_kind",
        "actor_rollout_ref.model.trust_remote_code=True",
        "++ray_kwargs.ray_init.runtime_env.py_executable=/tmp/x",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=/tmp/x.yaml",
        "actor_rollout_ref.rollout.agent.custom_async_server.path=/tmp/x.py",
    ],
)
def test_verls_words_name_no_program_either(item: str, places: Places) -> None:
    text = f'kind = "grpo"\n[spec]\nengine = "verl"\n[spec.verl]\noverrides = ["trainer.nnodes=1", "{item}"]\n'
    (places.presets / "own.toml").write_text(text)
    planned = adding.plan(load_preset("own", places), [], places, refuse=False)[0]
    assert [
        told for told in planned.problems if item in told and "program" in told
    ] and "nnodes" not in planned.problems[0]
    places.config.write_text(f'trusted_programs = "{item.partition("=")[2]}"\n')
    planned = adding.plan(load_preset("own", places), [], places, refuse=False)[0]
    assert not [told for told in planned.problems if "program" in told]
