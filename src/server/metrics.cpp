// GET /metrics, in the text format of Prometheus.
#include <fmt/format.h>

#include "server/service.h"

namespace dgemma::server {

namespace {

std::string escaped(std::string_view value) {
    std::string out;
    for (const char c : value) {
        if (c == '\\' || c == '"') out += '\\';
        out += c == '\n' ? ' ' : c;
    }
    return out;
}

class Page {
  public:
    void metric(std::string_view name, std::string_view type, std::string_view help) {
        name_ = name;
        out_ += fmt::format("# HELP dgemma_{} {}\n# TYPE dgemma_{} {}\n", name, help, name, type);
    }
    // labels: `a="b",c="d"`, or empty.
    template <class Number>
    void value(std::string_view labels, Number number, std::string_view suffix = "") {
        out_ += fmt::format("dgemma_{}{}", name_, suffix);
        if (!labels.empty()) out_ += fmt::format("{{{}}}", labels);
        out_ += fmt::format(" {}\n", number);
    }
    void histogram(const std::string& labels, const engine::Histogram& histogram) {
        std::uint64_t below = 0;
        for (std::size_t i = 0; i < engine::Histogram::bounds.size(); ++i) {
            below += histogram.counts[i];
            value(fmt::format("{},le=\"{}\"", labels, engine::Histogram::bounds[i]), below, "_bucket");
        }
        value(labels + ",le=\"+Inf\"", histogram.count, "_bucket");
        value(labels, histogram.sum, "_sum");
        value(labels, histogram.count, "_count");
    }
    std::string take() { return std::move(out_); }

