"""Many clients at once get what each would get alone; and a soak.

usage: many_clients.py BINARY SOURCE-DIR clients [N]    N clients stream at the same time (64)
       many_clients.py BINARY SOURCE-DIR soak [N]       N mixed requests with random aborts (2000)
       many_clients.py BINARY SOURCE-DIR overhead [N]   what the server adds to N requests, one at a time (100)
       many_clients.py BINARY SOURCE-DIR throughput [N] N requests (160) of one client in turn, then of 16 at a time
"""
import http.client
import json
import pathlib
import random
import statistics
import sys
import threading
import time

import server_process

binary, source, what = sys.argv[1:4]
count = int(sys.argv[4]) if len(sys.argv) > 4 else {"clients": 64, "soak": 2000, "overhead": 100, "throughput": 160}[what]
weather = {"name": "get_weather", "description": "Get the weather of a city",
           "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The city"}}, "required": ["city"]}}


def questions():
    """Questions of the demo cases that have one right answer."""
    out = []
    for line in (pathlib.Path(source) / "tests" / "data" / "demo-cases" / "text.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["exact"] and row["kind"] in ("capital", "country", "add", "sub", "yesno", "max", "spell", "reverse", "code", "json", "chat", "seq"):
            out.append((row["question"], row["expected"]))
    return out


def body_of(kind, question):
    """A request, and how to read its answer."""
    chat = {"model": "demo", "seed": 7, "messages": [{"role": "user", "content": question}]}
    return {
        "chat": ("/v1/chat/completions", chat),
        "stream": ("/v1/chat/completions", {**chat, "stream": True}),
        "messages": ("/v1/messages", {**chat, "max_tokens": 300}),
        "messages stream": ("/v1/messages", {**chat, "max_tokens": 300, "stream": True}),
        "responses": ("/v1/responses", {"model": "demo", "seed": 7, "input": question}),
    }[kind]


def answer_of(kind, text):
    if kind == "chat":
        return json.loads(text)["choices"][0]["message"]["content"]
    if kind == "messages":
        return "".join(block["text"] for block in json.loads(text)["content"])
    if kind == "responses":
        return "".join(part["text"] for item in json.loads(text)["output"] for part in item["content"])
    out = ""
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        event = json.loads(line[6:])
        if event.get("choices"):
            out += event["choices"][0]["delta"].get("content") or ""
        elif event.get("type") == "content_block_delta":
            out += event["delta"].get("text", "")
    return out


def ask(server, kind, question, abort_after=None):
    """-> the answer, or None where the client left; the seconds it took."""
    path, body = body_of(kind, question)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=300)
    start = time.monotonic()
    try:
        connection.request("POST", path, json.dumps(body))
        if abort_after is not None:
            time.sleep(abort_after)
            return None, 0
        response = connection.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise AssertionError(f"{response.status}: {text[:300]}")
        return answer_of(kind, text), time.monotonic() - start
    finally:
        connection.close()


def clients(server):
    rows = questions()
    rows = [rows[i % len(rows)] for i in range(count)]
    kinds = ["stream", "messages stream"]
    alone, seconds = [], time.monotonic()
    steps, passes = server.metric("denoise_steps_total"), server.metric("denoise_passes_total")
    for i, (question, _) in enumerate(rows):
        alone.append(ask(server, kinds[i % 2], question)[0])
    seconds = time.monotonic() - seconds
    right = sum(answer == expected for answer, (_, expected) in zip(alone, rows))
    print(f"alone: {count} requests, {right} right, {seconds:.1f} s")
    assert right > 0.9 * count, "the demo model answers wrongly"

    answers, problems = [None] * count, []

    def one(i):
        try:
            answers[i] = ask(server, kinds[i % 2], rows[i][0])[0]
        except Exception as problem:  # told below
            problems.append(f"{rows[i][0]}: {problem}")

    steps, passes = server.metric("denoise_steps_total"), server.metric("denoise_passes_total")
    threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
    together = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = time.monotonic() - together
    steps, passes = server.metric("denoise_steps_total") - steps, server.metric("denoise_passes_total") - passes
    print(f"together: {together:.1f} s ({seconds / together:.2f} x the throughput of one); {steps:.0f} steps in {passes:.0f} passes")
    assert not problems, problems[:3]
    wrong = [(rows[i][0], alone[i], answers[i]) for i in range(count) if answers[i] != alone[i]]
    assert not wrong, f"{len(wrong)} answers differ: {wrong[:3]}"
    if count >= 16 and passes:
        assert passes <= steps / 4, f"{passes} passes for {steps} steps: requests do not share them"


