"""An adapter behind real mlx-vlm: the same change as in this process, chosen by name, and named with its hash."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import cast

import pytest
from lora import BASE, bundled, make_adapter
from refusals import mentions, refused

from vlmconsole.cli import main
from vlmconsole.client.adapter_effect import effect
from vlmconsole.client.chat import ChatClient
from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.scene import make_scene
from vlmconsole.desks.servers import ServerDesk
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.http import EngineError
from vlmconsole.engines.profile import make_profile
from vlmconsole.models.messages import Message
from vlmconsole.runs.places import Places
from vlmconsole.servers.server import Ready
from vlmconsole.training.adapters import store
from vlmconsole.training.adapters.serving import select
from vlmconsole.training.adapters.store import OTHER_MODEL
from vlmconsole.training.generation import Prompt, answers
from vlmconsole.vision.images import open_picture


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """A lab with one adapter, `taught`."""
    home = Places(tmp_path_factory.mktemp("home")).ensure()
    make_adapter(home.adapters / "taught")
    return home


@pytest.mark.slow
async def test_mlx_changes_its_answers_as_torch_does(mlx_server: Ready, places: Places) -> None:
    scenes = [make_scene(f"served:{i}", red=i % 4, blue=(i + 1) % 4) for i in range(2)]
    asks = [Prompt(str(i), COUNT_PROMPT, (scene.draw(),)) for i, scene in enumerate(scenes)]
    loaded = bundled()
    plain = [one.text for one in answers(loaded, asks, max_new_tokens=24)]
    wrapped = store.load_peft(loaded, places.adapters / "taught")
    try:
        here = [one.text for one in answers(loaded, asks, max_new_tokens=24)]
    finally:
        wrapped.unload()
    assert here != plain

    async def ask(client: ChatClient, scene: int, adapter: SelectedAdapter | None) -> tuple[str, str | None]:
        message = Message("user", COUNT_PROMPT, (open_picture(scenes[scene].png()),))
        answer = await client.ask([message], max_tokens=24, adapter=adapter)
        assert answer.ok, answer.result.error
        return answer.text.strip(), answer.conditions.adapter

    async with ChatClient(mlx_server.profile) as client:
        await client.prepare()
        assert client.settings is not None
        taught = select("taught", client.profile, client.settings.precision, places)
        assert taught is not None and taught.sha256 == store.find_adapter(places, "taught").sha256
        told = [await ask(client, i, taught) for i in range(2)]
        assert [text for text, _ in told] == [text.strip() for text in here]
        assert {named for _, named in told} == {f"taught sha256:{taught.sha256}"}
        # The next question names no adapter: the server must not go on with the last one.
        assert await ask(client, 0, None) == (plain[0].strip(), None)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_servers_own_adapters_are_asked_for_their_effect(mlx_server: Ready, places: Places) -> None:
    """As the servers screen does it: by the names that the server itself gives."""
    at = mlx_server.profile
    there = f'engine = "mlx"\nbase_url = "{at.base_url}"\napi_key_file = "{at.access.key_file}"\n'
    (places.servers / "there.toml").write_text(there)
    async with ChatClient(mlx_server.profile) as client:
        taught = select("taught", client.profile, "float32", places)
        await client.glance([Message("user", "Hello")], taught, 1)  # so that it is loaded
    found = await asyncio.to_thread(ServerDesk(places).effects, "there")
    assert [effect.state for effect in found.values()] == ["effect verified"], found


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_the_effect_of_an_adapter_is_seen_and_of_an_idle_one_is_not(mlx_server: Ready, places: Places) -> None:
    picture = open_picture(make_scene("served:0", red=0, blue=1).png())
    async with ChatClient(mlx_server.profile) as client:
        taught = select("taught", client.profile, "float32", places)
        assert taught is not None
        found = await effect(client, taught, [Message("user", COUNT_PROMPT, (picture,))])
        assert found.state == "effect verified" and found.base != found.adapter
        nothing = SelectedAdapter("idle", str(make_idle(places)))
        found = await effect(client, nothing, [Message("user", COUNT_PROMPT, (picture,))])
        assert found.state == "no effect seen" and found.base == found.adapter
        await client.ask([Message("user", "Hello")], max_tokens=1)  # the session's server goes on with its base


@pytest.mark.parametrize(
    ("answers", "state", "said"),
    [
        # The first token of a strict format is certain with any weights: the later ones tell.
        ((("{3}", (0, -0.2)), ("{3}", (0, -0.2)), ("{3}", (0, -0.1))), "effect verified", "one of 2 tokens'"),
        ((("{3}", (0, -0.2)), ("{3}", (0, -0.22)), ("{3}", (0, -0.1))), "no effect seen", "greedy"),
        ((("{3}", (0, -0.2)), ("{3}", (0, -0.2)), ("{3}", (0, -0.20005))), "no effect seen", "within 5e-05"),
        ((("{3}", ()), ("{3}", ()), ("{4}", ())), "effect verified", "different"),
        ((("{3}", ()), ("{3}", ()), ("{3}", ())), "no effect seen", "with and without"),
        # Answers that go apart are other tokens: only the first can be compared.
        ((("{3}", (0, -0.2)), ("{4}", (0, -0.9)), ("{3}", (0, -9.0))), "no effect seen", "two different"),
        ((("{3}", (0, -0.2)), ("{4}", (0, -0.9)), ("{3}", (-1, -0.2))), "effect verified", "the first token's"),
    ],
)
async def test_what_an_effect_is(answers: tuple[tuple[str, tuple[float, ...]], ...], state: str, said: str) -> None:
    class Client:
        told = iter(answers)

        async def glance(self, *asked: object) -> tuple[str, tuple[float, ...]]:
            return next(self.told)

    found = await effect(cast(ChatClient, Client()), SelectedAdapter("a", "a"), [Message("user", "Hello")])
    assert found.state == state and said in found.why
    assert (found.moved is None) == (not answers[0][1])


def make_idle(places: Places) -> Path:
    """An adapter whose B is zero, as MLX serves it: it does nothing."""
    folder = make_adapter(places.adapters / "idle", strength=0.0)
    chosen = store.open_adapter(folder)
    from vlmconsole.training.adapters.convert import served_by_mlx

    return served_by_mlx(chosen, places.cache, BASE)


async def test_an_adapter_that_cannot_be_loaded_fails_the_question_and_not_the_server(
    mlx_server: Ready, tmp_path: Path
) -> None:
    async with ChatClient(mlx_server.profile) as client:
        answer = await client.ask([Message("user", "Hello")], adapter=str(tmp_path / "nothing"))
        assert answer.result.ended == "error" and mentions(answer.result.error or "", "adapter", "nothing")
        again = await client.ask([Message("user", "Hello")], max_tokens=16)
        assert again.ok and again.conditions.adapter is None


def test_chat_with_an_adapter_that_is_not_understood_asks_nothing(
    mlx_server: Ready, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = Places(tmp_path / "home").ensure()
    config = make_adapter(places.adapters / "turned") / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "init_lora_weights": "pissa_niter_4"}))
    (places.servers / "there.toml").write_text(
        f'engine = "mlx"\nbase_url = "{mlx_server.profile.base_url}"\nmodel = "{BASE}"\n'
        f'api_key_file = "{tmp_path / "key"}"\n'
    )
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(mlx_server.profile.api_key() or "")
    for more in ([], ["--other-base"]):
        with pytest.raises(SystemExit) as left:
            main(["--home", str(places.home), "chat", "Hello", "--server", "there", "--adapter", "turned", *more])
        printed = capsys.readouterr()
        assert left.value.code != 0 and "init_lora_weights" in printed.err and not printed.out.strip()


def test_what_is_not_the_servers_own_base_is_refused(places: Places, tmp_path: Path) -> None:
    profile = make_profile({"name": "p", "engine": "mlx", "model": str(BASE), "base_url": "http://127.0.0.1:9"}, "p")
    with refused("precision-differs", "bfloat16"):
        select("taught", profile, "bfloat16", places)
    forced = select("taught", profile, "bfloat16", places, other_base=True)
    assert forced is not None and OTHER_MODEL in forced.notes[0]
    assert select("none", profile, "float32", places) is None
    elsewhere = make_profile({"name": "q", "engine": "mlx", "base_url": "http://127.0.0.1:9"}, "q")
    with refused("base-unknown", "q", "--other-base"):
        select("taught", elsewhere, None, places)
    generic = make_profile({"name": "o", "engine": "openai", "base_url": "http://127.0.0.1:9"}, "o")
    with refused("adapter-unsupported", "o", "generic"):
        select("taught", generic, None, places)


def test_sglang_is_given_a_name_that_holds_the_hash(places: Places) -> None:
    profile = make_profile({"name": "s", "engine": "sglang", "model": str(BASE), "base_url": "http://127.0.0.1:9"}, "s")
    chosen = select("taught", profile, None, places)
    assert chosen is not None and chosen.sha256 is not None
    identity = store.find_adapter(places, "taught").identity
    assert chosen.selector == f"taught-{identity[:12]}" and chosen.folder is not None
    # SGLang takes no pattern for the layers, only their names.
    config = json.loads((chosen.folder / "adapter_config.json").read_text())
    names = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
    assert config["target_modules"] == names and store.open_adapter(chosen.folder).sha256 == chosen.sha256
    own = select("resident", profile, None, places)
    assert own is not None and own.selector == "resident" and "not checked" in own.notes[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_logits_of_the_mlx_form_are_those_of_merged_weights(places: Places, tmp_path: Path) -> None:
    from vlmconsole.engines.logit_check import compare_logits
    from vlmconsole.models.weights import read_arrays, to_bytes
    from vlmconsole.training.adapters.convert import convert_to_mlx

    taught = store.open_adapter(places.adapters / "taught")
    out = convert_to_mlx(taught, tmp_path / "mlx", BASE)
    scales = {module: product.scale for module, product in store.products(taught).items()}
    found = compare_logits(BASE, out, taught.path, scales, places)
    assert found.same and found.same_choices == found.tokens
    assert found.from_merged < 1e-4 * found.scale < found.from_base
    # The same check must see a wrong one: a scale that was forgotten, a matrix that was not transposed back.
    config = json.loads((out / "adapter_config.json").read_text())
    config["lora_parameters"]["scale"] = 1.0
    (out / "adapter_config.json").write_text(json.dumps(config))
    assert not compare_logits(BASE, out, taught.path, scales, places).same
    arrays = read_arrays(out / "adapters.safetensors")
    short = {name.replace("language_model.model", "model"): value for name, value in arrays.items()}
    (out / "adapters.safetensors").write_bytes(to_bytes(short))  # mlx-vlm ignores names that it does not know
    with contextlib.suppress(EngineError):  # or it refuses them, which is as good
        assert not compare_logits(BASE, out, taught.path, scales, places).same


def test_asked_together_an_adapter_is_loaded_once(mlx_server: Ready, places: Places) -> None:
    async def run() -> list[str]:
        async with ChatClient(mlx_server.profile) as client:
            await client.prepare()
            taught = select("taught", client.profile, "float32", places)
            hello = [Message("user", "Hello")]
            told = await asyncio.gather(*(client.ask(hello, max_tokens=8, adapter=taught) for _ in range(3)))
            await client.ask(hello, max_tokens=1)
            return [one.result.error or one.text for one in told]

    told = asyncio.run(run())
    assert len(set(told)) == 1
