// The routes: what each path answers.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "server/http_server.h"
#include "server/prepare.h"
#include "server/response_store.h"
#include "server/routes.h"
#include "server/turn.h"
#include "server/worker_pool.h"

namespace dgemma::server {

struct ServiceOptions {
    std::vector<std::string> api_keys;  // empty: everybody may ask
    std::string cors_origin = "*";      // empty: no CORS headers
    bool lenient = false;
    TurnOptions turn;
    std::chrono::seconds ping_time{10};   // of silence in a stream
    std::chrono::seconds drain_time{30};  // for what runs when the server is to end
    std::chrono::seconds give_back_time{
        5};  // how often free memory goes back to the system, if requests ended
    std::function<void(const std::string&)> log = [](const std::string&) {};  // one line
    bool log_requests = false;  // each generation, when it is over
};

// How often each route answered with which status.
using RouteCounts = std::map<std::pair<std::string, int>, std::uint64_t>;

class Service : public HttpHandler {
  public:
    Service(HttpServer& server, ServiceOptions options);
    ~Service() override;

    // Errors: io, where the system gives no thread.
    Status start();
    // From now on requests are answered. On the server's thread. -> false where the server is ending already.
    bool set_models(ServedModels models);
    // Answers nothing new, waits for what runs as long as drain_time, then stops the server. A second time:
    // at once. On the server's thread.
    void end();

    std::optional<HttpResponse> on_head(const HttpRequest& request) override;
    void on_request(std::shared_ptr<HttpExchange> exchange, HttpRequest request) override;
    HttpResponse on_error(const HttpError& error, std::string_view path) override;
    void on_tick() override;
    void on_signal(int count) override;

  private:
    struct Active;

    // --- on the server's thread
    void answer(const std::shared_ptr<HttpExchange>& exchange, std::string_view route, HttpResponse response);
    void answer(const std::shared_ptr<HttpExchange>& exchange, std::string_view route, Api api,
                const ApiError& error);
    [[nodiscard]] HttpResponse error_response(Api api, const ApiError& error,
                                              std::string_view request_id) const;
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> common_headers(
        std::string_view request_id) const;
    [[nodiscard]] bool may_ask(const HttpRequest& request) const;
    [[nodiscard]] std::optional<ApiError> unready() const;
    void answer_get(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request);
    // A worker makes it.
    using Answer = std::variant<std::string, ApiError>;
    void answer_later(std::shared_ptr<HttpExchange> exchange, const Route& route,
                      std::function<Answer()> make);
    void generate(std::shared_ptr<HttpExchange> exchange, Api api, std::string_view route, std::string body);
    void begin_turn(const std::shared_ptr<HttpExchange>& exchange, Api api, std::string_view route,
                    Prepared prepared);
    void flush(std::uint64_t id);
    void stop_if_idle();
    void log_end(const Active& active, int status);

    HttpServer& server_;
    ServiceOptions options_;
    ServedModels models_;
    bool ready_ = false;
    bool ends_ = false;
    std::chrono::steady_clock::time_point end_at_{};
    int ended_since_ = 0;  // requests, since memory was given back to the system
    std::chrono::steady_clock::time_point given_back_{};
    std::map<std::uint64_t, Active> active_;
    std::uint64_t next_id_ = 1;
    int preparing_ = 0;
    RouteCounts counts_;
    ResponseStore store_{std::size_t{64} * 1024 * 1024};
    WorkerPool workers_;
};

// Prometheus' text format.
std::string metrics_text(const HttpStats& http, const RouteCounts& counts, const ServedModels& models);
// The description of the API, JSON.
std::string_view openapi_json();

}  // namespace dgemma::server