def throughput(server):
    """A measurement, and no assertion on time: machines are noisy."""
    rows = [row for row in questions() if ask(server, "stream", row[0])[0] == row[1]]
    seconds = {}
    for clients in (1, 16, 1, 16):
        jobs, lock = iter(range(count)), threading.Lock()
        steps, passes = server.metric("denoise_steps_total"), server.metric("denoise_passes_total")

        def work():
            while True:
                with lock:
                    i = next(jobs, None)
                if i is None:
                    return
                question, expected = rows[i % len(rows)]
                answer = ask(server, "stream", question)[0]
                assert answer == expected, (question, answer, expected)

        threads = [threading.Thread(target=work) for _ in range(clients)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds.setdefault(clients, []).append(time.monotonic() - start)
        steps, passes = server.metric("denoise_steps_total") - steps, server.metric("denoise_passes_total") - passes
        print(f"{clients} clients: {count / seconds[clients][-1]:.1f} requests/s; {steps:.0f} steps in {passes:.0f} passes")
    print(f"16 clients: {min(seconds[1]) / min(seconds[16]):.2f} x the throughput of one")


def soak(server):
    dice = random.Random(1)
    kinds = ["chat", "stream", "messages", "messages stream", "responses"]
    rows = [row for row in questions() if ask(server, "chat", row[0])[0] == row[1]]
    times, wrong, aborted, memory = [], [], 0, []
    lock = threading.Lock()
    jobs = iter(range(count))

    def work():
        nonlocal aborted
        while True:
            with lock:
                i = next(jobs, None)
                if i is None:
                    return
                kind, (question, expected) = dice.choice(kinds), dice.choice(rows)
                leave = dice.uniform(0, 0.1) if dice.random() < 0.15 else None
                if i % 100 == 0:
                    memory.append(server.memory_mib())
                    holds = {name: server.metric(name) for name in ("conversations", "cache_bytes")}
                    recent = statistics.median(times[-100:]) if times else 0
                    print(f"{i:5} asked: {memory[-1]:6.1f} MiB of its own; {holds['conversations']:.0f} conversations of {holds['cache_bytes'] / 2**20:.1f} MiB; "
                          f"median of the last hundred {recent:.3f} s; {time.process_time():.1f} s of the clients' own", flush=True)
            answer, seconds = ask(server, kind, question, leave)
            with lock:
                if answer is None:
                    aborted += 1
                else:
                    times.append(seconds)
                    if answer != expected:
                        wrong.append((kind, question, answer))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.idle()
    memory.append(server.memory_mib())
    first, last = statistics.median(times[:100]), statistics.median(times[-100:])
    print(f"{len(times)} answers, {aborted} aborted; median of the first hundred {first:.3f} s, of the last {last:.3f} s; "
          f"memory {memory[1] if len(memory) > 2 else memory[0]:.0f} MiB, at the end {memory[-1]:.0f} MiB")
    assert not wrong, f"{len(wrong)} wrong: {wrong[:3]}"
    # Flat: by the middle all is there that is kept, and what is in use for the moment differs by a few MiB.
    quarter = len(memory) // 4
    second, last = statistics.median(memory[quarter:2 * quarter + 1]), statistics.median(memory[-quarter - 1:])
    print(f"median of the second quarter {second:.1f} MiB, of the last {last:.1f} MiB")
    code = pathlib.Path(binary).read_bytes()
    keeps_freed = b"__asan_init" in code or b"__tsan_init" in code  # a sanitizer's own memory grows
    assert keeps_freed or count < 400 or last < second * 1.05 + 3, f"memory grows: {[round(one) for one in memory]}"
    assert server.metric("http_in_flight") == 1


def overhead(server):
    """The client's clock against what the server says that its passes took: the rest is HTTP, JSON, template, tokens,
    the way between threads, and this client."""
    rows = questions()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for kind in ("chat", "stream", "messages"):
        walls, engines, added = [], [], []
        for i in range(count + 10):
            path, body = body_of(kind, rows[i % len(rows)][0])
            start = time.perf_counter()
            connection.request("POST", path, json.dumps(body))
            text = connection.getresponse().read().decode()
            wall = 1000 * (time.perf_counter() - start)
            if kind == "stream":
                text = [line[6:] for line in text.splitlines() if line.startswith("data: {") and '"diffusion"' in line][-1]
            told = json.loads(text)["diffusion"]
            if i < 10:  # until everything is warm
                continue
            walls.append(wall)
            engines.append(told["prefill_ms"] + told["denoise_ms"])
            added.append(wall - engines[-1])
        added.sort()
        print(f"{kind:8} median of {count}: {statistics.median(walls):.2f} ms for the client, {statistics.median(engines):.2f} ms of passes, "
              f"{statistics.median(added):.2f} ms added (nine of ten below {added[count * 9 // 10]:.2f})", flush=True)
    connection.close()


server = server_process.Server(binary, source)
try:
    {"clients": clients, "soak": soak, "overhead": overhead, "throughput": throughput}[what](server)
finally:
    code = server.end()
assert code == 0, (code, server.said())
print("ok")
