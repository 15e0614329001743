#include "cli/json_lines.h"

#include <istream>
#include <ostream>

#include <fmt/format.h>

namespace dgemma::cli {

Status for_each_json_line(std::istream& in, std::ostream& out,
                          const std::function<Result<std::string>(const text::Value& object)>& answer) {
    std::string line;
    for (std::size_t number = 1; std::getline(in, line); ++number) {
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const std::string where = fmt::format("line {}", number);
        DGEMMA_TRY(const text::Value object, text::parse_json(line, where));
        if (!object.is(text::Value::Type::object)) {
            return Error{ErrorKind::invalid, fmt::format("{} is {}: each line must be a JSON object", where,
                                                         describe(object.type()))};
        }
        const Result<std::string> written = answer(object);
        if (!written)
            return Error{written.error().kind, fmt::format("{} {}", where, written.error().message)};
        out << *written << '\n';
        if (!out)
            return Error{ErrorKind::io, "the output cannot be written: check that it is open and has room"};
    }
    out.flush();
    if (!out) return Error{ErrorKind::io, "the output cannot be written: check that it is open and has room"};
    return {};
}

}  // namespace dgemma::cli
