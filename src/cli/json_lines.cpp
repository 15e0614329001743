#include "cli/json_lines.h"

#include <cerrno>
#include <istream>
#include <ostream>

#include <fmt/format.h>

#include "cli/read_input.h"

namespace dgemma::cli {

Status for_each_json_line(std::istream& in, std::ostream& out,
                          const std::function<Result<std::string>(const text::Value& object)>& answer) {
    std::string line;
    errno = 0;
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
        // Each answer goes out before the next line is waited for: whoever sends the lines may be waiting
        // too.
        out << *written << '\n' << std::flush;
        if (!out) return Error{ErrorKind::io, "The output cannot be written" + system_reason(errno) + "."};
    }
    if (in.bad()) return unreadable("stdin", errno);
    return {};
}

}  // namespace dgemma::cli
