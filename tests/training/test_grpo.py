"""GRPO's arithmetic: advantages, sampling, probabilities, the clipped step, and going on exactly."""

import errno
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from vlmconsole.counting.questions import COUNT_PROMPT
from vlmconsole.counting.scene import label_json, make_scene
from vlmconsole.data.example import Example
from vlmconsole.data.rows import Row
from vlmconsole.training import checkpoint, export, grpo, rollout
from vlmconsole.training.bases import base_folder
from vlmconsole.training.generation import Prompt, prompt_of
from vlmconsole.training.grpo_train import GrpoTraining, Trainer
from vlmconsole.training.model import Loaded, encode, load
from vlmconsole.training.verl.logs import group_advantages

REWARDS = st.lists(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4), min_size=1, max_size=6)
FAST = {"questions": 2, "answers": 4, "max_new_tokens": 20, "rate": 1e-3, "temperature": 2.0, "micro": 1}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tiny() -> Loaded:
    return load(base_folder(""))


def rows(n: int) -> list[Example]:
    import io

    made = []
    for i in range(n):
        scene, buffer = make_scene(f"grpo-test:{i}", red=i % 4, blue=(i + 2) % 4), io.BytesIO()
        scene.draw().save(buffer, "PNG")
        made.append(
            drawn(
                Row(
                    f"r{i}",
                    buffer.getvalue(),
                    COUNT_PROMPT,
                    label_json(scene.label),
                    "vlmconsole/counting",
                    "",
                    "train",
                    i,
                )
            )
        )
    return made


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


@given(REWARDS)
def test_advantages_are_the_groups_own_standard_scores(groups: list[list[float]]) -> None:
    found = grpo.advantages(torch.tensor(groups, dtype=torch.float64))
    for rewards, row in zip(groups, found.tolist(), strict=True):
        spread = statistics.stdev(rewards)
        wanted = [(r - statistics.fmean(rewards)) / (spread + 1e-6) for r in rewards]
        assert row == pytest.approx(wanted, abs=1e-9)
        assert (len(set(rewards)) == 1) == (row == [0.0] * 4)
    # What a log reader computes for verl is the same.
    flat = group_advantages([r for group in groups for r in group], 4)
    assert flat == pytest.approx(found.flatten().tolist(), abs=1e-9)
    assert grpo.zero_share(groups) == sum(len(set(g)) == 1 for g in groups) / len(groups)


def test_the_loss_is_cut_only_where_it_would_gain() -> None:
    old = torch.zeros(4, 1)
    new = torch.log(torch.tensor([[1.5], [1.5], [0.5], [0.5]]))
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    loss, cut = grpo.clipped_loss(new, old, advantage, torch.ones(4, 1), clip=0.2)
    # Gains are held at 1.2 and −0.8; moves to the wrong side are never cut.
    assert float(loss) == pytest.approx(-1.2 + 1.5 - 0.5 + 0.8)
    assert int(cut) == 2
    masked, none = grpo.clipped_loss(new, old, advantage, torch.zeros(4, 1), clip=0.2)
    assert float(masked) == 0 and int(none) == 0


def test_shared_prompts_give_the_probabilities_of_a_plain_forward_pass() -> None:
    loaded = tiny()
    asked = [COUNT_PROMPT, "What shape is red?"]  # of different lengths: one is padded
    asks = [Prompt(text, text, (make_scene(text, red=2, blue=1).draw(),)) for text in asked]
    prompts = rollout.look(loaded, asks)
    draw = torch.Generator().manual_seed(5)
    made = rollout.sample(loaded, prompts, n=3, generator=draw, max_new_tokens=10, temperature=1.3)
    found, entropy = rollout.log_probabilities(loaded, prompts, made, temperature=1.3)

    inputs = encode(loaded, [ask.chat for ask in asks], left=True)
    pixels = inputs["pixel_values"].reshape(2, -1, inputs["pixel_values"].shape[-1]).repeat_interleave(3, 0)
    loaded.model.model.rope_deltas = None
    with torch.no_grad():
        scores = loaded.model(
            input_ids=torch.cat([inputs["input_ids"].repeat_interleave(3, 0), made.ids], 1),
            attention_mask=torch.cat([inputs["attention_mask"].repeat_interleave(3, 0), made.mask], 1),
            mm_token_type_ids=torch.cat(
                [inputs["mm_token_type_ids"].repeat_interleave(3, 0), torch.zeros_like(made.ids).int()], 1
            ),
            pixel_values=pixels.flatten(0, 1),
            image_grid_thw=inputs["image_grid_thw"].repeat_interleave(3, 0),
            use_cache=False,
        ).logits[:, -made.ids.shape[1] - 1 : -1]
    scores[..., rollout.barred_ids(loaded)] = -math.inf
    plain = torch.log_softmax(scores / 1.3, -1).gather(-1, made.ids[..., None])[..., 0]
    there = made.mask.bool()
    assert torch.allclose(found[there], plain[there], atol=1e-4)
    assert bool((entropy[there] >= 0).all())


def test_draws_repeat_by_seed_and_never_stand_for_a_picture() -> None:
    loaded = tiny()
    prompts = rollout.look(loaded, [Prompt("q", COUNT_PROMPT, (make_scene(3).draw(),))])

    def drawn(seed: int) -> rollout.SampledAnswers:
        draw = torch.Generator().manual_seed(seed)
        # So hot that every token is about as likely: 1536 draws would hit a barred one.
        return rollout.sample(loaded, prompts, n=96, generator=draw, max_new_tokens=16, temperature=1e4)

    once, again, other = drawn(1), drawn(1), drawn(2)
    assert torch.equal(once.ids, again.ids) and not torch.equal(once.ids[:, :8], other.ids[:, :8])
    seen = {token for i in range(96) for token in once.tokens(i)}
    assert len(seen) > 300 and not seen & set(rollout.barred_ids(loaded))
    ended = [once.tokens(i) for i in range(96) if not bool(once.mask[i].all())]
    assert ended and all(len(tokens) < 16 for tokens in ended)


