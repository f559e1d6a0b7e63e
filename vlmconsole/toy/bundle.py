"""From a recipe to a model folder: begin with fresh weights, end with measured skills and a model card."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from vlmconsole.toy import tiny
from vlmconsole.toy.lessons import LessonRecipe
from vlmconsole.training.model import Loaded, load, parameters

SIZE_LIMIT = 6_000_000  # bytes, the whole folder


def begin(folder: Path, recipe: LessonRecipe) -> Loaded:
    """Return a model folder with fresh weights drawn from the recipe's seed, loaded."""
    import torch

    torch.set_num_threads(recipe.threads)
    tiny.write_frame(folder)
    tiny.save_weights(tiny.new_model(folder, recipe.seed), folder)
    return load(folder)


def finish(loaded: Loaded, recipe: LessonRecipe, skills: dict[str, Any]) -> int:
    """Write the learnt weights and the model card; returns the folder's size in bytes."""
    tiny.save_weights(loaded.model, loaded.folder)
    (loaded.folder / "README.md").write_text(card(recipe, skills, parameters(loaded.model)), "utf-8")
    return sum(path.stat().st_size for path in loaded.folder.iterdir())


def _percent(rate: dict[str, Any]) -> str:
    return f"{100 * rate['rate']:.1f} % | {rate['n']}"


def card(recipe: LessonRecipe, skills: dict[str, Any], count: int) -> str:
    """Return the model card, in Markdown, with what was measured and on how many."""
    names, counts, groups = skills["naming"], skills["counting"], skills["groups"]
    rows = [f"| naming an object from the frozen vision features: {k} | {_percent(v)} |" for k, v in names.items()]
    rows += [
        f"| counting prompt, regular 0–7: valid JSON | {_percent(counts['valid'])} |",
        f"| counting prompt, regular 0–7: both counts right | {_percent(counts['all_correct'])} |",
        f"| counting prompt, regular 0–7: single counts right | {_percent(counts['partial'])} |",
    ]
    for group, rates in groups.items():
        span = "8–12" if group == "high" else "0–7"
        rows.append(f"| counting prompt, {group} {span}: both counts right | {_percent(rates['all_correct'])} |")
    titles = {
        "colour": "What colour is the triangle?",
        "shape": "What shape is red?",
        "larger": "Which is larger, … or …?",
        "extreme": "Which is largest? (of all things in the picture)",
        "size": "How big is the red circle? (small, medium or large)",
        "yes_no": "Is there a green triangle?",
        "how_many": "How many red circles are there? (pictures with one to four things)",
        "describe": "Describe the picture. (the whole list right)",
        "outside": "questions from outside its world: says that it knows only shapes",
    }
    rows += [f"| {titles[kind]} | {_percent(rate)} |" for kind, rate in skills["questions"].items()]
    settings = "\n".join(f"- `{key}`: {value}" for key, value in asdict(recipe).items())
    return f"""\
# tiny-qwen2.5-vl

A real Qwen2.5-VL architecture at toy size ({count:,} parameters, float32), so that the whole console works on a
laptop without a download. **It knows coloured shapes and nothing else**: circles, squares and triangles, filled
or outlined, in red, blue, green, yellow and purple, on plain grounds. It cannot read, knows no photographs
and no facts, and was taught to count up to {recipe.most_counted} only; counting further is left to be taught, as the
lab's own training does. Do not draw conclusions from it about any other model.

It was trained from scratch by `vlmconsole run model-tiny`, on scenes that the console draws itself, and loads
unchanged in transformers and in mlx-vlm. Pictures of 448 × 448 are seen at 224 × 224: 64 visual tokens.
Context {tiny.CONTEXT} tokens, of which training ever saw about 250.

## Measured skills

On fresh scenes (seed {skills["seed"]}), greedy answers, word for word. Naming is read from the frozen vision
features by a linear probe fitted on other scenes; small means a circumscribed circle of at most 32 pixels
across in the 448-pixel picture.

| skill | right | n |
|---|---|---|
{chr(10).join(rows)}

## Recipe

{settings}

Eyes first (the vision tower with a throw-away head that names each visual token and says its size), then counting, then
short questions in stages; from the second on the eyes are left alone, but for two phases in which they look by
themselves once more. One seed; another seed or number of threads gives another model.
"""
