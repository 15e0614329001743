#include "engine/record.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "diffusion/guards.h"

namespace dgemma::engine {

namespace {

void append_text(std::string& out, std::string_view text) {
    out += '"';
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
            out += c;
        }
    }
    out += '"';
}

// -0 without a point would be read back as a whole number, which has no sign to keep.
template <class Number>
std::string number_json(Number value) {
    if (!std::isfinite(value)) return "null";
    return value == 0 && std::signbit(value) ? "-0.0" : fmt::format("{}", value);
}

// Where the last complete line of a file ends. -1: the system refused.
std::int64_t end_of_lines(int descriptor) {
    struct stat facts {};
    if (fstat(descriptor, &facts) != 0) return -1;
    char piece[4096];
    for (std::int64_t end = facts.st_size; end > 0;) {
        const std::int64_t begin = std::max<std::int64_t>(0, end - static_cast<std::int64_t>(sizeof piece));
        const ssize_t got = pread(descriptor, piece, static_cast<std::size_t>(end - begin), begin);
        if (got != end - begin) return -1;
        for (std::int64_t i = got; i-- > 0;) {
            if (piece[i] == '\n') return begin + i + 1;
        }
        end = begin;
    }
    return 0;
}

Error refused(const std::filesystem::path& file) {
    return {ErrorKind::io, fmt::format("the record {} cannot be written: {}", file.string(),
                                       std::generic_category().message(errno))};
}

}  // namespace

Result<std::unique_ptr<RecordFile>> RecordFile::open(const std::filesystem::path& file) {
    const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (descriptor < 0) return refused(file);
    std::unique_ptr<RecordFile> record(new RecordFile(descriptor));
    struct stat facts {};
    // A pipe or a terminal has no end to look at.
    if (fstat(descriptor, &facts) == 0 && S_ISREG(facts.st_mode)) {
        // Two runs that write by turns would leave a record that neither's replay can follow.
        if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            return Error{ErrorKind::io,
                         fmt::format("the record {} is being written by another process: name another file",
                                     file.string())};
        }
        const std::int64_t end = end_of_lines(descriptor);
        if (end < 0 || ftruncate(descriptor, end) != 0) return refused(file);
    }
    return record;
}

RecordFile::~RecordFile() { close(descriptor_); }

void RecordFile::line(std::string_view json) {
    if (broken_) return;
    buffer_.assign(json);
    buffer_ += '\n';
    for (std::size_t done = 0; done < buffer_.size();) {
        const ssize_t wrote = write(descriptor_, buffer_.data() + done, buffer_.size() - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            broken_ = true;
            return;
        }
        done += static_cast<std::size_t>(wrote);
    }
}

void JsonLine::name(std::string_view name) {
    text_ += text_.empty() ? '{' : ',';
    append_text(text_, name);
    text_ += ':';
}

JsonLine& JsonLine::add(std::string_view key, std::string_view text) {
    name(key);
    append_text(text_, text);
    return *this;
}

JsonLine& JsonLine::add(std::string_view key, bool value) { return add_json(key, value ? "true" : "false"); }

JsonLine& JsonLine::add(std::string_view key, std::int64_t value) {
    return add_json(key, fmt::format_int(value).c_str());
}

JsonLine& JsonLine::add(std::string_view key, std::uint64_t value) {
    return add_json(key, fmt::format_int(value).c_str());
}

JsonLine& JsonLine::add(std::string_view key, float value) { return add_json(key, number_json(value)); }

JsonLine& JsonLine::add(std::string_view key, double value) { return add_json(key, number_json(value)); }

JsonLine& JsonLine::add(std::string_view key, std::span<const std::int32_t> ids) {
    name(key);
    text_ += '[';
    for (std::size_t i = 0; i < ids.size(); ++i) {
        if (i > 0) text_ += ',';
        const fmt::format_int digits(ids[i]);
        text_.append(digits.data(), digits.size());
    }
    text_ += ']';
    return *this;
}

