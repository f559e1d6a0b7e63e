"""Audit of a supervised training: rule of selection, mask, gradients, weights, and the adapter that came of it.

Everything is recomputed from files: rewards from the answers, means from the rewards, the choice from the means.
"""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction
from pathlib import Path
from typing import Any

from vlmconsole.audit.images import Seen, Shelves, digest_of
from vlmconsole.audit.score import scored_again
from vlmconsole.audit.weights import AuditWeightsError, audit_change, tensors, weights_hash
from vlmconsole.data.findings import Finding, finding
from vlmconsole.errors import LabError
from vlmconsole.gates.trained import earlier_attempts, first_step
from vlmconsole.ledger.chain import Chain, sha256_file
from vlmconsole.ledger.freezing import find_frozen
from vlmconsole.models.qwen2_5_vl import END, IMAGE
from vlmconsole.runs.folder import RunFolder
from vlmconsole.text.counts import many

AT_ONCE = 512
"""Chats rendered in one call, whose time is limited."""


def audit_training(run: RunFolder, chain: Chain, shelves: Shelves, base: Path | None) -> list[Finding]:
    """Return every check of one training run. `base` is the model folder that it started from, None when it is not
    here.
    """
    summary = _object(run, "summary.json")
    provenance = _object(run, "adapter/provenance.json")
    named = provenance.get("data")
    data: dict[str, Any] = named if isinstance(named, dict) else {}
    findings = [
        *_selection(run, chain, shelves, summary),
        _gradients(run),
        _mask(run, shelves, base),
        *audit_change(run.path, _object(run, "weights.json")),
        _identity(run, summary, provenance),
        _base(provenance, base),
    ]
    wrong = []
    for name, digest in sorted(data.items()):
        manifest = shelves.manifests.get(shelves.called(name, digest))
        if manifest is not None and digest_of(manifest) != digest:
            wrong.append(f"{name} is {digest_of(manifest)[:12]}… now, the adapter was made from {str(digest)[:12]}…")
    if not data:
        wrong.append("the adapter does not say which data it was made from")
    return [*findings, finding("training data", f"made from {', '.join(sorted(data))}, unchanged since", wrong)]


def _object(run: RunFolder, name: str) -> dict[str, Any]:
    value = run.read_json(name)
    return value if isinstance(value, dict) else {}


def _spec(run: RunFolder) -> dict[str, Any]:
    spec = run.job().get("spec")
    return spec if isinstance(spec, dict) else {}


def _digest(run: RunFolder, file: dict[str, Any]) -> Any:
    """The digest of the dataset that one of a training's files is about, by itself or by the adapter's account."""
    data = _object(run, "adapter/provenance.json").get("data")
    stored = data.get(str(file.get("dataset"))) if isinstance(data, dict) else None
    return file.get("dataset_sha256") or stored


def _selection(run: RunFolder, chain: Chain, shelves: Shelves, summary: dict[str, Any]) -> list[Finding]:
    """The frozen rule, and the choice made again from the development answers alone."""
    rule = _object(run, "selection.json")
    name = "selection rule frozen"
    if not rule:
        return [Finding(name, "not verifiable", "selection.json is missing or cannot be read")]
    entry = find_frozen(chain, run.name, "selection.json")
    wrong = []
    if entry is None:
        wrong.append("selection.json was never frozen")
    else:
        if entry["sha256"] != sha256_file(run.file("selection.json")):
            wrong.append("selection.json was changed after it was frozen")
        # A training that went on after a kill took its first step in an earlier attempt, and froze its rule there.
        attempts = [
            frozen_rule
            for attempt in earlier_attempts(run)
            if (frozen_rule := find_frozen(chain, attempt.name, "selection.json"))
        ]
        if any(attempt["sha256"] != entry["sha256"] for attempt in attempts):
            wrong.append("an earlier attempt froze another rule than the one it was chosen by")
        first, at = first_step(run), min(attempt["t"] for attempt in (entry, *attempts))
        if first is not None and at > first:
            wrong.append(f"it was frozen {at - first:.0f} s after the first step")
    frozen = finding(name, f"before the first step: {rule.get('rule', '')}", wrong)
    return [frozen, _choice(run, rule, shelves, summary)]


