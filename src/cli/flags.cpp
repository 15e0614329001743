#include "cli/flags.h"

#include <array>
#include <cctype>
#include <cmath>

#include <fmt/format.h>

#include "cli/guards.h"
#include "cli/words.h"

namespace dgemma::cli {

namespace {

constexpr std::uint32_t ask = bit_of(Verb::ask), eval = bit_of(Verb::eval), info = bit_of(Verb::info),
                        doctor = bit_of(Verb::doctor), tokenize = bit_of(Verb::tokenize),
                        template_text = bit_of(Verb::template_text), parse = bit_of(Verb::parse),
                        quantize = bit_of(Verb::quantize), synth = bit_of(Verb::synth),
                        replay = bit_of(Verb::replay), bench = bit_of(Verb::bench),
                        verify = bit_of(Verb::verify), serve = bit_of(Verb::serve);
constexpr std::uint32_t generating = ask | eval, packing = quantize | synth;

constexpr double most_u64 = 18446744073709551615.0;

const std::array<VerbInfo, 13> verb_table = {{
    {Verb::ask, "ask", "[PROMPT...]", "answer one prompt: from the command line, --file or stdin",
     "dgemma ask \"What is the capital of France?\""},
    {Verb::eval, "eval", "", "run a file of prompts with known answers and count the right ones",
     "dgemma eval --cases tests/data/demo-cases/text.jsonl --exact-only --json"},
    {Verb::info, "info", "", "show what a checkpoint holds and the memory it needs",
     "dgemma info -m models/demo"},
    {Verb::doctor, "doctor", "", "check this machine and the model: what would run, and what is missing",
     "dgemma doctor"},
    {Verb::tokenize, "tokenize", "", "text to token ids and back, one JSON object a line",
     "echo '{\"text\": \"Hello\"}' | dgemma tokenize -m models/demo --jsonl"},
    {Verb::template_text, "template", "",
     "render conversations as the model reads them, one JSON object a line",
     "echo '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}' | dgemma template -m models/demo "
     "--jsonl"},
    {Verb::parse, "parse", "",
     "split model output into thought, answer and tool calls, one JSON object a line",
     "echo '{\"output\": \"Paris.<turn|>\", \"prompt_state\": \"content\"}' | dgemma parse --jsonl"},
    {Verb::quantize, "quantize", "", "write a checkpoint as a pack, smaller and ready to be mapped",
     "dgemma quantize -m models/demo --profile q8 -o demo-q8"},
    {Verb::synth, "synth", "", "write a pack of random weights in real shapes, to measure speed with",
     "dgemma synth --preset 26b --layers 6 --format q4 -o synth-q4"},
    {Verb::replay, "replay", "FILE",
     "execute again what serve --record wrote, and say where it comes out differently",
     "dgemma replay record.jsonl"},
    {Verb::verify, "verify", "",
     "compare a device with the CPU, stage by stage, and the published model with its numbers",
     "dgemma verify -m models/demo --device cuda"},
    {Verb::bench, "bench", "", "measure load, prefill and denoising steps on this machine",
     "dgemma bench -m models/demo --prompt-tokens 512 --steps 5 --json"},
    {Verb::serve, "serve", "", "answer the clients of OpenAI's and Anthropic's APIs over HTTP",
     "dgemma serve --port 8080"},
}};

// A member that is not named keeps its default. Four lines a flag, laid out by hand.
// clang-format off
const std::array<FlagInfo, flag_count> flag_table = {{
    {.flag = Flag::model, .name = "model", .short_name = 'm', .kind = FlagKind::paths,
     .verbs = generating | replay | serve | info | doctor | tokenize | template_text | quantize | bench | verify, .group = "Model", .value_name = "MODEL", .fallback = "the embedded demo, models/demo",
     .help = "a checkpoint: a directory, a safetensors file, or a name of the hub cache (org/name); serve takes "
             "NAME=MODEL too, and several"},
    {.flag = Flag::tokenizer, .name = "tokenizer", .kind = FlagKind::path,
     .verbs = tokenize | synth, .group = "Model", .value_name = "FILE", .fallback = "the model's; synth: none",
     .help = "a tokenizer.json, also gzipped, in place of a model; synth: to put into the pack",
     .environment = false},
    {.flag = Flag::template_file, .name = "template", .kind = FlagKind::path,
     .verbs = template_text, .group = "Model", .value_name = "FILE", .fallback = "the model's",
     .help = "a chat_template.jinja in place of a model; it must be one of the known revisions",
     .environment = false},
    {.flag = Flag::template_fallback, .name = "template-fallback", .kind = FlagKind::choice,
     .verbs = ask | serve | template_text, .group = "Model", .value_name = "REVISION", .fallback = "refuse it",
     .help = "the revision to use when the checkpoint's chat template is not a known one",
     .choices = {"canonical"}},
    {.flag = Flag::file, .name = "file", .short_name = 'f', .kind = FlagKind::path,
     .verbs = ask, .group = "Prompt", .value_name = "FILE",
     .help = "read the prompt from a file; - is stdin",
     .environment = false},
    {.flag = Flag::messages, .name = "messages", .kind = FlagKind::path,
     .verbs = ask, .group = "Prompt", .value_name = "FILE",
     .help = "a conversation: a JSON list of messages, or an object with \"messages\" and maybe "
             "\"tools\"; a prompt given as well becomes its last message; - is stdin",
     .environment = false},
    {.flag = Flag::tools, .name = "tools", .kind = FlagKind::path,
     .verbs = ask, .group = "Prompt", .value_name = "FILE",
     .help = "a JSON list of tools the model may call; - is stdin",
     .environment = false},
    {.flag = Flag::system, .name = "system", .short_name = 's', .kind = FlagKind::text,
     .verbs = ask, .group = "Prompt", .value_name = "TEXT", .fallback = "none",
     .help = "the system message"},
    {.flag = Flag::think, .name = "think", .kind = FlagKind::toggle,
     .verbs = ask, .group = "Prompt", .fallback = "off",
     .help = "let the model think first; the thought goes to stderr"},
    {.flag = Flag::raw, .name = "raw", .kind = FlagKind::toggle,
     .verbs = ask, .group = "Prompt", .fallback = "off",
     .help = "the prompt is template text: control tokens in it are control tokens, and only <bos> is "
             "added",
     .environment = false},
    {.flag = Flag::cases, .name = "cases", .kind = FlagKind::path,
     .verbs = eval, .group = "Cases", .value_name = "FILE",
     .help = "the rows, always needed: JSON lines of {\"kind\", \"prompt\", \"expected\", \"stop\", \"exact\"}; - is stdin",
     .environment = false},
    {.flag = Flag::prompt_tokens, .name = "prompt-tokens", .kind = FlagKind::whole,
     .verbs = bench, .group = "Measurement", .value_name = "N", .fallback = "512",
     .help = "how many random tokens to encode before denoising",
     .environment = false, .least = 1, .most = 16777216},
    {.flag = Flag::context, .name = "context", .kind = FlagKind::whole,
     .verbs = bench, .group = "Measurement", .value_name = "N", .fallback = "512",
     .help = "the same by another name",
     .environment = false, .least = 1, .most = 16777216},
    {.flag = Flag::batch, .name = "batch", .kind = FlagKind::whole,
     .verbs = bench, .group = "Measurement", .value_name = "N", .fallback = "1",
     .help = "how many canvases, each with its own context, are denoised in one pass",
     .environment = false, .least = 1, .most = 256},
    {.flag = Flag::limit, .name = "limit", .kind = FlagKind::whole,
     .verbs = eval, .group = "Cases", .value_name = "N", .fallback = "all",
     .help = "run the first N rows",
     .environment = false, .least = 1, .most = 1e9},
    {.flag = Flag::exact_only, .name = "exact-only", .kind = FlagKind::toggle,
     .verbs = eval, .group = "Cases", .fallback = "off",
     .help = "leave out the rows that have many right answers, before --limit counts",
     .environment = false},
    {.flag = Flag::rows, .name = "rows", .kind = FlagKind::path,
     .verbs = eval, .group = "Cases", .value_name = "FILE", .fallback = "none",
     .help = "write one JSON line per row to a file",
     .environment = false},
    {.flag = Flag::output, .name = "output", .short_name = 'o', .kind = FlagKind::path,
     .verbs = packing, .group = "Pack", .value_name = "DIR", .fallback = "needed",
     .help = "the directory to make; it appears when it is complete, and not at all when something fails",
     .environment = false},
    {.flag = Flag::force, .name = "force", .kind = FlagKind::toggle,
     .verbs = packing, .group = "Pack", .fallback = "off",
     .help = "replace a pack that is there already, in one step at the end",
     .environment = false},
    {.flag = Flag::profile, .name = "profile", .kind = FlagKind::choice,
     .verbs = quantize, .group = "Pack", .value_name = "NAME", .fallback = "q4",
     .help = "the formats of all classes: q4 is 4-bit experts and 8-bit attention, dense and "
             "self-conditioning; docs/PACK.md spells out all of them",
     .environment = false,
     .choices = {"bf16", "q8", "q4", "fp8", "nvfp4"}},
    {.flag = Flag::set, .name = "set", .kind = FlagKind::list,
     .verbs = quantize, .group = "Pack", .value_name = "CLASS=FORMAT", .fallback = "as the profile says",
     .help = "another format for a class (experts, attn, dense, sc, vision), such as attn=bf16; may be "
             "given several times",
     .environment = false},
    {.flag = Flag::check, .name = "check", .kind = FlagKind::path,
     .verbs = quantize, .group = "Pack", .value_name = "DIR", .fallback = "none",
     .help = "read a pack again and compare its checksums; with --model also its numbers with the model it "
             "was made of",
     .environment = false},
    {.flag = Flag::scalar, .name = "scalar", .kind = FlagKind::toggle,
     .verbs = verify, .group = "Comparison", .fallback = "off",
     .help = "compare with the slow scalar oracle, and not with the CPU's own kernels",
     .environment = false},
    {.flag = Flag::dump, .name = "dump", .kind = FlagKind::path,
     .verbs = verify, .group = "Comparison", .value_name = "DIR", .fallback = "none",
     .help = "write the figures as JSON into a directory, and all numbers of both sides as safetensors",
     .environment = false},
    {.flag = Flag::preset, .name = "preset", .kind = FlagKind::choice,
     .verbs = synth | bench, .group = "Pack", .value_name = "NAME", .fallback = "26b; bench: measure --model",
     .help = "whose shapes; bench: of random weights made in the memory of a GPU, in place of a model",
     .environment = false,
     .choices = {"26b", "demo", "tiny"}},
    {.flag = Flag::layers, .name = "layers", .kind = FlagKind::whole,
     .verbs = synth | bench | verify, .group = "Pack", .value_name = "N",
     .fallback = "the preset's; verify: as many as the CPU computes in a minute",
     .help = "how many layers, the first of them",
     .environment = false, .least = 1, .most = 1000},
    {.flag = Flag::format, .name = "format", .kind = FlagKind::choice,
     .verbs = synth | bench, .group = "Pack", .value_name = "NAME", .fallback = "bf16",
     .help = "as --profile of quantize; bench: with --preset",
     .environment = false,
     .choices = {"bf16", "q8", "q4", "fp8", "nvfp4"}},
    {.flag = Flag::logits, .name = "logits", .kind = FlagKind::choice,
     .verbs = synth, .group = "Pack", .value_name = "SHAPE", .fallback = "flat",
     .help = "rows of the head in which nothing stands out, or in which at most 1 % of the vocabulary "
             "matters",
     .environment = false,
     .choices = {"flat", "peaked"}},
    {.flag = Flag::max_tokens, .name = "max-tokens", .short_name = 'n', .kind = FlagKind::whole,
     .verbs = ask, .group = "Reply", .value_name = "N", .fallback = "4096, or what the context leaves",
     .help = "the longest reply, in tokens",
     .least = 1, .most = 16777216},
    {.flag = Flag::stop, .name = "stop", .kind = FlagKind::list,
     .verbs = ask, .group = "Reply", .value_name = "TEXT", .fallback = "none",
     .help = "end the reply before this text of the answer; may be given several times",
     .environment = false},
    {.flag = Flag::seed, .name = "seed", .kind = FlagKind::whole,
     .verbs = generating | synth | bench | verify, .group = "Denoising", .value_name = "N", .fallback = "0",
     .help = "of all random numbers; the same seed gives the same reply with any number of threads",
     .least = 0, .most = most_u64},
    {.flag = Flag::steps, .name = "steps", .kind = FlagKind::whole,
     .verbs = generating | bench, .group = "Denoising", .value_name = "N", .fallback = "the checkpoint's, 48",
     .help = "most denoising steps of a block; the temperature falls with step / N, so a higher cap "
             "also changes the steps before it, and is often slower and worse",
     .least = 1, .most = 10000},
    {.flag = Flag::temperature, .name = "temperature", .short_name = 't', .kind = FlagKind::real,
     .verbs = ask, .group = "Denoising", .value_name = "X", .fallback = "0, the most probable token",
     .help = "of drawn tokens; 1 draws from the schedule's own distribution",
     .least = 0, .most = 100},
    {.flag = Flag::sampler, .name = "sampler", .kind = FlagKind::choice,
     .verbs = generating, .group = "Denoising", .value_name = "NAME", .fallback = "the checkpoint's, entropy-bound",
     .help = "how a step chooses the positions it keeps",
     .choices = {"entropy-bound", "confidence-threshold"}},
    {.flag = Flag::entropy_bound, .name = "entropy-bound", .kind = FlagKind::real,
     .verbs = generating, .group = "Denoising", .value_name = "NATS", .fallback = "the checkpoint's, 0.1",
     .help = "what the kept positions of a step may add up to in entropy",
     .least = 0, .most = 1e6, .open = true},
    {.flag = Flag::threshold, .name = "threshold", .kind = FlagKind::real,
     .verbs = generating, .group = "Denoising", .value_name = "P", .fallback = "the checkpoint's, 0.9",
     .help = "of the confidence-threshold sampler: the probability from which a position is revealed",
     .least = 0, .most = 1, .open = true},
    {.flag = Flag::confidence_threshold, .name = "confidence-threshold", .kind = FlagKind::real,
     .verbs = generating, .group = "Denoising", .value_name = "NATS", .fallback = "the checkpoint's, 0.005",
     .help = "the mean entropy below which a stable canvas is done",
     .least = 0, .most = 1e6, .open = true},
    {.flag = Flag::canvas_length, .name = "canvas-length", .kind = FlagKind::whole,
     .verbs = generating | bench | info, .group = "Denoising", .value_name = "N", .fallback = "the checkpoint's",
     .help = "tokens denoised at once; shrink is --shrink-canvas",
     .least = 1, .most = 65536, .choices = {"shrink"}},
    {.flag = Flag::shrink_canvas, .name = "shrink-canvas", .kind = FlagKind::toggle,
     .verbs = generating, .group = "Denoising", .fallback = "off",
     .help = "a smaller canvas where few tokens are left to --max-tokens (the rule of MLX)"},
    {.flag = Flag::noise, .name = "noise", .kind = FlagKind::choice,
     .verbs = generating, .group = "Denoising", .value_name = "SOURCE", .fallback = "counter",
     .help = "where random ids come from: ours, or the numbers another engine would have drawn",
     .choices = {"counter", "mlx", "torch-cpu"}},
    {.flag = Flag::self_conditioning, .name = "self-conditioning", .kind = FlagKind::choice,
     .verbs = generating | bench, .group = "Denoising", .value_name = "HOW", .fallback = "dense",
     .help = "sparse leaves out what is less likely than e^-10 of a row's best: faster on a large vocabulary, an "
             "approximation that the stats name; off with --exact",
     .choices = {"dense", "sparse"}},
    {.flag = Flag::exact, .name = "exact", .kind = FlagKind::toggle,
     .verbs = generating | serve | info, .group = "Denoising", .fallback = "off",
     .help = "as the reference does it: no guards, no approximations"},
    {.flag = Flag::guard, .name = "guard", .kind = FlagKind::guard,
     .verbs = generating, .group = "Denoising", .value_name = "NAME", .fallback = "see docs/CONTRACT.md",
     .help = "turn a guard on; may be given several times",
     .environment = false},
    {.flag = Flag::no_guard, .name = "no-guard", .kind = FlagKind::guard,
     .verbs = generating, .group = "Denoising", .value_name = "NAME",
     .help = "turn a guard off; \"all\" for every one",
     .environment = false},
    {.flag = Flag::host, .name = "host", .kind = FlagKind::text,
     .verbs = serve, .group = "Server", .value_name = "ADDRESS", .fallback = "127.0.0.1, this machine alone",
     .help = "where to listen; 0.0.0.0 is every address, and then there should be an --api-key"},
    {.flag = Flag::port, .name = "port", .kind = FlagKind::whole,
     .verbs = serve, .group = "Server", .value_name = "N", .fallback = "8080",
     .help = "0 takes any free one and says which",
     .least = 0, .most = 65535},
    {.flag = Flag::api_key, .name = "api-key", .kind = FlagKind::list,
     .verbs = serve, .group = "Server", .value_name = "KEY", .fallback = "everybody may ask",
     .help = "a key that clients must send; may be given several times"},
    {.flag = Flag::cors_origin, .name = "cors-origin", .kind = FlagKind::text,
     .verbs = serve, .group = "Server", .value_name = "ORIGIN", .fallback = "*",
     .help = "which web pages may ask; none allows no page"},
    {.flag = Flag::lenient, .name = "lenient", .kind = FlagKind::toggle,
     .verbs = serve, .group = "Server", .fallback = "off",
     .help = "pass over fields that cannot be honoured, in place of refusing them"},
    {.flag = Flag::tool_validate, .name = "tool-validate", .kind = FlagKind::toggle,
     .verbs = serve, .group = "Server", .fallback = "off",
     .help = "have tool calls that do not fit their schema made again"},
    {.flag = Flag::tool_repair, .name = "tool-repair", .kind = FlagKind::toggle,
     .verbs = serve, .group = "Server", .fallback = "off",
     .help = "tell the model what was wrong with a tool call before it makes it again"},
    {.flag = Flag::deadline, .name = "deadline", .kind = FlagKind::whole,
     .verbs = serve, .group = "Server", .value_name = "SECONDS", .fallback = "none",
     .help = "end every reply after this time, with what there is of it",
     .least = 1, .most = 86400},
    {.flag = Flag::max_queue, .name = "max-queue", .kind = FlagKind::whole,
     .verbs = serve, .group = "Server", .value_name = "N", .fallback = "256",
     .help = "how many requests may wait; more are told to come back later",
     .least = 1, .most = 100000},
    {.flag = Flag::max_running, .name = "max-running", .kind = FlagKind::whole,
     .verbs = serve, .group = "Server", .value_name = "N", .fallback = "16",
     .help = "how many requests are denoised together",
     .least = 1, .most = 1024},
    {.flag = Flag::cache_memory, .name = "cache-memory", .kind = FlagKind::whole,
     .verbs = serve, .group = "Server", .value_name = "MIB", .fallback = "a quarter of this machine's",
     .help = "what conversations may keep in memory",
     .least = 1, .most = 16777216},
    {.flag = Flag::record, .name = "record", .kind = FlagKind::path,
     .verbs = serve, .group = "Server", .value_name = "FILE", .fallback = "none",
     .help = "write every operation of the engine to a file, as JSON lines"},
    {.flag = Flag::ctx, .name = "ctx", .short_name = 'c', .kind = FlagKind::whole,
     .verbs = generating | serve | doctor | bench | verify | info, .group = "Machine", .value_name = "N", .fallback = "the checkpoint's",
     .help = "the longest context, prompt and reply together, in tokens",
     .least = 1, .most = 16777216},
    {.flag = Flag::device, .name = "device", .kind = FlagKind::text,
     .verbs = generating | serve | doctor | bench | verify, .group = "Machine", .value_name = "NAME", .fallback = "auto",
     .help = "who computes: cpu, cuda, cuda:N for the Nth GPU, or auto, a GPU where build and machine have one"},
    {.flag = Flag::vram, .name = "vram", .kind = FlagKind::whole,
     .verbs = generating | serve | doctor | bench | verify, .group = "Machine", .value_name = "MIB", .fallback = "what is free",
     .help = "the most GPU memory to use, in MiB; what does not fit is refused",
     .least = 1, .most = 16777216},
    {.flag = Flag::threads, .name = "threads", .short_name = 'j', .kind = FlagKind::whole,
     .verbs = generating | replay | serve | doctor | packing | bench | verify, .group = "Machine", .value_name = "N", .fallback = "one per physical core",
     .help = "how many threads compute",
     .least = 1, .most = 1024},
    {.flag = Flag::pin, .name = "pin", .kind = FlagKind::toggle,
     .verbs = generating | serve | bench, .group = "Machine", .fallback = "off",
     .help = "keep each thread on a physical core of its own: steadier where nothing else runs, slower where something "
             "does"},
    {.flag = Flag::backend, .name = "backend", .kind = FlagKind::choice,
     .verbs = generating | serve | doctor | bench, .group = "Machine", .value_name = "NAME", .fallback = "plain",
     .help = "how the CPU computes, which this chooses: \"reference\" is the slow scalar oracle",
     .choices = {"plain", "reference"}},
    {.flag = Flag::precision, .name = "precision", .kind = FlagKind::choice,
     .verbs = generating | serve | doctor | bench | verify | info, .group = "Machine", .value_name = "NAME", .fallback = "mixed, and f32 with --exact",
     .help = "f32 rounds nothing; bf16 rounds where the reference does; mixed computes in f32 and multiplies in what the "
             "weights are stored in, where this machine does that faster",
     .choices = {"mixed", "f32", "bf16"}},
    {.flag = Flag::kv, .name = "kv", .kind = FlagKind::choice,
     .verbs = generating | serve | info | doctor | bench, .group = "Machine", .value_name = "TYPE", .fallback = "bf16; f32 for a checkpoint in it and with --exact",
     .help = "what keys and values are kept in",
     .choices = {"bf16", "f16", "f32"}},
    {.flag = Flag::memory, .name = "memory", .kind = FlagKind::text,
     .verbs = generating | serve | info | doctor, .group = "Machine", .value_name = "SIZE", .fallback = "the machine's, or its container's",
     .help = "what weights, keys and values may take, such as 24G; a model that needs more is refused"},
    {.flag = Flag::fit, .name = "fit", .kind = FlagKind::toggle,
     .verbs = info, .group = "Output", .fallback = "off",
     .help = "only what fits: weights, a token of context, scratch, the longest context; exit code 1 where nothing does",
     .environment = false},
    {.flag = Flag::cpu_isa, .name = "cpu-isa", .kind = FlagKind::choice,
     .verbs = generating | serve | doctor | bench | verify, .group = "Machine", .value_name = "NAME", .fallback = "the best this machine has",
     .help = "the instruction set whose kernels the plain backend uses; doctor lists those that run here",
     .choices = {"baseline", "avx2", "avx512", "avx512_bf16_vnni", "neon", "neon_dot", "neon_i8mm_bf16"}},
    {.flag = Flag::json, .name = "json", .kind = FlagKind::toggle,
     .verbs = generating | replay | info | bench | verify, .group = "Output", .fallback = "off",
     .help = "ask: events, one JSON object a line (docs/EVENTS.md); eval: the result as the last line;"
             " info: one object"},
    {.flag = Flag::jsonl, .name = "jsonl", .kind = FlagKind::toggle,
     .verbs = tokenize | template_text | parse, .group = "Output", .fallback = "on",
     .help = "JSON lines on stdin and stdout, which is the only format there is",
     .environment = false},
    {.flag = Flag::decode, .name = "decode", .short_name = 'd', .kind = FlagKind::toggle,
     .verbs = tokenize, .group = "Output", .fallback = "off",
     .help = "the other way: {\"ids\"} in, {\"text\"} out",
     .environment = false},
    {.flag = Flag::no_special, .name = "no-special", .kind = FlagKind::toggle,
     .verbs = tokenize, .group = "Output", .fallback = "off",
     .help = "treat all of the text as a client's: no control tokens in it",
     .environment = false},
    {.flag = Flag::skip_special, .name = "skip-special", .kind = FlagKind::toggle,
     .verbs = tokenize, .group = "Output", .fallback = "off",
     .help = "with --decode: leave special tokens out of the text",
     .environment = false},
    {.flag = Flag::stats, .name = "stats", .short_name = 'v', .kind = FlagKind::toggle,
     .verbs = ask | serve, .group = "Output", .fallback = "off",
     .help = "what it took, on stderr: steps, blocks, why each ended, guards that fired, times; serve: a line for each "
             "request, and for each prompt that a cache could not help"},
    {.flag = Flag::help, .name = "help", .short_name = 'h', .kind = FlagKind::toggle,
     .group = "General",
     .help = "show this help",
     .environment = false},
    {.flag = Flag::help_markdown, .name = "help-markdown", .kind = FlagKind::toggle,
     .group = "General",
     .help = "write docs/FLAGS.md to stdout",
     .environment = false},
    {.flag = Flag::version, .name = "version", .kind = FlagKind::toggle,
     .group = "General",
     .help = "show the version",
     .environment = false},
}};
// clang-format on

// 0.5 as "0.5", 16777216 as "16777216"; the largest seed does not fit a double exactly.
std::string number_text(double value) {
    if (value >= most_u64) return "18446744073709551615";
    if (value == std::floor(value) && value < 1e15) return fmt::format("{:.0f}", value);
    return fmt::format("{}", value);
}

std::string joined(std::span<const std::string_view> words) {
    std::string out;
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (i > 0) out += i + 1 == words.size() ? " or " : ", ";
        out += words[i];
    }
    return out;
}

}  // namespace

