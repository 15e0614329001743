#!/usr/bin/env python3
"""The embedded model against its cases: as good as the reference, and as quick to settle.

usage: evaluation.py exact|free BINARY SOURCE_DIR
exact: the rows with one right answer, seed 0. free: the others, pooled over seeds 1 to 5, judged by the shared
check_free.py; exit code 77 (skipped) where that is not there.
"""
import collections
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

# Steps per block of the reference, and how far we may be from them.
SETTLED = {"add": 2.05, "sub": 2.05, "mul": 2.05, "seq": 2.05, "max": 2.05, "reverse": 2.05, "spell": 2.05, "yesno": 2.05,
           "capital": 2.0, "country": 2.0, "json": 2.0, "code": 2.0, "chat": 2.0, "sudoku": 2.1, "needle": 2.1,
           "memory": 2.1, "think": 2.1, "tool": 2.1, "tool_answer": 2.1}
FREE_STEPS = {"list": 15, "count": 9, "story": 33}
ALWAYS_RIGHT = ("sudoku", "needle", "tool", "tool_answer", "think", "memory")
LEAST_RIGHT = {"list": 0.60, "count": 0.85, "story": 0.50}

failures = []


def expect(holds, text):
    print(("ok      " if holds else "FAILED  ") + text)
    if not holds:
        failures.append(text)


def evaluate(binary, cases, *flags):
    """Returns (the result, its rows)."""
    with tempfile.TemporaryDirectory() as folder:
        rows = pathlib.Path(folder) / "rows.jsonl"
        done = subprocess.run([binary, "eval", "--cases", str(cases), "--json", "--rows", str(rows), *flags],
                              stdout=subprocess.PIPE, check=True, stdin=subprocess.DEVNULL)
        result = json.loads(done.stdout.decode().strip().split("\n")[-1])
        return result, [json.loads(x) for x in rows.read_text(encoding="utf-8").split("\n") if x]


def exact(binary, source):
    result, rows = evaluate(binary, source / "tests/data/demo-cases/text.jsonl", "--exact-only")
    expect(result["accuracy"] >= 0.968, f"accuracy {result['accuracy']:.3f} of at least 0.968 ({result['correct']} of {result['cases']})")
    for kind in ALWAYS_RIGHT:
        sums = result["by_kind"][kind]
        expect(sums["correct"] == sums["cases"], f"{kind}: {sums['correct']} of {sums['cases']}")
    expect(all(row["answer"] for row in rows), "no empty reply")
    for kind, steps in SETTLED.items():
        sums = result["by_kind"][kind]
        found = sums["steps"] / sums["blocks"]
        expect(abs(found - steps) <= 0.1 * steps, f"{kind}: {found:.2f} steps per block, {steps} in the reference")


def free(binary, source):
    shared = pathlib.Path(os.environ.get("DGEMMA_SHARED", source.parent / "shared"))
    checker = shared / "demo-model/check_free.py"
    if not checker.exists():
        print("skipped: demo-model/check_free.py is not there (set DGEMMA_SHARED to the shared reference data)")
        sys.exit(77)
    spec = importlib.util.spec_from_file_location("check_free", checker)
    judge = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(judge)
    path = source / "tests/data/demo-cases/text.jsonl"
    cases = [json.loads(x) for x in path.read_text(encoding="utf-8").split("\n") if x]
    right, asked, steps, blocks = (collections.Counter() for _ in range(4))
    with tempfile.TemporaryDirectory() as folder:
        kept = [(i, c) for i, c in enumerate(cases) if not c["exact"]]
        only_free = pathlib.Path(folder) / "free.jsonl"
        only_free.write_text("".join(json.dumps(c) + "\n" for _, c in kept), encoding="utf-8")
        for seed in range(1, 6):
            _, rows = evaluate(binary, only_free, "--seed", str(seed))
            for row, (_, case) in zip(rows, kept):
                kind = case["kind"]
                asked[kind] += 1
                right[kind] += judge.check(kind, case["question"], row["answer"])
                steps[kind] += row["steps"]
                blocks[kind] += row["blocks"]
                if not row["answer"]:
                    expect(False, f"an empty reply to {case['question']}")
    for kind, least in LEAST_RIGHT.items():
        expect(right[kind] >= least * asked[kind], f"{kind}: {right[kind]} of {asked[kind]} right, at least {least}")
    for kind, reference in FREE_STEPS.items():
        found = steps[kind] / blocks[kind]
        expect(abs(found - reference) <= 0.2 * reference, f"{kind}: {found:.1f} steps per block, {reference} in the reference")


if __name__ == "__main__":
    {"exact": exact, "free": free}[sys.argv[1]](str(pathlib.Path(sys.argv[2]).resolve()), pathlib.Path(sys.argv[3]).resolve())
    sys.exit(1 if failures else 0)
