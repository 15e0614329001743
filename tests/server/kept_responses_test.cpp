#include "server/kept_responses.h"

#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "server/routes.h"
#include "text/utf8.h"

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
        std::string json = ask("GET", "resp_1/input_items", query);
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
    EXPECT_EQ(texts("limit=2&after=msg_1_in2"), "ba");
    EXPECT_EQ(texts("order=asc&after=msg_1_in0&limit=1"), "b+");
    EXPECT_EQ(texts("after=msg_1_in0"), "");
    EXPECT_EQ(texts("%6Cimit=2&after=msg%5F1%5fin2"), "ba");
    for (const char* wrong : {"limit=0", "limit=101", "limit=", "limit=2x", "limit=-1", "limit"})
        EXPECT_EQ(texts(wrong), "400 limit") << wrong;
    EXPECT_EQ(texts("order=up"), "400 order");
    EXPECT_EQ(texts("after=msg_out"), "400 after");
}

// A client goes from page to page by the id of the last item.
TEST_F(KeptResponses, ListEachItemOnceWhateverItsId) {
    Value::Array input;
    for (const char* id : {"same", "same", "a b/&=%", "same", ""}) {
        input.push_back(object({{"role", string("user")}, {"content", string("x")}, {"id", string(id)}}));
    }
    // Of a response before this one, whose id it has.
    input.push_back(object({{"type", string("message")}, {"id", string("msg_2_0")}}));
    store.put("resp_2", input, {object({{"type", string("message")}, {"id", string("msg_2_5")}})}, "{}");
    std::set<std::string> ids;
    std::string after;
    for (int i = 0; i < 6; ++i) {
        const auto page =
            text::parse_json(ask("GET", "resp_2/input_items", "order=asc&limit=1" + after), "a list");
        ASSERT_TRUE(page && page->find("data") != nullptr);
        const std::string id(text_at(*page, "last_id"));
        ids.insert(id);
        after = "&after=";
        for (const char c : id) after += fmt::format("%{:02x}", static_cast<unsigned char>(c));
        EXPECT_EQ(page->find("has_more")->as_boolean(), i < 5) << i;
    }
    EXPECT_EQ(ids.size(), 6u);
    EXPECT_EQ(ids.count("msg_2_5"), 0u) << "that one is the output";
}

TEST_F(KeptResponses, ListItemsOfTheKindsThatClientsKnow) {
    store.put(
        "resp_2",
        {object({{"role", string("assistant")}, {"content", string("x")}}),
         object(
             {{"type", string("function_call_output")}, {"call_id", string("c")}, {"output", string("r")}}),
         object({{"type", string("reasoning")}, {"summary", list()}})},
        {}, "{}");
    EXPECT_NE(
        ask("GET", "resp_2/input_items", "order=asc")
            .find(
                R"("data":[{"role":"assistant","content":[{"type":"output_text","text":"x","annotations":[]}],"type":"message","id":"msg_2_in0","status":"completed"},)"
                R"({"type":"function_call_output","call_id":"c","output":"r","id":"fc_2_in1","status":"completed"},)"
                R"({"type":"reasoning","summary":[],"id":"rs_2_in2"}])"),
        std::string::npos)
        << ask("GET", "resp_2/input_items", "order=asc");
}

// Ids come from paths, where any byte can be written.
TEST_F(KeptResponses, AreNamedInErrorsByValidText) {
    for (const std::string& id : {std::string("%ff%FE"), std::string("%e2%82"), std::string("a%00b"),
                                  std::string(199, 'a') + "%e2%82%ac", std::string(60000, 'b')}) {
        const auto out = kept_response_json("GET", id, "", store);
        const auto* error = std::get_if<ApiError>(&out);
        ASSERT_NE(error, nullptr) << id;
        EXPECT_EQ(error->status, 404);
        EXPECT_TRUE(text::is_valid_utf8(error->message)) << error->message;
        EXPECT_LT(error->message.size(), 500u);
    }
    EXPECT_EQ(ask("GET", "%72esp%5f1"), R"({"id":"resp_1"})");
    EXPECT_EQ(ask("GET", "resp_1%2Finput_items"), "404 ") << "an id with a slash in it";
}

TEST(Routes, OfResponses) {
    const auto path = [](std::string_view asked) {
        const Route* route = route_of(asked);
        return route != nullptr ? route->path : "none";
    };
    EXPECT_EQ(path("/v1/responses/resp_1"), "/v1/responses/ID");
    EXPECT_EQ(path("/v1/responses/a%2Fb"), "/v1/responses/ID");
    EXPECT_EQ(path("/v1/responses/resp_1/input_items"), "/v1/responses/ID/input_items");
    EXPECT_EQ(path("/v1/responses/input_tokens"), "/v1/responses/input_tokens");
    for (const char* none : {"/v1/responses/", "/v1/responses//input_items", "/v1/responses/a/cancel",
                             "/v1/responses/a/", "/v1/responses/a/input_items/b"})
        EXPECT_EQ(path(none), "none") << none;
    EXPECT_EQ(methods_of(*route_of("/v1/responses/a")), "GET, HEAD, DELETE");
    EXPECT_EQ(methods_of(*route_of("/v1/responses/a/input_items")), "GET, HEAD");
}

}  // namespace
}  // namespace dgemma::server
