// One JSON object of a request, read field by field. The first thing that is wrong stays; what is read after
// it does not matter.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/json.h"

namespace dgemma::server {

// What is wrong with a request, if anything. Shared by all objects in it.
struct Complaint {
    bool lenient = false;  // what cannot be honoured is passed over
    std::optional<ApiError> error;

    void refuse(std::string field, std::string message);
    // Nothing when lenient: for what is well formed and cannot be honoured.
    void cannot(std::string field, std::string message);
};

// Whether it is an object, which `where` in the request must be; complains of anything else.
bool must_be_object(const Value& value, const std::string& where, Complaint& complaint);

// A token id, written 5 or 5.0. Nothing for what is none, or longer than any vocabulary has.
std::optional<std::int32_t> token_id(const Value& value);

class Fields {
  public:
    // `object` and `complaint` outlive this. path: how the object is called in messages, with the dot behind
    // it; empty for the request itself.
    Fields(const Value& object, std::string path, Complaint& complaint);

    // The value under a name; null and absent are the same, nullptr. The name counts as known from now on.
    const Value* take(std::string_view name);

    // A text that must be there; empty where it is not, or no text, which is complained of.
    std::string needed_text(std::string_view name);
    // The same, and not the empty text.
    std::string needed_name(std::string_view name);

    // Each is nothing where there is no value, or a wrong one, which is complained of.
    std::optional<std::string> text(std::string_view name);
    std::optional<bool> toggle(std::string_view name);
    std::optional<std::uint64_t> whole(std::string_view name, std::uint64_t least, std::uint64_t most);
    std::optional<double> real(std::string_view name, double least, double most);
    std::optional<float> above_zero(std::string_view name, float most);
    // Whether there is a number, and it is this one.
    bool is_number(std::string_view name, double number);
    const Value* list(std::string_view name);
    const Value* object(std::string_view name);

    // Names that are known and change nothing here, whatever they hold.
    void ignore(std::initializer_list<std::string_view> names);

    // A field that is accepted where its JSON is one of these ("0" and "0.0" are the same), and cannot be
    // honoured otherwise.
    void neutral(std::string_view name, std::initializer_list<std::string_view> values);

    // A field that cannot be honoured at all. Empty objects and lists count as nothing, unless they mean
    // something, too (even_empty).
    void never(std::string_view name, std::string_view why, bool even_empty = false);

    // Complains of names that nobody asked for. Call last.
    void finish();

    [[nodiscard]] std::string path_of(std::string_view name) const { return path_ + std::string(name); }

  private:
    const Value& object_;
    std::string path_;
    Complaint& complaint_;
    std::set<std::string, std::less<>> known_;
};

}  // namespace dgemma::server
