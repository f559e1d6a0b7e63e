"""The one door to a model's own chat template: which file counts, what a bad one may do, and what chat makes of it."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from folders import ROOT
from model_folders import bundled_copy, change_json, system_turn
from refusals import refused
from replay import Reply, replay, sse

from vlmconsole.client.chat import ChatClient
from vlmconsole.client.sight import LOCAL
from vlmconsole.engines.profile import make_profile
from vlmconsole.jobs import preflight
from vlmconsole.models import renderer
from vlmconsole.models.door import PROBE, Door, bare_door, door
from vlmconsole.models.messages import Message
from vlmconsole.models.prompt import text_counter
from vlmconsole.models.template import BARE, ChatTemplate, TemplateError, find_template
from vlmconsole.runs.conditions import BARE_PROMPT, another_prompt, same_prompt
from vlmconsole.training.bases import base_folder
from vlmconsole.training.prompts import Piece, Turn, spell
from vlmconsole.vision.images import open_picture

CHAT = "POST /v1/chat/completions"
HI = [Message("user", "Hello?")]
SYSTEM = [Message("system", "Be brief."), *HI]
PICTURE = ROOT / "assets" / "pictures" / "scene-regular.png"
GEMMA = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + BARE
MISTRAL = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}{% endfor %}" + BARE
)


def made(text: str) -> Door:
    return Door(ChatTemplate(text, "x.jinja"), "x.jinja")


def with_template(folder: Path, text: str) -> Path:
    (folder / "chat_template.jinja").write_text(text)
    change_json(folder / "tokenizer_config.json", lambda all: all.update(chat_template=None))
    return folder


# --- which file counts ---
def bare(folder: Path) -> Path:
    """A copy without any template."""
    bundled_copy(folder)
    (folder / "chat_template.jinja").unlink()
    change_json(folder / "tokenizer_config.json", lambda all: all.update(chat_template=None))
    return folder


SOURCES: dict[str, tuple[str, Any]] = {
    "processor": ("processor_config.json", {"chat_template": "P"}),
    "legacy": ("chat_template.json", {"chat_template": "L"}),
    "plain": ("chat_template.jinja", "J"),
    "tokenizer": ("tokenizer_config.json", {"chat_template": "T"}),
    "several": ("tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "R"},
                                                            {"name": "default", "template": "D"}]}),
}  # fmt: skip


def put(folder: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        file, value = SOURCES[name]
        if isinstance(value, str):
            (folder / file).write_text(value)
        else:
            change_json(folder / file, lambda all, value=value: all.update(value))
    return folder


ORDER = [
    (("processor", "legacy", "plain", "tokenizer"), "P"),
    (("legacy", "plain", "tokenizer"), "L"),
    (("plain", "tokenizer"), "J"),
    (("tokenizer",), "T"),
    (("several",), "D"),
    (("plain", "several"), "J"),
    (("processor", "tokenizer"), "P"),
    (("legacy", "several"), "L"),
]


@pytest.mark.parametrize(("names", "wanted"), ORDER)
def test_the_file_that_transformers_takes_is_taken(tmp_path: Path, names: tuple[str, ...], wanted: str) -> None:
    assert find_template(put(bare(tmp_path / "m"), names)).text == wanted


@pytest.mark.slow
@pytest.mark.parametrize(("names", "wanted"), ORDER)
def test_transformers_and_mlx_vlm_take_the_same(tmp_path: Path, names: tuple[str, ...], wanted: str) -> None:
    from mlx_vlm.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers import AutoTokenizer
    from transformers.processing_utils import ProcessorMixin

    folder = put(bare(tmp_path / "m"), names)
    stated, _ = ProcessorMixin.get_processor_dict(str(folder))
    of_tokenizer = AutoTokenizer.from_pretrained(folder).chat_template
    for text in (
        stated.get("chat_template") or of_tokenizer,
        Qwen2_5_VLProcessor.from_pretrained(folder).chat_template,
    ):
        assert (text["default"] if isinstance(text, dict) else text) == wanted


@pytest.mark.parametrize(
    ("change", "noun"),
    [
        (lambda folder: None, "no chat template"),
        (lambda folder: change_json(folder / "tokenizer_config.json", lambda all: all.update(chat_template=7)), "no"),
        (
            lambda folder: change_json(
                folder / "tokenizer_config.json",
                lambda all: all.update(chat_template=[{"name": "rag", "template": "x"}]),
            ),
            "there are: rag",
        ),
        (lambda folder: (folder / "chat_template.json").write_text("{"), "chat_template.json"),
        (lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff\xfe"), "UTF-8"),
        (lambda folder: (folder / "chat_template.jinja").mkdir(), "no chat template"),
        (lambda folder: (folder / "chat_template.jinja").write_text("{% if %}"), "TemplateSyntaxError"),
        (lambda folder: with_template(folder, MISTRAL.replace("!=", "==")), "alternate"),
        (lambda folder: with_template(folder, "{{ messages[-1]['content'] }}"), "<|image_pad|>"),
        (lambda folder: with_template(folder, BARE.replace("{{ message['content'] }}", "{{ message['content']|trim }}"
                                                           "!")), "word for word"),
        (lambda folder: with_template(folder, "{{ messages|length }}" + BARE), "anew"),
    ],
)  # fmt: skip
def test_a_base_whose_template_cannot_be_used_is_refused(tmp_path: Path, change: Any, noun: str) -> None:
    folder = bare(tmp_path / "base")
    change(folder)
    (refusal,) = preflight.loadable(str(folder))
    assert noun in refusal and str(folder) in refusal and "\n" not in refusal


# --- what a template may do ---
HOSTILE = [
    ("{{ raise_exception('System role not supported') }}", "System role not supported"),
    ("{{ nothing.at.all }}", "UndefinedError"),
    ("{{ 1 // 0 }}", "ZeroDivisionError"),
    ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "processor time"),
    ("{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}", "RecursionError"),
    ("{{ 'a' * 10**9 }}", "MemoryError"),
    ("{{ ('a' * 10**6)|replace('a', 'b' * 10**6) }}", "Memory"),
    ("{% for i in range(99999) %}{{ 'abcdefghij' * 1000 }}{% endfor %}", "characters"),
    ("{{ 9**(9**9) }}", "processor time"),
    ("{{ range(10**9)|list }}", "range"),
    ("{{ ''.__class__.__mro__ }}", "SecurityError"),
    ("{{ cycler.__init__.__globals__.os.system('true') }}", "SecurityError"),
    ("{{ messages.append(1) }}", "SecurityError"),
    ("{{ '{0.__class__.__mro__}'.format(1)[99999] }}{{ x.y }}", "Error"),
    ("{% set ns = namespace(a=1) %}{% set ns.__class__ = 2 %}", "SecurityError"),
    ("{% include '/etc/passwd' %}", "loader"),
    ("{% " * 2000, "TemplateSyntaxError"),
    ("{{ " + "(" * 5000 + ")" * 5000 + " }}", "Error"),
]


@pytest.mark.parametrize(("text", "noun"), HOSTILE, ids=[text[:30] for text, _ in HOSTILE])
def test_a_hostile_template_ends_in_one_line_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, text: str, noun: str
) -> None:
    monkeypatch.setattr(renderer, "SECONDS", 0.3)
    opened = made(text)
    for _ in range(2):  # a looping one costs its time once
        with pytest.raises(TemplateError) as caught:
            opened.render([(PROBE, True)])
        assert (
            noun in caught.value.message and "x.jinja" in caught.value.message and "\n" not in caught.value.full_message
        )
        assert caught.value.hint


def test_a_template_that_refuses_one_conversation_renders_the_next() -> None:
    opened = made(GEMMA)
    system = [{"role": "system", "content": "x"}, {"role": "user", "content": "y"}]
    with refused("template-unrendered", "System role", error=TemplateError):
        opened.render([(system, True)])
    assert opened.render([(system[1:], True)]) == bare_door().render([(system[1:], True)])


def test_many_threads_share_one_template_and_its_process_may_die() -> None:
    opened, results = made("{{ messages[0]['content'] }}"), []

    def ask(number: int) -> None:
        results.append(opened.render([([{"role": "user", "content": str(number)}], True)]) == [str(number)])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 20
    opened._renderer.close()
    ask(21)
    assert results[-1]
    surrogate = "\ud800 ☃ " + "x" * 300_000
    assert opened.render([([{"role": "user", "content": surrogate}], True)]) == [surrogate]


def test_a_process_that_cannot_be_started_or_is_killed_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = made("{{ messages[0]['role'] }}")
    with monkeypatch.context() as without:
        without.setattr(renderer.sys, "executable", "/nowhere/python")
        with refused("template-unrendered", "started", error=TemplateError):
            opened.render([(PROBE, True)])
    assert opened.render([(PROBE, True)]) == ["user"]
    killed = made("x")
    assert killed.render([(PROBE, True)]) == ["x"]
    assert killed._renderer._worker is not None
    killed._renderer._worker.kill()
    with refused("template-unrendered", "process ended", error=TemplateError):
        killed.render([(PROBE, True)])
    assert killed.render([(PROBE, True)]) == ["x"]


def test_no_secret_of_ours_is_in_the_templates_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "sk-123456")
    opened = made("x")
    assert opened.render([(PROBE, True)]) == ["x"]
    worker = opened._renderer._worker
    assert worker is not None
    environment = Path(f"/proc/{worker.pid}/environ")
    assert not environment.exists() or b"sk-123456" not in environment.read_bytes()
    opened._renderer.close()
    assert worker.poll() is not None


# --- what is asked in-process ---
def test_the_bundled_models_pieces_are_what_they_always_were() -> None:
    turns = [Turn("How many?", "3", (None,)), Turn("And blue?")]  # type: ignore[arg-type]
    (pieces,) = spell([turns], door(base_folder("")), ["Be brief."])
    before = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>"
    assert pieces == [
        Piece(f"{before}How many?<|im_end|>\n<|im_start|>assistant\n", images=1),
        Piece("3<|im_end|>", taught=True),
        Piece("\n"),
        Piece("<|im_start|>user\nAnd blue?<|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert spell([turns], bare_door()) == spell([turns], door(base_folder("")))
    assert door(base_folder("")).prompt_sha256 == bare_door().prompt_sha256 == BARE_PROMPT


def test_a_templates_own_system_turn_is_in_the_prompt_and_in_its_hash(tmp_path: Path) -> None:
    folder = system_turn(bundled_copy(tmp_path / "base"))
    assert preflight.loadable(str(folder)) == []
    (pieces,) = spell([[Turn("How many?")]], door(folder))
    assert re.match(r"<\|im_start\|>system\n.+ assistant\.<\|im_end\|>\n<\|im_start\|>user\n", pieces[0].text)
    (own,) = spell([[Turn("How many?")]], door(folder), ["Mine."])
    assert own[0].text.startswith("<|im_start|>system\nMine.<|im_end|>\n<|im_start|>user\n")
    assert door(folder).prompt_sha256 != BARE_PROMPT
    before = door(folder)
    with_template(folder, BARE)  # a changed file is noticed at once
    assert door(folder) is not before and door(folder).prompt_sha256 == BARE_PROMPT


def test_a_question_that_holds_the_image_mark_is_refused() -> None:
    with refused("template-unfit", "<|image_pad|>", error=TemplateError):
        spell([[Turn("What is <|image_pad|>?")]], bare_door())


def test_runs_that_recorded_no_prompt_are_known_by_how_they_were_asked() -> None:
    old, new = {"engine": "in-process"}, {"engine": "in-process", "prompt_sha256": BARE_PROMPT}
    other = {"engine": "in-process", "prompt_sha256": "1" * 64}
    assert same_prompt(old, new) and not same_prompt(old, other) and not same_prompt(new, other)
    assert same_prompt({"engine": "mlx-vlm"}, {"engine": "mlx-vlm", "prompt_sha256": "1" * 64})
    assert another_prompt({"prompt_sha256": BARE_PROMPT, "template_sha256": "x"}) == {}
    assert another_prompt({"prompt_sha256": "1"}) == {"prompt_sha256": "1"}


# --- what chat makes of it ---
USAGE = {"choices": [], "usage": {"prompt_tokens": 120, "completion_tokens": 1}}
STREAM = sse({"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}, USAGE)


@pytest.mark.parametrize(
    "template", [GEMMA, MISTRAL, "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"]
)
async def test_chat_goes_on_without_a_count_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    monkeypatch.setattr(renderer, "SECONDS", 0.3)
    folder = with_template(bundled_copy(tmp_path / "base"), template)
    asked = [*SYSTEM[:1], Message("user", "?", (open_picture(PICTURE),)), *HI]
    async with replay({CHAT: Reply(STREAM)}) as player:
        profile = make_profile(
            {"name": "box", "engine": "openai", "base_url": player.url, "model": str(folder), "served_model": "m"}
        )
        async with ChatClient(profile) as client:
            cost = await client.budget(asked, 16)
            answer = await client.ask(asked)
    assert not cost.text_exact and cost.fits and cost.text > 0
    assert answer.ok and answer.vision[0].method != LOCAL
    said = " ".join((*answer.conditions.notes, *(sight.why for sight in answer.vision)))
    assert "chat_template.jinja" in said and "template" in said


def test_a_family_that_marks_images_in_another_way_is_not_counted(tmp_path: Path) -> None:
    text = BARE.replace("<|vision_start|><|image_pad|><|vision_end|>", "<start_of_image>")
    counter = text_counter(with_template(bundled_copy(tmp_path / "base"), text))
    assert counter is not None and counter(HI) > 0
    with pytest.raises(TemplateError, match="cannot be counted"):
        counter([Message("user", "?", (open_picture(PICTURE),))])


def test_special_tokens_and_the_engines_variables_reach_the_template(tmp_path: Path) -> None:
    folder = with_template(
        bundled_copy(tmp_path / "base"), "{{ bos_token }}|{{ eos_token }}|{{ enable_thinking }}" + BARE
    )
    change_json(folder / "tokenizer_config.json", lambda all: all.update(bos_token={"content": "<|endoftext|>"}))
    (text,) = door(folder).render([(PROBE, True)], {"enable_thinking": False})
    assert text.startswith("<|endoftext|>|<|im_end|>|False<|im_start|>")
    json.dumps(dict(door(folder).template.special))
    started = time.monotonic()
    assert (
        text_counter(folder, (("enable_thinking", False),)) is not text_counter(folder)
        and time.monotonic() - started < 60
    )


def test_runs_under_other_prompts_are_not_compared_and_older_ones_are_where_their_form_is_known() -> None:
    from vlmconsole.compare.runs import compare
    from vlmconsole.gates.evidence import unlike
    from vlmconsole.runs.conditions import Conditions

    def under(engine: str, sha: str | None) -> Conditions:
        return Conditions(engine=engine, prompt_sha256=sha, template_sha256=None if sha is None else "t" * 64)

    for engine, old_is_known in (("in-process", True), ("mlx-vlm", False)):
        old, bare, other = (under(engine, sha) for sha in (None, BARE_PROMPT, "1" * 64))
        for one, two, same in (
            (old, old, True),
            (old, bare, True),
            (old, other, not old_is_known),
            (bare, other, False),
        ):
            said = compare(one, two)
            assert [difference.key for difference in said.differs] == ([] if same else ["prompt_sha256"])
            assert bool(unlike(one.model_dump(mode="json"), two.model_dump(mode="json"))) == (not same)
    assert compare(bare, other, only="prompt_sha256").comparable
