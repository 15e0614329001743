#include "server/kept_responses.h"

#include <gtest/gtest.h>

namespace dgemma::server {
namespace {

class KeptResponses : public ::testing::Test {
  protected:
    KeptResponses() {
        Value::Array input;
        for (const char* text : {"a", "b", "c"})
            input.push_back(object({{"role", string("user")}, {"content", string(text)}}));
        store.put("resp_1", input, {object({{"type", string("message")}, {"id", string("msg_out")}})},
                  R"({"id":"resp_1"})");
    }
    // The JSON, or the error as "status field".
    std::string ask(std::string_view method, std::string_view below, std::string_view query = "") {
        auto out = kept_response_json(method, below, query, store);
        if (const auto* error = std::get_if<ApiError>(&out))
            return std::to_string(error->status) + " " + error->field;
        return std::get<std::string>(out);
    }
    // The texts of the items of a list, and a plus where there are more.
    std::string texts(std::string_view query) {
        const std::string json = ask("GET", "resp_1/input_items", query);
        const auto listed = text::parse_json(json, "a list");
        if (!listed || listed.value().find("data") == nullptr) return json;
        std::string out;
        for (const Value& item : listed.value().find("data")->as_array()) {
            EXPECT_EQ(text_at(item, "type"), "message");
            EXPECT_FALSE(text_at(item, "id").empty());
            out += text_at(item.find("content")->as_array().at(0), "text");
        }
        return out + (listed.value().find("has_more")->as_boolean() ? "+" : "");
    }
    ResponseStore store{10000};
};

TEST_F(KeptResponses, AreAnsweredAgainUntilTheyAreDeleted) {
    EXPECT_EQ(ask("GET", "resp_1"), R"({"id":"resp_1"})");
    EXPECT_EQ(ask("GET", "resp_1", "stream=true"), "400 stream");
    EXPECT_EQ(ask("GET", "resp_2"), "404 ");
    EXPECT_EQ(ask("DELETE", "resp_1/input_items"), "405 ");
    EXPECT_EQ(ask("DELETE", "resp_1"), R"({"id":"resp_1","object":"response","deleted":true})");
    EXPECT_EQ(ask("DELETE", "resp_1"), "404 ");
    EXPECT_EQ(ask("GET", "resp_1"), "404 ");
    EXPECT_EQ(ask("GET", "resp_1/input_items"), "404 ");
    EXPECT_FALSE(store.item("msg_out"));
    EXPECT_EQ(store.bytes(), 0u);
}

TEST_F(KeptResponses, ListTheirInputByPages) {
    EXPECT_EQ(texts(""), "cba");
    EXPECT_EQ(texts("order=asc"), "abc");
    EXPECT_EQ(texts("order=asc&limit=2"), "ab+");
    EXPECT_EQ(texts("limit=2&after=msg_1_2"), "ba");
    EXPECT_EQ(texts("order=asc&after=msg_1_0&limit=1"), "b+");
    EXPECT_EQ(texts("after=msg_1_0"), "");
    for (const char* wrong : {"limit=0", "limit=101", "limit=", "limit=2x", "limit=-1", "limit"})
        EXPECT_EQ(texts(wrong), "400 limit") << wrong;
    EXPECT_EQ(texts("order=up"), "400 order");
    EXPECT_EQ(texts("after=msg_out"), "400 after");
}

}  // namespace
}  // namespace dgemma::server
