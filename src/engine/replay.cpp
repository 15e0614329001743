#include "engine/replay.h"

#include <fstream>
#include <limits>
#include <memory>
#include <utility>

#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "engine/record.h"
#include "engine/reply.h"
#include "engine/runner.h"

namespace dgemma::engine {

namespace {

using Json = nlohmann::json;

// Bounds on what a file may ask for; a scheduler records nothing beyond them.
constexpr int most_running = 1024, most_rewind = 1 << 20;

// Null for what is no JSON, and for what is nested deeper than a record ever is: comparing and printing
// recurse.
Json parsed(const std::string& text) {
    constexpr int deepest = 16;
    int depth = 0;
    bool quoted = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted) {
            if (c == '\\') ++i;
            quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (++depth > deepest) return {};
        } else if (c == ']' || c == '}') {
            --depth;
        }
    }
    Json json = Json::parse(text, nullptr, false);
    return json.is_discarded() ? Json() : json;
}

// The lines of a record, the next one in view. A last line without a line feed is no line.
class Lines {
  public:
    explicit Lines(const std::filesystem::path& file) : in_(file, std::ios::binary) { advance(); }

    [[nodiscard]] bool opened() const { return in_.is_open(); }
    [[nodiscard]] bool end() const { return end_; }
    [[nodiscard]] bool cut_off() const { return cut_off_; }
    [[nodiscard]] const std::string& text() const { return text_; }
    [[nodiscard]] std::uint64_t number() const { return number_; }
    // The line as JSON; null where it is none.
    [[nodiscard]] Json json() const { return parsed(text_); }

    void advance() {
        text_.clear();
        std::getline(in_, text_);
        cut_off_ = in_.eof() && !text_.empty();
        end_ = in_.eof() || !in_;
        if (!end_) ++number_;
    }

  private:
    std::ifstream in_;
    std::string text_;
    std::uint64_t number_ = 0;
    bool end_ = false, cut_off_ = false;
};

Error bad_line(const Lines& lines, std::string_view what) {
    return {ErrorKind::invalid,
            fmt::format("line {} of the record {}: give a file that --record wrote", lines.number(), what)};
}

LoadOptions load_of(const Json& json) {
    LoadOptions load;
    const auto backend = json.at("backend").get<std::string>();
    load.backend = backend == "reference" ? BackendKind::reference
                   : backend == "cuda"    ? BackendKind::cuda
                                          : BackendKind::plain;
    const auto precision = json.at("precision").get<std::string>();
    load.precision = precision == "bf16"    ? backend::Precision::bf16
                     : precision == "mixed" ? backend::Precision::mixed
                                            : backend::Precision::f32;
    const auto kv = json.at("kv").get<std::string>();
    for (const Dtype type : {Dtype::f32, Dtype::bf16, Dtype::f16}) {
        if (kv == name_of(type)) load.kv = type;
    }
    load.cpu_isa = json.at("cpu_isa").get<std::string>();
    load.threads = json.at("threads").get<int>();
    load.where = json.at("where").get<std::string>();
    load.device = json.at("device").get<int>();
    load.vram = json.at("vram").get<std::uint64_t>();
    load.context = json.at("context").get<int>();
    load.prefill_chunk = json.at("prefill_chunk").get<int>();
    return load;
}

Result<RecordHeader> header_of(const Lines& lines) {
    const Json json = lines.end() ? Json() : lines.json();
    if (!json.is_object() || !json.contains("record")) return bad_line(lines, "begins no run");
    try {
        if (json.at("record") != kRecordVersion) {
            return Error{
                ErrorKind::unsupported,
                fmt::format("line {} says that this is a record of version {}, and this program reads "
                            "version {}: replay it with the program that wrote it",
                            lines.number(), json.at("record").dump(), kRecordVersion)};
        }
        RecordHeader header{.version = json.at("version").get<std::string>(),
                            .model = json.at("model").get<std::string>(),
                            .vocabulary = json.at("vocabulary").get<int>(),
                            .load = load_of(json.at("load")),
                            .max_running = json.at("max_running").get<int>(),
                            .memory_bytes = json.at("memory_bytes").get<std::uint64_t>(),
                            .rewind_tokens = json.at("rewind_tokens").get<int>(),
                            .max_conversations = json.at("max_conversations").get<int>()};
        if (header.max_running < 1 || header.max_running > most_running || header.rewind_tokens < 0 ||
            header.rewind_tokens > most_rewind || header.max_conversations < 0)
            return bad_line(lines, "has numbers that no run has");
        return header;
    } catch (const Json::exception&) {
        return bad_line(lines, "lacks what the first line of a run has");
    }
}

