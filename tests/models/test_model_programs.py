"""A model's folder that wants to run its author's programs: refused before anything is started, or allowed by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from model_folders import bundled_copy, change_json
from refusals import refused
from small_server import SERVER

from vlmconsole.engines.profile import ProfileError, ServerProfile, make_profile
from vlmconsole.engines.registry import find_engine
from vlmconsole.evaluation.preflight import of_side
from vlmconsole.evaluation.resolve import resolve
from vlmconsole.evaluation.settings import EvaluateSettings
from vlmconsole.evaluation.whole_model import with_model
from vlmconsole.jobs import preflight
from vlmconsole.models.programs import ProgramsError, programs_in, refuse_programs
from vlmconsole.queue.served import ensure_served
from vlmconsole.runs.places import Places
from vlmconsole.servers import processes
from vlmconsole.servers.where import server_of
from vlmconsole.training.bases import base_folder, loadable_base

MAP = {"AutoModel": "modeling_x.X"}
#: file → what is in it → how it is named
WANTS: list[tuple[str, dict[str, Any], str]] = [
    ("config.json", {"model_file": "own.py"}, "config.json: model_file"),
    ("config.json", {"auto_map": MAP}, "config.json: auto_map"),
    ("config.json", {"text_config": {"auto_map": MAP}}, "config.json: text_config.auto_map"),
    ("config.json", {"vision_config": {"encoder": [{"auto_map": MAP}]}}, "vision_config.encoder.0.auto_map"),
    ("preprocessor_config.json", {"auto_map": {"AutoProcessor": "p.P"}}, "preprocessor_config.json: auto_map"),
    ("processor_config.json", {"image_processor": {"auto_map": MAP}}, "image_processor.auto_map"),
    ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["t.T", None]}}, "tokenizer_config.json: auto_map"),
    ("video_preprocessor_config.json", {"auto_map": MAP}, "video_preprocessor_config.json"),
    ("generation_config.json", {"custom_generate": "g"}, "generation_config.json: custom_generate"),
    ("another.json", {"custom_pipelines": {"x": {"impl": "p.P"}}}, "another.json: custom_pipelines"),
]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "lab").ensure()


def served(folder: Path, **more: object) -> ServerProfile:
    argv = ["python", "-c", SERVER, "{port}", "0", "kind", "--model", "{model}"]
    return make_profile(
        {"name": "box", "engine": "openai", "model": str(folder), "launch": {"argv": argv, "start_timeout_s": 20}}
        | more
    )


@pytest.mark.parametrize(("file", "values", "named"), WANTS)
def test_every_place_that_names_a_program_is_seen(
    file: str, values: dict[str, Any], named: str, places: Places, tmp_path: Path
) -> None:
    folder = bundled_copy(tmp_path / "model")
    change_json(folder / file, lambda settings: settings.update(values))
    assert len(programs_in(folder)) == 1
    with refused("programs-untrusted", named, error=ProgramsError):
        loadable_base(str(folder))
    assert named in preflight.loadable(str(folder))[0]
    for profile in (served(folder), make_profile({"name": "own", "engine": "mlx", "model": str(folder)})):
        with pytest.raises(ProfileError) as untrusted:
            server_of(profile, places).launch_line()
        assert named in untrusted.value.message and "trust_remote_code = true" in untrusted.value.hint
    assert not list(places.state.rglob("*.json"))


def test_what_cannot_be_read_is_not_trusted_and_words_are_no_settings(tmp_path: Path) -> None:
    assert programs_in(base_folder("")) == [] == programs_in(tmp_path / "none")
    folder = bundled_copy(tmp_path / "model")
    change_json(folder / "tokenizer.json", lambda values: values["model"].update({"auto_map": {"a": "b"}}))
    change_json(folder / "config.json", lambda values: values.update(auto_map={}, model_file=""))
    assert programs_in(folder) == []
    (folder / "processor_config.json").write_text('{"auto_map": ')
    (folder / "large.json").write_text(json.dumps({"pad": "x" * 5_000_000, "auto_map": MAP}))
    assert [told.partition(" ")[0] for told in programs_in(folder)] == ["large.json", "processor_config.json"]
    with pytest.raises(ProgramsError, match="cannot be read"):
        refuse_programs(folder)


def refusals(places: Places, server: str, **more: str) -> list[str]:
    """Why an evaluation's server could not be started, as preflight says it."""
    settings = EvaluateSettings(data=["small"], backend="server", server=server, paired=False, **more)
    return of_side(resolve(settings, places).before)


async def test_refused_when_it_is_started_and_allowed_by_the_profile(places: Places, tmp_path: Path) -> None:
    folder = bundled_copy(tmp_path / "model", model_file="own.py")
    refused = served(folder)
    with pytest.raises(ProfileError, match="model_file"):
        await ensure_served(refused, places)
    with pytest.raises(ProfileError, match="model_file"):
        await server_of(refused, places).ensure()
    assert processes.recorded(places, "box") is None and not places.queue.exists()
    (places.servers / "box.toml").write_text(
        f'engine = "vllm"\nmodel = "{folder}"\n[launch]\nargv = ["x", "{{model}}"]\n'
    )
    assert "model_file" in refusals(places, "box")[0]
    assert "model_file" in refusals(places, "demo", before_model=str(folder))[0]
    assert refusals(places, "demo") == []
    allowed = served(folder, trust_remote_code=True)
    try:
        assert (await server_of(allowed, places).ensure()).started_here
    finally:
        await server_of(allowed, places).stop()


def command(profile: ServerProfile, places: Places) -> list[str]:
    return find_engine(profile.engine).command(profile, places, 1)


def test_trust_in_one_model_is_none_in_another(places: Places, tmp_path: Path) -> None:
    """An evaluation may put another model behind a profile: its preset names that one, and nobody has trusted it."""
    known, foreign = (bundled_copy(tmp_path / name, auto_map=MAP) for name in ("known", "foreign"))
    for more in ({"trust_remote_code": True}, {"extra": ["--trust-remote-code"]}):
        launch_more = {"argv": ["/bin/true", "{model}"], **({"extra": more["extra"]} if "extra" in more else {})}
        keys = {key: value for key, value in more.items() if key != "extra"}
        box = make_profile({"name": "box", "engine": "vllm", "model": str(known), "launch": launch_more} | keys)
        assert str(known) in command(box, places) and str(known) in command(with_model(box, known), places)
        with pytest.raises(ProfileError, match="auto_map"):
            command(with_model(box, foreign), places)


def test_the_users_own_flag_is_a_word_of_theirs_too(places: Places, tmp_path: Path) -> None:
    folder = bundled_copy(tmp_path / "model", auto_map=MAP)
    argv = ["/bin/true", "{model}", "--trust-remote-code"]
    own = make_profile({"name": "box", "engine": "vllm", "model": str(folder), "launch": {"argv": argv}})
    assert command(own, places)[-1] == "--trust-remote-code"
    mlx = make_profile({"name": "own", "engine": "mlx", "model": str(folder), "trust_remote_code": True})
    assert "--trust-remote-code" in command(mlx, places)
