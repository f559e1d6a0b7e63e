"""A small lab to audit: real pictures and answers, a supervised training and an evaluation in the files they leave.

Nothing is trained here: tensors are a few numbers, and answers are chosen. What is written is what the jobs write
(a slow test audits runs of the real jobs), so that a fault of the lab can be planted in one place at a time.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
import tempfile
import time
from collections.abc import Callable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from judged import sample
from tokenizers import Tokenizer

from vlmconsole.audit.run import Audit
from vlmconsole.data.dataset import make_dataset, manifest_digest, read_manifest, read_objects
from vlmconsole.data.recipe import Recipe
from vlmconsole.data.rows import Row, read_rows, write_rows
from vlmconsole.gates.binding import bind, freeze_for_lab, freeze_for_run, record
from vlmconsole.gates.plan import parse_plan
from vlmconsole.gates.verdict import judge
from vlmconsole.ledger.chain import Ledger
from vlmconsole.ledger.freezing import freeze
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.training.adapters.provenance import Provenance, weights_sha256, write_provenance
from vlmconsole.training.selection import SelectionRule

RECIPE: dict[str, Any] = {
    "name": "mini",
    "title": "a dataset to audit",
    "seed": 11,
    "splits": [
        {"name": "train", "role": "train", "parts": [{"group": "regular", "low": 1, "high": 2, "every": 1}]},
        {"name": "dev", "role": "dev", "parts": [{"group": "regular", "low": 1, "high": 2, "count": 3}]},
        {"name": "test-regular", "role": "test", "parts": [{"group": "regular", "low": 1, "high": 3, "count": 4}]},
        {"name": "test-naming", "role": "test", "parts": [{"group": "naming", "count": 2}]},
    ],
}
PLAN: dict[str, Any] = {
    "name": "mini-plan",
    "title": "a plan to audit",
    "whose": "the tests' own",
    "before": "the base",
    "trained": [1, 2],
    "pictures": "synthetic shapes",
    "resamples": 99,
    "data": {"recipes": ["mini"]},
    "generations": {"evaluation": 12},
    "seeds": {"training": [1]},
    "groups": [
        {"name": "regular", "split": "test-regular", "n": 4, "scorer": "counting"},
        {"name": "naming", "split": "test-naming", "n": 2, "scorer": "naming"},
    ],
    "gates": [
        {"group": "regular", "metric": "all_correct", "at_least": 0.5},
        {"group": "naming", "metric": "partial_drop", "at_most": 50.0},
    ],
}
WRONG = '{"red_circles": 9, "blue_squares": 9}'
END = "<|im_end|>"
LAYER = "base_model.model.model.language_model.layers.0.self_attn.q_proj.lora_{}.weight"
Tensors = dict[str, np.ndarray[Any, Any]]


@cache
def _made(seed: int) -> tuple[tempfile.TemporaryDirectory[str], Path]:
    folder = tempfile.TemporaryDirectory(prefix="vlmconsole-mini-")
    return folder, make_dataset(Recipe.model_validate({**RECIPE, "seed": seed}), Path(folder.name) / "datasets")


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(resources.files("vlmconsole.assets") / "tiny-qwen2.5-vl" / "tokenizer.json"))


def write_tensors(folder: Path, tensors: Tensors) -> None:
    """A safetensors file of float32 tensors."""
    folder.mkdir(exist_ok=True)
    header, body = {}, b""
    for name, values in tensors.items():
        data = values.astype("<f4").tobytes()
        offsets = [len(body), len(body) + len(data)]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": offsets}
        body += data
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))


class SmallLab:
    """One lab, made stage by stage: `data` (made on opening), `train`, `evaluate`, `finish`."""

    def __init__(self, home: Path, seed: int = 11) -> None:
        self.places = Places(home=home).ensure()
        self.ledger = Ledger(self.places.ledger)
        shutil.copytree(_made(seed)[1].parent, self.places.datasets, dirs_exist_ok=True)
        self.dataset = self.places.datasets / "mini"
        self.base = home / "base"
        self.base.mkdir()
        (self.base / "config.json").write_text("{}")
        shutil.copyfile(resources.files("vlmconsole.assets") / "tiny-qwen2.5-vl" / "tokenizer.json",  # type: ignore[arg-type]
                        self.base / "tokenizer.json")  # fmt: skip
        write_tensors(self.base, {"model.visual.blocks.0.weight": np.ones(4), "model.layers.0.weight": np.ones(4)})
        self.answers = {"before": 1, "after": 3}  # how many of each group are right
        self.right_in_dev = {1: 2, 2: 3}
        self.run: RunFolder
        self.trained: RunFolder

    def rows(self, split: str) -> list[Row]:
        return list(read_rows(self.dataset / f"{split}.parquet"))

    def remake(
        self,
        split: str,
        change: Callable[[list[Row]], list[Row]] = lambda rows: rows,
        facts: Callable[[list[dict[str, Any]]], None] = lambda facts: None,
    ) -> None:
        """Make a split otherwise, with a manifest that says so: what a faulty maker of data would leave."""
        manifest = read_manifest(self.dataset)
        listed = read_objects(self.dataset, split)
        replays = {entry[0]: entry[3] for entry in manifest["splits"][split]["pictures"]}
        rows = change(self.rows(split))
        facts(listed)
        write_rows(self.dataset / f"{split}.parquet", rows)
        (self.dataset / f"{split}.objects.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in listed))
        manifest["splits"][split]["pictures"] = [
            [row.uid, row.sha256, row.pixel_sha256, replays.get(row.uid)] for row in rows
        ]
        for name in (f"{split}.parquet", f"{split}.objects.jsonl"):
            data = (self.dataset / name).read_bytes()
            manifest["files"][name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
        (self.dataset / "manifest.json").write_text(json.dumps(manifest))

    def _run(self, kind: str, spec: dict[str, Any]) -> RunFolder:
        run = RunFolder.create(self.places.runs, kind=kind, preset=kind, spec=spec, title=kind, home=self.places.home)
        run.set_state("done")
        return run

    # ── a training ─────────────────────────────────────────────────────────────────────────────────────────────

    def freeze(self) -> None:
        """The plan, bound to the test pictures as they are now."""
        freeze_for_lab(bind(parse_plan(PLAN, "test"), [self.dataset]), self.places.home, self.ledger)

    def train(self, frozen: bool = True) -> RunFolder:
        """What a supervised training of two epochs leaves; epoch 2 is the better one on development."""
        if frozen:
            self.freeze()
        run = self.trained = self._run("sft", {"base": str(self.base), "data": "mini"})
        dev, rows, digest = self.rows("dev"), self.rows("train"), manifest_digest(read_manifest(self.dataset))
        rule = SelectionRule("mini", digest, "dev", tuple(row.uid for row in dev), (1, 2), 64).to_json()
        freeze(run, "selection.json", rule, self.ledger)
        run.write_json("mask.json", {"dataset": "mini", "each": [self._mask(row) for row in rows]})
        supervised = sum(self._taught(row) for row in rows)
        for step in (1, 2):
            run.events.metric("loss", 1 / step, step=step)
            line = {"step": step, "epoch": step, "loss": 1 / step, "grad_norm": 0.5, "supervised": supervised}
            run.append_jsonl("training.jsonl", line)
        first = {LAYER.format("A"): np.arange(8.0).reshape(2, 4), LAYER.format("B"): np.zeros((4, 2))}
        for name, by in (("start", 0.0), ("epoch-1", 0.5), ("epoch-2", 1.0)):
            self.adapter(name, {key: values + by for key, values in first.items()})
        for epoch, right in self.right_in_dev.items():
            self.develop(epoch, right)
        self.select(2)
        return run

    def _taught(self, row: Row) -> int:
        return len(_tokenizer().encode(row.truth + END, add_special_tokens=False).ids)

    def _mask(self, row: Row) -> dict[str, Any]:
        seen = "<|vision_start|>" + "<|image_pad|>" * 64 + "<|vision_end|>"
        asked = f"<|im_start|>user\n{seen}{row.question}<|im_end|>\n<|im_start|>assistant\n"
        start = len(_tokenizer().encode(asked, add_special_tokens=False).ids)
        stop = start + self._taught(row)
        return {
            "uid": row.uid, "tokens": stop + 1, "visual_tokens": 64, "supervised_from": start, "supervised_to": stop,
            "supervised": row.truth + END,
        }  # fmt: skip

    def adapter(self, name: str, tensors: Tensors) -> None:
        folder = self.trained.file(name)
        write_tensors(folder, tensors)
        epoch = int(name[-1]) if name.startswith("epoch") else 0
        digest = manifest_digest(read_manifest(self.dataset))
        origin = Provenance("sft", "base", weights_sha256(self.base), "float32", 2, 4, {"mini": digest},
                            self.trained.name, step=epoch, epoch=epoch, seed=1)  # fmt: skip
        write_provenance(folder, origin)

    def develop(self, epoch: int, right: int) -> None:
        lines = [sample("dev", "counting", row, row.truth if at < right else WRONG, time.time())
                 for at, row in enumerate(self.rows("dev"))]  # fmt: skip
        write_lines(self.trained, f"dev-epoch{epoch}.jsonl", lines)

    def select(self, epoch: int) -> None:
        """Make the epoch's adapter the final one, and everything say so."""
        run = self.trained
        shutil.rmtree(run.file("adapter"), ignore_errors=True)
        shutil.copytree(run.file(f"epoch-{epoch}"), run.file("adapter"))
        self.account()
        sha = weights_sha256(run.file("adapter"))
        run.write_json("summary.json", {"epoch": epoch, "adapter_sha256": sha})

    def account(self, **more: Any) -> None:
        """`weights.json` by NumPy from start/ and adapter/."""
        from vlmconsole.audit.weights import tensors

        old, new = (tensors(self.trained.file(name)) for name in ("start", "adapter"))
        each = [
            {"name": name, "change_l2": float(np.linalg.norm(values - old[name][1])) if name in old else 0.0}
            for name, (_, values) in new.items()
        ]
        frozen = {"visual": "a" * 64, "language": "b" * 64}
        value = {"adapter_sha256": weights_sha256(self.trained.file("adapter")), "tensors": each}
        self.trained.write_json("weights.json", {**value, "frozen_before": frozen, "frozen_after": frozen, **more})

    # ── an evaluation ──────────────────────────────────────────────────────────────────────────────────────────

    def evaluate(self) -> RunFolder:
        """What an evaluation of the base against the adapter leaves."""
        spec = {"base": str(self.base), "after_adapter": str(self.trained.file("adapter"))}
        run = self.run = self._run("evaluate", spec)
        freeze_for_run(bind(parse_plan(PLAN, "test"), [self.dataset]), run, self.places.home, self.ledger)
        for side, right in self.answers.items():
            lines = []
            for group in PLAN["groups"]:
                for at, row in enumerate(self.rows(group["split"])):
                    wrong = WRONG if group["scorer"] == "counting" else "nothing"
                    line = sample(
                        group["name"], group["scorer"], row, row.truth if at < right else wrong, time.time() + 1
                    )
                    lines.append({**line, "dataset": "mini", "split": group["split"]})
            write_lines(run, f"{side}.jsonl", lines)
        sha = weights_sha256(self.trained.file("adapter"))
        shared = {"engine": "in-process", "model": "base", "precision": "float32"}
        after = {**shared, "adapter": f"adapter sha256:{sha}"}
        run.write_json("conditions.json", {"before": shared, "after": after})
        run.write_json("summary.json", {"before": {"adapter_sha256": None}, "after": {"adapter_sha256": sha}})
        return run

    def finish(self) -> None:
        """Judge, record, seal: from here on every change is tampering."""
        self.ledger.seal(self.trained)
        record(judge(self.run, self.ledger), self.run, self.ledger)
        self.ledger.seal(self.run)

    def whole(self) -> SmallLab:
        self.train()
        self.evaluate()
        self.finish()
        return self


Change = Callable[[SmallLab], None]


def wrong(result: Audit) -> dict[str, str]:
    """What an audit found wrong: the sentence of each finding, by its name."""
    return {one.name: one.text for one in result.findings if one.state == "wrong"}


def lines_of(run: RunFolder, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.file(name).read_text().splitlines()]


def write_lines(run: RunFolder, name: str, lines: list[dict[str, Any]]) -> None:
    run.file(name).write_text("".join(json.dumps(line) + "\n" for line in lines))