// Throws what nlohmann throws where something is missing.
Request request_of(const Json& json) {
    Request r;
    r.prompt = json.at("prompt").get<std::vector<std::int32_t>>();
    r.max_tokens = json.at("max_tokens").get<int>();
    r.canvas_length = json.at("canvas_length").get<int>();
    r.shrink_canvas = json.at("shrink_canvas").get<bool>();
    r.stop_ids = json.at("stop_ids").get<std::vector<std::int32_t>>();
    const auto pins = json.at("pins").get<std::vector<std::int32_t>>();
    for (std::size_t i = 0; i + 1 < pins.size(); i += 2) r.pins.push_back({pins[i], pins[i + 1]});
    r.exact = json.at("exact").get<bool>();
    if (!json.at("soft_cutoff").is_null()) r.soft_cutoff = json.at("soft_cutoff").get<float>();
    r.attempt = json.at("attempt").get<int>();
    r.continuation.round = json.at("round").get<std::uint64_t>();
    r.continuation.suffix = json.at("suffix").get<std::vector<std::int32_t>>();
    const Json& d = json.at("diffusion");
    diffusion::Options& o = r.diffusion;
    o.sampler = diffusion::sampler_named(d.at("sampler").get<std::string>()).value_or(o.sampler);
    o.max_steps = d.at("max_steps").get<int>();
    o.entropy_bound = d.at("entropy_bound").get<float>();
    o.threshold = d.at("threshold").get<float>();
    o.t_min = d.at("t_min").get<double>();
    o.t_max = d.at("t_max").get<double>();
    o.stability_threshold = d.at("stability_threshold").get<int>();
    o.confidence_threshold = d.at("confidence_threshold").get<float>();
    o.adaptive_stop = d.at("adaptive_stop").get<bool>();
    o.temperature = d.at("temperature").get<float>();
    o.seed = d.at("seed").get<std::uint64_t>();
    o.noise = diffusion::noise_named(d.at("noise").get<std::string>()).value_or(o.noise);
    const Json& g = d.at("guards");
    o.guards.degenerate_gate = g.at("degenerate_gate").get<bool>();
    o.guards.last_step = g.at("last_step").get<bool>();
    o.guards.tool_aware_stop = g.at("tool_aware_stop").get<bool>();
    o.guards.empty_reply_rerolls = g.at("empty_reply_rerolls").get<int>();
    o.guards.entropy_stop = g.at("entropy_stop").get<bool>();
    o.guards.plateau_stop = g.at("plateau_stop").get<bool>();
    o.guards.confidence_trim = g.at("confidence_trim").get<bool>();
    o.guards.hard_trim = g.at("hard_trim").get<bool>();
    o.guards.hard_trim_floor = g.at("hard_trim_floor").get<float>();
    o.guards.prefix_exit = g.at("prefix_exit").get<bool>();
    o.guards.nonconvergence_reroll = g.at("nonconvergence_reroll").get<bool>();
    o.guards.whitespace_stop = g.at("whitespace_stop").get<bool>();
    return r;
}

std::string shortened(const Json& json) {
    std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() > 120) text = text.substr(0, 117) + "...";
    return text;
}

// The first member in which two lines differ.
ReplayReport::Difference compare(std::uint64_t number, const std::string& recorded, const std::string& now) {
    const Json a = parsed(recorded), b = parsed(now);
    if (a.is_object() && b.is_object() && a.value("event", "") == b.value("event", "") &&
        a.value("op", "") == b.value("op", "")) {
        for (const auto& [key, value] : a.items()) {
            if (b.contains(key) && b[key] == value) continue;
            if (value.is_array() && b.contains(key) && b[key].is_array()) {
                for (std::size_t i = 0; i < std::max(value.size(), b[key].size()); ++i) {
                    const Json x = i < value.size() ? value[i] : Json(),
                               y = i < b[key].size() ? b[key][i] : Json();
                    if (x != y) return {number, fmt::format("{}[{}]", key, i), shortened(x), shortened(y)};
                }
            }
            return {number, key, shortened(value), b.contains(key) ? shortened(b[key]) : "nothing"};
        }
    }
    return {number, "what happens", shortened(a), shortened(b)};
}

// Takes the lines that the replay writes, one for each that was recorded.
class Comparison final : public Record {
  public:
    Comparison(Lines& lines, ReplayReport& report) : lines_(lines), report_(report) {}

    void line(std::string_view json) override {
        if (over()) return;
        if (lines_.text() != json) {
            report_.difference = compare(lines_.number(), lines_.text(), std::string(json));
            return;
        }
        ++report_.lines;
        lines_.advance();
    }
    // Nothing is left to compare: the run ends here, maybe in the middle of a pass, if its process was
    // killed.
    [[nodiscard]] bool over() const {
        return lines_.end() || report_.difference.has_value() || lines_.text().starts_with("{\"record\":");
    }
    // What the client answered: the line that will be written next says it.
    [[nodiscard]] Json coming(const char* event) const {
        if (over()) return Json::object();
        Json json = lines_.json();
        return json.is_object() && json.value("event", "") == event ? json : Json::object();
    }

  private:
    Lines& lines_;
    ReplayReport& report_;
};

// A client that says what the recorded one said.
class Client final : public RequestSink {
  public:
    explicit Client(const Comparison& recorded) : recorded_(recorded) {}
    BlockVerdict on_block(const BlockEvent&) override {
        const std::string verdict = recorded_.coming("block").value("verdict", "go_on");
        return verdict == "stop_string" ? BlockVerdict::stop_string
               : verdict == "cancel"    ? BlockVerdict::cancel
                                        : BlockVerdict::go_on;
    }
    void on_failure(const Error&) override {}

