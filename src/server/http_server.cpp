#include "server/http_server.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <mutex>

#include <arpa/inet.h>
#include <event2/event.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/quote.h"
#include "server/http_connection.h"

namespace dgemma::server {

namespace {

// Connections leave this many open files to everything else.
constexpr std::size_t files_kept = 64;

// As many files as the system lets us have. -> the limit.
std::size_t raise_file_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

class Server : public HttpServer, public HttpHost {
  public:
    explicit Server(const HttpOptions& options) : options_(options) {}
    ~Server() override {
        connections_.clear();
        for (event* one : {accepting_, woken_, ticking_, interrupted_, terminated_, resting_}) {
            if (one != nullptr) event_free(one);
        }
        if (base_ != nullptr) event_base_free(base_);
        if (socket_ >= 0) ::close(socket_);
        if (wake_ >= 0) ::close(wake_);
    }
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    Status open();

    [[nodiscard]] int port() const override { return port_; }
    void run(HttpHandler& handler) override {
        handler_ = &handler;
        event_base_dispatch(base_);
        // Nobody hears signals from here on: they do again what they do by themselves.
        for (event* one : {interrupted_, terminated_}) event_del(one);
        const std::lock_guard lock(mutex_);
        ended_ = true;
        posted_.clear();
    }
    void stop() override {
        event_del(accepting_);
        while (!connections_.empty()) connections_.front()->close();
        event_base_loopbreak(base_);
    }
    void stop_when_sent() override {
        if (stopping_) return;
        stopping_ = HttpConnection::Clock::now() + std::chrono::seconds(5);
        event_del(accepting_);
        event_del(resting_);
        for (auto at = connections_.begin(); at != connections_.end();) {
            const std::shared_ptr<HttpConnection> connection = *at++;
            connection->finish();
        }
        if (connections_.empty()) event_base_loopbreak(base_);
    }
    void post(std::function<void()> function) override {
        bool first = false;
        {
            const std::lock_guard lock(mutex_);
            if (ended_) return;
            first = posted_.empty();
            posted_.push_back(std::move(function));
        }
        if (!first) return;  // already woken for the one before
        const std::uint64_t one = 1;
        [[maybe_unused]] const auto written = ::write(wake_, &one, sizeof(one));
    }
    [[nodiscard]] HttpStats stats() const override {
        HttpStats out = stats_;
        out.connections = connections_.size();
        return out;
    }

    HttpHandler& handler() override { return *handler_; }
    const HttpOptions& options() const override { return options_; }
    void closed(HttpConnection& connection) override {
        connections_.erase(connection.place);
        if (stopping_ && connections_.empty()) event_base_loopbreak(base_);
    }
    void timed_out() override { ++stats_.timed_out; }
    void exchange_began(int change) override {
        stats_.exchanges = static_cast<std::size_t>(static_cast<std::ptrdiff_t>(stats_.exchanges) + change);
    }

  private:
    Status bind_to(const addrinfo& address);
    void accept_all();
    void run_posted();
    void tick();
    bool make_room();

    HttpOptions options_;
    HttpHandler* handler_ = nullptr;
    event_base* base_ = nullptr;
    event *accepting_ = nullptr, *woken_ = nullptr, *ticking_ = nullptr, *interrupted_ = nullptr,
          *terminated_ = nullptr, *resting_ = nullptr;
    int socket_ = -1, wake_ = -1, port_ = 0;
    std::size_t most_ = 0;
    std::list<std::shared_ptr<HttpConnection>> connections_;  // the oldest first
    HttpStats stats_;
    int signals_ = 0;
    std::optional<HttpConnection::Clock::time_point> stopping_;
    std::mutex mutex_;  // of what follows
    std::vector<std::function<void()>> posted_;
    bool ended_ = false;
};

Status Server::bind_to(const addrinfo& address) {
    socket_ = ::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0)
        return Error{ErrorKind::io, fmt::format("No socket could be made: {}.", std::strerror(errno))};
    const int on = 1;
    setsockopt(socket_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(socket_, address.ai_addr, address.ai_addrlen) != 0 || ::listen(socket_, 4096) != 0) {
        const int problem = errno;
        const std::string where = fmt::format("{} port {}", options_.host, options_.port);
        if (problem == EADDRINUSE) {
            return Error{ErrorKind::usage,
                         fmt::format("{} is taken by another program; choose another --port.", where)};
        }
        if (problem == EACCES) {
            return Error{ErrorKind::usage,
                         fmt::format("{} may only be used by root; choose a --port above 1023.", where)};
        }
        return Error{ErrorKind::usage, fmt::format("{} cannot be listened on ({}); check --host.", where,
                                                   std::strerror(problem))};
    }
    sockaddr_storage bound{};
    socklen_t length = sizeof(bound);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&bound), &length);
    port_ = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                              : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
    return {};
}

