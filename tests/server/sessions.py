"""What a server remembers between requests, seen by its clients: tool turns go on from the raw token log, a long system
prompt is encoded once, and a record outlives kill -9.

usage: sessions.py BINARY SOURCE-DIR
"""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

import server_process

binary, source = sys.argv[1], sys.argv[2]
weather = {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "The city"}}, "required": ["city"]}}}
check = server_process.Checks()


def chat(server, messages, **fields):
    status, body, _ = server.post("/v1/chat/completions", {"model": "demo", "seed": 0, "messages": messages, **fields}, timeout=600)
    assert status == 200, (status, body)
    return json.loads(body)


def streamed(server, messages, **fields):
    """-> the text, and the last `diffusion` and `usage` of the stream"""
    status, body, _ = server.post("/v1/chat/completions", {
        "model": "demo", "seed": 0, "messages": messages, "stream": True, "stream_options": {"include_usage": True}, **fields})
    assert status == 200, (status, body)
    text, diffusion, usage = "", None, None
    for line in body.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        for choice in event["choices"]:
            text += choice["delta"].get("content") or ""
        diffusion, usage = event.get("diffusion") or diffusion, event.get("usage") or usage
    return text, diffusion, usage


@check("a tool turn goes on from the raw token log")
def _():
    server, other = server_process.Server(binary, source, "--stats"), server_process.Server(binary, source)
    try:
        asked = [{"role": "user", "content": "How is the weather in Suva?"}]
        fields = {"tools": [weather], "max_tokens": 64}
        message = chat(server, asked, **fields)["choices"][0]["message"]
        assert message["tool_calls"][0]["function"]["name"] == "get_weather", message

        def answered(**echo):
            return [*asked, {"role": "assistant", "content": None, "tool_calls": message["tool_calls"], **echo},
                    {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "sunny, 16 degrees"}]

        # An echo that says what was said is no exception to anything.
        plain = chat(server, answered(), **fields)
        assert plain["diffusion"]["reuse"] in ("prefix", "forked") and plain["diffusion"]["approximations"] == [], plain["diffusion"]
        assert "raw token log" not in server.said()

        # One with a thought that was never thought (the demo model does not think before it calls, so that none can be
        # dropped) is rendered differently, and answered from what the model really said.
        altered = answered(reasoning_content="They want to know about the weather in Suva.")
        raw = chat(server, altered, **fields)
        assert raw["diffusion"]["reuse"] == "raw_log", raw["diffusion"]
        assert raw["diffusion"]["approximations"] == ["raw_tool_turn"], raw["diffusion"]
        assert raw["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"], (raw["usage"], plain["usage"])
        assert raw["usage"]["prompt_tokens_details"]["cached_tokens"] > 0, raw["usage"]
        assert raw["choices"] == plain["choices"], (raw, plain)
        assert "goes on from its raw token log" in server.said(), "the rule is logged where it is used"
        text, diffusion, usage = streamed(server, altered, **fields)
        assert diffusion["reuse"] == "raw_log" and diffusion["approximations"] == ["raw_tool_turn"], diffusion
        assert usage["prompt_tokens"] == raw["usage"]["prompt_tokens"], (usage, raw["usage"])
        assert text == (raw["choices"][0]["message"]["content"] or ""), (text, raw)
        # The log's tokens are the prompt but for the results and what opens the reply; usage has no such number otherwise.
        from_log = usage["prompt_tokens_details"]["raw_log_tokens"]
        assert 0 < from_log < usage["prompt_tokens"] and from_log == raw["usage"]["prompt_tokens_details"]["raw_log_tokens"], (usage, raw)
        assert "raw_log_tokens" not in plain["usage"]["prompt_tokens_details"], plain["usage"]

        # Exact: as it is rendered, which is what a server answers that has seen nothing before.
        exact = chat(server, altered, diffusion={"exact": True}, **fields)
        assert exact["diffusion"]["reuse"] != "raw_log" and exact["diffusion"]["approximations"] == [], exact["diffusion"]
        assert exact["usage"]["prompt_tokens"] > raw["usage"]["prompt_tokens"], "the rendering has the thought"
        fresh = chat(other, altered, diffusion={"exact": True}, **fields)
        assert fresh["choices"] == exact["choices"] and fresh["usage"]["prompt_tokens"] == exact["usage"]["prompt_tokens"], (fresh, exact)
        unknown = chat(other, altered, **fields)
        assert unknown["diffusion"]["reuse"] != "raw_log" and unknown["usage"]["prompt_tokens"] == exact["usage"]["prompt_tokens"]

        # Another call than the one it made is another conversation.
        changed = json.loads(json.dumps(altered))
        changed[1]["tool_calls"][0]["function"]["arguments"] = '{"city":"Oslo"}'
        assert chat(server, changed, **fields)["diffusion"]["reuse"] != "raw_log"
    finally:
        assert server.end() == 0 and other.end() == 0


