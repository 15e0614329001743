"""A server of the demo model as a process, for the tests of the HTTP server."""
import http.client
import json
import pathlib
import signal
import socket
import subprocess
import tempfile
import time


class Checks:
    """A decorator that runs a check at once and tells how it went: @checks("what it is about"). also: asserted behind each."""

    def __init__(self, also=lambda: None):
        self.also = also
        self.failures = 0

    def __call__(self, name):
        def run(test):
            start = time.monotonic()
            try:
                test()
                self.also()
                print(f"ok      {name} ({time.monotonic() - start:.1f} s)", flush=True)
            except Exception as problem:  # one failed check must not hide the others
                self.failures += 1
                print(f"FAILED  {name}: {type(problem).__name__}: {problem}", flush=True)
        return run


class Server:
    def __init__(self, binary, source, *flags):
        self.log = tempfile.NamedTemporaryFile(prefix="dgemma-server-", suffix=".log")
        self.process = subprocess.Popen(
            [binary, "serve", "--port", "0", "--model", f"demo={pathlib.Path(source) / 'models' / 'demo'}", *flags],
            stderr=open(self.log.name, "wb"), stdout=subprocess.DEVNULL)
        self.port = None
        for _ in range(1200):
            for line in self.said().splitlines():
                if "ready at " in line:
                    self.port = int(line.split("ready at ")[1].split(" ")[0].rsplit(":", 1)[1])
                    assert self.get("/health")[0] == 200, "ready means ready"
                    return
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        self.process.kill()
        raise RuntimeError("The server did not start:\n" + self.said())

    def said(self):
        return pathlib.Path(self.log.name).read_text()

    def connect(self, timeout=60):
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=120):
        """-> status, body as text, headers"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if isinstance(body, (bytes, str)) or body is None else json.dumps(body)
            connection.request(method, path, data, headers or {})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace"), response.headers
        except ConnectionRefusedError:
            return 0, "", {}
        finally:
            connection.close()

    def get(self, path):
        return self.request("GET", path)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def chat(self, question, **fields):
        """-> the answer's text"""
        status, body, _ = self.post("/v1/chat/completions", {
            "model": "demo", "seed": 0, "messages": [{"role": "user", "content": question}], **fields})
        assert status == 200, (status, body)
        return json.loads(body)["choices"][0]["message"]["content"]

    def metric(self, name):
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"dgemma_{name}{{") or line.startswith(f"dgemma_{name} "):
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def memory_mib(self):
        """Memory of its own: without the mapped checkpoint, which is the system's to keep or drop."""
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) / 1024
        return 0

    def idle(self, seconds=20):
        """Waits until nothing runs."""
        end = time.monotonic() + seconds
        while self.metric("running") + self.metric("queued") > 0:
            assert time.monotonic() < end, "a request of a client that left still runs"
            time.sleep(0.02)

    def end(self, number=signal.SIGTERM, wait=60):
        """-> the exit code"""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(wait)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return "no end"