Status Server::open() {
    // A client that is gone and a record at the limit of a file's size are errors of write, not the end of
    // us.
    for (const int number : {SIGPIPE, SIGXFSZ}) std::signal(number, SIG_IGN);
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
    addrinfo* found = nullptr;
    if (getaddrinfo(options_.host.c_str(), std::to_string(options_.port).c_str(), &hints, &found) != 0 ||
        found == nullptr) {
        return Error{
            ErrorKind::usage,
            fmt::format("{} is no address of this machine; use --host 127.0.0.1, or 0.0.0.0 for all.",
                        quote(options_.host))};
    }
    // A name such as localhost may be an address of either family; what clients try is the older one first.
    const addrinfo* chosen = found;
    for (const addrinfo* other = found; other != nullptr && chosen->ai_family != AF_INET;
         other = other->ai_next) {
        if (other->ai_family == AF_INET) chosen = other;
    }
    const Status bound = bind_to(*chosen);
    freeaddrinfo(found);
    DGEMMA_CHECK(bound);

    const std::size_t files = raise_file_limit();
    most_ = options_.connections > 0 ? options_.connections : files - std::min(files - 1, files_kept);
    wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    base_ = event_base_new();
    if (wake_ < 0 || base_ == nullptr)
        return Error{ErrorKind::io, "The system gives no event queue; are too many files open?"};
    accepting_ = event_new(
        base_, socket_, EV_READ | EV_PERSIST,
        [](evutil_socket_t, short, void* self) { static_cast<Server*>(self)->accept_all(); }, this);
    woken_ = event_new(
        base_, wake_, EV_READ | EV_PERSIST,
        [](evutil_socket_t, short, void* self) { static_cast<Server*>(self)->run_posted(); }, this);
    ticking_ = event_new(
        base_, -1, EV_PERSIST, [](evutil_socket_t, short, void* self) { static_cast<Server*>(self)->tick(); },
        this);
    const auto on_signal = [](evutil_socket_t, short, void* self) {
        auto* server = static_cast<Server*>(self);
        server->handler_->on_signal(++server->signals_);
    };
    interrupted_ = evsignal_new(base_, SIGINT, on_signal, this);
    terminated_ = evsignal_new(base_, SIGTERM, on_signal, this);
    resting_ = event_new(
        base_, -1, 0,
        [](evutil_socket_t, short, void* self) {
            event_add(static_cast<Server*>(self)->accepting_, nullptr);
        },
        this);
    const timeval second{.tv_sec = 1, .tv_usec = 0};
    event_add(accepting_, nullptr);
    event_add(woken_, nullptr);
    event_add(ticking_, &second);
    event_add(interrupted_, nullptr);
    event_add(terminated_, nullptr);
    return {};
}

// Room for one more connection, if need be at the cost of one that has been waiting longest.
bool Server::make_room() {
    if (connections_.size() < most_) return true;
    for (const auto& connection : connections_) {
        if (!connection->idle()) continue;
        ++stats_.closed_idle;
        connection->close();
        return true;
    }
    return false;
}

void Server::accept_all() {
    // Not all at once, so that a flood of them does not hold up those that are there.
    for (int i = 0; i < 64; ++i) {
        const int client = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (client < 0) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                // Trying again at once would only fail again.
                event_del(accepting_);
                const timeval rest{.tv_sec = 0, .tv_usec = 100000};
                event_add(resting_, &rest);
            }
            return;
        }
        if (!make_room()) {
            ++stats_.refused;
            ::close(client);
            continue;
        }
        const int on = 1;
        setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        bufferevent* events = bufferevent_socket_new(base_, client, BEV_OPT_CLOSE_ON_FREE);
        if (events == nullptr) {
            ::close(client);
            continue;
        }
        ++stats_.accepted;
        connections_.push_back(std::make_shared<HttpConnection>(*this, events));
        connections_.back()->place = std::prev(connections_.end());
        connections_.back()->begin();
    }
}

void Server::run_posted() {
    std::uint64_t count = 0;
    [[maybe_unused]] const auto got = ::read(wake_, &count, sizeof(count));
    std::vector<std::function<void()>> posted;
    {
        const std::lock_guard lock(mutex_);
        posted.swap(posted_);
    }
    for (const auto& function : posted) function();
}

void Server::tick() {
    const auto now = HttpConnection::Clock::now();
    for (auto at = connections_.begin(); at != connections_.end();) {
        const std::shared_ptr<HttpConnection> connection = *at++;  // which may take itself out of the list
        connection->check_time(now);
    }
    if (stopping_ && now > *stopping_) return stop();
    handler_->on_tick();
}

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::listen(const HttpOptions& options) {
    auto server = std::make_unique<Server>(options);
    DGEMMA_CHECK(server->open());
    return std::unique_ptr<HttpServer>(std::move(server));
}

std::string_view reason_of(int status) {
    switch (status) {
        case 200:
            return "OK";
        case 204:
            return "No Content";
        case 400:
            return "Bad Request";
        case 401:
            return "Unauthorized";
        case 403:
            return "Forbidden";
        case 404:
            return "Not Found";
        case 405:
            return "Method Not Allowed";
        case 408:
            return "Request Timeout";
        case 413:
            return "Content Too Large";
        case 415:
            return "Unsupported Media Type";
        case 417:
            return "Expectation Failed";
        case 429:
            return "Too Many Requests";
        case 431:
            return "Request Header Fields Too Large";
        case 500:
            return "Internal Server Error";
        case 501:
            return "Not Implemented";
        case 503:
            return "Service Unavailable";
        case 505:
            return "HTTP Version Not Supported";
        default:
            return "Unknown";
    }
}

}  // namespace dgemma::server
