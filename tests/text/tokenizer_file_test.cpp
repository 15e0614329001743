// Tokenizer files that are broken, hostile, or of another scheme: one sentence each, never a crash.
#include "text/tokenizer_file.h"

#include <filesystem>
#include <fstream>
#include <functional>

#include <gtest/gtest.h>
#include <zlib.h>

#include "golden_lines.h"
#include "naive_tokenizer.h"
#include "text/tokenizer.h"

namespace dgemma::text {
namespace {

namespace fs = std::filesystem;
using testing::json;
using testing::tokenizer_json;

json small_file() { return tokenizer_json({"a", "b", "▁", "ab", "aba"}, {{"a", "b"}, {"ab", "a"}}); }

void expect_refused(const std::string& text, const std::string& part, ErrorKind kind) {
    const auto loaded = Tokenizer::from_json(text, "some/tokenizer.json");
    ASSERT_FALSE(loaded.ok()) << part;
    const std::string& message = loaded.error().message;
    EXPECT_NE(message.find(part), std::string::npos) << "wanted: " << part << "\ngot: " << message;
    EXPECT_NE(message.find("some/tokenizer.json"), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_EQ(loaded.error().kind, kind) << message;
}

struct Fault {
    const char* part;  // of the message
    std::function<void(json&)> make;
};

TEST(TokenizerFile, RefusesWhatIsBroken) {
    const std::vector<Fault> faults = {
        {"has no \"model\"", [](json& file) { file.erase("model"); }},
        {"has no \"model\"", [](json& file) { file["model"] = 3; }},
        {"no \"vocab\"", [](json& file) { file["model"]["vocab"] = json::array(); }},
        {"no \"vocab\"", [](json& file) { file["model"].erase("vocab"); }},
        {"vocabulary is empty", [](json& file) { file["model"]["vocab"] = json::object(); }},
        {"no list of \"merges\"", [](json& file) { file["model"].erase("merges"); }},
        {"no list of \"merges\"",
         [](json& file) {
             file["model"]["merges"] = {{"a", "b"}};
             file["model"]["merges"] = "x";
         }},
        {"id of token \"ab\" is not an integer", [](json& file) { file["model"]["vocab"]["ab"] = "7"; }},
        {"id of token \"ab\" is not an integer", [](json& file) { file["model"]["vocab"]["ab"] = 7.0; }},
        {"id of token \"ab\" is not an integer", [](json& file) { file["model"]["vocab"]["ab"] = nullptr; }},
        {"id of token \"ab\" is not an integer", [](json& file) { file["model"]["vocab"]["ab"] = 1e300; }},
        {"token \"ab\" has id -1", [](json& file) { file["model"]["vocab"]["ab"] = -1; }},
        {"token \"ab\" has id 4294967296", [](json& file) { file["model"]["vocab"]["ab"] = 4294967296; }},
        {"token \"ab\" has id 100000", [](json& file) { file["model"]["vocab"]["ab"] = 100000; }},
        {"id 261 belongs to two tokens", [](json& file) { file["model"]["vocab"]["a"] = 261; }},
        {"no token has id 260", [](json& file) { file["model"]["vocab"]["a"] = 265; }},
        {"lacks the byte token <0x7F>",
         [](json& file) {
             file["model"]["vocab"]["<0x7f>"] = file["model"]["vocab"]["<0x7F>"];
             file["model"]["vocab"].erase("<0x7F>");
         }},
        {"merge 2 names \"x\", which is not in the vocabulary",
         [](json& file) {
             file["model"]["merges"].push_back({"x", "a"});
         }},
        {"merge 2 names \"bb\", which is not in the vocabulary",
         [](json& file) {
             file["model"]["merges"].push_back({"b", "b"});
         }},
        {"merge 2 has an empty side",
         [](json& file) {
             file["model"]["merges"].push_back({"", "a"});
         }},
        {"merge 2 is not a pair", [](json& file) { file["model"]["merges"].push_back({"a"}); }},
        {"merge 2 is not a pair",
         [](json& file) {
             file["model"]["merges"].push_back({"a", "b", "a"});
         }},
        {"merge 2 is not a pair",
         [](json& file) {
             file["model"]["merges"].push_back({"a", 1});
         }},
        {"merge 2 is not a pair", [](json& file) { file["model"]["merges"].push_back("ab"); }},
        {"merge 2 is not a pair", [](json& file) { file["model"]["merges"].push_back("a b a"); }},
        {"merge 2 is not a pair", [](json& file) { file["model"]["merges"].push_back(nullptr); }},
        {"merge 2 of \"a\" and \"b\" is there twice",
         [](json& file) {
             file["model"]["merges"].push_back({"a", "b"});
         }},
        {"\"added_tokens\" are no list", [](json& file) { file["added_tokens"] = "x"; }},
        {"an entry of \"added_tokens\"", [](json& file) { file["added_tokens"].push_back(1); }},
        {"an entry of \"added_tokens\"", [](json& file) { file["added_tokens"][0].erase("id"); }},
        {"an entry of \"added_tokens\"", [](json& file) { file["added_tokens"][0]["content"] = 5; }},
        {"an added token is empty", [](json& file) { file["added_tokens"][0]["content"] = ""; }},
        {"added token \"<eos>\" has id 2", [](json& file) { file["added_tokens"][1]["id"] = 2; }},
        {"added token \"<eos>\" has id -1", [](json& file) { file["added_tokens"][1]["id"] = -1; }},
        {"added token \"<eos>\" has id 99999999999",
         [](json& file) { file["added_tokens"][1]["id"] = 99999999999; }},
        {"\"special\" of the added token \"<eos>\"",
         [](json& file) { file["added_tokens"][1]["special"] = "yes"; }},
        {"added token \"<new>\" or its id 3",
         [](json& file) {
             file["added_tokens"].push_back({{"id", 3}, {"content", "<new>"}});
         }},
        {"no token has id 265",
         [](json& file) {
             file["added_tokens"].push_back({{"id", 266}, {"content", "<new>"}});
         }},
    };
    for (const Fault& fault : faults) {
        json file = small_file();
        fault.make(file);
        expect_refused(file.dump(), fault.part, ErrorKind::invalid);
    }
}

TEST(TokenizerFile, RefusesAnotherSchemeByName) {
    const std::vector<Fault> faults = {
        {"model type is \"Unigram\"", [](json& file) { file["model"]["type"] = "Unigram"; }},
        {"model has no type", [](json& file) { file["model"].erase("type"); }},
        {"byte_fallback", [](json& file) { file["model"]["byte_fallback"] = false; }},
        {"dropout", [](json& file) { file["model"]["dropout"] = 0.1; }},
        {"end_of_word_suffix", [](json& file) { file["model"]["end_of_word_suffix"] = "</w>"; }},
        {"continuing_subword_prefix", [](json& file) { file["model"]["continuing_subword_prefix"] = "##"; }},
        {"ignore_merges", [](json& file) { file["model"]["ignore_merges"] = true; }},
        {"no normalizer", [](json& file) { file["normalizer"] = nullptr; }},
        {"normalizer \"NFC\"",
         [](json& file) {
             file["normalizer"] = {{"type", "NFC"}};
         }},
        {"normalizer \"Replace\"", [](json& file) { file["normalizer"]["content"] = "_"; }},
        {"normalizer without a type", [](json& file) { file["normalizer"] = 7; }},
        {"pre-tokenizer \"ByteLevel\"",
         [](json& file) {
             file["pre_tokenizer"] = {{"type", "ByteLevel"}};
         }},
        {"pre-tokenizer \"Split\"", [](json& file) { file["pre_tokenizer"]["invert"] = true; }},
        {"pre-tokenizer \"Split\"",
         [](json& file) {
             file["pre_tokenizer"]["pattern"] = {{"Regex", "\\s"}};
         }},
        {"no decoder", [](json& file) { file.erase("decoder"); }},
        {"decoder \"ByteLevel\"",
         [](json& file) {
             file["decoder"] = {{"type", "ByteLevel"}};
         }},
        {"step 3 of its decoder, \"Strip\"",
         [](json& file) { file["decoder"]["decoders"][2]["type"] = "Strip"; }},
        {"step 4 of its decoder, \"Strip\"",
         [](json& file) {
             file["decoder"]["decoders"].push_back({{"type", "Strip"}});
         }},
        {"decoder has 1 steps",
         [](json& file) {
             file["decoder"]["decoders"].erase(1);
             file["decoder"]["decoders"].erase(1);
         }},
        {"added token \"<eos>\" sets lstrip", [](json& file) { file["added_tokens"][1]["lstrip"] = true; }},
        {"added token \"<eos>\" sets normalized",
         [](json& file) { file["added_tokens"][1]["normalized"] = true; }},
        {"longer than 1024 bytes",
         [](json& file) {
             file["added_tokens"].push_back({{"id", 265}, {"content", std::string(2000, 'x')}});
         }},
        {"byte token <0x41> is marked special",
         [](json& file) {
             file["added_tokens"].push_back(
                 {{"id", file["model"]["vocab"]["<0x41>"]}, {"content", "<0x41>"}, {"special", true}});
         }},
        {"merge 2 touches the byte token <0x41>",
         [](json& file) {
             file["model"]["vocab"]["<0x41>a"] = 265;
             file["model"]["merges"].push_back({"<0x41>", "a"});
         }},
        {"merge 0 spells the control token \"ab\"",
         [](json& file) {
             file["added_tokens"].push_back(
                 {{"id", file["model"]["vocab"]["ab"]}, {"content", "ab"}, {"special", true}});
         }},
    };
    for (const Fault& fault : faults) {
        json file = small_file();
        fault.make(file);
        expect_refused(file.dump(), fault.part, ErrorKind::unsupported);
    }
}

TEST(TokenizerFile, RefusesWhatIsNotJson) {
    const std::string whole = small_file().dump();
    for (std::size_t cut = 0; cut < whole.size(); cut += cut < 40 || whole.size() - cut < 40 ? 1 : 37) {
        expect_refused(whole.substr(0, cut), "is not JSON", ErrorKind::invalid);
    }
    expect_refused(std::string(2'000'000, '['), "is not JSON", ErrorKind::invalid);
    expect_refused("{\"model\": \"\xFF\"}", "is not JSON", ErrorKind::invalid);
    expect_refused("[]", "not a JSON object", ErrorKind::invalid);
    expect_refused("null", "not a JSON object", ErrorKind::invalid);
}

TEST(TokenizerFile, RefusesATokenThatIsThereTwiceOrIsNoText) {
    std::string twice = small_file().dump();
    twice.insert(twice.find("\"vocab\":{") + 9, "\"ab\":265,");
    expect_refused(twice, "token \"ab\" is in the vocabulary twice", ErrorKind::invalid);
    std::string surrogate = small_file().dump();
    for (const char* lone : {"\\ud800", "\\udc00"}) {
        std::string text = surrogate;
        text.replace(text.find("\"aba\":"), 5, "\"" + std::string(lone) + "\"");
        expect_refused(text, "is not JSON", ErrorKind::invalid);
    }
}

TEST(TokenizerFile, AcceptsEitherFormOfMergesAndWhatIsOptional) {
    json file = small_file();
    file["model"]["merges"] = {"a b", "ab a"};
    file["pre_tokenizer"] = nullptr;
    file["post_processor"] = {{"type", "Whatever"}};
    file["model"]["dropout"] = 0.0;
    file["model"]["end_of_word_suffix"] = "";
    const auto loaded = Tokenizer::from_json(file.dump());
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    EXPECT_EQ(loaded->encode("aba", Specials::parse), std::vector<std::int32_t>{264});
}

// A folder of this test's own, gone at the end.
class TokenizerOnDisk : public ::testing::Test {
  protected:
    void SetUp() override {
        directory_ = fs::temp_directory_path() /
                     ("dgemma-tokenizer-" +
                      std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
        fs::remove_all(directory_);
        fs::create_directories(directory_);
    }
    void TearDown() override { fs::remove_all(directory_); }

    fs::path write(const std::string& name, const std::string& bytes) const {
        std::ofstream(directory_ / name, std::ios::binary) << bytes;
        return directory_ / name;
    }
    fs::path write_gzip(const std::string& name, const std::string& bytes) const {
        gzFile file = gzopen((directory_ / name).c_str(), "wb");
        EXPECT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
                  static_cast<int>(bytes.size()));
        gzclose(file);
        return directory_ / name;
    }

    fs::path directory_;
};

TEST_F(TokenizerOnDisk, IsFoundForAModel) {
    const std::string text = small_file().dump();
    const auto missing = load_tokenizer_for(directory_);
    ASSERT_FALSE(missing.ok());
    EXPECT_EQ(missing.error().kind, ErrorKind::not_found);
    write_gzip("tokenizer.json.gz", text);
    EXPECT_TRUE(load_tokenizer_for(directory_).ok());
    EXPECT_TRUE(load_tokenizer_for(directory_ / "tokenizer.json.gz").ok());
    write("tokenizer.json", text);
    EXPECT_TRUE(load_tokenizer_for(directory_).ok());
    EXPECT_TRUE(load_tokenizer_for(directory_ / "tokenizer.json").ok());
    EXPECT_TRUE(load_tokenizer_for(directory_ / "model.safetensors").ok());
    const auto other = load_tokenizer_for(directory_ / "other.json");
    ASSERT_FALSE(other.ok());
    EXPECT_EQ(other.error().kind, ErrorKind::not_found);
    EXPECT_NE(other.error().message.find("other.json"), std::string::npos);
}

TEST_F(TokenizerOnDisk, IsToldByContentNotByName) {
    const auto packed = write_gzip("tokenizer.json", small_file().dump());
    EXPECT_TRUE(Tokenizer::load(packed).ok());
}

TEST_F(TokenizerOnDisk, RefusesABrokenGzip) {
    const auto whole = write_gzip("tokenizer.json.gz", small_file().dump());
    std::ifstream in(whole, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    for (std::size_t cut = 2; cut < bytes.size(); cut += 11) {
        const auto loaded = Tokenizer::load(write("cut.gz", bytes.substr(0, cut)));
        ASSERT_FALSE(loaded.ok()) << cut;
        EXPECT_NE(loaded.error().message.find("no complete gzip file"), std::string::npos)
            << loaded.error().message;
    }
    std::string damaged = bytes;
    for (std::size_t i = 40; i < 60; ++i) damaged[i] = static_cast<char>(~damaged[i]);
    EXPECT_FALSE(Tokenizer::load(write("damaged.gz", damaged)).ok());
}

TEST_F(TokenizerOnDisk, StopsUnpackingAtTheLimit) {
    const auto bomb = write_gzip("bomb.gz", std::string(8 << 20, ' '));
    const auto text = read_tokenizer_file(bomb, (8 << 20) - 1);
    ASSERT_FALSE(text.ok());
    EXPECT_NE(text.error().message.find("more than the 8388607 bytes"), std::string::npos)
        << text.error().message;
    const auto enough = read_tokenizer_file(bomb, 8 << 20);
    ASSERT_TRUE(enough.ok()) << enough.error().message;
    EXPECT_EQ(enough->size(), std::size_t{8} << 20);
    const auto plain = read_tokenizer_file(write("plain.json", std::string(100, ' ')), 99);
    ASSERT_FALSE(plain.ok());
}

}  // namespace
}  // namespace dgemma::text
