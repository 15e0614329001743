// Requests as JSON, read.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "server/request.h"

namespace dgemma::server {

struct Read {
    GenerationRequest request;
    std::optional<ApiError> error;
    [[nodiscard]] std::string field() const { return error ? error->field : "none"; }
};

inline Read read(Api api, std::string_view json, bool lenient = false) {
    Read out;
    const Result<Value> body = text::parse_json(json, "the body");
    EXPECT_TRUE(body.ok()) << json;
    out.error = read_request(api, body.value(), lenient, out.request);
    return out;
}

// A chat request with one user message and these fields besides.
inline Read chat(const std::string& fields, bool lenient = false) {
    return read(Api::chat,
                R"({"model":"m","messages":[{"role":"user","content":"Hi"}])" +
                    (fields.empty() ? "" : "," + fields) + "}",
                lenient);
}

}  // namespace dgemma::server
