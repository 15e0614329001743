#include "server/http_connection.h"

#include <utility>

#include <fmt/format.h>
#include <sys/socket.h>

namespace dgemma::server {

// Shared by the connection and whoever answers; cut off when either is done.
class HttpConnection::Exchange : public HttpExchange {
  public:
    explicit Exchange(HttpConnection& connection) : connection_(&connection) {}

    void send(HttpResponse response) override {
        if (connection_ == nullptr) return;
        connection_->put_head(response, false);
        if (!connection_->head_only_) connection_->put(response.body);
        over();
    }
    void begin(HttpResponse response) override {
        if (connection_ == nullptr) return;
        connection_->put_head(response, true);
        write(response.body);
    }
    void write(std::string_view bytes) override {
        if (connection_ == nullptr || bytes.empty() || connection_->head_only_) return;
        if (connection_->chunked_) {
            connection_->put(fmt::format("{:x}\r\n", bytes.size()));
            connection_->put(bytes);
            connection_->put("\r\n");
        } else {
            connection_->put(bytes);
        }
    }
    void finish() override {
        if (connection_ == nullptr) return;
        if (connection_->chunked_ && !connection_->head_only_) connection_->put("0\r\n\r\n");
        over();
    }
    [[nodiscard]] std::size_t unsent() const override {
        return connection_ == nullptr ? 0 : connection_->unsent();
    }
    [[nodiscard]] std::chrono::steady_clock::time_point last_write() const override {
        return connection_ == nullptr ? Clock::now() : connection_->last_write_;
    }
    [[nodiscard]] bool open() const override { return connection_ != nullptr; }
    void on_gone(std::function<void()> callback) override { gone_ = std::move(callback); }

    // The client is no longer there.
    void cut() {
        connection_ = nullptr;
        if (const auto callback = std::exchange(gone_, nullptr)) callback();
    }

  private:
    void over() {
        HttpConnection* connection = std::exchange(connection_, nullptr);
        gone_ = nullptr;
        connection->exchange_over();
    }

