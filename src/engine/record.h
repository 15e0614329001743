// The event log of a scheduler: every operation and event, one JSON object a line, so that a run can be
// executed again and compared (engine/replay.h). A line holds nothing that depends on the clock.
//
// The first line says "record": 1, who ran and how. Then come operations ("op": "submit", "stop"), and events
// ("event": "start", "encode", "denoise", "step", "ask", "block", "end", "failure", "next_prompt", "tidy",
// "evict") in the order they happened. "t" counts the passes before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/generator.h"

namespace dgemma::engine {

inline constexpr int kRecordVersion = 1;

// Where lines go.
class Record {
  public:
    virtual ~Record() = default;
    // One JSON object, without a line feed.
    virtual void line(std::string_view json) = 0;
};

// A file that a killed process leaves readable up to its last complete line: each line is one write to the
// system, and an incomplete last line of an earlier run is cut off before a new run is appended.
class RecordFile final : public Record {
  public:
    // Errors: io.
    static Result<std::unique_ptr<RecordFile>> open(const std::filesystem::path& file);
    ~RecordFile() override;
    RecordFile(const RecordFile&) = delete;
    RecordFile& operator=(const RecordFile&) = delete;
    void line(std::string_view json) override;
    [[nodiscard]] bool broken() const { return broken_; }  // nothing more could be written

  private:
    explicit RecordFile(int descriptor) : descriptor_(descriptor) {}
    int descriptor_;
    bool broken_ = false;
    std::string buffer_;
};

// Writes one JSON object, member after member.
class JsonLine {
  public:
    JsonLine& add(std::string_view name, std::string_view text);
    JsonLine& add(std::string_view name, const char* text) { return add(name, std::string_view(text)); }
    JsonLine& add(std::string_view name, bool value);
    JsonLine& add(std::string_view name, int value) { return add(name, static_cast<std::int64_t>(value)); }
    JsonLine& add(std::string_view name, std::int64_t value);
    JsonLine& add(std::string_view name, std::uint64_t value);
    JsonLine& add(std::string_view name, float value);   // shortest form that reads back the same;
    JsonLine& add(std::string_view name, double value);  // null where it is not finite
    JsonLine& add(std::string_view name, std::span<const std::int32_t> ids);
    JsonLine& add(std::string_view name, std::span<const std::string> texts);
    JsonLine& add_json(std::string_view name, std::string_view json);  // as it is
    [[nodiscard]] std::string text() const { return text_.empty() ? "{}" : text_ + "}"; }

  private:
    void name(std::string_view name);
    std::string text_;
};

// What of a request a record holds, to be added to its submit line; its functions are named only.
void add_request(JsonLine& line, const Request& request);
std::string load_json(const LoadOptions& load);

}  // namespace dgemma::engine
