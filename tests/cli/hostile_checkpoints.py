#!/usr/bin/env python3
"""Runs the built binary on damaged copies of the demo checkpoint. Whatever is broken, each run ends soon, with its
documented exit code and one sentence; under sanitizers, without a report.

usage: hostile_checkpoints.py BINARY SOURCE_DIR
"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

BINARY = SOURCE = None
SHARD, INDEX, PACK = "model-00002-of-00002.safetensors", "model.safetensors.index.json", "dgemma-pack.json"
# What a value of a JSON file becomes, as text: 1e999 is in no number type.
VALUES = ("1e999", '"x"', "[]", "{}", "true", "0", "-1", "1.5", "2147483648", "18446744073709551616", "[[[]]]", '"\\u001b[2J\\u0000"')


def with_value(text, path, value):
    """The JSON text with the value at `path` replaced by the text `value`."""
    root = json.loads(text)
    here = root
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = "@here@"
    return json.dumps(root).replace('"@here@"', value)


class Hostile(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.demo = SOURCE / "models/demo"
        self.model = self.folder / "model"

    def fresh(self, base=None):
        shutil.rmtree(self.model, ignore_errors=True)
        self.model.mkdir()
        for path in (base or self.demo).iterdir():
            (self.model / path.name).symlink_to(path)

    def put(self, name, content):
        path = self.model / name
        path.unlink(missing_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def run_all(self, what, verbs, refused=None):
        """refused: True, False, or None where both are right; a text: refused with this in the sentence."""
        out = self.folder / "out"
        commands = {"ask": ["ask", "--steps", "1", "--max-tokens", "1", "--json", "hi"], "info": ["info"], "doctor": ["doctor"],
                    "tokenize": ["tokenize"], "quantize": ["quantize", "--profile", "q8", "-o", str(out)]}
        for verb in verbs.split():
            shutil.rmtree(out, ignore_errors=True)
            environment = {k: v for k, v in os.environ.items() if not k.startswith("DGEMMA_")}
            done = subprocess.run([BINARY, *commands[verb], "-m", str(self.model)], input=b'{"text":"a<bos>b"}\n', env=environment,
                                  capture_output=True, timeout=120, check=False)
            words = done.stderr.decode(errors="replace")
            name = f"{what}: {verb}: {done.returncode}: {words[:2000]}"
            self.assertIn(done.returncode, (0, 1), name)
            self.assertNotRegex(words, r"Sanitizer|runtime error|terminate called|Assert", name)
            if verb == "doctor":
                sentence = done.stdout.decode(errors="replace")
                self.assertEqual("FAIL" in sentence, done.returncode == 1, name)
            elif done.returncode == 1:
                sentence = words
                self.assertRegex(words, r"\Adgemma: [^\n\x00-\x1f]+[.?!]\n\Z", name)
            if refused is not None:
                self.assertEqual(done.returncode, 1 if refused else 0, name)
            if isinstance(refused, str):
                self.assertIn(refused, sentence, name)

    def test_headers(self):
        whole = (self.demo / SHARD).read_bytes()
        start = 8 + struct.unpack("<Q", whole[:8])[0]
        text = whole[8:start]
        header = json.loads(text)
        name = "model.decoder.norm.weight"
        self.assertIn(name, header)
        begin, end = header[name]["data_offsets"]

        def damaged(header_text, length=None):
            if isinstance(header_text, str):
                header_text = header_text.encode()
            header_text += b" " * (-len(header_text) % 8)
            self.fresh()
            self.put(SHARD, struct.pack("<Q", len(header_text) if length is None else length) + header_text + whole[start:])

        offsets = ("[0,1e999]", "[-1,5]", "[5,1]", "[0]", "[0,1,2]", "[0,18446744073709551615]", "[18446744073709551600,16]",
                   f"[{begin + 2},{end + 2}]", f"[{begin},{end - 2}]", '["0","4"]')
        shapes = ("[0]", "[-1]", "[4294967296,4294967296]", "[9223372036854775807]", "[9223372036854775807,0]", "[1,1,1,1,1,1,1,1,1]",
                  "[1e999]", "[1.5]", "7", "[1,256]")
        types = ('"F64"', '"F32"', '"I16"', '"bf16"', "3", "null")
        for field, values in (("data_offsets", offsets), ("shape", shapes), ("dtype", types)):
            for value in values:
                damaged(with_value(text, (name, field), value))
                self.run_all(f"{field} {value}", "ask", True)
        for what, content in (("[", b"[" * 100000), ("no JSON", b"x"), ("empty", b""), ("a list", b"[]"), ("nothing in it", b"{}"),
                              ("twice", text.strip()[:-1] + b"," + text.strip()[1:]), ("not UTF-8", b'{"\xff":{}}'),
                              ("steering", b'{"\\u001b[2J":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}')):
            damaged(content)
            self.run_all(f"header {what}", "info quantize", True)
        for length in (0, 7, 2**63, 2**64 - 1, 100_000_001, len(whole), len(whole) - 8):
            damaged(text, length)
            self.run_all(f"length {length}", "info", SHARD)
        for size in (0, 7, 8, start - 1, start + 1, len(whole) - 1):
            self.fresh()
            self.put(SHARD, whole[:size])
            self.run_all(f"cut at {size}", "ask", SHARD)
        for pattern in (b"\xff\xff", b"\x80\x7f"):  # every number a NaN, an infinity
            self.fresh()
            self.put(SHARD, whole[:start] + pattern * ((len(whole) - start) // 2))
            self.run_all(f"numbers {pattern}", "ask quantize", True)

    def test_the_index(self):
        index = json.loads((self.demo / INDEX).read_text(encoding="utf-8"))
        tensor = "model.decoder.norm.weight"
        for target in ("../demo/" + SHARD, "/etc/passwd", "none.safetensors", "", ".", "a\0b.safetensors", "config.json", "x" * 300):
            self.fresh()
            self.put(INDEX, json.dumps({"weight_map": {**index["weight_map"], tensor: target}}))
            self.run_all(f"index to {target!r}", "ask info", True)
        for value in VALUES:
            self.fresh()
            self.put(INDEX, '{"weight_map":%s}' % value)
            self.run_all(f"weight_map {value}", "info", True)
        self.fresh()
        self.put(SHARD, (self.demo / "model-00001-of-00002.safetensors").read_bytes())
        self.run_all("one shard twice", "ask quantize doctor", True)

    def test_configurations(self):
        text = (self.demo / "config.json").read_text(encoding="utf-8")
        config = json.loads(text)
        paths = [(key,) for key in ("model_type", "architectures", "canvas_length", "text_config", "vision_config", "eoi_token_id")]
        paths += [("text_config", key) for key in config["text_config"]]
        paths += [("text_config", "rope_parameters", "full_attention", "rope_theta"), ("text_config", "per_layer_config", "3"),
                  ("text_config", "per_layer_config", "3", "head_dim"), ("text_config", "layer_types", 0)]
        for i, path in enumerate(paths):
            for value in VALUES[i % 3::3]:
                self.fresh()
                self.put("config.json", with_value(text, path, value))
                self.run_all(f"config {path} {value}", "info")
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "sliding_window", "max_position_embeddings", "top_k_experts"):
            for value in ("1", "2147483647", "1000"):
                self.fresh()
                self.put("config.json", with_value(text, ("text_config", key), value))
                self.run_all(f"config {key} {value}", "ask")
        text = (self.demo / "generation_config.json").read_text(encoding="utf-8")
        for i, key in enumerate(json.loads(text)):
            for value in VALUES[i % 3::3]:
                self.fresh()
                self.put("generation_config.json", with_value(text, (key,), value))
                self.run_all(f"generation_config {key} {value}", "ask")

    def test_the_tokenizer(self):
        text = (self.demo / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = json.loads(text)
        token = list(tokenizer["model"]["vocab"])[300]
        paths = [(key,) for key in tokenizer] + [("model", key) for key in tokenizer["model"]]
        paths += [("added_tokens", 0), ("added_tokens", 0, "id"), ("added_tokens", 0, "content"), ("model", "merges", 0),
                  ("model", "vocab", token)]
        for i, path in enumerate(paths):
            for value in VALUES[i % 3::3]:
                self.fresh()
                self.put("tokenizer.json", with_value(text, path, value))
                self.run_all(f"tokenizer {path} {value}", "tokenize")
        for what, content in (("cut", text[:30000]), ("deep", "[" * 200000), ("gzip", b"\x1f\x8b\x08\0\0\0\0\0"), ("nothing", "")):
            self.fresh()
            self.put("tokenizer.json", content)
            self.run_all(f"tokenizer {what}", "tokenize ask", "tokenizer.json")

    def test_a_pack(self):
        pack = self.folder / "pack"
        subprocess.run([BINARY, "quantize", "-m", str(self.demo), "--profile", "q8", "-o", str(pack)], capture_output=True, check=True)
        text = (pack / PACK).read_text(encoding="utf-8")
        manifest = json.loads(text)
        paths = [(key,) for key in manifest] + [("tensors", 0, key) for key in manifest["tensors"][0]]
        for i, path in enumerate(paths):
            for value in VALUES[i % 3::3]:
                self.fresh(pack)
                self.put(PACK, with_value(text, path, value))
                self.run_all(f"manifest {path} {value}", "info", True)
        blob = (pack / "weights.bin").read_bytes()
        for what, content in (("cut", blob[:-1]), ("longer", blob + b"x"), ("empty", b"")):
            self.fresh(pack)
            self.put("weights.bin", content)
            self.run_all(f"blob {what}", "ask doctor", "weights.bin")
        for byte in (b"\xff", b"\0"):
            self.fresh(pack)
            self.put("weights.bin", byte * len(blob))
            self.run_all(f"blob of {byte}", "ask")

    def test_what_is_no_file(self):
        names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", INDEX, SHARD, PACK,
                 "chat_template.jinja")
        for name in names:
            for kind in ("directory", "fifo", "link to nothing", "link to itself", "device", "empty"):
                self.fresh()
                path = self.model / name
                path.unlink(missing_ok=True)
                if kind == "directory":
                    path.mkdir()
                elif kind == "fifo":
                    os.mkfifo(path)
                elif kind == "empty":
                    path.touch()
                else:
                    path.symlink_to({"link to nothing": "none", "link to itself": name, "device": "/dev/zero"}[kind])
                self.run_all(f"{name}: {kind}", "ask", name)
                if path.is_dir():
                    path.rmdir()


if __name__ == "__main__":
    BINARY, SOURCE = str(pathlib.Path(sys.argv[1]).resolve()), pathlib.Path(sys.argv[2]).resolve()
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=1)