std::span<const VerbInfo> verbs() { return verb_table; }

const VerbInfo& info_of(Verb verb) { return verb_table[static_cast<std::size_t>(verb)]; }

std::span<const FlagInfo> flags() { return flag_table; }

const FlagInfo& info_of(Flag flag) { return flag_table[static_cast<std::size_t>(flag)]; }

std::string environment_name(const FlagInfo& flag) {
    std::string name = "DGEMMA_";
    for (const char c : flag.name) {
        name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    }
    return name;
}

std::string range_text(const FlagInfo& flag) {
    switch (flag.kind) {
        case FlagKind::toggle:
            return "yes or no";
        case FlagKind::whole:
            return fmt::format("a whole number from {} to {}{}{}", number_text(flag.least),
                               number_text(flag.most), flag.choices.empty() ? "" : ", or ",
                               joined(flag.choices));
        case FlagKind::real:
            return flag.open ? fmt::format("a number above {}, at most {}", number_text(flag.least),
                                           number_text(flag.most))
                             : fmt::format("a number from {} to {}", number_text(flag.least),
                                           number_text(flag.most));
        case FlagKind::choice:
            return joined(flag.choices);
        case FlagKind::text:
        case FlagKind::list:
            return "a text that is not empty";
        case FlagKind::path:
        case FlagKind::paths:
            return "the name of a file or directory";
        case FlagKind::guard:
            return joined(guard_names());
    }
    return "";
}

}  // namespace dgemma::cli