  private:
    const Comparison& recorded_;
};

void answer_as_recorded(Request& request, const Json& functions, const Comparison& recorded) {
    const auto answer = [&recorded] { return recorded.coming("ask").value("answer", false); };
    for (const Json& name : functions) {
        if (name == "shows_nothing") {
            request.shows_nothing = [answer](std::span<const std::int32_t>) { return answer(); };
        } else if (name == "inside_quote") {
            request.inside_quote = [answer](std::span<const std::int32_t>) { return answer(); };
        } else if (name == "is_space") {
            request.is_space = [answer](std::int32_t) { return answer(); };
        } else if (name == "next_prompt") {
            request.next_prompt = [&recorded](std::span<const std::int32_t>, const EndEvent&) {
                return recorded.coming("next_prompt").value("ids", std::vector<std::int32_t>());
            };
        }
    }
}

Status submit_recorded(Runner& runner, const LoadedModel& loaded, const RecordHeader& header, const Json& op,
                       const Lines& lines, const Comparison& comparison) {
    try {
        const auto id = op.at("id").get<RequestId>();
        Request request = request_of(op);
        answer_as_recorded(request, op.at("functions"), comparison);
        Result<ReplySetup> setup = check_request(loaded, request);
        if (!setup || request_bytes(loaded, header.rewind_tokens, setup.value()) > header.memory_bytes)
            return bad_line(lines, "holds a request that this model would refuse");
        for (const std::int32_t token : request.continuation.suffix) {
            if (token < 0 || token >= loaded.config.text.vocab_size)
                return bad_line(lines, "holds a request that this model would refuse");
        }
        runner.submit(id, std::move(request), std::move(setup).value(), std::make_shared<Client>(comparison),
                      Runner::Clock::now());
        return {};
    } catch (const Json::exception&) {
        return bad_line(lines, "lacks what a submitted request has");
    }
}

Status replay_run(Lines& lines, const files::Checkpoint& checkpoint,
                  const std::function<void(LoadOptions&)>& adjust,
                  const std::function<void(std::uint64_t)>& progress, ReplayReport& report) {
    DGEMMA_TRY(RecordHeader header, header_of(lines));
    if (adjust) adjust(header.load);
    DGEMMA_TRY(const std::unique_ptr<LoadedModel> loaded, load_model(checkpoint, header.load));
    if (loaded->config.text.vocab_size != header.vocabulary) {
        return Error{ErrorKind::invalid,
                     fmt::format("the record was made with a vocabulary of {} tokens, and the model has {}: "
                                 "replay it with its own model, {}",
                                 header.vocabulary, loaded->config.text.vocab_size, header.model)};
    }
    ++report.runs;
    ++report.lines;
    lines.advance();
    Comparison comparison(lines, report);
    Runner runner(*loaded,
                  {.max_running = header.max_running,
                   .memory_bytes = header.memory_bytes,
                   .rewind_tokens = header.rewind_tokens,
                   .max_conversations = header.max_conversations,
                   .log = {},
                   .leaving = {}},
                  &comparison);
    while (!comparison.over()) {
        if (progress) progress(report.lines);
        const Json next = lines.json();
        if (!next.is_object()) return bad_line(lines, "is no JSON object");
        const std::uint64_t before = report.lines;
        if (next.value("op", "") == "submit") {
            ++report.requests;
            DGEMMA_CHECK(submit_recorded(runner, *loaded, header, next, lines, comparison));
        } else if (next.value("op", "") == "stop") {
            const std::string reason = next.value("reason", "");
            runner.stop(next.value("id", RequestId{0}), reason == name_of(FinishReason::deadline)
                                                            ? FinishReason::deadline
                                                            : FinishReason::cancelled);
        } else {
            runner.tick();
        }
        if (report.lines == before && !report.difference) {
            report.difference = {lines.number(), "what happens", shortened(next), "nothing"};
        }
    }
    return {};
}

}  // namespace

Result<RecordHeader> read_record_header(const std::filesystem::path& file) {
    const Lines lines(file);
    if (!lines.opened())
        return Error{ErrorKind::not_found, fmt::format("the record {} cannot be opened", file.string())};
    return header_of(lines);
}

Result<ReplayReport> replay(const std::filesystem::path& file, const files::Checkpoint& checkpoint,
                            const std::function<void(LoadOptions&)>& adjust,
                            const std::function<void(std::uint64_t)>& progress) {
    Lines lines(file);
    if (!lines.opened())
        return Error{ErrorKind::not_found, fmt::format("the record {} cannot be opened", file.string())};
    ReplayReport report;
    do {
        try {
            DGEMMA_CHECK(replay_run(lines, checkpoint, adjust, progress, report));
        } catch (const Json::exception&) {
            return bad_line(lines, "has a member of the wrong type");
        }
    } while (!lines.end() && !report.difference);
    report.cut_off = lines.cut_off();
    return report;
}

}  // namespace dgemma::engine