def test_a_step_moves_the_language_and_nothing_of_the_eyes() -> None:
    loaded = tiny()
    before, eyes = weights(loaded.model), export.eyes_sha256(loaded.model)
    trainer = Trainer(loaded, rows(4), GrpoTraining(**{**FAST, "passes": 2}))
    taken = trainer.take()
    assert [len(group) for group in taken.groups()] == [4, 4]
    assert {one.example.id for one in taken.rollouts} == {"r0", "r1"}
    assert taken.passes[0].clip_fraction == 0  # the first pass is the policy that sampled
    assert taken.passes[0].grad_norm > 0 and taken.passes[1].loss != taken.passes[0].loss
    told = export.summary(export.changes(before, weights(loaded.model)))
    assert told["visual"]["numbers_changed"] == 0 and told["language"]["tensors_changed"] > 0
    assert export.eyes_sha256(loaded.model) == eyes
    with torch.no_grad():
        next(p for name, p in loaded.model.named_parameters() if "visual." in name).view(-1)[0] += 1e-3
    assert export.eyes_sha256(loaded.model) != eyes


def test_micro_batches_add_up_to_the_same_gradient() -> None:
    moved = []
    for micro in (1, 3):
        loaded = tiny()
        prompts = rollout.look(loaded, [prompt_of(row) for row in rows(3)])
        made = rollout.sample(
            loaded, prompts, n=2, generator=torch.Generator().manual_seed(0), max_new_tokens=8, temperature=2.0
        )
        taught = grpo.freeze_eyes(loaded.model)
        optimizer = torch.optim.SGD(taught, lr=0.1)
        advantage = torch.tensor([1.0, -1.0, 0.5, -0.5, 2.0, -2.0])
        step = grpo.update(
            loaded, optimizer, prompts, made, advantage, clip=0.2, max_norm=1e9, temperature=2.0, micro=micro
        )[0]
        moved.append((step, weights(loaded.model)))
    (a, first), (b, second) = moved
    assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-3) and a.grad_norm > 0
    assert all(torch.allclose(first[name], second[name], atol=1e-5) for name in first)


def test_a_gradient_that_is_no_number_leaves_the_weights_alone() -> None:
    loaded = tiny()
    prompts = rollout.look(loaded, [prompt_of(row) for row in rows(1)])
    made = rollout.sample(loaded, prompts, n=2, generator=torch.Generator().manual_seed(0), max_new_tokens=4)
    optimizer = torch.optim.AdamW(grpo.freeze_eyes(loaded.model), lr=1e-3, foreach=False)
    before = weights(loaded.model)
    with pytest.raises(FloatingPointError, match="nan"):
        grpo.update(
            loaded, optimizer, prompts, made, torch.tensor([1.0, math.nan]), clip=0.2, max_norm=1.0, temperature=1.0
        )
    assert equal(before, weights(loaded.model))


def test_taken_up_between_steps_it_ends_in_the_same_weights(tmp_path: Path) -> None:
    data = rows(6)

    def trainer(seed: int = 3) -> Trainer:
        return Trainer(tiny(), data, GrpoTraining(**{**FAST, "seed": seed}))

    whole = trainer()
    steps = [whole.take() for _ in range(3)]
    assert any(step.passes[0].grad_norm > 0 for step in steps)  # else nothing below would prove anything
    texts = [[one.text for one in step.rollouts] for step in steps]
    parts = trainer()
    parts.take()
    checkpoint.save(tmp_path / "checkpoint.pt", parts.state())
    parts.take()  # lost with the kill
    torch.rand(7)  # what else drew from torch's generator meanwhile must not matter
    again = trainer()
    again.restore(checkpoint.read(tmp_path / "checkpoint.pt"))
    assert [[one.text for one in again.take().rollouts] for _ in range(2)] == texts[1:]
    assert equal(weights(whole.loaded.model), weights(again.loaded.model))
    other = trainer(seed=4)
    for _ in range(3):
        other.take()
    assert not equal(weights(whole.loaded.model), weights(other.loaded.model))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(0, 7))
def test_a_changed_bit_or_a_cut_checkpoint_is_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("kept") / "checkpoint.pt"
    state = {"step": 3, "model": {"w": torch.arange(300.0)}}
    checkpoint.save(path, state, step=3)
    assert torch.equal(checkpoint.read(path)["model"]["w"], state["model"]["w"])
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with refused("checkpoint-damaged", error=checkpoint.CheckpointError):
        checkpoint.read(path)
    path.write_bytes(data[: at % len(data)])
    with refused("checkpoint-damaged", error=checkpoint.CheckpointError):
        checkpoint.read(path)
    path.unlink()
    with refused("checkpoint-missing", error=checkpoint.CheckpointError):
        checkpoint.read(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, {"step": 1, "w": torch.ones(10)})
    path.with_suffix(".part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as full:
        checkpoint.save(path, {"step": 2, "w": torch.zeros(1_000_000)})
    assert full.value.errno == errno.ENOSPC
    assert checkpoint.read(path)["step"] == 1
