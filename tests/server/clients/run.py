"""Runs the client tests: installs the pinned packages, starts the server on a free port, ends it with SIGTERM.

usage: run.py BINARY SOURCE-DIR WORK-DIR
Exit code 77 where there is no Node.js or the packages cannot be had.
"""
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

binary, source, work = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
clients = source / "tests" / "server" / "clients"
sys.path.insert(0, str(clients.parent))

import server_process

key = "test-key"


def installed():
    """The packages of the lock file, in the work directory; done anew when the lock file has changed."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("There is no Node.js here; install nodejs and npm.")
        return False
    work.mkdir(parents=True, exist_ok=True)
    for file in clients.iterdir():
        if file.is_file():
            shutil.copy(file, work / file.name)
    digest = hashlib.sha256((clients / "package-lock.json").read_bytes()).hexdigest()
    stamp = work / "installed"
    if stamp.exists() and stamp.read_text() == digest:
        return True
    done = subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print("npm ci could not install the packages:\n" + done.stdout[-2000:])
        return False
    stamp.write_text(digest)
    return True


def main():
    if not installed():
        return 77
    server = server_process.Server(binary, source, "--api-key", key)
    url = f"http://127.0.0.1:{server.port}"
    tests = sorted(file.name for file in clients.glob("*.test.mjs"))
    try:
        code = subprocess.run(["node", "--test", *tests], cwd=work, timeout=600,
                              env={**os.environ, "DGEMMA_URL": url, "DGEMMA_KEY": key}).returncode
    finally:
        ended = server.end(wait=40)
    if ended != 0:
        print(f"The server did not end in order: {ended}\n" + server.said())
        return 1
    return code


sys.exit(main())