    HttpConnection* connection_;
    std::function<void()> gone_;
};

HttpConnection::HttpConnection(HttpHost& host, bufferevent* events)
    : host_(host), events_(events), parser_(host.options().limits) {}

HttpConnection::~HttpConnection() { bufferevent_free(events_); }

void HttpConnection::begin() {
    bufferevent_setcb(events_, on_read, on_write, on_event, this);
    // While a request is answered reading goes on, so that the end of the connection is seen; what a client
    // sends ahead is bounded by this.
    bufferevent_setwatermark(events_, EV_READ, 0, 256 * 1024);
    bufferevent_enable(events_, EV_READ | EV_WRITE);
}

void HttpConnection::close() {
    if (std::exchange(closed_, true)) return;
    closing_ = true;
    const std::shared_ptr<HttpConnection> self = shared_from_this();
    bufferevent_disable(events_, EV_READ | EV_WRITE);
    bufferevent_setcb(events_, nullptr, nullptr, nullptr, nullptr);
    if (exchange_) {
        host_.exchange_began(-1);
        std::exchange(exchange_, nullptr)->cut();
    }
    host_.closed(*this);
}

void HttpConnection::on_read(bufferevent*, void* self) {
    const auto connection = static_cast<HttpConnection*>(self)->shared_from_this();
    connection->read();
}

void HttpConnection::on_write(bufferevent*, void* self) {
    const auto connection = static_cast<HttpConnection*>(self)->shared_from_this();
    connection->sent();
}

// All of it.
void HttpConnection::sent() {
    if (!closing_ || closed_) return;
    if (!lingers_) return close();
    // A client that still sends its body would lose the response if the connection were closed under it.
    ::shutdown(bufferevent_getfd(events_), SHUT_WR);
    bufferevent_enable(events_, EV_READ);
}

void HttpConnection::on_event(bufferevent*, short what, void* self) {
    const auto connection = static_cast<HttpConnection*>(self)->shared_from_this();
    // The end of what a client sends is the end of the client: one that only half closed its side cannot be
    // told from one that is gone, and a reply that nobody waits for must not be computed.
    if ((what & (BEV_EVENT_EOF | BEV_EVENT_ERROR)) == 0) return;
    // What is already on its way out may still be wanted.
    if (!connection->exchange_ && connection->unsent() > 0 && (what & BEV_EVENT_ERROR) == 0) {
        connection->lingers_ = false;
        return connection->close_when_sent();
    }
    connection->close();
}

void HttpConnection::read() {
    if (in_read_) return;
    in_read_ = true;
    evbuffer* input = bufferevent_get_input(events_);
    if (closing_) evbuffer_drain(input, evbuffer_get_length(input));
    while (!exchange_ && !closing_ && evbuffer_get_length(input) > 0) {
        const std::size_t length = evbuffer_get_contiguous_space(input);
        const auto* bytes =
            reinterpret_cast<const char*>(evbuffer_pullup(input, static_cast<ev_ssize_t>(length)));
        if (!parser_.started()) head_since_ = Clock::now();
        const std::size_t taken = parser_.feed(std::string_view(bytes, length));
        evbuffer_drain(input, taken);
        if (parser_.error()) {
            refuse(host_.handler().on_error(*parser_.error(), parser_.request().path));
            break;
        }
        if (parser_.head_complete() && !head_seen_) {
            head_seen_ = true;
            body_since_ = Clock::now();
            http_1_0_ = parser_.request().is_http_1_0;
            head_only_ = parser_.request().method == "HEAD";
            if (auto refusal = host_.handler().on_head(parser_.request())) {
                refuse(*std::move(refusal));
                break;
            }
            if (parser_.request().expects_continue && !parser_.complete())
                put("HTTP/1.1 100 Continue\r\n\r\n");
        }
        if (!parser_.complete()) continue;
        HttpRequest request = parser_.take();
        head_seen_ = false;
        keep_alive_ = request.keep_alive;
        host_.exchange_began(1);
        exchange_ = std::make_shared<Exchange>(*this);
        host_.handler().on_request(exchange_, std::move(request));
    }
    in_read_ = false;
}

// The body of a refused request is not read, so nothing can follow it.
void HttpConnection::refuse(const HttpResponse& response) {
    keep_alive_ = false;
    put_head(response, false);
    if (!head_only_) put(response.body);
    lingers_ = true;
    close_when_sent();
}

void HttpConnection::put_head(const HttpResponse& response, bool streamed) {
    chunked_ = streamed && !http_1_0_;
    if (streamed && http_1_0_) keep_alive_ = false;
    std::string head = fmt::format("HTTP/1.1 {} {}\r\n", response.status, reason_of(response.status));
    const auto line = [&](std::string_view name, std::string_view value) {
        head += name;
        head += ": ";
        // No value of ours holds a line break; one that came from a client must not begin a header of its
        // own.
        for (const char c : value) head += c == '\r' || c == '\n' ? ' ' : c;
        head += "\r\n";
    };
    if (response.status != 204) {
        line("Content-Type", response.content_type);
        if (chunked_)
            line("Transfer-Encoding", "chunked");
        else if (!streamed)
            line("Content-Length", std::to_string(response.body.size()));
    }
    for (const auto& [name, value] : response.headers) line(name, value);
    line("Connection", keep_alive_ ? "keep-alive" : "close");
    head += "\r\n";
    put(head);
}

void HttpConnection::put(std::string_view bytes) {
    last_write_ = Clock::now();
    if (unsent() == 0) last_progress_ = last_write_;
    put_bytes_ += bytes.size();
    bufferevent_write(events_, bytes.data(), bytes.size());
}

void HttpConnection::exchange_over() {
    host_.exchange_began(-1);
    exchange_.reset();
    idle_since_ = Clock::now();
    if (!keep_alive_) return close_when_sent();
    // A request that was sent ahead; not from within the one before, so that a thousand of them are no
    // recursion.
    if (!in_read_ && evbuffer_get_length(bufferevent_get_input(events_)) > 0)
        bufferevent_trigger(events_, EV_READ, BEV_TRIG_DEFER_CALLBACKS);
}

void HttpConnection::finish() {
    if (exchange_) {
        host_.exchange_began(-1);
        std::exchange(exchange_, nullptr)->cut();
    }
    if (!closing_) close_when_sent();
}

void HttpConnection::close_when_sent() {
    closing_ = true;
    last_progress_ = Clock::now();
    bufferevent_disable(events_, EV_READ);
    // on_write closes; where nothing is left to send nobody would call it.
    if (unsent() == 0)
        bufferevent_trigger(events_, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
}

void HttpConnection::check_time(Clock::time_point now) {
    const HttpOptions& options = host_.options();
    const auto late = [&](Clock::time_point since, std::chrono::seconds time) { return now - since > time; };
    if (const std::uint64_t sent = put_bytes_ - unsent(); sent != sent_seen_) {
        sent_seen_ = sent;
        last_progress_ = now;
    }
    if (unsent() > 0) {
        if (!late(last_progress_, options.write_time)) return;
    } else if (exchange_) {
        return;  // we are the slow one
    } else if (closing_) {
        if (!late(last_progress_, std::chrono::seconds(3))) return;
    } else if (!parser_.started()) {
        if (!late(idle_since_, options.idle_time)) return;
    } else if (!parser_.head_complete()) {
        if (!late(head_since_, options.head_time)) return;
        host_.timed_out();
        return refuse(host_.handler().on_error({408, "The request's headers did not come in time."}, ""));
    } else {
        if (!late(body_since_, options.body_time)) return;
        host_.timed_out();
        return refuse(host_.handler().on_error({408, "The request's body did not come in time."},
                                               parser_.request().path));
    }
    host_.timed_out();
    close();
}

}  // namespace dgemma::server
