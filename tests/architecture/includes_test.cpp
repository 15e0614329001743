// The directions of docs/ARCHITECTURE.md: who may include whom under src/.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/shared.h"

namespace dgemma {
namespace {

namespace fs = std::filesystem;

using Rooms = std::set<std::string>;

// The rooms that each room may include, besides itself.
const std::map<std::string, Rooms> allowed = {
    {"base", {}},
    {"files", {"base"}},
    {"backend", {"base"}},
    {"diffusion", {"base"}},
    {"model", {"backend", "diffusion", "files", "base"}},
    {"text", {"files", "base"}},
    {"media", {"files", "base"}},
    {"engine", {"text", "media", "model", "diffusion", "backend", "files", "base"}},
    {"reply", {"engine", "text", "base"}},
    {"train", {"engine", "text", "media", "model", "diffusion", "backend", "files", "base"}},
    {"server", {"reply", "engine", "text", "media", "model", "diffusion", "files", "base"}},
    {"cli",
     {"server", "train", "reply", "engine", "text", "media", "model", "diffusion", "backend", "files",
      "base"}},
};

struct Include {
    fs::path file;  // relative to src
    int line = 0;
    std::string target;
    bool quoted = false;

    [[nodiscard]] std::string where() const { return "src/" + file.string() + ":" + std::to_string(line); }
    [[nodiscard]] std::string room() const { return file.begin()->string(); }
    [[nodiscard]] std::string target_room() const { return fs::path(target).begin()->string(); }
};

fs::path source_root() { return testing::source_dir() / "src"; }

std::vector<Include> all_includes() {
    static const std::regex form(R"(^\s*#\s*include\s*([<"])([^>"]+)[>"])");
    static const std::set<std::string> kinds = {".h", ".cpp", ".inl", ".cu", ".cuh"};
    std::vector<Include> out;
    for (const auto& entry : fs::recursive_directory_iterator(source_root())) {
        if (!entry.is_regular_file() || kinds.count(entry.path().extension().string()) == 0) continue;
        std::ifstream in(entry.path());
        std::string line;
        for (int number = 1; std::getline(in, line); ++number) {
            std::smatch match;
            if (!std::regex_search(line, match, form)) continue;
            out.push_back({fs::relative(entry.path(), source_root()), number, match[2], match[1] == "\""});
        }
    }
    return out;
}

TEST(IncludeDirections, ThereIsSomethingToCheck) { EXPECT_GT(all_includes().size(), 100u); }

TEST(IncludeDirections, OwnHeadersAreWrittenFromSrcAndExist) {
    for (const Include& include : all_includes()) {
        if (!include.quoted) continue;
        EXPECT_EQ(include.target.find(".."), std::string::npos) << include.where();
        EXPECT_TRUE(fs::exists(source_root() / include.target))
            << include.where() << " includes \"" << include.target << "\", which is not under src/";
    }
}

TEST(IncludeDirections, RoomsDependDownwardsOnly) {
    for (const Include& include : all_includes()) {
        if (!include.quoted) continue;
        const auto room = allowed.find(include.room());
        ASSERT_NE(room, allowed.end())
            << include.where() << " is in a room that docs/ARCHITECTURE.md does not know";
        const std::string target = include.target_room();
        EXPECT_TRUE(target == room->first || room->second.count(target) == 1)
            << include.where() << ": " << room->first << " must not include " << include.target;
    }
}

TEST(IncludeDirections, OnlyTheBackendSeesItsImplementations) {
    // The engine chooses one, so it sees their factories too.
    static const std::set<std::string> factories = {"backend/cpu/cpu.h", "backend/cuda/cuda.h"};
    for (const Include& include : all_includes()) {
        if (!include.quoted || include.room() == "backend" || include.target_room() != "backend") continue;
        const bool chosen = include.room() == "engine" && factories.count(include.target) == 1;
        EXPECT_TRUE(chosen || include.target == "backend/backend.h") << include.where();
    }
}

TEST(IncludeDirections, CudaStaysInItsFolder) {
    static const std::regex cuda(R"(^(cuda|cublas|cudnn|nccl|nvrtc|nvml|cooperative_groups|mma\.h))");
    for (const Include& include : all_includes()) {
        if (include.quoted || include.file.string().starts_with("backend/cuda/")) continue;
        EXPECT_FALSE(std::regex_search(include.target, cuda))
            << include.where() << " includes " << include.target;
    }
}

TEST(IncludeDirections, ThereAreNoCirclesBetweenRooms) {
    // The table itself: if a room may include another, that one must not be able to reach it.
    for (const auto& [room, targets] : allowed) {
        std::vector<std::string> open(targets.begin(), targets.end());
        Rooms seen;
        while (!open.empty()) {
            const std::string next = open.back();
            open.pop_back();
            EXPECT_NE(next, room);
            if (!seen.insert(next).second) continue;
            const auto& more = allowed.at(next);
            open.insert(open.end(), more.begin(), more.end());
        }
    }
}

}  // namespace
}  // namespace dgemma