  private:
    std::string name_, out_;
};

using Stats = engine::SchedulerStats;
using Counts = std::map<std::string, std::uint64_t>;

struct Number {
    std::string_view name, type, help;
    double (*of)(const Stats&);
};
struct Family {
    std::string_view name, label, help;
    const Counts& (*of)(const Stats&);
};
struct Durations {
    std::string_view name, help;
    const engine::Histogram& (*of)(const Stats&);
};

constexpr Number numbers[] = {
    {"queued", "gauge", "requests that wait for their turn", [](const Stats& s) { return double(s.queued); }},
    {"running", "gauge", "requests that are being answered",
     [](const Stats& s) { return double(s.running); }},
    {"conversations", "gauge", "conversations whose keys and values are held",
     [](const Stats& s) { return double(s.conversations); }},
    {"recording", "gauge", "1 while --record writes", [](const Stats& s) { return double(s.recording); }},
    {"cache_bytes", "gauge", "keys and values held", [](const Stats& s) { return double(s.cache_bytes); }},
    {"reserved_bytes", "gauge", "what running requests may grow to",
     [](const Stats& s) { return double(s.reserved_bytes); }},
    {"unused_logits_bytes", "gauge", "logits kept for the next request",
     [](const Stats& s) { return double(s.unused_logits_bytes); }},
    {"memory_bytes", "gauge", "the limit of keys, values and logits",
     [](const Stats& s) { return double(s.memory_bytes); }},
    {"requests_total", "counter", "admitted requests", [](const Stats& s) { return double(s.submitted); }},
    {"encode_passes_total", "counter", "passes of the encoder",
     [](const Stats& s) { return double(s.encode_passes); }},
    {"denoise_passes_total", "counter", "passes of the denoiser",
     [](const Stats& s) { return double(s.denoise_passes); }},
    {"denoise_steps_total", "counter",
     "denoising steps of all requests; more than passes where they shared some",
     [](const Stats& s) { return double(s.denoise_steps); }},
    {"blocks_total", "counter", "committed blocks", [](const Stats& s) { return double(s.blocks); }},
    {"prompt_tokens_total", "counter", "tokens of prompts",
     [](const Stats& s) { return double(s.prompt_tokens); }},
    {"reused_tokens_total", "counter", "of them, those that were still in a cache",
     [](const Stats& s) { return double(s.reused_tokens); }},
    {"encoded_tokens_total", "counter", "tokens that were encoded",
     [](const Stats& s) { return double(s.encoded_tokens); }},
    {"output_tokens_total", "counter", "tokens of replies",
     [](const Stats& s) { return double(s.output_tokens); }},
    {"evictions_total", "counter", "conversations forgotten to make room",
     [](const Stats& s) { return double(s.evictions); }},
    {"forks_total", "counter", "conversations begun as a copy of another",
     [](const Stats& s) { return double(s.forks); }},
    {"shared_prefills_total", "counter", "requests that waited for another to encode what both begin with",
     [](const Stats& s) { return double(s.shared_prefills); }},
};

constexpr Family families[] = {
    {"refused_total", "reason", "requests that were not admitted",
     [](const Stats& s) -> const Counts& { return s.refused; }},
    {"ended_total", "reason", "requests by how they ended",
     [](const Stats& s) -> const Counts& { return s.ended; }},
    {"failed_total", "kind", "requests that failed",
     [](const Stats& s) -> const Counts& { return s.failed; }},
    {"reuse_total", "kind", "requests by where the beginning of their prompt came from",
     [](const Stats& s) -> const Counts& { return s.reuse; }},
    {"reprefills_total", "reason", "prompts that a cache could not help",
     [](const Stats& s) -> const Counts& { return s.reprefills; }},
    {"block_stops_total", "rule", "blocks by the rule that ended their denoising",
     [](const Stats& s) -> const Counts& { return s.block_stops; }},
    {"guards_total", "guard", "blocks in which a guard acted",
     [](const Stats& s) -> const Counts& { return s.guards; }},
};

constexpr Durations durations[] = {
    {"queue_seconds", "time in the queue",
     [](const Stats& s) -> const engine::Histogram& { return s.queue_seconds; }},
    {"first_block_seconds", "time to the first block",
     [](const Stats& s) -> const engine::Histogram& { return s.first_block_seconds; }},
    {"request_seconds", "time to the end",
     [](const Stats& s) -> const engine::Histogram& { return s.request_seconds; }},
    {"step_seconds", "time of a denoising pass",
     [](const Stats& s) -> const engine::Histogram& { return s.step_seconds; }},
};

}  // namespace

std::string metrics_text(const HttpStats& http, const RouteCounts& counts, const ServedModels& models) {
    Page page;
    page.metric("http_connections", "gauge", "open connections");
    page.value("", http.connections);
    page.metric("http_in_flight", "gauge", "requests that wait for their response");
    page.value("", http.exchanges);
    page.metric("http_connections_total", "counter", "accepted connections");
    page.value("", http.accepted);
    page.metric("http_connections_dropped_total", "counter",
                "connections that were closed for others or for time");
    page.value("reason=\"idle\"", http.closed_idle);
    page.value("reason=\"timeout\"", http.timed_out);
    page.value("reason=\"refused\"", http.refused);
    page.metric("http_responses_total", "counter", "responses; 499 is a client that left");
    for (const auto& [key, count] : counts)
        page.value(fmt::format("path=\"{}\",status=\"{}\"", escaped(key.first), key.second), count);

    std::vector<std::pair<std::string, Stats>> stats;
    for (const auto& model : models)
        stats.emplace_back(fmt::format("model=\"{}\"", escaped(model->name)), model->port->stats());
    for (const Number& number : numbers) {
        page.metric(number.name, number.type, number.help);
        for (const auto& [label, of] : stats) page.value(label, number.of(of));
    }
    for (const Family& family : families) {
        page.metric(family.name, "counter", family.help);
        for (const auto& [label, of] : stats) {
            for (const auto& [name, count] : family.of(of))
                page.value(fmt::format("{},{}=\"{}\"", label, family.label, escaped(name)), count);
        }
    }
    for (const Durations& duration : durations) {
        page.metric(duration.name, "histogram", duration.help);
        for (const auto& [label, of] : stats) page.histogram(label, duration.of(of));
    }
    return page.take();
}

}  // namespace dgemma::server
