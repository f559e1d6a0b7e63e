"""GRPO by a Python function on a task that is not counting: the colour of the larger of two shapes.

    VLMCONSOLE_HOME=DIR python tests/tools/benchmarks/python_reward.py [--seeds 0 1 2] [--steps 30]

Draws 200 images, imports them, trains the bundled model once a seed through the command line, and answers the test
split (40 images, greedy) with the base and with each trained model.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from pathlib import Path

from PIL import Image, ImageDraw

from vlmconsole.data.example import read_examples
from vlmconsole.scoring.intervals import paired_interval
from vlmconsole.training import bases
from vlmconsole.training.grpo_train import greedy_answers
from vlmconsole.training.model import load

COLOURS = {"red": (220, 40, 40), "blue": (40, 70, 220), "green": (40, 160, 60)}
REWARD = '''
def score(prediction, truth, brevity=0.5):
    """Half for the right word anywhere, half more when it is the only word."""
    words = prediction.lower().strip(". ").split()
    right = truth in words
    return right * (1 - brevity) + (right and len(words) == 1) * brevity
'''


def draw(folder: Path, n: int = 200, seed: int = 1) -> Path:
    """Write `n` images of a large and a small shape, and rows.jsonl; return that."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, lines = random.Random(seed), []
    for number in range(n):
        image = Image.new("RGB", (448, 448), "white")
        pen, names = ImageDraw.Draw(image), list(COLOURS)
        rng.shuffle(names)
        spots = [(rng.randint(90, 140), rng.randint(90, 358)), (rng.randint(308, 358), rng.randint(90, 358))]
        sizes = [rng.randint(110, 150), rng.randint(45, 70)]
        rng.shuffle(spots)
        for name, size, (x, y) in zip(names, sizes, spots, strict=False):
            colour = tuple(max(0, min(255, value + rng.randint(-15, 15))) for value in COLOURS[name])
            form = pen.ellipse if rng.random() < 0.5 else pen.rectangle
            form((x - size // 2, y - size // 2, x + size // 2, y + size // 2), fill=colour)
        image.save(folder / f"{number:03}.png")
        about = {"id": f"c{number:03}", "image": f"{number:03}.png", "answer": names[0]}
        lines.append(json.dumps({**about, "question": "What colour is the largest shape?"}) + "\n")
    (folder / "rows.jsonl").write_text("".join(lines))
    return folder / "rows.jsonl"


def command(*words: str) -> None:
    """Run `vlmconsole` with these words."""
    subprocess.run([sys.executable, "-m", "vlmconsole", *words], check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    """Draw, train, answer, and print a line a seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30)
    chosen = parser.parse_args()
    home = Path(os.environ["VLMCONSOLE_HOME"])
    reward = home / "reward.py"
    rows = draw(home / "largest-images")
    reward.write_text(REWARD)
    command("data", "import", str(rows), "--name", "largest", "--split", "train=120,dev=40,test=40", "--seed", "1")
    test = list(read_examples(home / "datasets" / "largest" / "test.parquet"))

    def right(folder: Path) -> list[float]:
        answers = greedy_answers(load(folder, dtype="float32", device="cpu"), test, 8)
        return [float(one.text.strip().lower() == example.truth) for one, example in zip(answers, test, strict=True)]

    base = right(bases.answering_base(""))
    print(f"base: {sum(base):.0f} of {len(base)}")
    settings = {"data": "largest", "validation_split": "dev", "steps": chosen.steps, "questions": 8, "answers": 8}
    settings |= {"temperature": 1.2, "max_new_tokens": 8, "lr": 1e-4, "reward": f"{reward}:score"}
    for seed in chosen.seeds:
        sets = [word for key, value in {**settings, "seed": seed}.items() for word in ("--set", f"{key}={value}")]
        command("run", "grpo-3-tiny", "--json", *sets)
        run = max((home / "runs").glob("*grpo*"), key=lambda folder: folder.stat().st_mtime)
        means = [json.loads(line)["reward_mean"] for line in (run / "training.jsonl").read_text().splitlines()]
        after = right(run / "model")
        gain = paired_interval(base, after, seed=0)
        print(
            f"seed {seed}: reward {sum(means[:3]) / 3:.3f} → {sum(means[-3:]) / 3:.3f}, test {sum(after):.0f} of "
            f"{len(after)}, {gain.difference:+.3f} [{gain.low:.3f}, {gain.high:.3f}]"
        )


if __name__ == "__main__":
    main()
