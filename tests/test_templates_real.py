"""What is asked in-process is, token by token, what mlx-vlm's real server makes of the same question."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from model_folders import bundled_copy, system_turn

from vlmconsole.engines.chat import ChatClient
from vlmconsole.engines.messages import Message, to_request
from vlmconsole.engines.profile import make_profile
from vlmconsole.engines.servers import ensure_server, stop_server
from vlmconsole.models.door import door
from vlmconsole.runs.conditions import BARE_PROMPT
from vlmconsole.runs.places import Places
from vlmconsole.vision.images import open_picture

pytestmark = pytest.mark.slow
PICTURES = Path(__file__).parent.parent / "assets" / "pictures"
COUNT = "Count the red circles and the blue squares."


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with the published template's own system turn."""
    return system_turn(bundled_copy(tmp_path_factory.mktemp("base") / "stand-in"))


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


def test_the_same_tokens_as_mlx_vlms_own_functions(stand_in: Path) -> None:
    ours = in_process(stand_in)
    for name, messages in asked().items():
        assert ours[name] == of_mlx_vlm(stand_in, messages), name


def test_the_same_count_as_its_real_server_and_the_prompt_in_the_conditions(stand_in: Path, tmp_path: Path) -> None:
    pytest.importorskip("mlx_vlm")
    ours, places = in_process(stand_in), Places(home=tmp_path / "lab").ensure()
    profile = make_profile({"name": "stand-in", "engine": "mlx", "model": str(stand_in)})

    async def run() -> None:
        ready = await ensure_server(profile, places)
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
            await stop_server(profile, places)

    asyncio.run(run())


def test_an_evaluation_says_its_prompt_and_takes_no_answers_to_another(stand_in: Path, tmp_path: Path) -> None:
    from vlmconsole.evaluation.local import InProcess
    from vlmconsole.evaluation.settings import EvaluateSettings

    settings = EvaluateSettings(base=str(stand_in), data=["naming"], paired=False, max_new_tokens=2)
    model = InProcess(settings, "after", Places(home=tmp_path / "home").ensure())
    assert model.conditions().prompt_sha256 == model.facts["prompt_sha256"] == door(stand_in).prompt_sha256
    plain = InProcess(settings.model_copy(update={"base": ""}), "after", Places(home=tmp_path / "home"))
    assert plain.conditions().prompt_sha256 == BARE_PROMPT and "prompt_sha256" not in plain.facts
