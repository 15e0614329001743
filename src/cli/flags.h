// The one table of flags. The parser, --help, the environment names and docs/FLAGS.md are all read from it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dgemma::cli {

enum class Verb : std::uint8_t {
    ask,
    eval,
    info,
    doctor,
    tokenize,
    template_text,
    parse,
    quantize,
    synth,
    replay,
    verify,
    bench,
    serve
};

struct VerbInfo {
    Verb verb;
    std::string_view name;       // what is typed
    std::string_view arguments;  // what may follow besides flags, as help shows it; empty for none
    std::string_view summary;    // one line
    std::string_view example;    // a whole command
};
std::span<const VerbInfo> verbs();
const VerbInfo& info_of(Verb verb);

// In the order of the table.
enum class Flag : std::uint8_t {
    model,
    tokenizer,
    template_file,
    template_fallback,
    file,
    messages,
    tools,
    system,
    think,
    raw,
    cases,
    prompt_tokens,
    context,
    batch,
    limit,
    exact_only,
    rows,
    output,
    force,
    profile,
    set,
    check,
    scalar,
    dump,
    preset,
    layers,
    format,
    logits,
    max_tokens,
    stop,
    seed,
    steps,
    temperature,
    sampler,
    entropy_bound,
    threshold,
    confidence_threshold,
    canvas_length,
    shrink_canvas,
    noise,
    self_conditioning,
    exact,
    guard,
    no_guard,
    host,
    port,
    api_key,
    cors_origin,
    lenient,
    tool_validate,
    tool_repair,
    deadline,
    max_queue,
    max_running,
    cache_memory,
    record,
    ctx,
    device,
    vram,
    threads,
    pin,
    backend,
    precision,
    kv,
    memory,
    fit,
    cpu_isa,
    json,
    jsonl,
    decode,
    no_special,
    skip_special,
    stats,
    help,
    help_markdown,
    version,
};
inline constexpr std::size_t flag_count = static_cast<std::size_t>(Flag::version) + 1;

enum class FlagKind : std::uint8_t {
    toggle,  // on or off
    whole,   // a whole number in [least, most], or one of `choices`
    real,    // a finite number in [least, most], or (least, most] where `open` says so
    choice,  // one of `choices`
    text,    // anything but nothing
    path,    // as text; help calls it a file
    paths,   // the same, may be given several times
    list,    // text, may be given several times
    guard,   // a list of guard names, see guards.h
};

struct FlagInfo {
    Flag flag;
    std::string_view name;  // without the dashes
    char short_name = 0;    // 0: none
    FlagKind kind;
    std::uint32_t verbs = 0;      // bit set, see bit_of; 0: before any verb too
    std::string_view group;       // the heading in help
    std::string_view value_name;  // "N", "FILE"; empty for toggles
    std::string_view fallback;    // what holds when nothing is given, as help says it; may be empty
    std::string_view help;
    bool environment = true;     // readable as DGEMMA_<NAME>
    double least = 0, most = 0;  // of numbers
    bool open = false;           // `least` itself is not allowed
    std::vector<std::string_view> choices = {};
};

constexpr std::uint32_t bit_of(Verb verb) { return 1u << static_cast<unsigned>(verb); }

std::span<const FlagInfo> flags();
const FlagInfo& info_of(Flag flag);

// "DGEMMA_MAX_TOKENS" for --max-tokens.
std::string environment_name(const FlagInfo& flag);

// What the flag takes, to follow "takes" in a sentence: "a whole number from 1 to 1000".
std::string range_text(const FlagInfo& flag);

}  // namespace dgemma::cli
