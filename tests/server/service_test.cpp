// What is answered before there is a model, and what once there is one.
#include "server/service.h"

#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/scripted_port.h"

namespace dgemma::server {
namespace {

class ServiceTest : public ::testing::Test {
  protected:
    explicit ServiceTest(ServiceOptions options = {})
        : http_(HttpServer::listen({.port = 0}).value()),
          service_(std::make_unique<Service>(*http_, std::move(options))) {
        EXPECT_TRUE(service_->start());
        thread_ = std::thread([this] { http_->run(*service_); });
    }
    ~ServiceTest() override {
        http_->post([this] { http_->stop(); });
        thread_.join();
    }

    // On the server's thread.
    bool have_model() {
        auto model = std::make_shared<ServedModel>(ServedModel{
            .name = "demo", .tokenizer = demo_tokenizer(), .port = std::make_unique<ScriptedPort>()});
        std::promise<bool> done;
        http_->post([&] { done.set_value(service_->set_models({std::move(model)})); });
        return done.get_future().get();
    }

    // The whole response to one request.
    [[nodiscard]] std::string ask(const std::string& method, const std::string& path,
                                  const std::string& body = "", const std::string& headers = "") const {
        const int client = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<std::uint16_t>(http_->port()));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(::connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
        const std::string request = method + " " + path + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" +
                                    headers + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
                                    body;
        EXPECT_EQ(::send(client, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
        std::string out;
        char piece[4096];
        for (ssize_t got = 0; (got = ::recv(client, piece, sizeof(piece), 0)) > 0;)
            out.append(piece, static_cast<std::size_t>(got));
        ::close(client);
        return out;
    }

    std::unique_ptr<HttpServer> http_;
    std::unique_ptr<Service> service_;
    std::thread thread_;
};

TEST_F(ServiceTest, SaysThatItIsLoadingUntilItIsNot) {
    const std::string body = R"({"text":"a"})";
    const std::string health = ask("GET", "/health");
    EXPECT_TRUE(health.starts_with("HTTP/1.1 503")) << health;
    EXPECT_NE(health.find(R"({"status":"loading"})"), std::string::npos) << health;
    EXPECT_NE(health.find("Retry-After: "), std::string::npos) << health;
    for (const auto& [method, path] : {std::pair("GET", "/v1/models"), std::pair("GET", "/v1/models/demo"),
                                       std::pair("POST", "/tokenize"), std::pair("POST", "/v1/messages")}) {
        const std::string said = ask(method, path, body);
        EXPECT_TRUE(said.starts_with("HTTP/1.1 503")) << path << ": " << said;
        EXPECT_NE(said.find("Retry-After: "), std::string::npos) << said;
    }
    EXPECT_TRUE(have_model());
    EXPECT_TRUE(ask("GET", "/health").starts_with("HTTP/1.1 200"));
    EXPECT_NE(ask("GET", "/v1/models").find(R"("id":"demo")"), std::string::npos);
    EXPECT_TRUE(ask("POST", "/tokenize", body).starts_with("HTTP/1.1 200"));
}

class LockedServiceTest : public ServiceTest {
  protected:
    LockedServiceTest() : ServiceTest({.api_keys = {"one", "two"}}) { EXPECT_TRUE(have_model()); }
};

TEST_F(LockedServiceTest, OneKnownKeyIsEnough) {
    const auto status = [&](const std::string& headers) {
        return ask("GET", "/v1/models", "", headers).substr(9, 3);
    };
    EXPECT_EQ(status("Authorization: Bearer one\r\n"), "200");
    EXPECT_EQ(status("x-api-key: two\r\n"), "200");
    EXPECT_EQ(status("Authorization: Bearer none\r\nx-api-key: two\r\n"), "200");
    EXPECT_EQ(status("Authorization: Bearer one\r\nx-api-key: none\r\n"), "200");
    for (const char* wrong :
         {"", "Authorization: Bearer none\r\n", "Authorization: Bearer \r\n", "x-api-key: \r\n",
          "Authorization: one\r\n", "x-api-key: on\r\n", "x-api-key: onetwo\r\n"})
        EXPECT_EQ(status(wrong), "401") << wrong;
    EXPECT_EQ(ask("GET", "/health").substr(9, 3), "200");
}

TEST_F(ServiceTest, SaysWhichMethodsAPathTakes) {
    EXPECT_NE(ask("POST", "/health").find("\r\nAllow: GET, HEAD\r\n"), std::string::npos);
    EXPECT_NE(ask("GET", "/v1/messages").find("\r\nAllow: POST\r\n"), std::string::npos);
    EXPECT_NE(ask("DELETE", "/v1/models").find("\r\nAllow: GET, HEAD\r\n"), std::string::npos);
    EXPECT_NE(ask("POST", "/v1/responses/x").find("\r\nAllow: GET, HEAD, DELETE\r\n"), std::string::npos);
    EXPECT_NE(ask("DELETE", "/v1/responses/x/input_items").find("\r\nAllow: GET, HEAD\r\n"),
              std::string::npos);
    EXPECT_TRUE(ask("DELETE", "/v1/responses/x").starts_with("HTTP/1.1 404"));
    // Whatever is asked for, there are so many names to count under.
    for (const char* id :
         {"/v1/responses/a", "/v1/responses/b/input_items", "/v1/responses/c/d", "/v1/models/e"})
        EXPECT_NE(ask("GET", id).find("HTTP/1.1 200"), 0u);
    EXPECT_EQ(ask("GET", "/metrics").find("/v1/responses/a"), std::string::npos);
    EXPECT_NE(ask("GET", "/metrics").find(R"(path="/v1/responses/ID/input_items",status="404"} 1)"),
              std::string::npos);
    // Not to be tried again as it is.
    const std::string coded = ask("GET", "/", "", "Transfer-Encoding: gzip\r\n");
    EXPECT_TRUE(coded.starts_with("HTTP/1.1 501")) << coded;
    EXPECT_NE(coded.find("invalid_request_error"), std::string::npos) << coded;
}

}  // namespace
}  // namespace dgemma::server
