"""Batched greedy answers: their evidence, their order, their ends, and that company does not change them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lora import bundled
from model_folders import bundled_copy, system_turn

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.scene import GROUPS, make_scene
from vlmconsole.models.door import door
from vlmconsole.training.generation import Generated, Prompt, answers, invariance, tensor_sha256
from vlmconsole.training.model import encode
from vlmconsole.training.prompts import Turn


def some(n: int) -> list[Prompt]:
    """Counting questions of equal length, with a text without a picture and a longer one between them."""
    asks = [Prompt(f"s{i}", COUNT_PROMPT, (make_scene(f"gen:{i}", GROUPS[i % 6]).draw(),)) for i in range(n - 2)]
    asks.insert(1, Prompt("bare", "Hello"))
    few = make_scene("gen:few").draw()
    return [*asks, Prompt("two", "What colour is the circle?", (few, few), system="Answer briefly.")]


@pytest.fixture(scope="module")
def asks() -> list[Prompt]:
    return some(7)


@pytest.fixture(scope="module")
def made(asks: list[Prompt]) -> list[Generated]:
    return list(answers(bundled(), asks, max_new_tokens=24, batch=3))


def test_every_answer_says_in_which_company_it_was_made(asks: list[Prompt], made: list[Generated]) -> None:
    assert [one.batch for one in made] == [0, 0, 0, 1, 1, 1, 2]
    assert made[4].batch_members == tuple(ask.uid for ask in asks[3:6])
    assert made[6].batch_members == ("two",)


def test_the_models_own_system_turn_is_asked(tmp_path: Path) -> None:
    """A published Qwen2.5-VL's template opens with one: it is in the prompt and nothing else changes."""
    own = replace(bundled(), template=door(system_turn(bundled_copy(tmp_path / "base"))))
    turn = own.tokenizer("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n", add_special_tokens=False)
    chat, other = [Turn(COUNT_PROMPT, "{}", (make_scene("own").draw(),))], [Turn("Hello", "yes"), Turn("And now?")]
    plain, systematic = encode(bundled(), [chat, other]), encode(own, [chat, other])
    for row in (0, 1):
        ids, labels, mask = (systematic[key][row].tolist() for key in ("input_ids", "labels", "attention_mask"))
        bare = [plain[key][row].tolist() for key in ("input_ids", "labels", "attention_mask")]
        more = len(turn["input_ids"])
        assert sum(mask) == sum(bare[2]) + more and ids[:more] == turn["input_ids"] and labels[:more] == [-100] * more
        assert ids[more : sum(mask)] == bare[0][: sum(bare[2])]
        assert labels[more : sum(mask)] == bare[1][: sum(bare[2])]
    assert encode(own, [chat], system=["Mine."])["input_ids"].tolist() == (
        encode(bundled(), [chat], system=["Mine."])["input_ids"].tolist()
    )


def test_a_batch_is_checked_against_single_questions(asks: list[Prompt]) -> None:
    found = invariance(bundled(), asks, max_new_tokens=12, batch=4)
    assert found.invariant and found.n == 7 and "batch-invariant: 7 of 7" in str(found)


@pytest.mark.slow
def test_a_batch_that_changes_answers_is_told(asks: list[Prompt], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the attention mask the padding is read: the check must see it."""
    from vlmconsole.training import generation

    joined = generation._together

    def careless(singles: list[dict[str, object]], pad: int) -> dict[str, object]:
        inputs = joined(singles, pad)
        return {**inputs, "attention_mask": inputs["attention_mask"].new_ones(inputs["attention_mask"].shape)}

    monkeypatch.setattr(generation, "_together", careless)
    found = invariance(bundled(), asks, max_new_tokens=12, batch=7)
    assert not found.invariant and "bare" in found.differing
    assert str(found).startswith("not batch-invariant")


def test_the_end_mark_belongs_to_the_tokens(made: list[Generated]) -> None:
    end = bundled().tokenizer.convert_tokens_to_ids("<|im_end|>")
    first = made[0]
    assert first.finish == "stop" and first.token_ids[-1] == end and end not in first.token_ids[:-1]
    assert first.text == bundled().tokenizer.decode(first.token_ids[:-1])
    short = next(answers(bundled(), [some(3)[0]], max_new_tokens=3))
    assert short.finish == "length" and len(short.token_ids) == 3 and short.token_ids == first.token_ids[:3]


def test_the_tensors_hash_is_of_the_question_alone(asks: list[Prompt], made: list[Generated]) -> None:
    alone = list(answers(bundled(), asks, max_new_tokens=1, batch=1))
    assert [one.tensor_sha256 for one in alone] == [one.tensor_sha256 for one in made]
    assert [one.prompt_tokens for one in alone] == [one.prompt_tokens for one in made]
    assert len({one.tensor_sha256 for one in made}) == 7
    # One pixel, or one word of the question, is another input.
    picture = make_scene("gen:0", GROUPS[0]).draw()
    picture.putpixel((0, 0), (0, 0, 0))
    changed = [Prompt("p", COUNT_PROMPT, (picture,)), Prompt("t", COUNT_PROMPT + " ", asks[0].pictures)]
    for one in answers(bundled(), changed, max_new_tokens=1):
        assert one.tensor_sha256 != made[0].tensor_sha256


def test_shapes_and_types_are_part_of_the_hash() -> None:
    import torch

    row = torch.arange(6)
    assert tensor_sha256({"input_ids": row.view(1, 6)}) != tensor_sha256({"input_ids": row.view(2, 3)})
    assert tensor_sha256({"input_ids": row}) != tensor_sha256({"input_ids": row.int()})
    assert tensor_sha256({"pixel_values": row.bfloat16()}) != tensor_sha256({"pixel_values": row.half()})


def test_a_stop_ends_after_a_batch_and_progress_is_told(asks: list[Prompt]) -> None:
    told: list[tuple[int, int]] = []
    made = list(
        answers(
            bundled(),
            asks,
            max_new_tokens=2,
            batch=3,
            on_progress=lambda done, total: told.append((done, total)),
            stopping=lambda: len(told) == 2,
        )
    )
    assert len(made) == 6 and told == [(3, 7), (6, 7)]
    assert list(answers(bundled(), [], max_new_tokens=2)) == []


def test_a_stop_is_heeded_between_two_tokens(asks: list[Prompt], made: list[Generated]) -> None:
    looked: list[int] = []

    def stopping() -> bool:
        looked.append(len(looked))
        return len(looked) > 4  # before the first batch, then after each of its tokens: the fourth look is token 3

    loaded = bundled()
    assert list(answers(loaded, asks, max_new_tokens=12, batch=len(asks), stopping=stopping)) == []
    assert len(looked) == 5, "asked no more, and no more tokens made, after it said yes"
    again = list(answers(loaded, asks, max_new_tokens=12, batch=len(asks), stopping=lambda: False))
    assert [one.token_ids for one in again] == [one.token_ids[:12] for one in made]


def test_what_makes_no_batches_is_refused(asks: list[Prompt]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        next(answers(bundled(), asks, batch=0))


def test_the_models_own_sampling_settings_do_not_count_and_come_back(asks: list[Prompt], made: list[Generated]) -> None:
    model = bundled().model
    own = model.generation_config
    own.repetition_penalty, own.do_sample, own.temperature = 5.0, True, 3.0
    try:
        model.train()
        again = list(answers(bundled(), asks[:1], max_new_tokens=24))
        assert again[0].token_ids == made[0].token_ids
        assert model.generation_config is own and model.training
    finally:
        own.repetition_penalty, own.do_sample, own.temperature = None, False, None
        model.eval()
