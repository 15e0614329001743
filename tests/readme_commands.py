#!/usr/bin/env python3
"""Runs the commands of README.md and compares what they print.

A block that is fenced as `console` holds lines "$ command", each followed by the stdout that is expected; "..." stands for
anything from there on. Commands that begin with "./test" are left alone, since this is one of its steps.
usage: readme_commands.py README.md
"""
import pathlib
import re
import shlex
import subprocess
import sys


def is_open(command):
    """Whether a quote in the command is still to be closed."""
    try:
        shlex.split(command)
    except ValueError:
        return True
    return False


def commands(text):
    """Yields (command, expected stdout) of all console blocks."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = part.split("\n")
            while is_open(lines[0]) and len(lines) > 1:  # a quoted text of several lines
                lines[:2] = [lines[0] + "\n" + lines[1]]
            yield lines[0], "\n".join(lines[1:])


def agrees(expected, printed):
    head, dots, _ = expected.partition("...\n")
    if dots:
        return printed.startswith(head)
    return printed == expected


def main():
    readme = pathlib.Path(sys.argv[1]).resolve()
    failures = run = 0
    for command, expected in commands(readme.read_text(encoding="utf-8")):
        if command.startswith("./test"):
            continue
        run += 1
        done = subprocess.run(["bash", "-c", command], cwd=readme.parent, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=1800, check=False)
        if done.returncode != 0 or not agrees(expected, done.stdout):
            failures += 1
            print(f"$ {command}\nexit code {done.returncode}, stdout:\n{done.stdout}expected:\n{expected}stderr:\n"
                  f"{done.stderr[-2000:]}")
    print(f"{run} commands of {readme.name}, {failures} failed")
    return 1 if failures or not run else 0


if __name__ == "__main__":
    sys.exit(main())