@check("usage says in every API that a tool turn goes on from its raw token log")
def _():
    server = server_process.Server(binary, source)
    question, thought, result = "How is the weather in Suva?", "They want to know about the weather in Suva.", "sunny, 16 degrees"
    function = weather["function"]

    def usages(path, body, details):
        """-> the number of a whole reply, and those of the events of a stream"""
        status, said, _ = server.post(path, {"model": "demo", "seed": 0, **body})
        assert status == 200, (status, said)
        reply = json.loads(said)
        status, said, _ = server.post(path, {"model": "demo", "seed": 0, "stream": True, **body})
        assert status == 200, (status, said)
        events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
        found = [usage for event in events for usage in
                 (event.get("usage"), (event.get("response") or {}).get("usage"), (event.get("message") or {}).get("usage")) if usage]
        return reply, [details(usage).get("raw_log_tokens", 0) for usage in [reply["usage"], *found]]

    try:
        tools = [{"type": "function", **function}]
        first, numbers = usages("/v1/responses", {"input": question, "tools": tools}, lambda usage: usage["input_tokens_details"])
        call = first["output"][0]
        assert call["type"] == "function_call" and set(numbers) == {0}, (first, numbers)
        items = [{"role": "user", "content": question}, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": thought}]},
                 {key: call[key] for key in ("type", "call_id", "name", "arguments")},
                 {"type": "function_call_output", "call_id": call["call_id"], "output": result}]
        reply, numbers = usages("/v1/responses", {"input": items, "tools": tools}, lambda usage: usage["input_tokens_details"])
        assert reply["diffusion"]["reuse"] == "raw_log" and len(numbers) == 2 and min(numbers) > 0, (reply, numbers)

        tools = [{"name": function["name"], "description": function["description"], "input_schema": function["parameters"]}]
        asked = {"role": "user", "content": question}
        first, numbers = usages("/v1/messages", {"max_tokens": 64, "messages": [asked], "tools": tools}, lambda usage: usage)
        call = first["content"][0]
        assert call["type"] == "tool_use" and set(numbers) == {0}, (first, numbers)
        messages = [asked, {"role": "assistant", "content": [{"type": "thinking", "thinking": thought, "signature": ""}, call]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call["id"], "content": result}]}]
        reply, numbers = usages("/v1/messages", {"max_tokens": 64, "messages": messages, "tools": tools}, lambda usage: usage)
        assert reply["diffusion"]["reuse"] == "raw_log" and len(numbers) == 3 and min(numbers) > 0, (reply, numbers)
    finally:
        assert server.end() == 0


@check("clients that arrive together share the prefill of their system prompt")
def _():
    server = server_process.Server(binary, source)
    try:
        system = {"role": "system", "content": " ".join(f"Rule {i}: be kind to visitor number {i}." for i in range(20))}
        cities = ["France", "Japan", "Italy", "Spain", "Peru", "Chile"]
        asked = [[system, {"role": "user", "content": f"What is the capital of {city}?"}] for city in cities]
        # The first one keeps the model busy, so that the others are all there when it looks again.
        busy = threading.Thread(target=lambda: server.chat("Tell a story about a frog named Vera.", max_tokens=128, diffusion={
            "steps": 60, "entropy_bound": 1e-9, "confidence_threshold": 1e-9}))
        busy.start()
        time.sleep(0.3)
        before = server.metric("encoded_tokens_total")
        answers = [None] * len(asked)

        def one(i):
            answers[i] = chat(server, asked[i], max_tokens=64)

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asked))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        prompts = [answer["usage"]["prompt_tokens"] for answer in answers]
        cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
        print(f"        prompts of {prompts} tokens, of which were cached {cached}; "
              f"{server.metric('shared_prefills_total'):.0f} waited, {server.metric('encoded_tokens_total') - before:.0f} were encoded")
        assert cached.count(0) == 1 and min(sorted(cached)[1:]) > min(prompts) - 40, cached
        busy.join()
        server.idle()
        other = server_process.Server(binary, source)
        try:
            for i, messages in enumerate(asked):
                alone = chat(other, messages, max_tokens=64)
                assert alone["choices"] == answers[i]["choices"], (alone, answers[i])
        finally:
            other.end()
    finally:
        assert server.end() == 0


@check("a record is readable after kill -9, and goes on after a restart")
def _():
    with tempfile.TemporaryDirectory() as directory:
        record = pathlib.Path(directory) / "record.jsonl"
        complete = 0
        for run in range(3):
            server = server_process.Server(binary, source, "--record", str(record))
            stop = threading.Event()

            def ask(i):
                while not stop.is_set():
                    try:
                        server.chat(f"What is the capital of {['France', 'Japan', 'Peru', 'Italy'][i]}?")
                    except Exception:  # the server is killed under it
                        return

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            time.sleep(0.4 + 0.17 * run)
            assert server.end(signal.SIGKILL) == -signal.SIGKILL
            stop.set()
            for thread in threads:
                thread.join()
            whole = record.read_bytes()
            lines = whole[:whole.rfind(b"\n") + 1].splitlines()
            assert len(lines) > complete + 10, "the run is recorded"
            for number, line in enumerate(lines, 1):
                json.loads(line)  # every line but perhaps the last is complete
            assert sum(1 for line in lines if line.startswith(b'{"record":')) == run + 1
            complete = len(lines)
            done = subprocess.run([binary, "replay", str(record), "--json"], capture_output=True, text=True, timeout=300)
            report = json.loads(done.stdout)
            assert done.returncode == 0 and report["same"] and report["runs"] == run + 1, (done.stdout, done.stderr)
            assert report["lines"] == complete, (report, complete)
        # A kill in the middle of a line, as a full disk or a dying machine would leave it.
        with record.open("ab") as file:
            file.write(lines[-1][:len(lines[-1]) // 2])
        report = json.loads(subprocess.run([binary, "replay", str(record), "--json"], capture_output=True, text=True, timeout=300).stdout)
        assert report["same"] and report["cut_off"] and report["lines"] == complete, report


sys.exit(1 if check.failures else 0)
