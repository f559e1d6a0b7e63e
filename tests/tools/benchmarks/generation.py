"""How much batched answers save against one-by-one `generate`: CPU seconds of the same greedy answers.

    python tests/tools/benchmarks/generation.py [N] [THREADS]

The reference is transformers' own `generate` on one question at a time, inputs ready as ours are made. CPU seconds of
this process are compared; other work changes even those, the reference's more than ours, so take them on a quiet
machine. The answers must be token-equal. Preparing the inputs (the picture's size, the tokens) costs each side the same
and is part of `cpu_s`; `generating_times_faster` leaves it out of both.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any


def main() -> None:
    """Prints one JSON line: CPU seconds an answer alone and in batches, their ratios, and whether the tokens agree."""
    import torch

    from vlmconsole.counting.questions import COUNT_PROMPT
    from vlmconsole.counting.scene import GROUPS, make_scene
    from vlmconsole.training.generation import Prompt, answers, end_ids
    from vlmconsole.training.model import encode, load
    from vlmconsole.training.prompts import Turn

    count = int(sys.argv[1]) if len(sys.argv) > 1 else 96
    torch.set_num_threads(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    loaded = load(Path(str(files("vlmconsole.assets") / "tiny-qwen2.5-vl")))
    asks = [Prompt(str(i), COUNT_PROMPT, (make_scene(f"bench:{i}", GROUPS[i % 6]).draw(),)) for i in range(count)]
    ends = end_ids(loaded)

    def prepared(ask: Prompt) -> dict[str, Any]:
        inputs = encode(loaded, [[Turn(ask.question, None, ask.pictures)]])
        del inputs["labels"]
        return inputs

    def alone() -> list[list[int]]:
        made = []
        for ask in asks:
            inputs = prepared(ask)
            loaded.model.model.rope_deltas = None
            with torch.inference_mode():
                ids = loaded.model.generate(**inputs, max_new_tokens=64, do_sample=False)
            made.append(ids[0, inputs["input_ids"].shape[1] :].tolist())
        return made

    list(answers(loaded, asks[:8]))  # first calls cost once
    started = time.process_time()
    for ask in asks:
        prepared(ask)
    before = (time.process_time() - started) / count
    started = time.process_time()
    single = alone()
    one = (time.process_time() - started) / count
    found = {"n": count, "threads": torch.get_num_threads(), "cpu": platform.processor() or platform.machine()}
    found |= {"cores": os.cpu_count(), "torch": torch.__version__, "load": os.getloadavg()[0]}
    found |= {"preparing_cpu_s": round(before, 4), "alone_cpu_s": round(one, 4), "batches": {}}
    for batch in (8, 16, 32):
        started = time.process_time()
        made = list(answers(loaded, asks, batch=batch))
        each = (time.process_time() - started) / count
        same = sum(a.token_ids == b for a, b in zip(made, single, strict=True))
        ended = sum(a.token_ids[-1] in ends for a in made)
        found["batches"][batch] = {
            "cpu_s": round(each, 4),
            "times_faster": round(one / each, 2),
            "generating_times_faster": round((one - before) / (each - before), 2),
            "token_equal": same,
            "ended": ended,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
