#include "server/http_parser.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace dgemma::server {

namespace {

bool is_token(std::string_view text) {
    constexpr std::string_view marks = "!#$%&'*+-.^_`|~";
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
        const auto byte = static_cast<unsigned char>(c);
        return (byte < 0x80 && std::isalnum(byte) != 0) || marks.find(c) != std::string_view::npos;
    });
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
}

std::string_view trimmed(std::string_view text) {
    const auto blank = [](char c) { return c == ' ' || c == '\t'; };
    while (!text.empty() && blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && blank(text.back())) text.remove_suffix(1);
    return text;
}

// Whether a list such as "keep-alive, upgrade" holds the word.
bool lists(std::string_view value, std::string_view word) {
    while (!value.empty()) {
        const std::size_t comma = std::min(value.find(','), value.size());
        if (lower(trimmed(value.substr(0, comma))) == word) return true;
        value.remove_prefix(std::min(comma + 1, value.size()));
    }
    return false;
}

}  // namespace

std::optional<std::string_view> HttpRequest::header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
        if (key == name) return value;
    }
    return std::nullopt;
}

void HttpParser::fail(int status, std::string message) {
    if (!error_) error_ = HttpError{status, std::move(message)};
}

HttpRequest HttpParser::take() {
    HttpRequest out = std::move(request_);
    *this = HttpParser(limits_);
    return out;
}

bool HttpParser::read_line(std::string_view bytes, std::size_t& at) {
    const std::string_view rest = bytes.substr(at);
    const std::size_t end = rest.find('\n');
    const std::string_view piece = rest.substr(0, end);
    const std::size_t taken = piece.size() + (end == std::string_view::npos ? 0 : 1);
    head_bytes_ += taken;
    if (head_bytes_ > limits_.head) {
        fail(431, "The request's headers are too long.");
        return false;
    }
    line_ += piece;
    at += taken;
    if (end == std::string_view::npos) return false;
    if (line_.empty() || line_.back() != '\r') {
        fail(400, "A line of the request's head does not end in CR LF.");
        return false;
    }
    line_.pop_back();
    return true;
}

void HttpParser::request_line() {
    const std::string line = std::exchange(line_, {});
    // An empty line or two before a request is what some clients leave behind the one before.
    if (line.empty()) return;
    const std::size_t first = line.find(' '), last = line.rfind(' ');
    const std::string_view view = line;
    if (first == std::string::npos || first == last) return fail(400, "The request line is none of HTTP.");
    const std::string_view method = view.substr(0, first), target = view.substr(first + 1, last - first - 1),
                           version = view.substr(last + 1);
    if (!is_token(method) || method.size() > 32) return fail(400, "The request's method is none of HTTP.");
    if (version == "HTTP/1.0") {
        request_.is_http_1_0 = true;
        request_.keep_alive = false;
    } else if (version != "HTTP/1.1") {
        return version.starts_with("HTTP/") ? fail(505, "Only HTTP/1.1 and HTTP/1.0 are spoken here.")
                                            : fail(400, "The request line is none of HTTP.");
    }
    const bool plain = std::all_of(target.begin(), target.end(), [](char c) {
        return static_cast<unsigned char>(c) > 0x20 && static_cast<unsigned char>(c) < 0x7F;
    });
    std::string_view path = target;
    // Proxies send the whole address. A path with "://" in it is a path, or one that a proxy keeps for itself
    // could be asked for behind it.
    if (const std::size_t scheme = path.find("://"); scheme <= 5 && path.front() != '/') {
        const std::size_t slash = path.find('/', scheme + 3);
        path = slash == std::string_view::npos ? std::string_view("/") : path.substr(slash);
    }
    if (!plain || path.empty() || (path.front() != '/' && !(method == "OPTIONS" && path == "*")))
        return fail(400, "The request's target is none of HTTP.");
    const std::size_t question = std::min(path.find('?'), path.size());
    request_.method = method;
    request_.path = path.substr(0, question);
    request_.query = path.substr(std::min(question + 1, path.size()));
    state_ = State::headers;
}

