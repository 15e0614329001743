// One connection of the HTTP server: the inside of http_server.cpp.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "server/http_server.h"

namespace dgemma::server {

class HttpConnection;

// What connections need of their server.
class HttpHost {
  public:
    virtual ~HttpHost() = default;
    virtual HttpHandler& handler() = 0;
    virtual const HttpOptions& options() const = 0;
    // The connection is over and goes away now.
    virtual void closed(HttpConnection& connection) = 0;
    virtual void timed_out() = 0;
    virtual void exchange_began(int change) = 0;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
  public:
    using Clock = std::chrono::steady_clock;
    using Place = std::list<std::shared_ptr<HttpConnection>>::iterator;

    HttpConnection(HttpHost& host, bufferevent* events);
    ~HttpConnection();
    HttpConnection(const HttpConnection&) = delete;
    HttpConnection& operator=(const HttpConnection&) = delete;

    void begin();
    // Lets go of the client at once.
    void close();
    // The same when what is written has been sent; nothing is read any more.
    void finish();
    // Whether it waits for a request and has nothing of one.
    [[nodiscard]] bool idle() const { return !exchange_ && !closing_ && !parser_.started(); }
    // What took too long?
    void check_time(Clock::time_point now);

    Place place;  // in the server's list

  private:
    class Exchange;

    static void on_read(bufferevent*, void* self);
    static void on_write(bufferevent*, void* self);
    static void on_event(bufferevent*, short what, void* self);

    void read();
    void refuse(const HttpResponse& response);
    void put_head(const HttpResponse& response, bool streamed);
    void put(std::string_view bytes);
    void exchange_over();
    void close_when_sent();
    void sent();
    [[nodiscard]] std::size_t unsent() const { return evbuffer_get_length(bufferevent_get_output(events_)); }

    HttpHost& host_;
    bufferevent* events_;
    HttpParser parser_;
    std::shared_ptr<Exchange> exchange_;  // with the request that is being answered
    bool keep_alive_ = true;
    bool http_1_0_ = false;
    bool head_only_ = false;  // the answer to HEAD has no body
    bool chunked_ = false;
    bool head_seen_ = false;  // on_head was asked about the request that is being read
    bool closing_ = false;    // when all is sent
    bool lingers_ = false;    // then not at once: what still comes is read and dropped
    bool closed_ = false;
    bool in_read_ = false;
    std::uint64_t put_bytes_ = 0, sent_seen_ = 0;
    Clock::time_point idle_since_ = Clock::now(), head_since_, body_since_, last_write_ = Clock::now(),
                      last_progress_ = Clock::now();
};

}  // namespace dgemma::server
