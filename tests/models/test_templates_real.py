"""What is asked in-process is, token by token, what mlx-vlm's real server makes of the same question."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT
from model_folders import bundled_copy, published, system_turn

from vlmconsole.client.chat import ChatClient
from vlmconsole.engines.profile import make_profile
from vlmconsole.models.door import door
from vlmconsole.models.messages import Message, to_request
from vlmconsole.runs.conditions import BARE_PROMPT
from vlmconsole.runs.places import Places
from vlmconsole.servers.where import server_of
from vlmconsole.training.bases import base_folder
from vlmconsole.vision.images import open_picture

pytestmark = pytest.mark.slow
PICTURES = ROOT / "assets" / "pictures"
COUNT = "Count the red circles and the blue squares."


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with Qwen2.5-VL's published template, which opens with a system turn of its own."""
    return published(bundled_copy(tmp_path_factory.mktemp("base") / "stand-in"))


def in_process(folder: Path) -> dict[str, list[int]]:
    """The token ids that are asked in-process, by case."""
    from vlmconsole.training.model import encode, load
    from vlmconsole.training.prompts import Turn

    loaded = load(folder)
    scene = open_picture(PICTURES / "scene-regular.png").image()
    cases: dict[str, tuple[list[Turn], str | None]] = {
        "image": ([Turn(COUNT, None, (scene,))], None),
        "two images": ([Turn(COUNT, None, (scene, scene))], None),
        "text": ([Turn("Which shape is largest?")], None),
        "own system": ([Turn(COUNT, None, (scene,))], "Be brief."),
        "turns": ([Turn(COUNT, "{}", (scene,)), Turn("And now?  Süß 数 🍎")], None),
    }
    return {
        name: encode(loaded, [turns], system=[system])["input_ids"][0].tolist()
        for name, (turns, system) in cases.items()
    }


def asked() -> dict[str, list[Message]]:
    """The same questions as a server is asked them."""
    scene = open_picture(PICTURES / "scene-regular.png")
    return {
        "image": [Message("user", COUNT, (scene,))],
        "two images": [Message("user", COUNT, (scene, scene))],
        "text": [Message("user", "Which shape is largest?")],
        "own system": [Message("system", "Be brief."), Message("user", COUNT, (scene,))],
        "turns": [
            Message("user", COUNT, (scene,)),
            Message("assistant", "{}"),
            Message("user", "And now?  Süß 数 🍎"),
        ],
    }


def of_mlx_vlm(folder: Path, messages: list[Message]) -> list[int]:
    """What mlx-vlm's server computes for a request: its own template function and preparation of inputs."""
    from mlx_vlm.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from mlx_vlm.prompt_utils import apply_chat_template

    processor: Any = Qwen2_5_VLProcessor.from_pretrained(folder)
    pictures = [picture.image() for message in messages for picture in message.pictures]
    text = apply_chat_template(processor, {"model_type": "qwen2_5_vl"}, to_request(messages), num_images=len(pictures))
    ids: list[int] = processor(images=pictures or None, text=[text])["input_ids"][0].tolist()
    return ids


def test_the_same_tokens_as_mlx_vlms_own_functions(stand_in: Path, tmp_path: Path) -> None:
    for folder in (stand_in, system_turn(bundled_copy(tmp_path / "other")), base_folder("")):
        ours = in_process(folder)
        for name, messages in asked().items():
            assert ours[name] == of_mlx_vlm(folder, messages), (folder, name)