void HttpParser::header_line() {
    const std::string line = std::exchange(line_, {});
    if (line.empty()) return head_done();
    const std::size_t colon = line.find(':');
    const std::string_view view = line;
    if (colon == std::string::npos || !is_token(view.substr(0, colon)))
        return fail(400, "A header of the request is none of HTTP.");
    const std::string_view value = trimmed(view.substr(colon + 1));
    for (const char c : value) {
        if ((static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F)
            return fail(400, "A header of the request holds a control character.");
    }
    if (request_.headers.size() >= limits_.headers) return fail(431, "The request has too many headers.");
    request_.headers.emplace_back(lower(view.substr(0, colon)), value);
}

void HttpParser::head_done() {
    int hosts = 0;
    for (const auto& [name, value] : request_.headers) {
        if (name == "host") {
            ++hosts;
        } else if (name == "content-length") {
            std::size_t length = 0;
            const auto [end, problem] = std::from_chars(value.data(), value.data() + value.size(), length);
            if (value.empty() || problem != std::errc() || end != value.data() + value.size())
                return fail(400, "Content-Length must be a whole number.");
            if (content_length_ && *content_length_ != length)
                return fail(400, "There are two different values of Content-Length.");
            content_length_ = length;
        } else if (name == "transfer-encoding") {
            if (chunked_ || lower(value) != "chunked")
                return fail(501, "Of transfer encodings only chunked is known here.");
            chunked_ = true;
        } else if (name == "connection") {
            if (lists(value, "close")) request_.keep_alive = false;
            if (request_.is_http_1_0 && lists(value, "keep-alive")) request_.keep_alive = true;
        } else if (name == "expect") {
            if (lower(value) != "100-continue")
                return fail(417, "Of expectations only 100-continue is known here.");
            request_.expects_continue = !request_.is_http_1_0;
        }
    }
    if (hosts > 1 || (hosts == 0 && !request_.is_http_1_0))
        return fail(400, "The request must have one Host header.");
    if (chunked_ && (content_length_ || request_.is_http_1_0))
        return fail(400, "Content-Length and Transfer-Encoding contradict each other.");
    if (content_length_.value_or(0) > limits_.body) return fail(413, "The request's body is too long.");
    head_bytes_ = 0;
    if (chunked_) {
        state_ = State::chunk_size;
    } else {
        left_ = content_length_.value_or(0);
        state_ = left_ > 0 ? State::body : State::complete;
    }
}

void HttpParser::chunk_size_line() {
    const std::string line = std::exchange(line_, {});
    const std::string_view digits = trimmed(std::string_view(line).substr(0, line.find(';')));
    std::size_t size = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), size, 16);
    if (digits.empty() || problem != std::errc() || end != digits.data() + digits.size())
        return fail(400, "A chunk of the body has no size.");
    if (size > limits_.body - request_.body.size()) return fail(413, "The request's body is too long.");
    left_ = size;
    head_bytes_ = 0;
    state_ = size > 0 ? State::chunk_data : State::trailers;
}

void HttpParser::add_body(std::string_view bytes, std::size_t& at) {
    const std::size_t count = std::min(left_, bytes.size() - at);
    request_.body += bytes.substr(at, count);
    at += count;
    left_ -= count;
}

std::size_t HttpParser::feed(std::string_view bytes) {
    std::size_t at = 0;
    while (at < bytes.size() && !error_ && state_ != State::complete) {
        switch (state_) {
            case State::line:
                if (read_line(bytes, at)) request_line();
                break;
            case State::headers:
                if (read_line(bytes, at)) header_line();
                break;
            case State::body:
                add_body(bytes, at);
                if (left_ == 0) state_ = State::complete;
                break;
            case State::chunk_size:
                if (read_line(bytes, at)) chunk_size_line();
                break;
            case State::chunk_data:
                add_body(bytes, at);
                if (left_ == 0) state_ = State::chunk_end;
                break;
            case State::chunk_end:
                if (!read_line(bytes, at)) break;
                if (!std::exchange(line_, {}).empty())
                    fail(400, "A chunk of the body is longer than it says.");
                state_ = State::chunk_size;
                break;
            case State::trailers:
                if (read_line(bytes, at) && std::exchange(line_, {}).empty()) state_ = State::complete;
                break;
            case State::complete:
                break;
        }
    }
    return at;
}

}  // namespace dgemma::server