JsonLine& JsonLine::add(std::string_view key, std::span<const std::string> texts) {
    name(key);
    text_ += '[';
    for (std::size_t i = 0; i < texts.size(); ++i) {
        if (i > 0) text_ += ',';
        append_text(text_, texts[i]);
    }
    text_ += ']';
    return *this;
}

JsonLine& JsonLine::add_json(std::string_view key, std::string_view json) {
    name(key);
    text_ += json;
    return *this;
}

void add_request(JsonLine& line, const Request& request) {
    const diffusion::Options& d = request.diffusion;
    const diffusion::Guards& g = d.guards;
    JsonLine guards;
    guards.add("degenerate_gate", g.degenerate_gate)
        .add("last_step", g.last_step)
        .add("tool_aware_stop", g.tool_aware_stop)
        .add("empty_reply_rerolls", g.empty_reply_rerolls)
        .add("entropy_stop", g.entropy_stop)
        .add("plateau_stop", g.plateau_stop)
        .add("confidence_trim", g.confidence_trim)
        .add("hard_trim", g.hard_trim)
        .add("hard_trim_floor", g.hard_trim_floor)
        .add("prefix_exit", g.prefix_exit)
        .add("nonconvergence_reroll", g.nonconvergence_reroll)
        .add("whitespace_stop", g.whitespace_stop);
    JsonLine denoising;
    denoising.add("sampler", diffusion::name_of(d.sampler))
        .add("max_steps", d.max_steps)
        .add("entropy_bound", d.entropy_bound)
        .add("threshold", d.threshold)
        .add("t_min", d.t_min)
        .add("t_max", d.t_max)
        .add("stability_threshold", d.stability_threshold)
        .add("confidence_threshold", d.confidence_threshold)
        .add("adaptive_stop", d.adaptive_stop)
        .add("temperature", d.temperature)
        .add("seed", d.seed)
        .add("noise", diffusion::name_of(d.noise))
        .add_json("guards", guards.text());
    std::vector<std::int32_t> pins;  // position, id, position, id ...
    for (const diffusion::Pin& pin : request.pins) {
        pins.push_back(pin.position);
        pins.push_back(pin.id);
    }
    std::vector<std::string> functions;
    if (request.shows_nothing) functions.emplace_back("shows_nothing");
    if (request.inside_quote) functions.emplace_back("inside_quote");
    if (request.is_space) functions.emplace_back("is_space");
    if (request.next_prompt) functions.emplace_back("next_prompt");
    line.add("prompt", request.prompt)
        .add("max_tokens", request.max_tokens)
        .add("canvas_length", request.canvas_length)
        .add("shrink_canvas", request.shrink_canvas)
        .add("stop_ids", request.stop_ids)
        .add("pins", pins)
        .add("exact", request.exact)
        .add("soft_cutoff", request.soft_cutoff)
        .add("attempt", request.attempt)
        .add("round", request.continuation.round)
        .add("suffix", request.continuation.suffix)
        .add("functions", std::span<const std::string>(functions))
        .add_json("diffusion", denoising.text());
}

std::string load_json(const LoadOptions& load) {
    constexpr const char* backends[] = {"plain", "reference", "cuda"};
    constexpr const char* precisions[] = {"f32", "bf16", "mixed"};
    JsonLine line;
    line.add("backend", backends[static_cast<std::size_t>(load.backend)])
        .add("precision", precisions[static_cast<std::size_t>(load.precision)])
        .add("kv", load.kv ? name_of(*load.kv) : std::string_view())
        .add("cpu_isa", load.cpu_isa)
        .add("threads", load.threads)
        .add("where", load.where)
        .add("device", load.device)
        .add("vram", load.vram)
        .add("context", load.context)
        .add("prefill_chunk", load.prefill_chunk);
    return line.text();
}

}  // namespace dgemma::engine
