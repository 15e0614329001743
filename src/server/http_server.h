// HTTP/1.1 on sockets, one thread, event-driven (libevent). Thousands of connections may be idle or stream at
// once; none of them can hold up another, nor keep what it does not use.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "server/http_parser.h"

namespace dgemma::server {

struct HttpResponse {
    int status = 200;
    std::string content_type = "application/json";
    std::vector<std::pair<std::string, std::string>> headers;
    std::string body;
};

// The way back to one client. Of the server's thread only. May outlive the connection: then nothing it is
// told goes anywhere.
class HttpExchange {
  public:
    virtual ~HttpExchange() = default;

    // The whole response; the exchange is over.
    virtual void send(HttpResponse response) = 0;
    // A response whose body comes in pieces: begin, any number of writes, finish. `response.body` is the
    // first.
    virtual void begin(HttpResponse response) = 0;
    virtual void write(std::string_view bytes) = 0;
    virtual void finish() = 0;
    // What was written and the client has not taken yet.
    [[nodiscard]] virtual std::size_t unsent() const = 0;
    // When the last byte was written.
    [[nodiscard]] virtual std::chrono::steady_clock::time_point last_write() const = 0;
    [[nodiscard]] virtual bool open() const = 0;
    // Called once if the client goes away before the exchange is over.
    virtual void on_gone(std::function<void()> callback) = 0;
};

class HttpHandler {
  public:
    virtual ~HttpHandler() = default;
    // The head of a request is there, the body not yet. A response here refuses it: the body is not read.
    virtual std::optional<HttpResponse> on_head(const HttpRequest& request) = 0;
    virtual void on_request(std::shared_ptr<HttpExchange> exchange, HttpRequest request) = 0;
    // The answer to a request that is none of HTTP; path: empty where it is not known.
    virtual HttpResponse on_error(const HttpError& error, std::string_view path) = 0;
    // About once a second.
    virtual void on_tick() = 0;
    // SIGINT or SIGTERM came; count: the how manieth.
    virtual void on_signal(int count) = 0;
};

struct HttpOptions {
    std::string host = "127.0.0.1";
    int port = 8080;  // 0: any free one
    HttpParser::Limits limits;
    std::chrono::seconds idle_time{120};  // of a connection without a request
    std::chrono::seconds head_time{20};   // from the first byte of a request to the end of its headers
    std::chrono::seconds body_time{120};  // from there to the end of its body
    std::chrono::seconds write_time{60};  // in which a client must take something of what it is sent
    std::size_t connections = 0;          // 0: what the limit of open files leaves
};

struct HttpStats {
    std::size_t connections = 0, exchanges = 0;  // now
    std::uint64_t accepted = 0, closed_idle = 0, timed_out = 0, refused = 0;
};

class HttpServer {
  public:
    // Binds and listens. Errors: usage (the host is no address or the port is taken, with the remedy), io.
    static Result<std::unique_ptr<HttpServer>> listen(const HttpOptions& options);
    virtual ~HttpServer() = default;

    [[nodiscard]] virtual int port() const = 0;
    // Serves until stop(); until then SIGINT and SIGTERM are the handler's. `handler` outlives the server.
    virtual void run(HttpHandler& handler) = 0;
    // Closes every connection and ends run(). Of the server's thread.
    virtual void stop() = 0;
    // The same when what is already written has been sent, after a few seconds at the latest.
    virtual void stop_when_sent() = 0;
    // Runs a function on the server's thread, soon. From any thread; after run() has ended nothing runs.
    virtual void post(std::function<void()> function) = 0;
    [[nodiscard]] virtual HttpStats stats() const = 0;
};

std::string_view reason_of(int status);  // "Not Found"

}  // namespace dgemma::server
