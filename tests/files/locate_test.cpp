#include "files/locate.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "support/scratch.h"

namespace dgemma::files {
namespace {

namespace fs = std::filesystem;
using testing::ScratchDir;

#define EXPECT_SAYS(message, part) EXPECT_NE((message).find(part), std::string::npos) << (message)

// The environment with the cache variables taken away, put back afterwards.
class Locate : public ::testing::Test {
  protected:
    Locate() {
        for (const char* name :
             {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}) {
            const char* value = std::getenv(name);
            before_[name] = value == nullptr ? std::nullopt : std::optional<std::string>(value);
            ::unsetenv(name);
        }
    }
    ~Locate() override {
        for (const auto& [name, value] : before_) {
            if (value) {
                ::setenv(name.c_str(), value->c_str(), 1);
            } else {
                ::unsetenv(name.c_str());
            }
        }
    }

    static std::string refusal(std::string_view spec, ErrorKind kind) {
        const auto result = locate_model(spec);
        if (result) return "found " + result->string();
        EXPECT_EQ(result.error().kind, kind) << result.error().message;
        return result.error().message;
    }

    ScratchDir scratch_;

  private:
    std::map<std::string, std::optional<std::string>> before_;
};

TEST_F(Locate, TheCacheIsWhereTheHubClientPutsIt) {
    ::setenv("HOME", "/h", 1);
    EXPECT_EQ(hub_cache_dir(), "/h/.cache/huggingface/hub");
    ::setenv("XDG_CACHE_HOME", "/x", 1);
    EXPECT_EQ(hub_cache_dir(), "/x/huggingface/hub");
    ::setenv("HF_HOME", "~/hf", 1);
    EXPECT_EQ(hub_cache_dir(), "/h/hf/hub");
    ::setenv("HF_HUB_CACHE", "/c", 1);
    EXPECT_EQ(hub_cache_dir(), "/c");
    ::setenv("HF_HUB_CACHE", "", 1);
    EXPECT_EQ(hub_cache_dir(), "/h/hf/hub");
}

TEST_F(Locate, WithoutHomeItSaysSo) {
    EXPECT_EQ(hub_cache_dir(), std::nullopt);
    EXPECT_SAYS(refusal("org/name", ErrorKind::not_found), "set HOME or HF_HOME");
    ::setenv("HF_HOME", "~/hf", 1);
    EXPECT_SAYS(refusal("org/name", ErrorKind::not_found), "set HOME or HF_HOME");
    ::setenv("HF_HOME", scratch_.path().c_str(), 1);
    EXPECT_SAYS(refusal("org/name", ErrorKind::not_found), "hf download org/name");
}

TEST_F(Locate, AnExistingPathWins) {
    ::setenv("HF_HUB_CACHE", scratch_.path().c_str(), 1);
    const fs::path file = scratch_.write("org/name", "x");
    EXPECT_EQ(*locate_model(file.native()), file);
    EXPECT_EQ(*locate_model(scratch_.path().native()), scratch_.path());
}

TEST_F(Locate, ANameIsFoundThroughItsRef) {
    ::setenv("HF_HUB_CACHE", scratch_.path().c_str(), 1);
    scratch_.write("models--org--name/snapshots/aaaa/config.json", "{}");
    scratch_.write("models--org--name/snapshots/bbbb/config.json", "{}");
    scratch_.write("models--org--name/refs/main", "aaaa\n");
    scratch_.write("models--org--name/refs/pr/1", "bbbb");
    const fs::path snapshots = scratch_.path() / "models--org--name/snapshots";
    EXPECT_EQ(*locate_model("org/name"), snapshots / "aaaa");
    EXPECT_EQ(*locate_model("org/name@main"), snapshots / "aaaa");
    EXPECT_EQ(*locate_model("org/name@bbbb"), snapshots / "bbbb");
    EXPECT_EQ(*locate_model("org/name@refs/pr/1"), snapshots / "bbbb");
    EXPECT_SAYS(refusal("org/name@v2", ErrorKind::not_found), "hf download org/name --revision v2");
}

TEST_F(Locate, WhatIsNotThereSaysHowToGetIt) {
    ::setenv("HF_HUB_CACHE", scratch_.path().c_str(), 1);
    EXPECT_SAYS(refusal("org/name", ErrorKind::not_found), "hf download org/name");
    scratch_.write("models--org--name/blobs/x.incomplete", "");
    EXPECT_SAYS(refusal("org/name", ErrorKind::not_found), "hf download org/name");
    scratch_.write("models--org--name/snapshots/cccc/config.json", "{}");
    EXPECT_SAYS(refusal("org/name", ErrorKind::not_found), "org/name@cccc");
    EXPECT_SAYS(refusal("no-such-model", ErrorKind::not_found), "org/name");
    EXPECT_SAYS(refusal("a/b/c", ErrorKind::not_found), "org/name");
}

TEST_F(Locate, HostileNamesStayInTheCache) {
    ::setenv("HF_HUB_CACHE", scratch_.path().c_str(), 1);
    scratch_.write("models--org--name/snapshots/aaaa/config.json", "{}");
    EXPECT_SAYS(refusal("", ErrorKind::usage), "empty");
    EXPECT_SAYS(refusal("org/..", ErrorKind::not_found), "org/name");
    EXPECT_SAYS(refusal("../absent", ErrorKind::not_found), "org/name");
    EXPECT_SAYS(refusal("org/name@../../x", ErrorKind::usage), "revision");
    EXPECT_SAYS(refusal("org/name@", ErrorKind::usage), "revision");
    EXPECT_SAYS(refusal("org/na me", ErrorKind::not_found), "org/name");
    EXPECT_SAYS(refusal("org/--help", ErrorKind::not_found), "org/name");
    EXPECT_SAYS(refusal(std::string_view("org/n\0me", 8), ErrorKind::usage), "NUL");
    EXPECT_SAYS(refusal(std::string(10000, 'x'), ErrorKind::io), "cannot be looked at");
    scratch_.write("models--org--name/refs/main", "../../../../etc");
    EXPECT_SAYS(refusal("org/name", ErrorKind::invalid), "names no commit");
    scratch_.write("models--org--name/refs/main", std::string(100000, 'a'));
    EXPECT_FALSE(locate_model("org/name"));
}

TEST(HubSnapshot, IsRecognisedByItsPath) {
    EXPECT_EQ(hub_snapshot("/c/models--o--n.x/snapshots/ab")->repo, "o/n.x");
    EXPECT_EQ(hub_snapshot("/c/models--o--n/snapshots/ab/")->revision, "ab");
    EXPECT_FALSE(hub_snapshot("/c/models--o/snapshots/ab"));
    EXPECT_FALSE(hub_snapshot("/c/datasets--o--n/snapshots/ab"));
    EXPECT_FALSE(hub_snapshot("/c/models--o--n/blobs/ab"));
    EXPECT_FALSE(hub_snapshot("/"));
    EXPECT_FALSE(hub_snapshot(""));
}

TEST(DownloadCommand, QuotesForTheShell) {
    EXPECT_EQ(download_command("/m/my model", "a.safetensors", "o/n"),
              "hf download o/n a.safetensors --local-dir '/m/my model'");
    EXPECT_EQ(download_command("/m/it's", "", ""), "hf download ORG/NAME --local-dir '/m/it'\\''s'");
    EXPECT_EQ(download_command("m", "a;b", "o/n"), "hf download o/n 'a;b' --local-dir m");
}

}  // namespace
}  // namespace dgemma::files
