"""How the server starts, and how it does not: what it says, when, and with which exit code.

usage: start.py BINARY SOURCE-DIR
"""
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

import server_process

binary, source = sys.argv[1], sys.argv[2]
demo = f"demo={pathlib.Path(source) / 'models' / 'demo'}"
check = server_process.Checks()


def refused(*flags):
    """-> the one sentence it ends with, after what it says of loading"""
    done = subprocess.run([binary, "serve", "--port", "0", "--model", demo, *flags], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and done.stdout == "", (flags, done)
    *before, last = done.stderr.splitlines()
    assert all(line.startswith("dgemma: loading ") for line in before), done.stderr
    assert re.fullmatch(r"dgemma: [^\n]+[.?!]", last), done.stderr
    return last


@check("it says what it loads, and that it is ready when it is")
def _():
    server = server_process.Server(binary, source)  # which asks for /health as soon as it is said to be ready
    lines = server.said().splitlines()
    assert re.fullmatch(r"dgemma: loading demo from .*models/demo", lines[0]), lines
    assert re.fullmatch(r"dgemma: ready at http://127\.0\.0\.1:\d+ with demo", lines[1]) and len(lines) == 2, lines
    assert server.end() == 0, server.said()


@check("room for no request is refused at the start, with the numbers")
def _():
    said = refused("--ctx", "100")
    assert "100 tokens" in said and "--ctx" in said, said
    least = re.search(r"--ctx be at least (\d+)", said)[1]
    assert "--ctx" in refused("--ctx", str(int(least) - 1))
    said = refused("--cache-memory", "1")
    memory = re.search(r"--cache-memory be at least (\d+)", said)[1]
    # With what it asks for, there is room for one.
    server = server_process.Server(binary, source, "--ctx", least, "--cache-memory", memory)
    status, body, _ = server.post("/v1/chat/completions", {"max_tokens": 1, "messages": [{"role": "user", "content": ""}]})
    assert status == 200, (status, body)
    assert server.end() == 0, server.said()


@check("a port that is taken is refused, before anything is loaded")
def _():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused("--port", port)
        assert port in said and "--port" in said, said


@check("a record that another server writes is refused")
def _():
    with tempfile.TemporaryDirectory() as directory:
        record = str(pathlib.Path(directory) / "record.jsonl")
        server = server_process.Server(binary, source, "--record", record)
        said = refused("--record", record)
        assert record in said, said
        assert server.chat("What is the capital of France?") and server.end() == 0, server.said()


sys.exit(1 if check.failures else 0)