def _choice(run: RunFolder, rule: dict[str, Any], shelves: Shelves, summary: dict[str, Any]) -> Finding:
    examples = shelves.split(str(rule.get("dataset")), "dev", _digest(run, rule))
    rows = {row.uid: row for example in examples for row in example.questions()}
    wrong: list[str] = []
    sums: dict[int, Fraction] = {}
    uids = [str(uid) for uid in rule.get("uids", [])]
    if not rows:
        wrong.append(f"the development split of {rule.get('dataset')} is not in this lab")
    elif set(uids) != set(rows):
        wrong.append("the rule does not name the development images of its dataset")
    epochs = [int(epoch) for epoch in rule.get("epochs", [])]
    for epoch in epochs:
        lines = list(run.read_jsonl(f"dev-epoch{epoch}.jsonl"))
        if sorted(str(line.get("id")) for line in lines) != sorted(uids):
            wrong.append(f"dev-epoch{epoch}.jsonl holds other images than the frozen rule names")
            continue
        scorer = str(_spec(run).get("scorer") or "")
        sums[epoch] = sum((_reward(line, rows, wrong, epoch, scorer) for line in lines), Fraction(0))
    if not sums:
        return finding("development selection", "", wrong or ["there is no development sample"])
    best = min(epoch for epoch in sums if sums[epoch] == max(sums.values()))
    means = ", ".join(f"epoch {epoch} {float(total / max(1, len(uids))):.4f}" for epoch, total in sorted(sums.items()))
    chosen = {summary.get("epoch"), _object(run, "adapter/provenance.json").get("epoch")}
    if chosen != {best}:
        picked = " and ".join(sorted(str(number) for number in chosen))
        wrong.append(f"development chooses epoch {best} ({means}), the run took {picked}: not by its frozen rule")
    return finding("development selection", f"epoch {best} again ({means})", wrong)


def _reward(line: dict[str, Any], rows: dict[str, Seen], wrong: list[str], epoch: int, scorer: str) -> Fraction:
    """The reward of one development answer by the dataset's own truth; a difference from the file's goes to `wrong`.

    `scorer`: the settings' ("": the example's own). What cannot be scored again here counts as it is stored.
    """
    row = rows.get(str(line.get("id")))
    if row is None:
        return Fraction(0)
    if line.get("picture_sha256") != row.sha256:
        wrong.append(f"dev-epoch{epoch}: {row.uid} was another image")
    own = not scorer or scorer == row.example.scorer
    options = row.example.options if own else None
    mark = scored_again(scorer or row.example.scorer, line.get("answer"), row.truth, options)
    if mark is None:
        return Fraction(float(line.get("reward") or 0.0))
    if abs(float(mark.reward) - float(line.get("reward", -1))) > 1e-6:
        wrong.append(
            f"dev-epoch{epoch}: {row.uid} has reward {line.get('reward')}, its answer gives {float(mark.reward):g}"
        )
    return mark.reward


def _gradients(run: RunFolder) -> Finding:
    """Every step there, in order, with a finite loss and a gradient that is not zero."""
    lines = list(run.read_jsonl("training.jsonl"))
    wrong = []
    for number, line in enumerate(lines, start=1):
        loss, norm = line.get("loss"), line.get("grad_norm")
        if line.get("step") != number:
            wrong.append(f"line {number} is step {line.get('step')}")
            break
        if not (_finite(loss) and _finite(norm)):
            wrong.append(f"step {number}: loss {loss}, gradient norm {norm}")
        elif not float(norm or 0.0) > 0:
            wrong.append(f"step {number}: the gradient is zero")
    if not lines:
        return Finding("gradients", "not verifiable", "training.jsonl is missing or empty")
    return finding("gradients", f"{many(len(lines), 'step')} in order, each with a finite loss and a gradient", wrong)


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def _mask(run: RunFolder, shelves: Shelves, base: Path | None) -> Finding:
    """What each picture taught, against its truth, tokenized here, and against the tokens that the steps counted."""
    name = "supervision mask"
    mask = _object(run, "mask.json")
    each = {str(entry.get("uid")): entry for entry in mask.get("each", []) if isinstance(entry, dict)}
    if not each:
        return Finding(name, "not verifiable", "mask.json is missing or empty")
    rows = {row.uid: row for row in shelves.split(str(mask.get("dataset")), "train", _digest(run, mask))}
    if not rows:
        return Finding(name, "not verifiable", f"the training split of {mask.get('dataset')} is not in this lab")
    wrong = [f"{uid} is in no training split" for uid in sorted(each.keys() - rows.keys())]
    wrong += [f"{uid} has no mask" for uid in sorted(rows.keys() - each.keys())]
    tokens, shared = _tokenizer(base), sorted(each.keys() & rows.keys())
    texts, how = _written(run, base, [rows[uid] for uid in shared])
    if tokens is None or texts is None:
        texts, how = [None] * len(shared), how if tokens is not None else "by their text; no tokenizer here"
    for uid, text in zip(shared, texts, strict=True):
        wrong += [f"{uid}: {fault}" for fault in _masked(each[uid], rows[uid], tokens, text)]
    wrong += _steps(run, each)
    return finding(name, f"{len(each)} images teach their answer and its end mark alone ({how})", wrong)


