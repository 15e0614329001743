#include "server/http_parser.h"

#include <string>

#include <gtest/gtest.h>

namespace dgemma::server {
namespace {

constexpr HttpParser::Limits small{.head = 200, .headers = 4, .body = 20};

// Feeds a request byte by byte and all at once; both must come to the same.
HttpParser parsed(std::string_view bytes, HttpParser::Limits limits = {}) {
    HttpParser whole(limits), pieces(limits);
    const std::size_t taken = whole.feed(bytes);
    std::size_t one_by_one = 0;
    while (one_by_one < bytes.size() && !pieces.complete() && !pieces.error())
        one_by_one += pieces.feed(bytes.substr(one_by_one, 1));
    // Where a request is refused no longer matters.
    if (!whole.error()) {
        EXPECT_EQ(taken, one_by_one) << bytes;
    }
    EXPECT_EQ(whole.complete(), pieces.complete()) << bytes;
    EXPECT_EQ(whole.error() ? whole.error()->status : 0, pieces.error() ? pieces.error()->status : 0)
        << bytes;
    EXPECT_EQ(whole.request().body, pieces.request().body);
    return whole;
}

TEST(HttpParser, ReadsARequestHoweverItIsCut) {
    HttpParser parser = parsed(
        "POST /v1/x?a=b HTTP/1.1\r\nHost: here\r\nContent-Length: 5\r\nX-Two:  words here \r\n\r\nhelloGET");
    ASSERT_TRUE(parser.complete());
    const HttpRequest request = parser.take();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/x");
    EXPECT_EQ(request.query, "a=b");
    EXPECT_EQ(request.body, "hello");
    EXPECT_EQ(request.header("x-two"), "words here");
    EXPECT_EQ(request.header("nothing"), std::nullopt);
    EXPECT_TRUE(request.keep_alive);
    EXPECT_FALSE(parser.started());
}

TEST(HttpParser, ReadsChunks) {
    HttpParser parser = parsed(
        "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n "
        "world\r\n0\r\n"
        "Trailer: t\r\n\r\n");
    ASSERT_TRUE(parser.complete());
    EXPECT_EQ(parser.take().body, "hello world");
}

TEST(HttpParser, KnowsWhatConnectionsAskFor) {
    EXPECT_FALSE(parsed("GET / HTTP/1.1\r\nHost: h\r\nConnection: x, Close\r\n\r\n").take().keep_alive);
    EXPECT_FALSE(parsed("GET / HTTP/1.0\r\n\r\n").take().keep_alive);
    EXPECT_TRUE(parsed("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").take().keep_alive);
    EXPECT_TRUE(parsed("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\nx")
                    .take()
                    .expects_continue);
    EXPECT_EQ(parsed("GET http://h/path HTTP/1.1\r\nHost: h\r\n\r\n").take().path, "/path");
    EXPECT_EQ(parsed("GET /a://h/path HTTP/1.1\r\nHost: h\r\n\r\n").take().path, "/a://h/path");
}

int status_of(std::string_view bytes, HttpParser::Limits limits = {}) {
    const HttpParser parser = parsed(bytes, limits);
    return parser.error() ? parser.error()->status : parser.complete() ? 200 : 100;
}

TEST(HttpParser, RefusesWhatTwoReadersCouldReadInTwoWays) {
    EXPECT_EQ(status_of("GET / HTTP/1.1\nHost: h\r\n\r\n"), 400);
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\n\r\n"), 400);
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), 400);
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n"), 400);
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost : h\r\n\r\n"), 400);
    EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"), 400);
    EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\n"), 400);
    EXPECT_EQ(
        status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
        400);
    EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"), 501);
    EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n"), 400);
    EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n"), 400);
    EXPECT_EQ(
        status_of("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"),
        400);
    EXPECT_EQ(status_of(std::string_view("GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n", 27)), 400);
    EXPECT_EQ(status_of("GET  HTTP/1.1\r\n"), 400);
    EXPECT_EQ(status_of("\x16\x03\x01\x02 tls\r\n"), 400);
    EXPECT_EQ(status_of("GET / HTTP/2.0\r\n"), 505);
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: h\r\nExpect: much\r\n\r\n"), 417);
}

TEST(HttpParser, KeepsItsLimits) {
    EXPECT_EQ(status_of("GET /" + std::string(300, 'a'), small), 431);
    EXPECT_EQ(status_of("GET / HTTP/1.1\r\nHost: h\r\nA: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\n\r\n", small), 431);
    EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 20\r\n\r\n", small), 100);
    EXPECT_EQ(status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 21\r\n\r\n", small), 413);
    EXPECT_EQ(
        status_of("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999999\r\n\r\n", small),
        400);
    EXPECT_EQ(
        status_of("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n10\r\n0123456789abcdef\r\n"
                  "5\r\n",
                  small),
        413);
    std::string endless;
    for (int i = 0; i < 200; ++i) endless += "\r\n";
    EXPECT_EQ(status_of(endless, small), 431);
}

}  // namespace
}  // namespace dgemma::server
