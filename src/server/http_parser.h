// HTTP/1.1 requests out of bytes (RFC 9112), without a socket. Strict: what two readers could understand in
// two ways is refused.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dgemma::server {

struct HttpRequest {
    std::string method;
    std::string path;                                          // up to the question mark, as sent
    std::string query;                                         // behind it
    std::vector<std::pair<std::string, std::string>> headers;  // names in lower case
    std::string body;
    bool keep_alive = true;
    bool expects_continue = false;  // it waits for a "100 Continue" before its body
    bool is_http_1_0 = false;

    // The value of the first header of this name (lower case); nothing where there is none.
    [[nodiscard]] std::optional<std::string_view> header(std::string_view name) const;
};

struct HttpError {
    int status = 400;
    std::string message;  // one sentence
};

class HttpParser {
  public:
    struct Limits {
        std::size_t head = 64 * 1024;  // request line and headers, or trailers
        std::size_t headers = 128;     // how many
        std::size_t body = 32 * 1024 * 1024;
    };
    explicit HttpParser(Limits limits) : limits_(limits) {}

    // Takes bytes up to the end of one request. -> how many of them belong to it; all until complete() or
    // error().
    std::size_t feed(std::string_view bytes);

    [[nodiscard]] bool started() const { return state_ != State::line || !line_.empty(); }
    // Method, target and headers are known; the body may still come.
    [[nodiscard]] bool head_complete() const { return state_ > State::headers; }
    [[nodiscard]] bool complete() const { return state_ == State::complete; }
    [[nodiscard]] const std::optional<HttpError>& error() const { return error_; }

    [[nodiscard]] const HttpRequest& request() const { return request_; }
    // A complete request; the next one can follow.
    HttpRequest take();

  private:
    enum class State { line, headers, body, chunk_size, chunk_data, chunk_end, trailers, complete };

    void fail(int status, std::string message);
    // Collects one line. -> whether it is complete, without its CR LF.
    bool read_line(std::string_view bytes, std::size_t& at);
    void request_line();
    void header_line();
    void head_done();
    void chunk_size_line();
    void add_body(std::string_view bytes, std::size_t& at);

    Limits limits_;
    State state_ = State::line;
    HttpRequest request_;
    std::optional<HttpError> error_;
    std::string line_;
    std::size_t head_bytes_ = 0;
    std::size_t left_ = 0;  // of the body, or of a chunk
    std::optional<std::size_t> content_length_;
    bool chunked_ = false;
};

}  // namespace dgemma::server