def test_the_same_count_as_its_real_server_and_the_prompt_in_the_conditions(stand_in: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlx_vlm")
    ours, places = in_process(stand_in), Places(home=tmp_path / "lab").ensure()
    profile = make_profile({"name": "stand-in", "engine": "mlx", "model": str(stand_in)})

    async def run() -> None:
        ready = await server_of(profile, places).ensure()
        try:
            async with ChatClient(ready.profile) as client:
                for name, messages in asked().items():
                    answer = await client.ask(messages, max_tokens=2)
                    assert answer.ok and answer.result.usage.prompt_tokens == len(ours[name]), name
                    assert all(sight.state == "equal" for sight in answer.vision), name
                    known = answer.conditions
                    assert known.prompt_sha256 == door(stand_in).prompt_sha256 != BARE_PROMPT
                    assert known.template_sha256 == door(stand_in).template.sha256
        finally:
            await server_of(profile, places).stop()

    asyncio.run(run())


def test_an_evaluation_says_its_prompt_and_takes_no_answers_to_another(stand_in: Path, tmp_path: Path) -> None:
    from vlmconsole.evaluation.local import InProcess
    from vlmconsole.evaluation.resolve import resolve
    from vlmconsole.evaluation.settings import EvaluateSettings

    settings = EvaluateSettings(base=str(stand_in), data=["naming"], paired=False, max_new_tokens=2)
    model = InProcess(resolve(settings, Places(home=tmp_path / "home").ensure()).after)
    assert model.conditions().prompt_sha256 == model.facts["prompt_sha256"] == door(stand_in).prompt_sha256
    plain = InProcess(resolve(settings.model_copy(update={"base": ""}), Places(home=tmp_path / "home")).after)
    assert plain.conditions().prompt_sha256 == BARE_PROMPT and "prompt_sha256" not in plain.facts


def test_a_training_is_asked_in_the_models_own_form_and_says_so(stand_in: Path, tmp_path: Path) -> None:
    """A real training on the stand-in; its adapter asked in the same form, and on the same weights without it."""
    from sft_runs import lab, make, work

    from vlmconsole.audit.run import audit
    from vlmconsole.evaluation.local import InProcess
    from vlmconsole.evaluation.resolve import resolve
    from vlmconsole.evaluation.settings import EvaluateSettings
    from vlmconsole.training.adapters.store import open_adapter

    places = lab(tmp_path / "home")
    runs = [make(places, epochs=1, dev_epochs=[1], base=base) for base in (str(stand_in), "")]
    for run in runs:
        work(places, run)
    own, plain = ([entry["tokens"] for entry in run.read_json("mask.json")["each"]] for run in runs)
    assert len({a - b for a, b in zip(own, plain, strict=True)}) == 1 and own[0] > plain[0]
    hashes = [run.read_json("conditions.json")["prompt_sha256"] for run in runs]
    assert hashes == [door(stand_in).prompt_sha256, BARE_PROMPT]
    for run in runs:
        (mask,) = [finding for finding in audit(run, places).findings if finding.name == "supervision mask"]
        assert mask.state == "ok" and "tokenized anew" in mask.text
    adapters = [open_adapter(run.file("adapter")) for run in runs]
    assert [adapter.provenance.prompt_sha256 for adapter in adapters if adapter.provenance] == hashes
    for base, unlike in ((str(stand_in), (False, True)), ("", (True, False))):
        for adapter, other in zip(adapters, unlike, strict=True):
            settings = EvaluateSettings(base=base, data=["naming"], paired=False, before_adapter=str(adapter.path))
            notes = InProcess(resolve(settings, places).before).conditions().notes
            assert any("another prompt form" in note for note in notes) == other


def test_an_older_run_is_replayed_as_it_was_asked(stand_in: Path, tmp_path: Path) -> None:
    """Runs of before recorded no prompt and had turns alone, whatever their base's template says."""
    from sft_runs import lab

    from vlmconsole.audit.replay import replay
    from vlmconsole.audit.replay_errors import ReplayError
    from vlmconsole.jobs import evaluate
    from vlmconsole.jobs.contract import Context
    from vlmconsole.runs.folder import RunFolder

    places = lab(tmp_path / "home")
    spec = {"data": [str(places.home / "few.toml")], "paired": False, "max_new_tokens": 8, "base": ""}
    run = RunFolder.create(places.runs, kind="evaluate", preset="e", spec=spec, title="e", home=places.home)
    summary = evaluate.KIND.run(Context(run, places, None), evaluate.KIND.spec.model_validate(spec))
    run.write_json("summary.json", summary)
    sample = next(iter(run.read_jsonl("before.jsonl")))["id"]
    assert not replay(run, places, sample, side="before").differs
    conditions = run.read_json("conditions.json")
    assert conditions["before"].pop("prompt_sha256") == BARE_PROMPT
    run.write_json("conditions.json", conditions)
    job = run.job()
    job["spec"]["base"] = str(stand_in)  # the same weights under a template with a system turn
    run.write_json("job.json", job)
    assert not replay(run, places, sample, side="before").differs
    conditions["before"]["prompt_sha256"] = BARE_PROMPT
    run.write_json("conditions.json", conditions)
    with pytest.raises(ReplayError, match="prompt"):
        replay(run, places, sample, side="before")