def _written(run: RunFolder, base: Path | None, rows: list[Seen]) -> tuple[list[Any] | None, str]:
    """(each row's prompt, answer and rest as the base's chat template writes them, how the masks are looked at).

    None where the template is not here, or is another one than the training had. Runs that recorded no prompt had turns
    alone.
    """
    from vlmconsole.models.door import bare_door, can_render, door
    from vlmconsole.training.prompts import spell, turns_of

    recorded = _object(run, "conditions.json").get("prompt_sha256")
    if base is None or not can_render():
        return None, "by their text; no chat template here"
    try:
        template = bare_door() if recorded is None else door(base)
        if recorded is not None and template.prompt_sha256 != recorded:
            return None, "by their text; the base's chat template is another one now"
        # The images themselves are not needed: each stands as one mark.
        chats = [turns_of(row.example, [None] * len(row.hashes), answered=True) for row in rows]
        systems = [row.example.system for row in rows]
        parts = [
            spell(chats[at : at + AT_ONCE], template, systems[at : at + AT_ONCE])
            for at in range(0, len(chats), AT_ONCE)
        ]
        return [pieces for part in parts for pieces in part], "tokenized anew"
    except LabError as error:
        return None, f"by their text; {error.message}"


def _masked(line: dict[str, Any], row: Seen, tokens: Any, pieces: Any) -> list[str]:
    answers = [turn.text for turn in row.example.turns if turn.role == "assistant"]
    if line.get("supervised") != "".join(answer + END for answer in answers):
        return [f"{str(line.get('supervised'))[:60]!r} is taught, not the answer and its end mark"]
    first, last, whole = (int(line.get(key, -1)) for key in ("supervised_from", "supervised_to", "tokens"))
    if not 0 < first < last <= whole:
        return [f"tokens {first} to {last} of {whole} are taught"]
    if pieces is None:
        return []
    visual = iter(line.get("visual_each") or [line.get("visual_tokens", 0)])
    spans, at = [], 0
    for piece in pieces:
        before, *after = piece.text.split(IMAGE) if piece.images else (piece.text,)
        text = before + "".join(IMAGE * int(next(visual, 0)) + rest for rest in after)
        begin, at = at, at + len(tokens(text))
        if piece.taught:
            spans.append([begin, at])
    taught = line.get("spans") or [[first, last]]
    if (taught, whole) != (spans, at):
        return [
            f"tokens {_ranges(taught)} of {whole} are taught; the answer is {_ranges(spans)}"
            f" of {at}: the mask reaches over the prompt or leaves out the answer"
        ]
    return []


def _ranges(spans: list[list[int]]) -> str:
    return ", ".join(f"{begin} to {end}" for begin, end in spans)


def _steps(run: RunFolder, each: dict[str, dict[str, Any]]) -> list[str]:
    """Each epoch sees each picture once, so its steps must have counted exactly the masked tokens."""
    counted: dict[int, int] = defaultdict(int)
    for line in run.read_jsonl("training.jsonl"):
        if isinstance(line.get("supervised"), int):
            counted[int(line.get("epoch", 0))] += line["supervised"]
    spans = [
        span
        for row in each.values()
        for span in row.get("spans") or [[row.get("supervised_from", 0), row.get("supervised_to", 0)]]
    ]
    masked = sum(int(end) - int(begin) for begin, end in spans)
    return [
        f"epoch {epoch} trained on {total} tokens, the masks leave {masked}"
        for epoch, total in sorted(counted.items())
        if total != masked
    ]


def _tokenizer(base: Path | None) -> Any:
    """text → token ids by the base's own tokenizer file; None where there is none or nothing that reads it."""
    path = base / "tokenizer.json" if base is not None else None
    if path is None or not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _identity(run: RunFolder, summary: dict[str, Any], provenance: dict[str, Any]) -> Finding:
    """The final adapter is the chosen candidate, byte for byte, and is the one that everything names."""
    name = "final adapter"
    epoch = summary.get("epoch", provenance.get("epoch"))
    try:
        final, candidate = weights_hash(run.file("adapter")), weights_hash(run.file(f"epoch-{epoch}"))
    except AuditWeightsError as error:
        return Finding(name, "not verifiable", str(error))
    wrong = []
    if final != candidate:
        same = [p.name for p in sorted(run.path.glob("epoch-*")) if _same(p, final)]
        wrong.append(f"adapter/ is not epoch-{epoch}, but {' and '.join(same) or 'no candidate of this run'}")
    weights = _object(run, "weights.json").get("adapter_sha256")
    for where, claimed in (("summary.json", summary.get("adapter_sha256")), ("weights.json", weights)):
        if claimed != final:
            wrong.append(f"{where} names {str(claimed)[:12]}…, the adapter is {final[:12]}…")
    if provenance.get("run") not in (run.name, *(attempt.name for attempt in earlier_attempts(run))):
        wrong.append(f"its provenance names the run {provenance.get('run')}")
    return finding(name, f"adapter/ is epoch-{epoch}, {final[:12]}…", wrong)


