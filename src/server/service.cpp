#include "server/service.h"

#include <algorithm>
#include <ctime>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/host_memory.h"
#include "base/quote.h"
#include "server/kept_responses.h"

namespace dgemma::server {

namespace {

using Clock = std::chrono::steady_clock;

// In a time that does not tell where they differ.
bool same(std::string_view a, std::string_view b) {
    unsigned char difference = a.size() == b.size() ? 0 : 1;
    for (std::size_t i = 0; i < a.size(); ++i)
        difference |= static_cast<unsigned char>(a[i] ^ (b.empty() ? 0 : b[i % b.size()]));
    return difference == 0;
}

std::string date_text(std::int64_t seconds) {
    const std::time_t time = seconds;
    std::tm parts{};
    gmtime_r(&time, &parts);
    std::array<char, 32> out{};
    std::strftime(out.data(), out.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return out.data();
}

ApiError no_memory() {
    return {.status = 500, .code = "server_error", .message = "There is not enough memory for this request."};
}

// For the clients of both makers.
Value model_json(const ServedModel& model) {
    return object({{"id", string(model.name)},
                   {"object", string("model")},
                   {"created", whole(model.created)},
                   {"owned_by", string("dgemma")},
                   {"type", string("model")},
                   {"display_name", string(model.name)},
                   {"created_at", string(date_text(model.created))},
                   {"max_input_tokens", whole(model.port->context_limit())}});
}

}  // namespace

// A request that the engine works on.
struct Service::Active {
    std::shared_ptr<HttpExchange> exchange;
    std::shared_ptr<Turn> turn;
    Api api = Api::chat;
    std::string route;
    std::string request_id;
    bool begun = false;  // the head of a stream is sent
    Clock::time_point since = Clock::now();
};

Service::Service(HttpServer& server, ServiceOptions options)
    : server_(server), options_(std::move(options)) {}

Service::~Service() {
    for (auto& [id, active] : active_) active.turn->cancel();
}

Status Service::start() { return workers_.start(2); }

bool Service::set_models(ServedModels models) {
    models_ = std::move(models);
    ready_ = true;
    return !ends_;
}

std::vector<std::pair<std::string, std::string>> Service::common_headers(std::string_view request_id) const {
    std::vector<std::pair<std::string, std::string>> out = {{"x-request-id", std::string(request_id)},
                                                            {"request-id", std::string(request_id)}};
    if (!options_.cors_origin.empty()) {
        out.emplace_back("Access-Control-Allow-Origin", options_.cors_origin);
        out.emplace_back("Access-Control-Expose-Headers", "x-request-id, request-id, retry-after");
        if (options_.cors_origin != "*") out.emplace_back("Vary", "Origin");
    }
    return out;
}

HttpResponse Service::error_response(Api api, const ApiError& error, std::string_view request_id) const {
    HttpResponse out{.status = error.status,
                     .headers = common_headers(request_id),
                     .body = error_json(api, error, request_id)};
    if (error.retry_after > 0) out.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
    if (error.status == 401) out.headers.emplace_back("WWW-Authenticate", "Bearer");
    return out;
}

void Service::answer(const std::shared_ptr<HttpExchange>& exchange, std::string_view route,
                     HttpResponse response) {
    ++counts_[{std::string(route), response.status}];
    exchange->send(std::move(response));
}

void Service::answer(const std::shared_ptr<HttpExchange>& exchange, std::string_view route, Api api,
                     const ApiError& error) {
    answer(exchange, route, error_response(api, error, "req_" + random_name(24)));
}

bool Service::may_ask(const HttpRequest& request) const {
    if (options_.api_keys.empty()) return true;
    // A client may send both, as Anthropic's does with a token of its own; one that is known is enough.
    std::vector<std::string_view> given;
    if (const auto key = request.header("x-api-key")) given.push_back(*key);
    if (const auto authorization = request.header("authorization")) {
        constexpr std::string_view scheme = "Bearer ";
        if (authorization->size() > scheme.size() &&
            std::equal(scheme.begin(), scheme.end(), authorization->begin(),
                       [](char a, char b) { return (a | 0x20) == (b | 0x20); }))
            given.push_back(authorization->substr(scheme.size()));
    }
    bool known = false;
    for (const std::string_view key : given) {
        for (const std::string& mine : options_.api_keys) known = same(key, mine) || known;
    }
    return known;
}

std::optional<ApiError> Service::unready() const {
    if (ends_) {
        return ApiError{.status = 503,
                        .code = "server_shutdown",
                        .message = "The server is about to end.",
                        .retry_after = 5};
    }
    if (!ready_) {
        return ApiError{.status = 503,
                        .code = "model_loading",
                        .message = "The model is still being loaded.",
                        .retry_after = 2};
    }
    return std::nullopt;
}

std::optional<HttpResponse> Service::on_head(const HttpRequest& request) {
    const Api api = api_of(request.path);
    const auto refuse = [&](std::string_view path, const ApiError& error) {
        ++counts_[{std::string(path), error.status}];
        return error_response(api, error, "req_" + random_name(24));
    };
    if (request.method == "OPTIONS") return std::nullopt;
    const Route* route = request.path == "/" ? route_of("/health") : route_of(request.path);
    if (route == nullptr) {
        return refuse(
            "other", {.status = 404,
                      .code = "not_found",
                      .message = fmt::format("There is no path {} here; /openapi.json lists those there are.",
                                             quote(request.path))});
    }
    if (!takes(*route, request.method)) {
        HttpResponse response =
            refuse(route->path, {.status = 405,
                                 .code = "method_not_allowed",
                                 .message = fmt::format("{} takes {}{} only.", route->path, route->method,
                                                        route->deletes ? " and DELETE" : "")});
        response.headers.emplace_back("Allow", methods_of(*route));
        return response;
    }
    // Whether the server lives is no secret.
    if (route->path != "/health" && !may_ask(request)) {
        return refuse(route->path, {.status = 401,
                                    .code = "invalid_api_key",
                                    .message = "The API key is missing or none of this server's; send it as "
                                               "\"Authorization: Bearer KEY\" or \"x-api-key: KEY\"."});
    }
    return std::nullopt;
}

HttpResponse Service::on_error(const HttpError& error, std::string_view path) {
    ++counts_[{"other", error.status}];
    ApiError out{.status = error.status, .message = error.message};
    if (error.status == 413) out.code = "request_too_large";
    return error_response(api_of(path), out, "req_" + random_name(24));
}

void Service::answer_get(const std::shared_ptr<HttpExchange>& exchange, const HttpRequest& request) {
    HttpResponse response{.headers = common_headers("req_" + random_name(24))};
    // A list without the model that is being loaded would say that there is none.
    if (!ready_ && request.path.starts_with("/v1/models"))
        return answer(exchange, "/v1/models", Api::own, *unready());
    if (request.path == "/") {
        response.content_type = "text/plain; charset=utf-8";
        response.body = "dgemma: POST /v1/chat/completions, /v1/messages and others; see /openapi.json\n";
    } else if (request.path == "/health") {
        if (const auto problem = unready()) {
            response.status = problem->status;
            response.headers.emplace_back("Retry-After", std::to_string(problem->retry_after));
        }
        response.body = text::to_json(object({{"status", string(ends_    ? "draining"
                                                                : ready_ ? "ok"
                                                                         : "loading")}}));
    } else if (request.path == "/metrics") {
        response.content_type = "text/plain; version=0.0.4; charset=utf-8";
        response.body = metrics_text(server_.stats(), counts_, models_);
    } else if (request.path == "/openapi.json") {
        response.body = openapi_json();
    } else if (request.path == "/v1/models") {
        Value::Array data;
        for (const auto& model : models_) data.push_back(model_json(*model));
        const Value first = models_.empty() ? Value() : string(models_.front()->name);
        const Value last = models_.empty() ? Value() : string(models_.back()->name);
        response.body = text::to_json(object({{"object", string("list")},
                                              {"data", list(std::move(data))},
                                              {"has_more", boolean(false)},
                                              {"first_id", first},
                                              {"last_id", last}}));
    } else if (request.path.starts_with(one_response)) {
        // Long inputs take a while to be read.
        return answer_later(
            exchange, *route_of(request.path),
            [this, method = request.method, below = request.path.substr(one_response.size()),
             query = request.query] { return kept_response_json(method, below, query, store_); });
    } else {
        const std::string name = percent_decoded(std::string_view(request.path).substr(one_model.size()));
        const auto model = name.empty() ? nullptr : model_named(models_, name);
        if (!model) return answer(exchange, "/v1/models", Api::own, no_such_model(models_, name));
        response.body = text::to_json(model_json(*model));
    }
    answer(exchange, request.path.starts_with(one_model) ? "/v1/models" : request.path, std::move(response));
}

void Service::on_request(std::shared_ptr<HttpExchange> exchange, HttpRequest request) {
    if (request.method == "OPTIONS") {
        HttpResponse response{.status = 204, .headers = common_headers("req_" + random_name(24))};
        if (!options_.cors_origin.empty()) {
            response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, DELETE, OPTIONS");
            response.headers.emplace_back(
                "Access-Control-Allow-Headers",
                std::string(request.header("access-control-request-headers").value_or("*")));
            response.headers.emplace_back("Access-Control-Max-Age", "86400");
            if (request.header("access-control-request-private-network"))
                response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
        }
        return answer(exchange, "OPTIONS", std::move(response));
    }
    if (request.method != "POST") return answer_get(exchange, request);
    const Route& route = *route_of(request.path);
    const std::string_view encoding = request.header("content-encoding").value_or("identity");
    if (encoding != "identity" && !encoding.empty()) {
        return answer(exchange, route.path, route.api,
                      ApiError{.status = 415,
                               .code = "unsupported_content_encoding",
                               .message = "A body comes as it is here: leave Content-Encoding out."});
    }
    if (const auto problem = unready()) return answer(exchange, route.path, route.api, *problem);
    const bool counts =
        route.path == "/v1/messages/count_tokens" || route.path == "/v1/responses/input_tokens";
    if (route.api != Api::own && !counts)
        return generate(std::move(exchange), route.api, route.path, std::move(request.body));

    answer_later(std::move(exchange), route,
                 [this, &route, counts, models = models_, lenient = options_.lenient,
                  body = std::move(request.body)]() -> Answer {
                     if (!counts)
                         return route.path == "/tokenize" ? tokenize_json(body, models)
                                                          : detokenize_json(body, models);
                     auto prepared = prepare(route.api, body, lenient, true, models, &store_);
                     if (auto* error = std::get_if<ApiError>(&prepared)) return std::move(*error);
                     return fmt::format(
                         "{{{}\"input_tokens\":{}}}",
                         route.api == Api::responses ? R"("object":"response.input_tokens",)" : "",
                         std::get<Prepared>(prepared).prompt.ids.size());
                 });
}

void Service::answer_later(std::shared_ptr<HttpExchange> exchange, const Route& route,
                           std::function<Answer()> make) {
    ++preparing_;
    workers_.run([this, exchange = std::move(exchange), &route, make = std::move(make)] {
        Answer out = no_memory();
        try {
            out = make();
        } catch (const std::bad_alloc&) {  // the error that is there already
        }
        server_.post([this, exchange, &route, out = std::move(out)] {
            --preparing_;
            ++ended_since_;
            if (exchange->open()) {
                if (const auto* error = std::get_if<ApiError>(&out))
                    answer(exchange, route.path, route.api, *error);
                else
                    answer(exchange, route.path,
                           HttpResponse{.headers = common_headers("req_" + random_name(24)),
                                        .body = std::get<std::string>(out)});
            }
            stop_if_idle();
        });
    });
}

void Service::generate(std::shared_ptr<HttpExchange> exchange, Api api, std::string_view route,
                       std::string body) {
    ++preparing_;
    workers_.run([this, exchange = std::move(exchange), api, route, models = models_,
                  lenient = options_.lenient, body = std::move(body)] {
        // Shared, since a function must be able to be copied.
        auto result = std::make_shared<std::variant<Prepared, ApiError>>(no_memory());
        try {
            *result = prepare(api, body, lenient, false, models, &store_);
        } catch (const std::bad_alloc&) {  // the error that is there already
        }
        server_.post([this, exchange, api, route, result] {
            --preparing_;
            if (exchange->open()) {
                if (const auto* error = std::get_if<ApiError>(result.get()))
                    answer(exchange, route, api, *error);
                else
                    begin_turn(exchange, api, route, std::get<Prepared>(std::move(*result)));
            }
            stop_if_idle();
        });
    });
}

void Service::begin_turn(const std::shared_ptr<HttpExchange>& exchange, Api api, std::string_view route,
                         Prepared prepared) {
    const std::uint64_t id = next_id_++;
    ReplyHead head{.id = random_name(24), .created = std::time(nullptr), .model = prepared.model->name};
    auto turn = std::make_shared<Turn>(
        prepared.model, std::move(prepared.request), std::move(prepared.prompt), head, options_.turn,
        [this](std::function<void()> function) { server_.post(std::move(function)); },
        [this, id] { flush(id); }, std::move(prepared.continuation));
    active_[id] = Active{.exchange = exchange,
                         .turn = turn,
                         .api = api,
                         .route = std::string(route),
                         .request_id = "req_" + random_name(24)};
    exchange->on_gone([this, id] {
        const auto found = active_.find(id);
        if (found == active_.end()) return;
        found->second.turn->cancel();
        ++counts_[{found->second.route, 499}];
        log_end(found->second, 499);
        active_.erase(found);
        stop_if_idle();
    });
    if (auto error = turn->begin()) {
        active_.erase(id);
        return answer(exchange, route, api, *error);
    }
    Active& active = active_.at(id);
    if (!turn->streams()) return;
    HttpResponse response{.content_type = "text/event-stream; charset=utf-8",
                          .headers = common_headers(active.request_id)};
    response.headers.emplace_back("Cache-Control", "no-cache");
    response.headers.emplace_back("X-Accel-Buffering", "no");  // proxies would gather the events
    active.begun = true;
    ++counts_[{active.route, 200}];
    exchange->begin(std::move(response));
}

// Sends what a turn has to say; called by the turn itself.
void Service::flush(std::uint64_t id) {
    const auto found = active_.find(id);
    if (found == active_.end()) return;
    Active& active = found->second;
    if (active.begun) {
        active.exchange->write(active.turn->writer().take());
        // Drafts are for those who can take them.
        active.turn->hold_drafts(active.exchange->unsent() > std::size_t{256} * 1024);
    }
    if (!active.turn->over()) return;
    if (!active.turn->failure()) active.turn->remember(store_);
    const Active last = std::move(active);
    active_.erase(found);
    ++ended_since_;
    const auto& failure = last.turn->failure();
    log_end(last, failure ? failure->status : 200);
    if (last.begun) {
        last.exchange->finish();
    } else if (last.turn->failure()) {
        answer(last.exchange, last.route, last.api, *last.turn->failure());
    } else {
        answer(last.exchange, last.route,
               HttpResponse{.headers = common_headers(last.request_id), .body = last.turn->writer().take()});
    }
    stop_if_idle();
}

void Service::log_end(const Active& active, int status) {
    if (!options_.log_requests) return;
    const Usage& usage = active.turn->usage();
    const double seconds = std::chrono::duration<double>(Clock::now() - active.since).count();
    options_.log(fmt::format("{} {}: {} tokens ({} from the cache), then {}, {:.2f} s, seed {}", active.route,
                             status, usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens,
                             seconds, active.turn->seed()));
}

void Service::on_tick() {
    const auto now = Clock::now();
    for (auto& [id, active] : active_) {
        if (!active.begun || now - active.exchange->last_write() < options_.ping_time) continue;
        active.turn->writer().ping();
        active.exchange->write(active.turn->writer().take());
    }
    if (ended_since_ > 0 && now - given_back_ > options_.give_back_time) {
        ended_since_ = 0;
        given_back_ = now;
        give_back_free_memory();
    }
    if (ends_ && now > end_at_) {
        options_.log(fmt::format("what did not end in time is cut off: {} of the requests", active_.size()));
        server_.stop();
    }
}

void Service::on_signal(int count) {
    if (count > 1) return server_.stop();
    end();
}

void Service::end() {
    if (ends_) return;
    ends_ = true;
    end_at_ = Clock::now() + options_.drain_time;
    const std::size_t running = active_.size();
    options_.log(running == 0 ? "ending"
                              : fmt::format("ending when {} answered; another signal ends at once",
                                            running == 1 ? "one request is"
                                                         : fmt::format("{} requests are", running)));
    stop_if_idle();
}

void Service::stop_if_idle() {
    if (!ends_ || !active_.empty() || preparing_ > 0) return;
    // Later, so that what has just been written is on its way.
    server_.post([this] {
        if (active_.empty() && preparing_ == 0) server_.stop_when_sent();
    });
}

}  // namespace dgemma::server