def _same(folder: Path, sha: str) -> bool:
    try:
        return weights_hash(folder) == sha
    except AuditWeightsError:
        return False


def _base(provenance: dict[str, Any], base: Path | None) -> Finding:
    """The base, which is the one that the adapter belongs to, has a vision half to be left alone."""
    stored = provenance.get("base_sha256")
    if base is None or stored is None:
        return Finding("base model", "not verifiable", "the base is not on this machine, or the adapter names none")
    try:
        visual = sum("visual" in name.split(".") for name in tensors(base))
    except AuditWeightsError as error:
        return Finding("base model", "not verifiable", str(error))
    wrong = [] if visual else [f"{base.name} has no visual tensors"]
    return finding("base model", f"{base.name}, {str(stored)[:12]}…, {visual} visual tensors", wrong)


def audit_policy(run: RunFolder, base: Path | None) -> list[Finding]:
    """Return every check of one GRPO run: rewards and advantages again from its answers, gradients, weights."""
    from vlmconsole.audit.weights import audit_full_change

    groups: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    wrong, n = [], 0
    settings = _object(run, "conditions.json").get("settings")
    scorer = (settings if isinstance(settings, dict) else {}).get("scorer") or _spec(run).get("scorer") or "counting"
    for line in run.read_jsonl("rollouts.jsonl"):
        groups[line.get("step"), line.get("group", line.get("uid"))].append(line)
        own = line.get("scorer")
        mark = scored_again(str(own or scorer), line.get("answer"), line.get("truth"), line.get("options"))
        if mark is None:
            continue
        n += 1
        if abs(float(mark.reward) - float(line.get("reward", -1))) > 1e-6:
            where = f"step {line.get('step')} {line.get('uid')}"
            wrong.append(f"{where}: reward {line.get('reward')}, its answer gives {float(mark.reward):g}")
    rewards = finding("rewards", f"{many(n, 'answer')} scored again", wrong) if n else None
    wrong = []
    for (step, uid), lines in groups.items():
        wrong += [f"step {step} {uid}: {text}" for text in _advantages(lines)]
    missing = "its scorer cannot be repeated here" if groups else "rollouts.jsonl is missing or empty"
    findings = [rewards or Finding("rewards", "not verifiable", missing)]
    if groups:
        findings.append(finding("advantages", f"{len(groups)} groups: (reward − mean) / (deviation + 1e-6)", wrong))
    findings.append(_policy_steps(run))
    if base is None:
        return [*findings, Finding("weight change", "not verifiable", "the base is not on this machine")]
    return [*findings, *audit_full_change(base, run.file("model"))]


def _advantages(lines: list[dict[str, Any]]) -> list[str]:
    rewards = [float(line.get("reward", 0.0)) for line in lines]
    mean = sum(rewards) / len(rewards)
    spread = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) if len(rewards) > 1 else 0.0
    return [
        f"advantage {line.get('advantage')}, the group gives {(r - mean) / (spread + 1e-6):.4f}"
        for line, r in zip(lines, rewards, strict=True)
        if abs(float(line.get("advantage") or 0.0) - (r - mean) / (spread + 1e-6)) > 1e-3
    ][:1]


def _policy_steps(run: RunFolder) -> Finding:
    """Steps in order with finite losses; a step may have no gradient when no group's answers differed."""
    lines = list(run.read_jsonl("training.jsonl"))
    if not lines:
        return Finding("gradients", "not verifiable", "training.jsonl is missing or empty")
    wrong = [f"line {at} is step {line.get('step')}" for at, line in enumerate(lines, 1) if line.get("step") != at][:1]
    moved = sum(float(line.get("grad_norm") or 0.0) > 0 for line in lines)
    if not moved:
        wrong.append("no step had a gradient")
    return finding("gradients", f"{many(len(lines), 'step')} in order, {moved} with a gradient", wrong)
